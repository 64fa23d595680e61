"""Number of communications between peers, as in MAPL's Table 4, and the accuracy within a number of them.

    python benchmarks/mapl_communications.py RUN [RUN ...] [--budget N]

RUN: folder of a finished run of MAPL. A communication is a directed edge along which prototypes were sent in a round.
The perfect number has all edges up to and including the first round in which weights are learned, and after it only
edges within planted groups. --budget: number of communications for which the last evaluation is printed (default: the
least number that one of the runs used).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fedkin.running.experiment import load


def communications(folder: Path) -> list[int]:
    """Return the number of directed edges in each round."""
    table = pq.read_table(folder / "messages.parquet").to_pydict()
    names = ("round", "from", "to", "floats")
    edges = {(round, a, b) for round, a, b, floats in zip(*(table[name] for name in names), strict=True) if floats}
    used = Counter(round for round, _, _ in edges)
    return [used[round] for round in range(1, max(used, default=0) + 1)]


def perfect(folder: Path, rounds: int, first: int) -> int:
    """Return the number of edges of a run that knows the planted groups from round `first` + 1 on."""
    clients = json.loads((folder / "federation.json").read_text())["clients"]
    sizes = Counter(client["group"] for client in clients.values())
    within, all_pairs = sum(n * (n - 1) for n in sizes.values()), len(clients) * (len(clients) - 1)
    return all_pairs * min(first, rounds) + within * max(rounds - first, 0)


def read(folder: Path) -> dict[str, Any]:
    """Return the communications, accuracies and settings of a run."""
    method: Any = load(folder / "experiment.toml").method
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return {
        "folder": folder,
        "used": communications(folder),
        "first": max(method.warmup, 1),
        "learned": method.graph.on,
        "accuracy": {row["round"]: row["accuracy"]["mean"] for row in rows if row.get("accuracy")},
    }


def within(run: dict[str, Any], budget: int) -> tuple[int, float]:
    """Return (round, accuracy) of the last evaluation within a budget."""
    spent = [sum(run["used"][:round]) for round in run["accuracy"]]
    allowed = [round for round, sum_ in zip(run["accuracy"], spent, strict=True) if sum_ <= budget]
    return (allowed[-1], run["accuracy"][allowed[-1]]) if allowed else (0, float("nan"))


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--budget", type=int)
    asked = parser.parse_args()
    runs = [read(folder) for folder in asked.runs]
    budget = asked.budget or min(sum(run["used"]) for run in runs)
    for run in runs:
        used, first = run["used"], run["first"]
        best = perfect(run["folder"], len(used), first)
        after, ideal = sum(used[first:]), best - sum(used[:first])
        round, accuracy = within(run, budget)
        print(
            f"{run['folder']}: graph learning {'on' if run['learned'] else 'off'}, {sum(used):,} communications "
            f"(perfect {best:,}), after round {first} {after:,} of {ideal:,} ({after / ideal - 1:+.1%}); "
            f"accuracy {list(run['accuracy'].values())[-1]:.4f}, with {budget:,} communications {accuracy:.4f} "
            f"(round {round})"
        )


if __name__ == "__main__":
    main()
