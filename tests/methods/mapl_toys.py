"""Small federations of two groups, and engines that ran on them, for the tests of MAPL."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.engines import LocalEngine, Setup
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.graph import Graph
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.methods.mapl import Mapl, MaplPlus
from support import same, samples_of, with_settings

MAPL, PLUS = Mapl, MaplPlus
KINDS: dict[str, type[Mapl]] = {kind.name: kind for kind in (Mapl, MaplPlus)}
PROTOTYPES = "prototypes.weight"


def two_groups(peers: int = 10, classes: int = 6, width: int = 8, seed: int = 0) -> Federation:
    """Peers of two groups with half of the classes each, and unlike numbers of samples."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, width)) * 2

    def draw(count: int, group: int) -> Samples:
        y = rng.integers(0, classes // 2, count) + group * (classes // 2)
        return samples_of(centres[y] + rng.normal(size=(count, width)), y)

    clients = []
    for k in range(peers):
        size = int(rng.integers(20, 61))
        clients.append(Client(f"peer-{k:03d}", draw(size, k % 2), draw(20, k % 2), group=f"g{k % 2}"))
    return Federation(clients, Task(classes, (width,)), "two groups")


def setup_of(method: Any, federation: Federation, network: str = "full", dropout: float = 0.0, **plan: Any) -> Setup:
    net = Net.build(lambda: Mlp(hidden=(12,)).build(federation.task), 5)
    training = Training.model_validate({"rounds": 9, "lr": 0.1, "batch_size": 16, "local_steps": 5, **plan})
    return with_settings(Setup(method, federation, net, training), {"dropout": dropout}, network=network)


class Ran:
    """An engine, and what its rounds gave."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.engine = setup, LocalEngine(setup)
        self.outcomes: list[Any] = []

    def round(self) -> Any:
        """The next round's outcome."""
        self.outcomes.append(self.engine.round(len(self.outcomes) + 1))
        return self.outcomes[-1]

    def model(self, id: str) -> Any:
        """The parameters that this peer would use now."""
        return self.engine.model(id)

    @property
    def traffic(self) -> list[Any]:
        """The messages of all rounds."""
        return [message for outcome in self.outcomes for message in outcome.traffic]

    @property
    def graph(self) -> Graph:
        """The last round's graph."""
        graph: Graph = self.outcomes[-1].graph
        return graph

    @property
    def rows(self) -> dict[str, dict[str, float]]:
        """The peers' weights above 0 after the last round."""
        mixing = np.asarray(self.graph.mixing)
        return {
            id: {other: float(w) for other, w in zip(self.graph.ids, row, strict=True) if w > 0}
            for id, row in zip(self.graph.ids, mixing, strict=True)
        }


def ran(setup: Setup, rounds: int) -> Ran:
    run = Ran(setup)
    for _ in range(rounds):
        run.round()
    return run


def same_bits(one: Ran, other: Ran) -> bool:
    return same(one.engine.models(), other.engine.models())
