"""The server of a federation over a network: the rounds of a simulation, with clients at the other ends of links."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedkin import codec
from fedkin.engines import wire
from fedkin.engines.base import Outcome, Score
from fedkin.engines.failures import Failure, TooFew, words_of
from fedkin.engines.observer import Observer
from fedkin.engines.remote import Remote
from fedkin.engines.roster import Roster
from fedkin.engines.rounds import Rounds
from fedkin.engines.setup import Plan
from fedkin.errors import MethodError, RunError
from fedkin.flow import Message, Params
from fedkin.learning.measures import LARGEST
from fedkin.network.link import LinkError, Missed
from fedkin.network.registration import Hall
from fedkin.network.status import Progress, weights_of
from fedkin.network.watched import WatchedDoor
from fedkin.tasks import Task
from fedkin.untrusted import said, shown
from fedkin.views import no_public_data

if TYPE_CHECKING:
    from fedkin.data import Dataset

__all__ = ["NetworkEngine", "NetworkSite", "is_score"]

_ROOM = 1 << 20  # bytes of an answer beside its message
_SLICE = 0.5  # seconds of one look for an answer
_PHASES = 200  # phases, and fields, of which a client says that it sends them
_END = 5.0  # seconds in which clients hear that the run has ended


class NetworkSite(Remote):
    """The clients at the other ends of links. Their states, models and features stay with them."""

    def __init__(self, plan: Plan, hall: Hall, stopping: Callable[[], bool]) -> None:
        super().__init__(plan.net, sorted(hall.guests))
        self.plan, self.hall, self.link, self.stopping = plan, hall, hall.link, stopping
        self.number = self.begun = 0
        # Rounds that were undone; and the last round in which each client answered a phase.
        self.undone: list[int] = []
        self.last: dict[str, int] = {}
        # What each client says that it has released under [privacy]; it never becomes less.
        self.spent: dict[str, dict[str, Any]] = {}
        self.away: set[str] = set()
        self.pool = ThreadPoolExecutor(max(len(self.ids), 1), thread_name_prefix="client")
        self.most = int(plan.engine.message_limit_mb * 2**20) + _ROOM

    # -- what a site is asked -------------------------------------------------------------------------------------

    def turn_to(self, number: int) -> None:
        self.number, self.parts = number, {}
        self.total.reset()

    def undo(self) -> None:
        self.undone.append(self.number)

    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        self.number = self.begun = number

    @property
    def states(self) -> Mapping[str, dict[str, Any]]:
        return {}

    def models(self, offers: Mapping[str, Message]) -> dict[str, Params]:
        return {}

    def features(self, id: str, offer: Message) -> Message:
        return Message()

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        found = super().scores(offers)
        task, further, guests = self.plan.task, len(self.plan.measures), self.hall.guests
        wrong = [id for id, score in found.items() if not is_score(score, task, further, guests[id].n_test)]
        for id in wrong:
            self.link.refused.add(id, "evaluate", "not a score")
            self.failures.append(self._failure(id, "evaluate", "refused", "not a score"))
        risk = task.kind == "risk"
        return {id: score._replace(outcomes=b"", digest=() if risk else score.digest)
                for id, score in found.items() if id not in wrong}  # fmt: skip

    # -- orders and answers ---------------------------------------------------------------------------------------

    def each(self, what: str, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        if not asked:
            return {}
        self._await_somebody(asked)
        phase = str(next(iter(asked.values())).get("phase", "evaluate"))
        until = time.monotonic() + self.hall.network.deadline
        jobs = {id: self.pool.submit(self._one, id, {"what": what, **asked[id]}, phase, until) for id in asked}
        told = {id: job.result() for id, job in jobs.items()}
        answers = {}
        for id, answer in told.items():
            if isinstance(answer, Failure):
                self.failures.append(answer)
                continue
            self.failures += answer[1]
            answers[id] = answer[0]
            if "work" in answer[0]:
                self.counted(id, answer[0]["work"])
            if what == "ask":
                self.last[id] = self.number
        return answers

    def _one(
        self, id: str, fields: Mapping[str, Any], phase: str, until: float, grace: float | None = None
    ) -> Failure | tuple[dict[str, Any], list[Failure]]:
        """Ask one client; returns its answer and failures, or why there is none."""
        hall = self.hall
        if id in self.away and not self._there(id):
            return self._failure(id, phase, "gone", "not connected")
        self.away.discard(id)
        with hall.changed:
            number = hall.next.setdefault(id, 0)
        place = f"{hall.run}/{hall.epoch}/{number}"
        order = {
            "number": number, "run": hall.run, "epoch": hall.epoch, "round": self.number, "begun": self.begun,
            "undone": self.undone, "last": self.last.get(id, 0), **fields,
        }  # fmt: skip
        self.link.offer(id, f"{place}/order", codec.encode(order))
        hall.point(id)
        try:
            data = self._awaited(id, phase, f"{place}/answer", until, hall.network.grace if grace is None else grace)
            return data if isinstance(data, Failure) else self._read(id, phase, number, data)
        finally:
            with hall.changed:
                hall.next[id] = number + 1
            self.link.withdraw(f"{place}/", id)

    def _awaited(self, id: str, phase: str, subject: str, until: float, grace: float) -> bytes | Failure:
        absent = 0.0
        while True:
            left = until - time.monotonic()
            if left <= 0:
                return self._failure(id, phase, "late", f"no answer within {self.hall.network.deadline:g} s")
            begun = time.monotonic()
            try:
                return self.link.pull(id, subject, min(left, _SLICE), self.most)
            except Missed:
                absent = 0.0 if self._there(id) else absent + time.monotonic() - begun
                if absent > grace:
                    self.away.add(id)
                    return self._failure(id, phase, "gone", "the connection is lost")
            except LinkError as error:
                return self._failure(id, phase, "refused", said(error))

    def _read(self, id: str, phase: str, number: int, data: bytes) -> Failure | tuple[dict[str, Any], list[Failure]]:
        """Return the answer and the failures in these bytes."""
        try:
            tree = codec.decode(data)
            if tree["number"] != number:
                return self._failure(id, phase, "stale", "the answer to another request")
            if "error" in tree:
                words = shown(str(tree["error"]), 300)
                if self.plan.engine.errors == "stop":
                    raise _Stopped(f"client {id!r}: {words}")
                return self._failure(id, phase, "failed", words, own=True)
            if self.plan.privacy.on:
                self.spent[id] = _spent(tree["spent"], self.spent.get(id, {}))
            failures = [_cleaned(failure, id, phase) for failure in wire.failures_of(tree["failed"])]
            answer = dict(tree["answer"])
            if "work" in answer:
                answer["work"] = _work(id, answer["work"])
            if "replies" in answer:
                wire.messages_of(answer["replies"])
            return answer, failures
        except (MethodError, KeyError, TypeError, ValueError, AttributeError) as error:
            words = f"not an answer ({words_of(error)})"
            self.link.refused.add(id, phase, words)
            return self._failure(id, phase, "refused", words)

    def _failure(self, id: str, phase: str, kind: str, words: str, own: bool = False) -> Failure:
        """Return why an answer is missing; own: it is the client's own part that failed."""
        return Failure(id, phase, words, MethodError(f"client {id!r}, phase {phase!r}: {words}"), not own, kind)

    def _there(self, id: str) -> bool:
        return id in self.link.present()

    def _await_somebody(self, asked: Mapping[str, Any]) -> None:
        """Wait while none of these clients is connected; raises TooFew if the run is to stop meanwhile."""
        told = False
        with self.hall.changed:
            while not any(map(self._there, asked)):
                if self.stopping():
                    raise TooFew(f"round {self.number}: stopped while no client was connected")
                if not told:
                    told = True
                    self.hall.say("no client is connected: waiting")
                self.hall.changed.wait(0.2)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """Tell all clients that are there that the run has ended."""
        until = time.monotonic() + _END + self.link.latency
        with ThreadPoolExecutor(max(len(self.ids), 1)) as pool:
            for id in filter(self._there, self.ids):
                pool.submit(self._one, id, {"what": "end"}, "end", until, 0.0)


