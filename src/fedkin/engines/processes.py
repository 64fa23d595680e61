"""The engine "processes": server and clients, or peers, in separate processes that share only a socket pair.

It is a test that the parts of an engine can be separated: every client has its own data, state and method, and only
bytes pass between processes. For speed on one machine, use the mode "workers".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from socket import socket, socketpair
from typing import Any, ClassVar

import torch

from fedkin.engines import wire
from fedkin.engines.accounting.clock import Clock
from fedkin.engines.base import Score
from fedkin.engines.executors.jobs import OneByOne, with_own_rows
from fedkin.engines.executors.starting import begin, check_script, clean_context, ended, leave_if_imported
from fedkin.engines.local_site import LocalSite
from fedkin.engines.privacy import keyed
from fedkin.engines.remote import Remote, answered
from fedkin.engines.setup import Plan, Setup
from fedkin.engines.simulation import Simulation
from fedkin.engines.states import States
from fedkin.errors import FedkinError, MethodError, RunError
from fedkin.federation import Client
from fedkin.flow import Message, Params
from fedkin.learning.metrics import values

__all__ = ["ProcessesEngine"]


class ProcessesEngine(Simulation):
    """The engine with one process per client, and the server in this one; its results equal the local engine's bits."""

    name: ClassVar[str] = "processes"

    def make_site(self) -> RemoteSite:
        return RemoteSite(self.setup, self.adversaries)


def serve(line: socket, plan: Plan, client: Client, adversary: bool) -> None:
    """Answer requests in a client's process, until the connection ends."""
    torch.set_num_threads(1)
    adversaries = frozenset({client.id} if adversary else ())
    clients = {client.id: client}
    with line:
        executor = OneByOne(plan.net, clients)
        site = LocalSite(plan, clients, executor, States(), Clock(), adversaries, True, keyed(plan.seed))
        wire.send(line, {"ready": True})
        while True:
            try:
                asked = wire.receive(line)
            except RunError:
                return
            try:
                answer = answered(site, asked)
                wire.send(line, {"answer": answer, "failed": wire.list_of_failures(site.failed())})
            except FedkinError as error:
                wire.send(line, {"error": str(error)})


class RemoteSite(Remote):
    """The clients at the other ends of socket pairs."""

    def __init__(self, setup: Setup, adversaries: frozenset[str]) -> None:
        super().__init__(setup.net, setup.federation)
        self.lines: dict[str, socket] = {}
        self.processes: list[Any] = []
        leave_if_imported()
        check_script()
        self.setup, self.number = setup, 0
        context, plan = clean_context(), replace(setup.plan, measures=())  # a function of a notebook cannot be sent
        for id, client in setup.federation.items():
            self.lines[id], there = socketpair()
            own = replace(plan, net=plan.net_of(id), nets=None)
            args = there, own, with_own_rows(client), id in adversaries
            self.processes.append(begin(context, f"the process of client {id!r}", serve, *args))
            there.close()
        for id, process in zip(self.lines, self.processes, strict=True):
            try:
                wire.receive(self.lines[id])
            except RunError:
                raise ended(f"the process of client {id!r}", process, "started") from None

    def close(self) -> None:
        for line in self.lines.values():
            line.close()
        for process in self.processes:
            process.join(timeout=10)

    def turn_to(self, number: int) -> None:
        super().turn_to(number)
        self.number = number

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        scores, plan, models = super().scores(offers), self.setup.plan, dict[str, Params]()
        if plan.measures:
            models = self.models({id: offers[id] for id in scores})
        for id, params in models.items():
            test = self.setup.federation.at(self.number)[id].test
            scores[id] = scores[id]._replace(further=values(plan.measures, plan.net_of(id), params, test, id))
        return scores

    def each(self, what: str, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        for id, fields in asked.items():
            with _named(id):
                wire.send(self.lines[id], {"what": what, **fields})
        told: dict[str, dict[str, Any]] = {}
        for id in asked:
            with _named(id):
                told[id] = wire.receive(self.lines[id])
        for answer in told.values():
            if "error" in answer:
                raise MethodError(answer["error"])
            self.failures += wire.failures_of(answer["failed"])
        answers = {id: answer["answer"] for id, answer in told.items()}
        for id, answer in answers.items():
            if "work" in answer:
                self.counted(id, answer["work"])
        return answers


@contextmanager
def _named(id: str) -> Iterator[None]:
    try:
        yield
    except RunError:
        raise RunError(f"the process of client {id!r} has ended: go on from the checkpoint with --resume") from None
