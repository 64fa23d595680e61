"""The contract between methods and runners: a method yields requests, and a runner decides how to carry them out.

Methods are written as flows, generators that yield requests and receive answers:

    request                                  answer                   yielded in
    Fit(params, ...)                         Fitted                   ClientFlow, PeerFlow
    Infer(params, what)                      Tensor                   ClientFlow, PeerFlow
    Ask(phase, {client id: Message})         {client id: Message}     ServerFlow
    Share(Message or {peer id: Message})     {peer id: Message}       PeerFlow

`answer = yield from request` and `answer = yield request` do the same; a type checker knows the type of the first.
Ask and Share return the messages that arrived: any client or peer may be missing from the answer.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, cast, overload

from torch import Tensor

from fedkin import codec
from fedkin.codec import Params
from fedkin.errors import MethodError, OnlyMean
from fedkin.federation import AnyRoster, Samples, Task
from fedkin.forms import Fields, Form
from fedkin.learning.aggregate import RunningMean, weighted_mean
from fedkin.learning.training import Fitted, Training
from fedkin.settings import Settings

if TYPE_CHECKING:
    from fedkin.graph import Graph
    from fedkin.learning.losses import Loss
    from fedkin.learning.net import Net
    from fedkin.views import ClientView, PeerView, ServerView, View

__all__ = ["Ask", "AveragedReplies", "ClassVectors", "ClientFlow", "Fit", "Fitted", "Infer", "Mean", "Message",
           "Method", "Params", "PeerFlow", "PeerMethod", "ServerFlow", "ServerMethod", "Share", "phase"]  # fmt: skip

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Message(Mapping[str, Any]):
    """Named tensors (or dicts of them) and small values that travel between clients, peers and a server.

    >>> import torch
    >>> message = Message(params={"head.bias": torch.zeros(10)}, n=3)
    >>> Message.from_bytes(message.to_bytes())["n"], message.floats
    (3, 10)
    """

    def __init__(self, /, **fields: Any) -> None:
        self._fields = codec.Named(fields)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def items(self) -> ItemsView[str, Any]:  # Mapping's own method takes ten times as long
        return self._fields.items()

    def __repr__(self) -> str:
        return f"Message({', '.join(self._fields)}; {self.nbytes} bytes)"

    @property
    def params(self) -> Params:
        """Return the field `params`."""
        params: Params = self["params"]
        return params

    def __getattr__(self, name: str) -> Any:
        """Return a field: message.head is message["head"]."""
        if name.startswith("_"):  # copy and pickle ask for these
            raise AttributeError(name)
        return self[name]

    def to_bytes(self) -> bytes:
        """Return the message as safetensors bytes; an empty message has no bytes."""
        return codec.encode(self._fields) if self._fields else b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Return the message that `to_bytes` wrote; raises MethodError for other bytes."""
        return cls(**codec.decode(data)) if data else cls()

    @property
    def nbytes(self) -> int:
        """The length of `to_bytes()`, computed without writing the bytes."""
        return codec.size(self._fields)[0] if self._fields else 0

    @property
    def floats(self) -> int:
        """The number of floating-point numbers in the message, which papers report."""
        return codec.size(self._fields)[1]


@dataclass(frozen=True, eq=False)
class Fit:
    """Train `params` on the client's own samples; the answer is a Fitted.

    loss(model, batch, extras, carry) -> value, or (value, new carry); None: the task's loss. extras: tree of tensors
    that do not change; carry: tree of tensors that the loss replaces at every step. training: batch size, steps,
    optimiser; None: those of the experiment. data, net: other samples or another net than the client's own.
    """

    params: Params
    loss: Loss | None = None
    extras: codec.Tree = field(default_factory=dict)
    carry: codec.Tree = field(default_factory=dict)
    training: Training | None = None
    data: Samples | None = None
    net: Net | None = None

    def __iter__(self) -> Generator[Fit, Any, Fitted]:
        fitted: Fitted = yield self
        return fitted


@dataclass(frozen=True, eq=False)
class Infer:
    """Run `params` over the client's own training samples, without gradients; the answer is one Tensor [n, ...].

    what: "logits", "features", or a function (model, batch) -> Tensor [batch, ...]. data, net: as for Fit.
    """

    params: Params
    what: Literal["logits", "features"] | Callable[..., Tensor] = "logits"
    data: Samples | None = None
    net: Net | None = None

    def __iter__(self) -> Generator[Infer, Any, Tensor]:
        values: Tensor = yield self
        return values


