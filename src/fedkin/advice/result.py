"""An advice: the recommendation for each client and how sure it is, in words, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkin.advice.candidates import CANDIDATES, Shape
from fedkin.advice.choice import LEVEL, SURE, SURELY, Estimate
from fedkin.advice.partners import MOST, PartnerValues, interval
from fedkin.analysis.paired import Difference
from fedkin.codec import Params
from fedkin.graph.record import own_part
from fedkin.learning.net import Net
from fedkin.methods.given import Given
from fedkin.tasks import Task

_NAMED = 8


@dataclass(frozen=True)
class OfClient:
    """The recommendation for one client.

    has: number of its training samples, or of its events. unknown: what it has too few of; None if there is a verdict.
    partners: clients that share a model with it in the best collaboration, even if none of them should use it. takes:
    whether it should use that model. gain: of that model over training alone, from validation (None: it shares with
    nobody, or has too few samples). whole: the gain of one model for all. test: the gain on test samples, which no
    choice has seen.
    """

    id: str
    samples: int
    has: str
    unknown: str | None
    partners: tuple[str, ...]
    takes: bool
    gain: Estimate | None
    whole: Estimate | None
    test: Difference | None

    @property
    def advice(self) -> str:
        """The recommendation in words."""
        if self.unknown is not None:
            return f"not known: {self.unknown}"
        if self.takes:
            many = len(self.partners)
            return f"train with {join_names(self.partners) if many <= _NAMED else f'{many} others'}"
        if not self.partners:
            return "train alone"
        return "use a local model: " + ("hurt by sharing" if self.gain and self.gain.hurt else "no sure gain")


@dataclass(frozen=True, eq=False)
class Advice:
    """Which clients should train together.

    candidate: the recommended one, a name of CANDIDATES; judged: the best collaboration, even if nobody should take it.
    shape: which clients share a model. method: what trains the shape. rate, own_rate: learning rates of shared models,
    and of models of one client. stable: the number of the `folds` choices, each without one fold, that chose the same
    candidate. left_out: parts of the usual plan that were not tried, in words. models: each client's final model,
    trained on all training samples; alone, shared: the two models that each client could use.
    """

    name: str
    task: Task
    clients: tuple[OfClient, ...]
    candidate: str
    judged: str
    shape: Shape
    method: Given
    rate: float
    own_rate: float
    rates: tuple[float, ...]
    stable: int
    models: Mapping[str, Params]
    alone: Mapping[str, Params]
    shared: Mapping[str, Params]
    net: Net
    folds: int = 0
    missing: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    worth: PartnerValues | None = None

    def __getitem__(self, id: str) -> OfClient:
        return next(client for client in self.clients if client.id == id)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The groups of clients that train together, sorted."""
        return tuple(sorted(self.shape.groups))

    @property
    def shares(self) -> bool:
        """Whether any clients should share a model."""
        return bool(self.shape.groups or self.shape.near)

    @property
    def sentence(self) -> str:
        """The recommendation in one sentence: what to do, how sure that is, and which clients could not be judged."""
        judged = [client for client in self.clients if client.unknown is None]
        takes = [client.id for client in judged if client.takes]
        if takes:
            only = f", used by {takes[0]} only" if len(takes) == 1 else ""
            parts = self._how_sure(takes, [self._what_to_train(len(judged)) + only, *self._local_models(judged)])
        elif len(judged) > 1:
            parts = [f"Train alone: all {len(judged)} clients that could be judged"]
        else:
            parts = ["Train alone"]
        unknown = {client.id: client.unknown for client in self.clients if client.unknown is not None}
        if unknown:
            reasons = ", ".join(list(unknown.values())[:_NAMED])
            parts.append(f"nothing can be said yet about {join_names(list(unknown))} ({reasons})")
        return "; ".join(parts) + "."

    def _what_to_train(self, judged: int) -> str:
        """Name the shared models; judged: number of clients that could be judged."""
        if self.shape.near:
            what = f"Average {len(self.shape.near)} clients' models with those of their own neighbours"
        elif [len(members) for members in self.groups] == [judged]:
            what = f"Train one model for all {judged} clients that could be judged"
        else:
            groups = "; ".join(f"{join_names(members)} together" for members in self.groups)
            what = f"Train {len(self.groups)} group{'s' * (len(self.groups) != 1)}: {groups}"
        own = own_part(self.method.pull_weights, self.method.pull_bias, self.method.own_body)
        return f"{what}, with {own}" if own else what

    def _local_models(self, judged: Sequence[OfClient]) -> list[str]:
        """Parts of the sentence about clients that use a local model: alone, or beside their group's model."""
        alone, apart, beside = list[str](), list[str](), list[str]()
        for client in judged:
            if not client.partners:
                alone.append(client.id)
            elif not self.shape.partners(client.id):
                apart.append(client.id)
            elif not client.takes:
                beside.append(client.id)
        parts = []
        if alone:
            parts.append(f"{join_names(alone)} alone")
        if apart:
            parts.append(f"{join_names(apart)} alone, as sharing brings no sure gain")
        if len(beside) == 1:
            parts.append(f"{beside[0]} trains with its group, but uses a local model (no sure gain)")
        elif beside:
            parts.append(f"{join_names(beside)} train with their group, but use local models (no sure gain)")
        return parts

    def _how_sure(self, takes: Sequence[str], parts: list[str]) -> list[str]:
        """The parts of the sentence, with how sure it is that clients with a shared model gain."""
        sure = [client.id for client in self.clients if client.gain is not None and client.gain.low > 0]
        likely = [id for id in takes if id not in sure]
        if len(likely) == len(takes):
            many = "both" if len(takes) == 2 else f"all {len(takes)}"
            contain = "the interval of the gain contains" if len(takes) == 1 else f"{many} intervals of gains contain"
            return [f"Likely, but not sure ({contain} 0): {parts[0][0].lower()}{parts[0][1:]}", *parts[1:]]
        if likely:
            return [*parts, f"the gain of {join_names(likely)} is likely, but not sure"]
        return parts

    @property
    def why(self) -> str:
        """What was judged, and on which data."""
        differs = f"; what differs between clients: {', '.join(self.shape.differs)}" if self.shape.differs else ""
        return (
            f"Judged on training samples held out in {self.folds} folds, never on test samples: "
            f"{CANDIDATES[self.judged]} was the best collaboration on all folds, "
            f"and in {self.stable} of {self.folds} choices that leave out one fold"
            f"{differs}. A client shares a model only if it gains with a probability of at least {SURE:.0%} "
            f"({SURELY:.0%} if it is not sure that the clients that could share it gain on average)."
        )

    @property
    def notes(self) -> list[str]:
        """Further notes: which clients one model for all would hurt, and what could not be tried."""
        hurt = [client.id for client in self.clients if client.whole is not None and client.whole.hurt]
        notes = []
        if hurt and self.candidate != "all":
            notes.append(f"One model for all would hurt {join_names(hurt)} (interval below 0).")
        if self.left_out:
            notes.append(f"Within the budget, {'; '.join(self.left_out)}.")
        return [*notes, self._partner_note(), *(f"Not tried: {why}." for why in self.missing)]

    def _partner_note(self) -> str:
        if self.worth is None:
            judged = sum(client.unknown is None for client in self.clients)
            how = f"it can be for at most {MOST} clients" if judged > MOST else "--partners does it"
            return f"What each partner adds was not computed: {how}."
        return (
            "What partners add is an estimate: of coalitions' models on the same folds, averaged over "
            f"{'all coalitions' if self.worth.exact else 'coalitions drawn at random'} (Shapley value). "
            f"* marks what holds for all {self.worth.edges} pairs of a client and a partner at once ({LEVEL:.0%})."
        )

    def partner_tables(self) -> list[dict[str, Any]]:
        """Two tables with title, heads and rows: what partners add to each client, and what each adds on average."""
        worth = self.worth
        if worth is None or not worth.adds:
            return []
        metric, unit = self.task.metric.title, ", in points" if self.task.metric.share else ""
        ids = sorted(worth.adds)
        by_value = sorted(ids, key=lambda id: -worth.of_partner(id)[0].value)
        interval = f"[{LEVEL:.0%}]{unit}"
        return [
            {
                "title": f"Who helps whom: what a partner (column) adds to a client (row), {metric}{unit}",
                "heads": ["client", *ids, f"its group {interval}", f"all others {interval}"],
                "rows": [self._client_row(worth, id) for id in ids],
            },
            {
                "title": f"What each partner adds to others on average, {metric}",
                "heads": ["partner", f"adds {interval}", f"added last {interval}", "helps*", "hurts*"],
                "rows": [self._partner_row(worth, id) for id in by_value],
            },
        ]  # fmt: skip

    def _client_row(self, worth: PartnerValues, id: str) -> list[str]:
        """What each partner, its group and all others add to a client."""
        cells = dict.fromkeys(sorted(worth.adds), "")
        for partner in cells.keys() - {id}:
            value = self._text(worth.adds[id][partner]).partition(" [")[0]
            cells[partner] = value + "*" * bool(worth.verdict(id, partner))
        return [id, *cells.values(), self._text(worth.groups.get(id)), self._text(worth.everybody[id])]

    def _partner_row(self, worth: PartnerValues, id: str) -> list[str]:
        """What a partner adds to others on average, and how many it significantly helps and hurts."""
        verdicts = [worth.verdict(client, id) for client in worth.adds if client != id]
        means = [self._text(one, len(worth.adds)) for one in worth.of_partner(id)]
        return [id, *means, str(verdicts.count("helps")), str(verdicts.count("hurts"))]

    def rows(self) -> list[list[str]]:
        """The table's rows: client, what it has, advice, and gains: by sharing, by one model for all, on test data."""
        return [
            [client.id, client.has, client.advice, *map(self._text, (client.gain, client.whole, client.test))]
            for client in self.clients
        ]

    @property
    def heads(self) -> list[str]:
        """The heads of `rows`."""
        metric = self.task.metric
        gain = f"{'gain' if metric.higher else 'fall'} in {metric.title} [{LEVEL:.0%}]"
        gain += ", in points" if metric.share else ""
        return ["client", "has", "advice", gain, "one model for all", "on test samples"]

    def _text(self, one: Estimate | Difference | None, comparisons: int = 1) -> str:
        """A gain with its interval, in points for a share; comparisons: number of intervals that hold at once."""
        if one is None or one.value is None:
            return ""
        scale, form = (100.0, "{:+.1f}") if self.task.metric.share else (1.0, "{:+.3g}")
        value = form.format(scale * one.value)
        low, high = interval(one, comparisons) if isinstance(one, Estimate) else (one.low, one.high)
        if low is None or high is None:
            return value
        return f"{value} [{form.format(scale * low)}, {form.format(scale * high)}]"

    def to_json(self) -> dict[str, Any]:
        """Everything except models, as plain data."""
        return {
            "name": self.name, "sentence": self.sentence, "why": self.why, "candidate": self.candidate,
            "judged": self.judged, "metric": self.task.metric.name, "level": LEVEL, "folds": self.folds,
            "stable": self.stable, "rates": list(self.rates), "rate": self.rate, "own_rate": self.own_rate,
            "pull_weights": self.method.pull_weights, "pull_bias": self.method.pull_bias,
            "own_body": self.method.own_body, "differs": list(self.shape.differs), "notes": self.notes,
            "groups": [list(members) for members in self.groups],
            "near": {id: list(others) for id, others in self.shape.near}, "missing": list(self.missing),
            "clients": [_as_dict(client) for client in self.clients],
            "partners": None if self.worth is None else _worth_as_dict(self.worth),
        }  # fmt: skip


