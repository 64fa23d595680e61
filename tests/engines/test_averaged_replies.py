"""The answer to an Ask with a mean: replies are averaged as they come, with the bits and records of held replies."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, ClassVar

import pytest
import torch

from fedkin import codec
from fedkin.engines import LocalEngine, LoopbackEngine, RecordingObserver, Setup
from fedkin.errors import MethodError
from fedkin.flow import Ask, ClientFlow, Fit, Mean, Message, ServerFlow, phase
from fedkin.forms import COUNT, NET
from fedkin.methods.blocks.averaging import OneModel, mean_model
from fedkin.methods.fedavg import FedAvg
from fedkin.views import ClientView, ServerView
from support import small_federation, small_setup, with_settings

MEAN = Mean("params", "n")
IDS = sorted(small_federation())


class Faulty(OneModel):
    """A mean of models; `fails` and `late` say who fails before and after its training, `diverges` who sends infinity.

    only: the round in which these things happen (0: all). A client's state lists its rounds.
    """

    name: ClassVar[str] = "faulty"

    fails: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    diverges: tuple[str, ...] = ()
    only: int = 0
    models: ClassVar[list[weakref.ref[Any]]] = []
    alive: ClassVar[list[int]] = []

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        bad = self.only in (0, client.round)
        client.state["rounds"] = [*client.state.get("rounds", []), client.round]
        if bad and client.id in self.fails:
            raise ValueError("out of order")
        fitted = yield from Fit(message.params)
        if bad and client.id in self.late:
            raise ValueError("out of order, later")
        self.alive.append(sum(model() is not None for model in self.models))
        self.models.append(weakref.ref(next(iter(fitted.params.values()))))
        if bad and client.id in self.diverges:
            return Message(params={name: t * torch.inf for name, t in fitted.params.items()}, n=client.size)
        return Message(params=fitted.params, n=client.size)

    def round(self, server: ServerView[Any], sampled: Sequence[str]) -> ServerFlow[None]:
        replies = yield from Ask("train", {id: self.offer(server, id) for id in sampled}, MEAN)
        server.info = {"n": float(sum(reply["n"] for reply in replies.values()))}
        if replies:
            server.state["params"] = MEAN.of(replies)


def results(setup: Setup, engine: type[LocalEngine] = LocalEngine, **options: Any) -> tuple[Any, ...]:
    """Outcomes, figures, scores, and the bytes of all states after three rounds."""
    rounds: list[Any] = []
    with closing(engine(setup, **options)) as run:
        for number in (1, 2, 3):
            outcome = run.round(number)
            rounds += [outcome.sampled, sorted(outcome.traffic), outcome.samples, outcome.flops, dict(run.server.info)]
        return rounds, run.evaluate(), codec.encode(run.state())


@pytest.mark.parametrize("mode", ["one-by-one", "fast"])
@pytest.mark.parametrize(
    "method",
    [FedAvg(), FedAvg(weights="equal"), Faulty(fails=(IDS[1], IDS[-1])), Faulty(late=(IDS[2], IDS[-1]), only=2),
     Faulty(fails=(IDS[0],), diverges=(IDS[3], IDS[-1]))],
    ids=str,
)  # fmt: skip
def test_bits_and_records_are_those_of_held_replies(method: FedAvg | Faulty, mode: str) -> None:
    setup = with_settings(small_setup(method, clients_per_round=5), mode=mode)
    held = results(setup, observers=[RecordingObserver()])
    assert results(setup) == held
    if mode == "one-by-one":
        assert results(setup, LoopbackEngine)[0] == held[0]


@pytest.mark.parametrize(
    "wrong", [{"faults": {"dropout": 0.4, "garbage": 0.3, "late": 0.3, "crash": 0.2}}, {"min_replies": 1}], ids=str
)
def test_faults_change_no_bit_of_the_mean(wrong: dict[str, Any]) -> None:
    setup = with_settings(small_setup(FedAvg()), **wrong)
    held = results(setup, observers=[RecordingObserver()])
    assert results(setup) == held


def test_few_replies_are_alive_at_once() -> None:
    Faulty.alive.clear()
    Faulty.models.clear()
    gc.collect()
    LocalEngine(small_setup(Faulty())).round(1)
    assert max(Faulty.alive) <= 2


def test_clients_that_all_fail_raise_the_first_error() -> None:
    with pytest.raises(ValueError, match="out of order"):
        LocalEngine(small_setup(Faulty(fails=tuple(IDS)))).round(1)


def test_a_failure_from_before_the_exchange_leaves_no_reply_out() -> None:
    class Unused(FedAvg):
        broken: ClassVar[bool] = False

        def use(self, client: ClientView[Any], message: Message) -> Any:
            if self.broken:
                raise ValueError("cannot be used")
            return message.params

    engine = LocalEngine(small_setup(Unused()))
    Unused.broken = True
    engine.features(IDS[2])
    assert sum(row.sender == IDS[2] and not row.missing for row in engine.round(1).traffic) == 1


def _dropped(answer: Any) -> Any:
    return MEAN.of({id: reply for id, reply in answer.items() if id != IDS[0]})


NEEDS_MEAN = r"Ask\(..., mean=Mean\(field='params', weight='n'\)\): `mean.of\(answer\)`"


@pytest.mark.parametrize(("engine", "alone"), [(LocalEngine, False), (LocalEngine, True), (LoopbackEngine, False)])
@pytest.mark.parametrize(
    ("use", "words"),
    [(_dropped, NEEDS_MEAN), (lambda answer: answer.pop(IDS[0]), "pop"),
     (lambda answer: [reply.params for reply in answer.values()], NEEDS_MEAN),
     (lambda answer: Mean("params", None).of(answer), "the answer is to Ask"),
     (lambda answer: mean_model(answer, "equal"), "the answer is to Ask"),
     (lambda answer: mean_model(answer, "samples", "median"), "the rule 'median' needs single models")],
)  # fmt: skip
def test_any_other_use_of_the_answer_is_refused(
    use: Callable[[Any], Any], words: str, alone: bool, engine: type[LocalEngine]
) -> None:
    class Used(FedAvg):
        def round(self, server: ServerView[Any], sampled: Sequence[str]) -> ServerFlow[None]:
            answer = yield from Ask("train", {id: self.offer(server, id) for id in sampled}, MEAN)
            assert all("params" not in reply and reply["n"] > 0 for reply in answer.values())
            use(answer)

    if alone and use is _dropped:
        words = "over 0 clients"  # the first client's own server has no other reply
    with pytest.raises((MethodError, AttributeError), match=words):
        engine(with_settings(small_setup(Used()), alone=alone)).round(1)


def test_a_request_without_a_mean_gets_replies_in_full() -> None:
    reply = Message(params={"w": torch.ones(1)}, n=2)
    assert Ask("train", {}).answer({"a": reply}) == {"a": reply}
    averaged = Ask("train", {}, MEAN).answer({"a": reply})
    assert dict(averaged["a"].items()) == {"n": 2}
    assert MEAN.of(averaged)["w"].tolist() == [1.0]
    assert Ask("train", {}, MEAN).answer(averaged) is averaged


def test_a_mean_of_another_kind_is_refused() -> None:
    class Wrong(Faulty):
        def round(self, server: ServerView[Any], sampled: Sequence[str]) -> ServerFlow[None]:
            yield from Ask("train", {id: self.offer(server, id) for id in sampled}, "params")  # type: ignore[arg-type]

    with pytest.raises(MethodError, match=r"phase 'train': mean is a str: write mean=Mean\('params', 'n'\)"):
        LocalEngine(small_setup(Wrong())).round(1)
