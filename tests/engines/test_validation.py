"""Validation alone, and what comes of the clients whose messages are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engines.faulty import CASES
from fedkin.engines import LocalEngine, LoopbackEngine
from fedkin.engines.results import SERVER
from fedkin.engines.transport import Envelope, Inbox, Validator
from fedkin.errors import ConfigError, MethodError
from fedkin.flow import Ask, Message, ServerFlow, phase
from fedkin.forms import NET, Context, Integers, Number, Problem, Shaped, check_sound, problem_of
from fedkin.methods.fedavg import FedAvg
from fedkin.views import ClientView, ServerView
from support import NET_METHODS, begun, by_pattern, finite, present, small_setup, with_settings

SETUP = small_setup(FedAvg()).equipped()
NAMES = sorted(SETUP.federation)
try:
    repr(10**5000)
except ValueError as error:
    _TOO_LONG = str(error)
FINE = Message(params=dict(SETUP.net.initial), n=20)


def looked_at(*envelopes: Envelope) -> list[str]:
    """What the server of FedAvg finds in round 3, exchange 0, when it has asked three clients to train."""
    requests = dict.fromkeys(NAMES[:3], Message(params=SETUP.net.initial))
    inbox = Inbox(Validator(SETUP), 3, 0, requests, {SERVER: "train"})
    return [": ".join(inbox.refuses(envelope) or ()) for envelope in envelopes]


def reply(message: Message = FINE, sender: str = NAMES[0], **fields: Any) -> Envelope:
    return Envelope(3, "train", 0, sender, SERVER, message)._replace(**fields)


def test_only_what_was_asked_for_now_gets_in_and_once() -> None:
    found = looked_at(
        reply(), reply(), reply(sender=NAMES[1], round=2), reply(sender=NAMES[1], turn=1), reply(sender=NAMES[5]),
        reply(sender=NAMES[1], phase="settle"), reply(sender=NAMES[1]),
    )  # fmt: skip
    assert found == [
        "", "stale: a second message", "stale: of round 2, and this is round 3",
        "stale: of exchange 1, and this is exchange 0", "stale: from one that was not asked",
        "stale: of phase 'settle', and this is 'train'", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 0}, "refused: n: 0 is not within 1 and 1e+09"),
        ({"n": 10**12}, "refused: n: 1000000000000 is not within 1 and 1e+09"),
        ({"n": 10**5000}, f"refused: it cannot be read (ValueError: {_TOO_LONG})"),
        ({"n": True}, "refused: n: expected a whole number, got bool True"),
        ({"n": 3.0}, "refused: n: expected a whole number, got float 3.0"),
        ({"n": "\x1b[2Jgone\n"}, r"refused: n: expected a whole number, got str '\x1b[2Jgone\n'"),
        ({"more": 1}, "refused: more is not declared"),
        ({"params": {}}, "refused: params: not the net's tensors: 'body.1.bias', 'body.1.weight', 'head.bias'"),
        ({"params": None}, "refused: params: expected tensors by name, got NoneType None"),
        ({"params": dict(reversed(list(FINE.params.items())))}, "refused: params: not in the net's order"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(change: dict[str, object], words: str) -> None:
    assert looked_at(reply(Message(**{**FINE, **change}))) == [words]


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.full((4,), torch.nan), "refused: params: head.bias: 4 of 4 numbers are not finite"),
        (torch.tensor([0.0, 0.0, -torch.inf, 1.0]), "refused: params: head.bias: 1 of 4 numbers are not finite"),
        (torch.tensor([0.0, 2e19, 0.0, 0.0]), "refused: params: head.bias: a number of size 2e+19; squares"),
        (torch.zeros(5), "refused: params: head.bias: expected [4], got [5]"),
        (torch.zeros(4).double(), "refused: params: head.bias: expected torch.float32, got torch.float64"),
        (torch.zeros(4).to_sparse(), "refused: params: head.bias: expected a dense tensor in memory"),
        (torch.zeros(4, device="meta"), "refused: params: head.bias: expected a dense tensor in memory"),
        (np.zeros(4, np.float32), "refused: params: head.bias: expected a tensor, got ndarray"),
        (torch.zeros(1).expand(10**12), "refused: params: head.bias: expected [4], got [1000000000000]"),
    ],
)  # fmt: skip
def test_a_tensor_has_the_nets_shape_and_type_and_finite_numbers(tensor: Tensor, words: str) -> None:
    (found,) = looked_at(reply(Message(params={**FINE.params, "head.bias": tensor}, n=20)))
    assert found.startswith(words)


def test_many_large_numbers_are_sound_if_each_is() -> None:
    check_sound(torch.full((1000,), 1e19))  # the sum of their squares is not finite
    check_sound(torch.full((3,), 6e4, dtype=torch.float16))
    check_sound(torch.full((3,), 1e150, dtype=torch.float64))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        with pytest.raises(Problem, match="1 of 2 numbers are not finite"):
            check_sound(torch.tensor([1.0, torch.nan], dtype=dtype))


def test_lengths_that_belong_together_are_equal() -> None:
    fields = {"rows": Shaped("m", "width"), "classes": Integers("m", below="classes", rising=True)}
    context = Context(FedAvg(), SETUP.net, SETUP.federation.task)

    def found(rows: int, classes: list[int]) -> str:
        problem = problem_of({"rows": torch.zeros(rows, 7), "classes": classes}, [fields], context)
        return "" if problem is None else problem.words

    assert found(2, [0, 3]) == ""
    assert found(3, [0, 3]) == "classes: a list of 2 is not as long as the others"
    assert found(2, [0, 4]) == "classes: 0 to 4 are not within 0 and 3"
    assert found(2, [3, 0]) == "classes: the list does not rise"
    assert problem_of({"x": torch.tensor(-1.0)}, [{"x": Number(low=0)}], context) is not None


class Bare(FedAvg):
    """A user's FedAvg whose phase declares nothing."""

    @phase
    def train(self, client: ClientView, message: Message) -> Message:  # type: ignore[override]
        return Message(params=message.params, n=client.size, note=[0.5, "text"], mine={"a": torch.zeros(3)})


