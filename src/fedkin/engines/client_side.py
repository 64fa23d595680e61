"""The clients' and peers' side of a run: their views, states and flows. No input or output, no training.

What a flow wants done it says: a client's yields Fit and Infer, a peer's also Share. Whoever drives the flow carries
that out and hands the answer back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, cast

from fedkin.engines.setup import Plan
from fedkin.engines.states import States
from fedkin.errors import MethodError
from fedkin.federation import Client
from fedkin.flow import Message, Params, PeerMethod, ServerMethod, Share
from fedkin.views import ClientView, PeerView

__all__ = ["ClientSide", "Outbox", "Running"]


@dataclass(frozen=True, eq=False)
class Outbox:
    """What a peer sends in one exchange: its messages by receiver, and the phase under which they count."""

    phase: str
    messages: Mapping[str, Message]


@dataclass(eq=False)
class Running:
    """A flow of a client or a peer that is under way. result: what it returned, once it has ended."""

    id: str
    phase: str
    view: ClientView
    flow: Any
    result: Any = None
    ended: bool = field(default=False)

    def resume(self, answer: Any) -> Any:
        """The flow's next request (Fit, Infer or Share), or None when it has ended."""
        if not hasattr(self.flow, "send"):  # a phase without requests returns its Message at once
            self.result, self.ended = self.flow, True
            return None
        try:
            return self.flow.send(answer)
        except StopIteration as stop:
            self.result, self.ended = stop.value, True
            return None


class ClientSide:
    """The clients, or peers, that live in one process: a state and a view for each, and the flows that run there.

    Clients share nothing here but the process: every view holds one client's samples and state. own_method: each flow
    gets a copy of the method, so that what a method smuggles past its messages is lost.
    """

    def __init__(self, plan: Plan, clients: Mapping[str, Client], states: States, own_method: bool = False) -> None:
        self.plan, self.clients, self.states, self.own_method = plan, clients, states, own_method
        self.drifting = any(client.changes for client in clients.values())
        self.now = clients
        self.turn_to(0)

    def turn_to(self, number: int) -> None:
        """Let it be this round."""
        self.number = number
        if self.drifting:
            self.now = {id: client.at(max(number, 1)) for id, client in self.clients.items()}
        # How many requests each client made in a phase of this round: the number keys the request's randomness.
        self.steps: dict[tuple[str, str], int] = {}

    def method(self) -> ServerMethod | PeerMethod:
        """The method as one client holds it."""
        method = self.plan.method
        return type(method).model_validate(method.model_dump()) if self.own_method else method

    def client(self, id: str) -> Client:
        """The client with the samples that it has now."""
        return self.now[id]

    def view(self, id: str) -> ClientView:
        """What a client has at hand now; its state is made when it is first met."""
        plan = self.plan
        view: ClientView = ClientView(
            seed=plan.seed, round=self.number, net=plan.net_of(id), task=plan.task,
            training=plan.training, state={}, id=id, train=self.client(id).train,
        )  # fmt: skip
        if id in self.states:
            view.state = self.states[id]
            return view
        # As round 0: a client's first state must not depend on when somebody first looks at it.
        view.round = 0
        if isinstance(plan.method, PeerMethod):
            plan.method.join(PeerView(**vars(view), neighbours=()))
        else:
            plan.method.join(view)
        view.round = self.number
        return view

    def peer(self, id: str, near: Iterable[str] = ()) -> PeerView:
        """What a peer has at hand now."""
        return PeerView(**vars(self.view(id)), neighbours=tuple(sorted(set(near) - {id})))

    def phase(self, id: str, phase: str, message: Message) -> Running:
        """A client's phase, not yet begun; raises MethodError for a phase that the method does not declare."""
        method = self.method()
        assert isinstance(method, ServerMethod)
        if phase not in method.phases():
            raise MethodError(f"method {method.name!r} declares no phase {phase!r}")
        view = self.view(id)
        return Running(id, phase, view, getattr(method, phase)(view, message))

    def peer_round(self, id: str, near: Iterable[str]) -> Running:
        """A peer's round, not yet begun."""
        method = self.method()
        assert isinstance(method, PeerMethod)
        view = self.peer(id, near)
        return Running(id, "round", view, method.round(view))

    def peer_welcome(self, id: str) -> Running:
        """What sets the state of a peer that never took part, not yet begun."""
        assert isinstance(self.plan.method, PeerMethod)
        view = self.peer(id)
        return Running(id, "welcome", view, self.plan.method.welcome(view))

    def reply(self, running: Running) -> Message:
        """What an ended phase sends back; its client's state is kept."""
        if not isinstance(running.result, Message):
            raise MethodError(
                f"phase {running.phase!r} at client {running.id!r} must return a Message, "
                f"got {type(running.result).__name__}"
            )
        self.keep(running)
        return running.result

    def outbox(self, running: Running, share: Share) -> Outbox:
        """A peer's messages by receiver; raises MethodError for one that is not a neighbour."""
        assert isinstance(running.view, PeerView)
        neighbours = running.view.neighbours
        if isinstance(share.message, Message):
            messages: Mapping[str, Message] = dict.fromkeys(neighbours if share.to is None else share.to, share.message)
        else:
            messages = share.message
        strangers = sorted(set(messages) - set(neighbours))
        if strangers:
            raise MethodError(f"peer {running.id!r} shares with {strangers[:5]}, which are not its neighbours")
        return Outbox(share.phase, messages)

    def keep(self, running: Running) -> None:
        """Store the state that a flow left."""
        self.states.keep(running.id, running.view.state)

    def step(self, id: str, phase: str) -> int:
        """The number, from 0, of the request that this client makes now in this phase of this round."""
        number = self.steps[id, phase] = self.steps.get((id, phase), -1) + 1
        return number

    def use(self, id: str, offer: Message) -> Params | Running:
        """The parameters that this client would use now, or a flow that finds them and leaves no trace."""
        method = self.plan.method
        if isinstance(method, PeerMethod):
            return method.use(self.peer(id))
        view = self.view(id)
        used = method.use(view, offer)
        # GeneratorType, not the abstract Generator: this is asked for every client at every evaluation.
        if not isinstance(used, GeneratorType):
            return cast(Params, used)
        self.steps.pop((id, "use"), None)
        return Running(id, "use", view, used)

    def report(self, id: str) -> Message:
        """What a peer says of itself for the records."""
        assert isinstance(self.plan.method, PeerMethod)
        return self.plan.method.report(self.peer(id))

    def forget(self, ids: Iterable[str]) -> None:
        """Drop all that is known of these clients."""
        for id in ids:
            self.states.drop(id)
            for at in [at for at in self.steps if at[0] == id]:
                del self.steps[at]

    def checkpoint(self, id: str) -> dict[str, Any]:
        """One client's part of a consistent cut: its round, its state, and how far it is within the round."""
        steps = {phase: number for (client, phase), number in self.steps.items() if client == id}
        kept = {"state": self.states[id]} if id in self.states else {}
        return {"round": self.number, "steps": steps, **kept}

    def restore(self, id: str, part: Mapping[str, Any]) -> None:
        """Go back to what `checkpoint` gave."""
        self.number = part["round"]
        self.states.drop(id)
        if "state" in part:
            self.states.keep(id, part["state"])
        self.steps = {at: number for at, number in self.steps.items() if at[0] != id}
        self.steps |= {(id, phase): number for phase, number in part["steps"].items()}
