"""Replies of which a mean is enough are added as they come: same bits, same records, few replies in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import pytest
import torch

from fedkin.engines import LocalEngine, LoopbackEngine, Setup, summing
from fedkin.errors import MethodError
from fedkin.flow import Ask, ClientFlow, Fit, Message, ServerFlow, phase
from fedkin.forms import COUNT, NET
from fedkin.learning import Mean
from fedkin.methods.blocks.one_model import OneModel, State
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedprox import FedProx
from fedkin.views import ClientView, ServerView
from support import small_federation, small_setup

METHODS = [FedAvg(), FedAvg(weights="equal"), FedProx(mu=0.1)]


class Count(OneModel):
    """A mean of models with the weights that `weigh` gives; `fails` says who fails, `diverges` who sends infinity."""

    name: ClassVar[str] = "count"
    title: ClassVar[str] = "Count"
    paper: ClassVar[str] = "none"
    kind: ClassVar[Literal["global"]] = "global"
    travels: ClassVar[str] = "the whole model"

    fails: tuple[str, ...] = ()
    diverges: tuple[str, ...] = ()
    rising: bool = False
    alive: ClassVar[list[int]] = []
    models: ClassVar[list[weakref.ref[Any]]] = []

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        if client.id in self.fails:
            raise ValueError("out of order")
        fitted = yield from Fit(message.params)
        if client.id in self.diverges:
            return Message(params={name: t * float("inf") for name, t in fitted.params.items()}, n=client.size)
        first = next(iter(fitted.params.values()))
        self.alive.append(sum(ref() is not None for ref in self.models))
        self.models.append(weakref.ref(first))
        return Message(params=fitted.params, n=client.size + client.round * self.rising)

    def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
        mean = Mean("params", "n")
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled}, mean)
        server.info = {"n": float(sum(reply["n"] for reply in replies.values()))}
        if replies:
            server.state["params"] = mean.of(replies)


class Summed:
    """Counts the exchanges that were summed, and those that were computed again."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.taken = self.again = 0
        take, again = summing.Summing.take, summing.Summing._again

        def counted_take(*args: Any) -> Any:
            self.taken += 1
            return take(*args)

        def counted_again(*args: Any) -> Any:
            self.again += 1
            return again(*args)

        patch.setattr(summing.Summing, "take", counted_take)
        patch.setattr(summing.Summing, "_again", counted_again)


def ran(setup: Setup, rounds: int = 3, engine: type[LocalEngine] = LocalEngine) -> tuple[Any, ...]:
    """All that a run tells: outcomes, information, scores, the state."""
    made = engine(setup)
    try:
        told: list[Any] = []
        for number in range(1, rounds + 1):
            outcome = made.round(number)
            told.append((outcome.sampled, outcome.traffic, outcome.samples, outcome.inferred, outcome.flops))
            told.append(dict(made.server.info))
        return told, made.evaluate(), {n: t.clone() for n, t in made.server.state["params"].items()}
    finally:
        made.close()


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert one[0] == other[0]
    assert one[1] == other[1]
    assert list(one[2]) == list(other[2])
    for name, tensor in one[2].items():
        assert torch.equal(tensor, other[2][name])


