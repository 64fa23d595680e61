// Risk tasks: whether the risks are true (calibration), and what acting on them is worth (decision curve).
const risky = () => DATA.runs.filter((one) => one.seed === run().seed && one.risks && one.federation === run().federation);
const emphasis = (one) => ({ ...methodStyle(one.label), width: one === run() ? 3.5 : 1.8 });

function drawCalibration() {
  const all = risky(), diagonal = { x: [0, 1], y: [0, 1], mode: "lines", hoverinfo: "skip", line: { color: css("--quiet"), dash: "dot", width: 1.5 } };
  const top = Math.min(1, 1.08 * Math.max(0.05,
    ...all.flatMap(({ risks }) => risks.bins.map(([predicted, observed, , high]) => Math.max(predicted, observed, high)))));
  draw("calibration-plot", [diagonal, ...all.map((one) => ({
    x: one.risks.bins.map((bin) => bin[0]), y: one.risks.bins.map((bin) => bin[1]), mode: "lines+markers", name: escaped(title(one.label)), meta: one.label,
    line: emphasis(one), marker: { color: methodStyle(one.label).color, size: one === run() ? 9 : 6 },
    error_y: one === run() ? { type: "data", symmetric: false, thickness: 1, width: 0, array: one.risks.bins.map((bin) => bin[3] - bin[1]),
      arrayminus: one.risks.bins.map((bin) => bin[1] - bin[2]) } : undefined,
    text: one.risks.bins.map(([predicted, observed, low, high, n]) => `${escaped(title(one.label))}: risk ${percent(predicted)}, events ${percent(observed)} (${percent(low)} to ${percent(high)}) of ${many(n, "sample")}`),
    hovertemplate: "%{text}<extra></extra>",
  }))], {
    xaxis: { title: { text: "predicted risk" }, tickformat: ".0%", range: [0, top] },
      yaxis: { title: { text: narrow() ? "" : "share of events" }, tickformat: ".0%", range: [0, top] },
  });
}

