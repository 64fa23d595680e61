"""Driving clients' flows: what they ask for goes to an executor, and the results go back into the flows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedkin.engines.accounting.clock import Clock
from fedkin.engines.accounting.operations import Work
from fedkin.engines.adversaries import Attack
from fedkin.engines.client_side import ClientSide, Running
from fedkin.engines.executors.jobs import Executor, FitJob, ScoreJob, job_of
from fedkin.errors import FedkinError, MethodError, RunError
from fedkin.flow import Fitted, Share
from fedkin.keys import key, rng

__all__ = ["Driver"]


class Driver:
    """Runs flows of many clients side by side.

    work: what the jobs amount to is added to it. attack, adversaries: whose fits are handed on changed, and how.
    """

    def __init__(
        self, side: ClientSide, executor: Executor, work: Work, clock: Clock, attack: Attack | None = None,
        adversaries: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.side, self.executor, self.work, self.clock = side, executor, work, clock
        self.attack, self.adversaries = attack, adversaries

    def drive(
        self, ids: Sequence[str], start: Callable[[str], Running], phase: str, answers: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Running, Share | None]]:
        """Each flow with its Share, or None when it has ended, in the order in which they get there.

        `start` makes a client's flow when its turn comes, so that no more of them are under way than the executor can
        use. answers: what a flow that has begun before is waiting for.
        """
        waiting = list(reversed(ids))
        running: dict[str, Running] = {}
        busy = 0
        while waiting or busy:
            stopped: list[tuple[Running, Share | None]] = []
            with self.clock.of("local"), self.clock.of(f"local.{phase}"):
                while waiting and self.executor.room > 0:
                    id = waiting.pop()
                    with self.named(id, phase):
                        running[id] = start(id)
                        busy += self._advance(running, id, (answers or {}).get(id), stopped)
                for job, result in self.executor.collect() if busy else ():
                    assert not isinstance(job, ScoreJob)
                    busy -= 1
                    with self.named(job.id, phase):
                        if isinstance(result, FedkinError):
                            raise result
                        self.work.add(job, result)
                        if isinstance(job, FitJob):
                            result = self._handed_on(job, result, phase)
                        self.side.states.rest(job.params.values())
                        busy += self._advance(running, job.id, result, stopped)
            yield from stopped

    def _advance(
        self, running: dict[str, Running], id: str, answer: Any, stopped: list[tuple[Running, Share | None]]
    ) -> int:
        """Resume a client's flow: 1 when it asked for another job, 0 when it shares or has ended."""
        flow = running[id]
        request = flow.resume(answer)
        if request is None and not flow.ended:
            raise MethodError(f"a flow yields {'Fit or Infer'}, got None: a bare yield")
        if flow.ended or isinstance(request, Share):
            stopped.append((running.pop(id), None if flow.ended else request))
            return 0
        view, step = flow.view, self.side.step(id, flow.phase)
        draw = key(view.seed, id, view.round, f"{flow.phase}.fit{step}")
        self.executor.submit(job_of(request, id, view.training, draw, view.net, view.round, view.task))
        return 1

    def _handed_on(self, job: FitJob, fitted: Fitted, phase: str) -> Fitted:
        """The fit of the client's own model as its flow gets it: an adversary's is not what it trained."""
        plan = self.side.plan
        if self.attack is None or job.net is not plan.net_of(job.id) or job.id not in self.adversaries:
            return fitted
        step = self.side.steps[job.id, phase]
        draw = rng(plan.seed, job.id, self.side.number, f"{phase}.attack{step}")
        return self.attack(fitted, job.params, draw)

    @contextmanager
    def named(self, id: str, phase: str) -> Iterator[None]:
        """Say at which client and when a user's error happened."""
        try:
            yield
        except RunError:
            raise  # the machine's doing, not this client's
        except FedkinError as error:
            raise MethodError(f"round {self.side.number}, client {id!r}, phase {phase!r}: {error}") from None
