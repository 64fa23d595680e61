"""An advice: what is recommended to each client, how sure that is, in words, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedkin.advice.candidates import CANDIDATES, Shape
from fedkin.advice.choice import LEVEL, SURE, SURELY, Estimate
from fedkin.analysis.paired import Difference
from fedkin.codec import Params
from fedkin.learning.net import Net
from fedkin.methods.given import Given
from fedkin.tasks import Task

__all__ = ["Advice", "OfClient", "named"]

_NAMED = 8


@dataclass(frozen=True)
class OfClient:
    """What is recommended to one client.

    has: its training samples, or its events. unknown: what it has too few of; None if a verdict is given. partners: who
    shares a model with it in what was judged best. takes: whether it should use that model. gain: of that model over
    training alone, from validation (None: it shares with nobody, or too little is known). whole: that of one model for
    all. test: the gain on test samples, which no choice has seen.
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
        """In words: what to do."""
        if self.unknown is not None:
            return f"not known: {self.unknown}"
        if self.takes:
            return f"train with {named(self.partners)}"
        if not self.partners:
            return "train alone"
        return "train alone: hurt by sharing" if self.gain and self.gain.hurt else "train alone: no sure gain"


@dataclass(frozen=True, eq=False)
class Advice:
    """Who should train with whom.

    candidate: what is recommended, a name of CANDIDATES; judged: the best collaboration, which is judged even if nobody
    should take it. shape: who shares a model. method: what trains it. rate, own_rate: of shared models, and of models
    of one client. stable: in so many of `folds` choices on the other folds the candidate was the same. left_out: what
    was not tried of the usual plan, in words. models: those of the end, on all training samples; alone, shared: the two
    that each client could use.
    """

    name: str
    task: Task
    clients: tuple[OfClient, ...]
    candidate: str
    judged: str
    shape: Shape
    differs: tuple[str, ...]
    method: Given
    rate: float
    own_rate: float
    folds: int
    rates: tuple[float, ...]
    stable: int
    missing: tuple[str, ...]
    models: Mapping[str, Params]
    alone: Mapping[str, Params]
    shared: Mapping[str, Params]
    net: Net
    left_out: tuple[str, ...] = ()

    def __getitem__(self, id: str) -> OfClient:
        return next(client for client in self.clients if client.id == id)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The groups of clients that train together, sorted."""
        return tuple(sorted(members for members, _ in self.shape.groups))

    @property
    def sentence(self) -> str:
        """The recommendation in one sentence."""
        parts = []
        known = [client for client in self.clients if client.unknown is None]
        takes = [client for client in known if client.takes]
        alone = [client.id for client in known if not client.partners or not self._together]
        beside = [client.id for client in known if client.partners and not client.takes and self._together]
        if not takes:
            parts.append(
                f"Train alone: all {len(known)} clients that could be judged" if len(known) > 1 else "Train alone"
            )
        elif self.shape.near:
            parts.append(f"Average {len(self.shape.near)} clients' models with those of their own neighbours")
        elif len(self.groups) == 1 and len(self.groups[0]) == len(known):
            parts.append(f"Train one model for all {len(known)} clients that could be judged")
        else:
            count = len(self.groups)
            told = "; ".join(f"{named(members)} together" for members in self.groups)
            parts.append(f"Train {count} group{'s' * (count != 1)}: {told}")
        if takes and alone:
            parts.append(f"{named(alone)} alone")
        if beside:
            parts.append(f"{named(beside)} keep{'s' * (len(beside) == 1)} a local model beside it")
        unknown = [client for client in self.clients if client.unknown is not None]
        if unknown:
            told = ", ".join(str(client.unknown) for client in unknown[:_NAMED])
            parts.append(f"for {named([client.id for client in unknown])} nothing can be said yet ({told})")
        return "; ".join(parts) + "."

    @property
    def _together(self) -> bool:
        return bool(self.shape.groups or self.shape.near)

    @property
    def why(self) -> str:
        """What was judged, and on what."""
        differs = f"; what differs between clients: {', '.join(self.differs)}" if self.differs else ""
        return (
            f"Judged on training samples held out in {self.folds} folds, never on test samples: "
            f"{CANDIDATES[self.judged]} was the best collaboration on all folds, "
            f"and in {self.stable} of {self.folds} choices without one of them"
            f"{differs}. A client shares a model only if it gains with a probability of at least {SURE:.0%}, "
            f"and where all that could share do not gain on average, {SURELY:.0%}."
        )

    @property
    def notes(self) -> list[str]:
        """What else a reader should know: who one model for all would hurt, and what could not be tried."""
        hurt = [client.id for client in self.clients if client.whole is not None and client.whole.hurt]
        found = []
        if hurt and self.candidate != "all":
            found.append(f"One model for all would hurt {named(hurt)} (interval below 0).")
        if self.left_out:
            found.append(f"Within the budget, {'; '.join(self.left_out)}.")
        return found + [f"Not tried: {why}." for why in self.missing]

    def rows(self) -> list[list[str]]:
        """The table: client, what it has, advice, gain with its interval, with one model for all, on test samples."""
        return [
            [client.id, client.has, client.advice, self._said(client.gain), self._said(client.whole),
             self._tested(client.test)]
            for client in self.clients
        ]  # fmt: skip

    @property
    def heads(self) -> list[str]:
        """The heads of `rows`."""
        metric = self.task.metric.title
        unit = ", in points" if self.task.metric.share else ""
        return [
            "client",
            "has",
            "advice",
            f"gain in {metric} [{LEVEL:.0%}]{unit}",
            "one model for all",
            "on test samples",
        ]

    def _said(self, one: Estimate | None) -> str:
        return "" if one is None else _interval(one.value, one.low, one.high, self.task.metric.share)

    def _tested(self, found: Difference | None) -> str:
        if found is None or found.value is None:
            return ""
        if found.low is None or found.high is None:
            return _interval(found.value, None, None, self.task.metric.share)
        return _interval(found.value, found.low, found.high, self.task.metric.share)

    def to_json(self) -> dict[str, Any]:
        """All but models, as plain data."""
        return {
            "name": self.name, "sentence": self.sentence, "why": self.why, "candidate": self.candidate,
            "judged": self.judged, "metric": self.task.metric.name, "level": LEVEL, "folds": self.folds,
            "stable": self.stable, "rates": list(self.rates), "rate": self.rate, "own_rate": self.own_rate,
            "differs": list(self.differs), "notes": self.notes, "groups": [list(members) for members in self.groups],
            "near": {id: list(others) for id, others in self.shape.near}, "missing": list(self.missing),
            "clients": [_as_dict(client) for client in self.clients],
        }  # fmt: skip


def _as_dict(client: OfClient) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": client.id, "samples": client.samples, "has": client.has, "advice": client.advice,
        "known": client.unknown is None, "takes": client.takes, "partners": list(client.partners),
    }  # fmt: skip
    for name, one in (("gain", client.gain), ("one_model_for_all", client.whole)):
        told[name] = None if one is None else {"value": one.value, "low": one.low, "high": one.high}
    test = client.test
    told["test"] = None if test is None else {"value": test.value, "low": test.low, "high": test.high, "n": test.n}
    return told


def named(ids: Sequence[str]) -> str:
    """Names in a sentence, at most 8 of them.

    >>> named(["b", "a", "c"]), named(["a", "b"])
    ('a, b and c', 'a and b')
    """
    told = sorted(ids)
    if len(told) > _NAMED:
        return f"{', '.join(told[: _NAMED - 2])} and {len(told) - _NAMED + 2} more"
    return " and ".join([", ".join(told[:-1]), told[-1]]) if len(told) > 1 else "".join(told)


def _interval(value: float, low: float | None, high: float | None, share: bool) -> str:
    scale, form = (100.0, "{:+.1f}") if share else (1.0, "{:+.3g}")
    told = form.format(scale * value)
    return told if low is None or high is None else f"{told} [{form.format(scale * low)}, {form.format(scale * high)}]"
