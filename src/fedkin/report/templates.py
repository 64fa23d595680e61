"""The fixed parts of the report's sections as HTML; the page's script fills them."""

from __future__ import annotations

__all__ = [
    "CHOOSER",
    "CLIENTS",
    "CURVES",
    "FEATURES",
    "GAIN",
    "GRAPH",
    "INFLUENCE",
    "MATRIX",
    "MOVES",
    "PANEL",
    "RISKS",
    "SHARING",
    "TESTS",
    "UNDRAWN",
    "chart",
]


def chart(id: str, label: str, more: str = "") -> str:
    """The place of a chart, which the script draws; more: further CSS classes."""
    return f'<div class="chart {more}" id="{id}" role="img" aria-label="{label}"></div>'


PANEL = '<aside id="client" tabindex="-1" aria-label="The client that is followed"></aside>'

CURVES = f"""<div class="controls">
  <label>Show <select id="curve-y"></select></label>
  <fieldset id="curve-x"><legend>against</legend></fieldset>
</div>
<div class="legend" id="curve-legend" role="group" aria-label="Methods shown"></div>
{chart("curves", "Curves of the methods")}
<p class="note" id="curve-note"></p>"""

GRAPH = f"""<div class="beside">
  <div>
    <div class="controls slider">
      <button type="button" id="play" aria-label="Play the rounds">▶</button>
      <input type="range" id="round" min="0" max="0" value="0" aria-label="Round of the graph">
      <output id="round-text" for="round"></output>
    </div>
    {chart("graph-plot", "Clients as points, strong similarities as lines", "square")}
    <div class="legend" id="graph-legend"></div>
    <p class="note" id="graph-note"></p>
  </div>
  {PANEL}
</div>"""

MOVES = f"""<p id="moves-text"></p>
{chart("history", "Group of each client over the rounds")}
<p class="note" id="history-note"></p>
<div class="scroll" id="moves-table" tabindex="0" role="region" aria-label="Clients that moved most"></div>
<h3 id="communities-head">Groups, round by round</h3>
<div class="scroll" id="communities" tabindex="0" role="region" aria-labelledby="communities-head"></div>
<p><button type="button" id="communities-all" aria-pressed="false">All kept rounds</button></p>"""

TESTS = """<p id="tests-text"></p>
<div class="scroll" id="verdicts" tabindex="0" role="region" aria-label="Groups and their verdicts"></div>
<div id="tests-body">
  <h3 id="tests-head">The tree of tests</h3>
  <div class="scroll tree" id="tests-tree" tabindex="0" role="region" aria-labelledby="tests-head"></div>
  <p class="note" id="tests-note"></p>
</div>"""

MATRIX = f"""<div class="controls" id="matrix-controls">
  <label>Ordered by <select id="matrix-order"></select></label>
</div>
<p class="note" id="matrix-note"></p>
<div class="legend" id="matrix-legend"></div>
{chart("matrix-plot", "Similarity matrix")}"""

SHARING = f"""<p id="sharing-text"></p>
{chart("sharing-plot", "What clients have in common, and the learned weights after some rounds")}
<p class="note" id="sharing-note"></p>
<div class="legend" id="sharing-legend"></div>
{chart("sharing-curve", "Mean weight over the rounds, by what two clients have in common", "low")}"""

RISKS = f"""<div class="legend" id="risks-legend"></div>
<div class="pair even">
  <div>
    <h3>Calibration</h3>
    {chart("calibration-plot", "Share of events against predicted risk")}
  </div>
  <div>
    <h3>Decision curve</h3>
    {chart("decision-plot", "Net benefit of acting on risks above a threshold")}
  </div>
</div>
<p class="note">For the chosen seed. Calibration: groups of about equal size, by risk; the chosen method has Wilson’s
95 % intervals. On the dotted line risks are true. Decision curve: events found, less false alarms at the threshold’s
odds, per test sample (Vickers and Elkin, 2006); a model is of use where it is above both “treat all” and 0.</p>"""

INFLUENCE = f"""<p id="influence-text"></p>
<div class="controls" id="influence-controls"><label>Region <select id="influence-by"></select></label></div>
{chart("influence-plot", "Centrality of each client, by region")}
<p class="note" id="influence-note"></p>
<div class="scroll" id="influence-table" tabindex="0" role="region" aria-label="Influence by region"></div>"""

FEATURES = f"""<p id="features-text"></p>
<div class="controls" id="features-controls">
  <label>Round <select id="features-round"></select></label>
  <label>Show <select id="features-what"></select></label>
  <label>Colour by <select id="features-colour"></select></label>
</div>
<div class="pair" id="features-body">
  <div>
    {chart("features-plot", "Classes of clients in feature space", "square")}
    <div class="legend" id="features-legend"></div>
  </div>
  <div>
    <h3>Similarity of heads</h3>
    {chart("heads-plot", "Similarity of clients' heads")}
    <p class="note" id="heads-note"></p>
    <h3>How far apart kinds of points lie</h3>
    <div class="scroll" id="features-table" tabindex="0" role="region" aria-label="Silhouettes"></div>
  </div>
</div>
<p class="note" id="features-note"></p>"""

CHOOSER = """<div class="controls" id="chooser">
  <label>Method <select id="method"></select></label>
  <label>Seed <select id="seed"></select></label>
  <label>Follow client <input id="follow" list="ids" autocomplete="off" placeholder="name" size="14"></label>
  <datalist id="ids"></datalist>
  <button type="button" id="unfollow">Clear</button>
</div>"""

GAIN = f"""<p id="gain-text"></p>
{chart("gain", "Gain over training alone, client by client")}
<p class="note" id="gain-note"></p>"""

CLIENTS = """<details id="every-client"><summary>Every client as a table</summary>
<div class="scroll" id="clients-table" tabindex="0" role="region" aria-label="Every client"></div>
</details>"""

UNDRAWN = """<p class="note">The graphs of so many clients are not drawn here. They are in the run's folder
<code>graphs/</code>; <code>fedkin.graph.load_graph</code> reads them.</p>"""
