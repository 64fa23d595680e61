"""The chain of layers that a module with a `forward` of its own applies, read by running it on a stand-in.

The stand-in notes which layers and functions it goes through, and refuses everything else: branches on its values, sums
of two layers' outputs, shapes beyond the number of rows, weights that are read or written outside of layers. What was
read is then compared with the module itself, bit for bit, on trial batches.

The random states of the process are compared and set back, so that no other thread may draw numbers meanwhile: one that
draws from torch's generator waits, and nets are read before training (`engines.setup.Plan.equipped`).
"""

from __future__ import annotations

import copy
import math
import random  # noqa: TID251 (to see whether a forward draws)
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.learning.held import held
from fedkin.learning.seeded import alone, seeded
from fedkin.learning.standin import Noted, NotWritten, Rows, Step, Value, Weight
from fedkin.untrusted import said

__all__ = ["NotWritten", "chain_of"]

_TRIAL = 7  # samples


def chain_of(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers that the module applies, in order, by name; raises NotWritten if it does anything else.

    A function such as F.relu is given as its layer. A layer that is applied twice comes twice.
    """
    for part in module.modules():
        kind = type(part)
        if kind.train is not nn.Module.train or kind.__call__ is not nn.Module.__call__:
            raise NotWritten(f"{kind.__name__} has a train or __call__ of its own")
        if kind.__module__.startswith("torch._dynamo") or hasattr(kind.forward, "_torchdynamo_orig_callable"):
            raise NotWritten(f"{kind.__name__} is compiled")
    label = f"{name}, a {type(module).__name__},"
    with alone:
        drawn = _random_states()
        try:
            training, resting = (_steps(label, module, mode) for mode in (True, False))
            chain = _chain(label, module, training, resting)
            alike = _alike(module, [layer for _, layer in chain])
        except NotWritten:
            raise
        except Exception as error:  # whatever a forward of the user's does
            raise NotWritten(f"{label} was not understood ({type(error).__name__}: {said(error)})") from None
        draws = _random_states() != drawn
    if draws:
        raise NotWritten(f"{label} draws random numbers")
    if not alike:
        raise NotWritten(f"{label} gives other numbers than its layers")
    return [(f"{name}.{place}", layer) for place, layer in chain]


def _chain(
    label: str, module: nn.Module, training: Sequence[Step], resting: Sequence[Step]
) -> list[tuple[str, nn.Module]]:
    """Return the chain, by what was noted in training and in evaluation."""
    if [(place, repr(layer)) for place, layer, _ in training] != [(place, repr(layer)) for place, layer, _ in resting]:
        raise NotWritten(f"{label} has other layers in evaluation")
    if any(drops for *_, drops in resting):
        raise NotWritten(f"{label} drops in evaluation too; write F.dropout(..., training=self.training)")
    chain: list[tuple[str, nn.Module]] = []
    width = 0  # of the rows, if it is known
    for number, (place, function, drops) in enumerate(training):
        layer = module.get_submodule(place) if function is None else function
        if isinstance(layer, Rows):
            given = [module.get_submodule(later) for later, kind, _ in training[number:] if kind is None]
            width = width or next((each.in_features for each in given if isinstance(each, nn.Linear)), 0)
            if layer.width != width:
                raise NotWritten(f"{label} may change the number of rows by view(..., {layer.width})")
            layer = nn.Flatten()
        elif isinstance(layer, nn.Linear):
            width = layer.out_features
        if drops or not isinstance(function, nn.Dropout):
            chain.append((place, layer))
    return chain


def _random_states() -> tuple[Any, ...]:
    numpys = np.random.get_state(legacy=False)  # noqa: NPY002 (a forward may draw from it)
    return random.getstate(), repr(numpys), torch.get_rng_state().tolist()


def _steps(label: str, module: nn.Module, mode: bool) -> list[Step]:
    """Return what the module does to its input in this mode (training or not)."""
    noted = Noted(label)
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    module = copy.deepcopy(module, {id(tensor): Weight(noted, name) for name, tensor in named.items()}).train(mode)
    for place, part in module.named_modules():
        if type(part).__module__.startswith("torch.nn.") and not isinstance(part, nn.Sequential):
            part.forward = noted.layer(place)
    before = held(module)
    with torch.enable_grad():
        given = module(Value(noted, "the input"))
    if given is not noted.last:
        noted.refuse("does not return what its last layer gives")
    if held(module) != before:
        noted.refuse("changes the module")
    return noted.steps


def _alike(module: nn.Module, layers: Sequence[nn.Module]) -> bool:
    """Whether module and chain give the same bits on trial batches, in training and in evaluation, and gradients."""
    sized = next((layer for layer in layers if isinstance(layer, nn.Linear | nn.LayerNorm | nn.BatchNorm1d)), None)
    first = next(module.parameters(), None)
    dtype, width = torch.float32 if first is None else first.dtype, 5 if sized is None else _taken(sized)
    usual = torch.linspace(-2, 2, _TRIAL * width, dtype=dtype).reshape(_TRIAL, width)
    odd = usual.clone()
    odd[:3, 0] = torch.tensor([math.nan, math.inf, -math.inf])
    for x in (usual, 1e3 * usual, odd):
        whole, _ = copy.deepcopy((module, layers))
        free, parts = copy.deepcopy((module, layers))
        one, other = _answers(whole, whole, x), _answers(free, nn.Sequential(*parts), x)
        if not all(_equal(a, b) for a, b in zip(one, other, strict=True)):
            return False
    return True


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether both are None or have equal numbers, where NaN equals NaN."""
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _taken(layer: Any) -> int:
    if isinstance(layer, nn.LayerNorm):
        return layer.normalized_shape[-1]
    return layer.in_features if isinstance(layer, nn.Linear) else int(layer.num_features)


def _answers(module: nn.Module, called: nn.Module, x: Tensor) -> list[Tensor | None]:
    """Return what is given in training and in evaluation, and its gradients for x and the module's parameters."""
    free = [p for p in module.parameters() if p.requires_grad]
    made: list[Tensor | None] = []
    with torch.enable_grad(), seeded():
        for mode in (True, False):
            torch.manual_seed(1)
            leaf = x.clone().requires_grad_()
            out = called.train(mode)(leaf * 1)  # which a layer may change in place
            made += [out.detach(), *torch.autograd.grad(out.square().sum(), [leaf, *free], allow_unused=True)]
    return made
