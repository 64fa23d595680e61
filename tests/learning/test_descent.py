"""The step of large Linear layers in the backward pass equals that by a stored gradient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin.federation import Samples
from fedkin.learning import Net, Training, descent
from fedkin.learning.computing import Computing, _has_bf16
from fedkin.learning.devices import CPU
from fedkin.learning.losses import CrossEntropy, Loss, Proximal
from fedkin.learning.net import BodyHead
from fedkin.learning.sgd import fit

Parts = tuple[nn.Sequential, nn.Linear]
LARGE = 600  # a Linear of 600 x 600 is large


class Skip(nn.Module):
    """A body with a large layer that fedkin does not know to be used once."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(LARGE, LARGE)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.wide(torch.relu(self.wide(x))))


def deep() -> Parts:
    body = nn.Sequential(
        nn.Linear(12, LARGE), nn.ReLU(), nn.Sequential(nn.Linear(LARGE, LARGE), nn.Tanh()), nn.Linear(LARGE, LARGE)
    )
    return body, nn.Linear(LARGE, 3, bias=False)


def first() -> Parts:
    return nn.Sequential(nn.Flatten(), nn.Linear(LARGE, LARGE, bias=False), nn.ReLU()), nn.Linear(LARGE, 3)


def shared() -> Parts:
    wide = nn.Linear(LARGE, LARGE)
    return nn.Sequential(nn.Linear(12, LARGE), wide, nn.Tanh(), wide), nn.Linear(LARGE, 3)


def tied() -> Parts:
    one, two = nn.Linear(LARGE, LARGE), nn.Linear(LARGE, LARGE)
    two.weight = one.weight
    return nn.Sequential(nn.Linear(12, LARGE), one, nn.Tanh(), two), nn.Linear(LARGE, 3)


class Decoder(nn.Module):
    """A part that uses the weights of a layer which it does not have as a part."""

    def __init__(self, encoder: nn.Linear) -> None:
        super().__init__()
        self.encoder = [encoder]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.encoder[0].weight.t())


def decoded() -> Parts:
    wide = nn.Linear(LARGE, LARGE)
    return nn.Sequential(nn.Linear(12, LARGE), wide, nn.Tanh(), Decoder(wide)), nn.Linear(LARGE, 3)


def own() -> Parts:
    return nn.Sequential(nn.Linear(12, LARGE), Skip()), nn.Linear(LARGE, 3)


def hooked() -> Parts:
    body, head = deep()
    body.get_submodule("2.0").register_forward_hook(lambda layer, x, out: 2 * out)
    return body, head


def frozen() -> Parts:
    body, head = deep()
    body.get_submodule("2.0").requires_grad_(False)
    return body, head


