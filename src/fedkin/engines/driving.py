"""Driving of clients' flows: their requests go to an executor, and the results go back into the flows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedkin.engines.accounting.clock import Clock
from fedkin.engines.accounting.operations import Work
from fedkin.engines.adversaries import Attacks
from fedkin.engines.blame import place_of
from fedkin.engines.client_side import ClientSide, Running
from fedkin.engines.executors.jobs import Executor, FitJob, ScoreJob, job_of
from fedkin.engines.failures import Failures
from fedkin.errors import FedkinError, MethodError
from fedkin.flow import Fitted, Share
from fedkin.keys import key, rng

__all__ = ["Driver"]


class Driver:
    """A driver runs the flows of many clients concurrently.

    work: the accounting to which jobs are added. adversaries: ids of the clients whose fits are changed. attack: how
    they are changed.
    """

    def __init__(
        self, side: ClientSide, executor: Executor, work: Work, clock: Clock, attack: Attacks | None = None,
        adversaries: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.side, self.executor, self.work, self.clock = side, executor, work, clock
        self.attack, self.adversaries = attack, adversaries
        self.failures = Failures(side.plan.engine.errors == "stop")

    def drive(
        self, ids: Sequence[str], start: Callable[[str], Running], phase: str, answers: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Running, Share | None]]:
        """Yield each flow with its Share, or None if it has ended, in the order in which flows reach that point.

        `start` makes the flow of a client only when the executor has room for it, so that few flows run at once.
        answers: the answers for which flows that have begun before are waiting. A flow that fails is not yielded; it is
        in `failures`.
        """
        self.failures.round = self.side.number
        answers = answers or {}
        waiting = list(reversed(ids))
        running: dict[str, Running] = {}
        busy = 0
        while waiting or busy:
            stopped: list[tuple[Running, Share | None]] = []
            with self.clock.of("local"), self.clock.of(f"local.{phase}"):
                while waiting and self.executor.room > 0:
                    id = waiting.pop()
                    try:
                        running[id] = start(id)
                        busy += self._advance(running, id, answers.get(id), stopped)
                    except Exception as error:  # a context costs more, and this is done for each client
                        self.failures.note(error, id, phase)
                for job, result in self.executor.collect() if busy else ():
                    assert not isinstance(job, ScoreJob)
                    busy -= 1
                    try:
                        if isinstance(result, FedkinError):
                            raise result
                        self.work.add(job, result)
                        if isinstance(job, FitJob):
                            result = self._handed_on(job, result, phase)
                        busy += self._advance(running, job.id, result, stopped)
                    except Exception as error:
                        self.failures.note(error, job.id, phase)
            yield from stopped

    def _advance(
        self, running: dict[str, Running], id: str, answer: Any, stopped: list[tuple[Running, Share | None]]
    ) -> int:
        """Resume a client's flow; returns 1 if it requests another job, and 0 if it shares or has ended."""
        flow = running[id]
        request = flow.resume(answer)
        if request is None and not flow.ended:
            raise MethodError(f"{place_of(flow.flow)}a flow yields {'Fit or Infer'}, got None: a bare yield")
        if flow.ended or isinstance(request, Share):
            stopped.append((running.pop(id), None if flow.ended else request))
            return 0
        view, step = flow.view, self.side.step(id, flow.phase)
        draw = key(view.seed, id, view.round, f"{flow.phase}.fit{step}")
        try:
            job = job_of(request, view, draw)
        except MethodError as error:
            raise MethodError(f"{place_of(flow.flow)}{error}") from None
        self.executor.submit(job)
        return 1

    def _handed_on(self, job: FitJob, fitted: Fitted, phase: str) -> Fitted:
        """Return the fit that the client's flow gets; the fit of an adversary's own model is changed."""
        plan = self.side.plan
        if self.attack is None or job.net is not plan.net_of(job.id) or job.id not in self.adversaries:
            return fitted
        step = self.side.steps[job.id, phase]
        draw = rng(plan.seed, job.id, self.side.number, f"{phase}.attack{step}")
        return self.attack(fitted, job.params, draw)
