"""The door alone, and what comes of the clients that do not get in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engines.faulty import Spoiling
from fedkin.codec import tensors_of
from fedkin.engines import LocalEngine, LoopbackEngine
from fedkin.engines.door import Awaited, Door
from fedkin.engines.transport import SERVER, Envelope
from fedkin.errors import ConfigError, MethodError
from fedkin.flow import Ask, Message, ServerFlow, phase
from fedkin.forms import COUNT, NET, Number, Place, Shaped, Upto, Whole, Wholes, all_fine, fault_of
from fedkin.forms.base import Dim, unsound
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.views import ClientView, ServerView
from support import NET_METHODS, small_federation, small_setup

SETUP = small_setup(FedAvg()).equipped()
NAMES = sorted(SETUP.federation)
FINE = Message(params=dict(SETUP.net.initial), n=20)


def looked_at(*envelopes: Envelope) -> list[str]:
    """What the door of FedAvg's server finds in round 3, exchange 0, when it has asked three clients to train."""
    asked = dict.fromkeys(NAMES[:3], Message(params=SETUP.net.initial))
    found = Door(SETUP.plan).look(envelopes, Awaited(3, 0, asked, lambda envelope: "train"))
    return ["" if fault is None else f"{fault.kind}: {fault.words}" for fault in found]


def reply(
    message: Message = FINE, sender: str = NAMES[0], round: int = 3, turn: int = 0, of: str = "train"
) -> Envelope:
    return Envelope(round, of, turn, sender, SERVER, message)


def test_only_what_was_asked_for_now_gets_in_and_once() -> None:
    found = looked_at(
        reply(), reply(), reply(sender=NAMES[1], round=2), reply(sender=NAMES[1], turn=1), reply(sender=NAMES[5]),
        reply(sender=NAMES[1], of="settle"), reply(sender=NAMES[1]),
    )  # fmt: skip
    assert found == [
        "", "stale: a second message", "stale: of round 2, and this is round 3",
        "stale: of exchange 1, and this is exchange 0", "stale: from one that was not asked",
        "stale: of phase 'settle', and this is 'train'", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 0}, "value: n: 0 is not within 1 and 1e+09"),
        ({"n": 10**12}, "value: n: 1000000000000 is not within 1 and 1e+09"),
        ({"n": 10**5000}, "value: n: ? is not within 1 and 1e+09"),
        ({"n": True}, "form: n: expected a whole number, got bool True"),
        ({"n": 3.0}, "form: n: expected a whole number, got float 3.0"),
        ({"n": "\x1b[2Jgone\n"}, "form: n: expected a whole number, got str ?[2Jgone?"),
        ({"more": 1}, "form: more is not declared"),
        ({"params": {}}, "form: params: not the net's tensors: 'body.1.bias', 'body.1.weight', 'head.bias'"),
        ({"params": None}, "form: params: expected tensors by name, got NoneType None"),
        ({"params": dict(reversed(list(FINE.params.items())))}, "form: params: not in the net's order"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(change: dict[str, object], words: str) -> None:
    assert looked_at(reply(Message(**{**FINE, **change}))) == [words]


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.full((4,), torch.nan), "value: params: head.bias: 4 of 4 numbers are not finite"),
        (torch.tensor([0.0, 0.0, -torch.inf, 1.0]), "value: params: head.bias: 1 of 4 numbers are not finite"),
        (torch.tensor([0.0, 2e19, 0.0, 0.0]), "value: params: head.bias: a number of size 2e+19; squares"),
        (torch.zeros(5), "form: params: head.bias: expected [4], got [5]"),
        (torch.zeros(4).double(), "form: params: head.bias: expected torch.float32, got torch.float64"),
        (torch.zeros(4).to_sparse(), "form: params: head.bias: expected a dense tensor in memory"),
        (torch.zeros(4, device="meta"), "form: params: head.bias: expected a dense tensor in memory"),
        (np.zeros(4, np.float32), "form: params: head.bias: expected a tensor, got ndarray"),
        (torch.zeros(1).expand(10**12), "form: params: head.bias: expected [4], got [1000000000000]"),
    ],
)  # fmt: skip
def test_a_tensor_has_the_nets_shape_and_type_and_finite_numbers(tensor: Tensor, words: str) -> None:
    (found,) = looked_at(reply(Message(params={**FINE.params, "head.bias": tensor}, n=20)))
    assert found.startswith(words)


