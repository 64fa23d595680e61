"""FLT and FedAvg with 100,000 clients: from signatures to groups, and the cost of a round compared with 1,000 clients.

    OMP_NUM_THREADS=1 python benchmarks/scale.py groups [--clients 100000] [--rules 10,ratio,same]
    OMP_NUM_THREADS=1 python benchmarks/scale.py rounds [--clients 1000,100000] [--repeats 9]
    OMP_NUM_THREADS=1 python benchmarks/scale.py sfmtl [--clients 20000] [--rules none]

Each client has 20 training and 5 test samples of 16 features in 4 classes. It belongs to one of ten planted groups,
each with means of its own for its classes. The net is an MLP 16-16-4. groups: each row runs in a process of its own,
from the first message of FLT to groups and graph: its time, its peak memory (with samples and interpreter), the ARI
with the planted groups, and the shares of edges inside them. rounds: 1,000 clients of a round, all engines in turns in
one process; quartiles of the paired ratios. sfmtl: the second round of SFMTL-Graph in which all clients take part; the
rules are its `sparsify`.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

from fedkin import graph
from fedkin.engines import LocalEngine, Setup
from fedkin.federation import Federation
from fedkin.federation.samples import hash_of
from fedkin.flow import Message, phase
from fedkin.learning import Net, Training
from fedkin.learning.models import Mlp
from fedkin.methods import FedAvg, Flt, FltSame, SfmtlGraph
from fedkin.methods.blocks.taskonomy import Taskonomy
from fedkin.methods.flt import RelatednessSettings
from fedkin.views import ClientView

GROUPS, CLASSES, FEATURES, TRAIN, TEST = 10, 4, 16, 20, 5


def make_federation(clients: int) -> Federation:
    rng = np.random.default_rng(0)
    group = rng.integers(GROUPS, size=clients)
    centres = rng.normal(size=(GROUPS, CLASSES, FEATURES)).astype(np.float32)
    each = TRAIN + TEST
    y = rng.integers(CLASSES, size=clients * each)
    owner = np.repeat(np.arange(clients), each)
    x = centres[group[owner], y] + 0.5 * rng.standard_normal((len(y), FEATURES), dtype=np.float32)
    split = np.tile(np.array(["train"] * TRAIN + ["test"] * TEST), clients)
    names = np.char.mod("c%06d", owner)
    return Federation.from_arrays(
        x, y, client=names, group=np.char.mod("g%d", group[owner]), split=split, classes=CLASSES
    )


def engine_of(federation: Federation, method: Any, a_round: int) -> LocalEngine:
    net = Net.build(lambda: Mlp(hidden=(16,)).build(federation.task), 1)
    training = Training(clients_per_round=a_round, batch_size=10, local_epochs=1, lr=0.05, rounds=100)
    return LocalEngine(Setup(method, federation, net, training))


class Quick(Flt):
    """FLT whose clients send class means: k-means takes each client 3 ms, and is not the server's work."""

    @phase
    def sign(self, client: ClientView[Any], message: Message) -> Message:
        rows, y = client.train.inputs(slice(None)), client.train.labels()
        client.state["signed"] = hash_of(client.train).hex()
        return Message(centres=torch.stack([rows[y == one].mean(0) for one in y.unique().tolist()]))


def flt(rule: str) -> Taskonomy:
    if rule == "same":
        return FltSame()
    groups: Any = int(rule) if rule.isdigit() else rule
    how = RelatednessSettings(groups=groups, embedding="none", distance="matching", gamma="groups", cluster="distances")
    return Quick(graph=how)


def groups_of(clients: int, rule: str, what: str) -> dict[str, Any]:
    """The cost of a round in which the graph is made, and figures of the graph."""
    federation = make_federation(clients)
    if what == "sfmtl":
        engine = engine_of(federation, SfmtlGraph(graph={"sparsify": rule}), clients)
        engine.round(1)
    else:
        engine = engine_of(federation, flt(rule), 1000)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    begun, cpu = time.perf_counter(), time.process_time()
    before = engine.clock.seconds["graph"]
    found = engine.round(2 if what == "sfmtl" else 1).graph
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    assert found is not None
    planted = [federation[id].group for id in found.ids]
    edges = found.edges()
    inside = sum(federation[one].group == federation[other].group for one, other, _ in edges)
    return {
        "seconds": seconds, "CPU s": cpu, "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "GB before": held, "groups": len(set(found.labels.tolist())), "ARI": graph.ari(planted, found.labels),
        "edges": len(edges), "inside groups": inside / max(len(edges), 1),
        "at the server": engine.clock.seconds["graph"] - before, **{n: float(v) for n, v in engine.server.info.items()},
    }  # fmt: skip


def rounds_of(counts: list[int], repeats: int) -> None:
    for name, method in (("FedAvg", FedAvg()), ("FLT", flt(str(GROUPS)))):
        engines = {count: engine_of(make_federation(count), method, 1000) for count in counts}
        spent: dict[int, list[float]] = {count: [] for count in counts}
        for number in range(1, repeats + 3):
            for count, engine in engines.items():
                begun = time.process_time()
                engine.round(number)
                if number > 2:
                    spent[count].append(1e3 * (time.process_time() - begun))
        for count, values in spent.items():
            ratios = [one / first for one, first in zip(values, spent[counts[0]], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"{name}, {count:,} clients: {statistics.median(values):.0f} CPU ms a round, "
                  f"{middle:.2f} ({low:.2f}-{high:.2f}) times that with {counts[0]:,}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("groups", "rounds", "sfmtl"))
    parser.add_argument("--clients", default="")
    parser.add_argument("--rules", default="")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.what == "rounds":
        rounds_of([int(count) for count in (asked.clients or "1000,100000").split(",")], asked.repeats)
    elif asked.inside:
        print(json.dumps(groups_of(int(asked.clients), asked.inside, asked.what)))
    else:
        usual, rules = ("20000", "none") if asked.what == "sfmtl" else ("100000", "10,ratio,same")
        for count in (asked.clients or usual).split(","):
            for rule in (asked.rules or rules).split(","):
                words = [sys.executable, __file__, asked.what, "--clients", count, "--inside", rule]
                told = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
                print(f"{int(count):,} clients, {asked.what} {rule}:",
                      ", ".join(f"{name} {value:.3g}" for name, value in told.items()), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
