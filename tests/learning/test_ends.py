"""Losses of a user's own in the mode "stacked": the numbers and errors of one client after another."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.engines.executors.jobs import FitJob, OneByOne
from fedkin.engines.executors.stacked import Stacked
from fedkin.errors import FedkinError
from fedkin.federation import Samples
from fedkin.learning import CrossEntropy, Loss, Net, Proximal, Training
from fedkin.learning.losses import Batch, masked_mean
from fedkin.learning.stacked import fit_stacked
from fedkin.learning.training import Fitted


def small() -> Net:
    torch.manual_seed(0)
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, 4), torch.float64)


def results(
    net: Net, loss: Loss, extras: Mapping[str, Any] | None = None, carry: Mapping[str, Any] | None = None,
    params: Mapping[str, Tensor] | None = None,
) -> list[tuple[Any, Any]]:  # fmt: skip
    """What each client's training gives one by one, and stacked; batches of 9 samples, without padding."""
    draw = torch.Generator().manual_seed(0)
    samples = [
        Samples(torch.randn(size, 5, generator=draw).double(), torch.randint(0, 4, (size,), generator=draw))
        for size in (27, 18)
    ]
    training = Training(batch_size=9, lr=0.1, local_epochs=2, weight_decay=0.1)
    jobs = [
        FitJob(str(k), dict(params or net.initial), loss, training, dict(extras or {}), dict(carry or {}), 7 + k, own)
        for k, own in enumerate(samples)
    ]
    one, other = ({id(job): result for job, result in kind(net, {}).run(jobs)} for kind in (OneByOne, Stacked))
    return [(one[id(job)], other[id(job)]) for job in jobs]


def entropy(logits: Tensor, batch: Batch) -> Tensor:
    return masked_mean(F.cross_entropy(logits, batch.y, reduction="none"), batch)


def fixed_target(model: Any, batch: Batch, extras: Any, carry: Any) -> Tensor:
    with torch.no_grad():
        target = model.features(batch.x)
    z = model.features(batch.x)
    return entropy(model.head(z), batch) + masked_mean((z * target).sum(1), batch)


def head_only(model: Any, batch: Batch, extras: Any, carry: Any) -> Tensor:
    with torch.no_grad():
        z = model.features(batch.x)
    return entropy(model.head(z), batch)


def last_inputs(model: Any, batch: Batch, extras: Any, carry: Any) -> tuple[Tensor, Any]:
    value = entropy(model(batch.x), batch)
    return value * (1 + (batch.x - carry["last"]).square().mean()), {"last": batch.x}


def with_carry(model: Any, batch: Batch, extras: Any, carry: Any) -> tuple[Tensor, Any]:
    return entropy(model(batch.x), batch), carry


def last_features(model: Any, batch: Batch, extras: Any, carry: Any) -> tuple[Tensor, Any]:
    z = model.features(batch.x)
    return entropy(model.head(z), batch) * (1 + (z - carry["last"]).square().mean()), {"last": z.detach()}


def moved_inputs(model: Any, batch: Batch, extras: Any, carry: Any) -> Tensor:
    batch.x.add_(0.5)
    return entropy(model(batch.x), batch)


def moved_later(model: Any, batch: Batch, extras: Any, carry: Any) -> Tensor:
    value = entropy(model(batch.x), batch)
    batch.x.zero_()
    return value


def moved_labels(model: Any, batch: Batch, extras: Any, carry: Any) -> Tensor:
    batch.y.zero_()
    return entropy(model(batch.x), batch)


def moved_mask(model: Any, batch: Batch, extras: Any, carry: Any) -> Tensor:
    value = F.cross_entropy(model(batch.x), batch.y, reduction="none")
    return (value * batch.mask.mul_(0.5)).sum() / 9


def moved_features(model: Any, batch: Batch, extras: Any, carry: Any) -> Tensor:
    z = model.features(batch.x)
    value = entropy(model.head(z), batch)
    with torch.no_grad():
        z.add_(1)
    return value


@dataclass(frozen=True)
class Own:
    """A loss of a user's own."""

    call: Callable[[Any, Batch, Any, Any], Any]

    def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any, /) -> Any:
        return self.call(model, batch, extras, carry)


