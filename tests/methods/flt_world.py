"""Small federations in which FLT has groups to find."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedkin import graph as g
from fedkin.data.dataset import Dataset, Part
from fedkin.engines import Setup
from fedkin.federation import Client, Federation, Samples, Scale, Task
from fedkin.learning import Net, Training
from fedkin.learning.models import Mlp
from fedkin.methods.flt import Flt
from support import samples_of

CLASSES = {"a": (0, 1), "b": (2, 3), "c": (4, 5)}
PLACES = np.random.default_rng(5).normal(size=(6, 8)) * 6


def samples(group: str, count: int, seed: int) -> Samples:
    """Points of the group's two classes, each class a place in 8 dimensions."""
    rng = np.random.default_rng(seed)
    y = rng.choice(CLASSES[group], count)
    return samples_of(PLACES[y] + rng.normal(size=(count, 8)), y)


def member(number: int, group: str, **more: Any) -> Client:
    """A client whose id says nothing of its group."""
    id = f"{(number * 37) % 101:03d}"
    return Client(id, samples(group, 20 + number, number), samples(group, 10, 1000 + number), group=group, **more)


def grouped(clients: int = 12, **more: Any) -> Federation:
    made = [member(number, "abc"[number % 3]) for number in range(clients)]
    return Federation([*made, *more.get("extra", ())], Task(6, (8,)), "grouped")


# FLT without UMAP, with the distances of the released code: of few clients, with groups that tests can foresee.
RAW: dict[str, Any] = {"embedding": "none", "distance": "matching", "gamma": "groups", "cluster": "distances"}


def raw(groups: Any = 3, **more: Any) -> Flt:
    """FLT of raw inputs; more: its settings, `graph` added to RAW."""
    return Flt.model_validate({**more, "graph": {**RAW, "groups": groups, **more.get("graph", {})}})


def groups_of(engine: Any) -> dict[str, int]:
    return dict(engine.server.state["group"])


def score(found: dict[str, int], federation: Federation) -> float:
    ids = sorted(found)
    return float(g.ari([str(federation[id].group) for id in ids], [found[id] for id in ids]))


def images(count: int, bright: int | None, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, 1, 8, 8)).astype(np.uint8) if bright is None else np.full((count, 1, 8, 8), bright)
    return Samples(torch.from_numpy(x.astype(np.uint8)), torch.from_numpy(rng.integers(0, 2, count)), None, Scale())


def public(shape: tuple[int, ...] = (1, 8, 8)) -> Any:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (40, *shape)).astype(np.uint8))
    part = Part(x, torch.from_numpy(rng.integers(0, 2, 40)))
    return lambda name: Dataset(name, part, part, Task(2, shape), Scale())


def with_public(method: Flt, federation: Federation, given: Any) -> Setup:
    net = Net.build(lambda: Mlp(hidden=(7,)).build(federation.task), 11)
    return Setup(method, federation, net, Training(lr=0.1, local_steps=2), public=given)


def image_federation() -> Federation:
    parts = [images(12 + k, None if k % 2 else 40 * k, k) for k in range(4)]
    return Federation([Client(f"c{k}", part, part) for k, part in enumerate(parts)], Task(2, (1, 8, 8)))
