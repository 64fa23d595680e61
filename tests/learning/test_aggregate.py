"""Means of parameters: term by term, and of the answer to an Ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedkin.errors import MethodError
from fedkin.learning.aggregate import AveragedReplies, Mean, RunningMean, weighted_mean


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


def averaged(mean: Mean, replies: Mapping[str, Any]) -> AveragedReplies:
    running = RunningMean()
    for id in sorted(replies):
        running.add(replies[id][mean.field], mean.weigh(replies[id]))
    return AveragedReplies(mean, {id: {"n": reply["n"]} for id, reply in replies.items()}, running)


def test_an_answer_gives_the_mean_that_was_asked_for_and_no_other() -> None:
    replies = {"b": {"params": {"w": torch.tensor([1.0])}, "n": 1}, "a": {"params": {"w": torch.tensor([5.0])}, "n": 3}}
    assert Mean().of(replies)["w"].tolist() == [4.0]
    assert Mean("params", None).of(replies)["w"].tolist() == [3.0]
    answer = averaged(Mean(), replies)
    assert Mean().of(answer)["w"].tolist() == Mean().of(answer)["w"].tolist() == [4.0]
    assert sorted(answer) == ["a", "b"]
    with pytest.raises(MethodError, match="sum to 0"):
        Mean().of({"a": {"params": {"w": torch.ones(1)}, "n": 0}})
    for other in (Mean("params", None), Mean("nonsense", "n")):
        with pytest.raises(MethodError, match=r"the answer is to Ask\(..., mean=Mean\(field='params', weight='n'\)\)"):
            other.of(answer)
    with pytest.raises(AttributeError):
        answer.pop("a")  # type: ignore[attr-defined]
    none: tuple[Mapping[str, Any], ...] = ({}, AveragedReplies(Mean(), {}, RunningMean()))
    for nothing in none:
        with pytest.raises(MethodError, match="a weighted mean over 0 clients"):
            Mean().of(nothing)