CALLS = [fixed_target, head_only, moved_inputs, moved_later, moved_labels, moved_mask, moved_features]


@dataclass(frozen=True)
class Sparse(Proximal):
    """A proximal term of the absolute differences."""

    def __call__(self, model: Any, batch: Batch, extras: Any, carry: Any, /) -> Tensor:
        value = self.loss(model, batch, {}, {})
        assert isinstance(value, Tensor)
        away = [(w - extras["start"][name]).abs().sum() for name, w in model.params.items()]
        return value + self.weight * torch.stack(away).sum()


def unlike(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The pairs that have neither the same numbers nor the same error."""
    return [(want, got) for want, got in pairs if not alike(want, got)]


def alike(want: Any, got: Any) -> bool:
    if isinstance(want, FedkinError) or isinstance(got, FedkinError):
        return str(got) == str(want)
    near = [
        len(a) == len(b) and all(torch.allclose(b[name], t, rtol=1e-11, atol=1e-11) for name, t in a.items())
        for a, b in ((want.params, got.params), (want.carry, got.carry))
    ]
    return all(near) and bool(got.loss == pytest.approx(want.loss, rel=1e-9))


@pytest.mark.parametrize("call", CALLS)
def test_any_loss_has_the_numbers_of_one_by_one(call: Callable[[Any, Batch, Any, Any], Any]) -> None:
    assert unlike(results(small(), Own(call))) == []


@pytest.mark.parametrize("inner", [CrossEntropy(), Own(fixed_target)])
def test_a_subclass_of_proximal_is_itself(inner: Loss) -> None:
    net = small()
    assert unlike(results(net, Sparse(inner, 0.3), {"start": {name: t + 0.1 for name, t in net.initial.items()}})) == []


def test_a_carry_under_a_proximal_term_is_an_error() -> None:
    net = small()
    pairs = results(net, Proximal(Own(with_carry), 0.3), {"start": net.initial})
    assert all("Own: a loss under a proximal term returns its value alone" in str(want) for want, _ in pairs)
    assert unlike(pairs) == []


@pytest.mark.parametrize(("call", "deep"), [(last_inputs, True), (last_features, True), (last_features, False)])
def test_a_carry_keeps_the_batch_of_the_step_before(call: Callable[[Any, Batch, Any, Any], Any], deep: bool) -> None:
    net = small() if deep else Net(nn.Flatten(), nn.Linear(5, 4), torch.float64)
    width = 6 if deep and call is last_features else 5
    assert unlike(results(net, Own(call), carry={"last": torch.zeros(9, width, dtype=torch.float64)})) == []


MISFITS: dict[str, tuple[dict[str, Tensor], str]] = {
    "name": ({"body.9.weight": torch.zeros(1)}, r"not in it \['body.9.weight'\]"),
    "shape": ({"head.weight": torch.zeros(7, 6), "head.bias": torch.zeros(7)}, r"head.weight: shape \(7, 6\)"),
    "spread": ({"body.1.bias": torch.zeros(1)}, r"body.1.bias: shape \(1,\), the net's is \(6,\)"),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("written", [True, False])
def test_parameters_that_do_not_fit_the_net_are_the_same_error(misfit: str, written: bool) -> None:
    net, (odd, words) = small(), MISFITS[misfit]
    pairs = results(net, CrossEntropy() if written else Own(moved_inputs), params={**net.initial, **odd})
    assert all(re.search(words, str(want)) for want, _ in pairs)
    assert unlike(pairs) == []


def test_the_failed_stack_is_gone_when_the_next_way_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is being handled keeps the memory of the stack that raised it."""
    handled: list[BaseException | None] = []

    def spied(*given: Any) -> list[Fitted]:
        handled.append(sys.exception())
        return fit_stacked(*given)

    monkeypatch.setattr("fedkin.engines.executors.stacked.fit_stacked", spied)
    assert unlike(results(small(), Own(moved_inputs))) == []
    assert handled == [None]


def test_an_error_of_the_method_is_no_failure_of_torch(caplog: pytest.LogCaptureFixture) -> None:
    net = small()
    assert unlike(results(net, CrossEntropy(), params={**net.initial, **MISFITS["name"][0]})) == []
    assert "torch cannot map" not in caplog.text
