"""Envelopes, and what carries them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engines.test_validation import Bare
from fedkin import codec
from fedkin.engines.accounting import Clock
from fedkin.engines.results import SERVER, Missing
from fedkin.engines.setup import Faults
from fedkin.engines.transport import BytesTransport, Envelope, Faulty, Inbox, MessageLog, Transport, Validator
from fedkin.errors import MethodError
from fedkin.flow import Message
from support import same, small_setup


def envelope(sender: str = SERVER, receiver: str = "a") -> Envelope:
    return Envelope(3, "train", 0, sender, receiver, Message(params={"w": torch.arange(3.0)}, n=5))


def test_an_envelope_survives_bytes() -> None:
    sent = envelope()
    came = Envelope.from_bytes(sent.to_bytes())
    assert came._replace(message=sent.message) == sent
    assert same(came.message, sent.message)
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


def test_losses_between_peers_are_drawn_for_each_pair_and_turn() -> None:
    lossy = Faulty(Transport(), Faults(dropout=0.5), seed=1)
    sent = [envelope(sender="a", receiver=to)._replace(turn=turn) for turn in range(8) for to in "bcdefgh"]
    # What phase a message counts under changes no draw between peers.
    one, again, other = (
        [lossy.carry(each._replace(phase=phase)) is Missing.LOST for each in sent]
        for phase in ("train", "train", "head")
    )
    assert 0 < sum(one) < len(one)
    assert one == again == other


# -- the log of messages measures what would be sent, to the byte, and what many receive once ------------------------


def log() -> MessageLog:
    return MessageLog(Transport(), Clock(), [])


def with_fields(**fields: Any) -> Envelope:
    return envelope(receiver="b")._replace(message=Message(**fields))


MESSAGES: list[dict[str, Any]] = [
    {"params": {"w": torch.zeros(2, 3), "b": torch.zeros(3)}, "n": 9}, {"params": {"w": torch.zeros(2, 3)}, "n": 10},
    {"params": {"w": torch.zeros(3, 2)}, "n": 9}, {"x": torch.zeros(6)}, {"x": torch.zeros(6).double()},
    {"x": 0.0}, {"x": -0.0}, {"x": 1}, {"x": True}, {"x": None}, {"x": "é"}, {"x": "\n"}, {"x": [1, 2.5]},
    {"x": (1, True)}, {"x": (True, 1)}, {"x": {}}, {"x": {"y": {"z": torch.zeros(())}}}, {"y": 1}, {"n": 10**30},
]  # fmt: skip


def test_sizes_are_those_of_encoded_messages_also_from_the_cache() -> None:
    messages = log()
    for fields in 2 * MESSAGES:
        messages.send([with_fields(**fields)])
    assert [(row.bytes, row.floats) for row in messages.traffic] == [codec.size(fields) for fields in 2 * MESSAGES]
    assert [row.bytes for row in messages.traffic] == [len(codec.encode(fields)) for fields in 2 * MESSAGES]


def test_a_message_to_many_is_measured_once_and_an_empty_one_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Any] = []
    size = codec.size
    monkeypatch.setattr(codec, "size", lambda tree: measured.append(tree) or size(tree))  # type: ignore[func-returns-value]
    messages, shared = log(), Message(x=[1, 2])
    messages.send([Envelope(1, "share", 0, "a", f"b{i}", shared) for i in range(5)])
    assert len(measured) == 1
    assert len({row.bytes for row in messages.traffic}) == 1
    assert len(messages.send([with_fields()])) == 1
    assert [row.receiver for row in messages.traffic] == [f"b{i}" for i in range(5)]


def test_what_cannot_be_sent_is_the_servers_error_and_a_clients_line() -> None:
    with pytest.raises(MethodError, match="a object cannot travel"):
        log().send([with_fields(n=object())])
    messages, validator = log(), Validator(small_setup(Bare()).equipped())
    inbox = Inbox(validator, 1, 0, dict.fromkeys("ab", Message()), {SERVER: "train"})
    both = [Envelope(1, "train", 0, id, SERVER, Message(n=n)) for id, n in (("a", object()), ("b", 1))]
    assert [envelope.sender for envelope in messages.send(both, inbox)] == ["b"]
    row = messages.traffic[0]
    assert (row.sender, row.missing, row.bytes) == ("a", "failed", 0)
    assert list(inbox.unsent) == ["a"]
