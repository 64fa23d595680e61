"""The engine "processes": server and clients, or peers, in separate processes that share only a socket pair.

It is a test that the parts of an engine can be separated: every client has its own data, state and method, and only
bytes pass between processes. For speed on one machine, use the mode "workers".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from socket import socket, socketpair
from typing import Any, ClassVar

import torch

from fedkin.engines import wire
from fedkin.engines.accounting.clock import Clock
from fedkin.engines.accounting.operations import Operations, Work
from fedkin.engines.base import Score
from fedkin.engines.client_side import Outbox
from fedkin.engines.executors.jobs import OneByOne
from fedkin.engines.executors.ray import own_rows
from fedkin.engines.executors.starting import begin, check_script, clean_context, ended, leave_if_imported
from fedkin.engines.failures import Failure
from fedkin.engines.local_site import LocalSite
from fedkin.engines.privacy import keyed
from fedkin.engines.setup import Plan, Setup
from fedkin.engines.simulation import Simulation
from fedkin.engines.site import Site
from fedkin.engines.states import States
from fedkin.errors import FedkinError, MethodError, RunError
from fedkin.federation import Client
from fedkin.flow import Message, Params

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
                answer = _answered(site, asked)
                wire.send(line, {"answer": answer, "failed": wire.list_of_failures(site.failed())})
            except FedkinError as error:
                wire.send(line, {"error": str(error)})


def _answered(site: LocalSite, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of the client's own site to one request."""
    match asked["what"]:
        case "turn_to":
            site.turn_to(asked["number"])
            return {}
        case "ask":
            replies = site.ask(asked["phase"], wire.messages_of(asked["messages"]))
            return {"replies": wire.tree_of_messages(replies), "work": _told(site.work)}
        case "begin":
            site.begin({id: frozenset(near) for id, near in asked["neighbours"].items()})
            return {}
        case "step":
            inboxes = {id: None if box is None else wire.messages_of(box) for id, box in asked["inboxes"].items()}
            return {"posts": wire.tree_of_outboxes(site.step(inboxes)), "work": _told(site.work)}
        case "welcome":
            site.welcome(asked["ids"])
            return {"work": _told(site.work)}
        case "reports":
            return wire.tree_of_messages(site.reports(asked["ids"]))
        case "scores":
            return wire.tree_of_scores(site.scores(wire.messages_of(asked["offers"])))
        case "models":
            return {id: dict(params) for id, params in site.models(wire.messages_of(asked["offers"])).items()}
        case "features":
            (offer,) = wire.messages_of(asked["offers"]).items()
            return {"features": dict(site.features(*offer))}
        case "undo":
            site.undo()
            return {}
        case "forget":
            site.forget(asked["ids"])
            return {}
        case "reset":
            site.work.reset()
            return {}
        case "checkpoint":
            return {id: site.side.checkpoint(id) for id in site.side.clients}
        case "restore":
            site.turn_to(asked["number"])
            site.restore(asked["number"], asked["states"])
            return {}
    raise MethodError(f"a client is not asked {asked['what']!r}")


def _told(work: Work) -> dict[str, Any]:
    return dict(zip(("samples", "inferred", "flops"), work.totals(), strict=True))


