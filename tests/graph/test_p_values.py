"""The tests that grouping rests on, against independent answers: simulation, scipy's Ward, least squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.cluster.hierarchy import linkage, to_tree

from fedkin.errors import GraphError
from fedkin.graph.moments import Moments
from fedkin.graph.p_values import (
    clump_p,
    interaction,
    null_p,
    outlier_p,
    same_p,
    share_outlier_p,
    split_p,
    top_p,
    ward,
)
from fedkin.graph.signatures import repeats, serial
from fedkin.graph.stacks import stacked

SPECTRA = {"one": [1.0], "equal": [1.0] * 30, "falling": [1 / j for j in range(1, 40)], "spiked": [5.0] + [0.2] * 40}


def traces(spectrum: Any) -> Any:
    return [np.sum(np.power(spectrum, j)) for j in (1, 2, 3)]


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("df", [1, 9, 200])
def test_tail_of_the_quadratic_form(name: str, df: int) -> None:
    spectrum = np.array(SPECTRA[name])
    draws = np.random.default_rng(df).chisquare(df, size=(40_000, len(spectrum))) @ spectrum
    for level in (0.05, 0.01, 0.001):
        share = np.mean(null_p(draws, df, traces(spectrum)) < level)
        # Four deviations of a share of 40,000, and a fifth for the gamma that stands for the sum.
        assert abs(share - level) < 4 * np.sqrt(level / 40_000) + 0.2 * level


def test_few_degrees_of_freedom_behind_the_traces_are_an_f_test() -> None:
    # One eigenvalue, estimated from 60 samples: Q / t1 / df is F distributed.
    rng = np.random.default_rng(0)
    q, t = rng.chisquare(10, 40_000), rng.chisquare(60, 40_000) / 60
    found = np.array([null_p(a, 10, [b, b**2, b**3], 60) for a, b in zip(q[:8000], t[:8000], strict=True)])
    assert 0.035 < np.mean(found < 0.05) < 0.065
    assert np.mean(stats.chi2.sf(q / t, 10) < 0.05) > 0.065


def iid(rng: Any, k: int, width: int, spectrum: Any, n: Any) -> Any:
    return rng.normal(size=(k, width)) * np.sqrt(spectrum) / np.sqrt(n)[:, None]


@pytest.mark.parametrize("test", [same_p, outlier_p, top_p])
@pytest.mark.parametrize("k", [2, 6, 40])
def test_levels_with_unequal_sizes(test: Any, k: int) -> None:
    rng = np.random.default_rng([k, len(test.__name__)])
    spectrum = 1 / np.arange(1, 25.0)
    p = []
    for _ in range(400):
        n = np.exp(rng.uniform(np.log(10), np.log(10_000), k))
        p.append(test(3 + iid(rng, k, 24, spectrum, n), n, traces(spectrum)))
    assert np.mean(np.array(p) < 0.05) < 0.05 + 3 * np.sqrt(0.05 / 400)
    assert np.mean(np.array(p) < 0.005) <= 0.02


def test_each_look_sees_its_own_kind_of_departure() -> None:
    rng = np.random.default_rng(0)
    n, spectrum = np.full(60, 100.0), np.ones(80)
    m = iid(rng, 60, 80, spectrum, n)
    assert min(same_p(m, n, traces(spectrum)), outlier_p(m, n, traces(spectrum)), top_p(m, n, traces(spectrum))) > 0.001
    broad = m + iid(rng, 60, 80, spectrum * 0.3, n)
    assert same_p(broad, n, traces(spectrum)) < 1e-6
    one = m.copy()
    one[3] += 1 / np.sqrt(80)
    assert outlier_p(one, n, traces(spectrum)) < 1e-6 < same_p(one, n, traces(spectrum))
    line = m.copy()
    line[:30, 0] += 0.35
    assert top_p(line, n, traces(spectrum)) < 1e-6 < same_p(line, n, traces(spectrum))


def test_a_client_that_varies_more_is_measured_by_itself() -> None:
    m = np.zeros((20, 5))
    m[0] = 0.5
    n, own = np.full(20, 30.0), np.full(20, 5.0)
    assert outlier_p(m, n, [5, 5, 5], own=own) == outlier_p(m, n, [5, 5, 5]) < 1e-4
    own[0] = 50
    assert outlier_p(m, n, [5, 5, 5], own=own) > 0.1


def test_clients_without_samples_weigh_nothing() -> None:
    rng = np.random.default_rng(1)
    m, n = rng.normal(size=(7, 4)), np.array([5, 5, 0, 5, 5, 5, 5.0])
    have = n > 0
    for test in (same_p, outlier_p, top_p):
        assert test(m, n, [4, 4, 4]) == test(m[have], n[have], [4, 4, 4])
    assert same_p(m[:1], n[:1], [4, 4, 4]) == 1
    with pytest.raises(GraphError, match="counts of at least 0"):
        same_p(m, -n, [4, 4, 4])


@given(st.integers(2, 40), st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_ward_without_weights_is_scipys(k: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(k, 3))
    mine, theirs = ward(x, np.ones(k)), linkage(x, "ward")
    np.testing.assert_array_equal(mine[:, [0, 1, 3]], theirs[:, [0, 1, 3]])
    np.testing.assert_allclose(mine[:, 2], theirs[:, 2] ** 2 / 2)


def test_a_weight_is_that_many_equal_points() -> None:
    rng = np.random.default_rng(0)
    x, n = rng.normal(size=(12, 3)), rng.integers(1, 6, size=12)
    mine = ward(x, n)[:, 2]
    theirs = linkage(np.repeat(x, n, axis=0), "ward")[:, 2] ** 2 / 2
    np.testing.assert_allclose(mine, theirs[-11:])
    np.testing.assert_allclose(theirs[:-11], 0, atol=1e-12)


def test_a_branch_of_the_tree_is_the_tree_of_the_branch() -> None:
    rng = np.random.default_rng(1)
    x, n = rng.normal(size=(60, 4)), rng.uniform(1, 9, size=60)
    root: Any = to_tree(ward(x, n))
    for child in (root.get_left(), root.get_right()):
        rows = np.sort(child.pre_order())
        if len(rows) > 2:
            alone: Any = to_tree(ward(x[rows], n[rows]))
            inside = {frozenset(half.pre_order()) for half in (child.get_left(), child.get_right())}
            assert {frozenset(rows[half.pre_order()]) for half in (alone.get_left(), alone.get_right())} == inside


def by_least_squares(client: Any, kind: Any, n: Any, m: Any) -> tuple[float, float, int, int]:
    """Sums of squares gained by clients and left over, with their degrees of freedom, by explicit designs."""
    one_hot = [np.equal.outer(v, np.unique(v)).astype(float) for v in (kind, client)]
    w = np.sqrt(n)[:, None]
    left, rank = [], []
    for design in (one_hot[0], np.hstack(one_hot)):
        fit = np.linalg.lstsq(design * w, m * w, rcond=None)
        left.append(np.square(m * w - design * w @ fit[0]).sum())
        rank.append(int(fit[2]))
    return left[0] - left[1], left[1], rank[1] - rank[0], len(n) - rank[1]


@given(st.integers(0, 999), st.floats(0.2, 1))
@settings(max_examples=30, deadline=None)
def test_interaction_is_two_way_analysis_of_variance(seed: int, filled: float) -> None:
    rng = np.random.default_rng(seed)
    client, kind = np.nonzero(rng.random((7, 5)) < filled)
    if len(client) < 3:
        return
    n, m = rng.uniform(3, 40, len(client)), rng.normal(size=(len(client), 6)) / 3
    gained, left, d0, d1 = by_least_squares(client, kind, n, m)
    found = interaction(client, kind, n, m, [6, 6, 6])
    if d0:
        assert found.offset_p == pytest.approx(float(null_p(gained, d0, [6, 6, 6])), rel=1e-6, abs=1e-12)
    if d1:
        assert found.concept_p == pytest.approx(float(null_p(left, d1, [6, 6, 6])), rel=1e-6, abs=1e-12)
    assert found.offset_p == 1 or d0
    assert found.concept_p == 1 or d1


def federation(rng: Any, spread: Any, offset: float = 0.0, concept: float = 0.0) -> Any:
    """Cells of 15 clients and 6 classes, some empty, classes that vary by `spread`; P = 8."""
    client, kind, n, m, scatter = [], [], [], [], []
    classes = rng.normal(size=(6, 8))
    for i in range(15):
        shift = offset * rng.normal(size=8)
        for c in range(6):
            count = int(rng.integers(0, 25))
            if count < 3:
                continue
            x = classes[c] + shift + concept * rng.normal(size=8) + spread[c] * rng.normal(size=(count, 8))
            client.append(i)
            kind.append(c)
            n.append(count)
            m.append(x.mean(axis=0))
            scatter.append(np.square(x - x.mean(axis=0)).sum())
    counts, of = np.array(n, dtype=float), np.array(kind)
    t1 = np.sum(scatter) / (counts - 1).sum()
    free = np.bincount(of, counts - 1, 6)
    own = np.bincount(of, scatter, 6) / free
    return interaction(client, kind, counts, np.array(m), [t1, t1**2 / 8, t1**3 / 64], own[of], free[of])


@pytest.mark.slow
def test_levels_of_the_interaction_where_classes_vary_differently() -> None:
    rng = np.random.default_rng(0)
    found = [federation(rng, np.linspace(0.3, 2, 6)) for _ in range(300)]
    for name in ("offset_p", "concept_p"):
        share = np.mean([getattr(one, name) < 0.05 for one in found])
        assert 0.01 < share < 0.05 + 3 * np.sqrt(0.05 / 300)


@pytest.mark.slow
def test_offset_and_concept_are_told_apart_and_measured() -> None:
    rng = np.random.default_rng(1)
    shifted = [federation(rng, np.ones(6), offset=0.5) for _ in range(60)]
    assert max(one.offset_p for one in shifted) < 1e-9
    assert np.mean([one.concept_p < 0.05 for one in shifted]) < 0.15
    assert np.mean([one.offset_size for one in shifted]) == pytest.approx(0.25, rel=0.15)
    changed = [federation(rng, np.ones(6), concept=0.5) for _ in range(60)]
    assert max(one.concept_p for one in changed) < 1e-9
    assert np.mean([one.concept_size for one in changed]) == pytest.approx(0.25, rel=0.25)


def clients(rng: Any, k: int, apart: float, noise: float = 0.2) -> Any:
    n = np.exp(rng.uniform(np.log(20), np.log(200), k))
    truth = rng.normal(size=(k, 6)) * [1, 0.7, 0.5, 0.3, 0.2, 0.1]
    truth[:, 0] += apart * (np.arange(k) % 2)
    return truth + rng.normal(size=(k, 6)) * np.sqrt(noise / n)[:, None], n, np.eye(6) * noise


@pytest.mark.slow
@pytest.mark.parametrize("k", [24, 170])
def test_clumps_are_found_and_gaussian_spread_is_not(k: int) -> None:
    rng = np.random.default_rng(k)
    times = 8 if k < 100 else 1
    none = [clump_p(*clients(rng, k, 0.0), seed=s)[0] for s in range(times)]
    assert np.sum(np.array(none) <= 0.05) <= times // 4
    two = [clump_p(*clients(rng, k, 9.0), seed=s)[0] for s in range(times)]
    assert np.max(two) <= 0.01


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_a_time_series_has_the_effect_of_its_correlation(rho: float) -> None:
    rng = np.random.default_rng(1)
    effects = []
    for _ in range(40):
        x = rng.normal(size=(400, 10))
        for t in range(1, 400):
            x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * x[t]
        effect, sure = serial(x - x.mean(axis=0))
        assert sure
        effects.append(effect)
    # The estimate errs on the safe side: the largest of several block lengths, and a deviation more.
    truth = (1 + rho) / (1 - rho)
    assert truth < np.mean(effects) < 2 * truth


def test_rows_that_repeat() -> None:
    x = np.random.default_rng(0).normal(size=(30, 5)).astype("f4")
    assert repeats(x) == 1
    assert repeats(np.vstack([x, x])) == 2
    assert repeats(np.vstack([x, x[:1], x[:1]])) == pytest.approx((9 + 29) / 32)
    assert repeats(np.vstack([x, x])[:, :2]) == 2
    # Categories are equal by chance.
    assert repeats(np.random.default_rng(0).integers(3, size=(60, 3))) == 1


def p_of(rng: np.random.Generator, clients: int, n: int) -> float:
    """p-value for clients of one mean."""
    scale = np.linspace(1.5, 0.5, 12)
    parts = [Moments.of(rng.normal(size=(n, 12)) * scale, seed=1) for _ in range(clients)]
    means, halves = np.stack([m.mean for m in parts]), np.stack([m.half for m in parts])
    traces = [np.sum(scale**2), np.sum(scale**4), np.sum(scale**6)]
    return split_p(means, halves, np.full(clients, float(n)), traces)


@pytest.mark.slow
def test_it_rejects_one_mean_no_more_often_than_it_says() -> None:
    rng = np.random.default_rng(0)
    found = np.array([p_of(rng, 12, 20) for _ in range(400)])
    # Three deviations of a binomial share above the level.
    for level in (0.05, 0.2):
        assert np.mean(found < level) < level + 3 * np.sqrt(level * (1 - level) / 400)


# -- shares of classes ------------------------------------------------------------------------------------------------


def test_the_outlier_among_shares_is_the_exact_test_of_two_classes() -> None:
    """Fisher's exact test of each client against all others, one-sided, doubled, times the number of clients."""
    events, n = np.array([0, 1, 9, 2, 0]), np.array([12, 30, 25, 40, 7])
    tails = [
        stats.fisher_exact(np.array([[e, m - e], [events.sum() - e, n.sum() - m - events.sum() + e]]), side).pvalue
        for e, m in zip(events, n, strict=True) for side in ("less", "greater")
    ]  # fmt: skip
    shares = np.stack([events / n, 1 - events / n], axis=1)
    assert share_outlier_p(shares, n) == pytest.approx(5 * 2 * min(tails))
    assert share_outlier_p(shares[[2]], n[[2]]) == 1.0


@pytest.mark.parametrize(("sizes", "share"), [([30] * 20, 0.05), ([50] * 10 + [2000], 0.02), ([100] * 20, 0.03)])
def test_rare_classes_keep_the_level(sizes: list[int], share: float) -> None:
    """With the tails of a chi-square, 1 to 2 % of these p-values are below .001."""
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        moments = []
        for n in sizes:
            y = (rng.random(n) < share).astype(float)
            moments.append(Moments.of(np.stack([y, 1 - y], axis=1)))
        found.append(stacked(moments, shares=True).p(0.0, 0))
    assert (np.array(found) < 0.001).sum() <= 2
    assert (np.array(found) < 0.05).mean() < 0.1
