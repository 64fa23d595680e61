"""Skew of targets: scipy's tests, their level, and effects between 0 and 1."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedkin.data.inspection import of_classes, of_numbers


def test_p_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    counts = {f"c{k}": rng.multinomial(80 + 30 * k, [0.5, 0.3, 0.2]) for k in range(5)}
    found = of_classes(counts)
    assert found is not None
    assert found.p == pytest.approx(stats.chi2_contingency(list(counts.values()), correction=False).pvalue)
    values = {id: rng.normal(size=20 + 5 * k) for k, id in enumerate(counts)}
    ranks = of_numbers(values)
    assert ranks is not None
    assert ranks.p == pytest.approx(stats.kruskal(*values.values()).pvalue)


@pytest.mark.slow
def test_one_distribution_is_rarely_called_skewed_also_with_rare_classes() -> None:
    rng = np.random.default_rng(1)
    said = wrong = 0
    for _ in range(200):
        found = of_classes({f"c{k}": rng.multinomial(40, [0.9, 0.08, 0.02]) for k in range(6)})
        assert found is not None
        said += found.p < 0.05
        wrong += found.matters
    assert said <= stats.binom.ppf(0.999, 200, 0.05)
    assert wrong <= 2


def test_effects_are_those_of_the_extremes() -> None:
    apart = of_classes({"a": [500, 0], "b": [0, 500]})
    alike = of_classes({"a": [50, 50], "b": [500, 500]})
    assert apart is not None
    assert alike is not None
    assert apart.effect > 0.99
    assert (alike.effect, alike.p) == (0.0, 1.0)
    shifted = of_numbers({"a": np.arange(100.0), "b": np.arange(100.0) + 1000, "c": np.arange(100.0)})
    assert shifted is not None
    assert shifted.matters
    assert shifted.apart[0] == "b"


def test_what_cannot_be_compared_is_none() -> None:
    assert of_classes({"a": [3, 4]}) is None
    assert of_classes({"a": [3, 0], "b": [5, 0]}) is None
    assert of_classes({"a": [3, 2], "b": [0, 0]}) is None
    assert of_numbers({"a": [1.0, 2.0], "b": []}) is None
    assert of_numbers({"a": [1.0, 1.0], "b": [1.0]}) is None