class Strict(FedAvg):
    """A user's FedAvg that declares one field less than it sends."""

    @phase(params=NET)
    def train(self, client: ClientView, message: Message) -> Message:  # type: ignore[override]
        return Message(params=message.params, n=client.size)


def test_a_phase_that_declares_nothing_lets_anything_finite_pass() -> None:
    engine = LocalEngine(with_settings(small_setup(Bare()), message_limit_mb=0.01))
    assert not [row for row in engine.round(1).traffic if row.missing]
    context = engine.exchange.validator.contexts[engine.setup.net]
    for value, words in (
        ([1.0, [float("nan")]], "x: nan is not a finite number"),
        ({"y": torch.tensor(torch.inf)}, "x/y: 1 of 1 numbers are not finite"),
        (np.zeros(3), "it cannot be read (MethodError: x: arrays travel as torch"),
        (torch.zeros(1).expand(10**9), "4,000,000,112 bytes are more than run.message"),
    ):
        assert present(problem_of(Message(x=value), None, context)).words.startswith(words)


def test_a_declaration_that_refuses_everyone_ends_the_run_and_says_why() -> None:
    with pytest.raises(MethodError, match=r"phase 'train': every message was refused, .* because n is not declared"):
        LocalEngine(small_setup(Strict())).round(1)


@pytest.mark.parametrize("engine", [LocalEngine, LoopbackEngine])
@pytest.mark.parametrize("mode", ["one-by-one", "fast"])
def test_a_large_update_does_not_spread(engine: type[LocalEngine], mode: str) -> None:
    made = engine(with_settings(small_setup(FedAvg()), adversaries="scale:0.2:1e39", mode=mode))
    for number in (1, 2, 3):
        refused = [row for row in made.round(number).traffic if row.missing]
        assert {row.sender for row in refused} == made.adversaries
        assert all(row.reason.startswith("params: ") for row in refused)
    assert finite(made.server.state)


@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
def test_a_method_ends_finite_with_a_client_whose_update_overflows(name: str) -> None:
    made = begun(with_settings(small_setup(CASES[name], local_steps=1), adversaries="scale:0.2:1e39"), rounds=2)
    assert finite(*(made.model(id) for id in set(made.setup.federation) - made.adversaries))


class Greedy(FedAvg):
    """Asks twice in a round."""

    def round(self, server: ServerView[Any], sampled: object) -> ServerFlow[None]:
        for _ in range(2):
            yield from Ask("train", {id: self.offer(server, id) for id in server.clients})


def test_limits_are_settings() -> None:
    large = max(NAMES, key=SETUP.federation.sizes.__getitem__)
    engine = LocalEngine(with_settings(small_setup(Greedy()), largest_n=SETUP.federation.sizes[large] - 1))
    assert [row.sender for row in engine.round(1).traffic if row.missing] == [large, large]
    with pytest.raises(ConfigError, match=r"run\.min_replies: expected a whole number of replies, or a share below 1"):
        with_settings(small_setup(FedAvg()), min_replies=1.5)
