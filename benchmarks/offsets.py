"""What a group of clients that are each shifted by themselves should train: five ways, in a plain loop of PyTorch.

    OMP_NUM_THREADS=1 python benchmarks/offsets.py [--data-root DATA] [--seeds 0,1,2]

one: one model. bias: the first layer's bias stays with its client. film: so do a factor and a shift of each hidden unit
(FiLM, Perez et al., AAAI 2018), from 1 and 0. mean: one model of inputs less the client's mean of each pixel, which is
what kin does. scaled: the same, over the client's mean deviation. One line for each federation: mean accuracy over
clients, mean and standard deviation over seeds, and each way's paired gain over "mean" with its 95 % interval (clients,
averaged over seeds). 20 clients of 150 images of MNIST, 40 rounds of 5 steps, batches of 32, rate .1, 200 hidden units.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from kin import federations, patterned
from torch import Tensor
from torch.nn.functional import cross_entropy, relu

from fedkin.federation import Federation
from fedkin.keys import rng

WAYS = {"one": (), "bias": ("b",), "film": ("factor", "shift"), "mean": (), "scaled": (), "common": ()}
HIDDEN, ROUNDS, STEPS, BATCH, RATE = 200, 40, 5, 32, 0.1


def start(inputs: int, seed: int) -> dict[str, Tensor]:
    """Parameters drawn as `torch.nn.Linear` draws them, and a FiLM that changes nothing."""
    draw = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, fan: int) -> Tensor:
        return (2 * torch.rand(*shape, generator=draw) - 1) / fan**0.5

    return {
        "w": drawn(HIDDEN, inputs, fan=inputs), "b": drawn(HIDDEN, fan=inputs), "v": drawn(10, HIDDEN, fan=HIDDEN),
        "c": drawn(10, fan=HIDDEN), "factor": torch.ones(HIDDEN), "shift": torch.zeros(HIDDEN),
    }  # fmt: skip


def logits(params: dict[str, Tensor], x: Tensor) -> Tensor:
    return relu(params["factor"] * (x @ params["w"].T + params["b"]) + params["shift"]) @ params["v"].T + params["c"]


def steps(params: dict[str, Tensor], fixed: set[str], batches: Iterator[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Plain SGD on all parameters but the fixed ones."""
    for x, y in batches:
        free = {name: value.detach().requires_grad_(name not in fixed) for name, value in params.items()}
        moved = [name for name in free if name not in fixed]
        slopes = torch.autograd.grad(cross_entropy(logits(free, x), y), [free[name] for name in moved])
        params = {**params, **{n: (free[n] - RATE * slope).detach() for n, slope in zip(moved, slopes, strict=True)}}
    return params


def seen(federation: Federation, way: str) -> dict[str, tuple[Tensor, ...]]:
    """{id: training inputs and labels, test inputs and labels}, as the way sees them."""
    inputs = {
        id: tuple(part.inputs(slice(None)).flatten(1) for part in (client.train, client.test))
        for id, client in federation.items()
    }
    deviation = {id: float(train.std(0).mean()) for id, (train, _) in inputs.items()}
    common = float(np.mean(list(deviation.values())))
    found = {}
    for id, (train, test) in inputs.items():
        mean = train.mean(0) if way in ("mean", "scaled", "common") else 0.0
        scale = {"scaled": deviation[id], "common": common}.get(way, 1.0)
        labels = [part.labels().long() for part in (federation[id].train, federation[id].test)]
        found[id] = ((train - mean) / scale, labels[0], (test - mean) / scale, labels[1])
    return found


def accuracies(federation: Federation, way: str, seed: int) -> list[float]:
    """Each client's accuracy after federated averaging of what does not stay with clients."""
    data, own = seen(federation, way), set(WAYS[way])
    fixed = {"factor", "shift"} - own
    first = start(next(iter(data.values()))[0].shape[1], seed)
    models = dict.fromkeys(data, first)
    for number in range(ROUNDS):
        trained = {}
        for id, (x, y, _, _) in data.items():
            order = rng(seed, id, number, "batches")
            picks = (order.integers(0, len(x), BATCH) for _ in range(STEPS))
            trained[id] = steps(models[id], fixed, ((x[pick], y[pick]) for pick in picks))
        mean = {name: torch.stack([one[name] for one in trained.values()]).mean(0) for name in first}
        models = {id: {name: one[name] if name in own else mean[name] for name in first} for id, one in trained.items()}
    return [float((logits(models[id], data[id][2]).argmax(1) == data[id][3]).float().mean()) for id in data]


def shifted(root: Path) -> dict[str, Callable[[int], Federation]]:
    known = federations(root)
    return {
        "patterns .3": lambda seed: patterned(known["iid"](seed), seed, 0.3),
        "patterns 1": lambda seed: patterned(known["iid"](seed), seed),
        "masks": known["masks"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--seeds", default="0,1,2")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for name, make in shifted(given.data_root).items():
        found = {way: np.array([accuracies(make(seed), way, seed) for seed in seeds]) for way in WAYS}
        for way, each in found.items():
            gap = (each - found["mean"]).mean(0)
            half = 1.96 * gap.std(ddof=1) / len(gap) ** 0.5
            means = each.mean(1)
            print(f"{name:12s} {way:7s} {means.mean():.3f}±{means.std():.3f}  over mean {gap.mean():+.3f}±{half:.3f}",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
