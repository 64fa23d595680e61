"""Nets as users write them: classes with a forward of their own, which are chains of layers, and which are not."""

from __future__ import annotations

import random  # noqa: TID251 (as a user may)
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["CHAINS", "OTHERS"]


class Plain(nn.Module):
    """Flattened, with functions between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(5, 6), nn.Linear(6, 7), nn.Linear(7, 7)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        x = torch.flatten(x, 1)
        x = F.dropout(F.relu(self.fc1(x)), 0.3, self.training)
        x = F.leaky_relu(self.fc2(x), 0.2) if scale is None else x * scale
        return torch.tanh(F.dropout(self.fc3(x), 0.0))


class Looped(nn.Module):
    """Layers in a list, one activation in several places, and a view of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 7)])
        self.norms = nn.ModuleList([nn.LayerNorm(6), nn.BatchNorm1d(6)])
        self.drop, self.act = nn.Dropout(0.2), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = self.drop(self.act(norm(layer(x))))
        return torch.sigmoid(self.layers[-1](x).reshape(x.shape[0], 7))


class Rows(nn.Module):
    """A view by the number of inputs, and methods of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 7), nn.SiLU())
        self.unlike = {"kept": [1, 2]}

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 5)
        return F.gelu(self.two(self.one(x).relu()).flatten(1), approximate="tanh").tanh().sigmoid()


class Silu(nn.Module):
    """A block of a user's own, without layers."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x, inplace=True)


def nested() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), Silu(), nn.Sequential(nn.Linear(6, 5), Silu()), Plain())


CHAINS: dict[str, Callable[[], nn.Module]] = {"plain": Plain, "looped": Looped, "rows": Rows, "nested": nested}


