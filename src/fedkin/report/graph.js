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
      marker: { size: least * 0.7, color: css("--grid"), symbol: absent.map((i) => SHAPES[shape(i) % SHAPES.length]),
        line: { color: css("--quiet"), width: 1 } },
    },
    {
      type: "scatter", mode: named ? "markers+text" : "markers", x: frame.clients.map((i) => graph.x[i]), y: frame.clients.map((i) => graph.y[i]),
        customdata: frame.clients,
      ...(named ? { texttemplate: frame.clients.map((i) => escaped(shortened(ids[i], 12))), textposition: "top center", textfont: { size: 10 },
        cliponaxis: false } : {}),
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

// The similarity matrix, in the order of the groups.
function drawMatrix() {
  const graph = run().graph, place = $("matrix-plot");
  place.hidden = !graph;
  if (!graph) { $("matrix-note").textContent = `${title(run().label)} records no similarities.`; return; }
  const frame = graph.frames[Math.min(state.frame, graph.frames.length - 1)], { ids } = federation();
  const { side, low, high } = frame, cells = bytesOf(frame.matrix);
  const starts = frame.starts ?? frame.clients.map((_, i) => i);
  const at = starts.map((_, i) => i);
  const z = at.map((i) => at.map((j) => (i === j && !frame.starts ? null : low + ((high - low) * cells[i * side + j]) / 255)));
  const name = (i) => {
    const end = (starts[i + 1] ?? frame.clients.length) - 1;
    return escaped(ids[frame.clients[starts[i]]]) + (end > starts[i] ? ` … ${escaped(ids[frame.clients[end]])}` : "");
  };
  const names = at.map(name), room = side <= 40 && !narrow();
  const margin = { l: room ? 60 : 8, r: narrow() ? 44 : 56, t: 8, b: room ? 60 : 8 };
  const ticks = { tickvals: at, ticktext: names, showticklabels: room, ticks: "", tickfont: { size: 10 }, showgrid: false, zeroline: false };
  place.style.height = `${place.clientWidth - margin.l - margin.r + margin.t + margin.b}px`;
  draw("matrix-plot", [
    { type: "heatmap", z, x: at, y: at, text: at.map((i) => at.map((j) => `${names[i]} and ${names[j]}`)), colorscale: "Cividis",
      zmin: low, zmax: high, hoverongaps: false, hovertemplate: "%{text}: %{z:.3~f}<extra></extra>",
      colorbar: { thickness: 12, outlinewidth: 0, tickformat: ".2~f", x: 1.01 } },
  ], {
    xaxis: { ...ticks, tickangle: -60, range: [-0.5, side - 0.5] }, yaxis: { ...ticks, range: [side - 0.5, -0.5] },
    shapes: frame.groups ? groupMarks(starts.map((start) => frame.groups[start])) : [], margin,
  });
  const order = frame.groups ? "ordered by the group found; lines separate the groups." : "by name: this graph has no groups.";
  $("matrix-note").textContent = `${roundsOf(frame).replace("r", "R")} (chosen by the slider of the graph), the clients of that graph ${order}` +
    (frame.starts ? ` ${frame.clients.length} clients are drawn as ${side} × ${side} averages of neighbours.` : "");
}

function groupMarks(group) {
  const ends = group.flatMap((one, i) => (i && one !== group[i - 1] ? [i - 0.5] : []));
  const style = { type: "line", line: { color: "#fff", width: 1.5 } }, low = -0.5, high = group.length - 0.5;
  return ends.flatMap((at) => [{ ...style, x0: at, x1: at, y0: low, y1: high }, { ...style, x0: low, x1: high, y0: at, y1: at }]);
}

if ($("matrix-plot")) redraws.push(drawMatrix);

// Groups over the rounds.
function lastGroups(history) {
  history.table ??= words(history.group);
  const wide = history.rounds.length;
  return federation().ids.map((_, client) => history.table.subarray(client * wide, (client + 1) * wide).findLast((group) => group !== NOTHING) ?? NOTHING);
}

function drawMoves() {
  const graph = run().graph, history = graph?.history;
  // Columns that are all the same say nothing that the graph does not.
  const still = !graph?.moves;
  $("history").hidden = !history || still;
  if (!history) {
    $("moves-text").textContent = `${title(run().label)} records no groups.`;
    $("history-note").textContent = "";
    return;
  }
  if (still) {
    $("moves-text").textContent = "Nobody changed group.";
    $("history-note").textContent = "";
    return;
  }
  const { ids, planted } = federation(), last = lastGroups(history), wide = history.rounds.length, names = plantedNames();
  const rank = (client) => (planted[client] === null ? names.length : names.indexOf(planted[client]));
  const order = ids.map((_, i) => i).filter((i) => last[i] !== NOTHING).sort((a, b) => rank(b) - rank(a) || last[b] - last[a] || b - a);
  const rows = order.map((client) => carried(history.table.subarray(client * wide, (client + 1) * wide)));
  const z = rows.map((row) => row.map(([group, seen]) => (group === null ? null : (group % COLOURS.length) + (seen ? 0 : COLOURS.length))));
  const spans = history.rounds.map((round, i) => roundsOf({ round, until: history.until[i] }));
  const text = rows.map((row) => row.map(([group, seen], i) => (group === null ? "" : `${spans[i]}: group ${group + 1}${seen ? "" : " when last seen"}`)));
  const numbers = rows.map((row) => row.map(([group, seen]) => (seen ? String(group + 1) : "")));
  const all = [...COLOURS, ...COLOURS.map((colour) => blended(colour, css("--paper"), 0.3))];
  const steps = all.flatMap((colour, i) => [[i / all.length, colour], [(i + 1) / all.length, colour]]);
  const room = $("history").clientWidth / wide > 16 && order.length <= 60;
  const height = Math.max(260, Math.min(720, 90 + 14 * order.length));
  $("history").style.height = `${height}px`;
  draw("history", [{
    type: "heatmap", z, x: history.rounds.map(String), y: order.map((client) => escaped(ids[client])), text: room ? numbers : text, hovertext: text,
      customdata: order.map((client) => history.rounds.map(() => client)),
    colorscale: steps, zmin: 0, zmax: all.length, showscale: false, xgap: wide < 60 ? 1 : 0, ygap: order.length < 60 ? 1 : 0, hoverongaps: false,
    hovertemplate: "%{y}, %{hovertext}<extra></extra>", ...(room ? { texttemplate: "%{text}" } : {}),
  }], {
    xaxis: { type: "category", title: { text: "round" }, nticks: narrow() ? 6 : 15, showgrid: false },
    yaxis: { type: "category", showgrid: false, showticklabels: !narrow() && order.length <= 50, tickfont: { size: 10 } },
    shapes: plantedLines(order, rank), annotations: plantedMarks(order, rank, names),
    margin: { l: 30, r: names.length ? 70 : 12, t: 8, b: 44 },
  });
  clicks("history", (point) => point.customdata);
  $("moves-text").textContent = `${many(graph.moves, "move")} from one group to another.`;
  $("history-note").textContent = "A row is a client, a column a round; pale: not in that round's graph, in the group it was last seen in." +
    (wide < graph.allRounds ? ` ${wide} of ${graph.allRounds} graphs are drawn.` : "") +
    (history.until.some((until, i) => until > history.rounds[i]) ? " A graph that stays the same has one column, at its first round." : "") + (names.length ? " Rows are ordered by planted group, named at the right." : "") +
    (Math.max(...last.filter((g) => g !== NOTHING)) >= COLOURS.length ? " Colours repeat after 8 groups: point at a cell to read its number." : "");
}

// A client's group in each round, or the last known one: [group, whether seen in this round].
function carried(row) {
  let last = null;
  return Array.from(row, (group) => {
    if (group !== NOTHING) last = group;
    return [last, group !== NOTHING];
  });
}

function blended(colour, paper, share) {
  const parts = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const under = parts(paper);
  return `rgb(${parts(colour).map((part, i) => Math.round(share * part + (1 - share) * under[i])).join(",")})`;
}

function plantedLines(order, rank) {
  return order.flatMap((client, i) => (i && rank(client) !== rank(order[i - 1]) ?
    [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: i - 0.5, y1: i - 0.5, line: { color: css("--ink"), width: 1.5 } }] : []));
}

