"""The server of a federation over a network: the rounds of a simulation, with remote clients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, ClassVar

from fedkin.engines.accounting import Work
from fedkin.engines.failures import Failure, TooFew
from fedkin.engines.results import Missing, Outcome, Undelivered
from fedkin.engines.rounds import Engine
from fedkin.engines.setup import Setup
from fedkin.engines.site import Site
from fedkin.engines.transport import Validator
from fedkin.errors import MethodError, RunError, first_few
from fedkin.federation import Entry, Roster
from fedkin.flow import Message
from fedkin.learning.metrics import LARGEST, Score
from fedkin.network.consent import largest_message
from fedkin.network.link import LinkError, Missed
from fedkin.network.messages import Answer, Order, ReleaseReport, Scored, encode, read, tree_of
from fedkin.network.registration import Registration
from fedkin.network.status import StatusFile
from fedkin.tasks import Task
from fedkin.untrusted import error_text, escaped

_ROOM = 1 << 20  # bytes of an answer in addition to its message
_MOST = 10_000  # clients that are asked at the same time
_SLICE = 0.5  # seconds between two checks whether a client is connected
_END = 5.0  # seconds to tell clients that the run has ended


class NetworkSite(Site):
    """The remote clients, at the other ends of links. Their states, models and features stay with them."""

    def __init__(self, setup: Setup, registration: Registration, stopping: Callable[[], bool]) -> None:
        super().__init__()
        self.setup, self.registration, self.link, self.stopping = setup, registration, registration.link, stopping
        self.number = self.begun = 0
        # Rounds that were undone; and the last round in which each client answered a phase.
        self.undone: list[int] = []
        self.last: dict[str, int] = {}
        # The releases under [privacy] that each client has reported; they never decrease.
        self.spent: dict[str, ReleaseReport] = {}
        self.models_at: dict[str, str] = {}  # the hash of the model that each client keeps
        self.disconnected: set[str] = set()
        self.drifted: set[str] = set()  # clients that a test found to have drifted
        self.work_of: dict[str, Any] = {}  # what each client reports in this round
        self.pool = ThreadPoolExecutor(_MOST, thread_name_prefix="client")  # threads are made when they are needed
        self.size_limit = cache(lambda id: largest_message(setup, id) + _ROOM)

    # -- requests to a site ---------------------------------------------------------------------------------------

    def turn_to(self, number: int) -> None:
        self.number, self.work_of, self.work = number, {}, Work()

    def undo(self) -> None:
        self.undone.append(self.number)

    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        self.number = self.begun = number

    def replies(self, phase: str, messages: Mapping[str, Message]) -> list[tuple[str, Message]]:
        answers = self._ask_all("ask", phase, messages)
        # A client that takes no part keeps no state.
        self.last |= {id: self.number for id in answers if self.registration.members[id].now.seen}
        return [(id, Message(**answer.reply)) for id, answer in answers.items() if answer.reply is not None]

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        task, further, scores = self.setup.task, len(self.setup.measures), dict[str, Score]()
        for id, answer in self._ask_all("scores", "evaluate", offers).items():
            if answer.score is None:
                continue
            try:
                scores[id] = score_of(answer.score, task, further, self.registration.members[id].now.n_test)
            except MethodError as error:
                self._fail(id, "evaluate", self._refused(id, error_text(error)))
                continue
            self.models_at |= {id: answer.score.model} if answer.score.model else {}
        return scores

    def leave(self, ids: Iterable[str]) -> None:
        """Expect no states from clients that have left, if they come back."""
        for id in ids:
            self.last.pop(id, None)
            self.disconnected.discard(id)
            self.drifted.discard(id)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """Tell all clients that are there that the run has ended."""
        order, until = Order(what="end"), time.monotonic() + _END + self.link.latency
        with ThreadPoolExecutor(_MOST) as pool:
            for id in filter(self.is_there, self.registration.active):
                pool.submit(self._ask_one, id, order, until, 0.0)

    # -- orders and answers ---------------------------------------------------------------------------------------

    def _ask_all(self, what: str, phase: str, messages: Mapping[str, Message]) -> dict[str, Answer]:
        """Ask these clients in parallel; returns the answers, and notes why answers are missing."""
        if not messages:
            return {}
        self._await_somebody(messages)
        until = time.monotonic() + self.registration.network.deadline
        registration, jobs = self.registration, {}
        for id, message in messages.items():
            order = Order(
                what=what, phase=phase, message=dict(message), round=self.number, begun=self.begun, undone=self.undone,
                last=self.last.get(id, 0), since=registration.members[id].since, drifted=id in self.drifted,
                samples=registration.members[id].now.digest if registration.network.reread else "",
            )  # fmt: skip
            jobs[id] = self.pool.submit(self._ask_one, id, order, until, registration.network.grace)
        answers = {}
        for id, job in jobs.items():
            result = job.result()
            # The report of one client alone must not end a run, nor that of a client that takes no part.
            alone = len(messages) == 1 or not registration.members[id].now.seen
            if isinstance(result, Undelivered):
                self._fail(id, phase, result, injected=result.missing is not Missing.FAILED or alone)
                continue
            answers[id] = result
            if (failed := result.failed) is not None:
                cause = Undelivered(Missing(failed.kind), escaped(failed.words, 300))
                self._fail(id, phase, cause, failed.injected or alone)
            self._note(id, result)
        return answers

    def _note(self, id: str, answer: Answer) -> None:
        """Note the work and the releases that a client reports."""
        if self.setup.privacy.on:
            self.spent[id] = _never_less(answer.spent or ReleaseReport(releases=0), self.spent.get(id))
        if answer.work is not None:
            self.work_of[id] = answer.work
            samples = {id: part.samples for id, part in self.work_of.items() if part.samples}
            inferred = sum(part.inferred for part in self.work_of.values())
            self.work = Work(samples, inferred, sum(part.flops for part in self.work_of.values()))

    def _ask_one(self, id: str, order: Order, until: float, grace: float) -> Answer | Undelivered:
        """Ask one client; returns its answer, or why there is none."""
        registration = self.registration
        if id in self.disconnected and not self.is_there(id):
            return Undelivered(Missing.GONE, "not connected")
        self.disconnected.discard(id)
        with registration.changed:
            number = registration.next_order.setdefault(id, 0)
        subject = f"{registration.run}/{registration.epoch}/{number}"
        self.link.offer(id, f"{subject}/order", encode(order))
        registration.point(id)
        try:
            data = self._awaited(id, f"{subject}/answer", until, grace)
            return data if isinstance(data, Undelivered) else self._read(id, number, data)
        finally:
            with registration.changed:
                registration.next_order[id] = number + 1
            self.link.withdraw(f"{subject}/", id)

    def _awaited(self, id: str, subject: str, until: float, grace: float) -> bytes | Undelivered:
        """Return a client's answer, which may come in parts until the deadline, or why there is none."""
        absent = 0.0
        while (left := until - time.monotonic()) > 0:
            begun = time.monotonic()
            if self.registration.has_paused(id):
                return Undelivered(Missing.GONE, "its process has ended")
            try:
                return self.link.pull(id, subject, min(left, _SLICE), self.size_limit(id))
            except Missed:
                absent = 0.0 if self.is_there(id) else absent + time.monotonic() - begun
                if absent > grace:
                    self.disconnected.add(id)
                    return Undelivered(Missing.GONE, "the connection is lost")
            except LinkError as error:
                return Undelivered(Missing.REFUSED, error_text(error))
        return Undelivered(Missing.LATE, f"no answer within {self.registration.network.deadline:g} s")

    def _read(self, id: str, number: int, data: bytes) -> Answer | Undelivered:
        """Return the answer in these bytes, or why it is invalid."""
        try:
            answer = read(Answer, data)
        except MethodError as error:
            return self._refused(id, error_text(error))
        if answer.number != number:
            return Undelivered(Missing.STALE, "the answer to another request")
        if answer.error is None:
            return answer
        words = escaped(answer.error, 300)
        if self.setup.engine.errors == "stop":
            raise RunError(f"client {id!r}: {words}")
        return Undelivered(Missing.FAILED, words)

    def _refused(self, id: str, words: str) -> Undelivered:
        self.link.refused.add(id, words)
        return Undelivered(Missing.REFUSED, words)

    def _fail(self, id: str, phase: str, cause: Undelivered, injected: bool = True) -> None:
        error = MethodError(f"client {id!r}, phase {phase!r}: {cause.reason}")
        self.failures.list.append(Failure(id, phase, cause, error, injected))

    def is_there(self, id: str) -> bool:
        """Whether this client is connected."""
        return id in self.link.present()

    def _await_somebody(self, ids: Iterable[str]) -> None:
        """Wait while none of these clients is connected; raises TooFew if the run is to stop meanwhile.

        It does not wait for clients that take no part.
        """
        announced, ids = False, [id for id in ids if self.registration.members[id].now.seen]
        with self.registration.changed:
            while ids and not any(map(self.is_there, ids)) and not all(map(self.registration.is_gone, ids)):
                if self.stopping():
                    raise TooFew(f"round {self.number}: stopped while no client was connected")
                if not announced:
                    announced = True
                    self.registration.say(f"no client is connected: waiting for {first_few(sorted(ids))}")
                self.registration.changed.wait(0.2)


