"""How far stacked training is from one by one, and each from float64, where a bias stands before batch normalisation.

Four clients of 11 to 33 random samples, 5-16-4 with BatchNorm1d(16) after the first Linear; float32, batches of 9,
three epochs. The greatest difference of any client's parameters and running statistics, and of any client's logits in
evaluation, on the first client's samples.

OMP_NUM_THREADS=1 python benchmarks/rounding.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedkin.engines.executors.jobs import FitJob, OneByOne
from fedkin.engines.executors.stacked import Stacked
from fedkin.federation import Samples
from fedkin.learning import CrossEntropy, Net, Training
from fedkin.learning.sgd import infer


def main() -> None:
    """Print one line per optimiser, and with and without the bias."""
    draw = torch.Generator().manual_seed(0)
    samples = [
        Samples(torch.randn(size, 5, generator=draw), torch.randint(0, 4, (size,), generator=draw))
        for size in (20, 33, 27, 11)
    ]
    print(f"{'':16}{'parameters':>12}{'logits':>12}{'one, float64':>15}{'stacked, float64':>18}")
    for optimiser, rate in (("adam", 0.01), ("sgd", 0.1)):
        training = Training.model_validate({"batch_size": 9, "local_epochs": 3, "optimiser": optimiser, "lr": rate})
        for bias in (True, False):
            single, double = (_net(bias, dtype) for dtype in (torch.float32, torch.float64))
            one, stacked = (_trained(kind, single, training, samples) for kind in (OneByOne, Stacked))
            exact = _trained(OneByOne, double, training, samples)
            gap = max(float((a[n] - b[n]).abs().max()) for a, b in zip(one, stacked, strict=True) for n in a)
            outs = [[infer(net, net.scratch(), p, "logits", samples[0]).double() for p in found]
                    for net, found in ((single, one), (single, stacked), (double, exact))]  # fmt: skip
            gaps = [_gap(outs[a], outs[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
            name = f"{optimiser}, {'bias' if bias else 'no bias'}"
            print(f"{name:16}{gap:12.2g}{gaps[0]:12.2g}{gaps[1]:15.2g}{gaps[2]:18.2g}")


def _net(bias: bool, dtype: torch.dtype) -> Net:
    return Net.build(
        lambda: (nn.Sequential(nn.Linear(5, 16, bias=bias), nn.BatchNorm1d(16), nn.ReLU()), nn.Linear(16, 4)), 1, dtype
    )


def _trained(
    kind: type[OneByOne], net: Net, training: Training, samples: list[Samples]
) -> list[dict[str, Tensor]]:  # fmt: skip
    jobs = [FitJob(str(k), net.initial, CrossEntropy(), training, {}, {}, 100 + k, s) for k, s in enumerate(samples)]
    found = {id(job): result for job, result in kind(net, {}).run(jobs)}
    return [dict(found[id(job)].params) for job in jobs]


def _gap(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


if __name__ == "__main__":
    main()
