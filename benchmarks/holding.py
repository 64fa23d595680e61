"""The test that a group still holds: false alarms over all looks, and how late a drift is detected.

    OMP_NUM_THREADS=1 python benchmarks/holding.py [--federations 100] [--looks 20] [--least 0.01]

Six members of one group, three classes in five columns (a normal mixture); at each look every member has new samples.
False alarms: the share of members that are ever said to have drifted while none has, with its exact 95 % interval, for
each level alpha. Drift: from look `begins` on, one member's inputs are shifted in all columns by `shift` standard
deviations.
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from fedkin.graph import Doubt, Plan, Signature, Spread, look, sign

MEMBERS, CLASSES, COLUMNS = 6, 3, 5
Draw = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]


def draw(rng: np.random.Generator, centres: npt.NDArray[np.float64], n: int, shift: float = 0.0) -> Draw:
    y = rng.integers(CLASSES, size=n)
    return centres[y] + rng.normal(size=(n, COLUMNS)) + shift, y


def doubts(seed: int, looks: int, n: int, alpha: float, shift: float = 0.0, begins: int = 1) -> list[list[float]]:
    """The evidence against each member at each look, until it is said to have drifted; the first one drifts."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, COLUMNS))
    first = [draw(rng, centres, n) for _ in range(MEMBERS)]
    plan = Plan.of([Spread.of(x, y, per_feature=True) for x, y in first], classes=CLASSES, seed=seed)
    pool = Signature.total([sign(plan, x, y) for x, y in first])
    doubt, values = [Doubt() for _ in first], [[] for _ in first]
    for t in range(1, looks + 1):
        for member in range(MEMBERS):
            if values[member] and values[member][-1] >= 1 / alpha:
                continue
            new = sign(plan, *draw(rng, centres, n, shift if member == 0 and t >= begins else 0.0))
            doubt[member] = look(doubt[member], new, pool, "same", alpha)
            values[member].append(doubt[member].value)
            if doubt[member].value < 1 / alpha:
                pool = Signature.total([pool, new])
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=100)
    parser.add_argument("--looks", type=int, default=20)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--least", type=float, default=0.001, help="the smallest alpha: a run is made for each")
    options = parser.parse_args()
    federations, looks, n = options.federations, options.looks, options.samples
    print(f"{federations} federations of {MEMBERS} members, {looks} looks, {n} samples each")
    # The largest doubts do not depend on alpha unless a member was said to have drifted before.
    runs = [doubts(seed, looks, n, options.least) for seed in range(federations)]
    highest = [max(values) for run in runs for values in run]
    for alpha in (0.1, 0.05, 0.01, options.least):
        count = sum(value >= 1 / alpha for value in highest)
        interval = binomtest(count, len(highest)).proportion_ci()
        share, ends = count / len(highest), f"{interval.low:.4f}..{interval.high:.4f}"
        print(f"alpha {alpha:g}: {count} of {len(highest)} members, {share:.4f} ({ends})", flush=True)
    print("shift  begins  said  looks until then (median)  others said")
    for shift in (0.25, 0.5, 1.0):
        for begins in (1, looks // 2 + 1):
            late, said, others = [], 0, 0
            for seed in range(10):
                run = doubts(1000 + seed, looks, n, options.least, shift, begins)
                if run[0][-1] >= 1 / options.least and len(run[0]) >= begins:
                    said, late = said + 1, [*late, len(run[0]) - begins + 1]
                others += sum(values[-1] >= 1 / options.least for values in run[1:])
            when = f"{median(late):g}" if late else "-"
            print(f"{shift:5}  {begins:6}  {said:2}/10  {when:>25}  {others:>8}/50", flush=True)


if __name__ == "__main__":
    main()
