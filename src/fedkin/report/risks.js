// Risk tasks: whether the risks are true (calibration), and what acting on them is worth (decision curve).
const risky = () => DATA.runs.filter((one) => one.seed === run().seed && one.risks && one.federation === run().federation);
const emphasis = (one) => ({ ...methodStyle(one.label), width: one === run() ? 3.5 : 1.8 });

function drawCalibration() {
  const all = risky(), diagonal = { x: [0, 1], y: [0, 1], mode: "lines", hoverinfo: "skip", line: { color: css("--quiet"), dash: "dot", width: 1.5 } };
  const top = Math.min(1, 1.08 * Math.max(0.05, ...all.flatMap(({ risks }) => risks.bins.map(([predicted, observed, , high]) => Math.max(predicted, observed, high)))));
  draw("calibration-plot", [diagonal, ...all.map((one) => ({
    x: one.risks.bins.map((bin) => bin[0]), y: one.risks.bins.map((bin) => bin[1]), mode: "lines+markers", name: escaped(title(one.label)), meta: one.label,
    line: emphasis(one), marker: { color: methodStyle(one.label).color, size: one === run() ? 9 : 6 },
    error_y: one === run() ? { type: "data", symmetric: false, thickness: 1, width: 0, array: one.risks.bins.map((bin) => bin[3] - bin[1]), arrayminus: one.risks.bins.map((bin) => bin[1] - bin[2]) } : undefined,
    text: one.risks.bins.map(([predicted, observed, low, high, n]) => `${escaped(title(one.label))}: risk ${percent(predicted)}, events ${percent(observed)} (${percent(low)} to ${percent(high)}) of ${many(n, "sample")}`),
    hovertemplate: "%{text}<extra></extra>",
  }))], {
    xaxis: { title: { text: "predicted risk" }, tickformat: ".0%", range: [0, top] }, yaxis: { title: { text: narrow() ? "" : "share of events" }, tickformat: ".0%", range: [0, top] },
  });
}

function drawDecisions() {
  const all = risky(), share = all[0].risks.events / all[0].risks.n, at = all[0].risks.net.map((_, i) => (i + 1) / 100);
  const everyone = at.map((t) => share - ((1 - share) * t) / (1 - t));
  // Beyond the last threshold at which a model is of use or does harm, all lines are at 0.
  const last = Math.max(20, ...all.map(({ risks }) => risks.net.findLastIndex((value) => Math.abs(value) > 0.02 * share) + 2));
  const line = (y, text, style, more = {}) => ({ x: at, y, mode: "lines", line: style, name: text, text: at.map((t, i) => `${text}: ${(1000 * y[i]).toFixed(1)} per 1,000 at ${percent(t, 0)}`), hovertemplate: "%{text}<extra></extra>", ...more });
  draw("decision-plot", [
    line(everyone, "treat all", { color: css("--quiet"), dash: "dash", width: 1.5 }), line(at.map(() => 0), "treat none", { color: css("--quiet"), dash: "dot", width: 1.5 }),
    ...all.map((one) => line(one.risks.net, escaped(title(one.label)), emphasis(one), { meta: one.label })),
  ], {
    xaxis: { title: { text: "threshold of the risk" }, tickformat: ".0%", range: [0, Math.min(0.99, last / 100)] },
    yaxis: { title: { text: narrow() ? "" : "net benefit: events found per sample" }, range: [-0.25 * share, 1.1 * share] },
  });
}

function drawRisks() {
  if (!run().risks) return;
  $("risks-legend").innerHTML = `<div>${risky().map((one) => `<span>${lineSample(methodStyle(one.label))}${escaped(title(one.label))}</span>`).join("")}` +
    `<span>${lineSample({ color: css("--quiet"), dash: "dash" })}treat all</span><span>${lineSample({ color: css("--quiet"), dash: "dot" })}ideal; treat none</span></div>`;
  drawCalibration();
  drawDecisions();
}

if ($("calibration-plot")) redraws.push(drawRisks);
