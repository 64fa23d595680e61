"""Sizes that add up, and rows by owner."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.dealing import apportion, dirichlet, raised_to_least, tests_like

Make = Callable[..., Dataset]
tests_like.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.slow
@given(st.integers(0, 500), st.lists(st.floats(0, 10), min_size=1, max_size=20))
def test_apportion(total: int, shares: list[float]) -> None:
    assume(sum(shares) > 1e-3)
    sizes = apportion(total, np.array(shares))
    assert sizes.sum() == total
    assert np.abs(sizes - np.array(shares) / sum(shares) * total).max() < 1


def lifted_one_by_one(sizes: list[int], least: list[int]) -> list[int]:
    """The same, a sample at a time: whoever has most above its least gives, the last of those to have most."""
    sizes = list(sizes)
    for place, wanted in enumerate(least):
        while sizes[place] < wanted:
            giver = max((k for k in range(len(sizes)) if sizes[k] > least[k]), key=lambda k: sizes[k])
            sizes[giver] -= 1
            sizes[place] += 1
    return sizes


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), min_size=1, max_size=12))
def test_lifted(pairs: list[tuple[int, int]]) -> None:
    sizes, least = (np.array(column) for column in zip(*pairs, strict=True))
    assume(least.sum() <= sizes.sum())
    found = raised_to_least(sizes, least)
    assert found.sum() == sizes.sum()
    assert (found >= least).all()
    assert sorted(found.tolist()) == sorted(lifted_one_by_one(sizes.tolist(), least.tolist()))
    assert found.tolist() == sizes.tolist() or (sizes < least).any(), "nothing is moved without need"
    assert (found <= np.maximum(sizes, least)).all(), "only those below their least get any"


@pytest.mark.parametrize("alpha", [0.3, 1.0, 20.0])
def test_dirichlet_is_the_distribution(alpha: float) -> None:
    shares = dirichlet(np.random.default_rng(1), alpha, (4000, 5))
    assert shares.sum(axis=1) == pytest.approx(1)
    # The first share of a symmetric Dirichlet in five dimensions is Beta(alpha, 4 alpha).
    assert stats.kstest(shares[:, 0], stats.beta(alpha, 4 * alpha).cdf).pvalue > 0.01


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-6, 1e8, 1e300])
def test_dirichlet_at_its_ends(alpha: float) -> None:
    shares = dirichlet(np.random.default_rng(0), alpha, (50, 30))
    assert np.isfinite(shares).all()
    assert shares.sum(axis=1) == pytest.approx(1)
    if alpha < 1:
        assert shares.max(axis=1) == pytest.approx(1, abs=1e-3)
    else:
        assert shares == pytest.approx(1 / 30, rel=0.01)


@given(st.integers(0, 1000), st.integers(1, 30))
def test_tests_in_proportion(labelled: Make, seed: int, clients: int) -> None:
    dataset = labelled(30, 40, classes=4)
    counts = np.random.default_rng(seed).integers(0, 9, (clients, 4)) + np.eye(4, dtype=np.int64)[seed % 4]
    pools = dataset.train.by_class(4)
    train = [np.concatenate([rows[:n] for rows, n in zip(pools, own, strict=True)]) for own in counts]
    parts = tests_like(dataset, train, None, seed, "t")
    everyone = np.concatenate(parts)
    assert len(np.unique(everyone)) == len(everyone)
    for label in range(4):
        got = np.array([(dataset.test.y.numpy()[own] == label).sum() for own in parts])
        if counts[:, label].sum():
            assert got.sum() == 40, "a class is dealt out in full"
        assert (got[counts[:, label] == 0] == 0).all(), "only classes that a client trains on"
    assert min(map(len, parts)) >= 1
    drawn = tests_like(dataset, train, 7, seed, "t")
    for own, part in zip(counts, drawn, strict=True):
        assert len(set(part.tolist())) == 7
        got = np.bincount(dataset.test.y.numpy()[part], minlength=4)
        assert np.abs(got - own / own.sum() * 7).max() < 1
