"""What leaves a client under `[privacy]`: clipping and noise, message by message, without an engine."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from fedkin.engines.privacy import Normal, Part, Privacy, clipped_fields, keyed, released, system_noise
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.flow import Message
from fedkin.forms import COUNT, HEAD, NET, Bytes, Each, Fields, Integer, Integers, Number, Shaped, Sums
from fedkin.learning.net import Net
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedbn import FedBN
from fedkin.settings import parse
from support import small_setup

FIELDS: Fields = {"params": NET, "anchors": Shaped("owned", "width"), "loss": Number(low=0), "n": COUNT}


def sent(message: Message, privacy: Privacy, normal: Normal, base: dict[str, torch.Tensor] | None = None) -> Message:
    found = clipped_fields("train", message, [FIELDS])
    parts = [Part(name, form, message[name], base if name == "params" else None) for name, form in found.items()]
    return released(message, parts, privacy, normal)


def norm(*tensors: torch.Tensor) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


@given(seed=st.integers(0, 2**20), scale=st.floats(1e-6, 1e6), clip=st.floats(1e-3, 1e3))
@settings(max_examples=60, deadline=None)
def test_what_leaves_is_at_most_as_long_as_the_bound(seed: int, scale: float, clip: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    base = {"body.w": torch.randn(3, 4, generator=draw), "head.b": torch.randn(5, generator=draw)}
    params = {name: tensor + scale * torch.randn(tensor.shape, generator=draw) for name, tensor in base.items()}
    anchors = scale * torch.randn(2, 3, generator=draw)
    message = Message(params=params, anchors=anchors, loss=0.0, n=7)
    came = sent(message, Privacy(clip=clip, noise=0), np.zeros, base)
    moved = [came.params[name].double() - base[name].double() for name in base]
    # The last digit of a sum of floats is lost: of a base of about 1, and of what moved.
    assert norm(*moved, came["anchors"]) <= clip * (1 + 1e-6) + 1e-6 * (1 + scale)
    before = norm(*(params[name].double() - base[name].double() for name in base), anchors)
    if before <= clip:
        assert all(came.params[name] is params[name] for name in base)  # not one bit is touched
        assert came["anchors"] is anchors


def test_together_or_each_for_itself() -> None:
    message = Message(params={"w": torch.full((4,), 3.0)}, anchors=torch.full((1, 4), 4.0), n=7)
    one = sent(message, Privacy(clip=5.0, noise=0), np.zeros)
    assert norm(one.params["w"], one["anchors"]) == pytest.approx(5)
    assert norm(one.params["w"]) == pytest.approx(3)  # directions stay: 6 and 8, together 10, become 3 and 4
    apart = sent(message, Privacy(clip={"params": 1.0, "anchors": 2.0}, noise=0), np.zeros)
    assert norm(apart.params["w"]) == pytest.approx(1)
    assert norm(apart["anchors"]) == pytest.approx(2)
    assert apart["n"] == one["n"] == 7


@pytest.mark.parametrize("source", [keyed(3), system_noise])
def test_noise_has_the_stated_deviation_and_is_normal(source: Any) -> None:
    clip, noise = 0.7, 1.3
    message = Message(anchors=torch.zeros(200, 1000, dtype=torch.float64), n=7)
    came = sent(message, Privacy(clip=clip, noise=noise), source("a", 1, "train 0"))
    draws = came["anchors"].numpy().ravel() / (noise * 2 * clip)  # sensitivity 2 C: a vector turned round
    assert abs(draws.std() - 1) < 5 / math.sqrt(2 * draws.size)
    assert abs(draws.mean()) < 5 / math.sqrt(draws.size)
    # One of 10,000 honest draws fails this; the keyed one is always the same.
    assert stats.kstest(draws, "norm").pvalue > 1e-4


def test_deviation_of_fields_that_are_noised_apart() -> None:
    message = Message(params={"w": torch.zeros(50_000)}, anchors=torch.zeros(50, 1000), n=7)
    came = sent(message, Privacy(clip={"params": 1.0, "anchors": 3.0}, noise=0.5), keyed(0)("a", 1, "train 0"))
    assert float(came.params["w"].std()) == pytest.approx(1.0, rel=0.02)
    assert float(came["anchors"].std()) == pytest.approx(3.0, rel=0.02)
    assert not torch.equal(came.params["w"] * 3, came["anchors"].reshape(-1))  # other draws


def test_types_shapes_and_limits_stay() -> None:
    message = Message(anchors=torch.ones(2, 3, dtype=torch.float64), loss=0.001, n=7)
    came = sent(message, Privacy(clip=1.0, noise=10.0), lambda count: np.full(count, -1.0))
    assert (came["anchors"].dtype, came["anchors"].shape) == (torch.float64, (2, 3))
    assert repr(came["loss"]) == "0.0"  # declared as at least 0, and noise would make it negative


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_never_leave(bad: float) -> None:
    message = Message(anchors=torch.tensor([[1.0, bad]]), n=7)
    with pytest.raises(MethodError, match="anchors: not all numbers are finite"):
        sent(message, Privacy(clip=1.0, noise=1.0), np.zeros)


def test_which_fields_are_protected() -> None:
    declared: Fields = {
        "head": HEAD, "n": COUNT, "classes": Integers("owned"), "row": Each(Number()), "extra": Shaped(3) | None,
        "whole": Shaped(3, dtype=torch.int64),
    }  # fmt: skip
    assert list(clipped_fields("train", list(declared), [declared])) == ["head", "row", "extra"]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (Sums(3, dtype=torch.float64), "sums or moments"),
        (Bytes(100), "sums or moments"),
        (Integer(high=lambda at: len(at.asked)), "a choice that a client makes"),
        (Integer(high=lambda at: len(at.asked)) | None, "a choice that a client makes"),
    ],
)
def test_what_cannot_be_protected_is_refused(form: Any, words: str) -> None:
    with pytest.raises(RunError, match=rf"phase 'train': 'x' (holds|is) {words}") as refused:
        clipped_fields("train", ["x"], [{"x": form}])
    assert "\n" not in str(refused.value)


def test_undeclared_fields_are_refused() -> None:
    for declared in (None, [], [{"n": COUNT}]):
        with pytest.raises(RunError, match=r"phase 'hello'.*does not declare x"):
            clipped_fields("hello", ["x"], declared)


def test_a_table_of_norms_names_every_field() -> None:
    message = Message(params={"w": torch.ones(2)}, anchors=torch.ones(1, 2), n=7)
    with pytest.raises(RunError, match=r"privacy.clip: no norm for the field 'anchors'"):
        sent(message, Privacy(clip={"params": 1.0}, noise=1.0), np.zeros)


# -- where noise comes from ---------------------------------------------------------------------------------------


def test_keyed_noise_is_the_same_again_and_differs_for_every_release() -> None:
    one = keyed(3)("a", 1, "train 0")(5)
    assert (keyed(3)("a", 1, "train 0")(5) == one).all()
    others = [keyed(seed)(id, round, "train 0") for seed, id, round in ((4, "a", 1), (3, "b", 1), (3, "a", 2))]
    for other in (*others, keyed(3)("a", 1, "train 1")):
        assert (other(5) != one).all()


def test_nothing_but_the_operating_system_enters_secret_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (system_noise("a", 1, "train 0")(5) != system_noise("a", 1, "train 0")(5)).all()
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(1, count + 1)))
    torch.manual_seed(1)
    one = system_noise("a", 1, "train 0")(5)
    torch.manual_seed(2)
    assert (system_noise("b", 9, "other")(5) == one).all()


@pytest.mark.parametrize("byte", [0, 255])
def test_secret_noise_is_finite_for_any_bytes(monkeypatch: pytest.MonkeyPatch, byte: int) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: bytes([byte]) * count)
    assert np.isfinite(system_noise("a", 1, "train 0")(3)).all()


# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"clip": 1.0}, "noise: missing"),
        ({"noise": 1.0}, "clip: missing"),
        ({"clip": 0.0, "noise": 1.0}, "above 0"),
        ({"clip": {}, "noise": 1.0}, "above 0"),
        ({"clip": {"params": -1.0}, "noise": 1.0}, "above 0"),
        ({"clip": 1.0, "noise": -1.0}, "noise"),
        ({"clip": 1.0, "noise": 1.0, "delta": 1.0}, "delta"),
        ({"clip": 1.0, "noise": 0.0, "budget": 3.0}, "no epsilon is finite"),
        ({"clip": 1.0, "nois": 1.0}, "noise"),
        ({"clip": True, "noise": 1.0}, "no true or false"),
    ],
)
def test_settings_that_make_no_sense(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(Privacy, table, "privacy")


def test_running_statistics_are_refused_unless_they_stay_at_the_clients() -> None:
    setup = replace(small_setup(FedBN()), privacy=Privacy(clip=1.0, noise=0.0))
    net = Net(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), nn.Linear(3, 4))
    assert replace(setup, net=net).sent_buffers(net) == []
    with pytest.raises(ConfigError, match=r"clients send running statistics \(body\.1\.running_mean\)"):
        replace(setup, method=FedAvg(), net=net)
