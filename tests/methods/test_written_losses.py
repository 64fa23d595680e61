"""The losses of methods, written out for a stack, give the numbers of one client after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.engines.executors.jobs import FitJob, OneByOne
from fedkin.engines.executors.stacked import Stacked
from fedkin.federation import Samples, Task
from fedkin.learning import Loss, Net, Training, dense
from fedkin.learning.augment import Augment
from fedkin.learning.batches import Member
from fedkin.learning.dense import fit_dense
from fedkin.learning.ends import bytes_of, is_written, takes_rows
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.sgd import fit
from fedkin.learning.written import LossNotWritten, NotWritten, Program, program_of
from fedkin.methods.fedclassavg import ContrastedViews
from fedkin.methods.fedproto import PrototypeRegularised
from fedkin.methods.fedsr import ClassReference, FedSr, GaussianBody, SimpleRepresentation
from fedkin.methods.mapl.loss import TwoViews
from fedkin.methods.mapl.method import Mapl
from fedkin.methods.sfmtl_graph import AnchoredCrossEntropy
from own_nets import OTHERS

CLASSES = 4
Pair = tuple[nn.Module, nn.Module]


def chain(*parts: nn.Module) -> Callable[[], Pair]:
    return lambda: (nn.Sequential(*parts), nn.Linear(6, CLASSES))


NETS: dict[str, Callable[[], Pair]] = {
    "mlp": lambda: (nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, CLASSES)),
    "relu": lambda: (nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, CLASSES)),
    "table": lambda: (
        nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3)),
        nn.Linear(6, CLASSES, bias=False),
    ),
    "no body": lambda: (nn.Flatten(), nn.Linear(5, CLASSES)),
}
NOISY, STILL = Augment(noise=0.3), Augment(on=False)
LOSSES: dict[str, Loss] = {
    "mapl": TwoViews(NOISY, 1.0, 0.7, 0.5, 0.3, 0.4, 100.0, "paper"),
    "mapl released": TwoViews(STILL, 0.8, 1.0, 1.0, 1.0, 0.5, 100.0, "released"),
    "mapl without contrast": TwoViews(NOISY, 1.0, 0.0, 0.5, 0.0, 0.5, 100.0, "paper"),
    "mapl without projection": TwoViews(NOISY, 1.0, 0.0, 0.0, 0.5, 0.5, 100.0, "paper"),
    "mapl entropy": TwoViews(STILL, 1.0, 0.0, 0.0, 0.0, 0.5, 100.0, "paper"),
    "fedclassavg": ContrastedViews(0.4, 0.2, NOISY),
    "fedclassavg still": ContrastedViews(0.7, 0.0, STILL),
    "fedsr": SimpleRepresentation(0.05, 0.02, "squared"),
    "fedsr plain": SimpleRepresentation(0.3, 0.2, "plain"),
    "anchors": AnchoredCrossEntropy(0.3, 0.4),
    "anchors that stay": AnchoredCrossEntropy(0.3, None),
    "fedproto": PrototypeRegularised(0.8),
}
PLANS: dict[str, dict[str, Any]] = {
    "decay": {"lr": 0.1, "weight_decay": 0.05, "local_epochs": 2},
    "momentum": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2},
    "clip": {"lr": 0.5, "clip": 0.3, "local_steps": 5},
    "adam": {"lr": 0.01, "optimiser": "adam", "weight_decay": 0.01, "local_epochs": 2},
}


@cache
def net_of(name: str, loss: str, dtype: torch.dtype) -> Net:
    """The net as the loss's method trains it."""
    task, net = Task(CLASSES, (5,)), Net.build(NETS[name], 1, dtype)
    if loss.startswith("mapl"):
        return Mapl(hidden=8).equip(net, task, 2)
    return FedSr().equip(net, task, 2) if loss.startswith("fedsr") else net


def near(net: Net, draw: np.random.Generator) -> dict[str, Tensor]:
    """Parameters in the neighbourhood of the first ones."""
    return {
        name: t + 0.1 * torch.from_numpy(abs(draw.normal(size=t.shape))).to(t.dtype) if t.is_floating_point() else t
        for name, t in net.initial.items()
    }


def members(net: Net, sizes: list[int], seed: int = 0, classes: int = CLASSES) -> list[Member]:
    draw = np.random.default_rng(seed)

    def one(number: int, size: int) -> Member:
        x = torch.from_numpy(draw.normal(size=(size, 5)))
        head = {name: t for name, t in near(net, draw).items() if name.startswith("head.")}
        samples = Samples(x, torch.from_numpy(draw.integers(0, classes, size)))
        width = 6 if "body.0.weight" in net.initial else 5
        points = torch.from_numpy(draw.normal(size=(CLASSES, width))).to(net.dtype)
        known = torch.from_numpy(draw.random(CLASSES) < 0.6)
        extras = {"head": head, "prototypes": points, "known": known.to(net.dtype)}
        return Member(near(net, draw), samples, extras, {"anchors": points, "known": known}, 100 + seed + number)

    return [one(number, size) for number, size in enumerate(sizes)]


