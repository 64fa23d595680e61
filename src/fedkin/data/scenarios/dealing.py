"""Functions that several scenarios share: random parts, sizes with a given sum, sets of classes, matching test sets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator

from fedkin.data.dataset import Dataset, Split
from fedkin.errors import ConfigError
from fedkin.federation.arrays import Floats, Ints
from fedkin.keys import rng

Sets = tuple[tuple[int, ...], ...]


def deal(dataset: Dataset, split: Split, clients: int, per_client: int | None, seed: int) -> list[Ints]:
    """The rows of a split in random parts, one per client, with sizes that differ by at most one.

    per_client: the number of samples for each client. Raises ConfigError if there are too few samples.
    """
    total = len(dataset.part(split))
    have = f"the {total} {split} samples of {dataset.name}; at most"
    if per_client is not None and clients * per_client > total:
        asked = f"{clients} clients x {per_client}"
        raise ConfigError(f"scenario.{split}_per_client: {asked} are more than {have} {total // clients}")
    if clients > total:
        raise ConfigError(f"scenario.clients: {clients} clients cannot share {have} {total}")
    order = rng(seed, "deal", split).permutation(total)
    return [part[:per_client] for part in np.array_split(order, clients)]


def apportion(total: int, shares: npt.NDArray[np.generic]) -> Ints:
    """`total` as whole numbers proportional to `shares`, by largest remainder; ties go to the first.

    >>> apportion(10, np.array([1, 1, 4])).tolist()
    [2, 2, 6]
    """
    exact = shares / shares.sum() * total
    sizes: Ints = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: total - int(sizes.sum())]] += 1
    return sizes


def raised_to_least(sizes: Ints, least: Ints | int) -> Ints:
    """The sizes with none below `least` and the same total: what is missing is taken from the largest.

    The largest are cut down to a common level, but not below their own `least`. `least` may differ between
    positions; its total must not be above that of the sizes.

    >>> raised_to_least(np.array([0, 9, 1, 6]), 2).tolist()
    [2, 6, 2, 6]
    """
    floor = np.broadcast_to(np.asarray(least, np.int64), sizes.shape)
    missing = int(np.maximum(floor - sizes, 0).sum())
    raised = np.maximum(sizes, floor)
    if missing == 0:
        return raised

    def freed(level: int) -> Ints:
        over: Ints = np.maximum(raised - np.maximum(floor, level), 0)
        return over

    # The highest level that frees enough; the surplus is given back, one each.
    level = bisect_left(range(int(sizes.max()) + 1), True, key=lambda level: freed(level).sum() < missing) - 1
    given = freed(level)
    given[np.flatnonzero(given)[: int(given.sum()) - missing]] -= 1
    lowered: Ints = raised - given
    return lowered


def dirichlet(draw: np.random.Generator, alpha: float, shape: tuple[int, int]) -> Floats:
    """[n, k] rows from the symmetric Dirichlet(alpha) of k shares, valid for any alpha > 0.

    Uses logarithms of gamma variables, because for small alpha these variables are too small for a float:
    Gamma(a) is Gamma(a + 1) U^(1/a).
    """
    # Smaller values overflow in the logarithms, and at this value one share already is 1.
    alpha = max(alpha, 1e-300)
    logs = np.log(draw.standard_gamma(alpha + 1, shape)) + np.log1p(-draw.random(shape)) / alpha
    shares: Floats = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def rows_of(owner: Ints, clients: int) -> list[Ints]:
    """The rows of every client, ascending; owner: [N] the client of each row, or -1 for none."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(clients + 1)))[1:-1]


def tests_like(dataset: Dataset, train: Sequence[Ints], per_client: int | None, seed: int, purpose: str) -> list[Ints]:
    """Test rows of every client in the proportions of its training labels.

    train: the training rows of every client. Without `per_client` each class of the test split is divided among
    its owners, no sample twice; as long as there are enough, a client gets at least one of its most common class.
    With `per_client` every client draws that number by itself: two clients may draw the same sample. Raises
    ConfigError if a class has fewer samples than a client would draw.
    """
    pools = dataset.test.by_class(dataset.task.classes)
    labels, have = dataset.train.y.numpy(), np.array([len(rows) for rows in pools])
    counts = np.stack([np.bincount(labels[rows], minlength=len(pools)) for rows in train])
    if per_client is None:
        return dealt(shuffled_classes(dataset, "test", seed, purpose), _shared_out(have, counts))
    wanted = np.stack([apportion(per_client, own) for own in counts])
    if (wanted > have).any():
        label = int(np.argmax((wanted > have).any(axis=0)))
        share = f"a client's share would be {wanted[:, label].max()} test samples of class {label}"
        raise ConfigError(f"scenario.test_per_client: {share}, but {dataset.name} has {have[label]}; take fewer")
    drawn = []
    for client, sizes in enumerate(wanted):
        draw = rng(seed, purpose, "tests", client)
        own = [draw.choice(pools[label], sizes[label], replace=False) for label in np.flatnonzero(sizes)]
        drawn.append(np.sort(np.concatenate(own)))
    return drawn


