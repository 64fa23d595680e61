"""The time of one ask on Flower: a plain Flower FedAvg app beside fedkin's, with the same net, samples and SuperNodes.

    OMP_NUM_THREADS=1 .venv-flower/bin/python benchmarks/flower.py [--rounds 5] [--repeats 2] [--folder DIR]

One SuperLink and three SuperNodes on this machine, with TLS and keys, run one after the other, in turn: Flower's own
strategy FedAvg, whose client imports torch for each message, trains and answers; and fedkin's FedAvg with `fedkin
flower node` at each SuperNode. A round is two asks of all three clients, training and evaluation. Printed are the
seconds of an ask in each round except the first of each run, their median with the smallest and largest, and the ratio
of each median to that of the plain app.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT / "tests")  # not this folder, which has a network.py

import tomli_w  # noqa: E402

from certificates import new_town  # noqa: E402
from network.federations import experiment  # noqa: E402
from network.flowering import NAMES, Deployment, deployed  # noqa: E402

ASKS = 2  # of a round: training and evaluation
SERVER = """
import time

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from plain.net import net

app = ServerApp()


class Timed(FedAvg):
    def aggregate_evaluate(self, server_round, replies):
        found = super().aggregate_evaluate(server_round, replies)
        print(f"plain: round {server_round} at {time.monotonic()}", flush=True)
        return found


@app.main()
def main(grid, context):
    strategy = Timed(min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3)
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=int(context.run_config["rounds"]))
    print("plain: the run has ended", flush=True)
"""
CLIENT = """
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from plain.net import net

app = ClientApp()


def own(message, context, split):
    torch.set_num_threads(1)
    with np.load(context.node_config["fedkin-data"]) as found:
        rows = found["split"] == split
        x, y = torch.from_numpy(found["x"][rows]).float(), torch.from_numpy(found["y"][rows]).long()
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, x, y


@app.train()
def train(message, context):
    model, x, y = own(message, context, "train")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        rows = torch.randperm(len(x))[:16]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
    found = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(found), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    model, x, y = own(message, context, "test")
    with torch.no_grad():
        out = model(x)
        loss = float(torch.nn.functional.cross_entropy(out, y))
        right = float((out.argmax(1) == y).float().mean())
    found = {"metrics": MetricRecord({"loss": loss, "accuracy": right, "num-examples": len(x)})}
    return Message(RecordDict(found), reply_to=message)
"""
NET = """
from torch import nn


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--repeats", type=int, default=2)
    asked.add_argument("--folder", type=Path, help="for the files of all programs (default: a temporary one)")
    given = asked.parse_args()
    # A node's paths have to be absolute.
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="flower-"))).absolute()
    federation = experiment(clients=3).federation(Path())
    found: dict[str, list[float]] = {"plain": [], "fedkin": []}
    with deployed(folder, new_town(), federation) as made:
        made.superlink()
        for name in NAMES:
            made.register(name)
        for number in range(given.repeats):
            for kind in found:
                found[kind] += measured(made, kind, f"{kind}-{number}", given.rounds)
                print(f"{kind:9} {[round(one, 2) for one in found[kind]]} load {os.getloadavg()[0]:.1f}", flush=True)
    told(found)


def measured(made: Deployment, kind: str, name: str, rounds: int) -> list[float]:
    """Seconds of an ask in each round but the first."""
    for node in NAMES:
        data = f'fedkin-data="{made.folder}/{node}.npz"'
        made.supernode(node, configuration=data if kind == "plain" else "")
    try:
        return plain(made, name, rounds) if kind == "plain" else fedkin(made, name, rounds)
    finally:
        for node in NAMES:
            made.stop(f"supernode-{node}")


def plain(made: Deployment, name: str, rounds: int) -> list[float]:
    folder, package = made.folder / name, made.folder / name / "plain"
    package.mkdir(parents=True)
    project = {"name": "plain-app", "version": "1.0.0", "description": "", "license": "Apache-2.0", "dependencies": []}
    parts = {"serverapp": "plain.server_app:app", "clientapp": "plain.client_app:app"}
    table = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"}, "project": project,
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {"app": {"publisher": "plain", "components": parts, "config": {"rounds": rounds}}},
        },
    }  # fmt: skip
    (folder / "pyproject.toml").write_text(tomli_w.dumps(table))
    for module, text in (("__init__", ""), ("server_app", SERVER), ("client_app", CLIENT), ("net", NET)):
        (package / f"{module}.py").write_text(text)
    made.start(name, "flwr", "run", name, "here", "--stream")
    made.until(name, "plain: the run has ended")
    times = [float(line.rpartition(" ")[2]) for line in made.log(name).splitlines() if "plain: round" in line]
    return [(after - before) / ASKS for before, after in pairwise(times)]


def fedkin(made: Deployment, name: str, rounds: int) -> list[float]:
    network = {"clients": list(NAMES), "classes": 10, "shape": [1, 8, 8], "deadline": 600.0, "grace": 120.0}
    one = made.trial(name, {**experiment("fedavg", clients=3, rounds=rounds).table, "network": network})
    one.begin()
    one.ended()
    lines = (one.folder / "run" / "timing.jsonl").read_text().splitlines()
    totals = [float(json.loads(line)["total"]) for line in lines]
    return [(after - before) / ASKS for before, after in pairwise(totals)]


def told(found: dict[str, list[float]]) -> None:
    base = statistics.median(found["plain"])
    for kind, times in found.items():
        middle = statistics.median(times)
        print(
            f"{kind:9} {middle:6.2f} s an ask ({min(times):.2f} to {max(times):.2f}, {len(times)} rounds), "
            f"{middle / base:.2f} times the plain app's"
        )


if __name__ == "__main__":
    main()
