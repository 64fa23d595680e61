"""Principal components of rows that are too many, or too long, for a decomposition of the rows themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedkin.federation import Samples
from fedkin.methods.blocks.kmeans import centres_of

__all__ = ["component_centres", "factor", "pooled", "principal", "rows_of", "spectrum"]


def spectrum(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values [r], falling, and right singular vectors [r, d] of rows [n, d].

    Values below 1e-7 of the largest are rounding and left out; at least one stays. Computed from the eigenvectors of
    the smaller of rows rows' and rows'rows, which takes about a fifth of the time of a decomposition of the rows.
    """
    wide = len(rows) <= rows.shape[1]
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    lengths = values.clamp(min=0).sqrt().flip(0)
    kept = max(1, int((lengths > lengths[0] * 1e-7).sum()))
    axes = vectors.flip(1)[:, :kept].T
    if wide:
        axes = axes @ rows
        axes = axes / torch.linalg.vector_norm(axes, dim=1, keepdim=True).clamp(min=1e-300)
    return lengths[:kept], axes


def factor(x: Tensor, rank: int | Literal["all"]) -> tuple[Tensor, Tensor]:
    """(mean [d], F [r, d]), where F'F is the scatter of x [n, d] around its mean.

    rank: at most this many rows, those of the best approximation of this rank; "all": F'F is exact.
    """
    mean = x.mean(0)
    values, axes = spectrum(x - mean)
    rows = values[:, None] * axes
    return mean, rows if rank == "all" else rows[:rank]


def principal(rows: Tensor, components: int) -> Tensor:
    """The first principal axes [r, d] of the scatter rows'rows; each axis has its largest entry positive.

    Directions without scatter are left out; at least one axis stays.
    """
    axes = spectrum(rows)[1][:components]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return torch.where(largest < 0, -axes, axes)


def pooled(
    n: Sequence[int], means: Sequence[Tensor], factors: Sequence[Tensor], components: int
) -> tuple[Tensor, Tensor]:
    """(mean [d], axes [r, d]) of the PCA of several clients' samples together, in double precision.

    n, means, factors: of each client its number of samples and what `factor` gives; exact if the factors are.
    """
    counts = torch.tensor(n, dtype=torch.float64)
    centres = torch.stack([mean.double() for mean in means])
    mean = counts @ centres / counts.sum()
    # The scatter around the common mean is each client's around its own, plus that of the means.
    between = counts.sqrt()[:, None] * (centres - mean)
    rows = torch.cat([*(rows.double() for rows in factors), between])
    return mean, principal(rows, components)


def component_centres(x: Tensor, basis: Mapping[str, Tensor], components: int, k: int, seed: int) -> Tensor:
    """k-means centres of x [n, d] in the basis "mean" [d], "axes" [r, d]: [k, r].

    Without a basis: in the first principal components of x itself, and given in input space [k, d].
    """
    if basis:
        return centres_of((x - basis["mean"]) @ basis["axes"].T, k, seed)
    mean = x.mean(0)
    axes = principal(x - mean, components)
    return centres_of((x - mean) @ axes.T, k, seed) @ axes + mean


def rows_of(samples: Samples) -> Tensor:
    """The inputs as rows [n, d], in double precision."""
    x: Tensor = samples.inputs(slice(None), torch.float64)
    return x.flatten(1)
