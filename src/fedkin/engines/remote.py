"""The site of clients that live elsewhere, and how each of them answers: requests and answers as trees.

It knows no connection: whoever extends it brings the requests to the clients, and their answers back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from fedkin.engines import wire
from fedkin.engines.accounting.operations import Operations, Work
from fedkin.engines.base import Score
from fedkin.engines.client_side import Outbox
from fedkin.engines.failures import Failure
from fedkin.engines.local_site import LocalSite
from fedkin.engines.site import Site
from fedkin.errors import MethodError
from fedkin.flow import Message, Params
from fedkin.learning.net import Net

__all__ = ["Remote", "answered", "work_tree"]

A = TypeVar("A")


def answered(site: LocalSite, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a client's own site to one request; raises MethodError for an unknown one."""
    match asked["what"]:
        case "turn_to":
            site.turn_to(asked["number"])
            return {}
        case "ask":
            replies = site.ask(asked["phase"], wire.messages_of(asked["messages"]))
            return {"replies": wire.tree_of_messages(replies), "work": work_tree(site.work)}
        case "begin":
            site.begin({id: frozenset(near) for id, near in asked["neighbours"].items()})
            return {}
        case "step":
            inboxes = {id: None if box is None else wire.messages_of(box) for id, box in asked["inboxes"].items()}
            return {"posts": wire.tree_of_outboxes(site.step(inboxes)), "work": work_tree(site.work)}
        case "welcome":
            site.welcome(asked["ids"])
            return {"work": work_tree(site.work)}
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


def work_tree(work: Work) -> dict[str, Any]:
    """Return the fields of `Work.reset`."""
    return dict(zip(("samples", "inferred", "flops"), work.totals(), strict=True))


class Remote(Site):
    """The clients at the other ends of connections; `each` carries requests to them, and their answers back."""

    def __init__(self, net: Net, ids: Iterable[str]) -> None:
        self.ids = tuple(ids)
        # Operations are counted where the samples are.
        self.total = Work(Operations(net, {}))
        self.failures: list[Failure] = []
        self.parts: dict[str, dict[str, Any]] = {}

    @abstractmethod
    def each(self, what: str, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Send these requests at once; returns the answers in the same order, which some may lack."""

    def turn_to(self, number: int) -> None:
        self._all("turn_to", number=number)
        self.parts = {}
        self.total.reset()

    def ask(self, phase: str, messages: Mapping[str, Message]) -> dict[str, Message]:
        asked = {id: {"phase": phase, "messages": wire.tree_of_messages({id: m})} for id, m in messages.items()}
        answers = self.each("ask", asked)
        return _own({id: wire.messages_of(answer["replies"]) for id, answer in answers.items()})

    def begin(self, neighbours: Mapping[str, frozenset[str]]) -> None:
        self.each("begin", {id: {"neighbours": {id: sorted(near)}} for id, near in neighbours.items()})

    def step(self, inboxes: Mapping[str, dict[str, Message] | None]) -> dict[str, Outbox]:
        asked = {
            id: {"inboxes": {id: None if box is None else wire.tree_of_messages(box)}} for id, box in inboxes.items()
        }
        answers = self.each("step", asked)
        return _own({id: wire.outboxes_of(answer["posts"]) for id, answer in answers.items()})

    def welcome(self, ids: Iterable[str]) -> None:
        self.each("welcome", {id: {"ids": [id]} for id in ids})

    def reports(self, ids: Iterable[str]) -> dict[str, Message]:
        answers = self.each("reports", {id: {"ids": [id]} for id in ids})
        return _own({id: wire.messages_of(answer) for id, answer in answers.items()})

    def scores(self, offers: Mapping[str, Message]) -> dict[str, Score]:
        answers = self.each("scores", _offered(offers))
        return _own({id: wire.scores_of(answer) for id, answer in answers.items()})

    def models(self, offers: Mapping[str, Message]) -> dict[str, Params]:
        answers = self.each("models", _offered(offers))
        return {id: answer[id] for id, answer in answers.items() if id in answer}

    def features(self, id: str, offer: Message) -> Message:
        return Message(**self.each("features", _offered({id: offer}))[id]["features"])

    def failed(self) -> list[Failure]:
        found, self.failures = self.failures, []
        return found

    def undo(self) -> None:
        self._all("undo")

    def forget(self, ids: Iterable[str]) -> None:
        self.each("forget", {id: {"ids": [id]} for id in ids})

    @property
    def states(self) -> Mapping[str, dict[str, Any]]:
        parts = self.each("checkpoint", {id: {} for id in self.ids})
        return {id: part[id]["state"] for id, part in parts.items() if "state" in part[id]}

    def restore(self, number: int, states: Mapping[str, dict[str, Any]]) -> None:
        own = {id: {id: states[id]} if id in states else {} for id in self.ids}
        self.each("restore", {id: {"number": number, "states": part} for id, part in own.items()})

    @property
    def work(self) -> Work:
        return self.total

    def _all(self, what: str, **fields: Any) -> None:
        self.each(what, dict.fromkeys(self.ids, fields))

    def counted(self, id: str, work: Mapping[str, Any]) -> None:
        """Replace the total of this client's work in the round."""
        self.parts[id] = dict(work)
        samples = {client: count for part in self.parts.values() for client, count in part["samples"].items()}
        inferred = sum(part["inferred"] for part in self.parts.values())
        self.total.reset(samples, inferred, sum(part["flops"] for part in self.parts.values()))


def _own(told: Mapping[str, Mapping[str, A]]) -> dict[str, A]:
    """Return what each client says of itself."""
    return {id: answer[id] for id, answer in told.items() if id in answer}


def _offered(offers: Mapping[str, Message]) -> dict[str, dict[str, Any]]:
    return {id: {"offers": wire.tree_of_messages({id: offer})} for id, offer in offers.items()}
