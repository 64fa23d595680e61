"""The setup of a run, which has everything that an engine needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedkin.engines.adversaries import Attacks
from fedkin.engines.calls import check_calls
from fedkin.engines.faults import Faults
from fedkin.engines.privacy import Privacy
from fedkin.engines.settings import EngineSettings
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Task
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.keys import key
from fedkin.learning.layout import decide
from fedkin.learning.metrics import Measure
from fedkin.learning.models.custom import sample_inputs
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.settings import parse
from fedkin.views import no_public_data

if TYPE_CHECKING:
    from fedkin.data import Dataset

__all__ = ["Plan", "Setup"]


@dataclass(frozen=True, eq=False)
class Plan:
    """The part of a setup that all participants know; it has no samples.

    nets: each client's own net, if they differ (`net` is then the server's net). measures: further metrics.
    """

    method: ServerMethod | PeerMethod
    task: Task
    net: Net
    training: Training
    seed: int
    engine: EngineSettings
    nets: Mapping[str, Net] | None = None
    faults: Faults = field(default_factory=Faults)
    privacy: Privacy = field(default_factory=Privacy)
    measures: tuple[Measure, ...] = ()

    def __post_init__(self) -> None:
        check_calls(type(self.method))
        self.privacy.check([self.net, *(self.nets or {}).values()])
        if self.method.needs_classes:
            self.task.need_labels("method.name", repr(self.method.name))
        self._check_weights()
        self._check_views()
        if self.engine.min_replies and isinstance(self.method, PeerMethod):
            raise ConfigError(
                f"run.min_replies: method {self.method.name!r} has no server that waits for replies; leave it out"
            )

    def _check_views(self) -> None:
        """Raise ConfigError if the samples have no views, or the method makes its own."""
        views = self.training.augment
        if views is None or not views.on:
            return
        views.check(self.task, "training.augment")
        if self.task.kind == "segmentation" and (views.crop < 1 or views.flip):
            raise ConfigError("training.augment: crops and flips would move the image and not its labels; set crop = 1 "
                              "and flip = 0")  # fmt: skip
        if "augment" in type(self.method).model_fields:
            raise ConfigError(
                f"training.augment: method {self.method.name!r} makes views of its own; set method.augment instead"
            )

    def _check_weights(self) -> None:
        """Raise ConfigError if this task, or this method, has no use for the class weights."""
        weights = self.training.class_weights
        if weights is None:
            return
        self.task.need_labels("training.class_weights", "a weight of classes")
        if weights != "balanced" and len(weights) != self.task.classes:
            raise ConfigError(
                f"training.class_weights: {len(weights)} numbers, and the task has {self.task.classes} classes; "
                "expected one for each"
            )
        if not self.method.weighs_classes:
            raise ConfigError(
                f"training.class_weights: the loss of method {self.method.name!r} compares samples with each other "
                "and has no weights; leave them out, or choose another method"
            )

    def net_of(self, id: str) -> Net:
        """Return the net of this client."""
        return self.net if self.nets is None else self.nets[id]

    def equipped(self) -> Plan:
        """Return the plan with the nets that the method trains; raises ConfigError if they do not fit the method."""
        seed = key(self.seed, "equip")
        if self.nets is not None and not self.method.unlike_models:
            raise ConfigError(
                f"method {self.method.name!r} needs the same model at every client, and these have unlike ones "
                "(model.name = 'mixed'): choose one model, or a method that allows unlike models"
            )
        known = {id(net): net for net in [self.net, *(self.nets or {}).values()]}
        made = {name: self.method.equip(net, self.task, seed) for name, net in known.items()}
        for net in known.values():
            net.check(self.task)
        # Decided here, so that the net is laid out when other processes get it.
        for net in made.values():
            decide(net, sample_inputs(self.task, net.dtype))
        nets = None if self.nets is None else {client: made[id(net)] for client, net in self.nets.items()}
        return replace(self, net=made[id(self.net)], nets=nets)


@dataclass(frozen=True, eq=False)
class Setup:
    """The setup of a run: method, nets, samples and engine settings.

    nets: each client's own net, if they differ (`net` is then the server's net).
    public(name): a data set that the server owns. faults: what goes wrong in this run. privacy: the noise on uploads.
    measures: further metrics of each client's model, in every evaluation.
    """

    method: ServerMethod | PeerMethod
    federation: Federation
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
        assert self.plan  # which is checked when it is made
        attacks = Attacks.parse(self.engine.adversaries)
        if attacks:
            attacks.check(self.method, self.federation)

    @property
    def plan(self) -> Plan:
        """Return the part that every participant knows."""
        return Plan(
            self.method,
            self.federation.task,
            self.net,
            self.training,
            self.seed,
            self.engine,
            self.nets,
            self.faults,
            self.privacy,
            self.measures,
        )

    def having(self, faults: Mapping[str, Any] | None = None, **settings: Any) -> Setup:
        """Return the setup with other engine settings and faults; raises ConfigError for an invalid setting."""
        given = {**self.engine.model_dump(exclude_unset=True), **settings}
        wrong = self.faults if faults is None else parse(Faults, faults, "faults")
        return replace(self, engine=parse(type(self.engine), given, "run"), faults=wrong)

    def equipped(self) -> Setup:
        """Return the setup with the nets that the method trains; raises ConfigError if they do not fit the method."""
        plan = self.plan.equipped()
        return replace(self, net=plan.net, nets=plan.nets)
