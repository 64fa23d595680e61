"""The answer to an Ask with a mean is of one kind: from every runner, and at every size of the models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from fedkin.engines import LocalEngine, LoopbackEngine, summing
from fedkin.engines.answers import answer_to
from fedkin.errors import MethodError
from fedkin.flow import Ask, Message, ServerFlow
from fedkin.learning import Mean, weighted_mean
from fedkin.methods.blocks.means import mean_model
from fedkin.methods.blocks.one_model import State
from fedkin.methods.fedavg import FedAvg
from fedkin.views import ServerView
from support import small_federation, small_setup

Answer = Mapping[str, Message]
MEAN = Mean("params", "n")
FIRST = min(small_federation())


def _dropped(answer: Answer) -> Any:
    return MEAN.of({id: reply for id, reply in answer.items() if id != FIRST})


def _read(answer: Answer) -> Any:
    return weighted_mean({id: reply.params for id, reply in answer.items()}, {id: r["n"] for id, r in answer.items()})


def _popped(answer: Answer) -> Any:
    answer.pop(FIRST)  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", [LocalEngine, LoopbackEngine])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("least", [1 << 40, 0])
@pytest.mark.parametrize(
    ("use", "words"),
    [(_dropped, r"Ask\(..., mean=Mean\(field='params', weight='n'\)\): `mean.of\(answer\)`"), (_popped, "pop"),
     (_read, r"Ask\(..., mean=Mean\(field='params', weight='n'\)\): `mean.of\(answer\)`"),
     (lambda answer: Mean("params", None).of(answer), "the answer is to Ask"),
     (lambda answer: mean_model(answer, "equal"), "the answer is to Ask"),
     (lambda answer: mean_model(answer, "samples", "median"), "the rule 'median' needs single models")],
)  # fmt: skip
def test_what_is_no_mean_that_was_asked_for_is_refused(
    use: Callable[[Answer], Any], words: str, least: int, alone: bool, engine: type[LocalEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    class Used(FedAvg):
        name: ClassVar[str] = "used"

        def round(self, server: ServerView[State], sampled: Sequence[str]) -> ServerFlow[None]:
            answer = yield from Ask("train", {id: self.offer(server, id) for id in sampled}, MEAN)
            assert all("params" not in reply and reply["n"] > 0 for reply in answer.values())
            use(answer)

    monkeypatch.setattr(summing, "LEAST", least)
    made = engine(small_setup(Used()).having(alone=alone))
    if alone and use is _dropped:
        words = "over 0 clients"  # the first client's own server has no other reply
    with pytest.raises((MethodError, AttributeError), match=words):
        made.round(1)


def test_a_request_without_a_mean_gets_replies_in_full() -> None:
    reply = Message(params={"w": torch.ones(1)}, n=2)
    assert answer_to(Ask("train", {}), {"a": reply}) == {"a": reply}
    rest = answer_to(Ask("train", {}, MEAN), {"a": reply})
    assert dict(rest["a"].items()) == {"n": 2}
    assert MEAN.of(rest)["w"].tolist() == [1.0]
    assert answer_to(Ask("train", {}, MEAN), rest) is rest
