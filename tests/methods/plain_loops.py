"""What a person would write for a body of one hidden layer, as an oracle of the methods that share heads or models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.engines import Setup
from fedkin.engines.results import Traffic
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.keys import rng
from fedkin.learning.training import Training
from support import samples_of

BODY = ("body.1.weight", "body.1.bias")
HEAD = ("head.weight", "head.bias")

Plain = dict[str, Tensor]


def features(params: Plain, x: Tensor) -> Tensor:
    """The hidden layer's values."""
    return torch.relu(x.flatten(1) @ params["body.1.weight"].T + params["body.1.bias"])


def logits(params: Plain, x: Tensor) -> Tensor:
    """The outputs."""
    return features(params, x) @ params["head.weight"].T + params["head.bias"]


def entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy, written out."""
    return (outputs.exp().sum(1).log() - outputs[torch.arange(len(y)), y]).mean()


def cross_entropy(params: Plain, x: Tensor, y: Tensor) -> Tensor:
    """Of a model's outputs, in its own precision."""
    return entropy(logits(params, x.to(params["head.bias"].dtype)), y)


def contrast(p: Tensor, y: Tensor, tau: float, released: bool = False) -> Tensor:
    """Supervised contrast, over one anchor after another that has positives."""
    unit, terms = p / p.norm(dim=1, keepdim=True).clamp(min=1e-12), []
    for q in range(len(p)):
        others = [r for r in range(len(p)) if r != q]
        scores = torch.exp(unit[others] @ unit[q] / tau)
        shares = (scores / scores.sum())[y[others] == y[q]]
        if len(shares):
            terms.append(-shares.sum().log() if released else -shares.log().mean())
    return torch.stack(terms).mean()


def to_prototypes(p: Tensor, y: Tensor, xi: Tensor, tau: float, released: bool = False) -> Tensor:
    """MAPL's l_proto, sample after sample."""
    towards, terms = xi if released else xi / xi.norm(dim=1, keepdim=True) / tau, []
    for q in range(len(p)):
        scores = towards @ p[q] / p[q].norm()
        terms.append(-torch.log(scores[y[q]].exp() / scores.exp().sum()))
    return torch.stack(terms).mean()


def apart(xi: Tensor, tau: float, released: bool = False) -> Tensor:
    """MAPL's l_uni, pair after pair."""
    pairs = [(k, r) for k in range(len(xi)) for r in range(k)]
    terms = [torch.exp(xi[k] @ xi[r] / tau) if released else cosine(xi[k], xi[r]) for k, r in pairs]
    return 2 * torch.stack(terms).sum() / len(xi)


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """The cosine of two vectors."""
    found: Tensor = one @ other / (one.norm() * other.norm())
    return found


def plain_training(*given: Any, **options: Any) -> Plain:
    """The parameters after the last of `plain_steps`."""
    return plain_steps(*given, **options)[-1]


def plain_steps(
    setup: Setup, id: str, round: int, params: Plain, loss: Callable[[Plain, Tensor, Tensor], Tensor],
    phase: str = "train", momentum: float = 0.0, fit: int = 0,
    training: Training | None = None, samples: Samples | None = None,
) -> list[Plain]:  # fmt: skip
    """Gradient descent of this client in this round: the parameters after 0, 1, ... steps.

    Momentum is y_k+1 = y_k - lr g + momentum (y_k - y_k-1).
    samples: those to train on; None: the client's in this round.
    """
    draw = rng(setup.seed, id, round, f"{phase}.fit{fit}")
    draw.integers(2**63)
    samples, path = setup.federation[id].at(round).train if samples is None else samples, [dict(params)]
    for rows in (training or setup.training).batches(len(samples), draw):
        now, before = path[-1], path[max(len(path) - 2, 0)]
        leaves = {name: tensor.clone().requires_grad_(True) for name, tensor in now.items()}
        value = loss(leaves, samples.x[rows], samples.y[rows])
        gradient = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))
        path.append({
            name: tensor - setup.training.lr * gradient[name] + momentum * (tensor - before[name])
            for name, tensor in now.items()
        })  # fmt: skip
    return path


def initial(setup: Setup) -> Plain:
    """What everyone starts from."""
    return {name: setup.net.initial[name].clone() for name in (*BODY, *HEAD)}


def combined(models: Mapping[str, Plain], weights: Mapping[str, float], names: Sequence[str] = ()) -> Plain:
    """The sum of models by these weights; names: of these parameters only."""
    names = names or list(next(iter(models.values())))
    return {name: torch.stack([weight * models[id][name] for id, weight in weights.items()]).sum(0) for name in names}


def sample_shares(federation: Federation) -> dict[str, float]:
    """Each client's share of all training samples."""
    total = sum(federation.sizes.values())
    return {id: size / total for id, size in sorted(federation.sizes.items())}


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All ways to split these into groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for k, group in enumerate(smaller):
            yield [*smaller[:k], [first, *group], *smaller[k + 1 :]]


def assert_params(found: object, expected: Plain, tolerance: float = 1e-5) -> None:
    assert isinstance(found, dict)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


def classes_federation(owned: Sequence[Sequence[int]], counts: Sequence[int], classes: int = 6) -> Federation:
    """One client per set of classes, with so many samples of each of them; a class is a place in space."""
    draw = np.random.default_rng(5)
    places = draw.normal(size=(classes, 5)) * 3
    clients = []
    for number, (own, count) in enumerate(zip(owned, counts, strict=True)):
        y = np.repeat(own, count)
        samples = samples_of(places[y] + draw.normal(size=(len(y), 5)), y)
        clients.append(Client(f"client-{number}", samples, samples))
    return Federation(clients, Task(classes, (5,)))


def floats(traffic: Sequence[Traffic], up: bool | None = None) -> int:
    """Floats of these messages: to the server, from it, or (None) all."""
    return sum(m.floats for m in traffic if up is None or up == (m.receiver == "server"))