def _worth_as_dict(worth: PartnerValues) -> dict[str, Any]:
    """Plain data of `worth`; intervals of pairs hold for all pairs at once, those of partners for all partners."""

    def with_interval(one: Estimate, comparisons: int = 1) -> dict[str, float]:
        return dict(zip(("value", "low", "high"), (one.value, *interval(one, comparisons)), strict=True))

    pairs = [
        {
            "client": client, "partner": partner, **with_interval(one, worth.edges),
            "verdict": worth.verdict(client, partner), "added_last": worth.last[client][partner].value,
        }
        for client, row in sorted(worth.adds.items()) for partner, one in sorted(row.items())
    ]  # fmt: skip
    each = {}
    for id in sorted(worth.adds):
        adds, last = worth.of_partner(id)
        each[id] = {"adds": with_interval(adds, len(worth.adds)), "added_last": with_interval(last, len(worth.adds))}
    return {
        "exact": worth.exact, "pairs": pairs, "partners": each,
        "groups": {id: with_interval(one) for id, one in sorted(worth.groups.items())},
        "all_others": {id: with_interval(one) for id, one in sorted(worth.everybody.items())},
    }  # fmt: skip


def _as_dict(client: OfClient) -> dict[str, Any]:
    def interval(one: Estimate | Difference | None) -> dict[str, Any] | None:
        return None if one is None else {"value": one.value, "low": one.low, "high": one.high}

    test = interval(client.test)
    return {
        "id": client.id, "samples": client.samples, "has": client.has, "advice": client.advice,
        "known": client.unknown is None, "takes": client.takes, "partners": list(client.partners),
        "gain": interval(client.gain), "one_model_for_all": interval(client.whole),
        "test": None if test is None or client.test is None else test | {"n": client.test.n},
    }  # fmt: skip


def join_names(ids: Sequence[str]) -> str:
    """Names in a sentence, at most 8 of them.

    >>> join_names(["b", "a", "c"]), join_names(["a", "b"])
    ('a, b and c', 'a and b')
    """
    names = sorted(ids)
    if len(names) > _NAMED:
        return f"{', '.join(names[: _NAMED - 2])} and {len(names) - _NAMED + 2} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
