"""Advice on federations whose truth is known: are planted groups found, and do intervals cover?

    OMP_NUM_THREADS=1 python benchmarks/advise.py coverage FOLDER --federations 200 [--kind risk] [--share 0/2]

    OMP_NUM_THREADS=1 python benchmarks/advise.py eicu|tpt48 FOLDER --data-root DATA
    OMP_NUM_THREADS=1 python benchmarks/advise.py synthetic FOLDER
    OMP_NUM_THREADS=1 python benchmarks/advise.py sizes FOLDER --clients 500 --minutes 10

Each federation is a line of FOLDER/SEED.json; a study prints a section of Markdown. The same command continues where it
was stopped.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow.csv import write_csv

from fedkin.advice import Advice, Bench, Plan, advise
from fedkin.advice.recommending import recommend
from fedkin.cli.commands import app as command
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning.metrics import roc_auc
from fedkin.learning.models import Mlp
from fedkin.learning.sgd import infer
from fedkin.learning.training import Training
from fedkin.running.experiment import Experiment, RunSettings

Array = npt.NDArray[np.float64]

WIDTH = 8
FRESH = 20_000


@dataclass(frozen=True)
class Hospital:
    """The distribution of its samples: inputs are normal around `shift`, the probability of an event is logistic.

    In a regression the target is the logit with normal noise of standard deviation 1.
    """

    id: str
    group: str
    slopes: Array
    intercept: float
    shift: Array
    kind: str = "risk"

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, npt.NDArray[Any]]:
        x = rng.normal(size=(count, WIDTH)) + self.shift
        logit = (x - self.shift) @ self.slopes + self.intercept
        if self.kind == "regression":
            return x, (logit + rng.normal(size=count)).astype(np.float32)[:, None]
        return x, (rng.random(count) < 1 / (1 + np.exp(-logit))).astype(np.int64)

    def samples(self, count: int, rng: np.random.Generator) -> Samples:
        x, y = self.draw(count, rng)
        return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))


def hospitals(seed: int, kind: str = "risk") -> tuple[Federation, dict[str, Hospital]]:
    """Two groups of three and four hospitals, one hospital unlike all others, and two with only two or three events.

    Groups differ in how inputs act on the risk, and a little in their inputs. Sizes and base rates differ. In a
    regression sizes are a third of these, and the last two hospitals have six and seven samples.
    """
    rng = np.random.default_rng([20261122, seed])
    first = rng.normal(size=WIDTH)
    second = rng.normal(size=WIDTH)
    first, second = (1.6 * each / np.linalg.norm(each) for each in (first, second))
    second -= first * (first @ second) / (first @ first) * rng.uniform(0.7, 1.3)
    second *= 1.6 / np.linalg.norm(second)
    kinds = [("a", first)] * 3 + [("b", second)] * 4 + [("loner", -(first + second) / 1.4)]
    names = rng.permutation([f"hospital-{letter}" for letter in "ABCDEFGHIJ"])
    shifts = {
        "a": rng.normal(size=WIDTH) * 0.1,
        "b": rng.normal(size=WIDTH) * 0.1,
        "loner": rng.normal(size=WIDTH) * 0.1,
    }
    made, clients = {}, []
    for place, name in enumerate(names):
        if place < len(kinds):
            group, slopes = kinds[place]
            size, intercept = int(rng.integers(120, 420)), float(rng.uniform(-1.2, -0.2))
            if group == "loner":
                size = int(rng.integers(350, 500))
            size = size // 3 if kind == "regression" else size
            one = Hospital(str(name), group, slopes, intercept, shifts[group], kind)
            train, test = one.samples(size, rng), one.samples(size // 4, rng)
        else:
            group, slopes = kinds[int(rng.integers(7))]
            one = Hospital(str(name), "few", slopes, -3.0, shifts[group], kind)
            if kind == "regression":
                train, test = one.samples(6 + place % 2, rng), one.samples(20, rng)
            else:
                train, test = with_events(one, int(rng.integers(60, 120)), 2 + place % 2, rng), one.samples(20, rng)
        made[one.id] = one
        clients.append(Client(one.id, train, test, one.group))
    task = Task.regression(1, (WIDTH,)) if kind == "regression" else Task(2, (WIDTH,), "risk")
    return Federation(clients, task, "hospitals"), made


def with_events(hospital: Hospital, count: int, events: int, rng: np.random.Generator) -> Samples:
    """`count` samples, of which `events` have the event."""
    x, y = hospital.draw(100 * count, rng)
    rows = np.concatenate([np.flatnonzero(y == 1)[:events], np.flatnonzero(y == 0)[: count - events]])
    return Samples(torch.from_numpy(x[rows].astype(np.float32)), torch.from_numpy(y[rows]))


BENCH = Bench(Mlp(hidden=(16,)), Training(rounds=5, local_steps=20, batch_size=32, lr=0.1), RunSettings(mode="fast"), 0)
PLAN = Plan(folds=5, rates=(1.0, 3.0))


def true_gain(found: Advice, id: str, hospital: Hospital, models: Mapping[str, Any], rng: np.random.Generator) -> float:
    """The gain of a client's model over its local one, in AUC or squared error, on a large fresh sample."""
    fresh = hospital.samples(FRESH, rng)
    module = found.net.scratch()
    marks = []
    for params in (models[id], found.alone[id]):
        outputs, y = infer(found.net, module, params, "logits", fresh).double(), fresh.labels()
        if hospital.kind == "regression":
            marks.append(-float((outputs - y).square().mean()))
        else:
            marks.append(roc_auc((outputs[:, 1] - outputs[:, 0]).numpy(), y.numpy()))
    return float(marks[0] - marks[1])