def written(net: Net, loss: Loss) -> Program:
    program = program_of(net, takes_rows(loss))
    assert isinstance(program, Program), program
    return program


def check(net: Net, loss: Loss, training: Training, stack: list[Member], tolerance: float) -> None:
    module = net.scratch()
    for member, got in zip(stack, fit_dense(net, loss, written(net, loss), training, stack), strict=True):
        want = fit(net, module, member.params, loss, member.samples, training, member.extras, member.carry,
                   np.random.default_rng(member.key), member.weights)  # fmt: skip
        assert (got.steps, got.samples) == (want.steps, want.samples)
        assert got.loss == pytest.approx(want.loss, rel=max(tolerance, 1e-9))
        torch.testing.assert_close(dict(got.params), dict(want.params), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(got.carry, want.carry, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("plan", PLANS)
def test_equals_one_by_one(name: str, loss: str, plan: str) -> None:
    """Clients of unlike sizes, so that batches are padded and some clients end before others."""
    net = net_of(name, loss, torch.float64)
    training = Training.model_validate({"batch_size": 9, **PLANS[plan]})
    sizes = [20, 28, 9, 20] if hasattr(LOSSES[loss], "written_views") else [20, 29, 9, 20]
    check(net, LOSSES[loss], training, members(net, sizes), 1e-9)


@pytest.mark.parametrize("name", ["mlp", "relu", "table"])
@pytest.mark.parametrize("loss", LOSSES)
def test_in_single_precision(name: str, loss: str) -> None:
    """Batch normalisation enlarges rounding, that of one-by-one too (docs/speed.md), most with batches of 2."""
    net = net_of(name, loss, torch.float32)
    training = Training(batch_size=9, lr=0.05, weight_decay=0.05)
    projected = loss.startswith("mapl") or name == "table"
    check(net, LOSSES[loss], training, members(net, [25, 31, 9]), 1e-5 if projected else 1e-6)


@given(
    st.sampled_from(sorted(LOSSES)), st.integers(0, 999), st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, CLASSES), st.integers(1, 5),
)  # fmt: skip
@settings(max_examples=60)
def test_the_gradient_is_autograds(loss: str, seed: int, sizes: list[int], classes: int, batch: int) -> None:
    """One step at rate 1: batches of one sample, samples alone in their class, and classes without samples."""
    net = net_of("mlp", loss, torch.float64)
    check(
        net, LOSSES[loss], Training(batch_size=batch, lr=1.0, local_steps=1), members(net, sizes, seed, classes), 1e-9
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_member_of_a_stack_is_as_if_it_were_alone(loss: str) -> None:
    net = net_of("table", loss, torch.float64)
    training, stack = Training(batch_size=8, lr=0.1, local_epochs=2), members(net, [10, 21, 16, 4])
    together = fit_dense(net, LOSSES[loss], written(net, LOSSES[loss]), training, stack)
    for member, got in zip(stack, together, strict=True):
        (want,) = fit_dense(net, LOSSES[loss], written(net, LOSSES[loss]), training, [member])
        torch.testing.assert_close(dict(got.params), dict(want.params), rtol=1e-12, atol=1e-12)
        assert got.loss == pytest.approx(want.loss, rel=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("loss", ["mapl", "fedclassavg"])
def test_views_of_images_are_those_of_one_by_one(loss: str, channels: int) -> None:
    """Cropped, mirrored, coloured and blurred, with dropout drawn after them."""
    shape = (channels, 8, 8)
    net = Net.build(lambda: (nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 6), nn.ReLU(), nn.Dropout(0.2)),
                             nn.Linear(6, CLASSES)), 1, torch.float64)  # fmt: skip
    net = Mapl(hidden=8).equip(net, Task(CLASSES, shape), 2) if loss == "mapl" else net
    draw = np.random.default_rng(0)
    stack = [
        replace(m, samples=Samples(torch.from_numpy(draw.random((len(m.samples), *shape))), m.samples.y))
        for m in members(net, [13, 20, 7])
    ]
    check(net, replace(LOSSES[loss], augment=Augment()), Training(batch_size=6, lr=0.1), stack, 1e-9)  # type: ignore[type-var]


@pytest.mark.parametrize("loss", ["fedsr", "fedsr plain", "anchors", "fedproto"])
def test_class_weights(loss: str) -> None:
    net = net_of("table", loss, torch.float64)
    stack = [
        replace(m, weights=None if k % 2 else (0.2, 3.0, 1.0, 0.7)) for k, m in enumerate(members(net, [20, 11, 9]))
    ]
    check(net, LOSSES[loss], Training(batch_size=9, lr=0.1), stack, 1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_parameters_without_a_gradient_stay(loss: str) -> None:
    """Weight decay does not move what a loss does not use; a term of weight 0 is left out."""
    net = net_of("mlp", loss, torch.float64)
    (member,) = members(net, [12])
    (got,) = fit_dense(net, LOSSES[loss], written(net, LOSSES[loss]), Training(lr=0.1, weight_decay=0.5), [member])
    unused = {"mapl without projection": ["projection."], "mapl entropy": ["projection.", "prototypes."]}.get(loss, [])
    still = {name for name, t in got.params.items() if torch.equal(t, member.params[name])}
    assert still == {name for name in net.trainable if name.startswith(tuple(unused))}


@pytest.mark.parametrize("loss", ["mapl", "mapl released", "fedclassavg"])
def test_large_batches_make_stacks_narrow(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contrasts need memory that grows with the square of the batch; clients with small batches stay together."""
    net = net_of("mlp", loss, torch.float64)
    widths, chunk = [], dense._chunk

    def watched(*given: Any) -> Any:
        widths.append(len(given[5]))
        return chunk(*given)

    monkeypatch.setattr(dense, "_chunk", watched)
    program, training = written(net, LOSSES[loss]), Training(batch_size="all", lr=0.1, local_steps=2)
    stack = members(net, [300, 20, 25, 24, 310, 22])
    wide = fit_dense(net, LOSSES[loss], program, training, stack)
    monkeypatch.setattr(dense, "_ENDS", 2 * bytes_of(LOSSES[loss], program, 2 * 310))
    narrow = fit_dense(net, LOSSES[loss], program, training, stack)
    assert widths == [6, 2, 4]
    for one, other in zip(wide, narrow, strict=True):
        torch.testing.assert_close(dict(one.params), dict(other.params), rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(dense, "_ENDS", 1)
    fit_dense(net, LOSSES[loss], program, training.model_copy(update={"batch_size": 8}), stack[:2])
    assert widths == [6, 2, 4, 1, 1]


# -- in the mode "stacked" ------------------------------------------------------------------------------------------


def ran(net: Net, loss: Loss, training: Training) -> tuple[list[tuple[Any, Any]], list[tuple[str, str]]]:
    """What each client's training gives one by one and stacked, and which way the stack took and why."""
    jobs = [
        FitJob(str(k), m.params, loss, training, m.extras, m.carry, m.key, m.samples)
        for k, m in enumerate(members(net, [18, 27, 18]))
    ]
    stack = Stacked(net, {})
    one, other = ({id(job): result for job, result in each.run(jobs)} for each in (OneByOne(net, {}), stack))
    return [(one[id(job)], other[id(job)]) for job in jobs], [(way.way, way.why) for way in stack.ways]


@pytest.mark.parametrize("name", ["mlp", "table"])
@pytest.mark.parametrize("loss", ["mapl", "fedclassavg", "fedsr", "anchors", "fedproto"])
def test_a_stack_is_written_out(name: str, loss: str) -> None:
    pairs, ways = ran(net_of(name, loss, torch.float64), LOSSES[loss], Training(batch_size=9, lr=0.1))
    assert ways == [("written out", "")]
    for want, got in pairs:
        torch.testing.assert_close(dict(got.params), dict(want.params), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("loss", "label"), [("mapl", "TwoViews"), ("fedclassavg", "ContrastedViews"),
                                             ("fedsr", "SimpleRepresentation")])  # fmt: skip
def test_other_nets_train_one_by_one_and_say_why(loss: str, label: str) -> None:
    task, net = Task(CLASSES, (5,)), Net.build(lambda: (OTHERS["skip"][0](), nn.Linear(6, CLASSES)), 1, torch.float64)
    net = Mapl().equip(net, task, 2) if loss == "mapl" else FedSr().equip(net, task, 2) if loss == "fedsr" else net
    pairs, ((way, why),) = ran(net, LOSSES[loss], Training(batch_size=9, lr=0.1))
    assert way == "one by one"
    assert why.startswith(f"the loss {label} draws random numbers, and body")
    assert "computes with the output of one and the output of two (add)" in why
    assert all(torch.equal(want.params[name], t) for want, got in pairs for name, t in got.params.items())


def test_views_of_training_are_still_drawn_one_by_one() -> None:
    training = Training(batch_size=9, lr=0.1, augment=Augment(noise=0.1))
    pairs, ways = ran(net_of("mlp", "fedsr", torch.float64), LOSSES["fedsr"], training)
    assert ways == [("one by one", "the views of training.augment are random")]
    assert all(torch.equal(want.params[name], t) for want, got in pairs for name, t in got.params.items())


@dataclass(frozen=True)
class Doubled(ContrastedViews):
    """A user's own loss, made of FedClassAvg's."""

    def __call__(self, model: Any, batch: Batch, extras: Mapping[str, Any], carry: Mapping[str, Any], /) -> Tensor:
        return 2 * super().__call__(model, batch, extras, carry)


def test_a_subclass_that_computes_another_loss_is_itself() -> None:
    loss = Doubled(0.4, 0.2, NOISY)
    assert not is_written(loss)
    pairs, ways = ran(net_of("mlp", "fedclassavg", torch.float64), loss, Training(batch_size=9, lr=0.1))
    assert ways == [("one by one", "the loss Doubled draws random numbers")]
    assert all(torch.equal(want.params[name], t) for want, got in pairs for name, t in got.params.items())


@dataclass(frozen=True)
class Annealed:
    """A user's loss with settings that have common names."""

    end: float = 0.1
    views: int = 3
    rows: bool = True

    def __call__(self, model: Any, batch: Batch, extras: Mapping[str, Any], carry: Mapping[str, Any], /) -> Tensor:
        z = model.features(batch.x)
        return masked_mean(
            F.cross_entropy(model.head(z), batch.y, reduction="none") + self.end * z.square().sum(1), batch
        )


def test_settings_of_a_users_loss_do_not_make_it_written_out() -> None:
    assert not is_written(Annealed())
    pairs, ways = ran(net_of("mlp", "fedclassavg", torch.float64), Annealed(), Training(batch_size=9, lr=0.1))
    assert ways == [("written out, its loss mapped by vmap", "")]
    for want, got in pairs:
        torch.testing.assert_close(dict(got.params), dict(want.params), rtol=1e-9, atol=1e-9)


class OwnViews(Augment):
    """A user's own views, which take whatever they are given beside the inputs."""

    def __call__(self, x: Tensor, *more: Any) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


@pytest.mark.parametrize("loss", ["mapl", "fedclassavg"])
def test_own_views_are_drawn_one_by_one(loss: str) -> None:
    own = replace(LOSSES[loss], augment=OwnViews())  # type: ignore[type-var]
    pairs, ((way, why),) = ran(net_of("mlp", loss, torch.float64), own, Training(batch_size=9, lr=0.1))
    assert way == "one by one"
    assert "views of the class OwnViews are not drawn as fedkin's own" in why
    assert all(torch.equal(want.params[name], t) for want, got in pairs for name, t in got.params.items())


class Squashed(GaussianBody):
    """A user's own Gaussian body, whose means are between -1 and 1."""

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, sd = super().moments(x)
        return mean.tanh(), sd


class OtherReference(ClassReference):
    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        mean, sd = super().forward(y)
        return mean, 2 * sd


@pytest.mark.parametrize(("body", "reference"), [(Squashed, ClassReference), (GaussianBody, OtherReference)])
def test_subclasses_of_fedsrs_modules_are_themselves(body: type[GaussianBody], reference: type[ClassReference]) -> None:
    net = Net.build(lambda: (body(NETS["mlp"]()[0], 6), nn.Linear(6, CLASSES)), 1, torch.float64)
    net = net.extended(lambda: {"reference": reference(CLASSES, 6)}, 3)
    pairs, ((way, why),) = ran(net, LOSSES["fedsr"], Training(batch_size=9, lr=0.1))
    assert way == "one by one"
    assert "the net's Gaussian body or class references are not FedSR's own" in why
    assert all(torch.equal(want.params[name], t) for want, got in pairs for name, t in got.params.items())


def test_modules_that_are_not_the_methods_own_are_not_written_out() -> None:
    net = net_of("mlp", "fedclassavg", torch.float64)
    odd = {"projection": nn.Linear(6, 6), "prototypes": nn.Linear(6, CLASSES, bias=False)}
    for loss in ("mapl", "fedsr"):
        other = net.extended(lambda: odd, 3)
        with pytest.raises(LossNotWritten, match="are not"):
            fit_dense(other, LOSSES[loss], written(other, LOSSES[loss]), Training(lr=0.1), members(other, [9]))


def test_on_a_gpu_random_losses_are_left_to_others() -> None:
    net = net_of("mlp", "fedsr", torch.float64)
    with pytest.raises(NotWritten, match="a GPU draws from a generator of its own"):
        fit_dense(
            net, LOSSES["fedsr"], written(net, LOSSES["fedsr"]), Training(), members(net, [9]), torch.device("cuda")
        )
