"""The suite of 31 federations: fedkin bench METHOD --suite benchmarks/full_suite.py

FEDKIN_DATA is the folder of the sources mnist, fashion-mnist, qmnist, cifar10, eicu-demo and tpt48 (default: data), and
of schools/bdf.csv and schools/Contraception.csv (R packages nlme and mlmRev). Twenty federations are those of a study
of groups (docs/groups.md), reduced so that one core suffices: 100 clients became 40, and 400 became 100. The others are
hospitals, states, schools, districts, and clients that differ gradually, not at all, or completely.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import ndimage
from torch import Tensor

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.natural import Regions
from fedkin.data.sources.eicu import EicuDemo
from fedkin.data.sources.images import Cifar10, Digits, FashionMnist, Mnist, Qmnist
from fedkin.data.sources.tpt48 import Tpt48
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.keys import rng
from fedkin.learning.models import Mlp
from fedkin.running.suites import Entry, Suite

TESTS = 60
_TRIPLES = 10
_PAIRS = ((3, 5), (7, 9), (2, 6), (0, 1), (4, 8))
_RING = ((3, 5, 7), (6, 7, 9), (0, 2, 6), (0, 1, 8), (4, 5, 8))

Rows = Any
_TEXTS: dict[Any, Any] = dict.fromkeys(
    ("sex", "Minority", "denomina", "schoolNR", "natitest", "mixedgra", "use", "district", "livch", "urban"), str
)
# Numbers of persons, a second target, and columns that repeat others.
_LEFT_OUT = ("pupilNR", "woman", "aritPOST", "classNR", "IQ.ver.cen", "avg.IQ.ver.cen", "grpSiz.cen")


# -- dealing ----------------------------------------------------------------------------------------------------------


def client(
    number: int, pool: Dataset, train: Rows, test: Rows, group: Any,
    change: Callable[[Tensor, Tensor], Any] | None = None,
) -> Client:  # fmt: skip
    """A client with these rows of the pool; change: the function that changes its stored inputs and labels."""

    def samples(rows: Rows) -> Samples:
        where = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        x, y = pool.train.x[where], pool.train.y[where]
        if change is not None:
            x, y = change(x, y)
        return Samples(x.float() if pool.scale is None else pool.scale(x, torch.float32), y)

    return Client(f"client-{number:03d}", samples(train), samples(test), None if group is None else f"group-{group}")


def deal(pool: Dataset, sizes: Sequence[int], seed: int, tests: int = TESTS) -> list[tuple[Rows, Rows]]:
    """(training rows, test rows) of each client, without replacement."""
    order = rng(seed, "deal").permutation(len(pool.train))
    edges = np.cumsum([0, *(size + tests for size in sizes)])
    if edges[-1] > len(order):
        raise ValueError(f"{pool.name} has {len(order)} samples, and {edges[-1]} were asked for")
    return [
        (order[start : start + size], order[start + size : start + size + tests])
        for start, size in zip(edges, sizes, strict=False)
    ]


def uneven(clients: int, low: int, high: int) -> list[int]:
    """Sizes between two numbers, log-uniform; the same for every seed."""
    return [int(size) for size in np.exp(rng(0, "sizes").uniform(np.log(low), np.log(high), clients))]


def masked(x: Tensor, white: float, share: float, draw: np.random.Generator) -> Tensor:
    """The same 2 x 2 squares of all images are white."""
    half = x.shape[2] // 2
    mask = np.kron(draw.random((half, half)) < share, np.ones((2, 2), dtype=bool))
    return torch.where(torch.from_numpy(mask), torch.tensor(white, dtype=x.dtype), x)


def rotated(
    pool: Dataset, sizes: Sequence[int], seed: int, *, turns: Sequence[int] = (0, 1, 2, 3), mask: float = 0.0,
    tests: int = TESTS,
) -> Federation:  # fmt: skip
    """Images in quarter turns; with `mask`, each client also has a mask of its own."""
    made = []
    for number, (train, test) in enumerate(deal(pool, sizes, seed, tests)):
        turn = turns[number % len(turns)]

        def change(x: Tensor, y: Tensor, turn: int = turn, number: int = number) -> tuple[Tensor, Tensor]:
            x = torch.rot90(x, turn, (2, 3))
            return (masked(x, pool.white, mask, rng(seed, "mask", number)) if mask else x), y

        made.append(client(number, pool, train, test, turn, change))
    return Federation(made, pool.task, "rotated")


def by_class(pool: Dataset, clients: int, n: int, sets: Any, seed: int) -> Federation:
    """Clients that have only the classes of their group, in equal numbers."""
    chosen = triples(seed) if sets == "triples" else sets
    left = [list(rng(seed, "class", c).permutation(rows)) for c, rows in enumerate(pool.train.by_class(10))]
    made = []
    for number in range(clients):
        classes = chosen[number % len(chosen)]
        parts = []
        for size, purpose in ((n, "train"), (TESTS, "test")):
            counts = [size // len(classes) + (place < size % len(classes)) for place in range(len(classes))]
            rows = [left[c].pop() for c, count in zip(classes, counts, strict=True) for _ in range(count)]
            parts.append(rng(seed, purpose, number).permutation(rows))
        made.append(client(number, pool, *parts, number % len(chosen)))
    return Federation(made, pool.task, "by class")


def triples(seed: int) -> list[tuple[int, ...]]:
    """Ten different triples of classes."""
    found: set[tuple[int, ...]] = set()
    draw = rng(seed, "triples")
    while len(found) < _TRIPLES:
        found.add(tuple(sorted(draw.choice(10, 3, replace=False).tolist())))
    return sorted(found)


def dirichlet(pool: Dataset, clients: int, n: int, alpha: float, seed: int) -> Federation:
    """Class shares of its own at each client, the same in its training and test samples."""
    left = [list(rng(seed, "class", c).permutation(rows)) for c, rows in enumerate(pool.train.by_class(10))]
    made = []
    for number in range(clients):
        draw = rng(seed, "shares", number)
        counts = draw.multinomial(n + TESTS, draw.dirichlet([alpha] * 10))
        rows = draw.permutation([left[c].pop() for c in range(10) for _ in range(counts[c]) if left[c]])
        made.append(client(number, pool, rows[: len(rows) - TESTS], rows[len(rows) - TESTS :], None))
    return Federation(made, pool.task, "dirichlet")


def iid(pool: Dataset, sizes: Sequence[int], seed: int) -> Federation:
    """One distribution for all."""
    made = [client(number, pool, *rows, 0) for number, rows in enumerate(deal(pool, sizes, seed))]
    return Federation(made, pool.task, "iid")


def swapped(pool: Dataset, clients: int, n: int, seed: int) -> Federation:
    """Four groups: labels unchanged, 0 and 1 swapped, 2 and 3 swapped, 4 and 5 swapped."""
    maps = torch.arange(10).repeat(4, 1)
    for g in (1, 2, 3):
        maps[g, [2 * g - 2, 2 * g - 1]] = torch.tensor([2 * g - 1, 2 * g - 2])
    made = []
    for number, rows in enumerate(deal(pool, [n] * clients, seed)):
        made.append(client(number, pool, *rows, number % 4, lambda x, y, g=number % 4: (x, maps[g][y])))
    return Federation(made, pool.task, "swapped labels")


def different(pool: Dataset, clients: int, n: int, seed: int) -> Federation:
    """Each client sees the pixels in an order of its own: nobody can share a model with anybody."""
    made = []
    for number, rows in enumerate(deal(pool, [n] * clients, seed)):
        order = torch.from_numpy(rng(seed, "pixels", number).permutation(pool.train.x[0].numel()))
        change = partial(_permuted, order)
        made.append(client(number, pool, *rows, number, change))
    return Federation(made, pool.task, "all different")


def own_swaps(pool: Dataset, clients: int, n: int, seed: int) -> Federation:
    """Each client swaps one pair of labels of its own."""
    made = []
    for number, rows in enumerate(deal(pool, [n] * clients, seed)):
        one, other = rng(seed, "pair", number).choice(10, 2, replace=False).tolist()
        names = torch.arange(10)
        names[one], names[other] = other, one
        made.append(client(number, pool, *rows, None, lambda x, y, names=names: (x, names[y])))
    return Federation(made, pool.task, "own swaps")


def own_angles(pool: Dataset, clients: int, n: int, seed: int) -> Federation:
    """Each client's images are turned by an angle of its own, spread evenly over the circle."""
    made = []
    for number, rows in enumerate(deal(pool, [n] * clients, seed)):
        change = partial(_turned, 360 * number / clients)
        made.append(client(number, pool, *rows, None, change))
    return Federation(made, pool.task, "own angles")


