"""Engines that simulate a federation, with access to the samples of all clients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fedkin.engines.attacks import FORGERS, Attacks, Forgery, poisoned
from fedkin.engines.executors.jobs import Executor, Modules, OneByOne
from fedkin.engines.executors.ray import RayTasks
from fedkin.engines.executors.stacked import Fast
from fedkin.engines.executors.workers import Workers
from fedkin.engines.facts import facts_of
from fedkin.engines.privacy import keyed
from fedkin.engines.rounds import Engine
from fedkin.engines.setup import Setup
from fedkin.engines.site import LocalSite
from fedkin.engines.states import BytesStates
from fedkin.engines.transport import BytesTransport, Observer, Transport
from fedkin.errors import ConfigError
from fedkin.learning.devices import opened


class LocalEngine(Engine):
    """The engine whose clients are in this process, in the order of their ids, each with its own samples and state."""

    name: ClassVar[str] = "local"
    through_bytes: ClassVar[bool] = False
    site: LocalSite

    def __init__(self, setup: Setup, *, transport: Transport | None = None, observers: Sequence[Observer] = ()) -> None:
        attacks = Attacks.parse(setup.engine.adversaries)
        self.adversaries = attacks.clients(setup.federation.seen, setup.seed)
        self._before_attacks = setup.federation
        # A simulated round is undone only if it has too few replies.
        self.can_undo = setup.engine.min_replies > 0
        if attacks.each:
            clients = poisoned(setup.federation, attacks, self.adversaries, setup.seed)
            setup = replace(setup, clients=clients)
        setup = setup.equipped()
        forgery = None
        if attacks.of("alie", "ipm", *FORGERS):
            forgery = Forgery(attacks, self.adversaries, setup.federation, setup.seed, setup.net_of)
        site = LocalSite(
            setup, setup.federation, self.make_executor(setup), states=BytesStates() if self.through_bytes else {},
            adversaries=self.adversaries, own_method=self.through_bytes, noise=keyed(setup.seed),
        )  # fmt: skip
        if transport is None and self.through_bytes:
            transport = BytesTransport(setup.seed)
        super().__init__(setup, setup.federation, site, transport=transport, observers=observers, forgery=forgery)

    def make_executor(self, setup: Setup) -> Executor:
        """Return the executor of local work."""
        settings, net, federation = setup.engine, setup.net, setup.federation
        if settings.mode == "workers":
            return Workers(net, federation, settings.workers or cores())
        kind = Fast if settings.mode == "fast" else OneByOne
        return kind(net, federation, Modules(opened(settings.device)))

    def facts(self) -> dict[str, Any]:
        # Attacks change samples; a run is recognised by those before them.
        return {**facts_of(self.setup.federation), "fingerprint": self._before_attacks.fingerprint()}


class LoopbackEngine(LocalEngine):
    """The engine in which every message and every client's state passes through bytes, as on a network.

    Clients answer in shuffled order, and each has its own copy of the method, so that data that a method passes outside
    its messages are lost.
    """

    name: ClassVar[str] = "loopback"
    through_bytes: ClassVar[bool] = True


class RayEngine(LocalEngine):
    """The local engine with its clients' work and samples on a Ray cluster (or on this machine, if there is none).

    It joins the cluster at RAY_ADDRESS, and runs `run.workers` jobs at a time (0: one per core). States and
    the server stay in this process and its checkpoints. The results equal those of the local engine bit for bit.
    """

    name: ClassVar[str] = "ray"

    def make_executor(self, setup: Setup) -> RayTasks:
        device = setup.engine.device
        if device != "cpu":
            raise ConfigError(
                f"run.device: {device!r}, but the tasks of run.engine = 'ray' run on processors; "
                "set run.device = 'cpu', or run.engine = 'local'"
            )
        return RayTasks(setup.net, setup.federation, setup.engine.workers)


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
