"""Compiled convolutions: the numbers of torch's, the bits, which nets have them, and what is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkin
from fedkin.engines.accounting.operations import counting
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning import Net, Training
from fedkin.learning.computing import Computing, check_kernels
from fedkin.learning.kernels import Trunk, trunk_in
from fedkin.learning.layout import settled
from fedkin.learning.losses import CrossEntropy
from fedkin.learning.sgd import fit, infer

NUMBA = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
TASK = Task(3, (2, 11, 12))


def _body(*behind: nn.Module) -> nn.Sequential:
    """Two units, with padding and without, on sides that pooling does not halve."""
    first = nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.MaxPool2d(2), nn.ReLU())
    return nn.Sequential(first, nn.Conv2d(5, 4, 2), nn.ReLU(), nn.MaxPool2d((2, 2)), *behind, nn.Flatten())


def _net(kernels: Any = "numba", *behind: nn.Module) -> Net:
    def made() -> tuple[nn.Module, nn.Module]:
        body = _body(*behind)
        return body, nn.Linear(body(torch.zeros(1, *TASK.shape)).shape[1], 3)

    return Net.build(made, 3, computing=Computing(kernels=kernels))


def _samples(count: int = 43) -> Samples:
    draw = torch.Generator().manual_seed(0)
    return Samples(torch.randn(count, *TASK.shape, generator=draw), torch.randint(0, 3, (count,), generator=draw))


def _fit(net: Net, **training: Any) -> Any:
    plan = Training(batch_size=18, lr=0.1, local_epochs=2, **training)
    return fit(net, net.scratch(), net.initial, CrossEntropy(), _samples(), plan, {}, {}, np.random.default_rng(1))


def _gradients(body: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    z = call(x)
    z.backward(torch.randn(z.shape, generator=torch.Generator().manual_seed(1)))  # type: ignore[no-untyped-call]
    found = [z.detach(), *(p.grad for p in body.parameters() if p.grad is not None)]
    body.zero_grad()
    return found


def _trunk(body: nn.Module) -> Trunk:
    made = trunk_in(body)
    assert made is not None
    return made


@NUMBA
@pytest.mark.parametrize("batch", [1, 16, 32, 37])
@pytest.mark.parametrize("last", [False, True])
def test_numbers_are_those_of_torch(batch: int, last: bool) -> None:
    torch.manual_seed(0)
    body = _body()
    trunk = _trunk(body)
    trunk.last = last
    x = _samples(batch).inputs(slice(None))
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    assert len(trunk.units) == 2
    assert trunk.takes(x)
    expected, found = _gradients(body, body, x), _gradients(body, trunk, x)
    assert len(found) == 5
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm()) <= 1e-5 * float(other.norm())


@NUMBA
def test_nan_and_infinite_numbers_pass_on() -> None:
    torch.manual_seed(0)
    body = _body()
    x = _samples(3).inputs(slice(None))
    x[0, 0, 4, 4], x[1, 1, 5, 5] = float("nan"), float("inf")
    expected, found = body(x), _trunk(body)(x)
    assert expected[0].isnan().any()
    torch.testing.assert_close(found, expected, equal_nan=True)


@NUMBA
def test_two_batches_before_a_backward_pass_do_not_disturb_each_other() -> None:
    torch.manual_seed(0)
    body = _body()
    trunk, (x, y) = _trunk(body), _samples(40).inputs(slice(None)).split(20)
    alone = [_gradients(body, trunk, batch)[1:] for batch in (x, y)]
    one, other = trunk(x), trunk(y)
    g = torch.randn(one.shape, generator=torch.Generator().manual_seed(1))
    (one * g).sum().backward()
    (other * g).sum().backward()
    for parameter, a, b in zip(body.parameters(), *alone, strict=True):
        assert torch.equal(parameter.grad, a + b)
    del one, other
    assert [len(rooms) for rooms in trunk.free.values()] == [2]


@NUMBA
@pytest.mark.parametrize("behind", [(), (nn.Conv2d(4, 3, 1), nn.Tanh())], ids=["alone", "before another"])
def test_a_fit_has_the_numbers_of_torch_and_the_same_bits_again(behind: tuple[nn.Module, ...]) -> None:
    mine, torches = _net("numba", *behind), _net("torch", *behind)
    one, again, other = _fit(mine, momentum=0.5), _fit(mine, momentum=0.5), _fit(torches, momentum=0.5)
    assert mine.last is bool(behind)
    assert list(one.params) == list(other.params)
    for name, tensor in one.params.items():
        assert torch.equal(tensor, again.params[name])
        assert tensor.is_contiguous()
        assert float((tensor - other.params[name]).norm()) <= 1e-5 * float(other.params[name].norm())
    said = [infer(net, net.scratch(), one.params, "logits", _samples()) for net in (mine, torches)]
    torch.testing.assert_close(*said, rtol=1e-5, atol=1e-5)


@NUMBA
def test_who_watches_the_layers_sees_them() -> None:
    net = _net()
    module, plain = net.scratch(), _net("torch").scratch()
    settled(net, module, _samples())
    x = _samples(2).inputs(slice(None))
    assert module.trunk is not None
    assert module.trunk.takes(x)
    with counting() as mine:
        module(x)
    with counting() as torches:
        plain(x)
    assert mine.total == torches.total > 0
    assert not module.trunk.takes(x.clone().requires_grad_())
    assert not module.trunk.takes(x.double())
    assert not module.trunk.takes(x[:, :1])
    assert not module.trunk.takes(x[:, :, :3])
    seen: list[Any] = []
    module.body[0].register_forward_hook(lambda part, given, out: seen.append(out))  # type: ignore[index]
    assert not module.trunk.takes(x)
    module(x)
    assert len(seen) == 1


class _Own(nn.Conv2d):
    pass


def _conv(**how: Any) -> nn.Module:
    return nn.Conv2d(2, 4, **{"kernel_size": 3, **how})


@pytest.mark.parametrize(
    "layers",
    [
        (_conv(), nn.ReLU()), (_conv(), nn.ReLU(), nn.Tanh()), (_conv(), nn.MaxPool2d(3), nn.ReLU()),
        (_conv(), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()), (_conv(), nn.MaxPool2d(2, stride=1), nn.ReLU()),
        (_conv(stride=2), nn.MaxPool2d(2), nn.ReLU()), (_conv(groups=2), nn.MaxPool2d(2), nn.ReLU()),
        (_conv(dilation=2), nn.MaxPool2d(2), nn.ReLU()), (_conv(bias=False), nn.MaxPool2d(2), nn.ReLU()),
        (_conv(padding_mode="circular", padding=1), nn.MaxPool2d(2), nn.ReLU()),
        (_conv(padding="same"), nn.MaxPool2d(2), nn.ReLU()), (_conv(padding=3), nn.MaxPool2d(2), nn.ReLU()),
        (_conv(kernel_size=(3, 5)), nn.MaxPool2d(2), nn.ReLU()), (_conv(kernel_size=9), nn.MaxPool2d(2), nn.ReLU()),
        (_Own(2, 4, 3), nn.MaxPool2d(2), nn.ReLU()), (nn.Conv2d(64, 64, 3), nn.MaxPool2d(2), nn.ReLU()),
    ],
)  # fmt: skip
def test_other_layers_are_left_to_torch(layers: tuple[nn.Module, ...]) -> None:
    assert trunk_in(nn.Sequential(*layers)) is None
    unit = (nn.Conv2d(3, 64 if getattr(layers[0], "in_channels", 0) == 64 else 2, 3), nn.MaxPool2d(2), nn.ReLU())
    assert len(_trunk(nn.Sequential(*unit, *layers)).units) == 1


def test_nothing_is_computed_by_kernels_without_the_setting() -> None:
    net = _net("torch")
    module = net.scratch()
    assert settled(net, module, _samples()) is True
    assert module.trunk is None


@NUMBA
def test_a_net_without_such_layers_is_told(caplog: pytest.LogCaptureFixture) -> None:
    net = Net(nn.Sequential(nn.Flatten(), nn.Linear(264, 4)), nn.Linear(4, 3), computing=Computing(kernels="numba"))
    with caplog.at_level("INFO", "fedkin"):
        _fit(net)
    assert "run.kernels = 'numba' has no effect" in caplog.text


def _run(folder: Path | None = None, **settings: Any) -> fedkin.Result:
    whole = _samples(48)
    parts = [whole.take(torch.arange(start, start + 24)) for start in (0, 24)]
    clients = [Client(f"c{k}", own.take(range(20)), own.take(range(20, 24))) for k, own in enumerate(parts)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pair = _body(), nn.Linear(16, 3)
    return fedkin.run(
        "fedavg", Federation(clients, TASK), rounds=2, model=pair, training={"batch_size": 5, "lr": 0.1},
        settings=settings, out=folder,
    )  # fmt: skip


@NUMBA
def test_a_run_tells_its_kernels_and_workers_give_the_same_bits(tmp_path: Path) -> None:
    alone, others = _run(tmp_path / "run", kernels="numba"), _run(kernels="numba", mode="workers", workers=2)
    assert alone.summary["kernels"] == "numba"
    assert 'kernels = "numba"' in (tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8")
    assert all(torch.equal(t, others.models["c0"][name]) for name, t in alone.models["c0"].items())
    assert "kernels" not in _run().summary


def test_a_missing_numba_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    check_kernels("torch")
    with pytest.raises(ConfigError, match=r"^run\.kernels: 'numba' cannot be imported .*fedkin\[kernels\]'.*'torch'$"):
        _run(kernels="numba")


@pytest.mark.parametrize("how", [{"dtype": "float64"}, {"precision": "bf16"}, {"device": "cuda"}])
def test_kernels_for_other_numbers_or_devices_are_refused(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="kernels = 'numba' is for"):
        _run(kernels="numba", **how)


@NUMBA
def test_arrays_of_few_sizes_of_batches_are_kept() -> None:
    body = _body()
    trunk = _trunk(body)
    for count in range(1, 200, 16):
        trunk(torch.zeros(count, *TASK.shape)).sum().backward()
    assert len(trunk.free) == 4
    assert sum(len(rooms) for rooms in trunk.free.values()) == 4


@NUMBA
def test_it_computes_in_float32_whatever_torch_makes_by_default() -> None:
    body, x = _body(), torch.randn(3, *TASK.shape, generator=torch.Generator().manual_seed(0))
    trunk = _trunk(body)
    known = _gradients(body, trunk, x)
    torch.set_default_dtype(torch.float64)
    try:
        found = trunk(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, known[0])


@NUMBA
def test_a_net_whose_layers_were_changed_is_left_to_torch() -> None:
    body, x = _body(), torch.zeros(3, *TASK.shape)
    trunk = _trunk(body)
    assert trunk.takes(x)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not trunk.takes(x)
    hook.remove()
    assert trunk.takes(x)
    body[1] = nn.Conv2d(5, 4, 2)
    assert not trunk.takes(x)


@NUMBA
def test_images_that_a_unit_leaves_nothing_of_are_left_to_torch() -> None:
    unit = (nn.MaxPool2d(2), nn.ReLU())
    body = nn.Sequential(nn.Conv2d(1, 2, 3), *unit, nn.Conv2d(2, 2, 7, padding=6), *unit)
    assert not _trunk(body).takes(torch.zeros(1, 1, 1, 1))