function plantedMarks(order, rank, names) {
  return names.flatMap((name, k) => {
    const rows = order.map((client, i) => (rank(client) === k ? i : -1)).filter((i) => i >= 0);
    return rows.length ? [{ xref: "paper", x: 1.01, xanchor: "left", y: (rows[0] + rows.at(-1)) / 2,
      text: escaped(name.length > 10 ? name.slice(0, 9) + "…" : name), showarrow: false }] : [];
  });
}

if ($("history")) redraws.push(drawMoves);

// Why clients are in one group: the verdict of each group, and the tree of the tests behind it.
const groupMark = (group) => shapeSample("circle", groupColour(group), groupFill(group));

function drawTests() {
  const found = run().graph?.verdicts;
  $("verdicts").hidden = !found;
  $("tests-body").hidden = !found?.tests;
  if (!found) { $("tests-text").textContent = `${title(run().label)} records no tests: choose another method above.`; return; }
  const frame = frames().at(-1);
  const words = found.words[0].toUpperCase() + found.words.slice(1);
  $("tests-text").textContent = `${words}${found.choice ? `; ${found.choice}` : ""}. These are the groups of ${roundsOf(frame)}.`;
  rewrite($("verdicts"), verdictTable(found));
  if (found.tests) drawTree(found.tests);
  for (const button of document.querySelectorAll("#verdicts [data-client], #tests-tree [data-client]")) {
    button.addEventListener("click", (event) => { event.preventDefault(); follow(Number(button.dataset.client)); });
  }
}

