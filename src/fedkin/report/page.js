"use strict";
// Shared by all parts of the page: the data, colours, the choice of method, seed, round and client, the theme.
const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const NOTHING = 65535;

// Okabe and Ito's colours, in an order that separates the most similar; grey replaces their black. On a dark page
// the darker of them are lightened, so that a thin line is visible.
const LIGHT_PAGE = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C"];
const DARK_PAGE = ["#2F8FD0", "#E69F00", "#14B086", "#CC79A7", "#9AD4F5", "#E8703A", "#F0E442", "#9C9C9C"];
const COLOURS = [...LIGHT_PAGE];
const FILLS = ["", "-dot", "-open", "-open-dot"];
const SHAPES = ["circle", "square", "diamond", "triangle-up", "pentagon", "cross", "star", "triangle-down", "hexagon", "x"];
const DASHES = ["solid", "dash", "dashdot", "longdashdot"];
const YELLOW = 6;
// The baseline: the index of its colour, which no other method has, and the dash of its first run.
const REFERENCES = new Map([["local", [7, "dot"]], ["fedavg", [5, "longdash"]]]);

const state = { run: DATA.shown, frame: 0, client: null };
const redraws = [];          // each draws one chart anew from the state
const run = () => DATA.runs[state.run];
const federation = () => DATA.federations[run().federation];
const methodOf = (label) => DATA.methods.find((one) => one.label === label);
const title = (label) => methodOf(label).title;

function escaped(text) {
  return String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

function bytesOf(packed) {
  return Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
}

function words(packed) {
  const bytes = bytesOf(packed);
  return Uint16Array.from({ length: bytes.length / 2 }, (_, i) => bytes[2 * i] | (bytes[2 * i + 1] << 8));
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function narrow() {
  return window.innerWidth < 700;
}

// The metric that compares clients: a share is written as a percentage, and its differences in points.
const METRIC = DATA.metric;

function figure(value) {
  return METRIC.share ? percent(value) : value.toPrecision(4);
}

function percent(share, digits = 1) {
  return `${(100 * share).toFixed(digits)} %`;
}

function points(gain) {
  const sign = gain > 0 ? "+" : gain < 0 ? "−" : "";
  return METRIC.share ? `${sign}${Math.abs(100 * gain).toFixed(1)} points` : `${sign}${Math.abs(gain).toPrecision(3)}`;
}

function many(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

// Rounds of a recorded graph: an unchanged graph is not recorded again.
function roundsOf({ round, until }) {
  return until > round ? `rounds ${round} to ${until}` : `round ${round}`;
}

// New content of a place. The keyboard focus stays on the button of the same client, or else on the place.
function rewrite(place, html) {
  const held = place.contains(document.activeElement), client = document.activeElement?.dataset.client;
  place.innerHTML = html;
  if (held) (place.querySelector(`[data-client="${client}"]`) ?? place).focus({ preventScroll: true });
}

// A table as HTML. heads: names, ">" in front of those of columns of text. rows: cells as HTML, the first is the row's
// heading; a row may have a property `current`.
function tableOf(heads, rows) {
  const kind = heads.map((head) => (head.startsWith(">") ? ' class="text"' : ""));
  const head = heads.map((text, i) => `<th scope="col"${kind[i]}>${text.replace(/^>/, "")}</th>`).join("");
  const lines = rows.map((cells) => {
    const [first, ...others] = cells.map((cell, i) => (i ? `<td${kind[i]}>${cell}</td>` : `<th scope="row">${cell}</th>`));
    return `<tr${cells.current ? ' aria-current="true"' : ""}>${first}${others.join("")}</tr>`;
  });
  return `<table><thead><tr>${head}</tr></thead><tbody>${lines.join("")}</tbody></table>`;
}

const quiet = (text) => `<span class="quiet">${text}</span>`;

// Names of clients, of which only the first may be given, with the followed one marked. count: of all.
function clientNames(clients, count) {
  const { ids } = federation();
  const names = clients.map((client) => (client === state.client ? `<mark>${escaped(ids[client])}</mark>` : escaped(ids[client])));
  return names.join(", ") + (count > names.length ? ` ${quiet(`and ${(count - names.length).toLocaleString("en")} more`)}` : "");
}

// Groups are numbered from 0 in the data and from 1 on the page.
const groupName = (group) => `group ${group + 1}`;
const groupColour = (group) => COLOURS[group % COLOURS.length];
const groupFill = (group) => FILLS[Math.floor(group / COLOURS.length) % FILLS.length];
const groupSymbol = (group, shape) => SHAPES[shape % SHAPES.length] + groupFill(group);

function plantedNames() {
  const known = federation().planted.filter((group) => group !== null);
  return [...new Set(known)].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

// A filled shape has an outline; a yellow line cannot be seen on a light page.
const lineColour = (at) => (at === YELLOW && !dark() ? "#A39600" : COLOURS[at]);

function methodStyle(label) {
  const { method } = methodOf(label), own = REFERENCES.get(method);
  const like = DATA.methods.filter((one) => (own ? one.method === method : !REFERENCES.has(one.method)));
  const at = like.findIndex((one) => one.label === label);
  if (own) return { color: COLOURS[own[0]], dash: [own[1], ...DASHES][at % (DASHES.length + 1)] };
  const order = [0, 2, 3, 1, 4, YELLOW];
  // Six colours and four dashes repeat together after 12 methods: with one more dash, 24 are different.
  return { color: lineColour(order[at % order.length]), dash: DASHES[(at + Math.floor(at / 12)) % DASHES.length] };
}

function layout(more) {
  const ink = css("--ink"), grid = css("--grid");
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, fixedrange: narrow() };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
    font: { color: ink, family: "system-ui, sans-serif", size: 13 }, hoverlabel: { align: "left" },
    margin: { l: narrow() ? 44 : 60, r: 12, t: 12, b: 44 }, dragmode: narrow() ? false : "zoom",
    ...more,
    xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
    ...Object.fromEntries(Object.entries(more).filter(([key]) => /^[xy]axis\d/.test(key)).map(([key, own]) => [key, { ...axis, ...own }])),
  };
}

function draw(place, traces, more) {
  return Plotly.react(place, traces, layout(more), {
    // No mode bar: it covers the lines, and one of its buttons would send the chart elsewhere.
    responsive: true, displayModeBar: false, showLink: false, showSendToCloud: false,
  });
}

function redraw() {
  for (const part of redraws) part();
}

// -- theme ----------------------------------------------------------------------------------------------------

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameTheme() {
  COLOURS.splice(0, COLOURS.length, ...(dark() ? DARK_PAGE : LIGHT_PAGE));
  $("theme").textContent = dark() ? "Light" : "Dark";
}

$("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  nameTheme();
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { nameTheme(); redraw(); });

// -- the choice of method, seed and client --------------------------------------------------------------------

function options(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text]) => new Option(text, value, false, String(value) === String(chosen))));
}

