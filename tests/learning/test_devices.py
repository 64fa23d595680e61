"""Channels last and bf16: the numbers, the bits, the layout of what leaves, and nets that cannot have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkin
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Scale, Task
from fedkin.learning import Net, Training
from fedkin.learning.devices import CPU, Precision, _has_bf16, check_precision, rng_lock, seeded
from fedkin.learning.losses import CrossEntropy
from fedkin.learning.metrics import score, scores_of
from fedkin.learning.sgd import infer, outputs
from fedkin.network.agreement import Agreement, difference, setup_and_agreement
from fedkin.running.networked import setup_of
from support import fitted, same

TASK = Task(3, (3, 12, 12))
BF16 = pytest.mark.skipif(not _has_bf16(CPU), reason="this processor has no instructions for bfloat16")


class Viewing(nn.Module):
    """A body that calls `view` on a feature map, as users write it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        return x.view(x.size(0), -1)


class ViewingInTraining(Viewing):
    """A body that does so in training only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else self.layers(x).flatten(1)


def _layers(kind: str = "plain") -> list[nn.Module]:
    norms: dict[str, list[nn.Module]] = {"batch": [nn.BatchNorm2d(8)], "group": [nn.GroupNorm(2, 8)]}
    norm = norms.get(kind, [])
    pool: nn.Module = nn.AdaptiveAvgPool2d((3, 2)) if kind == "adaptive" else nn.MaxPool2d(2)
    return [nn.Conv2d(3, 8, 3), *norm, nn.ReLU(), pool, nn.Conv2d(8, 4, 2), nn.LeakyReLU(), nn.Dropout2d(0.2)]


def _body(kind: str) -> nn.Module:
    return nn.Sequential(*_layers(kind), nn.Flatten(), nn.LazyLinear(7), nn.Tanh())


def _net(
    make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32, precision: Precision = "float32",
    channels_last: bool | None = None,
) -> Net:  # fmt: skip
    def built() -> tuple[nn.Module, nn.Module]:
        body = make()
        width = body.eval()(torch.zeros(2, *TASK.shape)).shape[1]
        return body.train(), nn.Linear(width, 3)

    net = Net.build(built, 3, dtype, precision)
    net.channels_last = channels_last
    return net


def _samples(count: int = 22, rows: Tensor | None = None) -> Samples:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, *TASK.shape), generator=draw, dtype=torch.uint8)
    return Samples(x, torch.randint(0, 3, (count,), generator=draw), rows, Scale((0.5, 0.4, 0.3), (0.2,)))


def _fit(net: Net, loss: Any = None, **training: Any) -> Any:
    return fitted(net, _samples(), Training(batch_size=5, lr=0.1, local_epochs=2, **training), seed=1, loss=loss)


def _far(one: Any, other: Any) -> float:
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("kind", ["plain", "batch", "group", "adaptive"])
def test_channels_last_gives_the_numbers_of_channels_first(kind: str, dtype: torch.dtype, most: float) -> None:
    last = _net(lambda: _body(kind), dtype)
    first = _net(lambda: _body(kind), dtype, channels_last=False)
    one, other = _fit(last, momentum=0.5), _fit(first, momentum=0.5)
    assert (last.channels_last, first.channels_last) == (True, False)
    assert _far(one.params, other.params) < most
    said = [infer(net, net.scratch(), one.params, "logits", _samples()) for net in (last, first)]
    assert float((said[0] - said[1]).abs().max()) < most


def test_what_leaves_has_the_usual_layout() -> None:
    net = _net(lambda: _body("batch"))
    assert all(tensor.is_contiguous() for tensor in _fit(net).params.values())
    maps = Net(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3))
    assert infer(maps, maps.scratch(), maps.initial, "logits", _samples()).is_contiguous()


def test_images_of_one_channel_are_computed_with_channels_last_too() -> None:
    body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 4, 2), nn.Flatten())
    net = Net.build(lambda: (body, nn.Linear(64, 3)), 3)
    draw = torch.Generator().manual_seed(4)
    samples = Samples(torch.randn(9, 1, 12, 12, generator=draw), torch.arange(9) % 3)
    layouts: list[bool] = []
    module = net.scratch()
    first = module.body.get_submodule("0")
    first.register_forward_hook(lambda part, x, out: layouts.append(out.stride()[1] == 1))
    training = Training(lr=0.1, batch_size=4, local_epochs=2)
    found = fitted(net, samples, training, module=module)
    infer(net, module, found.params, "logits", samples)
    assert len(layouts) > 6
    assert all(layouts)
    assert all(tensor.stride() == torch.empty(tensor.shape).stride() for tensor in found.params.values())
    other = Net.build(lambda: (body, nn.Linear(64, 3)), 3)
    other.channels_last = False
    assert _far(fitted(other, samples, training, params=net.initial).params, found.params) < 1e-5


@pytest.mark.parametrize("kind", [Viewing, ViewingInTraining])
def test_a_net_that_views_its_maps_is_computed_with_channels_first(kind: type[Viewing]) -> None:
    own = _net(lambda: kind(*_layers()))
    first = _net(lambda: nn.Sequential(*_layers(), nn.Flatten()), channels_last=False)
    one, other = _fit(own), _fit(first)
    assert own.channels_last is False
    assert [torch.equal(a, b) for a, b in zip(one.params.values(), other.params.values(), strict=True)] == [True] * 6


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("body", [Viewing, lambda *layers: nn.Sequential(*layers, nn.Flatten())])
def test_a_score_is_the_first_job_of_a_module(body: Callable[..., nn.Module], last: bool) -> None:
    net = _net(lambda: body(*_layers()), channels_last=None if last else False)
    samples, fresh = _samples(), net.scratch()
    scores = score(net, fresh, net.initial, [samples], TASK)[0]
    assert fresh.channels_last is net.channels_last is (last and body is not Viewing)
    alone = infer(net, net.scratch(), net.initial, "logits", samples)
    assert torch.equal(outputs(net, fresh, "logits", samples), alone)
    assert scores == scores_of(TASK, alone, samples.labels())


def _federation() -> Federation:
    whole = _samples(60)
    each = [whole.take(torch.arange(start, start + 15)) for start in range(0, 60, 15)]
    clients = [Client(f"c{k}", own.take(range(12)), own.take(range(12, 15))) for k, own in enumerate(each)]
    return Federation(clients, TASK)


def _model(body: nn.Module) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    for part in body.modules():
        if isinstance(part, nn.Conv2d):
            part.reset_parameters()
    return body, nn.Linear(64, 3)


def _run(body: nn.Module, folder: Path | None = None, **settings: Any) -> fedkin.Result:
    return fedkin.run(
        "fedavg", _federation(), rounds=2, model=_model(body), training={"batch_size": 5, "lr": 0.1},
        settings=settings, out=folder,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("body", [lambda: nn.Sequential(*_layers(), nn.Flatten()), lambda: Viewing(*_layers())])
@pytest.mark.parametrize("how", [{}, pytest.param({"precision": "bf16"}, marks=BF16)])
def test_a_second_run_and_workers_give_the_same_bits(
    how: dict[str, Any], body: Callable[[], nn.Module], workers_here: None
) -> None:
    one, again, other = (_run(body(), mode=mode, **how).models for mode in ("one-by-one", "one-by-one", "workers"))
    assert same(one, again)
    assert same(one, other)


@BF16
def test_bf16_is_near_float32_and_leaves_parameters_in_float32() -> None:
    half, full = _fit(_net(lambda: _body("batch"), precision="bf16")), _fit(_net(lambda: _body("batch")))
    assert {tensor.dtype for tensor in half.params.values()} == {torch.float32, torch.int64}
    assert 0 < _far(half.params, full.params) < 0.05
    net = _net(lambda: _body("plain"), precision="bf16")
    z = infer(net, net.scratch(), net.initial, "features", _samples())
    assert z.dtype == torch.float32
    assert torch.equal(z, z.bfloat16().float())


@BF16
def test_bf16_is_told_in_the_summary_and_its_warnings(tmp_path: Path) -> None:
    summary = _run(nn.Sequential(*_layers(), nn.Flatten()), tmp_path / "run", precision="bf16").summary
    assert summary["precision"] == "bf16"
    assert any("bf16" in line and "run.precision" in line for line in summary["warnings"])
    assert "precision" not in _run(nn.Sequential(*_layers(), nn.Flatten())).summary


@BF16
def test_a_loaded_run_predicts_in_its_precision(tmp_path: Path) -> None:
    body = nn.Sequential(*_layers(), nn.Flatten())
    for how in ("bf16", "float32"):
        _run(body, tmp_path / how, precision=how)
        model: Any = fedkin.load(tmp_path / how, model=_model(body)).model("c0")
        z = model.features(_samples().inputs(slice(None))).detach()
        assert torch.equal(z, z.bfloat16().float()) == (how == "bf16")


def _in_the_body(model: Any, batch: Any, extras: Any, carry: Any) -> Tensor:
    return nn.functional.cross_entropy(model.head(model.in_body(model.body, batch.x)), batch.y)


@BF16
def test_bf16_reaches_what_a_loss_calls_in_the_body() -> None:
    for how in ("float32", "bf16"):
        net = _net(lambda: _body("plain"), precision=how)
        one, other = (_fit(net, loss=loss).params for loss in (CrossEntropy(), _in_the_body))
        assert _far(one, other) == 0


def test_bf16_with_float64_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision = 'bf16' is for dtype = 'float32', not 'float64'"):
        _run(nn.Sequential(*_layers(), nn.Flatten()), precision="bf16", dtype="float64")


def test_bf16_is_refused_where_the_processor_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": False}, raising=False)
    with pytest.raises(ConfigError, match=r"run\.precision: 'bf16', but the processor .* no instructions"):
        check_precision("bf16", CPU)
    with pytest.raises(ConfigError, match=r"set run\.precision = 'float32'"):
        _run(nn.Sequential(*_layers(), nn.Flatten()), precision="bf16")
    check_precision("float32", CPU)


def test_participants_of_a_network_agree_on_the_precision() -> None:
    here, there = (Agreement(settings=f'[run]\nprecision = "{how}"', task=TASK) for how in ("bf16", "float32"))
    assert difference(here, there) == "run.precision is bf16 here and float32 there"


def test_a_participant_whose_processor_has_no_bf16_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    text = """
[method]
name = "fedavg"
[model]
name = "mlp"
[training]
[faults]
[run]
precision = "bf16"
"""
    trains, serves = (setup_and_agreement(text, Task(2, (4,)), setup_of, device) for device in ("cpu", None))
    assert trains[0] is None
    assert "no instructions for bfloat16" in trains[1].cannot
    assert serves[0] is not None
    assert serves[0].net.precision == "bf16"


# -- torch's global generator, shared by threads: who draws has it alone, so that the draws of two never  ------------


def is_mine() -> bool:
    """Whether this thread has the generator: another one does not get it."""
    got = list[bool]()

    def other() -> None:
        got.append(rng_lock.acquire(blocking=False))
        if got[0]:
            rng_lock.release()

    thread = Thread(target=other)
    thread.start()
    thread.join()
    return not got[0]


def test_it_is_this_threads_own_until_the_end_and_then_as_before() -> None:
    before = torch.get_rng_state()
    with seeded(3):
        assert is_mine()
        with seeded(4):
            torch.rand(2)
        first = torch.rand(2)
        assert is_mine()

    def fail() -> None:
        torch.rand(2)
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"), seeded():
        fail()
    assert not is_mine()
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(np.int64(3)):  # type: ignore[arg-type]
        assert torch.equal(torch.rand(2), first)
