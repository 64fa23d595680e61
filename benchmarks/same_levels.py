"""Rate of false groups: iid federations of many kinds, every test, three levels.

    OMP_NUM_THREADS=1 python benchmarks/same_levels.py levels.jsonl --data-root DATA        all, some minutes
    python benchmarks/same_levels.py private.jsonl --epsilon 1 --epsilon 4 --federations 91  private signatures
    python benchmarks/same_levels.py levels.jsonl --table                                   the table only

Each federation is one line of the file, so a run that was stopped can be continued. Without --data-root (folders
MNIST/raw and FashionMNIST/raw), image kinds are left out. With --epsilon, kinds whose samples depend on each other are
left out, as private signatures take samples as independent; each federation is signed at each epsilon and without
noise.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from same_federations import Federation, iid_kinds, signed
from scipy import stats

from fedkin.graph import find
from fedkin.graph.grouping_tests import Search

LEVELS = (0.05, 0.01, 0.001)


# Names in iid_kinds: samples whose dependence private signatures cannot see, and noise of another kind.
NOT_PRIVATE = ("time series, 15 x 200", "every sample twice, 15 x 120", "mixture with noise, 20 x 50")


def signatures(data: Federation, seed: int, kind: str, epsilon: float | None) -> Any:
    found = signed(data, seed, epsilon, per_feature=kind.startswith("table"))
    if "noise" in kind:
        noise = np.random.default_rng([seed, 99])
        found = [one.noised(0.02, noise) for one in found]
    return found


def measure(kind: str, make: Any, seed: int, epsilon: float | None) -> dict[str, Any]:
    data = make(np.random.default_rng([seed, zlib.crc32(kind.encode())]))
    begun = time.perf_counter()
    found = signatures(data, seed, kind, epsilon)
    after = time.perf_counter()
    # All p-values of all looks at all blocks are taken; no search stops at a level.
    root = Search(found, 1e-300, 0)
    p = {name: stack.p(0.0, 0) for name, stack in root.stacks.items()}
    if root.table is not None:
        effects = root.table.test()
        p |= {"offset": effects.offset_p, "concept": effects.concept_p}
    verdicts = find(found)
    end = time.perf_counter()
    return {
        "kind": kind, "seed": seed, "epsilon": epsilon, "p": p, "any": min(1.0, min(p.values()) * len(p)),
        "groups": len(verdicts.verdicts), "seconds": [after - begun, end - after],
    }  # fmt: skip


def interval(hits: int, of: int) -> str:
    """Return the share with its exact 95 % interval (Clopper and Pearson)."""
    low = stats.beta.ppf(0.025, hits, of - hits + 1) if hits else 0.0
    high = stats.beta.ppf(0.975, hits + 1, of - hits) if hits < of else 1.0
    return f"{hits / of:.4f} ({low:.4f}..{high:.4f})"


def by_epsilon(rows: list[dict[str, Any]]) -> None:
    print("| epsilon | federations | any test < .05 | < .01 | < .001 | split at .001 |")
    print("|---|---:|---|---|---|---|")
    for epsilon in sorted({row["epsilon"] for row in rows}, key=lambda e: e or 1e9):
        mine = [row for row in rows if row["epsilon"] == epsilon]
        cells = [interval(sum(row["any"] < level for row in mine), len(mine)) for level in LEVELS]
        cells.append(interval(sum(row["groups"] > 1 for row in mine), len(mine)))
        print(f"| {'none' if epsilon is None else f'{epsilon:g}'} | {len(mine)} | " + " | ".join(cells) + " |")


def report(rows: list[dict[str, Any]]) -> None:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    print("| clients with one distribution | federations | any test < .05 | < .01 | < .001 | split at .001 |")
    print("|---|---:|---|---|---|---|")
    for kind in [*kinds, None]:
        mine = [row for row in rows if kind in (None, row["kind"])]
        cells = [interval(sum(row["any"] < level for row in mine), len(mine)) for level in LEVELS]
        cells.append(interval(sum(row["groups"] > 1 for row in mine), len(mine)))
        print(f"| {kind or 'all'} | {len(mine)} | " + " | ".join(cells) + " |")
    print("\n| test | p-values | < .05 | < .01 | < .001 |\n|---|---:|---|---|---|")
    for name in ("x", "xy", "y", "offset", "concept"):
        p = np.array([row["p"][name] for row in rows if name in row["p"]])
        cells = [interval(int((p < level).sum()), len(p)) for level in LEVELS]
        print(f"| {name} | {len(p)} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--data-root")
    parser.add_argument("--federations", type=int, default=1000, help="per kind; a fifth of it for images")
    parser.add_argument("--epsilon", type=float, action="append", help="of private signatures; may be repeated")
    parser.add_argument("--only", help="kinds that contain this text")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.file.read_text().splitlines()] if args.file.exists() else []
    done = {(row["kind"], row["seed"], row["epsilon"]) for row in rows}
    levels = [None, *(args.epsilon or ())]
    if not args.table:
        kinds = iid_kinds(args.data_root)
        with args.file.open("a") as file:
            for seed in range(args.federations):
                for kind, make in kinds.items():
                    wanted = args.only is None or args.only in kind
                    wanted = wanted and not (args.epsilon and kind in NOT_PRIVATE)
                    if not wanted or ("MNIST" in kind and seed >= args.federations // 5):
                        continue
                    for epsilon in levels:
                        if (kind, seed, epsilon) not in done:
                            rows.append(measure(kind, make, seed, epsilon))
                            file.write(json.dumps(rows[-1]) + "\n")
                            file.flush()
    if args.epsilon:
        by_epsilon(rows)
    else:
        report(rows)


if __name__ == "__main__":
    main()
