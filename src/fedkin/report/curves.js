// The methods' curves.
const FIGURES = [
  ["mean", `mean ${METRIC.title}`, METRIC.share], ["unseen", `mean ${METRIC.title} of unseen clients`, METRIC.share],
  ["gap", "gap: how much worse unseen clients do", METRIC.share],
  ["worst10", `${METRIC.title} of the worst 10 % of clients`, METRIC.share],
  ["worst20", `${METRIC.title} of the worst 20 % of clients`, METRIC.share], ["std", "standard deviation over clients", METRIC.share],
  ["ari", "agreement with the planted groups (ARI)", false], ["found", "groups found", false],
];
const AGAINST = [["round", "rounds"], ["bytes", "bytes sent"], ["seconds", "time"]];
const AXES = { round: "round", bytes: "bytes sent by all until then", seconds: "seconds of the run" };
const curves = { y: "mean", x: "round", hidden: new Set() };

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

// The smallest and the largest value that a figure can have.
function limits(name) {
  if (name === "found") return [0, Infinity];
  if (name === "ari" || (name === "gap" && METRIC.share)) return [-1, 1];
  return METRIC.share ? [0, 1] : [-Infinity, Infinity];
}

// A method's seeds combined: mean and 95 % interval (Student) at each round that all of them have.
function together(label) {
  const runs = DATA.runs.filter((one) => one.label === label && one.curve.round).map((one) => one.curve);
  if (!runs.length) return null;
  const rows = [];
  const places = runs.map((curve) => new Map(curve.round.map((round, i) => [round, i])));
  for (const round of runs[0].round) {
    const at = places.map((place) => place.get(round));
    if (at.includes(undefined)) continue;
    // Only runs with unseen clients have figures for them.
    const ys = runs.map((curve, i) => curve[curves.y]?.[at[i]] ?? null);
    const xs = runs.map((curve, i) => curve[curves.x]?.[at[i]] ?? null);
    if (ys.includes(null) || xs.includes(null)) continue;
    const middle = mean(ys), n = ys.length;
    const half = n > 1 ? DATA.student[n] * Math.sqrt(ys.reduce((sum, y) => sum + (y - middle) ** 2, 0) / (n - 1)) : 0;
    const [least, most] = limits(curves.y);
    rows.push({ x: mean(xs), y: middle, low: Math.max(least, middle - half), high: Math.min(most, middle + half), round });
  }
  return rows.length ? { rows, seeds: runs.length } : null;
}

function curveTraces(label, isShare, end) {
  const found = together(label);
  if (!found) return [];
  const style = methodStyle(label), name = escaped(title(label));
  let rows = found.rows;
  const silent = curves.x === "bytes" && rows.at(-1).x === 0;
  // A logarithmic axis cannot show a method that sends nothing: its last figure is a horizontal line, or a point if it is alone.
  if (silent) rows = end ? [...new Set([end.low, end.high])].map((x) => ({ ...rows.at(-1), x })) : [rows.at(-1)];
  const x = rows.map((row) => row.x);
  const write = (value) => (isShare ? percent(value) : ["ari", "found"].includes(curves.y) ? String(Math.round(1000 * value) / 1000) : figure(value));
  const text = rows.map((row) => `${name}: ${write(row.y)}` +
    (found.seeds > 1 ? ` (${write(row.low)} to ${write(row.high)})` : "") +
    (silent ? ", nothing sent" : curves.x === "round" ? "" : `, round ${row.round}`));
  const band = found.seeds > 1 ? [{
    x: [...x, ...[...x].reverse()], y: [...rows.map((r) => r.high), ...rows.map((r) => r.low).reverse()],
    fill: "toself", fillcolor: style.color + "33", line: { width: 0 }, mode: "lines", hoverinfo: "skip", meta: label,
  }] : [];
  return [...band, {
    x, y: rows.map((row) => row.y), text, hovertemplate: "%{text}<extra></extra>", mode: rows.length > 1 ? "lines" : "markers",
    line: { color: style.color, dash: style.dash, width: 2.5 }, marker: { color: style.color, size: 9 },
    meta: label, name,
  }];
}

