"""Envelopes, and what carries them."""

from __future__ import annotations

import pytest
import torch

from fedkin.engines.results import SERVER, Missing
from fedkin.engines.setup import Faults
from fedkin.engines.transport import BytesTransport, Envelope, Faulty, Transport
from fedkin.errors import MethodError
from fedkin.flow import Message


def envelope(phase: str = "train", sender: str = SERVER, receiver: str = "a", round: int = 3) -> Envelope:
    return Envelope(round, phase, 0, sender, receiver, Message(params={"w": torch.arange(3.0)}, n=5), "run-7")


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
