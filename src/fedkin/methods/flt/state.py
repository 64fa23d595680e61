"""What FLT keeps at the server and at a client."""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin.flow import Params
from fedkin.methods.blocks.signatures import Planned, Tests

__all__ = ["Adjacency", "ClientState", "Edges", "State", "matrix_of", "stored"]


class Edges(TypedDict):
    """A csr_array: the entries of row i are columns[starts[i] : starts[i + 1]]."""

    starts: Tensor
    columns: Tensor
    weights: Tensor


Adjacency: TypeAlias = Tensor | Edges


class State(Planned):
    """At the server. The numbers of groups and of models are counted from 0.

    signatures: {client id: its centres [k, d], or its signature of moments [bytes] uint8}.
    row: {client id: row} in the adjacency. adjacency: [n, n], booleans if all weights are 0 or 1, else floats; zero
    diagonal; of neighbours only, the parts of a csr_array. gamma: the distance below which two clients are neighbours.
    founders: from how many clients graph and groups were made; they have the first rows, newcomers those after them.
    group: {client id: number of its group}.
    models: {number as text: params}. model: {client id: number as text} of the model that the client has. In Case II
    these are the groups' numbers.
    changed: {client id: True} of clients whose data are no longer those of their signature (the paper's Delta).
    sizes: {client id: n_j}, with `stale` only.
    tests: those behind the groups, None without. verdict: {group as text: its verdict} by these tests.
    encoder: what clients need of the encoder. moments: count, total and squares of the inputs that it was trained on,
    or of the clients' inputs; empty for images.
    """

    signatures: dict[str, Tensor]
    row: dict[str, int]
    founders: int
    group: dict[str, int]
    models: dict[str, Params]
    model: dict[str, str]
    changed: dict[str, bool]
    sizes: dict[str, int]
    tests: NotRequired[Tests | None]
    verdict: NotRequired[dict[str, str]]
    adjacency: NotRequired[Adjacency]
    gamma: NotRequired[float]
    encoder: NotRequired[Params]
    moments: NotRequired[dict[str, Any]]


class ClientState(TypedDict, total=False):
    """At a client.

    signed: a hash of the samples that its signature stands for. encoder: its own, fine-tuned, if `encoder.keep`.
    """

    signed: str
    encoder: Params


def stored(adjacency: Any) -> Adjacency:
    """The adjacency, an array or a csr_array, for the state: booleans if all weights are 0 or 1, else floats."""
    whole = isinstance(adjacency, np.ndarray)
    weights = torch.from_numpy(adjacency if whole else adjacency.data)
    weights = weights.bool() if bool(((weights == 0) | (weights == 1)).all()) else weights.float()
    if whole:
        return weights
    starts, columns = (torch.from_numpy(part.astype(np.int64)) for part in (adjacency.indptr, adjacency.indices))
    return Edges(starts=starts, columns=columns, weights=weights)


def matrix_of(adjacency: Adjacency) -> Any:
    """What `stored` was given, rounded as it rounds."""
    if isinstance(adjacency, Tensor):
        return adjacency.double().numpy()
    size = len(adjacency["starts"]) - 1
    parts = (adjacency["weights"].double(), adjacency["columns"], adjacency["starts"])
    return sp.csr_array(tuple(part.numpy() for part in parts), shape=(size, size))
