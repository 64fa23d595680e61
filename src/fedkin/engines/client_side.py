"""The clients' or peers' side of a run: views, states and flows, without input or output and without training.

A client's flow yields Fit and Infer, and a peer's flow also Share. The driver of the flow carries out each request and
sends the answer into the flow.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, TypeVar, cast

from torch import Tensor

from fedkin import codec
from fedkin.engines.failures import forgotten, place_in
from fedkin.engines.ledger import KEY, Page
from fedkin.engines.privacy import Source, noised_in
from fedkin.engines.releases import Releases
from fedkin.engines.results import Outbox
from fedkin.engines.setup import Setup
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.federation import Client, Samples
from fedkin.flow import Fit, Message, Params, PeerMethod, ServerMethod, Share
from fedkin.learning.private import Private
from fedkin.views import ClientView, PeerView, Sealed

# The clients' states by id.
States = MutableMapping[str, dict[str, Any]]


def apart(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a state that a flow may change; parameters are not copied, as no flow changes them in place."""
    return {name: _copied(item) for name, item in state.items()}


def _copied(tree: Any) -> Any:
    if not isinstance(tree, dict | list):
        return tree
    # By kinds of items: a server may keep a number for each of 100,000 clients, and this is done in every round.
    kinds = set(map(type, tree.values() if isinstance(tree, dict) else tree))
    if any(issubclass(kind, dict | list) for kind in kinds):
        return {n: _copied(item) for n, item in tree.items()} if isinstance(tree, dict) else [*map(_copied, tree)]
    if isinstance(tree, dict) and kinds and all(issubclass(kind, Tensor) for kind in kinds):
        return tree
    return tree.copy()


class BytesStates(UserDict[str, dict[str, Any]]):
    """States that pass through bytes; data that bytes cannot carry are lost, so that tests notice it."""

    def __getitem__(self, id: str) -> dict[str, Any]:
        return codec.decode(self.data[id])  # type: ignore[arg-type]

    def __setitem__(self, id: str, state: Mapping[str, Any]) -> None:
        self.data[id] = codec.encode(state)  # type: ignore[assignment]


V = TypeVar("V", bound=ClientView)


@dataclass(eq=False)
class Running:
    """A running flow of a client or a peer; `result` is its return value once it has ended; asked: what it answers."""

    id: str
    phase: str
    view: ClientView
    flow: Any
    asked: Message = field(default_factory=Message)
    result: Any = None
    ended: bool = field(default=False)

    def resume(self, answer: Any) -> Any:
        """Return the next request of the flow (Fit, Infer or Share), or None if it has ended."""
        if not hasattr(self.flow, "send"):  # a phase without requests returns its Message at once
            self.result, self.ended = self.flow, True
            return None
        try:
            return self.flow.send(answer)
        except StopIteration as stop:
            self.result, self.ended = stop.value, True
            return None


