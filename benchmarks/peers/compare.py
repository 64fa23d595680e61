"""Time of rounds of FedAvg in fedkin, fluke, pfl-research, FedJAX, Flower's simulation, and a loop in PFLlib's style.

    sh benchmarks/peers/setup.sh FOLDER
    OMP_NUM_THREADS=1 python benchmarks/peers/compare.py FOLDER [--rows mlp-32,table,lenet] [--rounds 25] [--json FILE]

There are 100 clients with 300 samples each; 20 train in each round, for one epoch of SGD with batches of 32. All sides
have the same net, initial values, samples and number of steps. Each side is a small experiment as its own users write
it (side_*.py), in its own environment and process with one thread; each client has arrays of its own. The sides
alternate round by round. CPU time is that of a side's process and all processes that it started. A ratio is the median
over rounds of (side / plain loop) with quartiles, the first round left out; "with the first" is the ratio of
the sums over all rounds. Then each of fedkin's sides is compared with each other library: the median over rounds of
(fedkin / library) with its 95 % interval by the sign test, which needs 6 rounds; an interval without 1 decides which is
faster. --json: figures of finished rows are kept in this file, and a row in it is not run again. A side without an
environment in FOLDER, or that cannot do a row, is named and left out. Accuracy is the share p of the last model on
2,000 other samples, with 2 standard errors sqrt(p (1 - p) / n).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import SHAPES, TEST, build, load, make

HERE = Path(__file__).parent
SIDES: dict[str, tuple[str, list[str]]] = {
    "plain loop": ("", ["side_plain.py"]),
    "PFLlib-style": ("", ["side_plain.py", "objects"]),
    "fedkin": ("", ["side_fedkin.py", "fast"]),
    "one-by-one": ("", ["side_fedkin.py", "one-by-one"]),
    "fluke": ("fluke", ["side_fluke.py"]),
    "pfl": ("pfl", ["side_pfl.py"]),
    "fedjax": ("fedjax", ["side_fedjax.py"]),
    "flower": ("flower", ["side_flower.py"]),
}
FEDKIN = ("fedkin", "one-by-one")


class Ended(Exception):
    """A side that ended by itself."""


class Side:
    """A process that does a round on request."""

    def __init__(self, name: str, python: Path, arguments: list[str], row: str, data: Path, rounds: int) -> None:
        self.name = name
        reading, writing = os.pipe()
        script, *more = arguments
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
        environment |= {"PEERS_ANSWER": str(writing), "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
        environment |= {"WANDB_MODE": "disabled", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DEDUP_LOGS": "0"}
        self.log = (data / f"{name.replace(' ', '-')}.log").open("w")
        self.process = subprocess.Popen(
            [str(python), str(HERE / script), row, str(data), str(rounds), *more], env=environment,
            pass_fds=[writing], stdin=subprocess.PIPE, stdout=self.log, stderr=subprocess.STDOUT, text=True, cwd=data,
        )  # fmt: skip
        os.close(writing)
        self.answers = os.fdopen(reading)

    def hear(self) -> dict[str, Any]:
        """Return the next answer of the side."""
        line = self.answers.readline()
        if not line:
            self.process.wait()
            last = Path(self.log.name).read_text(encoding="utf-8")[-2000:]
            raise Ended(f"{self.name} ended with status {self.process.returncode}:\n{last}")
        return dict(json.loads(line))

    def round(self) -> tuple[float, float]:
        """Return the CPU and wall-clock seconds of one round."""
        self.hear()
        before = started_by(self.process.pid)
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        told = self.hear()
        return told["cpu"] + max(started_by(self.process.pid) - before, 0.0), told["wall"]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def started_by(root: int) -> float:
    """Return the CPU seconds of all processes below this one (Linux; in steps of a clock tick)."""
    below, ticks = {root}, 0
    found: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    for pid in sorted(found):
        if found[pid][0] in below:
            below.add(pid)
            ticks += found[pid][1]
    return ticks / os.sysconf("SC_CLK_TCK")


def accuracy(row: str, path: str, data: Path) -> float:
    """Return the share of correct test samples for the model in this file."""
    module = build(row)
    module.load_state_dict(torch.load(path, weights_only=True))
    _, _, x, y = load(data)
    with torch.no_grad():
        return float((module(x).argmax(1) == y).float().mean())


def compare(row: str, names: list[str], environments: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """Run all sides on one row in turns, and return their figures."""
    with tempfile.TemporaryDirectory() as name:
        data = Path(name)
        make(row, data)
        sides = []
        for name in names:
            environment, arguments = SIDES[name]
            # The path is not resolved, because an environment is a link to the interpreter.
            python = environments.absolute() / environment / "bin" / "python" if environment else Path(sys.executable)
            if python.exists():
                sides.append(Side(name, python, arguments, row, data, rounds + 1))
            else:
                print(f"{name}: no environment in {environments}", file=sys.stderr)
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for _ in range(rounds + 1):
            for side in list(sides):
                try:
                    spent[side.name].append(side.round())
                except Ended as why:
                    print(why, file=sys.stderr)
                    sides.remove(side)
        made: dict[str, dict[str, Any]] = {}
        for side in sides:
            made[side.name] = figures(spent[side.name], spent["plain loop"])
            made[side.name]["rounds"] = [cpu for cpu, _ in spent[side.name]]
            made[side.name]["accuracy"] = accuracy(row, side.hear()["model"], data)
            side.close()
        return made


def figures(spent: list[tuple[float, float]], plain: list[tuple[float, float]]) -> dict[str, Any]:
    """Return median times, and median and quartiles of the ratios to the plain loop, paired by round."""
    made = {}
    for place, what in enumerate(("cpu", "wall")):
        each, other = [one[place] for one in spent], [one[place] for one in plain]
        ratios = [a / b for a, b in zip(each[1:], other[1:], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        made |= {what: statistics.median(each[1:]), f"{what} ratio": middle, f"{what} low": low, f"{what} high": high,
                 f"{what} first": each[0], f"{what} whole": sum(each) / sum(other)}  # fmt: skip
    return made


def median_interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median by the sign test: two of the ordered values."""
    ordered, n = sorted(values), len(values)
    # P(at most k of n values lie below the median), twice, is at most .05.
    cut = max((k for k in range(n) if 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n <= 0.05), default=-1)
    return (ordered[cut], ordered[n - cut - 1]) if cut >= 0 else (-math.inf, math.inf)