@dataclass(frozen=True)
class Mean:
    """A request for only the weighted mean of one field over all replies.

    field: parameters by name. weight: the field with the weight of a reply; None weighs all equally. group: {client id:
    group} for a mean in each group; a client without a group replies in full. None: one mean of all.
    """

    field: str = "params"
    weight: str | None = "n"
    group: Mapping[str, str] | None = dataclasses.field(default=None, repr=False)

    def weigh(self, reply: Mapping[str, Any]) -> float:
        """Return the weight of a reply."""
        return 1.0 if self.weight is None else float(reply[self.weight])

    def group_of(self, id: str) -> str | None:
        """Return a client's group, or "" if there is one mean of all; None: it has no group and replies in full."""
        return "" if self.group is None else self.group.get(id)

    def of(self, replies: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the mean over the answer to an Ask with this mean, or over full replies; at least one reply."""
        if isinstance(replies, AveragedReplies):
            means = replies.means(self)
            return means[""] if means else weighted_mean({}, {})
        params = {id: reply[self.field] for id, reply in replies.items()}
        return weighted_mean(params, {id: self.weigh(reply) for id, reply in replies.items()})

    def by_group(self, replies: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Tensor]]:
        """Return {group: its mean} over the answer to an Ask with this mean, without groups that sent nothing."""
        if not isinstance(replies, AveragedReplies):
            raise MethodError("mean.by_group(answer): the answer must be the one to Ask(..., mean=mean), unchanged")
        return replies.means(self)


class AveragedReplies(Mapping[str, Message]):
    """The answer to an Ask with a mean: replies by client id without the averaged field, and the means of that field.

    Replies are added one after another, in the order of the client ids; their values of the field are not kept.
    """

    def __init__(self, mean: Mean, replies: Mapping[str, Message] | None = None) -> None:
        self.mean = mean
        self._replies: dict[str, Message] = {}
        self._means: dict[str, RunningMean] = {}
        for id, reply in sorted((replies or {}).items()):
            self.add(id, reply)

    def __getitem__(self, id: str) -> Message:
        return self._replies[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def add(self, id: str, reply: Message) -> None:
        """Add a reply to the mean of its group, and keep its other fields."""
        group = self.mean.group_of(id)
        if group is None:
            self._replies[id] = reply
        else:
            self.add_term(group, reply[self.mean.field], self.mean.weigh(reply), {id: reply})

    def add_term(self, group: str, params: Params, weight: float, replies: Mapping[str, Message]) -> None:
        """Add a term to a group's mean: one reply's parameters, or the mean of several replies."""
        self._means.setdefault(group, RunningMean()).add(params, weight)
        self._replies |= {id: _AveragedReply(reply, self.mean) for id, reply in replies.items()}

    def means(self, mean: Mean) -> dict[str, dict[str, Tensor]]:
        """Return {group: mean}, without groups that sent nothing; raises MethodError if the Ask had another mean."""
        if mean != self.mean:
            raise MethodError(f"{mean!r}.of(answer): the answer is to Ask(..., mean={self.mean!r}): write one for both")
        return {group: running.mean() for group, running in sorted(self._means.items())}


class _AveragedReply(Message):
    """A reply without the averaged field; the error for that field says where its mean is."""

    def __init__(self, reply: Message, mean: Mean) -> None:
        super().__init__(**{name: value for name, value in reply.items() if name != mean.field})
        self.mean = mean

    def __getitem__(self, name: str) -> Any:
        if name == self.mean.field:
            raise OnlyMean(
                f"the reply has no field {name!r} of its own, since it answers Ask(..., mean={self.mean!r}): "
                "`mean.of(answer)`, with the unchanged answer, is the mean over all replies; leave out `mean` where "
                "single replies are needed"
            )
        return super().__getitem__(name)


@dataclass(frozen=True, eq=False)
class Ask:
    """Run this phase at these clients, each with its message; the answer has the replies by client id."""

    phase: str
    messages: Mapping[str, Message]
    mean: Mean | None = None  # of one field: replies lack this field, and `mean.of(answer)` returns its mean

    def __iter__(self) -> Generator[Ask, Any, Mapping[str, Message]]:
        replies: Mapping[str, Message] = yield self
        return replies

    def answer(self, replies: Mapping[str, Message]) -> Mapping[str, Message]:
        """Return the answer that the server's flow receives for these replies."""
        if self.mean is None or isinstance(replies, AveragedReplies):
            return replies
        return AveragedReplies(self.mean, replies)


@dataclass(frozen=True, eq=False)
class Share:
    """Send one message to `to` (None: all neighbours), or {peer id: its message}; the answer is the inbox."""

    message: Message | Mapping[str, Message]
    to: Sequence[str] | None = None
    phase: str = "share"  # the name under which the messages are recorded

    def __iter__(self) -> Generator[Share, Any, dict[str, Message]]:
        inbox: dict[str, Message] = yield self
        return inbox


ClientFlow: TypeAlias = Generator[Fit | Infer, Any, R]
ServerFlow: TypeAlias = Generator[Ask, Any, R]
PeerFlow: TypeAlias = Generator[Fit | Infer | Share, Any, R]


class ClassVectors(NamedTuple):
    """Class vectors that a participant keeps: table [classes, d], and a mask of the known rows, known [classes]."""

    table: Tensor
    known: Tensor


@overload
def phase(function: F, /) -> F: ...
@overload
def phase(*sets: Fields, **fields: Form) -> Callable[[F], F]: ...
def phase(*sets: Any, **fields: Form) -> Any:
    """Declare a method of a ServerMethod as a phase: `(client, message)` gives a Message or a ClientFlow[Message].

    A server can ask for phases only. `@phase(params=NET, n=COUNT)` also declares the reply's fields: replies are
    checked against them before the server sees them. `@phase({...}, {...})` declares several possible sets of fields.
    A bare `@phase` accepts any reply with finite numbers. An override of a phase is a phase too, but its reply is
    checked only if the override declares fields itself.
    """
    if len(sets) == 1 and not fields and callable(sets[0]):
        sets[0].__dict__["is_phase"] = True
        return sets[0]

    def declare(function: F) -> F:
        function.__dict__.update({"is_phase": True, "sends": tuple(sets) or (fields,)})
        return function

    return declare


class Method(Settings):
    """Base class of methods: hyper-parameters are fields, and instances have no state.

    Class variables describe the method. travels: what is sent, in words. unlike_models: clients may have bodies of
    different architectures. needs_classes: it works only for tasks with classes. linear: it works only for models
    without a trainable body. weighs_classes: its losses use class weights. fits: number of Fits of a client in a round;
    `privacy.sample_epsilon` is spent over those of all rounds.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    kind: ClassVar[Literal["local", "global", "clustered", "personalised", "peer"]]
    travels: ClassVar[str]
    unlike_models: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False
    weighs_classes: ClassVar[bool] = True
    fits: ClassVar[int] = 1
    linear: ClassVar[bool] = False

    def check(self, federation: AnyRoster) -> None:
        """Raise ConfigError, naming the setting, if the method cannot work on this federation."""

    def equip(self, net: Net, task: Task, key: int) -> Net:
        """Return the net that this method trains: `net`, or a net with further modules, initialised from `key`."""
        return net

    def sample(self, server: ServerView[Any]) -> list[str]:
        """Draw the clients of this round: `training.clients_per_round` of them, uniformly, without replacement."""
        drawn = server.rng("sample").permutation(len(server.clients))
        return sorted(server.clients[i] for i in drawn[: server.training.count(len(server.clients))])

    @classmethod
    def phases(cls) -> frozenset[str]:
        """Return the names of the phases in which clients or peers send messages."""
        return frozenset()

    @classmethod
    def declared(cls, phase: str) -> Sequence[Fields] | None:
        """Return the sets of fields that messages of this phase may have; None: nothing is declared."""
        return None

    def class_vectors(self, view: View[Any]) -> ClassVectors | None:
        """Return the class vectors that a client, a peer or the server keeps, for the report; None: it keeps none."""
        return None


class ServerMethod(Method):
    """A method with a server: `round` runs at the server, and asks clients to run the phases of the same class.

    by_client: names of the tables {client id: ...} in the server's state, "a.b" for b in a; see `leave`.
    """

    by_client: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @cache  # it is needed for every message
    def phases(cls) -> frozenset[str]:
        """Return the names of the phases: the methods declared with `@phase` here or in a base class."""
        entries = (item for base in cls.__mro__ for item in vars(base).items())
        return frozenset(name for name, entry in entries if getattr(entry, "is_phase", False))

    @classmethod
    def declared(cls, phase: str) -> Sequence[Fields] | None:
        """Return what `@phase` declared for this phase."""
        return cast("Sequence[Fields] | None", vars(getattr(cls, phase)).get("sends"))

    def start(self, server: ServerView[Any]) -> None:
        """Set the server's state before the first round."""

    def leave(self, server: ServerView[Any], ids: Collection[str]) -> None:
        """Forget clients that have left, before the next round: their data no longer count.

        By default the tables of `by_client` lose their rows, and in tables of tables, such as weights, their columns.
        """
        for path in self.by_client:
            server.state.update(_without(server.state, path.split("."), ids))

    def join(self, client: ClientView[Any]) -> None:
        """Set the state of a client before its first phase."""

    @abstractmethod
    def round(self, server: ServerView[Any], sampled: Sequence[str]) -> ServerFlow[None]:
        """Run a round at the server: yield Ask, update `server.state`, and set `server.graph` and `server.info`."""

    @abstractmethod
    def offer(self, server: ServerView[Any], id: str) -> Message:
        """Return the message that this client needs for its current model (empty: its own state is enough)."""

    def use(self, client: ClientView[Any], message: Message) -> Params | ClientFlow[Params]:
        """Return the parameters that the client would use now, given `offer`'s message, or a flow that finds them.

        By default these are the message's `params`.
        """
        params: Params = message.params
        return params

    def welcome(self, server: ServerView[Any], ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Return the offers to clients that never took part: {id: Message} for `use`.

        This runs for evaluation only. It may yield Ask at these clients, but changes to their state and to the
        server's are dropped afterwards. By default the offer is the same as for other clients.
        """
        return {id: self.offer(server, id) for id in ids}
        yield


def _without(state: Mapping[str, Any], path: Sequence[str], ids: Collection[str]) -> dict[str, Any]:
    """Return {first name of the path: its table}; the table at the end of the path lacks these clients."""
    table = state.get(path[0])
    if not table:
        return {}
    if isinstance(table, list):
        return {path[0]: [id for id in table if id not in ids]}
    if len(path) > 1:
        return {path[0]: {**table, **_without(table, path[1:], ids)}}
    return {path[0]: {id: _without_columns(row, ids) for id, row in table.items() if id not in ids}}


def _without_columns(row: Any, ids: Collection[str]) -> Any:
    # Keys of parameters are names of tensors; such a name may equal a client id.
    if isinstance(row, list):
        return [id for id in row if id not in ids]
    if not isinstance(row, dict) or any(isinstance(value, Tensor) for value in row.values()):
        return row
    return {id: value for id, value in row.items() if id not in ids}


class PeerMethod(Method):
    """A method without a server: `round` runs at every peer, on its samples, its state and its neighbours' messages.

    shares: the fields of the messages of each phase of `Share`, or several possible sets of fields, as for `phase`;
    "report": the fields of `report`'s message. Messages of other phases are only checked for finite numbers.
    """

    shares: ClassVar[Mapping[str, Fields | Sequence[Fields]]] = {}

    @classmethod
    def phases(cls) -> frozenset[str]:
        """Return the names in `shares`."""
        return frozenset(cls.shares)

    @classmethod
    def declared(cls, phase: str) -> Sequence[Fields] | None:
        """Return what `shares` declares for this phase."""
        return [fields] if isinstance(fields := cls.shares.get(phase), Mapping) else fields

    def join(self, peer: PeerView[Any]) -> None:
        """Set a peer's state before its first round."""

    @abstractmethod
    def round(self, peer: PeerView[Any]) -> PeerFlow[None]:
        """Run a round at one peer: yield Fit, Infer and Share, and update `peer.state`."""

    @abstractmethod
    def use(self, peer: PeerView[Any]) -> Params:
        """Return the parameters that the peer would use now; they depend on its state alone."""

    def welcome(self, peer: PeerView[Any]) -> PeerFlow[None]:
        """Set the state of a peer that never took part, for evaluation only; it may yield Fit and Infer.

        By default the peer keeps the state from `join`.
        """
        return None
        yield

    def report(self, peer: PeerView[Any]) -> Message:
        """Return this peer's message for the records after a round; no other peer sees it."""
        return Message()

    def graph_of(self, reports: Mapping[str, Message]) -> Graph | None:
        """Return the graph that the reports of the peers describe, for the records."""
        return None


AnyMethod = ServerMethod | PeerMethod
