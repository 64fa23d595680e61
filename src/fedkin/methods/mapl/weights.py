"""One peer's collaboration weights in MAPL (CGL, Algorithm 2): from the heads and counts of those it heard to its row.

The objective (Eq. 6-9) and its solver are `fedkin.graph.collaboration`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.flow import Params
from fedkin.graph.mixing import collaboration_weights, gradient_step, relative_similarity, sign_step
from fedkin.settings import Settings

__all__ = ["CollaborationSettings", "Row", "among", "kept", "previous", "similarity", "uniform"]

Array = npt.NDArray[np.float64]
Row = dict[str, float]

_PAPER, _SOLVED = (0.1, 0.5), (0.01, 20.0)  # (mu2, beta)


class CollaborationSettings(Settings):
    """How a peer learns its weights (CGL), and which edges it drops.

    on: false keeps equal weights in all rounds.
    step: "solve": the optimum of the graph objective, every round; "paper": Algorithm 2, `steps` (E_g) projected
    gradient steps of `rate` (eta) from the last weights, with the paper's confidence gamma; "released": the released
    code's sign step of `rate`.
    similarity: of two heads, the cosine of how they changed since the common start ("change"), of their weights
    ("weights"), or the mean cosine of the weights' rows ("rows"). None: step "solve" takes "change", "paper"
    "weights", "released" "rows".
    mu1, mu2, beta: weights of similarity, of both regularisers, and of the norm (Eq. 7, 8); None: 0.01 and 20 for
    "solve", 0.1 and 0.5 (the paper's) for the others. eps: inside the logarithm (Eq. 8).
    alike: for "solve", the similarity from which the best neighbour counts as much as the peer itself.
    threshold: a weight of 0, or below threshold / (number of neighbours + 1), is no edge, and nothing is sent on it.
    None: 0.1 for "solve", 0 for "paper"; "released" keeps every edge.
    probe: probability, each round, that a neighbour without an edge is asked for a message again.
    """

    on: bool = True
    step: Literal["solve", "paper", "released"] = "solve"
    similarity: Literal["change", "weights", "rows"] | None = None
    mu1: float = Field(0.5, ge=0)
    mu2: float | None = Field(None, ge=0)
    beta: float | None = Field(None, ge=0)
    eps: float = Field(1e-6, gt=0)
    rate: float = Field(0.1, gt=0)
    steps: int = Field(1, ge=1)
    alike: float = Field(0.45, gt=0, le=1)
    threshold: float | None = Field(None, ge=0, lt=1)
    probe: float = Field(0.01, ge=0, le=1)

    def row(
        self, own: str, heads: Mapping[str, Params], start: Params, counts: Mapping[str, int],
        last: Mapping[str, float],
    ) -> Row:  # fmt: skip
        """w_i over these peers, `own` among them, by id; it sums to 1.

        start: the head that all peers began with; counts: numbers of training samples;
        last: the weights before, 0 for peers that it lacks.
        """
        ids = sorted(heads)
        place = ids.index(own)
        n = np.array([counts[id] for id in ids], dtype=np.float64)
        s = similarity(self._similarity, [heads[id] for id in ids], start, place)
        if self.step == "solve":
            return dict(zip(ids, self.solved(s, place, n).tolist(), strict=True))
        w = np.array([last.get(id, 0.0) for id in ids])
        w = w / w.sum() if w.sum() > 0 else np.full(len(ids), 1 / len(ids))
        mu2, beta = self._weights
        gamma = n / n.sum()
        if self.step == "paper":
            w = gradient_step(
                w, s, place, gamma=gamma, mu1=self.mu1, mu2=mu2, beta=beta, eps=self.eps, rate=self.rate,
                steps=self.steps,
            )  # fmt: skip
        else:
            w = sign_step(
                w, released_similarity(s, place), place, gamma=gamma, mu1=self.mu1, mu2=mu2, beta=beta, rate=self.rate
            )
        return dict(zip(ids, w.tolist(), strict=True))

    def solved(self, s: Array, own: int, n: Array) -> Array:
        """The weights [m] that step "solve" gives for similarities s and sample counts n, both [m]."""
        s, trust = relative_similarity(s, own, alike=self.alike), n / n.mean()
        mu2, beta = self._weights
        # About how many peers are similar: equal weights on that number have the norm 1 / sqrt(count). In this unit
        # the result depends neither on the number of peers nor on the number of clusters.
        count = float((trust * np.square(np.maximum(s, 0.0))).sum())
        return collaboration_weights(
            s, own, trust=trust, mu1=self.mu1, mu2=mu2, beta=beta * np.sqrt(count), eps=self.eps
        )

    def least(self, neighbours: int) -> float | None:
        """The least weight of an edge for a peer with this number of neighbours; None: every pair has an edge."""
        if self.threshold is None and self.step == "released":
            return None
        threshold = (0.1 if self.step == "solve" else 0.0) if self.threshold is None else self.threshold
        return threshold / (neighbours + 1)

    @property
    def _similarity(self) -> str:
        own = {"solve": "change", "paper": "weights", "released": "rows"}
        return self.similarity or own[self.step]

    @property
    def _weights(self) -> tuple[float, float]:
        mu2, beta = _SOLVED if self.step == "solve" else _PAPER
        return mu2 if self.mu2 is None else self.mu2, beta if self.beta is None else self.beta


def similarity(kind: str, heads: Sequence[Params], start: Params, own: int) -> Array:
    """s_i [n] in [-1, 1]: the cosine of head `own` with each of the heads, 1 with itself; biases are left out.

    kind, start: see `CollaborationSettings`.
    """
    rows = np.stack([_rows(head) for head in heads])
    if kind == "change":
        rows = rows - _rows(start)
    if kind != "rows":
        rows = rows.reshape(len(rows), 1, -1)
    unit = graph.similarity.unit(rows)
    alike = np.clip((unit * unit[own]).sum(-1).mean(-1), -1.0, 1.0)
    alike[own] = 1.0
    return np.asarray(alike)


def _rows(head: Params) -> Array:
    """The weights of a head's last layer, one row per output; of a head without a matrix, everything as one row."""
    matrices = [_plain(tensor) for _, tensor in sorted(head.items()) if tensor.ndim == 2]
    return matrices[-1] if matrices else np.concatenate([_plain(t).ravel() for _, t in sorted(head.items())])[None]


def _plain(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().cpu().double().numpy())


def released_similarity(s: Array, own: int) -> Array:
    """The released code's: `s` over the largest value among the others, whatever its sign; 1 with itself."""
    others = np.delete(s, own)
    scaled = s / others.max() if others.size and others.max() != 0 else s.copy()
    scaled[own] = 1.0
    return np.asarray(scaled)


def uniform(ids: Collection[str]) -> Row:
    """Equal weights, which sum to 1."""
    return {id: 1 / len(ids) for id in sorted(ids)}


def previous(own: str, heard: Collection[str], weights: Mapping[str, float], dropped: Iterable[str]) -> Row:
    """The weights that this round's step begins with: the last ones, and an equal share for peers heard anew.

    Peers that were dropped begin with 0. A peer that has mixed with nobody yet begins with equal weights.
    """
    last = weights if weights.keys() - {own} else {}
    return dict.fromkeys(heard, 1 / len(heard)) | dict.fromkeys(dropped, 0.0) | dict(last)


def kept(row: Row, own: str, least: float | None) -> Row:
    """The row without other peers of weight 0 or below `least` (None: keep all), scaled to sum to 1."""
    return among(row, own, {id for id, w in row.items() if least is None or (w > 0 and w >= least)})


def among(row: Row, own: str, ids: Container[str]) -> Row:
    """The row's entries of `own` and of `ids`, scaled to sum to 1."""
    left = {id: w for id, w in row.items() if id == own or id in ids}
    total = sum(left.values())
    return {id: w / total for id, w in left.items()} if total > 0 else {own: 1.0}