def beside(sides: dict[str, dict[str, Any]]) -> None:
    """Print fedkin's sides beside each other library, paired by round."""
    others = [name for name in sides if name not in FEDKIN]
    print(f"fedkin / library, paired: {', '.join(others)}")
    for ours in (name for name in FEDKIN if name in sides):
        cells = []
        for other in others:
            pairs = zip(sides[ours]["rounds"][1:], sides[other]["rounds"][1:], strict=True)
            ratios = [a / b for a, b in pairs]
            low, high = median_interval(ratios)
            cells.append(f"{statistics.median(ratios):.2f} ({low:.2f}-{high:.2f})")
        print(f"{ours:14} {'  '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path)
    parser.add_argument("--rows", default=",".join(SHAPES))
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    done = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    names = ["plain loop", *[name for name in asked.sides if name != "plain loop"]]
    for row in asked.rows.split(","):
        if row not in done:
            done[row] = compare(row, names, asked.environments, asked.rounds)
            if asked.json:
                asked.json.write_text(json.dumps(done, indent=1))
        show(row, done[row])
        beside(done[row])


def show(row: str, sides: dict[str, dict[str, Any]]) -> None:
    print(
        f"\n{row}\n{'':14}{'CPU s':>9}{'ratio':>8}{'quartiles':>14}{'first s':>9}{'with it':>9}{'wall s':>9}   accuracy"
    )
    for name, f in sides.items():
        p = f["accuracy"]
        print(
            f"{name:14}{f['cpu']:9.4f}{f['cpu ratio']:8.2f}{f['cpu low']:9.2f}-{f['cpu high']:.2f}{f['cpu first']:9.3f}"
            f"{f['cpu whole']:9.2f}{f['wall']:9.4f}   {p:.3f} +- {2 * math.sqrt(p * (1 - p) / TEST):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
