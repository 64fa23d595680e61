"""Positions of clients' classes in feature space after a round: measured in a run, stored with its other records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin import codec
from fedkin.engines import Engine
from fedkin.engines.executors.jobs import Modules, one_thread
from fedkin.errors import MethodError, RunError
from fedkin.federation import Samples
from fedkin.flow import Params
from fedkin.graph import response_similarity
from fedkin.keys import rng
from fedkin.learning.losses import class_means
from fedkin.learning.net import Net, head_of
from fedkin.learning.sgd import infer, load

__all__ = ["Cloud", "Features", "measure", "read_features"]

_POINTS = 2000  # class means kept of a round; beyond this, some clients, drawn once for all rounds
_SAMPLES = 32  # of each class of a client: enough for its mean feature
_HEADS = 200  # clients whose heads are compared; fewer if their answers exceed the next limit:
_ANSWERS = 20_000_000


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points in feature space: client [n] (index into `Features.ids`, -1 the server), label [n], points [n, d]."""

    client: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    points: npt.NDArray[np.float32]

    def check(self, clients: int) -> None:
        """Raise ValueError unless these are points of this number of clients, or of the server."""
        n = len(self.points)
        if self.points.ndim != 2 or self.client.shape != (n,) or self.label.shape != (n,):
            raise ValueError(f"{n} points, {self.client.shape} clients and {self.label.shape} labels")
        if n and (self.client.min() < -1 or self.client.max() >= clients):
            raise ValueError(f"a point of client {self.client.max()}, but there are {clients}")


@dataclass(frozen=True, eq=False)
class Features:
    """The features recorded after a round.

    features: the mean feature of each class of each client in `ids`, under its own model, and the prototypes of a
    server that keeps some. anchors: what a method's clients keep themselves (SFMTL-Graph's anchors, MAPL's
    prototypes), or None. heads: similarity of the answers of the first m clients' heads on each other's class
    means, [m, m] (SFMTL-Graph, Eq. 8); None if all clients use one head. clients: the number there were to choose from.
    """

    round: int
    ids: tuple[str, ...]
    clients: int
    features: Cloud
    anchors: Cloud | None = None
    heads: npt.NDArray[np.float64] | None = None

    def to_bytes(self) -> bytes:
        """The same features always give the same bytes."""
        tree: dict[str, Any] = {"round": self.round, "ids": list(self.ids), "clients": self.clients}
        for name, cloud in (("features", self.features), ("anchors", self.anchors)):
            if cloud is not None:
                tree[name] = {part: torch.from_numpy(np.ascontiguousarray(a)) for part, a in vars(cloud).items()}
        if self.heads is not None:
            tree["heads"] = torch.from_numpy(self.heads.astype(np.float32))
        return codec.encode(tree)


