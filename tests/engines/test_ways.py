"""A run says in which way each net was trained with each loss, and why not in a faster one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.engines.executors import auto
from fedkin.engines.executors.auto import Auto
from fedkin.engines.executors.jobs import Executor, FitJob, OneByOne
from fedkin.engines.executors.stacked import Stacked
from fedkin.engines.executors.ways import ALONE, Way
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning import CrossEntropy, Loss, Net, Proximal, Training
from fedkin.learning.augment import Augment
from fedkin.learning.computing import Computing
from fedkin.learning.losses import Batch, masked_mean
from fedkin.methods.fedproto import PrototypeRegularised
from fedkin.methods.local import Local
from own_nets import OTHERS
from support import small_federation, small_setup

TRAINING = Training(batch_size=8, local_steps=2, lr=0.1)


@dataclass(frozen=True)
class Weights:
    """Looks at the weights."""

    random: bool = False

    def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any, /) -> Tensor:
        each = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        return masked_mean(each, batch) + torch.stack([w.square().sum() for w in model.params.values()]).sum()


@dataclass(frozen=True)
class Small:
    """Small features."""

    def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any, /) -> Tensor:
        z = model.features(batch.x)
        return masked_mean(F.cross_entropy(model.head(z), batch.y, reduction="none") + z.square().sum(1), batch)


@dataclass(frozen=True)
class Branching:
    """Branches on values, which torch cannot map."""

    def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any, /) -> Tensor:
        value = masked_mean(F.cross_entropy(model(batch.x), batch.y, reduction="none"), batch)
        return value if value > 0 else -value


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU())


def dropping() -> nn.Module:
    return nn.Sequential(OTHERS["skip"][0](), nn.Dropout(0.5))


def ways_of(
    body: Callable[[], nn.Module], loss: Loss, kind: Callable[[Net, Any], Executor] = Stacked,
    training: Training = TRAINING, extras: dict[str, Any] | None = None, clients: int = 6,
) -> list[tuple[str, str, str]]:  # fmt: skip
    """The loss, way and reason of each way that a small federation's fits took."""
    net = Net.build(lambda: (body(), nn.Linear(6, 4)), 1)
    federation = small_federation()
    jobs = [FitJob(name, net.initial, loss, training, extras or {}, {}, 7) for name in list(federation)[:clients]]
    executor = kind(net, federation)
    for _ in range(2):
        assert not [result for _, result in executor.run(jobs) if isinstance(result, Exception)]
    label = f"{type(net.module.body).__name__}, {net.parameters()} parameters"
    assert {way.net for way in executor.ways} == {label}
    return [(way.loss, way.way, way.why) for way in executor.ways]


def test_written_out() -> None:
    assert ways_of(chain, CrossEntropy()) == [("CrossEntropy", "written out", "")]
    start = {"start": Net.build(lambda: (chain(), nn.Linear(6, 4)), 1).initial}
    assert ways_of(chain, Proximal(CrossEntropy(), 0.5), extras=start) == [
        ("Proximal of CrossEntropy", "written out", "")
    ]


def test_losses_of_methods_are_written_out() -> None:
    extras = {"prototypes": torch.zeros(4, 6), "known": torch.ones(4)}
    assert ways_of(chain, PrototypeRegularised(0.5), extras=extras) == [("PrototypeRegularised", "written out", "")]


def test_a_loss_that_is_mapped_on_the_features() -> None:
    assert ways_of(chain, Small()) == [("Small", "written out, its loss mapped by vmap", "")]


def test_mapped_because_of_the_net_or_the_loss() -> None:
    why = "body, a Skip, computes with the output of one and the output of two (add)"
    assert ways_of(OTHERS["skip"][0], CrossEntropy()) == [("CrossEntropy", "mapped by vmap", why)]
    assert ways_of(chain, Weights()) == [("Weights", "mapped by vmap", "the loss asks for the model's 'params'")]


def test_one_by_one_because_of_net_loss_views_or_mode() -> None:
    ((_, way, why),) = ways_of(dropping, CrossEntropy())
    assert (way, why.split(",")[0]) == ("one by one", "the net has dropout (body.1)")
    assert "body.0, a Skip, computes with" in why
    assert ways_of(chain, Weights(random=True)) == [("Weights", "one by one", "the loss Weights draws random numbers")]
    ((_, way, why),) = ways_of(chain, Branching())
    assert way == "one by one"
    assert "torch cannot map the net or the loss over clients (RuntimeError: " in why
    views = TRAINING.model_copy(update={"augment": Augment(noise=0.1)})
    assert ways_of(chain, CrossEntropy(), training=views)[0][1:] == (
        "one by one", "the views of training.augment are random"
    )  # fmt: skip
    assert ways_of(chain, CrossEntropy(), OneByOne) == [("CrossEntropy", "one by one", "run.mode = 'one-by-one'")]
    assert ways_of(OTHERS["skip"][0], CrossEntropy(), clients=1) == [
        ("CrossEntropy", "one by one", "no other client in its stack")
    ]


@pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
@pytest.mark.parametrize("seen", [True, False])
def test_compiled_kernels_are_named_where_they_compute_the_net(seen: bool) -> None:
    between = [] if seen else [nn.ReLU()]
    body = nn.Sequential(*between, nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())
    samples = Samples(torch.zeros(12, 1, 4, 4), torch.arange(12) % 3)
    federation = Federation([Client("a", samples, samples)], Task(3, (1, 4, 4)))
    net = Net.build(lambda: (body, nn.Linear(2, 3)), 1, computing=Computing(kernels="numba"))
    executor = OneByOne(net, federation)
    ((_, done),) = executor.run([FitJob("a", net.initial, CrossEntropy(), TRAINING, {}, {}, 7)])
    assert not isinstance(done, Exception)
    way = "one by one, its first convolutions by compiled kernels" if seen else "one by one"
    assert [each.way for each in executor.ways] == [way]


@pytest.mark.parametrize("quicker", ["stacked", "one-by-one"])
def test_auto_says_which_way_a_measured_step_chose(quicker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The times are made up: first one client's, then those of all in a stack."""
    times = iter([1.0, 0.1] if quicker == "stacked" else [0.1, 1.0])

    def quickest(self: Auto, work: Callable[[int], object], steps: int) -> float:
        work(1)
        return next(times)

    monkeypatch.setattr(Auto, "_quickest", quickest)
    found = ways_of(OTHERS["skip"][0], CrossEntropy(), lambda net, clients: Auto(net, clients, 1))
    reason = "body, a Skip, computes with the output of one and the output of two (add)"
    assert found == [
        ("CrossEntropy", "mapped by vmap", reason) if quicker == "stacked" else
        ("CrossEntropy", "one by one", f"measured steps were quicker than mapped by vmap ({reason})")
    ]  # fmt: skip


@pytest.mark.parametrize(("once", "chosen"), [(20.0, "stacked"), (80.0, "one-by-one")])
def test_auto_shares_what_a_stack_costs_once_over_its_steps(
    once: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a made-up clock a client's step takes 1 alone, and a tenth in a stack, which costs `once` besides."""
    now = [0.0]
    monkeypatch.setattr("fedkin.engines.executors.auto.time.thread_time", lambda: now[0])
    monkeypatch.setattr("fedkin.engines.executors.auto.time.perf_counter", lambda: now[0])
    collect = Stacked.collect

    def alone(job: FitJob, *others: object) -> None:
        now[0] += 0.001 * job.training.steps(50)

    def stacked(self: Stacked) -> object:
        fits = [job for job in self.jobs if isinstance(job, FitJob)]
        now[0] += 0.001 * (once + 0.1 * sum(job.training.steps(50) for job in fits))
        return collect(self)

    monkeypatch.setattr(auto, "attempt", alone)
    monkeypatch.setattr(Stacked, "collect", stacked)
    net = Net.build(lambda: (chain(), nn.Linear(6, 4)), 1)
    federation = small_federation()
    executor = Auto(net, federation, 1)
    job = FitJob("", net.initial, CrossEntropy(), TRAINING.model_copy(update={"local_steps": 40}), {}, {}, 7)
    for id in itertools.islice(itertools.cycle(federation), executor.room):
        executor.submit(replace(job, id=id))
    executor.collect()
    assert executor.chosen == chosen


def test_auto_says_why_nothing_was_stacked() -> None:
    ((_, way, why),) = ways_of(dropping, CrossEntropy(), lambda net, clients: Auto(net, clients, 1))
    assert way == "one by one"
    assert why.startswith("the net has dropout (body.1), and body.0, a Skip, computes")


def test_a_way_is_told_once_for_each_net_and_loss() -> None:
    net, other = (Net.build(lambda: (chain(), nn.Linear(6, 4)), key) for key in (1, 2))
    federation = small_federation()
    executor = Stacked(net, federation)
    job = FitJob(next(iter(federation)), net.initial, CrossEntropy(), TRAINING, {}, {}, 7)
    list(executor.run([job, replace(job, net=other), job]))
    assert executor.ways == [Way("Sequential, 64 parameters", "CrossEntropy", "written out", "")]


def test_auto_says_of_a_net_that_was_not_measured_that_it_was_not() -> None:
    setup = small_setup(Local())
    quick = Auto(setup.net, setup.federation, 1)
    assert quick._why(Way("Net", "Own", ALONE, "")) == "not among the first jobs, which were measured"
