// The central clients of the graph, region by region.
const influence = { by: null };

// Ways to divide clients into regions: [key, title, the region of each client].
function regions() {
  const { planted, about, ids } = federation(), found = [];
  if (plantedNames().length) found.push(["", "planted group", planted]);
  for (const key of new Set(about.flatMap(Object.keys))) {
    const values = about.map((facts) => facts[key] ?? null), kinds = new Set(values.filter((value) => value !== null));
    if (kinds.size >= 2 && kinds.size <= 20) found.push([`about ${key}`, key, values]);
  }
  if (!found.length) found.push(["all", "nothing: one region", ids.map(() => "all clients")]);
  return found;
}

// The most central tenth of the clients (at least one, centrality above 0), with all clients that equal the last of them.
// If these are more than half of the clients, no client is influential.
function influential(values) {
  const order = [...values].sort((a, b) => b - a), least = order[Math.ceil(values.length / 10) - 1];
  const found = values.map((value, i) => [value, i]).filter(([value]) => value > 0 && value >= least).map(([, i]) => i);
  return new Set(2 * found.length > values.length ? [] : found);
}

function drawInfluence() {
  const all = frames(), at = Math.min(state.frame, all.length - 1), frame = all[at], values = frame?.values.centrality;
  for (const id of ["influence-plot", "influence-table", "influence-note", "influence-controls"]) $(id).hidden = !values;
  if (!values) {
    $("influence-text").textContent = `${title(run().label)} records no centrality: choose another method above.`;
    return;
  }
  const kinds = regions(), { ids } = federation();
  const [chosen, , region] = kinds.find(([key]) => key === influence.by) ?? kinds.find(([key]) => /region/i.test(key)) ?? kinds[0];
  options($("influence-by"), kinds.map(([key, text]) => [key, text]), chosen);
  const top = influential(values), name = (client) => region[client] ?? "unknown";
  const rows = new Map();
  frame.clients.forEach((client, i) => rows.set(name(client), [...(rows.get(name(client)) ?? []), i]));
  const names = [...rows.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const y = frame.clients.map((client, i) => {
    const mates = rows.get(name(client));
    return names.indexOf(name(client)) + (mates.length > 1 ? 0.5 * (mates.indexOf(i) / (mates.length - 1) - 0.5) : 0);
  });
  const kind = (chosenOnes, marker) => {
    const kept = frame.clients.map((_, i) => i).filter((i) => top.has(i) === chosenOnes);
    return { type: "scatter", mode: "markers", x: kept.map((i) => values[i]), y: kept.map((i) => y[i]), customdata: kept.map((i) => frame.clients[i]),
      text: kept.map((i) => `<b>${escaped(ids[frame.clients[i]])}</b><br>${escaped(name(frame.clients[i]))}<br>centrality ${values[i]}${frame.values.prior ? `<br>prior ${frame.values.prior[i]}` : ""}${frame.values.lambda ? `<br>weight λ ${frame.values.lambda[i]}` : ""}`),
      hovertemplate: "%{text}<extra></extra>", marker: { ...marker, line: { ...marker.line, width: kept.map((i) => (frame.clients[i] === state.client ? 4 : 1.5)) } }, meta: chosenOnes ? "influential" : "others" };
  };
  $("influence-plot").style.height = `${110 + 46 * names.length}px`;
  draw("influence-plot", [
    kind(false, { size: 9, symbol: "circle-open", color: css("--quiet"), line: { color: css("--quiet") } }),
    kind(true, { size: 13, symbol: "diamond", color: COLOURS[0], line: { color: css("--ink") } }),
  ], {
    hovermode: "closest", xaxis: { title: { text: "centrality in the client graph" }, range: [-0.04, 1.06].map((share) => share * (Math.max(...values) || 1)), zeroline: true }, margin: { l: 60, r: 16, t: 8, b: 44 },
    yaxis: { tickvals: names.map((_, i) => i), ticktext: names.map((text) => escaped(text.length > 14 ? `${text.slice(0, 13)}…` : text)), range: [names.length - 0.5, -0.5], showgrid: false, zeroline: false },
  });
  influenceText(frame, names, rows, top);
  clicks("influence-plot", (point) => point.customdata);
}

function influenceText(frame, names, rows, top) {
  const counts = names.map((name) => [name, rows.get(name).filter((i) => top.has(i)).length, rows.get(name).length]);
  const some = counts.filter(([, count]) => count).sort((a, b) => b[1] - a[1]), none = counts.filter(([, count]) => !count);
  $("influence-text").textContent = top.size ? `In ${roundsOf(frame)}, ${many(top.size, "influential client")}: ${some.map(([name, count]) => `${count} of ${name}`).join(", ")}` +
    (none.length ? `; none of ${none.slice(0, 6).map(([name]) => name).join(", ")}${none.length > 6 ? ` and ${none.length - 6} more` : ""}.` : ".") :
    `In ${roundsOf(frame)} no client is influential: ${frame.values.centrality.some((value) => value > 0) ? "more than half of the clients are as central as the most central tenth" : "all centralities are 0"}.`;
  const sum = (values, kept) => kept.reduce((total, i) => total + values[i], 0);
  const has = ["prior", "lambda"].filter((key) => frame.values[key]), heads = { prior: "of the prior", lambda: "of λ" };
  const lines = counts.map(([name, count, size]) => `<tr><th scope="row">${escaped(name)}</th><td>${size}</td><td>${count}</td><td>${percent(size / frame.clients.length)}</td>` +
    has.map((key) => `<td>${percent(sum(frame.values[key], rows.get(name)) / Math.max(sum(frame.values[key], frame.clients.map((_, i) => i)), 1e-12))}</td>`).join("") + "</tr>");
  $("influence-table").innerHTML = `<table><thead><tr><th scope="col">region</th><th scope="col">clients</th><th scope="col">influential</th><th scope="col">of the clients</th>${has.map((key) => `<th scope="col">${heads[key]}</th>`).join("")}</tr></thead><tbody>${lines.join("")}</tbody></table>`;
  $("influence-note").textContent = "Influential (diamonds): the tenth of the round’s clients whose centrality is largest and above 0, with any that equal them. " +
    "The slider of the graph chooses the round. Click a point to follow its client.";
}

if ($("influence-plot")) {
  $("influence-by").addEventListener("change", () => { influence.by = $("influence-by").value; drawInfluence(); });
  redraws.push(drawInfluence);
}