@pytest.mark.parametrize("mode", ["one-by-one", "stacked", pytest.param("workers", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_bits_and_records_are_those_of_replies_that_are_held(
    method: FedAvg, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = small_setup(method, per_round=4).having(mode=mode, workers=2)
    held = ran(setup)
    monkeypatch.setattr(summing, "LEAST", 0)
    counts = Summed(monkeypatch)
    same(ran(setup), held)
    assert (counts.taken, counts.again) == (3, 0)


def test_loopback_holds_replies_and_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summing, "LEAST", 0)
    setup = small_setup(FedAvg(), per_round=4)
    counts = Summed(monkeypatch)
    there = ran(setup, engine=LoopbackEngine)
    assert counts.taken == 0
    assert all(torch.equal(ran(setup)[2][name], tensor) for name, tensor in there[2].items())


@pytest.mark.parametrize("wrong", [{"fails": 1}, {"diverges": 1}, {"fails": 1, "diverges": 2}, {"fails": 0}])
def test_clients_that_fail_or_are_refused_change_no_bit(wrong: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    ids = sorted(small_federation())
    setup = small_setup(Count(**{name: (ids[place], ids[-1]) for name, place in wrong.items()}))
    held = ran(setup)
    monkeypatch.setattr(summing, "LEAST", 0)
    counts = Summed(monkeypatch)
    same(ran(setup), held)
    # Who failed in the first round is expected to fail again.
    assert (counts.taken, counts.again) == (3, 1)


def test_weights_that_are_not_guessed_are_added_again_and_then_held(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(Count(rising=True))
    held = ran(setup, rounds=5)
    monkeypatch.setattr(summing, "LEAST", 0)
    counts = Summed(monkeypatch)
    same(ran(setup, rounds=5), held)
    assert (counts.taken, counts.again) == (3, 3)


def test_clients_that_all_fail_leave_the_model_and_raise_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(Count(fails=tuple(small_federation())))
    with pytest.raises(Exception, match="out of order") as held:
        ran(setup)
    monkeypatch.setattr(summing, "LEAST", 0)
    with pytest.raises(type(held.value), match="out of order") as summed:
        ran(setup)
    assert str(summed.value) == str(held.value)


def test_few_replies_are_alive_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def most(least: int) -> int:
        monkeypatch.setattr(summing, "LEAST", least)
        Count.alive.clear()
        Count.models.clear()
        gc.collect()
        ran(small_setup(Count()), rounds=1)
        return max(Count.alive)

    clients = len(small_federation())
    assert most(1 << 40) == clients - 1
    assert most(0) <= 2


@pytest.mark.parametrize(
    "wrong",
    [{"faults": {"dropout": 0.4}}, {"faults": {"garbage": 0.3}}, {"faults": {"late": 0.3}}, {"faults": {"crash": 0.3}},
     {"min_replies": 1}, {"adversaries": "sign-flip:0.3"}, {"adversaries": "alie:0.3"}, {"alone": True}],
    ids=str,
)  # fmt: skip
def test_what_needs_single_replies_holds_them(wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(FedAvg()).having(**wrong)
    held = None if "alone" in wrong else ran(setup)
    monkeypatch.setattr(summing, "LEAST", 0)
    counts = Summed(monkeypatch)
    engine = LocalEngine(setup)
    engine.round(1)
    assert counts.taken == 0
    if held is not None:
        same(ran(setup), held)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean:0.2", "norm-clipping"])
def test_other_rules_than_the_mean_get_single_models(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(FedAvg(aggregate=rule))
    held = ran(setup)
    monkeypatch.setattr(summing, "LEAST", 0)
    counts = Summed(monkeypatch)
    same(ran(setup), held)
    assert counts.taken == 0


def test_a_phase_that_answers_only_once_is_told_what_it_must_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Once(Count):
        @phase(params=NET, n=COUNT)
        def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
            asked.append(client.id)
            if asked.count(client.id) > 1:
                raise ValueError("again")
            fitted = yield from Fit(message.params)
            return Message(params=fitted.params, n=client.size + 1)

    monkeypatch.setattr(summing, "LEAST", 0)
    with pytest.raises(MethodError, match="asked the same again: a phase must depend on nothing but"):
        ran(small_setup(Once()))


def test_a_mean_of_another_kind_is_refused() -> None:
    class Wrong(Count):
        def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
            yield from Ask("train", {id: self.offer(server, id) for id in sampled}, "params")  # type: ignore[arg-type]

    with pytest.raises(MethodError, match=r"phase 'train': mean is a str: write mean=Mean\('params', 'n'\)"):
        LocalEngine(small_setup(Wrong())).round(1)