class _Stopped(RunError):
    """A client failed, and `run.errors` says to stop."""


class NetworkEngine(Rounds):
    """The engine of a server: its clients are those in the hall.

    stopping: whether the run is to stop while it waits for a client.
    """

    name: ClassVar[str] = "network"
    site: NetworkSite

    def __init__(
        self, plan: Plan, roster: Roster, hall: Hall, public: Callable[[str], Dataset] = no_public_data, *,
        stopping: Callable[[], bool] = lambda: False, observers: Sequence[Observer] = (),
    ) -> None:  # fmt: skip
        self.setup, self.hall, self.stopping = plan, hall, stopping
        self.progress = Progress(0, plan.training.rounds)
        super().__init__(plan, roster, public, observers=observers)
        self.exchange.door = WatchedDoor(plan, hall.link.refused)

    def make_site(self) -> NetworkSite:
        return NetworkSite(self.plan, self.hall, self.stopping)

    def facts(self) -> dict[str, Any]:
        return self.hall.facts()

    def round(self, number: int) -> Outcome:
        self.progress = replace(self.progress, round=number)
        outcome = super().round(number)
        graph, heard = outcome.graph, dict(self.site.last)
        if graph is not None:
            self.progress = replace(self.progress, groups=graph.groups or {}, weights=weights_of(graph))
        spent = {id: self.plan.privacy.epsilon(one["releases"]) for id, one in self.site.spent.items()}
        self.progress = replace(self.progress, heard=heard, epsilon=spent)
        return outcome

    def state(self) -> dict[str, Any]:
        spent = {"spent": dict(self.site.spent)} if self.plan.privacy.on else {}
        return {**super().state(), "undone": list(self.site.undone), "last": dict(self.site.last), **spent}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.site.undone, self.site.last = list(state["undone"]), dict(state["last"])
        self.site.spent = dict(state.get("spent", {}))

    def releases(self) -> dict[str, dict[str, Any]]:
        none = {"releases": 0, "open": {}}
        return {id: self.site.spent.get(id, none) for id in self.everyone.seen} if self.plan.privacy.on else {}

    def end(self) -> None:
        """Tell all clients that are there that the run has ended."""
        self.site.end()


