"""An offer on its way: a few parts are asked for at a time, and what belongs to a replaced offer is not taken."""

from __future__ import annotations

import hashlib
import os
from typing import cast

from fedkin.network.offers import CHANGED, FIRST, HEAD, REST, Part, bounds
from fedkin.network.signing import Head, Signer
from fedkin.network.transfers import Transfer
from fedkin.network.zenoh_config import PART


class Trusting:
    """Takes every head for its owner's."""

    extra = 0

    def read(self, owner: str, subject: str, data: bytes) -> Head:
        return Head.model_validate_json(data)

    def opened(self, owner: str, subject: str, data: bytes) -> bytes:
        return data


def answered(transfer: Transfer, part: Part, data: bytes) -> None:
    """The owner's answer, if this is what it offers."""
    head = Head(kind="", size=len(data), sha256=hashlib.sha256(data).hexdigest()).model_dump_json().encode()
    transfer.receive(part, REST if part.number else HEAD + head, data[bounds(part.number)])


def asked(transfer: Transfer) -> list[Part]:
    """All parts that may be asked for now."""
    return list(iter(lambda: transfer.next_part(0.0), None))


def test_a_few_parts_are_asked_for_at_a_time_and_those_of_a_replaced_offer_are_dropped() -> None:
    transfer = Transfer("ann", "r", cast(Signer, Trusting()))
    old, new = os.urandom(FIRST + 10 * PART), os.urandom(FIRST + 9 * PART + 1)
    transfer.most = len(old)
    assert asked(transfer) == [Part()]
    answered(transfer, Part(), old)
    first = asked(transfer)
    assert [part.number for part in first] == [1, 2, 3, 4, 5, 6, 7, 8]
    answered(transfer, first[3], old)
    assert [part.number for part in asked(transfer)] == [9]
    transfer.receive(first[0], CHANGED, b"")
    assert asked(transfer) == [Part()]
    answered(transfer, Part(), new)
    while parts := asked(transfer):
        for late, part in zip(first, parts, strict=False):
            answered(transfer, late, old)
            answered(transfer, part, new)
    assert transfer.opened() == new
