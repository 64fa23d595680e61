"""Suites of `fedkin bench`: federations on which methods are compared, with one budget of tuning, seeds and rounds.

Your own suite is a Python file with `SUITE = Suite(...)`; its stored results are next to it, in NAME.jsonl.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.data.sources.images import Digits
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.keys import rng
from fedkin.learning.models import Model

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """A federation of a suite.

    make: a function that makes the federation for a seed. model: the net, or its name. rates: learning rates to try.
    """

    make: Callable[[int], Federation]
    model: str | Model = "mlp"
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Suite:
    """Federations by name, and how methods run on them; stored: the file with the results of all methods.

    Each method has one learning rate per federation: the best of the entry's rates on a held-out fifth of all training
    samples, with the first seed and half of the rounds. controls: controls that also run, with the method's rate.
    """

    name: str
    federations: Mapping[str, Entry]
    stored: Path
    rounds: int = 20
    local_steps: int = 5
    batch_size: int = 32
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    controls: Sequence[str] = ("self", "one", "random")


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """All 1,797 embedded digits: x [n, 1, 8, 8] in 0..1, y [n]."""
    parts = Digits().load(Path())
    x, y = (torch.cat([getattr(part, name) for part in (parts.train, parts.test)]) for name in ("x", "y"))
    return (x.float() if parts.scale is None else parts.scale(x, torch.float32)), y


def _dealt(
    seed: int, change: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]], group: Callable[[int], Any]
) -> Federation:
    """16 clients with digits drawn without replacement; change(client's number, x, y) returns the client's samples."""
    x, y = _digits()
    order = torch.from_numpy(rng(seed, "deal").permutation(len(y)))
    made = []
    for number in range(16):
        rows = order[number * 110 : (number + 1) * 110]
        seen, labels = change(number, x[rows], y[rows])
        train, test = Samples(seen[:80], labels[:80]), Samples(seen[80:], labels[80:])
        made.append(Client(f"client-{number:02d}", train, test, f"group-{group(number)}"))
    return Federation(made, Task(10, (1, 8, 8)), "digits")


def _rotated(seed: int) -> Federation:
    return _dealt(seed, lambda number, x, y: (torch.rot90(x, number % 4, (2, 3)), y), lambda number: number % 4)


def _swapped(seed: int) -> Federation:
    """Each client swaps its own pair of labels: clients differ by degrees."""

    def change(number: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        one, other = rng(seed, "pair", number).choice(10, 2, replace=False).tolist()
        names = torch.arange(10)
        names[one], names[other] = other, one
        return x, names[y]

    return _dealt(seed, change, lambda number: 0)


def _iid(seed: int) -> Federation:
    return _dealt(seed, lambda number, x, y: (x, y), lambda number: 0)


def _all_different(seed: int) -> Federation:
    """Each client sees the pixels in its own random order."""

    def change(number: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        order = torch.from_numpy(rng(seed, "pixels", number).permutation(64))
        return x.flatten(1)[:, order].reshape(x.shape), y

    return _dealt(seed, change, lambda number: number)


def _client(number: int, x: Array, y: Any, train: int) -> Client:
    inputs, targets = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)
    first, rest = (Samples(inputs[rows], targets[rows]) for rows in (slice(train), slice(train, None)))
    return Client(f"client-{number:02d}", first, rest)


def _mixture(seed: int) -> Federation:
    """Marfoq et al., NeurIPS 2021: three linear models; each client mixes samples from them in its own shares."""
    draw = rng(seed, "mixture")
    models = draw.normal(size=(3, 10)) * 2
    clients = []
    for number in range(20):
        share = draw.dirichlet([0.4] * 3)
        x = draw.uniform(-1, 1, size=(160, 10))
        of = draw.choice(3, 160, p=share)
        y = (draw.random(160) < 1 / (1 + np.exp(-3 * (x * models[of]).sum(1)))).astype(np.int64)
        clients.append(_client(number, x, y, 100))
    return Federation(clients, Task(2, (10,)), "mixture")


def _hospitals(seed: int, kind: str) -> Federation:
    """Twelve hospitals of 40 to 300 patients: variations of one linear model, with own intercepts and slopes."""
    draw = rng(seed, "hospitals", kind)
    common = draw.normal(size=8)
    clients = []
    for number, size in enumerate(np.exp(np.linspace(np.log(40), np.log(300), 12)).astype(int)):
        x = draw.normal(size=(size + 100, 8))
        value = x @ (common + 0.4 * draw.normal(size=8)) + 0.8 * draw.normal()
        if kind == "risk":
            y = (draw.random(len(x)) < 1 / (1 + np.exp(-value))).astype(np.int64)
        else:
            y = (value + draw.normal(size=len(x)))[:, None].astype(np.float32)
        clients.append(_client(number, x, y, int(size)))
    task = Task(2, (8,), kind="risk") if kind == "risk" else Task.regression(1, (8,))
    return Federation(clients, task, "hospitals")


SUITES = {
    "quick": Suite(
        "quick",
        {
            "digits, rotated": Entry(_rotated), "digits, own label swap": Entry(_swapped), "digits, iid": Entry(_iid),
            "digits, all different": Entry(_all_different), "mixture of three models": Entry(_mixture, "linear"),
            "hospitals, risk": Entry(partial(_hospitals, kind="risk"), "linear", (0.01, 0.03, 0.1, 0.3, 1.0)),
            "hospitals, regression": Entry(
                partial(_hospitals, kind="regression"), "linear", (0.01, 0.03, 0.1, 0.3, 1.0)
            ),
        },
        Path(__file__).with_name("suite_quick.jsonl.gz"),
    )
}  # fmt: skip


def suite_of(name: str) -> Suite:
    """Return the suite with this name, or in this Python file; raises ConfigError."""
    if name in SUITES:
        return SUITES[name]
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"--suite {name}: expected {', '.join(SUITES)}, or a Python file with SUITE = Suite(...)")
    suite = runpy.run_path(str(path.resolve())).get("SUITE")
    if not isinstance(suite, Suite):
        raise ConfigError(f"--suite {name}: the file has no SUITE = fedkin.running.suites.Suite(...)")
    return suite
