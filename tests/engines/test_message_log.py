"""The log of messages measures what would be sent, to the byte, and what many receive once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin import codec
from fedkin.engines.accounting import Clock
from fedkin.engines.transport import Envelope, MessageLog, Transport
from fedkin.errors import MethodError
from fedkin.flow import Message


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
    assert len(messages.send([sent({})]).arrived) == 1
    assert [row.receiver for row in messages.traffic] == [f"b{i}" for i in range(5)]


def test_what_cannot_be_sent_is_the_servers_error_and_a_clients_line() -> None:
    with pytest.raises(MethodError, match="a object cannot travel"):
        log().send([sent({"n": object()})])
    messages = log()
    delivery = messages.send([sent({"n": object()})._replace(sender="a"), sent({"n": 1})._replace(sender="b")])
    assert [envelope.sender for envelope in delivery.arrived] == ["b"]
    row = messages.traffic[0]
    assert (row.sender, row.missing, row.bytes) == ("a", "failed", 0)
    assert list(delivery.unsent) == ["a"]