def _turned(angle: float, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(ndimage.rotate(x.numpy(), angle, axes=(2, 3), reshape=False, order=1)), y


def _permuted(order: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.flatten(1)[:, order].reshape(x.shape), y


def loner(pool: Dataset, clients: int, n: int, seed: int) -> Federation:
    """One distribution for all but one client, whose images are turned by a quarter."""
    made = []
    for number, rows in enumerate(deal(pool, [n] * clients, seed)):
        alone = number == clients // 2
        change = (lambda x, y: (torch.rot90(x, 1, (2, 3)), y)) if alone else None
        made.append(client(number, pool, *rows, int(alone), change))
    return Federation(made, pool.task, "a loner")


# -- data sets that state their clients -------------------------------------------------------------------------------


def writers(pool: Dataset, count: int, seed: int, turns: Sequence[int] = ()) -> Federation:
    """Real writers of 60 digits or more, the same for every seed; a quarter of each writer's digits are for testing."""
    assert pool.train.client is not None
    names, counts = np.unique(pool.train.client, return_counts=True)
    made = []
    for number, name in enumerate(rng(0, "writers").permutation(names[counts >= TESTS])[:count]):
        rows = rng(seed, "split", name).permutation(np.flatnonzero(pool.train.client == name))
        tests = len(rows) // 4
        turn = turns[number % len(turns)] if turns else None
        change = None if turn is None else (lambda x, y, turn=turn: (torch.rot90(x, turn, (2, 3)), y))
        made.append(client(number, pool, rows[tests:], rows[:tests], turn, change))
    return Federation(made, pool.task, "writers")


def writers_and_turns(pool: Dataset, plain: Dataset, seed: int) -> Federation:
    """Twenty writers, and twenty clients with images of all writers in four quarter turns."""
    one, other = writers(pool, 20, seed), rotated(plain, [100] * 20, seed)
    turned = [replace(each, id=f"turned-{each.id}") for each in other.values()]
    return Federation([replace(each, group=None) for each in (*one.values(), *turned)], pool.task, "writers, turns")


def table(root: Path, name: str, seed: int) -> Federation:
    """Schools that predict a test score, or districts that predict a yes; a quarter of the rows are for tests."""
    frame = pd.read_csv(root / "schools" / f"{name}.csv", dtype=_TEXTS)
    left_out = [column for column in _LEFT_OUT if column in frame]
    target, owner = ("langPOST", "schoolNR") if name == "bdf" else ("use", "district")
    kind = "regression" if name == "bdf" else "classification"
    return Federation.from_frame(
        frame, target=target, client=owner, leave_out=left_out, kind=kind, test_fraction=0.25, seed=seed
    )


def hospitals(root: Path, seed: int) -> Federation:
    """eICU demo: hospitals, small ones joined within their region; 40 % of each hospital's patients are for testing."""
    dataset = EicuDemo(test_fraction=0.4, seed=seed).load(root)
    made = Regions(min_size=40).build(dataset, 0)
    cut = [replace(one, test=one.test.take(np.arange(min(len(one.test), TESTS)))) for one in made.values()]
    return Federation(cut, made.task, "eicu")


def states(root: Path, seed: int, tests: int = 4) -> Federation:
    """TPT-48: all 48 states take part; the same four of the twelve years are for testing in all of them."""
    dataset = Tpt48(test_years=0).load(root)
    assert dataset.train.client is not None
    assert dataset.train.group is not None
    years = rng(seed, "years").permutation(12)
    made = []
    for name in sorted(set(dataset.train.client.tolist())):
        rows = np.flatnonzero(dataset.train.client == name)
        train, test = (dataset.samples("train", rows[np.sort(part)]) for part in (years[tests:], years[:tests]))
        made.append(Client(name, train, test, str(dataset.train.group[rows[0]])))
    return Federation(made, Task.regression(6, (6,)), "tpt48")


# -- all of them ------------------------------------------------------------------------------------------------------


def entries(root: Path) -> dict[str, Entry]:
    """{name: entry}; data are read only when the federation of an entry is made."""

    @cache
    def pool(name: str) -> Dataset:
        if name == "digits":
            both = Digits().load(root)
            x, y = (torch.cat([getattr(part, what) for part in (both.train, both.test)]) for what in "xy")
            return replace(both, train=replace(both.train, x=x, y=y))
        kinds: dict[str, Any] = {"mnist": Mnist(), "fashion": FashionMnist(), "cifar": Cifar10()}
        return kinds.get(name, Qmnist(split="mnist")).load(root)

    def of(make: Callable[..., Federation], name: str, *given: Any, **more: Any) -> Entry:
        return entry(lambda seed: make(pool(name), *given, seed=seed, **more))

    def entry(make: Callable[[int], Federation], rates: tuple[float, ...] = (0.03, 0.06, 0.12)) -> Entry:
        return Entry(make, Mlp(hidden=(32,)), rates)

    def of_table(name: str) -> Entry:
        return Entry(partial(table, root, name), "linear", (0.01, 0.03, 0.1))

    forty = [100] * 40
    return {
        "digits rot4 16x100": entry(lambda seed: rotated(pool("digits"), [100] * 16, seed, tests=12), (0.1, 0.3, 0.5)),
        "MNIST rot4 40x100": of(rotated, "mnist", forty),
        "MNIST rot4 40x30": of(rotated, "mnist", [30] * 40),
        "MNIST rot4 40x20..500": of(rotated, "mnist", uneven(40, 20, 500)),
        "MNIST rot4 own mask 40x100": of(rotated, "mnist", forty, mask=0.15),
        "MNIST rot2 8x100": of(rotated, "mnist", [100] * 8, turns=(0, 1)),
        "Fashion rot4 40x100": of(rotated, "fashion", forty),
        "CIFAR rot4 40x200": of(rotated, "cifar", [200] * 40),
        "Fashion disjoint 40x100": of(by_class, "fashion", 40, 100, _PAIRS),
        "MNIST ring 40x100": of(by_class, "mnist", 40, 100, _RING),
        "CIFAR disjoint 40x100": of(by_class, "cifar", 40, 100, _PAIRS),
        "CIFAR ring 40x300": of(by_class, "cifar", 40, 300, _RING),
        "MNIST swap4 40x100": of(swapped, "mnist", 40, 100),
        "MNIST iid 40x100": of(iid, "mnist", forty),
        "CIFAR iid 40x20..500": of(iid, "cifar", uneven(40, 20, 500)),
        "Fashion iid 100x50": of(iid, "fashion", [50] * 100),
        "Fashion 10 triples 100x60": of(by_class, "fashion", 100, 60, "triples"),
        "MNIST Dirichlet .3 40x100": of(dirichlet, "mnist", 40, 100, 0.3),
        "writers 40": of(writers, "qmnist", 40),
        "writers rot2 40": of(writers, "qmnist", 40, turns=(0, 1)),
        "MNIST all different 40x100": of(different, "mnist", 40, 100),
        "MNIST a loner 40x100": of(loner, "mnist", 40, 100),
        "MNIST own swaps 40x100": of(own_swaps, "mnist", 40, 100),
        "MNIST own angles 40x100": of(own_angles, "mnist", 40, 100),
        "writers 20": of(writers, "qmnist", 20),
        "writers 100": of(writers, "qmnist", 100),
        "writers and turns 20+20": entry(lambda seed: writers_and_turns(pool("qmnist"), pool("mnist"), seed)),
        "schools": of_table("bdf"),
        "districts": of_table("Contraception"),
        "eICU hospitals": entry(partial(hospitals, root), (0.03, 0.1, 0.3)),
        "TPT-48 states": entry(partial(states, root), (0.01, 0.03, 0.1)),
    }


SUITE = Suite(
    "full", entries(Path(os.environ.get("FEDKIN_DATA", "data"))), Path(__file__).with_name("full_suite.jsonl.gz"),
    controls=(),
)  # fmt: skip