function drawDecisions() {
  const all = risky(), share = all[0].risks.events / all[0].risks.n, at = all[0].risks.net.map((_, i) => (i + 1) / 100);
  const everyone = at.map((t) => share - ((1 - share) * t) / (1 - t));
  // Beyond the last threshold at which a model is of use or does harm, all lines are at 0.
  const last = Math.max(20, ...all.map(({ risks }) => risks.net.findLastIndex((value) => Math.abs(value) > 0.02 * share) + 2));
  const line = (y, text, style, more = {}) => ({ x: at, y, mode: "lines", line: style, name: text,
    text: at.map((t, i) => `${text}: ${(1000 * y[i]).toFixed(1)} per 1,000 at ${percent(t, 0)}`), hovertemplate: "%{text}<extra></extra>", ...more });
  draw("decision-plot", [
    line(everyone, "treat all", { color: css("--quiet"), dash: "dash", width: 1.5 }),
      line(at.map(() => 0), "treat none", { color: css("--quiet"), dash: "dot", width: 1.5 }),
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

// Learned weights beside what clients have in common, and how the weights follow it over the rounds.
const SHARED = {
  classes: { title: "classes in common", levels: ["no class in common", "some classes in common", "the same classes"],
    overlap: "the share of classes in common" },
  groups: { title: "planted group in common", levels: ["of different planted groups", "", "of one planted group"],
    overlap: "whether the planted group is the same" },
};

function drawSharing() {
  const sharing = run().sharing, parts = ["sharing-curve", "sharing-legend"];
  for (const id of parts) $(id).hidden = !sharing;
  if (!sharing) {
    $("sharing-text").textContent = run().graph ? "All of these clients have the same classes, and no planted groups are known: nothing to compare the weights with." :
      `${title(run().label)} records no weights: choose another method above.`;
    return;
  }
  drawLevels(sharing);
  const { correlation, round } = sharing.figures, ends = [correlation[0], correlation.at(-1)];
  const said = (value) => (value === null ? "not defined (all weights equal)" : value.toFixed(2));
  $("sharing-text").textContent = `Correlation of weights with ${SHARED[sharing.by].overlap}, over pairs of clients: ` +
    (round.length > 1 ? `${said(ends[0])} in round ${round[0]}, ` : "") + `${said(ends[1])} in ${roundsOf({ round: round.at(-1), until: sharing.until })}.`;
}

function drawLevels(sharing) {
  const { figures } = sharing, names = SHARED[sharing.by].levels;
  const levels = [["none", 5, "dot"], ["some", 7, "dash"],
    ["all", 0, "solid"]].map(([key, colour, dash], i) => ({ key, name: names[i], color: COLOURS[colour], dash }))
    .filter(({ key }) => figures[key].some((value) => value !== null));
  const one = figures.round.length === 1, stays = sharing.until > figures.round.at(-1);
  $("sharing-legend").innerHTML = `<div><b>Mean weight of pairs</b> ${levels.map((level) => `<span>${lineSample(level)}${level.name}${one ? `: ${figures[level.key][0].toPrecision(3)}` : ""}</span>`).join("")}</div>`;
  $("sharing-curve").hidden = one;
  if (one) return;
  draw("sharing-curve", levels.map((level) => ({
    x: [...figures.round, ...(stays ? [sharing.until] : [])], y: [...figures[level.key], ...(stays ? [figures[level.key].at(-1)] : [])], mode: "lines",
      connectgaps: true, name: level.name, line: { color: level.color, dash: level.dash, width: 2.5 },
    hovertemplate: `${level.name}: %{y:.3~f}<extra></extra>`,
  })), { hovermode: "x unified", xaxis: { title: { text: "round" }, rangemode: "tozero" },
    yaxis: { title: { text: narrow() ? "" : "mean weight" }, rangemode: "tozero" } });
}

if ($("sharing-curve")) redraws.push(drawSharing);

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
      hovertemplate: "%{text}<extra></extra>", marker: { ...marker, line: { ...marker.line,
        width: kept.map((i) => (frame.clients[i] === state.client ? 4 : 1.5)) } }, meta: chosenOnes ? "influential" : "others" };
  };
  $("influence-plot").style.height = `${110 + 46 * names.length}px`;
  draw("influence-plot", [
    kind(false, { size: 9, symbol: "circle-open", color: css("--quiet"), line: { color: css("--quiet") } }),
    kind(true, { size: 13, symbol: "diamond", color: COLOURS[0], line: { color: css("--ink") } }),
  ], {
    hovermode: "closest", xaxis: { title: { text: "centrality in the client graph" }, range: [-0.04, 1.06].map((share) => share * (Math.max(...values) || 1)),
      zeroline: true }, margin: { l: 60, r: 16, t: 8, b: 44 },
    yaxis: { tickvals: names.map((_, i) => i), ticktext: names.map((text) => escaped(text.length > 14 ? `${text.slice(0, 13)}…` : text)),
      range: [names.length - 0.5, -0.5], showgrid: false, zeroline: false },
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
  const everyone = frame.clients.map((_, i) => i);
  const share = (key, name) => percent(sum(frame.values[key], rows.get(name)) / Math.max(sum(frame.values[key], everyone), 1e-12));
  const lines = counts.map(([name, count, size]) => [escaped(name), size, count, percent(size / frame.clients.length), ...has.map((key) => share(key, name))]);
  $("influence-table").innerHTML = tableOf(["region", "clients", "influential", "of the clients", ...has.map((key) => heads[key])], lines);
  $("influence-note").textContent = "Influential (diamonds): the tenth of the round’s clients whose centrality is largest and above 0, with any that equal them. " +
    "The slider of the graph chooses the round. Click a point to follow its client.";
}

if ($("influence-plot")) {
  $("influence-by").addEventListener("change", () => { influence.by = $("influence-by").value; drawInfluence(); });
  redraws.push(drawInfluence);
}

// Clients' classes in feature space, and the similarity of their heads' answers.
const features = { round: Infinity, what: "features", colour: "class" };
const CLOUDS = { features: "class means of features", anchors: "anchors or prototypes of the method" };

// Each client's found group, in the last graph up to a round; null if unknown.
function groupsBy(round) {
  const history = run().graph?.history;
  if (!history) return null;
  history.table ??= words(history.group);
  const wide = history.rounds.length, until = history.rounds.filter((one) => one <= round).length;
  return federation().ids.map((_, client) => history.table.subarray(client * wide, client * wide + until).findLast((group) => group !== NOTHING) ?? null);
}

function drawFeatures() {
  const all = run().features, parts = ["features-controls", "features-body", "features-note"];
  for (const id of parts) $(id).hidden = !all;
  if (!all) {
    $("features-text").textContent = `${title(run().label)} recorded no features.`;
    return;
  }
  features.round = Math.min(features.round, all.rounds.length - 1);
  const entry = all.rounds[features.round], kinds = Object.keys(entry.clouds);
  const what = kinds.includes(features.what) ? features.what : kinds[0], cloud = entry.clouds[what], groups = groupsBy(entry.round);
  options($("features-round"), all.rounds.map(({ round }, i) => [i, round]), features.round);
  options($("features-what"), kinds.map((kind) => [kind, CLOUDS[kind]]), what);
  const colours = [["class", "class"], ...(plantedNames().length > 1 ? [["planted", "planted group"]] : []), ...(groups ? [["found", "group found"]] : [])];
  const colour = colours.some(([key]) => key === features.colour) ? features.colour : "class";
  options($("features-colour"), colours, colour);
  $("features-plot").hidden = $("features-legend").hidden = !cloud.x;
  if (cloud.x) drawCloud(cloud, colour, groups, entry, what);
  drawHeads(entry);
  featuresText(all, entry, cloud);
}

function drawCloud(cloud, colour, groups, entry, what) {
  const { ids, planted } = federation(), names = plantedNames();
  const kindOf = {
    class: (i) => cloud.label[i], found: (i) => groups?.[cloud.client[i]] ?? null,
    planted: (i) => (cloud.client[i] < 0 || planted[cloud.client[i]] === null ? null : names.indexOf(planted[cloud.client[i]])),
  }[colour];
  const server = cloud.client.map((_, i) => i).filter((i) => cloud.client[i] < 0), own = cloud.client.map((_, i) => i).filter((i) => cloud.client[i] >= 0);
  const told = (i) => `<b>${cloud.client[i] < 0 ? "server" : escaped(ids[cloud.client[i]])}</b>, class ${cloud.label[i]}` +
    (cloud.client[i] < 0 ? "" : `<br>${facts(cloud.client[i])}`) + (groups && groups[cloud.client[i]] !== null && cloud.client[i] >= 0 ? `<br>${groupName(groups[cloud.client[i]])}` : "");
  // Colours repeat after 8 kinds: shape and filling distinguish the rest.
  const symbol = (kind) => (kind === null ? "x-thin-open" : SHAPES[kind % SHAPES.length] + groupFill(kind));
  const size = own.length > 600 ? 6 : own.length > 200 ? 8 : 11, written = own.length <= 60 && !narrow();
  const mine = own.filter((i) => cloud.client[i] === state.client);
  const at = (kept, more) => ({ type: "scatter", mode: "markers", x: kept.map((i) => cloud.x[i]), y: kept.map((i) => cloud.y[i]),
    customdata: kept.map((i) => (cloud.client[i] < 0 ? null : cloud.client[i])), hovertext: kept.map(told), hovertemplate: "%{hovertext}<extra></extra>",
    ...more });
  draw("features-plot", [
    at(own, { mode: written ? "markers+text" : "markers", text: written ? own.map((i) => escaped(ids[cloud.client[i]])) : undefined, textposition: "top center",
      textfont: { size: 9 },
      marker: { opacity: 1, size, symbol: own.map((i) => symbol(kindOf(i))),
        color: own.map((i) => (kindOf(i) === null ? css("--quiet") : groupColour(kindOf(i)))),
        line: { color: css("--ink"), width: own.map((i) => (groupFill(kindOf(i) ?? 0).includes("open") ? 2 : 0.6)) } } }),
    ...(server.length ? [at(server, { meta: "server", marker: { size: size + 16, symbol: "star-open",
      color: server.map((i) => (colour === "class" ? groupColour(cloud.label[i]) : css("--ink"))), line: { width: 2 } } })] : []),
    ...(mine.length ? [at(mine, { hoverinfo: "skip", hovertemplate: undefined, meta: "followed",
      marker: { size: size + 10, symbol: "circle-open", color: css("--ink"), line: { width: 2.5 } } })] : []),
  ], {
    margin: { l: 4, r: 4, t: 4, b: 4 }, hovermode: "closest", dragmode: narrow() ? false : "pan", uirevision: `${state.run} ${entry.round} ${what}`,
    xaxis: { visible: false, range: [-1.1, 1.1] }, yaxis: { visible: false, range: [-1.1, 1.1], scaleanchor: "x" },
  });
  clicks("features-plot", (point) => point.customdata);
  const present = [...new Set(own.map(kindOf))].filter((kind) => kind !== null).sort((a, b) => a - b), shown = present.slice(0, 20);
  const name = (kind) => ({ class: `class ${kind}`, found: groupName(kind), planted: escaped(names[kind]) })[colour];
  $("features-legend").innerHTML = `<div>${shown.map((kind) => `<span>${shapeSample(SHAPES[kind % SHAPES.length], groupColour(kind), groupFill(kind))}${name(kind)}</span>`).join("")}` +
    (present.length > shown.length ? `<span class="quiet">and ${present.length - shown.length} more</span>` : "") + (server.length ? `<span>☆ the server’s prototypes</span>` : "") + "</div>";
}

function drawHeads({ heads, kept }) {
  $("heads-plot").hidden = !heads;
  $("heads-note").textContent = heads ? "Similarity of the outputs of two clients’ heads on each other’s class means: 1 if they are equal, up to scale. Ordered by planted group, then by classes." +
    (heads.clients.length < kept ? ` ${heads.clients.length} of ${many(kept, "client")} are drawn.` : "") :
    "Everyone uses the same head after this round: there is nothing to compare.";
  if (!heads) return;
  const { ids } = federation(), count = heads.clients.length, at = heads.clients.map((_, i) => i), bytes = bytesOf(heads.matrix),
    names = heads.clients.map((client) => escaped(ids[client]));
  const z = at.map((i) => at.map((j) => (i === j ? null : heads.low + ((heads.high - heads.low) * bytes[i * count + j]) / 255)));
  const margin = { l: 4, r: 58, t: 4, b: 4 }, ticks = { showticklabels: false, ticks: "", showgrid: false, zeroline: false };
  $("heads-plot").style.height = `${$("heads-plot").clientWidth - margin.l - margin.r + margin.t + margin.b}px`;
  draw("heads-plot", [{ type: "heatmap", z, x: at, y: at, text: at.map((i) => at.map((j) => `${names[i]} and ${names[j]}`)),
    customdata: at.map((i) => at.map(() => heads.clients[i])), colorscale: "Cividis", hoverongaps: false, hovertemplate: "%{text}: %{z:.3f}<extra></extra>",
    colorbar: { thickness: 12, outlinewidth: 0, tickformat: ".2~f", x: 1.01 } }], {
    xaxis: { ...ticks, range: [-0.5, count - 0.5] }, yaxis: { ...ticks, range: [count - 0.5, -0.5] }, margin,
  });
  clicks("heads-plot", (point) => point.customdata);
}

function featuresText(all, entry, cloud) {
  const write = (value) => (value === null || value === undefined ? "–" : value.toFixed(2).replace("-", "−"));
  const what = $("features-what").value;
  const rows = all.rounds.map(({ round, clouds }) =>
    Object.assign([round, ...["class", "planted", "found"].map((key) => write(clouds[what]?.separation[key]))], { current: round === entry.round }));
  $("features-table").innerHTML = tableOf(["round", "class", "planted group", "found group"], rows);
  const alone = all.rounds.length === 1 ? " Set run.embeddings_every to see earlier rounds." : "";
  $("features-text").textContent = `Round ${entry.round}: ${CLOUDS[what]}, ${what === "features" ? "each client’s under its own model" : "as its clients keep them"}.${alone}`;
  const shown = cloud.x ? new Set(cloud.client.filter((client) => client >= 0)).size : 0;
  const placed = "placed along the two principal components of the last round’s points. ";
  $("features-note").textContent = (cloud.x ? `A point is one class of one client, ${placed}` : "Pictures are drawn for the runs of one seed only: choose the lowest seed. ") +
    (cloud.x && shown < entry.clients ? `${shown} of ${many(entry.clients, "client")}, drawn at random, are shown. ` : "") +
    "The table has mean silhouettes in all dimensions, from −1 to 1: high if points of one kind are close together and far from the others.";
}

if ($("features-body")) {
  $("features-round").addEventListener("change", () => { features.round = Number($("features-round").value); drawFeatures(); });
  $("features-what").addEventListener("change", () => { features.what = $("features-what").value; drawFeatures(); });
  $("features-colour").addEventListener("change", () => { features.colour = $("features-colour").value; drawFeatures(); });
  redraws.push(drawFeatures);
}
