// Gain of each client, and the one client that is followed.
const TEST = `Test ${METRIC.title}`;
const TICKS = METRIC.share ? ".1%" : ".4~g";

// A client's metric in run `one` at each kept round: [rounds, values].
function valuesOf(one, client) {
  one.clients.table ??= words(one.clients.share);
  const { rounds, table, low = 0, step = null } = one.clients;
  const row = Array.from(table.subarray(client * rounds.length, (client + 1) * rounds.length));
  return [rounds, row.map((value) => (value === NOTHING ? null : step === null ? value / 10000 : low + step * value))];
}

function drawGain() {
  const gains = run().gain, ids = federation().ids;
  $("gain").hidden = !gains;
  if (!gains) {
    $("gain-text").textContent = run().method === "local" ?
      "Local is what the other methods' gains are measured against: choose another method." : "Local was not run with this seed, these clients and these settings, so gains are not known.";
    $("gain-note").textContent = "";
    return;
  }
  const known = gains.map((gain, client) => ({ gain, client })).filter(({ gain }) => gain !== null)
    .sort((a, b) => a.gain - b.gain || a.client - b.client);
  const sure = run().sure, word = (client) => sure?.verdict[client] ?? null, unit = METRIC.share ? 100 : 1;
  const judged = known.some(({ client }) => word(client));
  const worse = ({ gain, client }) => (judged ? word(client) === "hurt" : gain < 0),
    better = ({ gain, client }) => (judged ? word(client) === "gained" : gain > 0);
  const colour = (one) => (worse(one) ? COLOURS[5] : better(one) ? COLOURS[0] : COLOURS[7]);
  const bounds = (client) => sure?.gain[client];
  const told = (client) => judged ? `<br>${word(client)}${bounds(client) ? `, 95 % interval ${bounds(client).map(points).join(" to ")}` : ""}` : "";
  const room = $("gain").clientWidth / known.length > 16;
  draw("gain", [{
    type: "bar", x: known.map((_, i) => i), y: known.map(({ gain }) => (METRIC.share ? 100 * gain : gain)),
    text: known.map(({ client, gain }) => `${escaped(ids[client])}: ${points(gain)}${told(client)}<br>${facts(client)}`), textposition: "none",
    error_y: judged && known.length <= 150 ? { type: "data", symmetric: false, thickness: 1, width: 0, color: css("--ink"),
      array: known.map(({ client, gain }) => (bounds(client) ? unit * (bounds(client)[1] - gain) : 0)),
        arrayminus: known.map(({ client, gain }) => (bounds(client) ? unit * (gain - bounds(client)[0]) : 0)) } : undefined,
    hovertemplate: "%{text}<extra></extra>", customdata: known.map(({ client }) => client),
    marker: {
      color: known.map(colour), pattern: { shape: known.map((one) => (worse(one) ? "/" : "")), fgcolor: css("--paper"), fillmode: "overlay", fgopacity: 0.5,
        size: 6 },
      line: { color: css("--ink"), width: known.map(({ client }) => (client === state.client ? 3 : 0)) },
    },
  }], {
    bargap: known.length > 100 ? 0 : 0.2,
    xaxis: { showgrid: false, tickvals: room ? known.map((_, i) => i) : [], ticktext: known.map(({ client }) => escaped(ids[client])), tickangle: -60,
      title: { text: room ? "" : "clients, from most hurt to most helped" } },
    yaxis: { tickformat: "+~g", title: { text: narrow() ? "" : METRIC.share ? "points over Local" : "better than Local" } },
  });
  gainText(known, ids);
}

function gainText(known, ids) {
  const hurt = known.filter(({ gain }) => gain < 0), gain = known.filter(({ gain }) => gain > 0);
  const middle = (known[Math.floor((known.length - 1) / 2)].gain + known[Math.ceil((known.length - 1) / 2)].gain) / 2;
  const worst = hurt.length ? ` Largest loss: ${ids[known[0].client]} (${points(known[0].gain)}).` : " No client is worse.";
  $("gain-text").textContent = `With ${title(run().label)} and seed ${run().seed}: ${many(gain.length, "client")} better than alone, ` +
    `${known.length - gain.length - hurt.length} equal, ${hurt.length} worse; median ${points(middle)}.${worst}${verdictText()}`;
  const tests = federation().test.filter((count) => count);
  const least = tests.length ? Math.min(...tests) : 0;
  $("gain-note").textContent = `${TEST} after the last round, against Local with the same seed. ${run().sure?.verdict.some((word) => word) ? "Lines: 95 % intervals. Grey: no significant difference from training alone, or too few events or test samples. Hatched: significantly worse." : "Hatched: worse than training alone."} ` +
    (run().sure?.withheld ? `There are no verdicts: ${run().sure.withheld}. ` : "") +
    (least && METRIC.title === "accuracy" ? `The fewest test samples of a client are ${least}, where one sample is ${(100 / least).toFixed(1)} points. ` : "") +
    "Click a bar to follow its client.";
}

