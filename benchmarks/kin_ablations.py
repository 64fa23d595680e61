"""The effect of each part of kin's choice, on the federations of `fedkin bench`, or on those that differ gradually.

    OMP_NUM_THREADS=1 python benchmarks/kin_ablations.py ablations.jsonl            all, some minutes of one core
    OMP_NUM_THREADS=1 python benchmarks/kin_ablations.py ablations.jsonl --table    the table only
    OMP_NUM_THREADS=1 python benchmarks/kin_ablations.py constants.jsonl --constants
    OMP_NUM_THREADS=1 FEDKIN_DATA=DATA python benchmarks/kin_ablations.py degrees.jsonl --degrees

--degrees: those federations of the full suite whose clients differ gradually; forty minutes of one core. --constants:
other constants and rules of kin's choice, in place of its parts. Every run has the rate that was tuned for kin on its
federation (stored with the suite), and the seeds of the suite. Each run is one line of the file, so a run that was
stopped can be continued.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from full_suite import SUITE as FULL
from nothing_told import DEGREES
from torch import Tensor

import fedkin
from fedkin.analysis.intervals import over
from fedkin.federation import Task
from fedkin.flow import ServerFlow
from fedkin.methods import kin
from fedkin.methods.blocks.pulled_head import SHARED, Strength
from fedkin.running.bench import points, read_lines
from fedkin.running.suites import SUITES, Suite
from fedkin.views import ServerView

DIVERGED = -1000.0  # points
all_levels, loss_per_sample = kin.levels_of, kin.per_sample
best_candidate, begin_trial = kin.best_candidate, kin._begin_trial


def only(*levels: str) -> AbstractContextManager[Any]:
    """Try only these of the levels."""

    def kept(state: dict[str, Any], degrees: str) -> list[str]:
        return [level for level in all_levels(state, degrees) if level in levels] or ["all"]

    return patch.object(kin, "levels_of", kept)


def fixed(strength: Strength) -> AbstractContextManager[Any]:
    """Use one strength at every level."""
    return patch.object(kin, "strengths", lambda task: (strength,))


def wrong_per_sample(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """1 for a wrong class, 0 for a right one; squared errors stay unchanged."""
    if not task.labels:
        return loss_per_sample(task)
    return lambda outputs, targets: (outputs.argmax(1) != targets).double()


def shared_bodies(
    self: kin.Kin, server: ServerView, ids: Sequence[str], chosen: Mapping[str, float]
) -> ServerFlow[None]:
    """Keep the choice."""
    return
    yield


def fewest_models(costs: kin.Costs, sizes: Mapping[str, int], levels: Sequence[str]) -> tuple[str, int]:
    """The best candidate; in doubt, the level with the fewest models."""
    return best_candidate({id: table[::-1] for id, table in costs.items()}, sizes, levels[::-1])


def choose_after(share: float) -> AbstractContextManager[Any]:
    """Choose after this share of the rounds."""

    def begin(server: ServerView, method: kin.Kin) -> None:
        begin_trial(server, method)
        server.state["trial_end"] = server.round - 1 + int(share * (server.training.rounds - server.round + 1))

    return patch.object(kin, "_begin_trial", begin)


# All but the last with shared bodies.
VARIANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "shared bodies": nullcontext,
    "root only": lambda: only("all"),
    "leaf only": lambda: only("groups"),
    "no branches": lambda: only("all", "groups"),
    "shared heads only": lambda: fixed(SHARED),
    "strength 10": lambda: fixed(Strength(10.0, 10.0)),
    "strength 1": lambda: fixed(Strength(1.0, 1.0)),
    "choice by error": lambda: patch.object(kin, "per_sample", wrong_per_sample),
    "own bodies": nullcontext,
}
BASE, WHOLE = "shared bodies", "own bodies"
CONSTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    BASE: nullcontext,
    "DOUBT 0": lambda: patch.object(kin, "DOUBT", 0.0),
    "DOUBT 2": lambda: patch.object(kin, "DOUBT", 2.0),
    "CLIPPED .1": lambda: patch.object(kin, "CLIPPED", 0.1),
    "CLIPPED .4": lambda: patch.object(kin, "CLIPPED", 0.4),
    "OWN_HEAD .3": lambda: patch.object(kin, "OWN_HEAD", Strength(0.3, 0.3)),
    "OWN_HEAD 3": lambda: patch.object(kin, "OWN_HEAD", Strength(3.0, 3.0)),
    "in doubt fewer models": lambda: patch.object(kin, "best_candidate", fewest_models),
    "choice at a quarter": lambda: choose_after(0.25),
}


def rates(suite: Suite, names: Sequence[str]) -> dict[tuple[str, int], float]:
    """{(federation, seed): the rate of kin's stored run}."""
    lines = [line for line in read_lines(suite.stored) if line["method"] == "kin" and line["stage"] == "run"]
    stored = {(line["federation"], line["seed"]): line["lr"] for line in lines}
    return {(name, seed): stored[name, seed] for name in names for seed in suite.seeds}


def run(suite: Suite, name: str, variant: str, seed: int, rate: float) -> dict[str, Any]:
    """Run kin in one variant; return the line of the file."""
    entry = suite.federations[name]
    federation = entry.make(seed)
    with ExitStack() as changes:
        changes.enter_context((VARIANTS | CONSTANTS)[variant]())
        if variant != WHOLE:
            changes.enter_context(patch.object(kin.Kin, "choose_body", shared_bodies))
        result = fedkin.run(
            "kin", federation, rounds=suite.rounds, seed=seed, model=entry.model,
            training={"lr": rate, "local_steps": suite.local_steps, "batch_size": suite.batch_size},
            settings={"evaluate_every": suite.rounds},
        )  # fmt: skip
    mean = float(np.mean([value for value in points(federation, result).values() if value is not None]))
    figures: dict[str, Any] = result.rounds[-1]["figures"]
    chosen = {name: figures[name] for name in ("level", "pull_weights", "pull_bias", "own_body")}
    return {"federation": name, "variant": variant, "seed": seed, "mean": mean, **chosen}


def table(suite: Suite, names: Sequence[str], variants: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> str:
    """Kin's mean with shared bodies, and each variant's paired difference from it, with its 95 % interval over seeds.

    Federations on which any variant's models diverge are left out of the mean difference.
    """
    mean = {(line["federation"], line["variant"], line["seed"]): line["mean"] for line in lines}
    rows = ["| federation | " + " | ".join(variants) + " |", "| --- |" + " ---: |" * len(variants)]
    totals: dict[str, list[float]] = {variant: [] for variant in variants}
    for name in names:
        less = {
            variant: [mean[name, variant, seed] - mean[name, BASE, seed] for seed in suite.seeds]
            for variant in variants
        }
        cells = [f"{np.mean([mean[name, BASE, seed] for seed in suite.seeds]):.1f}"]
        diverged = {variant for variant, each in less.items() if min(each) < DIVERGED}
        for variant, each in list(less.items())[1:]:
            interval = over(each)
            half = 0.0 if interval is None else (interval.high - interval.low) / 2
            cells.append("diverges" if variant in diverged else f"{np.mean(each):+.1f}±{half:.1f}")
        if not diverged:
            for variant, each in less.items():
                totals[variant].append(float(np.mean(each)))
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    cells = ["" if variant == BASE else f"{np.mean(each):+.1f}" for variant, each in totals.items()]
    return "\n".join([*rows, "| mean difference | " + " | ".join(cells) + " |"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--degrees", action="store_true")
    parser.add_argument("--constants", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    suite = FULL if options.degrees else SUITES["quick"]
    names = DEGREES if options.degrees else tuple(suite.federations)
    variants = list(CONSTANTS if options.constants else VARIANTS)
    file = options.file
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(line["federation"], line["variant"], line["seed"]) for line in lines}
    if not options.table:
        for variant in variants:
            for (name, seed), rate in rates(suite, names).items():
                if (name, variant, seed) in done:
                    continue
                line = run(suite, name, variant, seed, rate)
                lines.append(line)
                with file.open("a", encoding="utf-8") as opened:
                    opened.write(json.dumps(line) + "\n")
    print(table(suite, names, variants, lines))


if __name__ == "__main__":
    main()