class _Of(nn.Module):
    """5 inputs, 6 features, by what a subclass does."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.act = nn.Linear(5, 6), nn.Linear(6, 6), nn.ReLU(inplace=True)
        self.count, self.seen = 0, list[Any]()
        self.inside, self.array, self.deep = SimpleNamespace(n=0), np.zeros(1), {"n": [0]}
        self.numbers = iter(range(1000))


def _own(forward: Callable[[Any, Tensor], Any]) -> Callable[[], nn.Module]:
    kind = type(forward.__name__.title().replace("_", ""), (_Of,), {"forward": forward})
    return lambda: kind()


def skip(self: Any, x: Tensor) -> Tensor:
    x = self.one(x)
    return x + self.two(x)  # type: ignore[no-any-return]


def input_skip(self: Any, x: Tensor) -> Tensor:
    return torch.cat([x, self.two(self.one(x))], 1)[:, 5:]


def again(self: Any, x: Tensor) -> Tensor:
    return self.two(self.two(self.one(x)))  # type: ignore[no-any-return]


def behind(self: Any, x: Tensor) -> Tensor:
    made = self.one(x)
    self.act(made)  # in place, so that it counts although nothing is done with what it gives
    return self.two(made)  # type: ignore[no-any-return]


def unused(self: Any, x: Tensor) -> Tensor:
    made = self.one(x)
    self.two(made)
    return made  # type: ignore[no-any-return]


def branch(self: Any, x: Tensor) -> Tensor:
    x = self.one(x)
    return self.two(x) if x.mean() > 0 else self.two(-x)  # type: ignore[no-any-return]


def rows_branch(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x)) if x.shape[0] == 9 else self.one(x)  # type: ignore[no-any-return]


def shape_branch(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x)) if x.shape[1] == 5 else self.one(x)  # type: ignore[no-any-return]


def counted(self: Any, x: Tensor) -> Tensor:
    self.count += 1
    return self.two(self.one(x))  # type: ignore[no-any-return]


def listed(self: Any, x: Tensor) -> Tensor:
    self.seen.append(1)
    return self.two(self.one(x))  # type: ignore[no-any-return]


def scaled(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x)) * self.two.bias  # type: ignore[no-any-return]


def halved(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x)).div(2)  # type: ignore[no-any-return]


def stopped(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = self.one(x)
    return self.two(x)  # type: ignore[no-any-return]


def detached(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x).detach())  # type: ignore[no-any-return]


def resting(self: Any, x: Tensor) -> Tensor:
    x = self.one(x)
    return self.two(F.relu(x) if self.training else torch.tanh(x))  # type: ignore[no-any-return]


def weights_only(self: Any, x: Tensor) -> Tensor:
    return F.linear(self.one(x), self.two.weight)


def drawn(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x)) if torch.rand(()) < 2 else x


def pythons(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x)) if random.random() < 2 else x


def numpys(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x)) if np.random.rand() < 2 else x  # noqa: NPY002


def flipped(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x.view(5, -1).reshape(-1, 5)))  # type: ignore[no-any-return]


def lengths(self: Any, x: Tensor) -> Tensor:
    return self.two(self.one(x.view(len(x), -1)))  # type: ignore[no-any-return]


def softened(self: Any, x: Tensor) -> Tensor:
    return F.softmax(self.two(self.one(x)), 1)


def always(self: Any, x: Tensor) -> Tensor:
    return self.two(F.dropout(self.one(x), 0.5))  # type: ignore[no-any-return]


def clamped(self: Any, x: Tensor) -> Tensor:
    self.one.weight.data.clamp_(-1, 1)
    return self.two(self.one(x))  # type: ignore[no-any-return]


def renormed(self: Any, x: Tensor) -> Tensor:
    self.one.weight.data = torch.renorm(self.one.weight.data, 2, 0, 4.0)
    return self.two(self.one(x))  # type: ignore[no-any-return]


def kept_small(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        for weight in self.parameters():
            if (weight.norm() > 3).any():
                weight.mul_(3 / weight.norm())
    return self.two(self.one(x))  # type: ignore[no-any-return]


def by_weights(self: Any, x: Tensor) -> Tensor:
    x = self.one(x)
    return self.two(F.relu(x) if self.one.weight.abs().max() < 1 else torch.tanh(x))  # type: ignore[no-any-return]


def by_function(self: Any, x: Tensor) -> Tensor:
    x = self.one(x)
    return self.two(F.relu(x) if torch.max(self.two.bias) < 1 else torch.tanh(x))  # type: ignore[no-any-return]


def of_its_type(self: Any, x: Tensor) -> Tensor:
    if isinstance(x, Tensor):
        x = x.clamp(-3, 3)
    return self.two(self.one(x))  # type: ignore[no-any-return]


def without_nan(self: Any, x: Tensor) -> Tensor:
    if torch.is_tensor(x):
        x = torch.nan_to_num(x)
    return self.two(self.one(x))  # type: ignore[no-any-return]


def counted_inside(self: Any, x: Tensor) -> Tensor:
    self.inside.n += 1
    return self.two(self.one(x))  # type: ignore[no-any-return]


def counted_by_numpy(self: Any, x: Tensor) -> Tensor:
    self.array += 1
    return self.two(self.one(x))  # type: ignore[no-any-return]


def counted_by_iterator(self: Any, x: Tensor) -> Tensor:
    next(self.numbers)
    return self.two(self.one(x))  # type: ignore[no-any-return]


def counted_deep(self: Any, x: Tensor) -> Tensor:
    self.deep["n"][0] += 1
    return self.two(self.one(x))  # type: ignore[no-any-return]


class Still(_Of):
    """In evaluation mode for ever."""

    def train(self, mode: bool = True) -> Still:
        super().train(False)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.dropout(self.one(x), 0.5, self.training))  # type: ignore[no-any-return]


# Nets of 5 inputs and 6 features that are no chain, and a part of what is said of them.
OTHERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "skip": (_own(skip), "body, a Skip, computes with the output of one and the output of two (add)"),
    "input skip": (_own(input_skip), "a InputSkip, calls cat on the input and the output of two"),
    "again": (_own(again), "is frozen, shared by two layers"),
    "behind": (_own(behind), "a Behind, uses the output of one twice"),
    "unused": (_own(unused), "does not return what its last layer gives"),
    "branch": (_own(branch), "asks the output of one for its mean"),
    "rows branch": (_own(rows_branch), "computes with the number of rows of the input"),
    "shape branch": (_own(shape_branch), "looks at the shape of the input"),
    "counted": (_own(counted), "a Counted, changes the module"),
    "listed": (_own(listed), "a Listed, changes the module"),
    "scaled": (_own(scaled), "computes with the output of two"),
    "halved": (_own(halved), "asks the output of two for its div"),
    "stopped": (_own(stopped), "computes one without gradients"),
    "detached": (_own(detached), "for its detach"),
    "resting": (_own(resting), "has other layers in evaluation"),
    "weights only": (_own(weights_only), "calls linear on the output of one"),
    "drawn": (_own(drawn), "draws random numbers"),
    "pythons": (_own(pythons), "draws random numbers"),
    "numpys": (_own(numpys), "draws random numbers"),
    "flipped": (_own(flipped), "gives the input another shape"),
    "lengths": (_own(lengths), "write .size(0)"),
    "softened": (_own(softened), "calls softmax on the output of two"),
    "always": (_own(always), "drops in evaluation too"),
    "clamped": (_own(clamped), "a Clamped, reads or changes one.weight itself (data)"),
    "renormed": (_own(renormed), "reads or changes one.weight itself (data)"),
    "kept small": (_own(kept_small), "reads or changes one.weight itself (norm)"),
    "by weights": (_own(by_weights), "reads or changes one.weight itself (abs)"),
    "by function": (_own(by_function), "reads or changes two.bias itself (max)"),
    "of its type": (_own(of_its_type), "asks the input for its clamp"),
    "without nan": (_own(without_nan), "calls nan_to_num on the input"),
    "counted inside": (_own(counted_inside), "changes the module"),
    "counted by numpy": (_own(counted_by_numpy), "changes the module"),
    "counted by iterator": (_own(counted_by_iterator), "changes the module"),
    "counted deep": (_own(counted_deep), "changes the module"),
    "still": (Still, "Still has a train or __call__ of its own"),
}
