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
  const at = (kept, more) => ({ type: "scatter", mode: "markers", x: kept.map((i) => cloud.x[i]), y: kept.map((i) => cloud.y[i]), customdata: kept.map((i) => (cloud.client[i] < 0 ? null : cloud.client[i])), hovertext: kept.map(told), hovertemplate: "%{hovertext}<extra></extra>", ...more });
  draw("features-plot", [
    at(own, { mode: written ? "markers+text" : "markers", text: written ? own.map((i) => escaped(ids[cloud.client[i]])) : undefined, textposition: "top center", textfont: { size: 9 },
      marker: { opacity: 1, size, symbol: own.map((i) => symbol(kindOf(i))), color: own.map((i) => (kindOf(i) === null ? css("--quiet") : groupColour(kindOf(i)))), line: { color: css("--ink"), width: own.map((i) => (groupFill(kindOf(i) ?? 0).includes("open") ? 2 : 0.6)) } } }),
    ...(server.length ? [at(server, { meta: "server", marker: { size: size + 16, symbol: "star-open", color: server.map((i) => (colour === "class" ? groupColour(cloud.label[i]) : css("--ink"))), line: { width: 2 } } })] : []),
    ...(mine.length ? [at(mine, { hoverinfo: "skip", hovertemplate: undefined, meta: "followed", marker: { size: size + 10, symbol: "circle-open", color: css("--ink"), line: { width: 2.5 } } })] : []),
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
  $("heads-note").textContent = heads ? "How alike two clients’ heads answer on each other’s class means: 1 when they say the same, up to scale. Ordered by planted group, then by classes." +
    (heads.clients.length < kept ? ` ${heads.clients.length} of ${many(kept, "client")} are drawn.` : "") :
    "Everyone uses the same head after this round: there is nothing to compare.";
  if (!heads) return;
  const { ids } = federation(), count = heads.clients.length, at = heads.clients.map((_, i) => i), bytes = bytesOf(heads.matrix), names = heads.clients.map((client) => escaped(ids[client]));
  const z = at.map((i) => at.map((j) => (i === j ? null : heads.low + ((heads.high - heads.low) * bytes[i * count + j]) / 255)));
  const margin = { l: 4, r: 58, t: 4, b: 4 }, ticks = { showticklabels: false, ticks: "", showgrid: false, zeroline: false };
  $("heads-plot").style.height = `${$("heads-plot").clientWidth - margin.l - margin.r + margin.t + margin.b}px`;
  draw("heads-plot", [{ type: "heatmap", z, x: at, y: at, text: at.map((i) => at.map((j) => `${names[i]} and ${names[j]}`)), customdata: at.map((i) => at.map(() => heads.clients[i])), colorscale: "Cividis", hoverongaps: false, hovertemplate: "%{text}: %{z:.3f}<extra></extra>", colorbar: { thickness: 12, outlinewidth: 0, tickformat: ".2~f", x: 1.01 } }], {
    xaxis: { ...ticks, range: [-0.5, count - 0.5] }, yaxis: { ...ticks, range: [count - 0.5, -0.5] }, margin,
  });
  clicks("heads-plot", (point) => point.customdata);
}

function featuresText(all, entry, cloud) {
  const write = (value) => (value === null || value === undefined ? "–" : value.toFixed(2).replace("-", "−"));
  const what = $("features-what").value;
  const rows = all.rounds.map(({ round, clouds }) => `<tr${round === entry.round ? ' aria-current="true"' : ""}><th scope="row">${round}</th>${["class", "planted", "found"].map((key) => `<td>${write(clouds[what]?.separation[key])}</td>`).join("")}</tr>`);
  $("features-table").innerHTML = `<table><thead><tr><th scope="col">round</th><th scope="col">class</th><th scope="col">planted group</th><th scope="col">found group</th></tr></thead><tbody>${rows.join("")}</tbody></table>`;
  const alone = all.rounds.length === 1 ? " Set run.embeddings_every to see earlier rounds." : "";
  $("features-text").textContent = `Round ${entry.round}: ${CLOUDS[what]}, ${what === "features" ? "each client’s under its own model" : "as its clients keep them"}.${alone}`;
  const shown = cloud.x ? new Set(cloud.client.filter((client) => client >= 0)).size : 0;
  const placed = all.tsne ? "placed by t-SNE: near points are similar, but larger distances have no meaning. Each round starts from the positions of the previous one. " :
    "placed along the two principal components of the last round’s points. ";
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