SPOILT = [
    {"n": 0}, {"n": 10**12}, {"n": True}, {"n": 3.0}, {"more": 1}, {"params": {}}, {"params": None},
    {"params": dict(reversed(list(FINE.params.items())))},
    *({"params": {**FINE.params, "head.bias": tensor}} for tensor in (
        torch.full((4,), torch.nan), torch.tensor([0.0, 2e19, 0.0, 0.0]), torch.zeros(5), torch.zeros(4).double(),
        torch.zeros(4).to_sparse(), torch.zeros(4, device="meta"), np.zeros(4, np.float32),
        torch.zeros(1).expand(10**12), torch.nn.Parameter(torch.zeros(4)), torch.zeros(4).requires_grad_(),
        torch.view_as_complex(torch.ones(4, 2)).conj().imag, torch._efficientzerotensor(4),
    )),
]  # fmt: skip


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("change", SPOILT)
def test_one_look_at_all_messages_finds_what_a_look_at_each_finds(change: dict[str, object], at: int) -> None:
    messages = [Message(params={name: tensor + 1 for name, tensor in FINE.params.items()}, n=20) for _ in range(3)]
    messages[at] = Message(**{**FINE, **change})
    alone = [looked_at(reply(message))[0] for message in messages]
    assert looked_at(*(reply(message, name) for message, name in zip(messages, NAMES, strict=False))) == alone


def test_messages_that_are_all_fine_take_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    each: list[str] = []
    fault = Door.fault

    def looked(door: Door, sender: str, *rest: Any) -> Any:
        each.append(sender)
        return fault(door, sender, *rest)

    monkeypatch.setattr(Door, "fault", looked)
    fine = [Message(params=FINE.params, n=number) for number in (1, 2, 3)]
    late = reply(fine[0], NAMES[0], round=2)
    assert looked_at(late, *(reply(*pair) for pair in zip(fine, NAMES, strict=False)))[1:] == [""] * 3
    assert not each
    # Squares that are finite each, and not summed over all: each is looked at, and passes.
    large = [Message(params={**FINE.params, "head.bias": torch.full((4,), 9e18)}, n=1) for _ in range(3)]
    assert looked_at(*(reply(*pair) for pair in zip(large, NAMES, strict=False))) == [""] * 3
    assert each == NAMES[:3]


def test_counters_of_batch_normalisation_take_one_look_too() -> None:
    body = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
    net = Net(body, torch.nn.Linear(7, 4))
    place = Place(FedAvg(), net, SETUP.federation.task)
    messages = [Message(params=dict(net.initial), n=number) for number in (1, 2)]
    declared = FedAvg.declared("train")
    assert all_fine(messages, declared, place)
    name = "body.1.num_batches_tracked"
    wrong = Message(params={**net.initial, name: net.initial[name].to(torch.int32)}, n=1)
    assert not all_fine([*messages, wrong], declared, place)
    assert fault_of(wrong, declared, place) is not None


def test_a_look_at_many_messages_needs_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked: list[int] = []
    stack = torch.stack
    monkeypatch.setattr(torch, "stack", lambda parts: stacked.append(len(parts)) or stack(parts))  # type: ignore[func-returns-value]
    place = Place(FedAvg(), SETUP.net, SETUP.federation.task)
    row = torch.zeros(4096)
    assert all_fine([{"x": row}] * 1000, [{"x": Shaped(4096)}], place)
    assert max(stacked) <= 256
    assert sum(stacked) == 1000
    last = torch.full((4096,), torch.nan)
    assert not all_fine([*[{"x": row}] * 999, {"x": last}], [{"x": Shaped(4096)}], place)


@pytest.mark.parametrize("dim", ["m", Upto("classes"), lambda place: 3])
def test_lengths_that_depend_on_a_message_are_not_looked_at_together(dim: Dim) -> None:
    place = Place(FedAvg(), SETUP.net, SETUP.federation.task)
    assert all_fine([{"x": torch.zeros(3)}] * 2, [{"x": Shaped(3)}], place)
    assert not all_fine([{"x": torch.zeros(4)}] * 2, [{"x": Shaped(3)}], place)
    assert not all_fine([{"x": torch.zeros(3)}] * 2, [{"x": Shaped(dim)}], place)
    assert not all_fine([{"x": torch.zeros(3)}] * 2, [{"x": Shaped(3) | None}], place)
    assert not all_fine([{"x": 3}] * 2, [{"x": Whole(0, lambda place: 5)}], place)


def test_many_large_numbers_are_sound_if_each_is() -> None:
    assert unsound(torch.full((1000,), 1e19)) is None  # the sum of their squares is not finite
    assert unsound(torch.full((3,), 6e4, dtype=torch.float16)) is None
    assert unsound(torch.full((3,), 1e150, dtype=torch.float64)) is None
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert unsound(torch.tensor([1.0, torch.nan], dtype=dtype)) is not None


