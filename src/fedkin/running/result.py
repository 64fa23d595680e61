"""What a run returns: its figures, per client and per round, and its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

from fedkin.analysis.intervals import LEVEL, Interval
from fedkin.analysis.paired import Difference, Outcomes, Verdict, counted_interval, figure_interval, verdicts
from fedkin.engines import Outcome, Score
from fedkin.engines.base import SERVER
from fedkin.errors import ConfigError, nearest
from fedkin.flow import Params
from fedkin.graph import Graph, load_graph
from fedkin.records import metrics
from fedkin.records.outcomes import outcomes_of
from fedkin.records.tables import flat
from fedkin.tasks import Metric

__all__ = ["Result", "by_client", "framed", "latex_text"]

# Tasks with more than one figure for each client, by the first of them.
_FIGURES = {"auc": ("auc", "average_precision")}


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run: summary, a row per round, a row per client and round, graphs, and models.

    clients: (round, client, n, loss, accuracy or the task's other figures) tuples. messages: (round, from, to, phase,
    bytes, floats, why it is missing) tuples. scores: those of the last evaluation, by client id. models: the final
    parameters of each client, without frozen ones, which are in the net; of a run that was read from its folder, or is
    one of a comparison with a folder, they are read on use (empty if none were kept). unseen: ids of clients that never
    took part. learned: graphs by the round in which they changed, of a run without a folder.
    """

    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    clients: list[tuple[Any, ...]]
    messages: list[tuple[int, str, str, str, int, int, str]]
    scores: dict[str, Score]
    outcome: Outcome | None = None
    models: Mapping[str, Params] = field(default_factory=dict)
    folder: Path | None = None
    unseen: tuple[str, ...] = ()
    learned: Mapping[int, Graph] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """Mean over clients of the test accuracy in the last round; nan without test samples, or for other metrics."""
        return float(self.summary.get("accuracy", {}).get("mean", float("nan")))

    @property
    def metric(self) -> Metric:
        """The metric of this run."""
        return metrics.metric_of(self.summary)

    @cached_property
    def values(self) -> dict[str, float]:
        """The metric of each client that takes part and has it, after the last evaluation."""
        known = {id: metrics.value_of(one) for id, one in sorted(self.scores.items()) if id not in self.unseen}
        return {id: value for id, value in known.items() if value is not None}

    @cached_property
    def graph(self) -> Graph | None:
        """The last graph between clients, read from the run's folder if it has one; None of a method without graphs."""
        if self.folder is not None:
            files = sorted((self.folder / "graphs").glob("round-*.npz"))
            return load_graph(files[-1]) if files else None
        return self.learned[max(self.learned)] if self.learned else None

    @property
    def groups(self) -> dict[str, int]:
        """The group of each client in the last graph, by client id; empty of a method without groups."""
        return dict(self.graph.groups or {}) if self.graph is not None else {}

    @property
    def metrics(self) -> dict[str, dict[str, float | None]]:
        """The further metrics (`run.metrics`) of each client after the last round, by their names; else empty."""
        return {name: dict(found["values"]) for name, found in (self.summary.get("metrics") or {}).items()}

    @property
    def value(self) -> float:
        """Mean over clients of the metric in the last round; nan if it is not known for any client."""
        return float(self.summary[self.metric.name].get("mean", float("nan")))

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"Result({self.summary['method']!r}, {told})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._facts().items()
        )
        return f"<table><caption>{escape(str(self.summary['method']))}</caption>{rows}</table>"

    def _facts(self) -> dict[str, str]:
        """What a person wants to know first, in a line each."""
        figures, metric, groups = self.summary[self.metric.name] or {}, self.metric, self.summary.get("groups") or {}
        found = {
            "clients": f"{self.summary['clients']:,}",
            "rounds": f"{self.summary['rounds']:,}",
            "seed": str(self.summary["seed"]),
            metric.title: _short(figures.get("mean")),
            "worst 10 %": _short(figures.get("worst10")),
            "groups": "" if groups.get("found") is None else str(groups["found"]),
            "MB sent": f"{sum(message[4] for message in self.messages) / 1e6:,.1f}",
            "folder": "" if self.folder is None else str(self.folder),
        }
        return {name: value for name, value in found.items() if value}

    def to_frame(self, what: Literal["last", "clients", "rounds", "messages"] = "last") -> Any:
        """A table of the run: a pandas DataFrame, or an Arrow table where pandas is not installed.

        last: a row per client, with its test samples, loss, figures and further metrics after the last round. clients:
        its figures in every evaluated round. rounds: a row per round, with columns such as "accuracy.mean".
        messages: a row per message. Raises ConfigError for another name.
        """
        if what == "rounds":
            lines = [flat(row) for row in self.rounds]
            names = list(dict.fromkeys(name for line in lines for name in line))
            columns = {name: [line.get(name) for line in lines] for name in names}
        elif what == "messages":
            columns = _columns(("round", "from", "to", "phase", "bytes", "floats", "missing"), self.messages)
        elif what in ("last", "clients"):
            last = max((row[0] for row in self.clients), default=0)
            rows = [row for row in self.clients if what == "clients" or row[0] == last]
            figures = _FIGURES.get(self.metric.name, (self.metric.name,))
            columns = _columns(("round", "client", "n", "loss", *figures), rows)
            for name, values in self.metrics.items() if what == "last" else ():
                columns[name] = [values.get(id) for id in columns["client"]]
        else:
            raise ConfigError(
                f"to_frame: no table {what!r}; {nearest(what, ('last', 'clients', 'rounds', 'messages'))}"
            )
        return framed(columns)

    def to_latex(self) -> str:
        """The figures of this run as a table in LaTeX (booktabs): mean, worst 10 % and 20 %, deviation, bytes."""
        figures, share = self.summary[self.metric.name] or {}, self.metric.share
        heads = [self.metric.title, "worst 10\\,\\%", "worst 20\\,\\%", "std", "MB sent"]
        sent = f"{sum(message[4] for message in self.messages) / 1e6:,.1f}"
        cells = [_latex_number(figures.get(name), share) for name in ("mean", "worst10", "worst20", "std")]
        return "\n".join(
            [
                r"\begin{tabular}{lrrrrr}", r"\toprule", f"method & {' & '.join(heads)} \\\\", r"\midrule",
                f"{latex_text(str(self.summary['method']))} & {' & '.join([*cells, sent])} \\\\", r"\bottomrule",
                r"\end{tabular}", "",
            ]
        )  # fmt: skip

    def plot(self) -> Any:
        """The metric over the rounds, its mean and its worst 10 % of clients, as a figure of plotly."""
        import plotly.graph_objects as go

        rows = [row for row in self.rounds if row.get(self.metric.name)]
        rounds, figure = [row["round"] for row in rows], go.Figure()
        for key, title in (("mean", "mean over clients"), ("worst10", "worst 10 %")):
            values = [row[self.metric.name].get(key) for row in rows]
            if any(value is not None for value in values):
                figure.add_scatter(x=rounds, y=values, name=title, mode="lines+markers" if len(rounds) < 3 else "lines")
        title = f"{self.summary['method']}, seed {self.summary['seed']}"
        figure.update_layout(title=title, xaxis_title="round", yaxis_title=self.metric.title)
        return figure

    def bytes_by_client(self) -> dict[str, dict[str, int]]:
        """Return {client id: {"up": bytes sent, "down": bytes received}} over the whole run."""
        return by_client(self.messages, self.scores)

    @cached_property
    def outcomes(self) -> dict[str, Outcomes]:
        """What each client's model did on each of its test samples in the last evaluation, by client id.

        Empty for runs of earlier versions, and over a network, where this stays with the participants.
        """
        return outcomes_of(self.metric, self.scores)

    def intervals(self, level: float = LEVEL) -> dict[str, Interval]:
        """Return the interval of the metric of each client that is known well enough to have one.

        Over a network, and in runs of earlier versions, an accuracy has the interval of its counts.
        """
        name = self.metric.name
        each = {id: figure_interval(name, one, level) for id, one in self.outcomes.items()}
        if not self.outcomes:
            values = {id: metrics.value_of(score) for id, score in sorted(self.scores.items())}
            each = {
                id: counted_interval(name, value, self.scores[id].n, level)
                for id, value in values.items() if value is not None
            }  # fmt: skip
        return {id: found for id, found in each.items() if found is not None}

    def difference(
        self, other: Result, level: float = LEVEL, correction: str = "none"
    ) -> dict[str, tuple[Difference, Verdict]]:
        """Return how much better each client is here than in `other`, on the same test samples, with its verdict.

        Clients whose outcomes only one of the runs has are left out. See `fedkin.analysis.paired.verdicts`. Raises
        ValueError if the runs' test samples differ.
        """
        pairs = {id: (one, other.outcomes[id]) for id, one in self.outcomes.items() if id in other.outcomes}
        return verdicts(self.metric.name, pairs, level, correction)


def framed(columns: Mapping[str, list[Any]]) -> Any:
    """Return columns as a pandas DataFrame, or as an Arrow table where pandas is not installed."""
    try:
        import pandas
    except ModuleNotFoundError:
        import pyarrow

        return pyarrow.table(dict(columns))
    return pandas.DataFrame(columns)


def _columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {name: [row[at] if at < len(row) else None for row in rows] for at, name in enumerate(names)}


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _latex_number(value: float | None, share: bool) -> str:
    return "--" if value is None else f"{100 * value:.1f}" if share else f"{value:.4g}"


def latex_text(text: str) -> str:
    """Text in which nothing is a command of LaTeX."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def by_client(messages: Iterable[tuple[Any, ...]], ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return {client id: {"up": bytes sent, "down": bytes received}} of these messages."""
    total = {id: {"up": 0, "down": 0} for id in sorted(ids)}
    for _, sender, receiver, _, size, *_ in messages:
        for id, way in ((sender, "up"), (receiver, "down")):
            if id != SERVER:
                total[id][way] += size
    return total
