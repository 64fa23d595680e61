"""Small federations and settings that many tests share."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin.engines import Engine, EngineSettings, Setup
from fedkin.engines.simulation import Simulation
from fedkin.engines.site import LocalSite
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.learning.training import Training


def cases() -> dict[str, ServerMethod | PeerMethod]:
    """Methods with settings that matter in a tiny federation: CASES of every module in tests/methods/cases."""
    found: dict[str, ServerMethod | PeerMethod] = {}
    for path in sorted((Path(__file__).parent / "methods" / "cases").glob("*.py")):
        spec = spec_from_file_location(f"cases_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= module.CASES
    return found


def small_federation(clients: int = 6, seed: int = 0, classes: int = 4, width: int = 5) -> Federation:
    """Clients of unlike sizes in two planted groups: the second sees its labels reversed."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, width)) * 2
    names = [f"site-{letter}" for letter in rng.permutation(list("qwertyuiopasdfghjklzxcvbnm"))[:clients]]
    made = []
    for number, name in enumerate(names):
        group = number % 2

        def draw(count: int, group: int = group) -> Samples:
            y = rng.integers(0, classes, count)
            x = centres[y] + rng.normal(size=(count, width))
            y = classes - 1 - y if group else y
            return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))

        made.append(Client(name, draw(18 + 3 * number), draw(12), group=f"g{group}"))
    return Federation(made, Task(classes, (width,)), "small")


def small_setup(
    method: ServerMethod | PeerMethod, federation: Federation | None = None, dtype: torch.dtype = torch.float32,
    dropout: float = 0.0, seed: int = 0, **training: object,
) -> Setup:  # fmt: skip
    """A setup with a small MLP; a few steps a round, all clients."""
    federation = federation if federation is not None else small_federation()
    plan = {"rounds": 3, "lr": 0.1, "batch_size": 8, "local_steps": 4, **training}
    net = Net.build(lambda: Mlp(hidden=(7,)).build(federation.task), 11, dtype)
    return Setup(method, federation, net, Training.model_validate(plan), seed, EngineSettings(dropout=dropout))


def local_site(engine: Engine) -> LocalSite:
    """Where the clients of a local engine live."""
    assert isinstance(engine, Simulation)
    assert isinstance(engine.site, LocalSite)
    return engine.site


def planted_similarities(
    m: int, clusters: int, within: float, across: float, noise: float, seed: int = 0
) -> tuple[Any, Any, Any]:
    """(similarities [m, m], labels, sample counts from 100 to 300)."""
    rng = np.random.default_rng(seed)
    labels = np.arange(m) % clusters
    s = np.where(labels[:, None] == labels, within, across) + noise * rng.normal(size=(m, m))
    s = (s + s.T) / 2
    np.fill_diagonal(s, 1.0)
    return s, labels, rng.integers(100, 301, m).astype(float)
