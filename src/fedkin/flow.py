"""The contract: a method yields what it wants done; a runner decides how.

Methods are written as flows, generators that yield requests and receive results:

    request                                  result                   yielded by
    Fit(params, ...)                         Fitted                   a client's phase, a peer's round
    Infer(params, what)                      Tensor                   a client's phase, a peer's round
    Ask(phase, {client id: Message})         {client id: Message}     a server's round
    Share(Message or {peer id: Message})     {peer id: Message}       a peer's round

Ask and Share return what came: any client or peer may be missing from the result.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from fedkin import codec
from fedkin.federation import Federation, Samples, Task
from fedkin.settings import Settings

if TYPE_CHECKING:
    from fedkin.graph import Graph
    from fedkin.learning.losses import Loss
    from fedkin.learning.net import Net
    from fedkin.learning.training import Training
    from fedkin.views import ClientView, PeerView, ServerView

__all__ = [
    "Ask", "Fit", "Fitted", "Flow", "Infer", "Message", "Method", "Params", "PeerMethod", "ServerMethod", "Share"
]  # fmt: skip

Params = Mapping[str, Tensor]
Flow = Generator[Any, Any, Any]


class Message(Mapping[str, Any]):
    """Named tensors (or dicts of them) and small values that travel between clients, peers and a server.

    >>> import torch
    >>> message = Message(params={"head.bias": torch.zeros(10)}, n=3)
    >>> Message.from_bytes(message.to_bytes())["n"], message.floats
    (3, 10)
    """

    def __init__(self, /, **fields: Any) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Message({', '.join(self._fields)}; {self.nbytes} bytes)"

    def to_bytes(self) -> bytes:
        """The message as safetensors bytes; none for an empty message."""
        return codec.encode(self._fields) if self._fields else b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """The message that `to_bytes` wrote; raises MethodError for anything else."""
        return cls(**codec.decode(data)) if data else cls()

    @property
    def nbytes(self) -> int:
        """Length of `to_bytes()`, found without writing it."""
        return codec.size(self._fields)[0] if self._fields else 0

    @property
    def floats(self) -> int:
        """How many floating-point numbers it carries: what papers count."""
        return codec.size(self._fields)[1]


@dataclass(frozen=True, eq=False)
class Fit:
    """Train `params` on the client's own samples; the result is a Fitted.

    loss(model, batch, extras, carry) -> value, or (value, new carry); None: the task's loss.
    extras: tree of tensors that stay as they are; carry: tree of tensors that the loss renews every step.
    training: batch size, steps, optimiser; None: the experiment's. data: other samples than the client's own.
    net: another net than the client's own, an encoder for instance.
    """

    params: Params
    loss: Loss | None = None
    extras: codec.Tree = field(default_factory=dict)
    carry: codec.Tree = field(default_factory=dict)
    training: Training | None = None
    data: Samples | None = None
    net: Net | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a Fit gave: trained params (new tensors), the last carry, mean training loss, steps and samples taken."""

    params: Params
    carry: codec.Tree
    loss: float
    steps: int
    samples: int


@dataclass(frozen=True, eq=False)
class Infer:
    """Run `params` over the client's own training samples, without gradients; the result is one Tensor [n, ...].

    what: "logits", "features", or a function (model, batch) -> Tensor [batch, ...]. data, net: as for Fit.
    """

    params: Params
    what: Literal["logits", "features"] | Callable[..., Tensor] = "logits"
    data: Samples | None = None
    net: Net | None = None


@dataclass(frozen=True, eq=False)
class Ask:
    """Run this phase at these clients, each with its message."""

    phase: str
    messages: Mapping[str, Message]


@dataclass(frozen=True, eq=False)
class Share:
    """Send one message to `to` (None: all neighbours), or to each peer its own; the result is the inbox.

    phase: under which name the messages are counted.
    """

    message: Message | Mapping[str, Message]
    to: Sequence[str] | None = None
    phase: str = "share"


class Method(Settings):
    """Hyper-parameters are fields; what a method is, class variables. Instances hold no state.

    unlike_models: clients may have bodies of different architectures; needs_classes: it makes no sense for
    tasks without classes.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    kind: ClassVar[Literal["local", "global", "clustered", "personalised", "peer"]]
    travels: ClassVar[str]
    unlike_models: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False

    def check(self, federation: Federation) -> None:
        """Raise ConfigError, naming the setting, when the method cannot work on this federation."""

    def equip(self, net: Net, task: Task, key: int) -> Net:
        """The net that this method trains: `net`, or one with more modules, initialised from `key`."""
        return net

    def sample(self, server: ServerView) -> list[str]:
        """This round's clients: `training.per_round` of them, uniformly, without replacement."""
        drawn = server.rng("sample").permutation(len(server.clients))
        return sorted(server.clients[i] for i in drawn[: server.training.count(len(server.clients))])


class ServerMethod(Method):
    """`round` runs at the server; the phases that it asks for are methods of the same class, run at clients."""

    def start(self, server: ServerView) -> None:
        """Set the server's state before the first round."""

    def join(self, client: ClientView) -> None:
        """Set a client's state when it is first met."""

    @abstractmethod
    def round(self, server: ServerView, sampled: Sequence[str]) -> Flow:
        """One round at the server: yield Ask, renew `server.state`, set `server.graph` if there is one."""

    @abstractmethod
    def offer(self, server: ServerView, id: str) -> Message:
        """What this client needs from the server to know its model now (empty: its own state is enough)."""

    @abstractmethod
    def use(self, client: ClientView, message: Message) -> Params:
        """The parameters that the client would use now, given `offer`'s message."""

    def welcome(self, server: ServerView, ids: Sequence[str]) -> Flow:
        """What clients that never took part would be offered: {id: Message} for `use`.

        Runs for evaluation only: it may yield Ask at these clients, but neither their state nor the server's
        outlives it. Here: the same as for anyone else.
        """
        return {id: self.offer(server, id) for id in ids}
        yield


class PeerMethod(Method):
    """`round` runs at every peer, which sees its own samples and state and what neighbours sent."""

    def join(self, peer: PeerView) -> None:
        """Set a peer's state before its first round."""

    @abstractmethod
    def round(self, peer: PeerView) -> Flow:
        """One round at one peer: yield Fit, Infer and Share, renew `peer.state`."""

    @abstractmethod
    def use(self, peer: PeerView) -> Params:
        """The parameters that the peer would use now."""

    def welcome(self, peer: PeerView) -> Flow:
        """Set the state of a peer that never took part, for evaluation only: may yield Fit and Infer.

        Here: nothing, so that it has what `join` gave it.
        """
        return None
        yield

    def graph(self, states: Mapping[str, Mapping[str, Any]]) -> Graph | None:
        """The graph that the peers' states hold, for the records; no peer ever sees it."""
        return None
