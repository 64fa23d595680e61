"""Means of parameters, and robust rules against NumPy and SciPy written out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from fedkin.errors import MethodError
from fedkin.flow import AveragedReplies, Mean, Message
from fedkin.learning.aggregate import RULES, RunningMean, aggregated, rule_of, weighted_mean
from robust_rules import RULES as WRITTEN_OUT
from robust_rules import Array, by_hand

ROBUST = sorted(set(RULES) - {"mean", "norm-clipping"})


def by_name(params: dict[str, dict[str, Tensor]], weights: dict[str, float]) -> dict[str, Tensor]:
    """The mean as it is defined: one tensor after another, each over all clients in the order of their ids."""
    ids = sorted(params)
    if len(ids) == 1:
        return params[ids[0]]
    total = float(sum(weights[id] for id in ids))
    means = {}
    for name, first in params[ids[0]].items():
        if first.is_floating_point():
            terms = [params[id][name].to(torch.promote_types(first.dtype, torch.float32)) for id in ids]
            sum_ = torch.zeros_like(terms[0])
            for id, term in zip(ids, terms, strict=True):
                sum_.add_(term, alpha=weights[id])
            means[name] = (sum_ / total).to(first.dtype)
        else:
            means[name] = torch.stack([params[id][name] for id in ids]).amax(0)
    return means


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 2**32), min_size=1, max_size=7),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), st.integers(0, 2**31),
)  # fmt: skip
def test_terms_one_after_another_have_the_bits_of_the_mean(
    weights: dict[str, int], dtype: torch.dtype, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    weights[min(weights)] += 1
    params = {
        id: {
            "w": torch.randn(3, 5, generator=draw, dtype=torch.float64).to(dtype).t(),
            "n": torch.randint(-9, 9, (), generator=draw),
            "flags": torch.rand(4, generator=draw) < 0.5,
        }
        for id in weights
    }
    expected = by_name(params, {**weights})
    running = RunningMean()
    for id in sorted(weights):
        running.add(params[id], weights[id])
    for made in (weighted_mean(params, weights), running.mean()):
        assert list(made) == list(expected)
        for name, tensor in made.items():
            assert torch.equal(tensor, expected[name])
            assert (tensor.dtype, tensor.stride()) == (expected[name].dtype, expected[name].stride())


def test_an_answer_gives_the_mean_that_was_asked_for_and_no_other() -> None:
    replies = {id: Message(params={"w": torch.tensor([w])}, n=n) for id, w, n in (("b", 1.0, 1), ("a", 5.0, 3))}
    assert Mean().of(replies)["w"].tolist() == [4.0]
    assert Mean("params", None).of(replies)["w"].tolist() == [3.0]
    answer = AveragedReplies(Mean(), replies)
    assert Mean().of(answer)["w"].tolist() == Mean().of(answer)["w"].tolist() == [4.0]
    assert sorted(answer) == ["a", "b"]
    with pytest.raises(MethodError, match="sum to 0"):
        Mean().of({"a": {"params": {"w": torch.ones(1)}, "n": 0}})
    for other in (Mean("params", None), Mean("nonsense", "n")):
        with pytest.raises(MethodError, match=r"the answer is to Ask\(..., mean=Mean\(field='params', weight='n'\)\)"):
            other.of(answer)
    with pytest.raises(AttributeError):
        answer.pop("a")  # type: ignore[attr-defined]
    none: tuple[Mapping[str, Any], ...] = ({}, AveragedReplies(Mean()))
    for nothing in none:
        with pytest.raises(MethodError, match="a weighted mean over 0 clients"):
            Mean().of(nothing)


# -- robust rules -----------------------------------------------------------------------------------------------------


def draws(m: int = 9, d: int = 5, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(m, d))


def combined(x: Array, rule: str, start: Array | None = None, weights: Array | None = None) -> Array:
    """Through parameters of two tensors and a counter, in float64; the first client's counter is the largest."""

    def params(row: Array, count: int = 0) -> dict[str, torch.Tensor]:
        flat = torch.from_numpy(np.array(row))
        return {"a": flat[:2].reshape(2, 1), "n": torch.tensor(count), "b": flat[2:]}

    ids = [f"c{k}" for k in range(len(x))]
    w = np.ones(len(x)) if weights is None else weights
    made = aggregated(
        {id: params(x[k], len(x) - k) for k, id in enumerate(ids)}, dict(zip(ids, w.tolist(), strict=True)), rule,
        None if start is None else params(start),
    )  # fmt: skip
    assert list(made) == ["a", "n", "b"]
    assert made["n"] == len(x)
    assert made["a"].shape == (2, 1)
    return np.concatenate([made["a"].numpy().ravel(), made["b"].numpy()])


