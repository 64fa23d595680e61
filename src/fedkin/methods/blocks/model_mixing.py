"""Models mixed along the edges of a graph: a step along its Laplacian, and rows of mixing weights as a matrix."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin import graph
from fedkin.flow import Params


def mixing_matrix(rows: Mapping[str, Mapping[str, float]]) -> tuple[tuple[str, ...], npt.NDArray[np.float64]]:
    """(ids of the rows, sorted; W [n, n]): W_ij is the weight that peer i gives to peer j.

    Weights of peers without a row of their own are left out.

    >>> ids, mixing = mixing_matrix({"b": {"b": 1.0}, "a": {"a": 0.75, "b": 0.25}})
    >>> ids, mixing.tolist()
    (('a', 'b'), [[0.75, 0.25], [0.0, 1.0]])
    """
    ids = tuple(sorted(rows))
    row_of = {id: k for k, id in enumerate(ids)}
    mixing = np.zeros((len(ids), len(ids)))
    for id in ids:
        for other, weight in rows[id].items():
            if other in row_of:
                mixing[row_of[id], row_of[other]] = weight
    return ids, mixing


def laplacian_mixing(weights: Any, labels: Any, rate: float, what: str) -> Any:
    """I - rate L [n, n], L the Laplacian of `weights` [n, n] inside the groups `labels` [n] (None: one group).

    rate: lambda tau. Warns if rate times a client's degree is above 1. what: "heads" or "models", for the warning.
    The result is a csr_array if `weights` is one.
    """
    mixing: Any = graph.laplacian_step(weights, labels, rate)
    if mixing.min() < -1e-12:
        warnings.warn(
            f"lambda tau times the largest degree is {1 - mixing.diagonal().min():.2g}, above 1: {what} overshoot "
            "their neighbours; lower method.lam or method.tau, or thin the graph with method.graph.sparsify",
            stacklevel=1,
        )
    return mixing


def _positive_part(mixing: Any) -> Any:
    """The weights above 0, scaled to sum to 1 in each row."""
    positive = np.maximum(mixing if isinstance(mixing, np.ndarray) else mixing.toarray(), 0.0)
    return positive / positive.sum(1, keepdims=True)


def mixed(models: Sequence[Params], mixing: Any, trainable: Collection[str] | None = None) -> list[dict[str, Tensor]]:
    """Model k becomes sum_l mixing[k, l] model_l, all from the old models, which have the same names and shapes.

    The identity gives each model back bit for bit. Integer tensors (counters) stay each client's own. trainable: names
    of parameters; other tensors (running statistics) are averaged by the weights above 0 alone, since weights below 0
    would make a variance negative.

    >>> half = np.full((2, 2), 0.5)
    >>> mixed([{"w": torch.tensor([0.0])}, {"w": torch.tensor([2.0])}], half)
    [{'w': tensor([1.])}, {'w': tensor([1.])}]
    >>> mixed([{"var": torch.tensor([1.0])}, {"var": torch.tensor([9.0])}], np.array([[2.0, -1.0], [0.0, 1.0]]), ())
    [{'var': tensor([1.])}, {'var': tensor([9.])}]
    """
    average = mixing if mixing.min() >= 0 else _positive_part(mixing)
    new: list[dict[str, Tensor]] = [{} for _ in models]
    for name in models[0]:
        old = torch.stack([model[name] for model in models])
        if old.is_floating_point():
            weights = mixing if trainable is None or name in trainable else average
            rows = old.reshape(len(old), -1).double()
            dense = isinstance(weights, np.ndarray)
            rows = torch.from_numpy(weights) @ rows if dense else torch.from_numpy(weights @ rows.numpy())
            old = rows.to(old.dtype).reshape(old.shape)
        for k, row in enumerate(old):
            new[k][name] = row.clone()
    return new
