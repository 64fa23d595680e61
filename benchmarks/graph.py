"""Time and peak memory of fedkin.graph against the number of clients.

    OMP_NUM_THREADS=2 python benchmarks/graph.py            all rows, some minutes
    OMP_NUM_THREADS=2 python benchmarks/graph.py --quick    small rows only
    OMP_NUM_THREADS=2 python benchmarks/graph.py --only "fedkin graph"

Each row runs in a separate process, so that peak memory is measured per row; it includes the interpreter and the
input. Data are seeded. A row with a target ends in "ok" or "MISSED".
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedkin import graph

# (what, n, further sizes, seconds allowed, MB allowed)
ROWS: list[tuple[str, int, dict[str, int], float | None, float | None]] = [
    ("matching", 300, {"k": 5, "d": 128}, None, None),
    ("matching", 1_200, {"k": 5, "d": 128}, None, None),
    ("matching", 2_400, {"k": 5, "d": 128}, 60, None),
    ("matching", 2_400, {"k": 8, "d": 128}, None, None),
    ("knn + louvain", 5_000, {"d": 512}, None, None),
    ("knn + louvain", 20_000, {"d": 512}, 60, 3_000),
    ("knn + louvain", 25_000, {"d": 64}, None, None),
    ("knn + louvain", 50_000, {"d": 64}, None, None),
    ("knn + louvain", 100_000, {"d": 64}, 120, 4_000),
    ("knn + leiden", 100_000, {"d": 64}, None, None),
    ("fedkin graph", 100_000, {"d": 64}, None, None),
    ("betweenness", 1_000, {"edges": 20_000}, None, None),
    ("betweenness", 3_000, {"edges": 178_000}, 10, None),
    ("sampled betweenness", 3_000, {"edges": 178_000, "samples": 300}, None, None),
    ("sampled betweenness", 3_000, {"edges": 178_000, "samples": 1_000}, None, None),
    ("sampled betweenness", 20_000, {"edges": 200_000, "samples": 200}, None, None),
    ("sampled betweenness", 100_000, {"edges": 1_000_000, "samples": 100}, None, None),
]


def matching(n: int, k: int, d: int) -> tuple[float, str]:
    u = np.random.default_rng(0).normal(size=(n, k, d))
    seconds, _ = timed(lambda: graph.matching(u))
    pairs = n * (n - 1) // 2
    sample = [(i, i + 1) for i in range(40 if k <= 5 else 2)]
    naive, expected = timed(lambda: [_by_permutations(u[i], u[j]) for i, j in sample])
    np.testing.assert_allclose([graph.matching(u[[i, j]])[0, 1] for i, j in sample], expected)
    each = naive / len(sample)
    note = f"permutation loop {1e3 * each:.1f} ms a pair on {len(sample)} pairs = {each * pairs / 3600:.2f} h: "
    return seconds, note + f"{each * pairs / seconds:,.0f} times slower"


def _by_permutations(u: Any, v: Any) -> float:
    """Return the naive result: every permutation, one pair of sets at a time."""
    k = len(u)
    return float(min(sum(np.square(u[r] - v[p[r]]).sum() for r in range(k)) for p in permutations(range(k)))) ** 0.5 / k


def _clustered(n: int, d: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(50, d)).astype(np.float32)
    labels = rng.integers(50, size=n)
    return centres[labels] + 0.9 * rng.standard_normal((n, d), dtype=np.float32), labels


def knn_louvain(n: int, d: int, finder: Callable[..., Any] = graph.louvain) -> tuple[float, str]:
    x, labels = _clustered(n, d)
    first, a = timed(lambda: graph.knn_graph(x, 10))
    second, found = timed(lambda: finder(a, seed=0))
    note = f"10-NN exact {first:.1f} s, groups {second:.1f} s, ARI with 50 planted {graph.ari(labels, found):.3f}"
    return first + second, note


def knn_leiden(n: int, d: int) -> tuple[float, str]:
    return knn_louvain(n, d, graph.leiden)


def command(n: int, d: int) -> tuple[float, str]:
    """The complete command on a Parquet file: read, neighbours in cells, Louvain, summary."""
    x, labels = _clustered(n, d)
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"client": [f"c{row}" for row in range(n)], **{f"x{at}": x[:, at] for at in range(d)}})
        pq.write_table(table, f"{folder}/x.parquet")
        words = [f"{os.path.dirname(sys.executable)}/fedkin", "graph", f"{folder}/x.parquet", "--json"]
        seconds, ended = timed(lambda: subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = json.loads(ended)
    found = np.empty(n, np.int64)
    for at, group in enumerate(said["groups"]):
        found[[int(id[1:]) for id in group["members"]]] = at
    groups = f"{len(said['groups'])} groups (louvain), ARI with 50 planted {graph.ari(labels, found):.3f}"
    return seconds, f"{spent.ru_utime + spent.ru_stime:.0f} CPU s, knn:10, {groups}"


def _with_edges(n: int, edges: int) -> Any:
    """Return an epsilon graph with `edges` edges; for large n, a nearest-neighbour graph of the same degree."""
    x = np.random.default_rng(0).normal(size=(n, 16)).astype(np.float32)
    if n > 5_000:
        return graph.knn_graph(x, edges // n)
    s = graph.cosine(x)
    values = s[np.triu_indices(n, 1)]
    return graph.epsilon(s, float(np.partition(values, -edges)[-edges]))


def betweenness(n: int, edges: int) -> tuple[float, str]:
    a = _with_edges(n, edges)
    seconds, _ = timed(lambda: graph.betweenness(a))
    return seconds, f"exact, {int((a > 0).sum()) // 2:,} edges"


def sampled_betweenness(n: int, edges: int, samples: int) -> tuple[float, str]:
    a = _with_edges(n, edges)
    seconds, (value, error) = timed(lambda: graph.sampled_betweenness(a, samples))
    note = f"{samples} sources, {a.nnz // 2 if n > 5_000 else int((a > 0).sum()) // 2:,} edges; "
    # The error is the root mean square over all clients. Over the clients that the estimate ranks highest, it would be
    # too low.
    note += f"estimated error {_rms(error) / _rms(value):.1%}"
    if n <= 5_000:
        exact = graph.betweenness(a)
        note += f", true error {_rms(value - exact) / _rms(exact):.1%}"
    return seconds, note


def _rms(values: Any) -> float:
    return float(np.sqrt(np.square(values).mean()))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


WORK: dict[str, Callable[..., tuple[float, str]]] = {
    "matching": matching,
    "knn + louvain": knn_louvain,
    "knn + leiden": knn_leiden,
    "fedkin graph": command,
    "betweenness": betweenness,
    "sampled betweenness": sampled_betweenness,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only rows of up to 5,000 clients")
    parser.add_argument("--only", help="only rows of this name")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row is not None:
        what, n, sizes, *_ = ROWS[int(options.row)]
        seconds, note = WORK[what](n, **sizes)
        whose = resource.RUSAGE_CHILDREN if what == "fedkin graph" else resource.RUSAGE_SELF
        peak = resource.getrusage(whose).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "peak": peak, "note": note}))
        return
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS={threads}, ", end="")
    print(f"Python {platform.python_version()}, numpy {np.__version__}\n")
    print("| what | clients | sizes | seconds | peak MB | target | note |")
    print("|---|---:|---|---:|---:|---|---|")
    for at, (what, n, sizes, allowed, memory) in enumerate(ROWS):
        if (options.quick and n > 5_000) or options.only not in (None, what):
            continue
        command = [sys.executable, __file__, "--row", str(at)]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(_line(what, n, sizes, answer, allowed, memory), flush=True)


def _line(what: str, n: int, sizes: dict[str, int], answer: Any, allowed: float | None, memory: float | None) -> str:
    target = "" if allowed is None else f"{allowed:g} s"
    if memory is not None:
        target += f", {memory:,.0f} MB"
    if target:
        met = answer["seconds"] <= (allowed or np.inf) and answer["peak"] <= (memory or np.inf)
        target += " ok" if met else " MISSED"
    shown = ", ".join(f"{name} {value:,}" for name, value in sizes.items())
    return (
        f"| {what} | {n:,} | {shown} | {answer['seconds']:.2f} | {answer['peak']:,.0f} | {target} | {answer['note']} |"
    )


if __name__ == "__main__":
    main()
