"""Tables whose clients differ gradually: scores of a mixed-effects model, and of methods for nets.

    python benchmarks/tables.py bdf.csv Contraception.csv --seeds 5

bdf.csv: 2,287 pupils of 131 schools (Snijders and Bosker), target langPOST; Contraception.csv: 1,934 women of 60
districts of Bangladesh (Huq and Cleland), target use. Both are in the R packages nlme and mlmRev. All methods have the
model "linear", one rate and 60 rounds of 5 steps. Each seed draws another split, which holds out a quarter of each
client's rows. Printed: percent of the variance of the test rows that is explained, or accuracy in percent, mean over
seeds and standard deviation, and the paired difference from `mixed` with its 95 % interval over seeds.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from typing import Any

import numpy as np
from scipy.stats import t

import fedkin
from fedkin import Federation

ROWS: dict[str, dict[str, Any]] = {
    "fedavg": {}, "fedavg-ft": {"passes": 1}, "ditto": {}, "kin": {}, "mixed": {},
    "mixed, intercepts": {"slopes": "none"},
}  # fmt: skip
TEXTS = {"sex", "Minority", "denomina", "schoolNR", "natitest", "mixedgra", "use", "district", "livch", "urban"}
TABLES: dict[str, dict[str, Any]] = {
    "bdf": {
        "target": "langPOST", "client": "schoolNR",
        "leave_out": ["pupilNR", "aritPOST", "classNR", "IQ.ver.cen", "avg.IQ.ver.cen", "grpSiz.cen"],
    },
    "Contraception": {"target": "use", "client": "district", "leave_out": ["woman"]},
}  # fmt: skip


def read(path: str) -> dict[str, list[Any]]:
    """The columns of a table; numbers as numbers."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        k: [row[k] if k in TEXTS else float(row[k]) for row in rows] for k in rows[0] if k not in ("woman", "pupilNR")
    }


def score(federation: Federation, result: Any) -> float:
    """Percent of variance explained over all test rows, or accuracy in percent."""
    scores = result.scores
    n = sum(one.n for one in scores.values())
    if federation.task.kind != "regression":
        return 100 * sum(one.right for one in scores.values()) / n
    y = np.concatenate([federation[id].test.labels().numpy().ravel() for id in scores])
    return float(100 * (1 - sum(one.loss * one.n for one in scores.values()) / n / y.var()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    training = {"lr": 0.03, "local_steps": 5, "batch_size": 32}
    for path in options.tables:
        name = path.rsplit("/", 1)[-1].removesuffix(".csv")
        known = {**TABLES[name]}
        frame = read(path)
        known["leave_out"] = [column for column in known["leave_out"] if column in frame]
        kind = "classification" if name == "Contraception" else None
        found: dict[str, list[float]] = {row: [] for row in ROWS}
        for seed in range(options.seeds):
            federation = Federation.from_frame(frame, seed=seed, test_fraction=0.25, kind=kind, **known)
            for row, settings in ROWS.items():
                result = fedkin.run(
                    row.split(",")[0], federation, model="linear", rounds=60, seed=seed, training=training, **settings
                )
                found[row].append(score(federation, result))
        print(f"{name}: {len(federation)} clients")
        for row, values in found.items():
            apart = np.array(values) - np.array(found["mixed"])
            half = t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / np.sqrt(len(apart))
            mean = (
                f"{np.mean(values):6.2f} +- {np.std(values, ddof=1):.2f}" if np.isfinite(values).all() else "diverges"
            )
            print(f"  {row:18} {mean}  from mixed {apart.mean():+.2f} +- {half:.2f}")


if __name__ == "__main__":
    main()
