"""CPU time of local training with the methods' losses: one by one, stacked, and of the nets alone.

    OMP_NUM_THREADS=1 python benchmarks/losses.py [--nets own-32,own-200,table,images] [--losses mapl] [--repeats 9]

20 clients with 300 synthetic samples in an array each train for one epoch of SGD in batches of 32. own-32 and own-200
are a user's 784-32-10 and 784-200-10, table is 60-64-64-2 with BatchNorm1d and Dropout(.2), and images is 784-32-10 on
images of 28 x 28, whose views are cropped, coloured and blurred; on rows of numbers they are noise. "nets alone" is the
same body and head, stacked with cross-entropy on as many rows; "mapped" is torch.func.vmap over clients, where it can
map this loss (views are off there, because it cannot draw them). All sides alternate in this process, and a ratio is
the median of (one-by-one / side), with quartiles. The first line of each row says which way the
stack took, and how far its parameters are from those of one-by-one at the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from simulation import BATCH, LR, SAMPLED, SAMPLES, WORK, figures, make_federation, timed
from torch import nn

from fedkin.engines.executors.jobs import Executor, FitJob, OneByOne
from fedkin.engines.executors.stacked import Stacked
from fedkin.federation import Federation, Task
from fedkin.learning import CrossEntropy, Loss, Net, Training
from fedkin.learning.augment import Augment
from fedkin.learning.batches import Member
from fedkin.learning.stacked import fit_stacked
from fedkin.methods import FedSr, Mapl
from fedkin.methods.fedclassavg import ContrastedViews
from fedkin.methods.fedproto import PrototypeRegularised
from fedkin.methods.fedsr import SimpleRepresentation
from fedkin.methods.sfmtl_graph import AnchoredCrossEntropy

NETS: dict[str, tuple[Callable[[Task], tuple[nn.Module, nn.Module]], Task, bool]] = {
    "own-32": WORK["own-32"], "own-200": WORK["own-200"], "table": WORK["table"],
    "images": (WORK["mlp-32"][0], Task(10, (1, 28, 28)), True),
}  # fmt: skip
LOSSES = ("fedavg", "sfmtl-graph", "fedproto", "fedclassavg", "mapl", "fedsr")
TWO_VIEWS = ("fedclassavg", "mapl")


def work(name: str, net: Net, task: Task, augment: Augment) -> tuple[Net, Loss, dict[str, Any], dict[str, Any]]:
    """The net as the method trains it, its loss, extras and carry."""
    told = {"prototypes": torch.zeros(task.classes, net.width(task)), "known": torch.ones(task.classes)}
    if name == "sfmtl-graph":
        carry = {"anchors": told["prototypes"], "known": told["known"] > 0}
        return net, AnchoredCrossEntropy(0.1, 0.5), {}, carry
    if name == "fedproto":
        return net, PrototypeRegularised(0.1), told, {}
    if name == "fedclassavg":
        head = {name: t for name, t in net.initial.items() if name.startswith("head.")}
        return net, ContrastedViews(0.1, 0.1, augment), {"head": head}, {}
    if name == "mapl":
        method = Mapl(augment=augment)
        return method.equip(net, task, 1), method.objective(), {}, {}
    if name == "fedsr":
        return FedSr().equip(net, task, 1), SimpleRepresentation(0.01, 0.001, "squared"), {}, {}
    return net, CrossEntropy(), {}, {}


def jobs_of(net: Net, federation: Federation, loss: Loss, training: Training, extras: Any, carry: Any) -> list[FitJob]:
    return [FitJob(id, net.initial, loss, training, extras, carry, k) for k, id in enumerate(federation)]


def compare(where: str, name: str, repeats: int, noise: float) -> tuple[str, dict[str, dict[str, float]]]:
    make, task, _ = NETS[where]
    federation = make_federation(task, SAMPLED, SAMPLES, own=True)
    plain = Net.build(lambda: make(task), 1)
    net, loss, extras, carry = work(name, plain, task, Augment(noise=noise))
    training = Training(batch_size=BATCH, local_epochs=1, lr=LR)
    jobs = jobs_of(net, federation, loss, training, extras, carry)
    more = 2 if name in TWO_VIEWS else 1
    twice = make_federation(task, SAMPLED, more * SAMPLES, own=True)
    alone = jobs_of(plain, twice, CrossEntropy(), training.model_copy(update={"batch_size": more * BATCH}), {}, {})
    one, stacked = OneByOne(net, federation), Stacked(net, federation)
    sides = {
        "one-by-one": done(one, jobs), "stacked": done(stacked, jobs), "nets alone": done(Stacked(plain, twice), alone)
    }  # fmt: skip
    if where != "table" and name != "fedsr":
        sides["mapped"] = mapped(*work(name, plain, task, Augment(on=False)), training, federation)
    spent = timed(sides, repeats)
    way = stacked.ways[0]
    reason = f" ({way.why})" if way.why else ""
    told = f"{way.way}{reason}; greatest difference {difference(one, stacked, jobs):.1e}"
    return told, {side: figures(times, spent["one-by-one"]) for side, times in spent.items()}


def difference(one: Executor, other: Executor, jobs: list[FitJob]) -> float:
    """The greatest difference of a parameter after training in both ways."""
    alone, together = ({job.id: result.params for job, result in each.run(jobs)} for each in (one, other))
    return max(
        float((t - together[id][name]).abs().max()) for id, params in alone.items() for name, t in params.items()
    )


def done(executor: Executor, jobs: list[FitJob]) -> Callable[[int], object]:
    def side(number: int) -> None:
        for _, result in executor.run([replace(job, key=1000 * number + job.key) for job in jobs]):
            if isinstance(result, Exception):
                raise result

    return side


def mapped(
    net: Net, loss: Loss, extras: Any, carry: Any, training: Training, federation: Federation
) -> Callable[[int], object]:  # fmt: skip
    module = net.scratch()

    def side(number: int) -> None:
        members = [
            Member(net.initial, client.train, extras, carry, 1000 * number + k)
            for k, client in enumerate(federation.values())
        ]
        fit_stacked(net, module, loss, training, members)

    return side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--losses", default=",".join(LOSSES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--noise", type=float, default=0.1, help="of the views of rows of numbers")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for where in asked.nets.split(","):
        for name in asked.losses.split(","):
            way, sides = compare(where, name, asked.repeats, asked.noise)
            print(f"\n{where}, {name}: {way}")
            for side, f in sides.items():
                print(f"  {side:12}{f['cpu ms']:9.1f} ms{f['cpu ratio']:7.2f} ({f['cpu low']:.2f}-{f['cpu high']:.2f})")


if __name__ == "__main__":
    main()
