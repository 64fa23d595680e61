// The similarity matrix, in the order of the groups, of a hierarchy with its tree, or of the names.
function matrixOrders(frame) {
  const orders = [["groups", frame.groups ? "group found" : "name"]];
  if (frame.tree) orders.push(["tree", "hierarchical clustering"]);
  if (frame.groups && !frame.starts) orders.push(["names", "name, as recorded"]);
  return orders;
}

// Rows of the frame in the chosen order, and the cells, in bytes.
function orderedMatrix(frame, order) {
  const side = frame.side, cells = bytesOf(order === "tree" && frame.tree.matrix ? frame.tree.matrix : frame.matrix);
  let rows = frame.clients.map((_, i) => i);
  if (order === "tree") rows = frame.tree.order;
  if (order === "names") rows = rows.sort((a, b) => frame.clients[a] - frame.clients[b]);
  if (frame.starts) return { rows, cell: (i, j) => cells[i * side + j] };
  return { rows, cell: (i, j) => cells[rows[i] * side + rows[j]] };
}

function drawMatrix() {
  const graph = run().graph, place = $("matrix-plot");
  for (const id of ["matrix-plot", "matrix-controls"]) $(id).hidden = !graph;
  if (!graph) { $("matrix-note").textContent = `${title(run().label)} records no similarities.`; return; }
  const frame = graph.frames[Math.min(state.frame, graph.frames.length - 1)], { ids } = federation();
  const orders = matrixOrders(frame);
  const order = orders.some(([key]) => key === state.order) ? state.order : "groups";
  options($("matrix-order"), orders, order);
  const { rows, cell } = orderedMatrix(frame, order), side = frame.side;
  const { few } = frame;
  $("matrix-legend").hidden = !few;
  if (few) $("matrix-legend").innerHTML = `<div>${few.map((value, i) => `<span><span class="swatch" style="background:${TWO[i]}"></span>${+value.toPrecision(3)}</span>`).join("")}</div>`;
  const starts = frame.starts ?? rows.map((_, i) => i), { low, high } = frame;
  const z = Array.from({ length: side }, (_, i) => Array.from({ length: side }, (_, j) =>
    (i === j && !frame.starts ? null : low + ((high - low) * cell(i, j)) / 255)));
  const name = (i) => {
    const end = (starts[i + 1] ?? rows.length) - 1;
    return escaped(ids[frame.clients[rows[starts[i]]]]) + (end > starts[i] ? ` … ${escaped(ids[frame.clients[rows[end]]])}` : "");
  };
  const names = starts.map((_, i) => name(i)), room = side <= 40 && !narrow(), at = names.map((_, i) => i);
  const group = starts.map((start) => frame.groups?.[rows[start]] ?? 0), tall = order === "tree" ? 0.24 : 0;
  const margin = { l: room ? 60 : 8, r: narrow() ? 44 : 56, t: 8, b: room ? 60 : 8 };
  const ticks = { tickvals: at, ticktext: names, showticklabels: room, ticks: "", tickfont: { size: 10 }, showgrid: false, zeroline: false };
  place.style.height = `${Math.round((place.clientWidth - margin.l - margin.r) / (1 - tall)) + margin.t + margin.b}px`;
  draw("matrix-plot", [
    { type: "heatmap", z, x: at, y: at, text: at.map((i) => at.map((j) => `${names[i]} and ${names[j]}`)), colorscale: few ? twoColours() : "Cividis", zmin: low, zmax: few && high === low ? low + 1 : high, showscale: !few, hoverongaps: false, hovertemplate: few ? "%{text}: %{z:.3~f}<extra></extra>" : "%{text}: %{z:.3f}<extra></extra>", colorbar: { thickness: 12, outlinewidth: 0, tickformat: ".2~f", x: 1.01, y: (1 - tall) / 2, len: 1 - tall } },
    ...(order === "tree" ? treeTraces(frame, side) : []),
  ], {
    xaxis: { ...ticks, tickangle: -60, range: [-0.5, side - 0.5] },
    yaxis: { ...ticks, range: [side - 0.5, -0.5], domain: [0, 1 - tall] },
    ...(tall ? { yaxis2: { domain: [1 - tall + 0.01, 1], showgrid: false, zeroline: false, showticklabels: false, rangemode: "tozero", anchor: "x" } } : {}),
    shapes: frame.groups && order === "groups" ? groupMarks(group) : [], margin,
  });
  const said = {
    groups: frame.groups ? "ordered by the group found; lines separate the groups." : "by name: this graph has no groups.",
    tree: "ordered by Ward’s hierarchy of the rows, whose tree is above: the more the neighbours of its two parts differ, the higher a branch is." +
      (frame.groups ? " It has a group’s colour if all of its clients are in that group." : ""),
    names: "ordered by name, as they are recorded.",
  }[order];
  $("matrix-note").textContent = `${roundsOf(frame).replace("r", "R")} (chosen by the slider of the graph), the clients of that graph ${said}` +
    (frame.starts ? ` ${frame.clients.length} clients are drawn as ${side} × ${side} averages of neighbours${order === "tree" ? ", the tree by its highest branches" : ""}.` : "") +
    (frame.tree || graph.frames.length < 2 ? "" : " The tree is kept for some rounds only, including the last.");
}

// A matrix of two values has two colours and a legend; a scale would promise values between them.
const TWO = ["#E8E8E4", "#00406E"];
const twoColours = () => [[0, TWO[0]], [0.5, TWO[0]], [0.5, TWO[1]], [1, TWO[1]]];

// The branches, one trace per colour; leaves are in the middle of their columns.
function treeTraces(frame, side) {
  const { order, branches } = frame.tree, cell = (leaf) => ((leaf + 0.5) * side) / order.length - 0.5;
  const groups = frame.groups ? order.map((row) => frame.groups[row]) : null, by = new Map();
  for (const [left, right, low, lower, height, first, last] of branches) {
    const same = groups && groups.slice(first, last + 1).every((group) => group === groups[first]);
    const colour = same ? lineColour(groups[first] % COLOURS.length) : css("--edge");
    if (!by.has(colour)) by.set(colour, { x: [], y: [] });
    by.get(colour).x.push(cell(left), cell(left), cell(right), cell(right), null);
    by.get(colour).y.push(low, height, height, lower, null);
  }
  return [...by].map(([color, { x, y }]) => ({ type: "scatter", mode: "lines", x, y, yaxis: "y2", line: { color, width: order.length > 100 ? 1 : 1.5 }, hoverinfo: "skip", meta: "tree" }));
}

function groupMarks(group) {
  const ends = group.flatMap((one, i) => (i && one !== group[i - 1] ? [i - 0.5] : []));
  const style = { type: "line", line: { color: "#fff", width: 1.5 } }, low = -0.5, high = group.length - 0.5;
  return ends.flatMap((at) => [{ ...style, x0: at, x1: at, y0: low, y1: high }, { ...style, x0: low, x1: high, y0: at, y1: at }]);
}

if ($("matrix-plot")) {
  $("matrix-order").addEventListener("change", () => { state.order = $("matrix-order").value; drawMatrix(); });
  redraws.push(drawMatrix);
}