def read_features(path: Path) -> Features:
    """The features that `to_bytes` wrote; raises RunError naming the file."""
    try:
        tree = codec.decode(path.read_bytes())
        clouds = {
            name: Cloud(*(tree[name][part].numpy() for part in ("client", "label", "points")))
            for name in ("features", "anchors") if name in tree
        }  # fmt: skip
        heads = tree["heads"].double().numpy() if "heads" in tree else None
        found = Features(tree["round"], tuple(tree["ids"]), tree["clients"], heads=heads, **clouds)
        for cloud in clouds.values():
            cloud.check(len(found.ids))
        return found
    except (MethodError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise RunError(f"{path}: not the features of a round ({error})") from None


@dataclass
class _Points:
    """A cloud under construction."""

    client: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    points: list[Tensor] = field(default_factory=list)

    def add(self, client: int, known: Tensor, table: Tensor) -> None:
        """Add the rows of `table` [classes, d] that are `known`."""
        for label in known.nonzero()[:, 0].tolist():
            self.client.append(client)
            self.label.append(label)
            self.points.append(table[label].detach().float())

    def cloud(self) -> Cloud | None:
        """The cloud, or None if there is no point."""
        if not self.points:
            return None
        return Cloud(np.array(self.client), np.array(self.label), torch.stack(self.points).numpy())


def measure(engine: Engine, ids: Iterable[str]) -> Features | None:
    """Class means, anchors and heads of these clients now; changes nothing, and uses none of their randomness.

    None without class labels, without features [batch, d] of one width, or without samples.
    """
    setup, federation, number = engine.setup, engine.federation, engine.server.round
    task = setup.federation.task
    there = sorted(id for id in ids if federation[id].seen and len(federation[id].train))
    if not task.labels or not there:
        return None
    state, modules = engine.state(), Modules()
    means, anchors, used = _Points(), _Points(), _Used()
    with one_thread():
        for id in _drawn(there, setup.seed):
            samples, params, net = _few(federation[id].train, task.classes), engine.model(id), setup.net_of(id)
            z = infer(net, modules(net), params, "features", samples)
            if z.ndim != 2 or z.shape[1] != used.width(z):
                return None
            y = samples.labels()
            table, count = class_means(z, y, torch.ones(len(y), dtype=z.dtype), task.classes)
            if not bool(torch.isfinite(table).all()):
                continue
            if used.ids and len(means.label) + int((count > 0).sum()) > _POINTS:
                break
            place = used.add(id, net, params, table, count > 0)
            means.add(place, count > 0, table)
            for known, kept in _kept(state["clients"].get(id, {}), params, count > 0):
                anchors.add(place, known, kept)
        heads = used.heads(task.classes, task.outputs)
    for known, kept in _kept(state["server"], {}, None):
        means.add(-1, known, kept)
    cloud = means.cloud()
    return None if cloud is None else Features(number, used.order, len(there), cloud, anchors.cloud(), heads)


@dataclass
class _Used:
    """The clients that were measured, in the order in which they were drawn."""

    ids: list[str] = field(default_factory=list)
    models: list[tuple[Net, Params]] = field(default_factory=list)
    tables: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    wide: int = 0

    def width(self, z: Tensor) -> int:
        """The common width of all features: that of the first client."""
        self.wide = self.wide or int(z.shape[1])
        return self.wide

    def add(self, id: str, net: Net, params: Params, table: Tensor, known: Tensor) -> int:
        self.ids.append(id)
        # Only the heads that can be compared are kept: models of many clients may be on disk.
        if len(self.ids) <= _HEADS:
            self.models.append((net, params))
            self.tables.append((table, known))
        return len(self.ids) - 1

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self.ids)

    def heads(self, classes: int, outputs: int) -> npt.NDArray[np.float64] | None:
        """Similarity of the first clients' heads; None for one client, or if all heads are the same."""
        count = min(len(self.models), int((_ANSWERS / (classes * outputs)) ** 0.5))
        models = self.models[:count]
        if count < 2 or all(_equal(head_of(params), head_of(models[0][1])) for _, params in models):
            return None
        tables = torch.stack([table for table, _ in self.tables[:count]])
        owned = torch.stack([known for _, known in self.tables[:count]]).numpy()
        modules, said = Modules(), []
        with torch.no_grad():
            for net, params in models:
                module = modules(net)
                load(module, params)
                module.eval()
                said.append(module.head(tables.flatten(0, 1).to(net.dtype)).reshape(count, classes, -1).double())
        answers = np.asarray(torch.stack(said).numpy())
        return response_similarity(answers, owned) if np.isfinite(answers).all() else None


def _drawn(ids: Sequence[str], seed: int) -> list[str]:
    """The clients in an order that is the same in every round: the first are kept if there are too many."""
    return [ids[i] for i in rng(seed, "", 0, "embeddings").permutation(len(ids))]


def _few(samples: Samples, classes: int) -> Samples:
    """The first samples of each class."""
    y = samples.labels()
    rows = [(y == label).nonzero()[:_SAMPLES, 0] for label in range(classes)]
    return samples.take(torch.cat(rows).sort().values)


def _kept(state: Mapping[str, Any], params: Params, owned: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """(known [classes], anchors [classes, d]) that a participant keeps, recognised by their names.

    `anchors` or `prototypes` beside `known` in its state, or a module `prototypes` beside body and head.
    """
    table = state.get("anchors", state.get("prototypes"))
    known = state.get("known")
    if isinstance(table, Tensor) and isinstance(known, Tensor) and table.ndim == 2:
        yield known.bool(), table
    elif owned is not None and "prototypes.weight" in params:
        yield owned, params["prototypes.weight"]


def _equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)
