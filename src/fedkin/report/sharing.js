// Learned weights beside what clients have in common, and how the weights follow it over the rounds.
const SHARED = {
  classes: { title: "classes in common", levels: ["no class in common", "some classes in common", "the same classes"], overlap: "the share of classes in common" },
  groups: { title: "planted group in common", levels: ["of different planted groups", "", "of one planted group"], overlap: "whether the planted group is the same" },
};

function drawSharing() {
  const sharing = run().sharing, parts = ["sharing-plot", "sharing-curve", "sharing-note", "sharing-legend"];
  for (const id of parts) $(id).hidden = !sharing;
  if (!sharing) {
    $("sharing-text").textContent = run().graph ? "All of these clients have the same classes, and no planted groups are known: nothing to compare the weights with." :
      `${title(run().label)} records no weights: choose another method above.`;
    return;
  }
  drawPictures(sharing);
  drawLevels(sharing);
  const { correlation, round } = sharing.figures, ends = [correlation[0], correlation.at(-1)];
  const said = (value) => (value === null ? "not defined (all weights equal)" : value.toFixed(2));
  $("sharing-text").textContent = `Correlation of weights with ${SHARED[sharing.by].overlap}, over pairs of clients: ` +
    (round.length > 1 ? `${said(ends[0])} in round ${round[0]}, ` : "") + `${said(ends[1])} in ${roundsOf({ round: round.at(-1), until: sharing.until })}.`;
  $("sharing-note").textContent = `Left: ${SHARED[sharing.by].overlap}. The others: ${sharing.directed ? "the weights that each client (a row) gives to each client (a column)" : "the weights between clients"} ` +
    `on one scale. Clients of one planted group, then of the same classes, are side by side; blank: a client with itself, or not both in that round’s graph.` +
    (sharing.starts.length < sharing.order.length ? ` ${sharing.order.length} clients are drawn as ${sharing.starts.length} × ${sharing.starts.length} averages of neighbours.` : "");
}

function drawPictures(sharing) {
  const { ids } = federation(), side = sharing.starts.length, at = sharing.starts.map((_, i) => i), place = $("sharing-plot");
  const label = at.map((i) => escaped(ids[sharing.order[sharing.starts[i]]]) + ((sharing.starts[i + 1] ?? sharing.order.length) - sharing.starts[i] > 1 ? " …" : ""));
  const text = at.map((i) => at.map((j) => (sharing.directed ? `${label[i]} from ${label[j]}` : `${label[i]} and ${label[j]}`)));
  const grid = (packed, low, high) => {
    const bytes = bytesOf(packed);
    return at.map((i) => at.map((j) => (bytes[i * side + j] === 255 ? null : low + ((high - low) * bytes[i * side + j]) / 254)));
  };
  const pictures = [["overlap", sharing.overlap, 0, 1], ...sharing.rounds.map((round, i) => [`round ${round}`, sharing.matrices[i], sharing.low, sharing.high])];
  const columns = narrow() ? 2 : Math.max(pictures.length, 3), rows = Math.ceil(pictures.length / columns);
  const width = place.clientWidth - 70, gap = 0.03, each = (1 - gap * (columns - 1)) / columns, head = 26;
  const height = rows * (width * each + head);
  place.style.height = `${Math.round(height + 10)}px`;
  const axes = {}, annotations = [];
  const traces = pictures.map(([name, packed, low, high], k) => {
    const column = k % columns, row = Math.floor(k / columns), end = k ? String(k + 1) : "";
    const left = column * (each + gap), top = 1 - (row * (width * each + head) + head) / height;
    const style = { showticklabels: false, ticks: "", showgrid: false, zeroline: false, automargin: false };
    axes[`xaxis${end}`] = { ...style, domain: [left, left + each], anchor: `y${end}`, range: [-0.5, side - 0.5] };
    axes[`yaxis${end}`] = { ...style, domain: [top - (width * each) / height, top], anchor: `x${end}`, range: [side - 0.5, -0.5] };
    annotations.push({ text: name, x: left, y: top, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false });
    return { type: "heatmap", z: grid(packed, low, high), x: at, y: at, text, xaxis: `x${end}`, yaxis: `y${end}`, zmin: low, zmax: high, colorscale: "Cividis", hoverongaps: false,
      hovertemplate: `%{text}: %{z:.3~f}<extra>${name}</extra>`, showscale: k === 1, meta: name,
      ...(k === 1 ? { colorbar: { thickness: 12, outlinewidth: 0, x: 1.01, title: { text: "weight", side: "top" }, tickformat: ".2~g" } } : {}) };
  });
  for (const key of Object.keys(axes)) if (key !== "xaxis" && key !== "yaxis") axes[key].fixedrange = narrow();
  draw("sharing-plot", traces, { ...axes, annotations, margin: { l: 4, r: 66, t: 2, b: 8 } });
}

function drawLevels(sharing) {
  const { figures } = sharing, names = SHARED[sharing.by].levels;
  const levels = [["none", 5, "dot"], ["some", 7, "dash"], ["all", 0, "solid"]].map(([key, colour, dash], i) => ({ key, name: names[i], color: COLOURS[colour], dash }))
    .filter(({ key }) => figures[key].some((value) => value !== null));
  const one = figures.round.length === 1, stays = sharing.until > figures.round.at(-1);
  $("sharing-legend").innerHTML = `<div><b>Mean weight of pairs</b> ${levels.map((level) => `<span>${lineSample(level)}${level.name}${one ? `: ${figures[level.key][0].toPrecision(3)}` : ""}</span>`).join("")}</div>`;
  $("sharing-curve").hidden = one;
  if (one) return;
  draw("sharing-curve", levels.map((level) => ({
    x: [...figures.round, ...(stays ? [sharing.until] : [])], y: [...figures[level.key], ...(stays ? [figures[level.key].at(-1)] : [])], mode: "lines", connectgaps: true, name: level.name, line: { color: level.color, dash: level.dash, width: 2.5 },
    hovertemplate: `${level.name}: %{y:.3~f}<extra></extra>`,
  })), { hovermode: "x unified", xaxis: { title: { text: "round" }, rangemode: "tozero" }, yaxis: { title: { text: narrow() ? "" : "mean weight" }, rangemode: "tozero" } });
}

if ($("sharing-plot")) redraws.push(drawSharing);