def looped(module: BodyHead, samples: Samples, training: Training, key: int) -> dict[str, Tensor]:
    """The parameters after a plain loop over the same batches."""
    rng = np.random.default_rng(key)
    rng.integers(2**63)
    optimiser = torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], training.lr, weight_decay=training.weight_decay
    )
    for rows in training.batches(len(samples), rng):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(samples.x[rows]), samples.y[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def made(make: Callable[[], Parts], width: int) -> tuple[Net, Samples]:
    net = Net.build(make, 3, dtype=torch.float64)
    draw = torch.Generator().manual_seed(5)
    return net, Samples(
        torch.randn(23, width, generator=draw, dtype=torch.float64), torch.randint(0, 3, (23,), generator=draw)
    )


def largest(net: Net) -> int:
    return len(descent._large(net.scratch()))


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize(
    ("make", "width", "large"),
    [
        (deep, 12, 2),
        (first, LARGE, 1),
        (shared, 12, 0),
        (tied, 12, 0),
        (own, 12, 0),
        (hooked, 12, 1),
        (frozen, 12, 1),
        (decoded, 12, 0),
    ],
)
def test_a_fit_equals_a_plain_loop(make: Callable[[], Parts], width: int, large: int, decay: float) -> None:
    net, samples = made(make, width)
    assert largest(net) == large
    training = Training(lr=0.1, batch_size=8, local_epochs=2, weight_decay=decay)
    module = net.scratch()
    found = fit(net, module, net.initial, CrossEntropy(), samples, training, {}, {}, np.random.default_rng(7))
    plain = looped(net.scratch(), samples, training, 7)
    assert set(plain) <= set(found.params)
    for name, tensor in plain.items():
        torch.testing.assert_close(found.params[name], tensor, rtol=0, atol=1e-12)
        assert not torch.equal(tensor, net.initial[name])
    # Nothing of it stays at the module.
    assert not [part for part in module.modules() if "forward" in vars(part)]


@pytest.mark.parametrize(
    ("loss", "training"),
    [
        (CrossEntropy(), Training(momentum=0.9)), (CrossEntropy(), Training(clip=1.0)),
        (CrossEntropy(), Training(optimiser="adam")), (Proximal(CrossEntropy(), 0.1), Training()),
        (lambda model, batch, extras, carry: model(batch.x).sum(), Training()),
    ],
)  # fmt: skip
def test_other_losses_and_optimisers_store_the_gradient(loss: Loss, training: Training) -> None:
    module = made(deep, 12)[0].scratch()
    with descent.direct(module, loss, training):
        assert not [part for part in module.modules() if "forward" in vars(part)]


BF16 = pytest.mark.skipif(not _has_bf16(CPU), reason="this processor has no instructions for bfloat16")


@BF16
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_under_bf16_the_step_is_the_product_of_rounded_operands(decay: float) -> None:
    """By hand in float64: from the rounded inputs and slopes of one layer, whose sums have float32's error alone."""
    net = Net.build(first, 3, computing=Computing("bf16"))
    draw = torch.Generator().manual_seed(5)
    samples = Samples(torch.randn(8, LARGE, generator=draw), torch.randint(0, 3, (8,), generator=draw))
    training = Training(lr=0.1, batch_size=8, local_steps=1, weight_decay=decay)
    assert largest(net) == 1
    found = fit(net, net.scratch(), net.initial, CrossEntropy(), samples, training, {}, {}, np.random.default_rng(7))
    before = {name: tensor.double() for name, tensor in net.initial.items()}
    assert isinstance(samples.x, Tensor)
    x, w = samples.x.bfloat16().double(), net.initial["body.1.weight"].bfloat16().double()
    hidden = (x @ w.T).bfloat16().double().relu().requires_grad_()
    out = hidden @ before["head.weight"].T + before["head.bias"]
    nn.functional.cross_entropy(out, samples.y).backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    slope = (hidden.grad * (hidden > 0)).bfloat16().double()
    wanted = (1 - 0.1 * decay) * before["body.1.weight"] - 0.1 * slope.T @ x
    moved = (wanted - before["body.1.weight"]).abs().max()
    # A slope near the middle of two numbers of bfloat16 may be rounded to the other one.
    gap = (found.params["body.1.weight"].double() - wanted).abs()
    assert float(gap.max() / moved) < 2**-8
    assert float(gap.median() / moved) < 1e-5


@BF16
def test_under_bf16_a_fit_is_near_that_by_stored_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net.build(deep, 3, computing=Computing("bf16"))
    draw = torch.Generator().manual_seed(5)
    samples = Samples(torch.randn(23, 12, generator=draw), torch.randint(0, 3, (23,), generator=draw))
    training = Training(lr=0.1, batch_size=8, local_epochs=2)

    def fitted() -> dict[str, Tensor]:
        rng = np.random.default_rng(7)
        return dict(fit(net, net.scratch(), net.initial, CrossEntropy(), samples, training, {}, {}, rng).params)

    own, again = fitted(), fitted()
    assert all(torch.equal(own[name], again[name]) for name in own)
    monkeypatch.setattr(descent, "_LARGE", 1 << 30)
    stored = fitted()
    assert any(not torch.equal(own[name], stored[name]) for name in own)
    for name, tensor in stored.items():
        moved = (tensor - net.initial[name]).norm()
        assert float((own[name] - tensor).norm() / moved) < 0.02, name


def test_it_does_what_it_says_it_does() -> None:
    net, samples = made(deep, 12)
    module = net.scratch()
    with descent.direct(module, CrossEntropy(), Training(lr=0.1)):
        nn.functional.cross_entropy(module(samples.x), samples.y).backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad is None for name, p in module.named_parameters()}
    assert [name for name, none in grads.items() if none] == [
        "body.2.0.weight", "body.2.0.bias", "body.3.weight", "body.3.bias"
    ]  # fmt: skip


def test_a_layer_whose_pass_fails_is_as_before() -> None:
    net, _ = made(deep, 12)
    module = net.scratch()
    with pytest.raises(RuntimeError), descent.direct(module, CrossEntropy(), Training(lr=0.1)):
        module(torch.zeros(2, 13, dtype=torch.float64))
    assert not [part for part in module.modules() if "forward" in vars(part)]


def test_memory_that_is_not_there_leaves_no_layer_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    module, given = made(deep, 12)[0].scratch(), iter([torch.zeros(LARGE, LARGE, dtype=torch.bfloat16)])

    def empty(*_: object, **__: object) -> Tensor:
        try:
            return next(given)
        except StopIteration:
            raise RuntimeError("can't allocate memory") from None

    monkeypatch.setattr(torch, "empty_like", empty)
    module.computing = Computing(precision="bf16")
    with pytest.raises(RuntimeError, match="can't allocate"), descent.direct(module, CrossEntropy(), Training(lr=0.1)):
        pass
    assert not [part for part in module.modules() if "forward" in vars(part)]