def one(seed: int, kind: str = "risk", keep: Path | None = None) -> dict[str, Any]:
    """A federation, its advice and the truth, as plain data; kind: "risk", "regression", or "time" (risk by time)."""
    begun = time.process_time()
    federation, made = hospitals(seed, "regression" if kind == "regression" else "risk")
    # Samples do not change with time: this tests how holding out the latest ones affects the intervals.
    if kind == "time":
        times = {id: torch.arange(client.size, dtype=torch.float64) for id, client in federation.items()}
        dated = [replace(client, train=replace(client.train, time=times[id])) for id, client in federation.items()]
        federation = Federation(dated, federation.task)
    found = advise(federation, Bench(BENCH.model, BENCH.training, BENCH.run, seed), PLAN, folder=keep)
    spent = time.process_time() - begun
    told = {id: hospital.group for id, hospital in made.items()}
    rng = np.random.default_rng([7, seed])
    gains = []
    for client in found.clients:
        if client.gain is not None:
            truth = true_gain(found, client.id, made[client.id], found.shared, rng)
            gains.append({
                "id": client.id, "group": told[client.id], "takes": client.takes, "truth": truth,
                "value": client.gain.value, "low": client.gain.low, "high": client.gain.high,
                "deviation": client.gain.deviation,
            })  # fmt: skip
    planted = sorted(sorted(id for id in told if told[id] == group) for group in ("a", "b"))
    return {
        "seed": seed, "seconds": round(spent, 2), "candidate": found.candidate, "judged": found.judged,
        "stable": found.stable, "groups": [list(members) for members in found.groups],
        "exact": sorted(map(list, found.groups)) == planted,
        "loner_home": not any(client.takes for client in found.clients if told[client.id] == "loner"),
        "loner_alone": not any(client.partners for client in found.clients if told[client.id] == "loner"),
        "withheld": sorted(client.id for client in found.clients if client.unknown)
        == sorted(id for id in told if told[id] == "few"),
        "rate": found.rate, "own_rate": found.own_rate, "gains": gains, "sentence": found.sentence,
    }  # fmt: skip