function choose(label, seed) {
  const mine = DATA.runs.map((one, i) => [one, i]).filter(([one]) => one.label === label);
  const [, found] = mine.find(([one]) => one.seed === seed) || mine[0];
  const before = federation();
  const id = state.client === null ? null : before.ids[state.client];
  state.run = found;
  state.frame = Infinity;
  if (federation() !== before) state.client = id !== null && federation().ids.includes(id) ? federation().ids.indexOf(id) : null;
  fillChooser();
  redraw();
}

function fillChooser() {
  const { label, seed } = run();
  options($("method"), DATA.methods.map((method) => [method.label, method.title]), label);
  options($("seed"), DATA.runs.filter((one) => one.label === label).map((one) => [one.seed, one.seed]), seed);
  $("ids").replaceChildren(...federation().ids.map((id) => new Option(id)));
  $("follow").value = state.client === null ? "" : federation().ids[state.client];
}

function follow(client) {
  state.client = client;
  $("status").textContent = client === null ? "No client followed" : `Following ${federation().ids[client]}`;
  $("follow").value = client === null ? "" : federation().ids[client];
  redraw();
}

$("method").addEventListener("change", () => choose($("method").value, run().seed));
$("seed").addEventListener("change", () => choose(run().label, Number($("seed").value)));
$("unfollow").addEventListener("click", () => follow(null));
$("follow").addEventListener("change", () => {
  const at = federation().ids.indexOf($("follow").value.trim());
  follow(at < 0 ? null : at);
});

let width = window.innerWidth;
window.addEventListener("resize", () => {
  const crossed = (width < 700) !== narrow();
  width = window.innerWidth;
  if (crossed) redraw();
});
