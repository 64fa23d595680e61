"""Replies of which a mean is enough are added as they come: same bits, same records, few replies in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pytest
import torch

from fedkin import codec
from fedkin.engines import LocalEngine, LoopbackEngine, Setup, summing
from fedkin.errors import MethodError
from fedkin.federation import Federation, Samples
from fedkin.federation.samples import Change
from fedkin.flow import Ask, ClientFlow, Fit, Message, ServerFlow, phase
from fedkin.forms import COUNT, HEAD, NET
from fedkin.learning import Mean, head_of
from fedkin.methods.blocks.one_model import OneModel, State
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedprox import FedProx
from fedkin.views import ClientView, ServerView
from support import small_federation, small_setup

METHODS = [FedAvg(), FedAvg(weights="equal"), FedProx(mu=0.1)]


class Count(OneModel):
    """A mean of models with the weights that `weigh` gives; `fails` says who fails, `diverges` who sends infinity.

    late: who fails after its training. only: the round in which these things happen (0: all). A client's state counts
    its rounds, and lists them.
    """

    name: ClassVar[str] = "count"
    title: ClassVar[str] = "Count"
    paper: ClassVar[str] = "none"
    kind: ClassVar[Literal["global"]] = "global"
    travels: ClassVar[str] = "the whole model"

    fails: tuple[str, ...] = ()
    diverges: tuple[str, ...] = ()
    rising: bool = False
    late: tuple[str, ...] = ()
    only: int = 0
    alive: ClassVar[list[int]] = []
    models: ClassVar[list[weakref.ref[Any]]] = []

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        bad = self.only in (0, client.round)
        client.state["rounds"] = client.state.get("rounds", 0) + 1
        client.state.setdefault("listed", []).append(client.round)
        if bad and client.id in self.fails:
            raise ValueError("out of order")
        fitted = yield from Fit(message.params)
        if bad and client.id in self.late:
            raise ValueError("out of order, later")
        if bad and client.id in self.diverges:
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
        states = codec.encode({id: dict(state) for id, state in sorted(made.site.states.items())})
        return told, made.evaluate(), {n: t.clone() for n, t in made.server.state["params"].items()}, states
    finally:
        made.close()


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert one[0] == other[0]
    assert one[1] == other[1]
    assert list(one[2]) == list(other[2])
    for name, tensor in one[2].items():
        assert torch.equal(tensor, other[2][name])
    assert one[3] == other[3]


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


@pytest.mark.parametrize("mode", ["one-by-one", "stacked"])
@pytest.mark.parametrize("only", [0, 1, 2])
@pytest.mark.parametrize(
    "wrong", [{"fails": 1}, {"diverges": 1}, {"fails": 1, "diverges": 2}, {"fails": 0}, {"late": 2}]
)
def test_clients_that_fail_or_are_refused_change_no_bit_and_no_state(
    wrong: dict[str, int], only: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = sorted(small_federation())
    method = Count(**{name: (ids[place], ids[-1]) for name, place in wrong.items()}, only=only)
    setup = small_setup(method).having(mode=mode)
    held = ran(setup)
    monkeypatch.setattr(summing, "LEAST", 0)
    counts = Summed(monkeypatch)
    same(ran(setup), held)
    # Who failed once is expected to answer, and who failed twice is expected to fail again.
    assert (counts.taken, counts.again) == (3, 1 if only else 2)


class Twice(Count):
    """Asks twice in a round, so that what a client draws depends on how often it was asked."""

    def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
        yield from super().round(server, sampled)
        yield from super().round(server, sampled)


def test_the_draws_of_a_second_request_are_those_of_replies_that_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(Twice(late=(sorted(small_federation())[0],), only=1))
    held = ran(setup)
    monkeypatch.setattr(summing, "LEAST", 0)
    counts = Summed(monkeypatch)
    same(ran(setup), held)
    assert counts.again > 0


def test_a_failure_from_before_the_exchange_leaves_no_reply_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unused(FedAvg):
        name: ClassVar[str] = "unused"
        broken: ClassVar[bool] = False

        def use(self, client: ClientView[Any], message: Message) -> Any:
            if self.broken:
                raise ValueError("cannot be used")
            return message.params

    def ends() -> Any:
        engine = LocalEngine(small_setup(Unused()))
        engine.round(1)
        Unused.broken = True
        engine.features(sorted(small_federation())[2])
        Unused.broken = False
        return engine.round(2).traffic, engine.server.state["params"]

    held = ends()
    monkeypatch.setattr(summing, "LEAST", 0)
    summed = ends()
    assert summed[0] == held[0]
    assert all(torch.equal(tensor, held[1][name]) for name, tensor in summed[1].items())


@pytest.mark.parametrize("wrong", ["more", "nan"])
def test_a_second_reply_that_is_another_one_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ids = sorted(small_federation())

    class Other(Count):
        @phase(params=NET, n=COUNT)
        def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
            asked.append(client.id)
            fitted = yield from Fit(message.params)
            second = client.id == ids[2] and asked.count(client.id) > 1
            params = (
                {name: t * float("nan") for name, t in fitted.params.items()} if second and wrong == "nan" else None
            )
            return Message(params=params or fitted.params, n=client.size + 1 + (second and wrong == "more"))

    monkeypatch.setattr(summing, "LEAST", 0)
    with pytest.raises(MethodError, match=f"client '{ids[2]}' .* asked the same again: a phase must depend on nothing"):
        ran(small_setup(Other()), rounds=1)


def test_sizes_that_drift_are_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(samples: Samples, rows: int) -> Samples:
        own = samples.own()
        return Samples(own.x[:rows], own.y[:rows])

    clients = [
        replace(
            client,
            changes=tuple(
                Change(round, cut(client.train, len(client.train) - round), client.test, client.group)
                for round in (2, 3)
            ),
        )
        for client in small_federation().values()
    ]
    setup = small_setup(FedAvg(), Federation(clients, small_federation().task))
    held = ran(setup)
    monkeypatch.setattr(summing, "LEAST", 0)
    counts = Summed(monkeypatch)
    same(ran(setup), held)
    assert (counts.taken, counts.again) == (3, 0)


def test_what_is_known_of_one_mean_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    class Both(Count):
        def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
            for mean in (Mean("params", "n"), Mean("params", None)):
                replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled}, mean)
                server.state["params"] = mean.of(replies)

    monkeypatch.setattr(summing, "LEAST", 0)
    counts = Summed(monkeypatch)
    ran(small_setup(Both()))
    assert (counts.taken, counts.again) == (6, 0)


def test_replies_are_held_below_the_bound_of_what_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Heads(Count):
        @phase(params=HEAD, n=COUNT)
        def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
            fitted = yield from Fit(message.params)
            return Message(params=head_of(fitted.params), n=client.size)

        def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
            mean = Mean("params", "n")
            replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled}, mean)
            server.state["params"] = {**server.state["params"], **mean.of(replies)}

    setup = small_setup(Heads())
    sent = len(setup.federation) * sum(tensor.nbytes for tensor in head_of(setup.net.initial).values())
    for least, taken in ((sent + 1, 0), (sent, 1)):
        monkeypatch.setattr(summing, "LEAST", least)
        with monkeypatch.context() as patch:
            counts = Summed(patch)
            ran(setup, rounds=1)
        assert counts.taken == taken


def test_weights_that_are_not_guessed_are_added_again_then_held_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = small_setup(Count(rising=True))
    held = ran(setup, rounds=9)
    monkeypatch.setattr(summing, "LEAST", 0)
    monkeypatch.setattr(summing, "_REST", 2)
    counts = Summed(monkeypatch)
    same(ran(setup, rounds=9), held)
    # Summed in the rounds 1, 2, 3, 6 and 9.
    assert (counts.taken, counts.again) == (5, 5)
    (told,) = [record.getMessage() for record in caplog.records if record.name == "fedkin"]
    assert told.startswith("phase 'train': the sum of the weights was not what was expected in 3 exchanges in a row")


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