def _shared_out(have: Ints, counts: Ints) -> Ints:
    """[clients, classes] how many samples of each class a client gets, in the proportions of these counts."""
    shares, main = np.zeros_like(counts), counts.argmax(axis=1)
    for label in np.flatnonzero(counts.any(axis=0) & (have > 0)):
        owners = np.flatnonzero(counts[:, label])
        sizes = apportion(have[label], counts[owners, label])
        least = (main[owners] == label).astype(np.int64)
        shares[owners, label] = raised_to_least(sizes, least) if least.sum() <= have[label] else sizes
    return shares


def blocks(total: int, count: int, shared: int = 0) -> list[tuple[int, ...]]:
    """Classes 0..total-1 in `count` consecutive blocks of about equal width; neighbours have `shared` in common.

    >>> blocks(10, 2, shared=4)
    [(0, 1, 2, 3, 4, 5, 6), (3, 4, 5, 6, 7, 8, 9)]
    """
    widths = [len(part) for part in np.array_split(np.arange(total + (count - 1) * shared), count)]
    starts = np.cumsum([0, *(width - shared for width in widths[:-1])]).tolist()
    return [tuple(range(start, start + width)) for start, width in zip(starts, widths, strict=True)]


def check_classes(setting: str, sets: Sequence[Sequence[int]], dataset: Dataset) -> None:
    """Raise ConfigError for a class that the data set does not have."""
    total = dataset.task.classes
    odd = next((label for own in sets for label in own if label >= total), None)
    if odd is not None:
        raise ConfigError(f"scenario.{setting}: {dataset.name} has no class {odd}; its classes are 0 to {total - 1}")


def check_least(clients: int, min_size: int, dataset: Dataset) -> None:
    """Raise ConfigError if the training split has fewer than `min_size` samples for each of the clients."""
    total = len(dataset.train)
    if clients * min_size > total:
        raise ConfigError(
            f"scenario.clients: {clients} clients with at least {min_size} training samples each are more than the "
            f"{total} of {dataset.name}; at most {total // min_size} clients, or a smaller min_size"
        )


def checked_sets(sets: Sets, apart: bool = False) -> Sets:
    """Return `sets`; raises ValueError unless all are different; with `apart`, also if two have a class in common."""
    if not sets or any(not one or len(set(one)) < len(one) or min(one) < 0 for one in sets):
        raise ValueError("expected a list of lists of classes, none empty, no class twice in a list")
    if apart and len(set().union(*sets)) < sum(map(len, sets)):
        raise ValueError("expected a list of lists of classes, none empty, no class twice")
    if len({tuple(sorted(one)) for one in sets}) < len(sets):
        raise ValueError("two of them have the same classes: they would be one")
    return sets


# Types of settings: a list of classes for each group; in DisjointSets no class is in two lists.
ClassSets = Annotated[Sets, AfterValidator(checked_sets)]
DisjointSets = Annotated[Sets, AfterValidator(partial(checked_sets, apart=True))]


def groups_of_clients(clients: int, groups: int, what: str) -> list[int]:
    """The group of each client, spread evenly; raises ConfigError for fewer clients than groups."""
    if clients < groups:
        raise ConfigError(f"scenario.clients: {clients} clients for {groups} {what}; at least {groups}")
    return [client % groups for client in range(clients)]


def owners_of(member: Sequence[int], sets: Sequence[Sequence[int]], total: int) -> Ints:
    """[clients, classes] 1 for the classes that a client's group owns; member: each client's group."""
    return np.array([np.isin(np.arange(total), sets[group]) for group in member], np.int64)


def shuffled_classes(dataset: Dataset, split: Split, seed: int, purpose: str) -> list[Ints]:
    """The rows of every class, shuffled."""
    pools = dataset.part(split).by_class(dataset.task.classes)
    return [rng(seed, purpose, "rows", split, label).permutation(rows) for label, rows in enumerate(pools)]


def dealt(pools: Sequence[Ints], counts: Ints) -> list[Ints]:
    """The rows of every client, ascending: the next counts[client, pool] rows of each pool."""
    parts = [np.split(pool, np.cumsum(own))[:-1] for pool, own in zip(pools, counts.T, strict=True)]
    return [np.sort(np.concatenate(own)) for own in zip(*parts, strict=True)]
