"""The setup of a run: engine settings, faults, and everything else that an engine needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Parameter, Signature, getattr_static, signature
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from fedkin.engines.attacks import Attacks
from fedkin.engines.epsilon import need_accountant
from fedkin.engines.failures import place_in
from fedkin.engines.privacy import Privacy, noised_in
from fedkin.errors import ConfigError, MethodError, imported
from fedkin.federation import Federation, Task
from fedkin.flow import AnyMethod, Method, PeerMethod, ServerMethod
from fedkin.forms import Context, Fields, Form, Weights
from fedkin.graph.network import check_network
from fedkin.keys import key, rng
from fedkin.learning.devices import checked
from fedkin.learning.metrics import Measure
from fedkin.learning.net import Net, sample_inputs
from fedkin.learning.sgd import decide
from fedkin.learning.training import Training
from fedkin.settings import Settings
from fedkin.views import no_public_data

if TYPE_CHECKING:
    from fedkin.data import Dataset


class EngineSettings(Settings):
    """The settings of an engine.

    mode: mode of local training: "fast" (many clients in one computation if `fedkin.learning.stacked` supports their
    net and loss, else client after client), "one-by-one" (client after client, the reference), or "workers" (processes
    of one thread, bit for bit equal to "one-by-one"). "fast" differs from these by rounding. workers: number of
    processes (0: one per core).
    device: device of local training: "cpu", "cuda" or "cuda:1". A GPU and a CPU do not give bit for bit equal results.
    network: which peers are neighbours, for methods without a server: "full", "ring", "regular:4", "erdos-renyi:0.3",
    "planted" (the known groups); with ", changing" a new network each round.
    alone: every client has a server of its own, or no neighbours: the method without exchange, as a control. Messages
    between a client and its own server are counted as usual.
    adversaries: "sign-flip:0.2" lets a fifth of the clients send the opposite of what they learned; other attacks are
    "scale", "shuffle", "noise", "model-replacement", "label-flip", "sybil", "alie", "ipm", and "copy:0.2:FIELD",
    "group-mean", "mimic", which forge fields of messages. Separate several attacks by commas. Adversaries are not
    evaluated.
    min_replies: the fewest replies to a server's request with which a round continues: a number, or a share (below 1)
    of the clients asked. on_missing: with fewer replies the round is skipped and leaves all states as before ("skip"),
    or the run stops and can be resumed ("stop").
    errors: a client whose own part fails (its samples, the net, the loss) counts as missing in that phase ("missing"),
    or ends the run ("stop"). If all clients fail in a phase, the run ends in any case.
    largest_n: replies with a larger number of samples are refused. message_limit_mb: largest size of a message in MB.
    """

    mode: Literal["fast", "one-by-one", "workers"] = "fast"
    workers: int = Field(0, ge=0)
    device: Annotated[str, AfterValidator(checked)] = "cpu"
    network: str = "full"
    alone: bool = False
    adversaries: str = "none"
    min_replies: int | float = Field(0, ge=0)
    on_missing: Literal["skip", "stop"] = "skip"
    errors: Literal["missing", "stop"] = "missing"
    largest_n: int = Field(10**9, ge=1)
    message_limit_mb: float = Field(1024.0, gt=0)

    @field_validator("network", "adversaries")
    @classmethod
    def _spec(cls, spec: str, info: ValidationInfo) -> str:
        try:
            check_network(spec) if info.field_name == "network" else Attacks.parse(spec)
        except ConfigError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        return spec

    @property
    def reach(self) -> str:
        """The network of the peers: `network`, or "none" if every client is alone."""
        return "none" if self.alone else self.network

    @field_validator("min_replies")
    @classmethod
    def _count_or_share(cls, least: int | float) -> int | float:
        if least > 1 and least % 1:
            raise ValueError("expected a whole number of replies, or a share below 1")
        return least

    def needed(self, asked: int) -> int:
        """Return the fewest replies with which a round continues, if this many clients were asked."""
        least = math.ceil(self.min_replies * asked) if self.min_replies < 1 else int(self.min_replies)
        return min(least, asked)

    @model_validator(mode="after")
    def _on_processors(self) -> Self:
        if self.device != "cpu" and self.mode == "workers":
            raise ValueError(f"mode = 'workers' is for processors; leave it out with device = {self.device!r}")
        return self


_PHASE = ("self", "client", "message")


@cache
def check_calls(kind: type[Method]) -> None:
    """Raise MethodError if a function of this method class does not accept the arguments that fedkin passes."""
    base = ServerMethod if issubclass(kind, ServerMethod) else PeerMethod
    calls = {
        name: tuple(signature(part).parameters)
        for name, part in {**vars(Method), **vars(base)}.items()
        if isinstance(part, FunctionType) and not name.startswith("_")
    }
    if issubclass(kind, ServerMethod):
        calls |= dict.fromkeys(kind.phases(), _PHASE)
    for name, expected in calls.items():
        bound = isinstance(getattr_static(kind, name), (classmethod, staticmethod))
        if (got := _unlike_signature(getattr(kind, name), len(expected) - bound)) is not None:
            raise MethodError(
                f"{place_in(kind, name)}{name!r} takes {got}; expected {name}({', '.join(expected)}), as it is called"
            )


def check_forms(kind: type[Method]) -> None:
    """Raise MethodError if this method class declares a field of a message as something else than a form."""
    for phase, fields in _declared_fields(kind):
        if odd := [f"{name} as {form!r}" for name, form in fields.items() if not isinstance(form, Form)]:
            wanted = "expected forms of fedkin.forms, such as COUNT"
            raise MethodError(f"{place_in(kind, phase)}phase {phase!r} declares {', '.join(odd)}; {wanted}")


def _declared_fields(kind: type[Method]) -> list[tuple[str, Fields]]:
    """Return (phase, declared fields) of all messages that clients send, one for each way to send a message."""
    return [(phase, fields) for phase in kind.phases() for fields in kind.declared(phase) or ()]


def _unlike_signature(function: object, count: int) -> str | None:
    """Return the signature of a function that does not accept `count` positional arguments; None if it does."""
    try:
        actual = signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a callable that is no Python function may have no signature
        return None
    try:
        actual.bind(*range(count))
    except TypeError:
        plain = [each.replace(annotation=Parameter.empty) for each in actual.parameters.values()]
        return str(Signature(plain))
    return None


Kind = Literal["nan", "inf", "shape", "type", "missing", "extra", "count"]
KINDS: tuple[Kind, ...] = ("nan", "inf", "shape", "type", "missing", "extra", "count")


class Faults(Settings):
    """The section `[faults]`: how often each fault occurs. All draws are keyed by the run's seed, client and round.

    dropout: probability in [0, 1) that a client's exchange with the server is lost; between peers, that a message is
    lost. before: the share of the lost exchanges that are lost on the way to the client, before it trains; the others
    are lost on the way back.
    late: probability that a reply comes too late to count. stale: probability that a reply is of the previous round.
    crash: probability that a client fails in a phase, or a peer in a round, before it does any work.
    garbage: probability that a reply or a peer's message is corrupted in one of these `kinds`: a number that is "nan"
    or "inf", tensors of another "shape", a value of another "type", a "missing" or an "extra" field, a "count" out of
    range.
    gone: probability that a client leaves in some round and never comes back; it is evaluated with its last state.
    """

    dropout: float = Field(0.0, ge=0, lt=1)
    before: float = Field(0.5, ge=0, le=1)
    late: float = Field(0.0, ge=0, lt=1)
    stale: float = Field(0.0, ge=0, lt=1)
    crash: float = Field(0.0, ge=0, lt=1)
    garbage: float = Field(0.0, ge=0, lt=1)
    kinds: tuple[Kind, ...] = Field(KINDS, min_length=1)
    gone: float = Field(0.0, ge=0, lt=1)

    @property
    def on_the_way(self) -> bool:
        """Whether any faults of messages are on."""
        return any((self.dropout, self.late, self.stale, self.garbage, self.gone))

    def crashes(self, seed: int, id: str, round: int, phase: str) -> bool:
        """Whether this client fails in this phase."""
        return self.crash > 0 and rng(seed, id, round, phase, "crash").random() < self.crash


@dataclass(frozen=True, eq=False)
class Setup:
    """The setup of a run: method, clients, nets and settings.

    clients: the clients with their samples; over a network, only the task.
    nets: each client's own net, if they differ (`net` is then the server's net).
    public(name): a data set that the server owns. faults: the simulated faults. privacy: the noise on uploads.
    measures: further metrics of each client's model, in every evaluation.
    """

    method: AnyMethod
    clients: Federation | Task
    net: Net
    training: Training
    seed: int = 0
    engine: EngineSettings = field(default_factory=EngineSettings)
    nets: Mapping[str, Net] | None = None
    public: Callable[[str], Dataset] = no_public_data
    faults: Faults = field(default_factory=Faults)
    privacy: Privacy = field(default_factory=Privacy)
    measures: tuple[Measure, ...] = ()

    def __post_init__(self) -> None:
        check_calls(type(self.method))
        check_forms(type(self.method))
        self.privacy.check([self.net, *(self.nets or {}).values()], self.sent_buffers)
        if self.method.needs_classes:
            self.task.need_labels("method.name", repr(self.method.name))
        self._check_weights()
        self._check_views()
        if self.engine.min_replies and isinstance(self.method, PeerMethod):
            raise ConfigError(
                f"run.min_replies: method {self.method.name!r} has no server that waits for replies; leave it out"
            )
        if self.privacy.secure_sums:
            self._check_sums()
        if self.privacy.signature_epsilon:
            self._check_signatures()
        if self.privacy.sample_epsilon:
            self._check_private_training()
        if isinstance(self.clients, Federation):
            Attacks.parse(self.engine.adversaries).check(self.method, self.clients)

    @property
    def sums_securely(self) -> bool:
        """Whether parameters leave clients only in secure sums; with `alone` nothing is shared or summed."""
        return self.privacy.secure_sums and not self.engine.alone

    def context(self, net: Net, asked: Mapping[str, Any] | None = None) -> Context:
        """Return the context that decides the forms of messages of clients with this net. asked: the request."""
        most, private = int(self.engine.message_limit_mb * 2**20), self.privacy.signature_epsilon is not None
        return Context(self.method, net, self.task, self.engine.largest_n, most, asked or {}, private)

    def sent_buffers(self, net: Net) -> list[str]:
        """Return the names of the buffers of a net in the messages that clients send."""
        forms = [form.bare for _, fields in _declared_fields(type(self.method)) for form in fields.values()]
        sent = {name for form in forms if isinstance(form, Weights) for name in form.names(net)}
        return [name for name in net.initial if name in sent and name not in net.trainable]

    def _check_signatures(self) -> None:
        """Raise ConfigError if the method's clients send no signatures."""
        sent = [fields for _, fields in _declared_fields(type(self.method))]
        if isinstance(self.method, PeerMethod) or not any(map(noised_in, sent)):
            raise ConfigError(
                f"privacy.signature_epsilon: clients of method {self.method.name!r} send no signature; leave it out, "
                "or choose a method with groups from tests, such as kin"
            )

    def _check_sums(self) -> None:
        """Raise ConfigError if there is no server, nothing that can be summed, or an attack, which sums would hide."""
        imported("cryptography", "privacy.secure_sums", "network")
        if isinstance(self.method, PeerMethod):
            raise ConfigError(
                f"privacy.secure_sums: method {self.method.name!r} has no server that could sum; leave it out"
            )
        forms = [form for _, fields in _declared_fields(type(self.method)) for form in fields.values()]
        if forms and not any(form.is_parameters for form in forms):
            raise ConfigError(
                f"privacy.secure_sums: clients of method {self.method.name!r} send no parameters, and what they send "
                "cannot be summed; leave it out"
            )
        if self.engine.adversaries != "none":
            how = "leave out run.adversaries, or secure_sums"
            raise ConfigError(f"privacy.secure_sums: the server sees no reply by itself, and so no attack; {how}")

    def _check_private_training(self) -> None:
        """Raise ConfigError if a sample's gradient depends on other samples, or the accountant is not installed."""
        if self.training.class_weights is not None or not self.method.weighs_classes:
            what = "training.class_weights" if self.method.weighs_classes else f"method {self.method.name!r}"
            why = "a sample's loss depends on other samples, so that its gradient is not its own"
            raise ConfigError(f"privacy.sample_epsilon: with {what} {why}; leave one of them out")
        if self.training.batch_size != "all":
            need_accountant()

    def _check_views(self) -> None:
        """Raise ConfigError if the task does not allow augmented views, or the method makes its own."""
        views = self.training.augment
        if views is None or not views.on:
            return
        views.check(self.task, "training.augment")
        if self.task.kind == "segmentation" and (views.crop < 1 or views.flip):
            raise ConfigError("training.augment: crops and flips would move the image and not its labels; set crop = 1 "
                              "and flip = 0")  # fmt: skip
        if "augment" in type(self.method).model_fields:
            why = f"method {self.method.name!r} makes views of its own"
            raise ConfigError(f"training.augment: {why}; set method.augment instead")

    def _check_weights(self) -> None:
        """Raise ConfigError if this task, or this method, has no use for the class weights."""
        weights = self.training.class_weights
        if weights is None:
            return
        self.task.need_labels("training.class_weights", "a weight of classes")
        if weights != "balanced" and len(weights) != self.task.classes:
            have = f"{len(weights)} numbers, and the task has {self.task.classes} classes"
            raise ConfigError(f"training.class_weights: {have}; expected one for each")
        if not self.method.weighs_classes:
            why = f"the loss of method {self.method.name!r} compares samples with each other and has no weights"
            raise ConfigError(f"training.class_weights: {why}; leave them out, or choose another method")

    @property
    def task(self) -> Task:
        """The task that is learned."""
        return self.clients if isinstance(self.clients, Task) else self.clients.task

    @property
    def federation(self) -> Federation:
        """The clients of a simulation, with their samples."""
        assert isinstance(self.clients, Federation)
        return self.clients

    def net_of(self, id: str) -> Net:
        """Return the net of this client."""
        return self.net if self.nets is None else self.nets[id]

    def equipped(self) -> Setup:
        """Return the setup with the nets that the method trains; raises ConfigError if they do not fit the method."""
        seed = key(self.seed, "equip")
        if self.nets is not None and not self.method.unlike_models:
            raise ConfigError(
                f"method {self.method.name!r} needs the same model at every client, and these have unlike ones "
                "(model.name = 'mixed'): choose one model, or a method that allows unlike models"
            )
        nets = dict.fromkeys([self.net, *(self.nets or {}).values()])
        equipped = {net: self.method.equip(net, self.task, seed) for net in nets}
        for net in nets:
            net.check(self.task)
        # Decide here, so that the memory layout of the net is fixed before other processes get it.
        for net in equipped.values():
            decide(net, sample_inputs(self.task, net.dtype))
        of_clients = None if self.nets is None else {client: equipped[net] for client, net in self.nets.items()}
        return replace(self, net=equipped[self.net], nets=of_clients)
