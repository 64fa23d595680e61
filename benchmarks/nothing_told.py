"""What it costs to be told nothing: every method on 24 federations, against the best of local training, FedAvg and FLT
with the number of groups.

    OMP_NUM_THREADS=1 python benchmarks/nothing_told.py run FOLDER --data-root DATA [--rows 'kin;cfl']
    python benchmarks/nothing_told.py table FOLDER [--page docs/results/nothing-told.md]

`run` appends a line for each finished run to FOLDER/runs.jsonl, and goes on where it was when it is started again.
`table` prints all tables and writes FOLDER/table.csv; with --page it also writes them into a page, and a csv file
beside it. DATA has the folders of the sources mnist, fashion-mnist, qmnist, cifar10, eicu-demo and tpt48.

Each method has a rate for each federation: the best of three on a fifth of every client's training samples held out,
with seed 0 and half of the rounds. Then seeds 0, 1 and 2 make federation, net and batches. All clients in each round.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from told_federations import QUICK, Told, told
from told_rows import ESSENTIAL, ROWS, TIERS, Row, built, number_of_groups
from told_table import Runs, filled, read, tables, write_csv

import fedkin
from fedkin.errors import ConfigError, FedkinError
from fedkin.federation import Federation
from fedkin.running.holdout import HoldOut, held_out
from fedkin.running.loop import Result

ROUNDS, STEPS, BATCH = 20, 5, 32
SEEDS = (0, 1, 2)
# Seconds of processor time, foreseen for a federation and method, above which the pair is left out. Not for the
# reference and kin.
CAP = 600.0
_HELD = HoldOut("samples", 0.2)


class Work:
    """The runs of one folder: what is there already, and what is appended."""

    def __init__(self, folder: Path, federations: dict[str, Told]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.told = folder / "runs.jsonl", federations
        self.lines = read(self.path)
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            # A line that was cut off stays, and is not read: the next one must not be appended to it.
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")
        self.federation = lru_cache(maxsize=8)(self._federation)

    def _federation(self, name: str, seed: int) -> Federation:
        return self.told[name].make(seed)

    def add(self, **line: Any) -> dict[str, Any]:
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return line

    def there(self, **wanted: Any) -> dict[str, Any] | None:
        """The line with these values."""
        return next((line for line in self.lines if wanted.items() <= line.items()), None)

    def pair(self, name: str, title: str) -> None:
        """All runs of a row on a federation."""
        row, federation = ROWS[title], self.federation(name, 0)
        if self.there(federation=name, row=title, stage="skip"):
            return
        groups = number_of_groups(federation)
        if built(row, groups, ROUNDS) is None:
            self.add(federation=name, row=title, stage="skip", skipped="no number of groups to be told")
            return
        rate = self.rate(name, title, row)
        for seed in SEEDS if rate is not None else ():
            if self.there(federation=name, row=title, stage="run", seed=seed) is None:
                assert rate is not None
                one = self.once(name, title, row, self.federation(name, seed), rate, seed, "run")
                print(f"{name:28s} {title:16s} seed {seed} rate {rate:g} {one.get('mean', math.nan):6.2f} "
                      f"ARI {one.get('ari')} {one.get('found')} {one.get('figures', '')} {one['seconds']:.1f} s "
                      f"{one.get('failed', '')}", flush=True)  # fmt: skip

    def rate(self, name: str, title: str, row: Row) -> float | None:
        """The best of the federation's rates; None if none works, or if all runs together would take too long."""
        tried = {}
        apart = lru_cache(maxsize=1)(partial(held_out, self.federation(name, 0), _HELD, 0))
        for lr in self.told[name].rates:
            line = self.there(federation=name, row=title, stage="rate", lr=lr)
            if line is None:
                line = self.once(name, title, row, apart(), lr, 0, "rate")
            # Three of half the length, and three: nine times this one.
            if title not in ESSENTIAL and "failed" not in line and 9 * line["seconds"] > CAP:
                reason = f"more than {CAP:g} s"
                self.add(federation=name, row=title, stage="skip", skipped=reason, foreseen=9 * line["seconds"])
                return None
            if "failed" not in line and not math.isnan(line["mean"]):
                tried[lr] = line["mean"]
        return max(tried, key=lambda lr: tried[lr]) if tried else None

    def once(
        self, name: str, title: str, row: Row, federation: Federation, lr: float, seed: int, stage: str
    ) -> dict[str, Any]:
        """One run, as a line of the file."""
        rounds = ROUNDS if stage == "run" else ROUNDS // 2
        method = built(row, number_of_groups(federation), rounds)
        assert method is not None
        known = {"federation": name, "row": title, "stage": stage, "lr": lr, "seed": seed, "rounds": rounds}
        known |= {"groups": self.told[name].groups, "kind": federation.task.kind}
        begun = time.process_time()
        try:
            result = fedkin.run(
                method, federation, rounds=rounds, seed=seed, model=self.told[name].model,
                training={"local_steps": STEPS, "batch_size": BATCH, "lr": lr},
                settings={"mode": "fast", "evaluate_every": rounds},
            )  # fmt: skip
        except FedkinError as error:
            return self.add(**known, failed=str(error), seconds=time.process_time() - begun)
        points = points_of(federation, result)
        mean = [value for value in points.values() if value is not None]
        figures = result.rounds[-1].get("figures")
        return self.add(
            **known, seconds=time.process_time() - begun, mean=sum(mean) / len(mean), points=points,
            tests={id: score.n for id, score in result.scores.items()}, ari=result.summary["groups"].get("ari"),
            found=result.summary["groups"].get("found"), **({"figures": figures} if figures else {}),
        )  # fmt: skip