class NetworkEngine(Engine):
    """The engine of a server with its registered clients.

    status: the status file to update. stopping: returns whether to stop the run while it waits for a client.
    """

    name: ClassVar[str] = "network"
    site: NetworkSite

    def __init__(
        self, setup: Setup, roster: Roster[Entry], registration: Registration, status: StatusFile,
        stopping: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.registration, self.status = registration, status
        status.rounds = setup.training.rounds
        super().__init__(setup, roster, NetworkSite(setup, registration, stopping))
        self._take_members()

    def facts(self) -> dict[str, Any]:
        return self.registration.facts()

    def last_facts(self) -> dict[str, Any]:
        self.registration.fingerprint = ""
        return self.facts()

    def _take_members(self) -> None:
        """Use the current members of the registration, and let each claim at most its registered number of samples."""
        self.all_clients = self.registration.roster()
        samples = {id: member.now.n_train for id, member in self.registration.members.items()}
        self.exchange.validator = Validator(self.setup, self.registration.link.refused.add, samples)

    def round(self, number: int) -> Outcome:
        if self.registration.turn_to(number):
            self._take_members()
        self.status.round = number
        outcome = super().round(number)
        self.site.drifted |= set(outcome.events.get("drifted", ()))
        if outcome.graph is not None:
            self.status.tell(group=outcome.graph.groups or {})
        spent = {id: self.setup.privacy.spent(one.model_dump()) for id, one in self.site.spent.items()}
        self.status.tell(round=self.site.last, epsilon=spent)
        return outcome

    def evaluate(self) -> dict[str, Score]:
        scores = super().evaluate()
        self.status.tell(model=self.site.models_at)
        return scores

    def _offers_to_unseen(self, ids: Sequence[str]) -> dict[str, Message]:
        return super()._offers_to_unseen([id for id in ids if self.site.is_there(id)])

    def state(self) -> dict[str, Any]:
        spent = {id: tree_of(one) for id, one in self.site.spent.items()}
        more = {"undone": list(self.site.undone), "last": dict(self.site.last), "moved": self.registration.moved()}
        return {**super().state(), **more, **({"spent": spent} if self.setup.privacy.on else {})}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.site.undone, self.site.last = list(state["undone"]), dict(state["last"])
        self.site.spent = {id: ReleaseReport.model_validate(one) for id, one in state.get("spent", {}).items()}

    def releases(self) -> dict[str, dict[str, Any]]:
        if not self.setup.privacy.on:
            return {}
        none = ReleaseReport(releases=0)
        return {id: self.site.spent.get(id, none).model_dump() for id in self.all_clients.seen}

    def end(self) -> None:
        """Tell all clients that are there that the run has ended."""
        self.registration.end()
        self.site.end()


def _never_less(now: ReleaseReport, before: ReleaseReport | None) -> ReleaseReport:
    """Return the releases that a client reports, but never less than it reported before."""
    if before is None:
        return now
    phases = now.open.keys() | before.open.keys()
    open = {phase: sorted({*now.open.get(phase, ()), *before.open.get(phase, ())}) for phase in sorted(phases)}
    most = max(now.releases, before.releases)
    trained = max((one.trained for one in (now, before) if one.trained), key=lambda one: one.steps, default=None)
    return ReleaseReport(releases=most, signed=max(now.signed, before.signed), open=open, trained=trained)


def score_of(scored: Scored, task: Task, further: int, most: int) -> Score:
    """Return a client's score; raises MethodError for impossible figures.

    further: the number of further metrics. most: the client's number of test samples. A loss may be NaN or infinite, as
    that of a diverged model is.
    """
    metrics = task.figures if scored.n and task.kind != "classification" else ()
    counts = len(scored.figures), len(scored.further)
    if not scored.right <= scored.n <= most or counts != (len(metrics), further):
        raise MethodError("not a score: other numbers of samples or figures than there are")
    digest = _digest_of(scored, task)
    limits = [*(1.0 if metric.share else LARGEST for metric in metrics), *[LARGEST] * further]
    values = zip([*scored.figures, *scored.further], limits, strict=True)
    sound = all(value is None or abs(value) <= limit for value, limit in values)
    if LARGEST < abs(scored.loss) < math.inf or not sound:
        raise MethodError("not a score: figures that cannot be")
    return Score(scored.n, scored.loss, scored.right, tuple(scored.figures), digest, b"", tuple(scored.further))


def _digest_of(scored: Scored, task: Task) -> tuple[tuple[float, ...], ...]:
    """Return the sums over pixels of a segmentation; raises MethodError for impossible sums."""
    if task.kind == "risk" or not scored.digest:
        return ()
    if task.kind != "segmentation" or [len(part) for part in scored.digest] != [task.classes - 1] * 2:
        raise MethodError("not a score: no such digest")
    if not all(value is not None and abs(value) <= LARGEST for part in scored.digest for value in part):
        raise MethodError("not a score: figures that cannot be")
    return tuple(map(tuple, scored.digest))  # type: ignore[arg-type]