function drawCurves() {
  const figure = FIGURES.find(([key]) => key === curves.y);
  const shown = DATA.methods.map((method) => method.label).filter((label) => !curves.hidden.has(label));
  const xs = shown.flatMap((label) => (together(label)?.rows ?? []).map((row) => row.x)).filter((x) => x > 0);
  const log = curves.x === "bytes" && xs.length > 0;
  const end = log ? { low: Math.min(...xs), high: Math.max(...xs) } : null;
  draw("curves", shown.flatMap((label) => curveTraces(label, figure[2], end)), {
    hovermode: curves.x === "round" ? "x unified" : "closest",
    xaxis: {
      title: { text: AXES[curves.x] + (log ? " (logarithmic)" : "") }, type: log ? "log" : "linear", ticksuffix: log ? "B" : "", exponentformat: "SI",
      ...(log ? { dtick: 1 } : { rangemode: "tozero" }), ...(curves.x === "round" && Math.max(...xs) <= 10 ? { dtick: 1 } : {}),
    },
    yaxis: { title: { text: narrow() ? "" : figure[1] }, tickformat: figure[2] ? ".0%" : "" },
  });
  const seeds = DATA.seeds.length > 1 ? "Lines: mean over seeds; bands: 95 % intervals of the mean over seeds (Student). " : "";
  const quiet = log && shown.some((label) => together(label)?.rows.at(-1).x === 0) ?
    "A method that sends nothing is drawn as a level line at its last figure." : "";
  $("curve-note").textContent = [seeds, quiet, hiddenCurves(shown)].join("");
}

// Which curves cannot be seen because another one, which is drawn later, has nearly the same values in all rounds.
function hiddenCurves(shown) {
  const drawn = shown.map((label) => [label, together(label)?.rows ?? []]).filter(([, rows]) => rows.length);
  const all = drawn.flatMap(([, rows]) => rows.map((row) => row.y));
  const near = 0.004 * (Math.max(...all) - Math.min(...all)), texts = [];
  drawn.forEach(([label, rows], i) => {
    const above = drawn.slice(i + 1).find(([, others]) => others.length === rows.length &&
      rows.every((row, k) => row.round === others[k].round && Math.abs(row.y - others[k].y) <= near && (curves.x === "round" || row.x === others[k].x)));
    if (above) texts.push(`${title(label)} lies under ${title(above[0])}: their curves are the same.`);
  });
  return texts.length ? ` ${texts.join(" ")}` : "";
}

function fillCurves() {
  const has = (key) => DATA.runs.some((one) => (one.curve[key] ?? []).some((value) => value !== null));
  const figures = FIGURES.filter(([key]) => has(key));
  curves.y = figures[0][0];
  options($("curve-y"), figures.map(([key, text]) => [key, text]), curves.y);
  $("curve-y").addEventListener("change", () => { curves.y = $("curve-y").value; drawCurves(); });
  for (const [key, text] of AGAINST.filter(([key]) => has(key))) {
    const input = Object.assign(document.createElement("input"), { type: "radio", name: "against", value: key, checked: key === "round" });
    const label = document.createElement("label");
    label.append(input, ` ${text}`);
    input.addEventListener("change", () => { curves.x = key; drawCurves(); });
    $("curve-x").append(label);
  }
  for (const { label, title: name } of DATA.methods.filter((method) => DATA.runs.some((r) => r.label === method.label && r.curve.round))) {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.dataset.method = label;
    button.setAttribute("aria-pressed", "true");
    redraws.push(() => {
      button.innerHTML = `${lineSample(methodStyle(label))}<span>${escaped(name)}</span>`;
    });
    button.addEventListener("click", () => {
      curves.hidden[curves.hidden.has(label) ? "delete" : "add"](label);
      button.setAttribute("aria-pressed", String(!curves.hidden.has(label)));
      drawCurves();
    });
    $("curve-legend").append(button);
  }
}

function lineSample({ color, dash }) {
  const pattern = { solid: "", dash: "7 4", dot: "2 4", dashdot: "7 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" }[dash];
  return `<svg width="30" height="10" aria-hidden="true"><path d="M0 5H30" stroke="${color}" stroke-width="3" stroke-dasharray="${pattern}"/></svg>`;
}

if ($("curves")) { fillCurves(); redraws.push(drawCurves); }