def points_of(federation: Federation, result: Result) -> dict[str, float | None]:
    """100 x accuracy, 100 x ROC-AUC (None where all test samples are of one class), or percent of variance explained.

    That is 100 (1 - squared error / variance of all clients' training targets, summed over targets).
    """
    kind = federation.task.kind
    if kind == "classification":
        return {id: 100 * score.right / score.n for id, score in result.scores.items()}
    figures = {id: score.figures[0] for id, score in result.scores.items()}
    if kind == "risk":
        return {id: None if value is None else 100 * value for id, value in figures.items()}
    targets = torch.cat([client.train.labels().double() for client in federation.values()])
    whole = float(targets.var(0, correction=0).sum())
    return {id: None if value is None else 100 * (1 - value / whole) for id, value in figures.items()}


def pairs(federations: list[str], rows: list[str]) -> Iterator[tuple[str, str]]:
    """(federation, row) in the order in which they are wanted: quick federations have all rows before the others do."""
    quick = [name for name in federations if name in QUICK]
    for names, tiers in ((federations, TIERS[:1]), (quick, TIERS[1:]), (federations, TIERS[1:])):
        for tier, name in product(tiers, names):
            yield from ((name, title) for title in tier if title in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--rows", help="names, separated by ';'", default=";".join(ROWS))
    parser.add_argument("--federations", help="names, separated by ';'")
    parser.add_argument("--page", type=Path, help="a page whose tables are written anew")
    given = parser.parse_args()
    if given.what == "table":
        runs = Runs(read(given.folder / "runs.jsonl"), SEEDS)
        made = tables(runs)
        write_csv(runs, given.folder / "table.csv")
        if given.page is not None:
            given.page.write_text(filled(given.page.read_text(encoding="utf-8"), made), encoding="utf-8")
            write_csv(runs, given.page.with_suffix(".csv"))
        print("\n\n".join(made.values()))
        return
    torch.set_num_threads(1)
    # Rates that are too large for a method are part of what is tried.
    warnings.simplefilter("ignore")
    known = dict(told(given.data_root))
    work = Work(given.folder, known)
    names = given.federations.split(";") if given.federations else list(known)
    unknown: set[str] = set()
    for name, title in pairs(names, given.rows.split(";")):
        try:
            work.pair(name, title)
        except ConfigError as error:
            # A setting of a newer version: the row is tried again at the next start.
            if title not in unknown:
                print(f"{title}: {error}", flush=True)
            unknown.add(title)


if __name__ == "__main__":
    main()
