// Groups over the rounds: clients that moved, and members of each group.
function lastGroups(history) {
  history.table ??= words(history.group);
  const wide = history.rounds.length;
  return federation().ids.map((_, client) => history.table.subarray(client * wide, (client + 1) * wide).findLast((group) => group !== NOTHING) ?? NOTHING);
}

function drawMoves() {
  const graph = run().graph, history = graph?.history;
  // Columns that are all the same say nothing that the table of groups does not.
  const still = !graph?.allMoves;
  $("history").hidden = !history || still;
  if (!history) {
    $("moves-table").hidden = true;
    $("moves-text").textContent = `${title(run().label)} records no groups.`;
    $("history-note").textContent = "";
    return;
  }
  if (still) {
    movesText(graph, federation().ids, federation().planted);
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
    type: "heatmap", z, x: history.rounds.map(String), y: order.map((client) => escaped(ids[client])), text: room ? numbers : text, hovertext: text, customdata: order.map((client) => history.rounds.map(() => client)),
    colorscale: steps, zmin: 0, zmax: all.length, showscale: false, xgap: wide < 60 ? 1 : 0, ygap: order.length < 60 ? 1 : 0, hoverongaps: false,
    hovertemplate: "%{y}, %{hovertext}<extra></extra>", ...(room ? { texttemplate: "%{text}" } : {}),
  }], {
    xaxis: { type: "category", title: { text: "round" }, nticks: narrow() ? 6 : 15, showgrid: false },
    yaxis: { type: "category", showgrid: false, showticklabels: !narrow() && order.length <= 50, tickfont: { size: 10 } },
    shapes: plantedLines(order, rank), annotations: plantedMarks(order, rank, names),
    margin: { l: 30, r: names.length ? 70 : 12, t: 8, b: 44 },
  });
  clicks("history", (point) => point.customdata);
  movesText(graph, ids, planted);
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
    return rows.length ? [{ xref: "paper", x: 1.01, xanchor: "left", y: (rows[0] + rows.at(-1)) / 2, text: escaped(name.length > 10 ? name.slice(0, 9) + "…" : name), showarrow: false }] : [];
  });
}

function movesText(graph, ids, planted) {
  const rounds = new Set(graph.moves.map(([round]) => round)), restless = new Map();
  for (const [round, client, from, to] of graph.moves) {
    if (!restless.has(client)) restless.set(client, []);
    restless.get(client).push([round, from, to]);
  }
  const lastRound = graph.moves.length ? graph.moves.at(-1)[0] : null;
  $("moves-text").textContent = graph.allMoves === 0 ? "Nobody changed group." :
    `${many(graph.allMoves, "move")} from one group to another` + (graph.moves.length < graph.allMoves ? `, the last ${graph.moves.length} of which are here,` : "") +
    ` by ${many(restless.size, "client")} in ${many(rounds.size, "round")}; the last in round ${lastRound}.`;
  const rows = [...restless].sort((a, b) => b[1].length - a[1].length || a[0] - b[0]).slice(0, 15).map(([client, moves]) => {
    const when = moves.slice(-6).map(([round, from, to]) => `round ${round}: ${from + 1} → ${to + 1}`).join("; ");
    return `<tr><th scope="row"><button type="button" data-client="${client}">${escaped(ids[client])}</button></th><td>${escaped(planted[client] ?? "–")}</td><td>${moves.length}</td><td class="text">${moves.length > 6 ? "… " : ""}${when}</td></tr>`;
  });
  $("moves-table").hidden = !rows.length;
  rewrite($("moves-table"), rows.length ? `<table><thead><tr><th scope="col">client</th><th scope="col">planted</th><th scope="col">moves</th><th scope="col" class="text">when</th></tr></thead><tbody>${rows.join("")}</tbody></table>` +
    (restless.size > 15 ? `<p class="note">The 15 that moved most, of ${restless.size}.</p>` : "") : "");
  for (const button of $("moves-table").querySelectorAll("[data-client]")) button.addEventListener("click", () => follow(Number(button.dataset.client)));
}

// -- communities, round by round ----------------------------------------------------------------------------------

// At most `most` rounds, evenly spread, including the last.
function spread(all, most) {
  if (all.length <= most) return all;
  return [...new Set(Array.from({ length: most }, (_, i) => Math.round((i * (all.length - 1)) / (most - 1))))].map((i) => all[i]);
}

function drawCommunities() {
  const grouped = frames().filter((frame) => frame.groups), { ids, planted } = federation(), most = 8;
  $("communities-head").hidden = $("communities").hidden = $("communities-all").hidden = !grouped.length;
  if (!grouped.length) return;
  const shown = $("communities-all").getAttribute("aria-pressed") === "true" ? grouped : spread(grouped, most);
  $("communities-all").hidden = grouped.length <= most;
  const rows = shown.map((frame) => {
    const members = new Map();
    frame.clients.forEach((client, i) => members.set(frame.groups[i], [...(members.get(frame.groups[i]) ?? []), client]));
    const cells = [...members].sort((a, b) => a[0] - b[0]).map(([group, clients]) => {
      const names = clients.slice(0, 16).map((client) => (client === state.client ? `<mark>${escaped(ids[client])}</mark>` : escaped(ids[client])));
      const more = clients.length > names.length ? ` <span class="quiet">and ${clients.length - names.length} more</span>` : "";
      const kinds = new Set(clients.map((client) => planted[client]));
      const of = kinds.size === 1 && !kinds.has(null) ? ` <span class="quiet">all ${escaped([...kinds][0])}</span>` : "";
      return `<li>${shapeSample("circle", groupColour(group), groupFill(group))}<span><b>${group + 1}</b>${of}: ${names.join(", ")}${more}</span></li>`;
    });
    const kept = cells.slice(0, 12);
    if (cells.length > 12) kept.push(`<li class="quiet">and ${cells.length - 12} more</li>`);
    const ari = ariOf(frame);
    return `<tr><th scope="row">${roundsOf(frame).replace(/^rounds? /, "")}</th><td>${members.size}</td><td>${ari === null ? "–" : ari.toFixed(2)}</td><td class="text"><ul class="members">${kept.join("")}</ul></td></tr>`;
  });
  $("communities").innerHTML = `<table><thead><tr><th scope="col">round</th><th scope="col">groups</th><th scope="col">ARI</th><th scope="col" class="text">members</th></tr></thead><tbody>${rows.join("")}</tbody></table>`;
}

if ($("history")) {
  $("communities-all").addEventListener("click", () => {
    const all = $("communities-all").getAttribute("aria-pressed") !== "true";
    $("communities-all").setAttribute("aria-pressed", String(all));
    $("communities-all").textContent = all ? "Fewer rounds" : "All kept rounds";
    drawCommunities();
  });
  redraws.push(drawMoves, drawCommunities);
}
