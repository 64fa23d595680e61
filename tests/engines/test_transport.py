"""Envelopes, and what carries them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin import codec
from fedkin.engines.accounting import Clock
from fedkin.engines.results import SERVER, Missing
from fedkin.engines.setup import Faults
from fedkin.engines.transport import BytesTransport, Envelope, Faulty, Inbox, MessageLog, Transport, Validator
from fedkin.errors import MethodError
from fedkin.flow import Message, phase
from fedkin.methods.fedavg import FedAvg
from fedkin.views import ClientView
from support import small_setup


def envelope(phase: str = "train", sender: str = SERVER, receiver: str = "a", round: int = 3) -> Envelope:
    return Envelope(round, phase, 0, sender, receiver, Message(params={"w": torch.arange(3.0)}, n=5))


def test_an_envelope_survives_bytes() -> None:
    sent = envelope()
    came = Envelope.from_bytes(sent.to_bytes())
    assert came._replace(message=sent.message) == sent
    assert came.message["n"] == 5
    assert torch.equal(came.message.params["w"], sent.message.params["w"])
    empty = sent._replace(message=Message())
    assert len(Envelope.from_bytes(empty.to_bytes()).message) == 0


def test_bytes_that_are_no_envelope_are_refused() -> None:
    with pytest.raises(MethodError, match="not an envelope"):
        Envelope.from_bytes(Message(n=1).to_bytes())
    with pytest.raises(MethodError, match="not a fedkin message"):
        Envelope.from_bytes(b"nothing")


def test_memory_delivers_the_very_message_and_bytes_a_copy() -> None:
    sent = envelope()
    assert Transport().carry(sent) is sent
    came = BytesTransport(0).carry(sent)
    assert isinstance(came, Envelope)
    assert came.message is not sent.message
    ids = [f"c{k}" for k in range(9)]
    assert Transport().order(reversed(ids), 1) == ids
    shuffled = BytesTransport(0).order(ids, 1)
    assert shuffled != ids
    assert sorted(shuffled) == ids
    assert shuffled == BytesTransport(0).order(reversed(ids), 1)


def test_an_exchange_is_lost_one_way_or_the_other_never_both() -> None:
    lossy = Faulty(Transport(), Faults(dropout=0.6), seed=1)
    there = {id: lossy.carry(envelope(receiver=id)) is Missing.LOST for id in map(str, range(2000))}
    back = {id: lossy.carry(envelope(sender=id, receiver=SERVER)) is Missing.LOST for id in there}
    assert not any(there[id] and back[id] for id in there)
    # Binomial: 600 expected each way, standard deviation 20.5.
    assert 500 < sum(there.values()) < 700
    assert 500 < sum(back.values()) < 700


def test_losses_between_peers_are_drawn_for_each_pair_and_turn() -> None:
    lossy = Faulty(Transport(), Faults(dropout=0.5), seed=1)
    sent = envelope(sender="a", receiver="b")

    def draws() -> list[bool]:
        each = [sent._replace(turn=turn, receiver=to) for turn in range(8) for to in "bcdefgh"]
        return [lossy.carry(envelope) is Missing.LOST for envelope in each]

    drawn = draws()
    assert 0 < sum(drawn) < len(drawn)
    assert drawn == [
        lossy.carry(sent._replace(turn=turn, receiver=to)) is Missing.LOST for turn in range(8) for to in "bcdefgh"
    ]
    # What phase a message counts under changes no draw between peers.
    assert (lossy.carry(sent) is Missing.LOST) == (lossy.carry(sent._replace(phase="head")) is Missing.LOST)


# -- the log of messages measures what would be sent, to the byte, and what many receive once ------------------------


class Bare(FedAvg):
    """Declares nothing, so that any message may come."""

    @phase
    def train(self, client: ClientView, message: Message) -> Message:  # type: ignore[override]
        return message


def log() -> MessageLog:
    return MessageLog(Transport(), Clock(), [])


def sent(fields: dict[str, Any], receiver: str = "b") -> Envelope:
    return Envelope(1, "train", 0, "server", receiver, Message(**fields))


MESSAGES: list[dict[str, Any]] = [
    {"params": {"w": torch.zeros(2, 3), "b": torch.zeros(3)}, "n": 9}, {"params": {"w": torch.zeros(2, 3)}, "n": 10},
    {"params": {"w": torch.zeros(3, 2)}, "n": 9}, {"x": torch.zeros(6)}, {"x": torch.zeros(6).double()},
    {"x": 0.0}, {"x": -0.0}, {"x": 1}, {"x": True}, {"x": None}, {"x": "é"}, {"x": "\n"}, {"x": [1, 2.5]},
    {"x": (1, True)}, {"x": (True, 1)}, {"x": {}}, {"x": {"y": {"z": torch.zeros(())}}}, {"y": 1}, {"n": 10**30},
]  # fmt: skip


def test_sizes_are_those_of_encoded_messages_also_from_the_cache() -> None:
    messages = log()
    for _ in range(2):
        messages.traffic = []
        for fields in MESSAGES:
            messages.send([sent(fields)])
        assert [(row.bytes, row.floats) for row in messages.traffic] == [codec.size(fields) for fields in MESSAGES]
        assert [row.bytes for row in messages.traffic] == [len(codec.encode(fields)) for fields in MESSAGES]


def test_a_message_to_many_is_measured_once_and_an_empty_one_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Any] = []
    size = codec.size
    monkeypatch.setattr(codec, "size", lambda tree: measured.append(tree) or size(tree))  # type: ignore[func-returns-value]
    messages, shared = log(), Message(x=[1, 2])
    messages.send([Envelope(1, "share", 0, "a", f"b{i}", shared) for i in range(5)])
    assert len(measured) == 1
    assert len({row.bytes for row in messages.traffic}) == 1
    assert len(messages.send([sent({})])) == 1
    assert [row.receiver for row in messages.traffic] == [f"b{i}" for i in range(5)]


def test_what_cannot_be_sent_is_the_servers_error_and_a_clients_line() -> None:
    with pytest.raises(MethodError, match="a object cannot travel"):
        log().send([sent({"n": object()})])
    messages, validator = log(), Validator(small_setup(Bare()).equipped())
    inbox = Inbox(validator, 1, 0, dict.fromkeys("ab", Message()), {SERVER: "train"})
    both = [
        Envelope(1, "train", 0, "a", SERVER, Message(n=object())),
        Envelope(1, "train", 0, "b", SERVER, Message(n=1)),
    ]
    assert [envelope.sender for envelope in messages.send(both, inbox)] == ["b"]
    row = messages.traffic[0]
    assert (row.sender, row.missing, row.bytes) == ("a", "failed", 0)
    assert list(inbox.unsent) == ["a"]