def test_lengths_that_belong_together_are_equal() -> None:
    fields = {"rows": Shaped("m", "width"), "classes": Wholes("m", below="classes", rising=True)}
    place = Place(FedAvg(), SETUP.net, SETUP.federation.task)

    def found(rows: int, classes: list[int]) -> str:
        fault = fault_of({"rows": torch.zeros(rows, 7), "classes": classes}, [fields], place)
        return "" if fault is None else fault.words

    assert found(2, [0, 3]) == ""
    assert found(3, [0, 3]) == "classes: a list of 2 is not as long as the others"
    assert found(2, [0, 4]) == "classes: 0 to 4 are not within 0 and 3"
    assert found(2, [3, 0]) == "classes: the list does not rise"
    assert fault_of({"x": torch.tensor(-1.0)}, [{"x": Number(low=0)}], place) is not None


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
    engine = LocalEngine(small_setup(Bare()).having(message_limit_mb=0.01))
    assert not [row for row in engine.round(1).traffic if row.missing]
    place = engine.exchange.door.places[id(engine.setup.net)]
    for message, words in {
        "nan": (Message(x=[1.0, [float("nan")]]), "x: nan is not a finite number"),
        "tensor": (Message(x={"y": torch.tensor(torch.inf)}), "x/y: 1 of 1 numbers are not finite"),
        "array": (Message(x=np.zeros(3)), "it cannot be read (MethodError: x: arrays travel as torch"),
        "large": (Message(x=torch.zeros(1).expand(10**9)), "4,000,000,112 bytes are more than run.message"),
    }.values():  # fmt: skip
        fault = fault_of(message, None, place)
        assert fault is not None
        assert fault.words.startswith(words)


def test_a_declaration_that_refuses_everyone_ends_the_run_and_says_why() -> None:
    with pytest.raises(MethodError, match=r"phase 'train': every message was refused, .* because n is not declared"):
        LocalEngine(small_setup(Strict())).round(1)


def test_an_override_declares_its_own_reply() -> None:
    assert FedAvg.declared("train") == ({"params": NET, "n": COUNT},)
    assert Bare.declared("train") is None


@pytest.mark.parametrize("engine", [LocalEngine, LoopbackEngine])
@pytest.mark.parametrize("mode", ["one-by-one", "fast"])
def test_a_large_update_does_not_spread(engine: type[LocalEngine], mode: str) -> None:
    made = engine(small_setup(FedAvg()).having(adversaries="scale:0.2:1e39", mode=mode))
    for number in (1, 2, 3):
        refused = [row for row in made.round(number).traffic if row.missing]
        assert {row.sender for row in refused} == made.adversaries
        assert all(row.missing.startswith("refused: params: ") for row in refused)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors_of(made.server.state).values())


def test_all_methods_end_finite_with_a_client_whose_update_overflows() -> None:
    for name in NET_METHODS:
        made = LocalEngine(small_setup(METHODS[name](), local_steps=1).having(adversaries="scale:0.2:1e39"))
        for number in (1, 2):
            made.round(number)
        for id in set(made.setup.federation) - made.adversaries:
            assert all(bool(torch.isfinite(tensor).all()) for tensor in made.model(id).values()), name


def test_the_door_is_the_same_for_messages_that_pass_through_bytes() -> None:
    """A reply that is refused in this process is refused behind bytes, for the same reason."""
    victim = NAMES[1]
    lines = []
    for kind in (LocalEngine, LoopbackEngine):
        engine = kind(small_setup(FedAvg()))
        inner = engine.post.transport
        spoil = Spoiling(lambda e: e.sender == victim, lambda m: Message(params=m.params, n=-1))
        spoil.order = inner.order  # type: ignore[method-assign]
        engine.post.transport = spoil
        lines.append([row for row in engine.round(1).traffic if row.missing])
    assert lines[0] == lines[1] != []


class Greedy(FedAvg):
    """Asks twice in a round."""

    def round(self, server: ServerView[Any], sampled: object) -> ServerFlow[None]:
        for _ in range(2):
            yield from Ask("train", {id: self.offer(server, id) for id in server.clients})


def test_limits_are_settings() -> None:
    federation = small_federation()
    large = max(federation, key=lambda id: federation[id].size)
    engine = LocalEngine(replace(small_setup(Greedy(), federation)).having(largest_n=federation[large].size - 1))
    refused = [row for row in engine.round(1).traffic if row.missing]
    assert [row.sender for row in refused] == [large, large]
    with pytest.raises(ConfigError, match=r"run\.min_replies: expected a whole number of replies, or a share below 1"):
        small_setup(FedAvg()).having(min_replies=1.5)
