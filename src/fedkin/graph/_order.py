"""The order in which the finders of groups visit clients."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from fedkin.graph._check import Array, Labels

__all__ = ["order_by_weights"]


def order_by_weights(a: sp.csr_array) -> Labels:
    """Sort clients by their weights alone: the result of a finder depends on the order of its rows.

    Clients are sorted by number of edges, then total weight, then the largest weights. Clients that are equal in all
    of these keep their order. Sums are taken over sorted weights, so that the order of the rows changes no bit.
    """
    count = np.diff(a.indptr)
    data = _sorted_in_rows(a, count)
    total = np.add.reduceat(data, a.indptr[:-1])
    largest = [data[a.indptr[1:] - np.minimum(k, count)] for k in (1, 2, 3)]
    return np.lexsort((*largest, total, count)).astype(np.int64)


def _sorted_in_rows(a: sp.csr_array, count: Labels) -> Array:
    """Sort the weights of each row: those of rows with as many edges, as one matrix."""
    data = np.empty_like(a.data)
    rows = np.argsort(count, kind="stable")
    sizes, first = np.unique(count[rows], return_index=True)
    for size, some in zip(sizes.tolist(), np.split(rows, first[1:]), strict=True):
        places = a.indptr[some][:, None] + np.arange(size)
        data[places] = np.sort(a.data[places], axis=1)
    return data