// What a test said, as markup in which no p-value is broken over two lines.
function withP(said) {
  return escaped(said).replace(/p (&#60; )?[\de.-]+/g, (p) => `<span class="p">${p}</span>`);
}

function verdictTable({ groups, more, alone }) {
  const rows = groups.map(({ group, verdict, size, placed, words, said, clients }) => [
    `<span class="chip">${groupMark(group)} ${groupName(group)}</span>`,
    size.toLocaleString("en"),
    `<b>${escaped(verdict)}</b>`,
    escaped(words) + (placed ? ` ${quiet(`(${many(placed, "client")} in no test, placed after them)`)}` : ""),
    said ? withP(said) : "–",
    clientNames(clients, size),
  ]);
  if (more[0]) rows.push([quiet(many(more[0], "more group")), more[1].toLocaleString("en"), "", "", "", ""]);
  if (alone[0]) rows.push(["no group", alone[0].toLocaleString("en"), "<b>alone</b>", escaped(alone[2]), "–", clientNames(alone[1], alone[0])]);
  return tableOf(["group", "clients", ">verdict", ">which means", ">tests of the group", ">members"], rows);
}

// Nested lists, of which each part can be closed. Parts inside one group, and deep ones of a large tree, begin closed.
function drawTree(tests) {
  const { nodes } = tests, below = nodes.map(() => []), way = followed(tests);
  nodes.forEach(({ parent }, i) => { if (parent !== null) below[parent].push(i); });
  const held = [...$("tests-tree").querySelectorAll("details")].filter((one) => !one.open).map((one) => one.dataset.node);
  const same = $("tests-tree").dataset.run === String(state.run);
  const closed = (i) => (way.has(i) ? false : same ? held.includes(String(i)) : nodes[i].group !== null || (nodes.length > 31 && depthOf(nodes, i) > 3));
  const part = (i) => {
    const text = nodeText(nodes[i], way.has(i), below[i].length > 0);
    if (!below[i].length) return `<li>${text}</li>`;
    return `<li><details data-node="${i}"${closed(i) ? "" : " open"}><summary>${text}</summary><ul>${below[i].map(part).join("")}</ul></details></li>`;
  };
  rewrite($("tests-tree"), nodes.length ? `<ul>${part(0)}</ul>` : "");
  $("tests-tree").dataset.run = state.run;
  $("tests-note").textContent = `From all tested clients at the top: clients whose samples a test tells apart at p < ${tests.alpha.toPrecision(2).replace(/\.?0+$/, "")} are cut in two and tested again, until no test tells the rest apart, or they differ by class shares or a shift of each client only. ` +
    "Each p-value is corrected for the number of tests at its node. Bars: the share of all tested clients." +
    (nodes.length < tests.all ? ` ${nodes.length} of ${tests.all.toLocaleString("en")} nodes are drawn, those with most clients; parts that are not drawn are counted where they begin.` : "") +
    (way.size ? " Outlined: the tests on the way to the client that is followed." : "");
}

function depthOf(nodes, i) {
  let depth = 0;
  for (let at = nodes[i].parent; at !== null; at = nodes[at].parent) depth += 1;
  return depth;
}

// The drawn nodes that hold the followed client.
function followed(tests) {
  const way = new Set();
  if (state.client === null || tests.leaf[state.client] < 0) return way;
  for (let at = tests.leaf[state.client]; at !== null; at = tests.nodes[at].parent) way.add(at);
  return way;
}

function nodeText({ size, said, cut, group, verdict, client, left, level }, mine, opens) {
  const whole = federation().ids.length, one = client !== null;
  const who = one ? `<button type="button" data-client="${client}">${escaped(federation().ids[client])}</button>` : `<b>${many(size, "client")}</b>`;
  const colour = group === null ? css("--edge") : groupColour(group);
  const told = said ? ` ${withP(said)}` : "";
  const ends = !cut ? "" : group === null ? "; <b>cut in two</b>" : "; cut in two, but one group after all";
  const chip = group === null ? "" : verdict === "alone" ? ' <span class="chip">→ <b>alone</b></span>' : ` <span class="chip">→ ${groupMark(group)} ${groupName(group)}, <b>${escaped(verdict)}</b></span>`;
  const model = level ? ` <span class="chip">→ ${level[1] ? `<b>${escaped(level[0])}</b>, chosen` : `${escaped(level[0])}, tried`}</span>` : "";
  const rest = left ? ` <span class="quiet">${many(left, "more node")} below ${left > 1 ? "are" : "is"} not drawn</span>` : "";
  const share = `<i class="share"><i style="width:${Math.max(4, Math.round((100 * size) / whole))}%;background:${colour}"></i></i>`;
  return `<span class="node${mine ? " mine" : ""}${opens ? "" : " leaf"}"><span>${share}${who}${told}${ends}${model}${chip}${rest}</span></span>`;
}

if ($("tests-tree")) redraws.push(drawTests);
