// The client graph with its slider.
function frames() {
  return run().graph?.frames ?? [];
}

function line(pairs, x, y, style, more) {
  const xs = [], ys = [];
  for (const [a, b] of pairs) { xs.push(x[a], x[b], null); ys.push(y[a], y[b], null); }
  return { type: "scatter", mode: "lines", x: xs, y: ys, line: style, hoverinfo: "skip", ...more };
}

function edgeTraces(frame, x, y) {
  const group = new Map(frame.clients.map((client, i) => [client, frame.groups?.[i] ?? 0]));
  const sorted = [...frame.weight].sort((a, b) => a - b), middle = sorted[Math.floor(sorted.length / 2)];
  const kinds = { strong: [], weak: [], between: [], mine: [] };
  frame.from.forEach((a, i) => {
    const pair = [a, frame.to[i]];
    if (pair.includes(state.client)) kinds.mine.push(pair);
    else if (group.get(a) !== group.get(pair[1])) kinds.between.push(pair);
    else kinds[frame.weight[i] >= middle ? "strong" : "weak"].push(pair);
  });
  const many = frame.from.length > 800;
  return [
    line(kinds.between, x, y, { color: css("--edge"), width: 1, dash: "dot" }, { opacity: many ? 0.35 : 0.7 }),
    line(kinds.weak, x, y, { color: css("--edge"), width: 1 }, { opacity: many ? 0.3 : 0.6 }),
    line(kinds.strong, x, y, { color: css("--edge"), width: many ? 1 : 2 }, { opacity: many ? 0.5 : 0.9 }),
    line(kinds.mine, x, y, { color: css("--ink"), width: 2.5 }),
  ];
}

// Above so many clients, their names would cover each other.
const NAMED = 60;

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function nodeTraces(frame, graph) {
  const { ids, planted } = federation(), names = plantedNames();
  const present = new Set(frame.clients), strongest = Math.max(...frame.strength, 1e-12);
  const least = ids.length > 300 ? 6 : ids.length > 100 ? 8 : 10;
  const absent = ids.map((_, i) => i).filter((i) => !present.has(i));
  const shape = (client) => (planted[client] === null ? 0 : names.indexOf(planted[client]));
  const at = valueNear(frame.until);
  const told = (client, more) => `<b>${escaped(ids[client])}</b><br>${[more, facts(client), at(client)].filter(Boolean).join("<br>")}`;
  const groups = frame.groups ?? frame.clients.map(() => 0), named = ids.length <= NAMED && !narrow();
  return [
    {
      type: "scatter", mode: "markers", x: absent.map((i) => graph.x[i]), y: absent.map((i) => graph.y[i]), customdata: absent,
      text: absent.map((i) => told(i, "not in this round")), hovertemplate: "%{text}<extra></extra>",
      marker: { size: least * 0.7, color: css("--grid"), symbol: absent.map((i) => SHAPES[shape(i) % SHAPES.length]), line: { color: css("--quiet"), width: 1 } },
    },
    {
      type: "scatter", mode: named ? "markers+text" : "markers", x: frame.clients.map((i) => graph.x[i]), y: frame.clients.map((i) => graph.y[i]), customdata: frame.clients,
      ...(named ? { texttemplate: frame.clients.map((i) => escaped(shortened(ids[i], 12))), textposition: "top center", textfont: { size: 10 }, cliponaxis: false } : {}),
      text: frame.clients.map((i, k) => told(i, frame.groups ? groupName(groups[k]) : "")), hovertemplate: "%{text}<extra></extra>",
      marker: {
        opacity: 1, color: groups.map(groupColour), symbol: frame.clients.map((i, k) => groupSymbol(groups[k], shape(i))),
        size: frame.strength.map((s) => least + least * 0.9 * Math.sqrt(Math.max(s, 0) / strongest)),
        line: { color: css("--ink"), width: groups.map((g) => (groupFill(g).includes("open") ? 2.5 : 1)) },
      },
    },
    ...(state.client === null ? [] : [{
      type: "scatter", mode: "markers", x: [graph.x[state.client]], y: [graph.y[state.client]], hoverinfo: "skip",
      marker: { size: 3 * least + 6, symbol: "circle-open", color: css("--ink"), line: { width: 3 } },
    }]),
  ];
}

// The metric of a client at the last kept evaluation up to a round, as text.
function valueNear(round) {
  const kept = run().clients.rounds.findLastIndex((one) => one <= round);
  return (client) => {
    const value = kept < 0 ? null : valuesOf(run(), client)[1][kept];
    return value === null ? "" : `${METRIC.title} ${figure(value)} after round ${run().clients.rounds[kept]}`;
  };
}