class RemoteSite(Site):
    """The clients at the other ends of socket pairs."""

    def __init__(self, setup: Setup, adversaries: frozenset[str]) -> None:
        self.total = Work(Operations(setup.net, setup.federation))
        self.failures: list[Failure] = []
        self.parts: dict[str, dict[str, Any]] = {}
        self.lines: dict[str, socket] = {}
        self.processes: list[Any] = []
        leave_if_imported()
        check_script()
        context, plan = clean_context(), setup.plan
        for id, client in setup.federation.items():
            self.lines[id], there = socketpair()
            own = replace(plan, net=plan.net_of(id), nets=None)
            args = there, own, own_rows(client), id in adversaries
            self.processes.append(begin(context, f"the process of client {id!r}", serve, *args))
            there.close()
        for id, process in zip(self.lines, self.processes, strict=True):
            try:
                wire.receive(self.lines[id])
            except RunError:
                raise ended(f"the process of client {id!r}", process, "started") from None

    def turn_to(self, number: int) -> None:
        self._all(self.lines, "turn_to", number=number)
        self.parts = {}
        self.total.reset()

    def ask(self, phase: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        asked = {id: {"phase": phase, "messages": wire.tree_of_messages({id: m})} for id, m in messages.items()}
        answers = self._each("ask", asked)
        return {id: reply for answer in answers.values() for id, reply in wire.messages_of(answer["replies"]).items()}

    def begin(self, neighbours: Mapping[str, frozenset[str]]) -> None:
        self._each("begin", {id: {"neighbours": {id: sorted(near)}} for id, near in neighbours.items()})

    def step(self, inboxes: Mapping[str, dict[str, Message] | None]) -> dict[str, Outbox]:
        asked = {
            id: {"inboxes": {id: None if box is None else wire.tree_of_messages(box)}} for id, box in inboxes.items()
        }
        answers = self._each("step", asked)
        return {id: post for answer in answers.values() for id, post in wire.outboxes_of(answer["posts"]).items()}

    def welcome(self, ids: Iterable[str]) -> None:
        self._each("welcome", {id: {"ids": [id]} for id in ids})

    def reports(self, ids: Iterable[str]) -> dict[str, Message]:
        answers = self._each("reports", {id: {"ids": [id]} for id in ids})
        return {id: message for answer in answers.values() for id, message in wire.messages_of(answer).items()}

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        answers = self._each("scores", _offered(offers))
        return {id: score for answer in answers.values() for id, score in wire.scores_of(answer).items()}

    def models(self, offers: Mapping[str, Message]) -> dict[str, Params]:
        answers = self._each("models", _offered(offers))
        return {id: answer[id] for id, answer in answers.items() if id in answer}

    def features(self, id: str, offer: Message) -> Message:
        return Message(**self._each("features", _offered({id: offer}))[id]["features"])

    def failed(self) -> list[Failure]:
        found, self.failures = self.failures, []
        return found

    def undo(self) -> None:
        self._all(self.lines, "undo")

    def forget(self, ids: Iterable[str]) -> None:
        self._each("forget", {id: {"ids": [id]} for id in ids})

    @property
    def states(self) -> Mapping[str, dict[str, Any]]:
        parts = self._each("checkpoint", {id: {} for id in self.lines})
        return {id: part[id]["state"] for id, part in parts.items() if "state" in part[id]}

    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        own = {id: {id: states[id]} if id in states else {} for id in self.lines}
        self._each("restore", {id: {"number": number, "states": part} for id, part in own.items()})

    @property
    def work(self) -> Work:
        return self.total

    def close(self) -> None:
        for line in self.lines.values():
            line.close()
        for process in self.processes:
            process.join(timeout=10)

    def _all(self, ids: Iterable[str], what: str, **fields: Any) -> None:
        self._each(what, dict.fromkeys(ids, fields))

    def _each(self, what: str, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Send these requests at once; returns the answers in the same order, and raises the errors of clients."""
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
                self._counted(id, answer["work"])
        return answers

    def _counted(self, id: str, work: Mapping[str, Any]) -> None:
        """Replace the total of this client's work in the round."""
        self.parts[id] = dict(work)
        samples = {client: count for part in self.parts.values() for client, count in part["samples"].items()}
        inferred = sum(part["inferred"] for part in self.parts.values())
        self.total.reset(samples, inferred, sum(part["flops"] for part in self.parts.values()))


@contextmanager
def _named(id: str) -> Iterator[None]:
    try:
        yield
    except RunError:
        raise RunError(f"the process of client {id!r} has ended: go on from the checkpoint with --resume") from None


def _offered(offers: Mapping[str, Message]) -> dict[str, dict[str, Any]]:
    return {id: {"offers": wire.tree_of_messages({id: offer})} for id, offer in offers.items()}