def coverage(
    folder: Path, federations: int, first: int, part: int, parts: int, keep: Path | None, kind: str
) -> None:  # fmt: skip
    """Run those of these federations that have no result yet, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(first, first + federations):
        path = folder / f"{seed}.json"
        if seed % parts == part and not path.exists():
            aside = path.with_suffix(".part")
            found = one(seed, kind, None if keep is None else keep / str(seed))
            aside.write_text(json.dumps(found) + "\n", encoding="utf-8")
            aside.replace(path)
            print(f"{seed}: {json.loads(path.read_text())['sentence']}", file=sys.stderr, flush=True)
    lines = [
        json.loads(path.read_text(encoding="utf-8")) for seed in range(first, first + federations)
        if (path := folder / f"{seed}.json").exists()
    ]  # fmt: skip
    print(table(lines))


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """The figures of these federations as a Markdown table."""
    gains = [gain for line in lines for gain in line["gains"]]
    taken = [gain for gain in gains if gain["takes"]]
    rows = [("federations", f"{len(lines)}"), ("clients with an interval", f"{len(gains)}")]
    for name, each in (("all", gains), ("that share", taken), ("that decline", [g for g in gains if not g["takes"]])):
        if each:
            inside = [gain["low"] <= gain["truth"] <= gain["high"] for gain in each]
            below = float(np.mean([gain["truth"] < gain["low"] for gain in each]))
            rate, error = float(np.mean(inside)), _by_federation(lines, each)
            rows.append((f"coverage of 90 % intervals, clients {name} ({len(each)})", f"{rate:.3f} ± {error:.3f}"))
            rows.append((f"truth below / above the interval, {name}", f"{below:.3f} / {1 - rate - below:.3f}"))
            means = [100 * float(np.mean([gain[what] for gain in each])) for what in ("value", "truth")]
            rows.append((f"mean estimate / truth, {name}, x 100", f"{means[0]:+.2f} / {means[1]:+.2f}"))
    rows.append(("clients that share and lose by it", f"{np.mean([g['truth'] < 0 for g in taken] or [0]):.3f}"))
    titles = {
        "exact": "planted groups found exactly", "loner_home": "loner trains alone", "loner_alone": "loner in no group",
        "withheld": "verdict withheld on just the two",
    }  # fmt: skip
    rows += [(title, f"{np.mean([line[name] for line in lines]):.3f}") for name, title in titles.items()]
    rows += [
        (f"recommended: {name}", f"{np.mean([line['candidate'] == name for line in lines]):.3f}")
        for name in sorted({line["candidate"] for line in lines})
    ]
    rows.append(("seconds of one core, median", f"{np.median([line['seconds'] for line in lines]):.1f}"))
    return "\n".join(["| | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows)])


def _by_federation(lines: Sequence[Mapping[str, Any]], each: Sequence[Mapping[str, Any]]) -> float:
    """Standard error of a share over clients, with federations as the sampling units."""
    chosen = {id(gain) for gain in each}
    sums, counts = [], []
    for line in lines:
        own = [gain["low"] <= gain["truth"] <= gain["high"] for gain in line["gains"] if id(gain) in chosen]
        sums.append(sum(own))
        counts.append(len(own))
    rate = sum(sums) / sum(counts)
    rest = np.array(sums) - rate * np.array(counts)
    return float(np.sqrt(np.square(rest).sum()) / sum(counts))


# From raw tables to a decision: the experiments of the studies.
_EVERY = {"model": {"name": "mlp", "hidden": [16]}, "method": {"name": "local"}, "run": {"mode": "fast"}}
STUDIES: dict[str, dict[str, Any]] = {
    "eicu": {
        "name": "advise-eicu", "data": {"source": "eicu-demo"}, "scenario": {"name": "regions", "min_size": 80},
        "training": {"rounds": 20, "local_steps": 10, "batch_size": 32, "lr": 0.03}, **_EVERY,
    },
    "tpt48": {
        "name": "advise-tpt48", "data": {"source": "tpt48"}, "scenario": {"name": "natural"},
        "training": {"rounds": 20, "local_steps": 20, "batch_size": "all", "lr": 0.01}, **_EVERY,
    },
}  # fmt: skip


def study(kind: str, folder: Path, root: Path) -> str:
    """Advise on the data of a study; return the section of Markdown."""
    if kind == "synthetic":
        federation, _ = hospitals(0)
        found = advise(federation, BENCH, Plan(), folder=folder)
    else:
        found = recommend(Experiment.of(STUDIES[kind]), root, folder)
    rows = ["| " + " | ".join(row) + " |" for row in (found.heads, ["---"] * len(found.heads), *found.rows())]
    return "\n\n".join([f"> {found.sentence}", "\n".join(rows), found.why, *found.notes])


def sized(count: int, seed: int = 0) -> pa.Table:
    """Clients of 30 to 3,000 rows and one of 100,000, in two groups that differ in how inputs act on a risk."""
    rng = np.random.default_rng([3, seed])
    sizes = np.exp(rng.uniform(np.log(30), np.log(3000), count)).astype(int)
    sizes[0], sizes[-1] = 100_000, 30
    slopes = rng.normal(size=(2, WIDTH)) / np.sqrt(WIDTH / 2)
    parts: list[pa.Table] = []
    for place, size in enumerate(sizes):
        hospital = Hospital(f"c{place:03}", str(place % 2), slopes[place % 2], -0.7, np.zeros(WIDTH))
        x, y = hospital.draw(int(size), rng)
        columns = {f"x{number}": x[:, number] for number in range(WIDTH)}
        parts.append(pa.table({**columns, "died": y, "hospital": [hospital.id] * len(y)}))
    return pa.concat_tables(parts)


def sizes(folder: Path, count: int, minutes: float | None) -> str:
    """Advise on `sized`, as the command line does with a CSV file; return a row of Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.csv"
    table = sized(count)
    write_csv(table, path)
    begun, spent = time.perf_counter(), time.process_time()
    options = ["advise", str(path), "--target", "died", "--client", "hospital", "--out", str(folder / "advice")]
    told = [] if minutes is None else ["--budget", f"{minutes:g}"]
    command([*options, *told], standalone_mode=False)
    wall, cpu = (now / 60 for now in (time.perf_counter() - begun, time.process_time() - spent))
    found = json.loads((folder / "advice" / "advice.json").read_text(encoding="utf-8"))
    tried = f"{found['folds']} folds, {len(found['rates'])} rates"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    groups = sorted(map(len, found["groups"]))
    odd = [sum(int(id[1:]) % 2 for id in members) for members in found["groups"]]
    misplaced = sum(min(one, len(members) - one) for one, members in zip(odd, found["groups"], strict=True))
    known = sum(client["known"] for client in found["clients"])
    budget = "none" if minutes is None else f"{minutes:g} min"
    cells = [f"{count}", f"{table.num_rows:,}", budget, tried, f"{cpu:.1f}", f"{wall:.1f}",
             f"{memory:,.0f}", f"{known}", f"{found['candidate']}: {groups}", f"{misplaced}"]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("coverage")
    run.add_argument("folder", type=Path)
    run.add_argument("--federations", type=int, default=200)
    run.add_argument("--first", type=int, default=0)
    run.add_argument("--share", default="0/1", help="PART/PARTS: which of several processes this is")
    run.add_argument("--kind", choices=("risk", "regression", "time"), default="risk")
    run.add_argument("--keep", type=Path, help="where trained runs are kept, to judge them by another rule of choice")
    for name in (*STUDIES, "synthetic"):
        one_study = commands.add_parser(name)
        one_study.add_argument("folder", type=Path)
        one_study.add_argument("--data-root", type=Path, default=Path("data"))
    large = commands.add_parser("sizes")
    large.add_argument("folder", type=Path)
    large.add_argument("--clients", type=int, default=100)
    large.add_argument("--minutes", type=float)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.command == "coverage":
        part, parts = map(int, given.share.split("/"))
        coverage(given.folder, given.federations, given.first, part, parts, given.keep, given.kind)
    elif given.command == "sizes":
        print(sizes(given.folder, given.clients, given.minutes))
    else:
        print(study(given.command, given.folder, given.data_root))


if __name__ == "__main__":
    main()
