"""Work on several threads, as many as products of matrices may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

__all__ = ["spread"]


def spread(work: Callable[[int], None], parts: Sequence[int]) -> None:
    """Call `work` with each part, on as many threads as BLAS may use (`OMP_NUM_THREADS`), and one for each product.

    A product's bits can depend on its number of threads; so they do not depend on the machine's number of cores.
    """
    libraries = _libraries()
    threads = min(len(parts), max((one["num_threads"] for one in libraries.info()), default=1))
    with libraries.limit(limits=1):
        if threads <= 1:
            for part in parts:
                work(part)
            return
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(work, parts):
                pass


@cache
def _libraries() -> Any:
    """BLAS, as numpy has loaded it; looking for it takes longer than a small product."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController().select(user_api="blas")