@pytest.mark.parametrize("m", [1, 2, 3, 6, 9])
@pytest.mark.parametrize("rule", [rule for rule in WRITTEN_OUT if not rule.startswith("geometric")])
def test_rules_are_those_written_out(rule: str, m: int) -> None:
    x, start = draws(m, seed=m), draws(1, seed=5)[0]
    w = np.random.default_rng(m).integers(1, 4, m).astype(float)
    np.testing.assert_allclose(combined(x, rule, start, w), by_hand(rule, list(x), w.tolist(), start), atol=1e-12)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_no_name_decides_between_equal_scores(m: int) -> None:
    """Of up to four vectors two always have the lowest score."""
    x, start = draws(m, seed=m), np.zeros(5)
    ends = [combined(x[list(order)], "krum", start) for order in itertools.permutations(range(m))]
    np.testing.assert_array_equal(ends, [ends[0]] * len(ends))


def test_geometric_median_has_the_smallest_sum_of_distances() -> None:
    x, w = draws(7, seed=3), np.array([1.0, 2, 3, 1, 1, 2, 1])

    def total(z: Array) -> float:
        return float((w * np.sqrt(np.square(x - z).sum(1))).sum())

    found = minimize(total, x.mean(0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20000})
    np.testing.assert_allclose(combined(x, "geometric-median", weights=w), found.x, atol=1e-5)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_order_of_clients_does_not_matter(rule: str) -> None:
    x, start = draws(5, seed=6), np.zeros(5)
    ends = [
        combined(x[list(order)], rule, start) for order in itertools.islice(itertools.permutations(range(5)), 0, 99, 7)
    ]
    np.testing.assert_allclose(ends, [ends[0]] * len(ends), atol=1e-7)


@pytest.mark.parametrize("size", [1e3, 1e9, 1e30])
@pytest.mark.parametrize("rule", [*ROBUST, "norm-clipping"])
def test_a_minority_moves_the_result_by_a_bounded_amount(rule: str, size: float) -> None:
    x = draws(10, seed=8)
    clean = combined(x, rule, np.zeros(5))
    x[[2, 5]] = [[size] * 5, [size, -size, size, size, -size]]
    assert np.linalg.norm(combined(x, rule, np.zeros(5)) - clean) < 4
    assert np.linalg.norm(combined(x, "mean") - clean) > size / 20


def test_without_weight_a_client_is_left_out_and_without_any_it_is_refused() -> None:
    x = draws(4)
    np.testing.assert_allclose(combined(x, "median", weights=np.array([1.0, 1, 1, 0])), np.median(x[:3], axis=0))
    with pytest.raises(MethodError, match="sum to 0"):
        combined(x, "median", weights=np.zeros(4))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("medain", "'median'"), ("median:1", "takes no number"), ("krum:0.5", "below 0.5"), ("krum:x", "below 0.5"),
        ("norm-clipping:0", "above 0"), ("norm-clipping:inf", "above 0"), ("trimmed-mean:", "below 0.5"),
    ],
)  # fmt: skip
def test_wrong_rules_are_refused(spec: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rule_of(spec)