def _cleaned(failure: Failure, id: str, phase: str) -> Failure:
    """Return a failure as a client may tell it: of itself, of this phase, in a line."""
    kind = "spent" if failure.kind == "spent" else "failed"
    return replace(failure, id=id, phase=phase, words=shown(str(failure.words), 300), kind=kind)


def _spent(told: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client says that it has released, and said before; raises ValueError for anything else."""
    count, open = told["releases"], {**told["open"]}
    names = [name for names in open.values() for name in names]
    if type(count) is not int or count < 0 or len(open) > _PHASES or len(names) > _PHASES:
        raise ValueError("not a number of releases")
    if not all(isinstance(name, str) and name.isidentifier() for name in [*open, *names]):
        raise ValueError("not names of fields")
    for phase, known in before.get("open", {}).items():
        open[phase] = sorted({*open.get(phase, ()), *known})
    return {"releases": max(count, before.get("releases", 0)), "open": open}


def _work(id: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client says of its own work; raises ValueError for anything else."""
    samples, inferred, flops = told["samples"], told["inferred"], told["flops"]
    counts = [*samples.values(), inferred]
    if any(type(count) is not int or count < 0 for count in counts) or not 0 <= float(flops) < 1e30:
        raise ValueError("not an amount of work")
    return {"samples": {id: samples[id]} if id in samples else {}, "inferred": inferred, "flops": float(flops)}


def is_score(score: Score, task: Task, further: int, most: int) -> bool:
    """Whether these are the figures of a score. further: how many further metrics there are. most: of test samples.

    A loss may be NaN or infinite: so is that of a model that has diverged.
    """
    if not all(type(count) is int and count >= 0 for count in (score.n, score.right)):
        return False
    count = len(task.figures) if score.n and task.kind != "classification" else 0
    right = score.right <= score.n <= most and isinstance(score.loss, float)
    told = len(score.figures) == count and len(score.further) == further
    if not (right and told and _are_figures(score.further)) or LARGEST < abs(score.loss) < math.inf:
        return False
    figures = zip(score.figures, task.figures, strict=False)
    known = all(_are_figures([value], 1.0 if metric.share else LARGEST) for value, metric in figures)
    return known and _is_digest(score.digest, task)


def _is_digest(digest: Sequence[Sequence[Any]], task: Task) -> bool:
    """Whether this is what a client may tell for the figures over several clients; that of a risk task is not read."""
    if task.kind == "risk" or not digest:
        return True
    pixels = task.kind == "segmentation" and [len(part) for part in digest] == [task.classes - 1] * 2
    return pixels and all(None not in part and _are_figures(part) for part in digest)


def _are_figures(values: Sequence[Any], most: float = LARGEST) -> bool:
    """Whether each is None or a number of which statistics can be made."""
    return all(value is None or (type(value) in (int, float) and abs(value) <= most) for value in values)
