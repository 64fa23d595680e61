"""Positions of clients' classes in feature space after a round: measured in a run, stored with its other records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call

from fedkin import codec
from fedkin.engines import Engine
from fedkin.errors import MethodError, RunError
from fedkin.flow import Params, ServerMethod
from fedkin.graph import response_similarity
from fedkin.keys import rng
from fedkin.learning.devices import one_thread
from fedkin.learning.net import Net

_POINTS = 2000  # class means kept per round; if there are more, only clients that are drawn once for all rounds
_HEADS = 200  # clients with compared heads; fewer if the heads' answers exceed the next limit
_ANSWERS = 20_000_000


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points in feature space: client [n] (index into `Features.ids`, -1 the server), label [n], points [n, d]."""

    client: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    points: npt.NDArray[np.float32]

    def check(self, clients: int) -> None:
        """Raise ValueError unless all points belong to one of this number of clients, or to the server."""
        n = len(self.points)
        if self.points.ndim != 2 or self.client.shape != (n,) or self.label.shape != (n,):
            raise ValueError(f"{n} points, {self.client.shape} clients and {self.label.shape} labels")
        if n and (self.client.min() < -1 or self.client.max() >= clients):
            raise ValueError(f"a point of client {self.client.max()}, but there are {clients}")


@dataclass(frozen=True, eq=False)
class Features:
    """The features recorded after a round.

    features: the mean feature of each class of each client in `ids`, under its own model, and the server's prototypes,
    if it has any. anchors: class vectors that clients keep (SFMTL-Graph's anchors, MAPL's prototypes), or None. heads:
    similarity of the answers of the first m clients' heads on each other's class means, [m, m] (SFMTL-Graph, Eq. 8);
    None if all clients use one head. clients: number of clients that `ids` were chosen from.
    """

    round: int
    ids: tuple[str, ...]
    clients: int
    features: Cloud
    anchors: Cloud | None = None
    heads: npt.NDArray[np.float64] | None = None

    def to_bytes(self) -> bytes:
        """Return the features as bytes; equal features give equal bytes."""
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
        features = Features(tree["round"], tuple(tree["ids"]), tree["clients"], heads=heads, **clouds)
        for cloud in clouds.values():
            cloud.check(len(features.ids))
        return features
    except (MethodError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise RunError(f"{path}: not the features of a round ({error})") from None


def measure(engine: Engine, ids: Iterable[str]) -> Features | None:
    """Class means, anchors and heads of these clients now; changes no state, and draws none of their random numbers.

    None without class labels, without features [batch, d] of one width, or without samples.
    """
    setup, roster = engine.setup, engine.roster
    clients = sorted(id for id in ids if roster[id].seen and roster[id].size)
    if not roster.task.labels or not clients:
        return None
    with one_thread():
        replies = _replies(engine, clients)
        if replies is None:
            return None
        heads = [reply for reply in replies.values() if "head" in reply]
        similar = _similarity_of_heads(heads, setup.net, roster.task.classes, roster.task.outputs)
    cloud = _cloud([*_tables(replies, "means", "known"), *_prototypes(engine)])
    if cloud is None:
        return None
    anchors = _cloud(_tables(replies, "vectors", "vectors_known"))
    return Features(engine.server.round, tuple(replies), len(clients), cloud, anchors, similar)


def _replies(engine: Engine, clients: Sequence[str]) -> dict[str, dict[str, Any]] | None:
    """`Engine.features` of the clients by id, until there are too many points; None without features of one width."""
    replies: dict[str, dict[str, Any]] = {}
    points, width = 0, 0
    # The order is the same in every round: if there are too many clients, the first ones are kept.
    for index in rng(engine.setup.seed, "", 0, "embeddings").permutation(len(clients)):
        reply = dict(engine.features(clients[index]))
        if not reply:
            return None
        width = width or int(reply["means"].shape[1])
        if reply["means"].shape[1] != width:
            return None
        if not bool(torch.isfinite(reply["means"]).all()):
            continue
        points += int(reply["known"].sum())
        if replies and points > _POINTS:
            break
        # Keep only the heads to compare: the models of many clients may be on disk.
        if len(replies) >= _HEADS:
            del reply["head"]
        replies[clients[index]] = reply
    return replies


# (number of the client, mask of its known classes, [classes, d]).
_Table = tuple[int, Tensor, Tensor]


def _tables(replies: Mapping[str, Mapping[str, Any]], name: str, mask: str) -> list[_Table]:
    """The tables with this name of the clients that sent one."""
    return [(at, reply[mask], reply[name]) for at, reply in enumerate(replies.values()) if name in reply]


def _prototypes(engine: Engine) -> list[_Table]:
    """The server's class vectors, if it has any."""
    setup = engine.setup
    # With `run.alone`, each client has its own server, and there is no common one.
    if not isinstance(setup.method, ServerMethod) or setup.engine.alone:
        return []
    kept = setup.method.class_vectors(engine.server)
    return [] if kept is None else [(-1, kept.known, kept.table)]


def _cloud(tables: Sequence[_Table]) -> Cloud | None:
    """The known rows of tables (client, mask of known rows, [classes, d]); None if there are none."""
    labels = [known.nonzero()[:, 0] for _, known, _ in tables]
    if not sum(map(len, labels)):
        return None
    client = np.repeat([client for client, _, _ in tables], [len(own) for own in labels])
    points = torch.cat([table[own].detach().float() for own, (_, _, table) in zip(labels, tables, strict=True)])
    return Cloud(client, torch.cat(labels).numpy(), points.numpy())


def _similarity_of_heads(
    heads: Sequence[Mapping[str, Any]], net: Net, classes: int, outputs: int
) -> npt.NDArray[np.float64] | None:
    """Similarity of the heads in the first replies; None for one client, or if all heads are the same."""
    heads = heads[: int((_ANSWERS / (classes * outputs)) ** 0.5)]
    if len(heads) < 2 or all(_equal(one["head"], heads[0]["head"]) for one in heads):
        return None
    owned = torch.stack([one["known"] for one in heads]).numpy()
    # Bodies may differ between clients; heads have one architecture.
    module = net.scratch().head.eval()
    points = torch.stack([one["means"] for one in heads]).flatten(0, 1).to(net.dtype)
    logits = []
    with torch.no_grad():
        for one in heads:
            params = {name.removeprefix("head."): tensor for name, tensor in one["head"].items()}
            logits.append(functional_call(module, params, (points,)).reshape(len(heads), classes, -1).double())
    answers = np.asarray(torch.stack(logits).numpy())
    if not np.isfinite(answers).all():
        return None
    of_owned = answers[:, owned]
    return response_similarity(lambda k, places: of_owned[k][places], owned)


def _equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)
