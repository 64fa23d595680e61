"""Every method under faults: 30 % of all exchanges lost in each round, and 5 % of what arrives is garbage.

    OMP_NUM_THREADS=1 python benchmarks/faults.py [--rounds 40] [--seeds 0,1,2] [--out FILE]

presets/digits-rotated.toml, each method as there, without and with the faults, in all seeds.
The table has the mean accuracy over clients in the last round (mean and standard deviation over seeds), the difference
by seed (mean, and the worst seed), and how many messages were lost and refused. A run whose parameters are not all
finite would end the script.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from fedkin.methods import METHODS
from fedkin.records.run import Result
from fedkin.running.experiment import load
from fedkin.running.loop import run_experiment

ROOT = Path(__file__).resolve().parents[1]
FAULTS = {"faults.dropout": 0.3, "faults.garbage": 0.05}
# pFedMe diverges at the preset's rate, with and without faults.
RATES = {"pfedme": 0.03}


def result(method: str, seed: int, rounds: int, faults: dict[str, Any]) -> Result:
    """Run a method; stops the script if any client's model is not finite."""
    plan = load(ROOT / "presets" / "digits-rotated.toml").for_method(method)
    if method in RATES:
        plan = plan.with_changes(**{"training.lr": RATES[method]})
    plan = plan.with_changes(**{"run.seed": seed, "training.rounds": rounds, "run.evaluate_every": rounds}, **faults)
    made = run_experiment(plan, Path())
    for id, params in made.models.items():
        if not all(bool(torch.isfinite(tensor).all()) for tensor in params.values()):
            raise SystemExit(f"{method}, seed {seed}: the model of {id} is not finite")
    return made


def spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}"


def row(method: str, seeds: list[int], rounds: int) -> str:
    """Return a method's line of the table."""
    clean = [result(method, seed, rounds, {}) for seed in seeds]
    faulty = [result(method, seed, rounds, FAULTS) for seed in seeds]
    change = [other.accuracy - one.accuracy for one, other in zip(clean, faulty, strict=True)]
    kinds = [one.summary["missing"]["kinds"] for one in faulty]
    lost, refused = (sum(kind.get(what, 0) for kind in kinds) / len(kinds) for what in ("lost", "refused"))
    cells = [
        f"`{method}`", spread([one.accuracy for one in clean]), spread([one.accuracy for one in faulty]),
        f"{statistics.fmean(change):+.3f}", f"{min(change):+.3f}", f"{lost:,.0f}", f"{refused:,.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, help="write the table here as well")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    lines = [
        "| method | without faults | with faults | change | worst seed | lost | refused |",
        "|---|---|---|---|---|---|---|",
    ]
    print(*lines, sep="\n", flush=True)
    for method in asked.methods.split(","):
        lines.append(row(method, seeds, asked.rounds))
        print(lines[-1], flush=True)
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
