// Why clients are in one group: the verdict of each group, and the tree of the tests behind it.
const groupMark = (group) => shapeSample("circle", groupColour(group), groupFill(group));

function drawTests() {
  const found = run().graph?.verdicts;
  $("verdicts").hidden = !found;
  $("tests-body").hidden = !found?.tests;
  if (!found) { $("tests-text").textContent = `${title(run().label)} records no tests: choose another method above.`; return; }
  const frame = frames().at(-1);
  const words = found.words[0].toUpperCase() + found.words.slice(1);
  $("tests-text").textContent = `${words}${found.keep ? `; ${found.keep}` : ""}. These are the groups of ${roundsOf(frame)}.`;
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

function clientNames(clients, count) {
  const { ids } = federation();
  const names = clients.map((client) => (client === state.client ? `<mark>${escaped(ids[client])}</mark>` : escaped(ids[client])));
  return names.join(", ") + (count > names.length ? ` <span class="quiet">and ${(count - names.length).toLocaleString("en")} more</span>` : "");
}

function verdictTable({ groups, more, alone }) {
  const rows = groups.map(({ group, verdict, size, placed, words, said, clients }) =>
    `<tr><th scope="row"><span class="chip">${groupMark(group)} ${groupName(group)}</span></th><td>${size.toLocaleString("en")}</td><td class="text"><b>${escaped(verdict)}</b></td>` +
    `<td class="text">${escaped(words)}${placed ? ` <span class="quiet">(${many(placed, "client")} in no test, placed after them)</span>` : ""}</td><td class="text">${said ? withP(said) : "–"}</td>` +
    `<td class="text">${clientNames(clients, size)}</td></tr>`);
  if (more[0]) rows.push(`<tr><th scope="row" class="quiet">${many(more[0], "more group")}</th><td>${more[1].toLocaleString("en")}</td><td></td><td></td><td></td><td></td></tr>`);
  if (alone[0]) rows.push(`<tr><th scope="row">no group</th><td>${alone[0].toLocaleString("en")}</td><td class="text"><b>alone</b></td><td class="text">${escaped(alone[2])}</td><td class="text">–</td><td class="text">${clientNames(alone[1], alone[0])}</td></tr>`);
  return `<table><thead><tr><th scope="col">group</th><th scope="col">clients</th><th scope="col" class="text">verdict</th><th scope="col" class="text">which means</th><th scope="col" class="text">tests of the group</th><th scope="col" class="text">members</th></tr></thead><tbody>${rows.join("")}</tbody></table>`;
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
  tests.table ??= words(tests.leaf);
  const way = new Set();
  if (state.client === null || tests.table[state.client] === NOTHING) return way;
  for (let at = tests.table[state.client]; at !== null; at = tests.nodes[at].parent) way.add(at);
  return way;
}

function nodeText({ size, said, cut, group, verdict, client, left }, mine, opens) {
  const whole = federation().ids.length, one = client !== null;
  const who = one ? `<button type="button" data-client="${client}">${escaped(federation().ids[client])}</button>` : `<b>${many(size, "client")}</b>`;
  const colour = group === null ? css("--edge") : groupColour(group);
  const told = said ? ` ${withP(said)}` : "";
  const ends = !cut ? "" : group === null ? "; <b>cut in two</b>" : "; cut in two, but one group after all";
  const chip = group === null ? "" : verdict === "alone" ? ' <span class="chip">→ <b>alone</b></span>' : ` <span class="chip">→ ${groupMark(group)} ${groupName(group)}, <b>${escaped(verdict)}</b></span>`;
  const rest = left ? ` <span class="quiet">${many(left, "more node")} below ${left > 1 ? "are" : "is"} not drawn</span>` : "";
  const share = `<i class="share"><i style="width:${Math.max(4, Math.round((100 * size) / whole))}%;background:${colour}"></i></i>`;
  return `<span class="node${mine ? " mine" : ""}${opens ? "" : " leaf"}"><span>${share}${who}${told}${ends}${chip}${rest}</span></span>`;
}

if ($("tests-tree")) redraws.push(drawTests);
