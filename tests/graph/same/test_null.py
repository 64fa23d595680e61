"""p-values against simulation of their own null, and against scipy where it has the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedkin.errors import GraphError
from fedkin.graph import null_p, outlier_p, same_p, top_p

SPECTRA = {
    "one": [1.0],
    "equal": [1.0] * 30,
    "falling": [1 / j for j in range(1, 40)],
    "spiked": [5.0] + [0.2] * 40,
}


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


def test_equal_eigenvalues_are_a_chi_square() -> None:
    q = np.linspace(1, 60, 9)
    np.testing.assert_allclose(null_p(q, 5, [4, 4, 4]), stats.chi2.sf(q, 20), rtol=1e-9)


def test_few_degrees_of_freedom_behind_the_traces_are_an_f_test() -> None:
    # One eigenvalue, estimated from 60 samples: Q / t1 / df is F distributed.
    rng = np.random.default_rng(0)
    q, t = rng.chisquare(10, 40_000), rng.chisquare(60, 40_000) / 60
    found = np.array([null_p(a, 10, [b, b**2, b**3], 60) for a, b in zip(q[:8000], t[:8000], strict=True)])
    assert 0.035 < np.mean(found < 0.05) < 0.065
    assert np.mean(stats.chi2.sf(q / t, 10) < 0.05) > 0.065


def test_no_spread_at_all() -> None:
    assert null_p(0.0, 3, [0, 0, 0]) == 1
    assert null_p(1.0, 3, [0, 0, 0]) == 0


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