class ClientSide:
    """The clients or peers in one process, with a state and a view for each of them, and their flows.

    Clients share only the process: each view has the samples and the state of one client. own_method: each flow gets a
    copy of the method, so that data that a method passes outside its messages are lost. noise: where the noise of
    `[privacy]` comes from, which needs one. store: where the one client of a deployment keeps its releases.
    """

    def __init__(
        self, setup: Setup, clients: Mapping[str, Client], states: States, own_method: bool = False,
        noise: Source | None = None, store: Page | None = None,
    ) -> None:  # fmt: skip
        self.setup, self.clients, self.states, self.own_method = setup, clients, states, own_method
        self.releases = Releases(setup, self.step, noise, store)
        self.drifting = any(client.changes for client in clients.values())
        for name in ("signature_epsilon", "sample_epsilon"):
            if self.drifting and getattr(setup.privacy, name) is not None:
                raise ConfigError(
                    f"privacy.{name}: it counts for samples that stay, and here clients' samples change over time; "
                    "leave it out, or choose a scenario without drift"
                )
        self.now = clients
        self.turn_to(0)

    def turn_to(self, number: int) -> None:
        """Set the current round."""
        self.number = number
        if self.drifting:
            self.now = {id: client.at(max(number, 1)) for id, client in self.clients.items()}
        # Number of requests of each client in each phase of this round, which keys the randomness of the next request.
        self.steps: dict[tuple[str, str], int] = {}
        # The states before this round of clients whose state has changed; None: they had none.
        self.before: dict[str, Mapping[str, Any] | None] = {}

    def method(self) -> ServerMethod | PeerMethod:
        """Return the method for one flow."""
        method = self.setup.method
        return type(method).model_validate(method.model_dump()) if self.own_method else method

    def client(self, id: str) -> Client:
        """Return the client with its current samples."""
        return self.now[id]

    def view(self, id: str) -> ClientView:
        """Return the current view of a client; the first call makes its state."""
        setup = self.setup
        view: ClientView = ClientView(
            seed=setup.seed, round=self.number, net=setup.net_of(id), task=setup.task,
            training=setup.training.at(self.number), state={}, id=id, train=self.client(id).train,
            signature_noise=setup.privacy.signature_noise,
        )  # fmt: skip
        if id in self.states:
            view.state = self.states[id]
            return view
        # The first state is made as in round 0, since it must not depend on the round of the first call.
        view.round, train = 0, view.train
        self._seal(view)
        if isinstance(setup.method, PeerMethod):
            setup.method.join(PeerView(**vars(view), neighbours=()))
        else:
            setup.method.join(view)
        view.round, view.train = self.number, train
        return view

    def _seal(self, view: ClientView) -> None:
        """Hide the samples from a flow whose fits are private, so that nothing else of them can be sent."""
        if self.setup.privacy.sample_epsilon is not None:
            view.train = cast(Samples, Sealed(len(view.train), self.setup.method.name))

    def trained(self, running: Running, fit: Any) -> Private:
        """Return how a fit is private that a flow asks for; it counts at once, also if the flow fails later."""
        id = running.id
        if not isinstance(fit, Fit):
            raise RunError(
                f"phase {running.phase!r} of method {self.setup.method.name!r} needs outputs of the samples, which "
                "privacy.sample_epsilon does not protect; choose another method"
            )
        samples, told = self.client(id).train, self._told(id)
        private, told = self.releases.train(id, self.number, running.phase, running.asked, fit, samples, told)
        self.states[id] = {**self.view(id).state, KEY: told} if told else self.view(id).state
        return private

    def peer(self, id: str, near: Iterable[str] = ()) -> PeerView:
        """Return the current view of a peer."""
        return PeerView(**vars(self.view(id)), neighbours=tuple(sorted(set(near) - {id})))

    def _apart(self, view: V) -> V:
        """Give a flow a state of its own: the client's state stays as it was if the flow fails."""
        view.state = apart(view.state)
        return view

    def phase(self, id: str, phase: str, message: Message) -> Running:
        """Return a client's phase before its first step; raises MethodError for a phase that is not declared."""
        method = self.method()
        assert isinstance(method, ServerMethod)
        if phase not in method.phases():
            raise MethodError(f"method {method.name!r} declares no phase {phase!r}")
        if self.setup.privacy.on:
            self.releases.admit(id, self.number, phase, message, self._told(id))
        view = self._apart(self.view(id))
        if not any(noised_in(fields) for fields in method.declared(phase) or ()):
            self._seal(view)
        flow = getattr(method, phase)(view, message)
        forgotten(method, phase, flow)
        return Running(id, phase, view, flow, message)

    def peer_round(self, id: str, near: Iterable[str]) -> Running:
        """Return a peer's round before its first step."""
        method = self.method()
        assert isinstance(method, PeerMethod)
        self._seal(view := self._apart(self.peer(id, near)))
        flow = method.round(view)
        forgotten(method, "round", flow)
        return Running(id, "round", view, flow)

    def peer_welcome(self, id: str) -> Running:
        """Return the flow that sets the state of a peer that never took part, before its first step."""
        assert isinstance(self.setup.method, PeerMethod)
        view = self._apart(self.peer(id))
        return Running(id, "welcome", view, self.setup.method.welcome(view))

    def reply(self, running: Running) -> Message:
        """Return the reply of an ended phase as it leaves the client, and store the state of its client."""
        if not isinstance(running.result, Message):
            at, got = place_in(self.setup.method, running.phase), type(running.result).__name__
            raise MethodError(f"{at}phase {running.phase!r} at client {running.id!r} must return a Message, got {got}")
        id, sent, told = running.id, running.result, dict[str, Any]()
        if self.setup.privacy.on:
            sent, told = self.releases.reply(id, self.number, running.phase, running.asked, sent, self._told(id))
        self._keep(running, told)
        return sent

    def outbox(self, running: Running, share: Share) -> Outbox:
        """Return a peer's messages as they leave it, by receiver; raises MethodError for one that is no neighbour."""
        assert isinstance(running.view, PeerView)
        neighbours = running.view.neighbours
        if isinstance(share.message, Message):
            messages: Mapping[str, Message] = dict.fromkeys(neighbours if share.to is None else share.to, share.message)
        else:
            messages = share.message
        strangers = sorted(set(messages) - set(neighbours))
        if strangers:
            raise MethodError(f"peer {running.id!r} shares with {strangers[:5]}, which are not its neighbours")
        if self.setup.privacy.on:
            id = running.id
            messages, told = self.releases.shared(id, self.number, share.phase, messages, self._told(id))
            # At once: what was released counts, also if the peer fails later in this round.
            self.states[id] = {**self.view(id).state, KEY: told}
        return Outbox(share.phase, messages)

    def keep(self, running: Running) -> None:
        """Store the state at the end of a flow."""
        self._keep(running, self._told(running.id))

    def _keep(self, running: Running, told: Mapping[str, Any]) -> None:
        if self.setup.engine.min_replies and running.id not in self.before:
            self.before[running.id] = self.states.get(running.id)
        self.states[running.id] = {**running.view.state, KEY: told} if told else running.view.state

    def _told(self, id: str) -> Mapping[str, Any]:
        """Return what a client's state has of its releases."""
        on = self.setup.privacy.on and id in self.states
        told: Mapping[str, Any] = self.states[id].get(KEY, {}) if on else {}
        return told

    def undo(self) -> None:
        """Go back to the states before this round; what was released stays counted."""
        for id, state in self.before.items():
            self._back_to(id, state)
        self.before = {}

    def leave(self, ids: Iterable[str]) -> None:
        """Forget clients that have left, so that they come back as newcomers; what was released stays counted."""
        for id in ids:
            self._back_to(id, None)

    def _back_to(self, id: str, state: Mapping[str, Any] | None) -> None:
        told = self._told(id)
        self.states.pop(id, None)
        if state is not None or told:
            before = self.view(id).state if state is None else state
            self.states[id] = {**before, KEY: told} if told else dict(before)

    def step(self, id: str, phase: str) -> int:
        """Return the number, from 0, of this client's next request in this phase of this round."""
        number = self.steps[id, phase] = self.steps.get((id, phase), -1) + 1
        return number

    def use(self, id: str, offer: Message) -> Params | Running:
        """Return the client's current parameters, or a flow that finds them without a change of the client's state."""
        method = self.setup.method
        if isinstance(method, PeerMethod):
            return method.use(self.peer(id))
        view = self.view(id)
        used = method.use(view, offer)
        # The check of GeneratorType is faster than that of the abstract Generator, and runs for every client.
        if not isinstance(used, GeneratorType):
            return cast(Params, used)
        self.steps.pop((id, "use"), None)
        return Running(id, "use", view, used)

    def report(self, id: str) -> Message:
        """Return a peer's report for the records."""
        assert isinstance(self.setup.method, PeerMethod)
        return self.setup.method.report(self.peer(id))

    def forget(self, ids: Iterable[str]) -> None:
        """Drop the states and views of these clients."""
        for id in ids:
            self.states.pop(id, None)
            for at in [at for at in self.steps if at[0] == id]:
                del self.steps[at]

    def checkpoint(self, id: str) -> dict[str, Any]:
        """Return one client's part of a consistent checkpoint: its round, its state, and its progress in the round."""
        steps = {phase: number for (client, phase), number in self.steps.items() if client == id}
        kept = {"state": self.states[id]} if id in self.states else {}
        return {"round": self.number, "steps": steps, **kept}

    def restore(self, id: str, part: Mapping[str, Any]) -> None:
        """Go back to a part that `checkpoint` returned."""
        self.number = part["round"]
        self.states.pop(id, None)
        if "state" in part:
            self.states[id] = part["state"]
        self.steps = {at: number for at, number in self.steps.items() if at[0] != id}
        self.steps |= {(id, phase): number for phase, number in part["steps"].items()}
