// The slider of rounds, and the first drawing of everything.
function showFrame(frame) {
  state.frame = Math.max(0, Math.min(frame, frames().length - 1));
  drawGraph();
  drawMatrix();
  if ($("influence-plot")) drawInfluence();
  if (state.client !== null) drawClient();
}

let playing = null;
function play() {
  const stop = playing !== null;
  if (stop) { clearInterval(playing); playing = null; }
  else {
    if (state.frame >= frames().length - 1) showFrame(0);
    playing = setInterval(() => { if (state.frame >= frames().length - 1) play(); else showFrame(state.frame + 1); }, 500);
  }
  $("play").textContent = stop ? "▶" : "❚❚";
  $("play").setAttribute("aria-label", stop ? "Play the rounds" : "Stop");
}

if ($("graph-plot")) {
  state.frame = Infinity;
  $("round").addEventListener("input", () => showFrame(Number($("round").value)));
  $("play").addEventListener("click", play);
  redraws.unshift(() => { drawGraph(); if (run().graph) clicks("graph-plot", (point) => point.customdata); });
}
// Sections for which the chosen run has nothing are left out, with their links.
const FILLED = {
  influence: () => frames().some((frame) => frame.values.centrality), matrix: () => run().graph, moves: () => run().graph?.history,
  sharing: () => run().sharing, features: () => run().features, tests: () => run().graph?.verdicts, risks: () => run().risks,
};
redraws.unshift(() => {
  for (const [id, filled] of Object.entries(FILLED)) {
    for (const part of document.querySelectorAll(`section#${id}, nav a[href="#${id}"]`)) part.hidden = !filled();
  }
});
// A table that is wider than the screen says so.
function cue() {
  for (const place of document.querySelectorAll(".scroll")) place.toggleAttribute("data-wide", place.scrollWidth > place.clientWidth + 1);
}
redraws.push(cue);
addEventListener("resize", cue);
nameTheme();
fillChooser();
redraw();
document.documentElement.dataset.drawn = "yes";