// Every client of the chosen run with what is known of it, made when it is asked for.
const MOST_ROWS = 1000;
function drawTable() {
  if (!$("every-client").open) return;
  const all = federation(), sure = run().sure, gains = run().gain, none = "–";
  const ends = all.ids.map((_, client) => valuesOf(run(), client)[1].at(-1) ?? null);
  const pair = (ends, write) => (ends ? `<small>${write(ends[0])} to ${write(ends[1])}</small>` : "");
  const columns = [
    ["client", (i) => escaped(all.ids[i])],
    ["training samples", (i) => all.train[i]?.toLocaleString("en") ?? none], ["test samples", (i) => all.test[i]?.toLocaleString("en") ?? none],
    ["test events", (i) => sure?.events[i]?.toLocaleString("en") ?? none],
    [TEST, (i) => (ends[i] === null ? none : figure(ends[i]) + pair(sure?.own[i], figure))],
    ["gain over Local", (i) => (gains?.[i] === null || gains?.[i] === undefined ? none : points(gains[i]) + pair(sure?.gain[i], points))],
    ["against Local", (i) => sure?.verdict[i] ?? none],
  ].filter(([, cell]) => all.ids.some((_, i) => cell(i) !== none));
  const rows = all.ids.slice(0, MOST_ROWS).map((_, i) => columns.map(([, cell]) => cell(i)));
  const more = all.ids.length > MOST_ROWS ? `<p class="note">And ${many(all.ids.length - MOST_ROWS, "more client")}.</p>` : "";
  $("clients-table").innerHTML = tableOf(columns.map(([name]) => name), rows) + more;
  cue();
}

// The counts of the verdicts, over the clients that have one.
function verdictText() {
  const said = (run().sure?.verdict ?? []).filter((word) => word), count = (word) => said.filter((one) => one === word).length;
  if (!said.length) return "";
  const few = count("too few");
  return ` Significant gain: ${count("gained")}, significant loss: ${count("hurt")}, neither: ${count("cannot be told apart")}${few ? `, too few events or test samples: ${few}` : ""}.`;
}

// A client's data in one line, as escaped text.
function facts(client) {
  const all = federation(), parts = [];
  if (all.planted[client] !== null) parts.push(`planted in ${escaped(all.planted[client])}`);
  if (all.train[client] !== null) parts.push(`${many(all.train[client], "training sample")}`);
  const labels = Object.keys(all.labels[client]);
  if (labels.length) parts.push(labels.length > 6 ? `${labels.length} labels` : `label${labels.length > 1 ? "s" : ""} ${labels.map(escaped).join(", ")}`);
  const events = run().sure?.events[client];
  if (events !== null && events !== undefined) parts.push(`${many(events, "test event")}`);
  return parts.join(", ");
}

function labelBars(client) {
  const labels = Object.entries(federation().labels[client]);
  if (!labels.length || labels.length > 60) return "";
  const most = Math.max(...labels.map(([, count]) => count));
  const bars = labels.map(([label, count]) => `<li title="label ${escaped(label)}: ${count}"><i style="height:${Math.round(100 * count / most)}%"></i><span>${escaped(label)}</span></li>`);
  return `<h4>Training samples by label</h4><ul class="bars">${bars.join("")}</ul>`;
}

function strip(client) {
  const history = run().graph?.history;
  if (!history) return "";
  history.table ??= words(history.group);
  const cells = history.rounds.map((round, i) => ({ round, until: history.until[i],
    group: history.table[client * history.rounds.length + i] })).filter(({ group }) => group !== NOTHING);
  if (!cells.length) return "<h4>Groups over time</h4><p>In no round's graph.</p>";
  const spans = cells.map(({ group, ...span }) =>
    `<i style="background:${groupColour(group)}" title="${roundsOf(span)}: ${groupName(group)}">${cells.length <= 16 ? group + 1 : ""}</i>`);
  const all = [...new Set(cells.map(({ group }) => group + 1))];
  return `<h4>Groups over time</h4><div class="strip" role="img" aria-label="${escaped(`groups ${all.join(", ")}`)}">${spans.join("")}</div>` +
    `<p class="quiet">Rounds ${cells[0].round} to ${cells.at(-1).until}, when taking part: ${all.length > 1 ? "groups " + all.join(", ") : "always group " + all[0]}.</p>`;
}

