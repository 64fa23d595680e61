"""Scores against epsilon: what private training (`privacy.sample_epsilon`) costs clients of different sizes.

python benchmarks/private_training.py [--seeds 0,1,2] [--out docs/results/private-training.csv]

Handwritten digits in four groups, dealt to 20 or to 5 clients, and six simulated hospitals as in the tutorial
docs/tutorials/my-table.md, of 240 or 4,000 training rows each; nothing needs to be downloaded. Prints a table, and
writes a line for each run. Digits are scored by accuracy, hospitals by ROC-AUC, both as a mean over clients.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fedkin
from fedkin.federation import Federation
from fedkin.keys import rng
from fedkin.learning.models import MODELS

ROOT = Path(__file__).parents[1]
EPSILONS: Sequence[float | None] = (None, 8.0, 4.0, 1.0)
METHODS = ("local", "fedavg", "kin")
ROUNDS = 20
TRAINING = {"lr": 0.3, "local_steps": 5, "batch_size": "all"}


def hospitals(rows: int, seed: int) -> Federation:
    """The distribution of docs/tutorials/my-table.md, with `rows` rows per hospital; a fifth of them are test rows."""
    draw, table = rng(seed, "hospitals"), dict[str, list[Any]]()
    for number, name in enumerate(["north", "south", "east", "west", "harbour", "hill"]):
        age, creatinine, oxygen = draw.normal(65, 12, rows), draw.normal(1.2, 0.4, rows), draw.normal(94, 3, rows)
        sick = 3 * (creatinine - 1.2) if number < 3 else -0.5 * (oxygen - 94)
        died = draw.normal(0, 1, rows) < 0.04 * (age - 65) + sick - 1
        wards = [("medical", "surgical", "icu")[ward] for ward in draw.integers(3, size=rows)]
        known = [value if there else None for value, there in zip(creatinine, draw.random(rows) >= 0.05, strict=True)]
        columns = {"hospital": [name] * rows, "age": age, "ward": wards, "creatinine": known, "oxygen": oxygen}
        for column, values in {**columns, "died": died.astype(int)}.items():
            table.setdefault(column, []).extend(values)
    return Federation.from_frame(table, target="died", client="hospital", seed=seed)


def digits(clients: int, seed: int) -> Federation:
    return fedkin.federate("digits", "rotated-masked", clients=clients, seed=seed)


FEDERATIONS: dict[str, Callable[[int], Federation]] = {
    "digits, 20 clients": lambda seed: digits(20, seed),
    "digits, 5 clients": lambda seed: digits(5, seed),
    "6 hospitals": lambda seed: hospitals(300, seed),
    "6 large hospitals": lambda seed: hospitals(5000, seed),
}


def run(name: str, method: str, epsilon: float | None, seed: int) -> dict[str, Any]:
    """A run of 20 rounds; kin also signs with this epsilon, which is in the largest epsilon that the run states."""
    federation = FEDERATIONS[name](seed)
    privacy = None if epsilon is None else {"sample_epsilon": epsilon}
    options = {"degrees": "groups"} if method == "kin" else {}
    if method == "kin" and privacy is not None:
        privacy["signature_epsilon"] = privacy["sample_epsilon"]
    result = fedkin.run(
        method, federation, rounds=ROUNDS, seed=seed,
        model=MODELS["mlp"].model_validate({"name": "mlp", "hidden": [16]}), training=TRAINING,
        settings={"evaluate_every": ROUNDS, "mode": "fast"}, privacy=privacy, **options,
    )  # fmt: skip
    told = result.summary.get("privacy")
    n = round(statistics.fmean(client.size for client in federation.values()))
    return {
        "federation": name, "n": n, "method": method, "sample_epsilon": epsilon, "seed": seed,
        "epsilon": None if told is None else round(told["epsilon"]["max"], 4), "score": round(result.value, 4),
    }  # fmt: skip


def cell(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f}±{spread:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/private-training.csv")
    options = parser.parse_args()
    seeds, began = [int(seed) for seed in options.seeds.split(",")], time.perf_counter()
    lines: list[dict[str, Any]] = []
    print("| federation | method | " + " | ".join("none" if e is None else f"{e:g}" for e in EPSILONS) + " |")
    print("|---|---|" + "---|" * len(EPSILONS))
    for name in FEDERATIONS:
        for method in METHODS:
            cells = []
            for epsilon in EPSILONS:
                mine = [run(name, method, epsilon, seed) for seed in seeds]
                lines += mine
                cells.append(cell([line["score"] for line in mine]))
            print(f"| {name} of {lines[-1]['n']:,} | {method} | {' | '.join(cells)} |", flush=True)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(f"{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