function drawGraph() {
  const graph = run().graph, place = $("graph-plot");
  for (const id of ["graph-plot", "graph-legend", "round", "play"]) $(id).hidden = !graph;
  if (!graph) {
    $("round-text").textContent = "";
    $("graph-note").textContent = `${title(run().label)} records no graph of clients: choose another method above.`;
    return;
  }
  state.frame = Math.min(state.frame, graph.frames.length - 1);
  const frame = graph.frames[state.frame];
  Object.assign($("round"), { max: graph.frames.length - 1, value: state.frame });
  $("round-text").textContent = roundText(frame);
  $("round").setAttribute("aria-valuetext", roundText(frame));
  const axis = { visible: false, range: [-1.12, 1.12] };
  draw("graph-plot", [...edgeTraces(frame, graph.x, graph.y), ...nodeTraces(frame, graph)], {
    margin: { l: 4, r: 4, t: 4, b: 4 }, dragmode: narrow() ? false : "pan", hovermode: "closest", uirevision: state.run,
    xaxis: axis, yaxis: { ...axis, scaleanchor: "x" },
  });
  place.dataset.round = frame.round;
  graphLegend(frame);
  graphNote(graph);
}

// The ARI of a frame's groups, from its last evaluated round; null if unknown.
function ariOf({ round, until }) {
  const { round: rounds = [], ari } = run().curve;
  const at = rounds.findLastIndex((one, i) => one >= round && one <= until && ari[i] !== null);
  return at < 0 ? null : ari[at];
}

function roundText(frame) {
  const ari = ariOf(frame);
  const found = frame.groups ? `, ${many(new Set(frame.groups).size, "group")}` : "";
  return `${roundsOf(frame)}${frame.until > frame.round ? ", unchanged" : ""}: ${many(frame.clients.length, "client")}${found}${ari === null ? "" : `, ARI ${ari.toFixed(2)}`}`;
}

function graphNote(graph) {
  const rounds = graph.frames.length < graph.allRounds ? `${graph.frames.length} of the ${graph.allRounds} different graphs are kept on this page, evenly spread, including the last. ` : "";
  $("graph-note").textContent = `Lines: each client's ${graph.perNode} strongest similarities; dotted between groups. ` +
    "Larger points: more similar to all others. Small grey points: not in this round. Positions stay the same over the rounds: " +
    `clients with large weights between them are close together. ${rounds}Groups keep their number and colour from round to round as far as their members do.` +
    (plantedNames().length > SHAPES.length ? ` Shapes repeat after ${SHAPES.length} planted groups: point at a client to read its own.` : "");
}

function shapeSample(shape, fill, open) {
  const paths = {
    circle: "M8 2a6 6 0 1 0 .01 0Z", square: "M2.5 2.5h11v11h-11Z", diamond: "M8 1l7 7-7 7-7-7Z", "triangle-up": "M8 2l7 12H1Z",
    pentagon: "M8 1l7 5.2-2.7 8.3H3.7L1 6.2Z", cross: "M6 1h4v5h5v4h-5v5H6v-5H1V6h5Z", star: "M8 1l2 5h5l-4 3.3 1.6 5.2L8 11.4l-4.6 3.1L5 9.3 1 6h5Z",
    "triangle-down": "M8 14L1 2h14Z", hexagon: "M4.5 2h7L15 8l-3.5 6h-7L1 8Z", x: "M3 1l5 4 5-4 2 2-4 5 4 5-2 2-5-4-5 4-2-2 4-5-4-5Z",
  };
  const dot = open.includes("dot") ? `<circle cx="8" cy="8" r="1.8" fill="currentColor"/>` : "";
  const style = open.includes("open") ? `fill="none" stroke="${fill}" stroke-width="2.5"` : `fill="${fill}" stroke="currentColor"`;
  return `<svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true"><path d="${paths[shape]}" ${style}/>${dot}</svg>`;
}

function graphLegend(frame) {
  const sizes = new Map();
  for (const group of frame.groups ?? []) sizes.set(group, (sizes.get(group) ?? 0) + 1);
  const groups = [...sizes].sort((a, b) => a[0] - b[0]), shown = groups.slice(0, 16);
  const found = shown.map(([group, size]) => `<span>${shapeSample("circle", groupColour(group), groupFill(group))}${groupName(group)} <span class="quiet">${size}</span></span>`);
  if (groups.length > shown.length) found.push(`<span class="quiet">and ${groups.length - shown.length} more</span>`);
  const names = plantedNames(), planted = names.slice(0, 12).map((name, i) => `<span>${shapeSample(SHAPES[i % SHAPES.length], "none", "open").replace(/none" stroke-width/, 'currentColor" stroke-width')}${escaped(name)}</span>`);
  if (names.length > 12) planted.push(`<span class="quiet">and ${names.length - 12} more</span>`);
  $("graph-legend").innerHTML = (found.length ? `<div><b>Found</b> (colour): ${found.join("")}</div>` : "") +
    (names.length ? `<div><b>Planted</b> (shape): ${planted.join("")}</div>` : `<div class="quiet">The planted groups of these clients are not known.</div>`);
}