function neighbours(client) {
  const frame = run().graph?.frames[state.frame];
  if (!frame) return "";
  const ids = federation().ids, found = [];
  frame.from.forEach((from, i) => {
    if (from === client) found.push([frame.to[i], frame.weight[i]]);
    if (frame.to[i] === client) found.push([from, frame.weight[i]]);
  });
  found.sort((a, b) => b[1] - a[1]);
  if (!frame.clients.includes(client)) return `<h4>Neighbours</h4><p>Not in the graph of ${roundsOf(frame)}.</p>`;
  const items = found.slice(0, 10).map(([other, weight]) => `<li><button type="button" data-client="${other}">${escaped(ids[other])}</button> ${weight} ` +
    `<span class="quiet">${escaped(federation().planted[other] ?? "")}</span></li>`);
  return `<h4>Strongest neighbours in ${roundsOf(frame)}</h4>${items.length ? `<ol>${items.join("")}</ol>` : "<p>None: alone.</p>"}`;
}

function drawClient() {
  const place = $("client"), client = state.client;
  if (client === null) {
    rewrite(place, `<p class="quiet">Click a client, or name one under “Follow client”, to see its data, its ${METRIC.title}, its groups and its neighbours.</p>`);
    return;
  }
  const all = federation(), gain = run().gain?.[client];
  const same = DATA.runs.filter((one) => one.federation === run().federation && one.seed === run().seed);
  const rows = Object.entries(all.about[client]).map(([key, value]) => `<div><dt>${escaped(key)}</dt><dd>${escaped(value)}</dd></div>`);
  const samples = all.train[client] === null ? "" : `<div><dt>samples</dt><dd>${all.train[client]} to train on, ${all.test[client]} to test on</dd></div>`;
  const unseen = all.unseen?.[client] ? "<div><dt>unseen</dt><dd>never takes part, only evaluated</dd></div>" : "";
  const sure = run().sure, own = sure?.own[client], gained = sure?.gain[client], word = sure?.verdict[client];
  const certain = (sure && sure.events[client] !== null ? `<div><dt>test events</dt><dd>${sure.events[client]}</dd></div>` : "") +
    (own ? `<div><dt>95 % interval</dt><dd>${own.map(figure).join(" to ")}</dd></div>` : "") +
    (word ? `<div><dt>against Local</dt><dd>${word}${gained ? ` (${gained.map(points).join(" to ")})` : ""}</dd></div>` : "");
  const planted = all.planted[client] === null ? "" : `<div><dt>planted group</dt><dd>${escaped(all.planted[client])}</dd></div>`;
  const ends = same.map((one) => [one.label, valuesOf(one, client)[1].at(-1)]).filter(([, value]) => value !== null && value !== undefined)
    .map(([label, value]) => `<div><dt>${escaped(title(label))}</dt><dd>${figure(value)}</dd></div>`);
  rewrite(place, `<h3 id="client-name">${escaped(all.ids[client])}</h3><dl>${unseen}${planted}${samples}${rows.join("")}</dl>` +
    `<h4>${TEST}${gain === null || gain === undefined ? "" : ` (${points(gain)} ${METRIC.share ? "over" : "better than"} Local)`}</h4><dl>${ends.join("")}${certain}</dl>` +
    `<div id="client-curve"></div>${strip(client)}${neighbours(client)}${labelBars(client)}`);
  for (const button of place.querySelectorAll("[data-client]")) {
    button.addEventListener("click", () => { follow(Number(button.dataset.client)); $("client-name").scrollIntoView({ block: "nearest" }); });
  }
  draw("client-curve", same.map((one) => {
    const [x, y] = valuesOf(one, client), style = methodStyle(one.label);
    return { x, y, mode: x.length > 1 ? "lines" : "markers", connectgaps: true, line: { ...style, width: one === run() ? 3 : 1.5 },
      marker: { color: style.color },
      hovertemplate: `${escaped(title(one.label))}: %{y:${TICKS}}<extra></extra>` };
  }), { height: 180, margin: { l: 40, r: 8, t: 8, b: 36 }, hovermode: "x unified", xaxis: { title: { text: "round" } },
    yaxis: { tickformat: METRIC.share ? ".0%" : "" } });
}

// Plotly offers events only on charts that have been drawn.
function clicks(place, clientOf) {
  if ($(place).dataset.clicks) return;
  $(place).dataset.clicks = "yes";
  $(place).on("plotly_click", (event) => {
    const client = clientOf(event.points[0]);
    if (client !== null && client !== undefined) follow(Number(client));
  });
}

if ($("gain")) redraws.push(() => { drawGain(); if (run().gain) clicks("gain", (point) => point.customdata); });
redraws.push(drawClient, drawTable);
$("every-client").addEventListener("toggle", drawTable);
