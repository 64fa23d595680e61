"""A roster says of clients what the federation says, without their samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedkin.engines.client_list import Roster
from fedkin.errors import DataError
from fedkin.federation import Change, Federation
from support import small_federation


def moving() -> Federation:
    still = small_federation()
    first, second, third, *_ = sorted(still)
    other = still[second]
    clients = [
        replace(client, changes=(Change(2, other.train, other.test, other.group),)) if id == first
        else replace(client, joins=3) if id == second
        else replace(client, seen=False) if id == third
        else client
        for id, client in still.items()
    ]  # fmt: skip
    return Federation(clients, still.task)


@pytest.mark.parametrize("round", [0, 1, 2, 3, 9])
def test_it_agrees_with_the_federation_in_every_round(round: int) -> None:
    federation = moving()
    now, roster = federation.at(max(round, 1)), Roster.of(federation).at(round)
    assert list(roster) == list(now)
    assert (roster.seen, roster.unseen, roster.planted) == (now.seen, now.unseen, now.planted)
    assert {id: entry.size for id, entry in roster.items()} == now.sizes


def test_one_that_stands_still_is_itself_in_every_round() -> None:
    roster = Roster.of(small_federation())
    assert roster.at(1) is roster.at(7) is roster


def test_nobody_there_is_an_error() -> None:
    still = small_federation()
    late = Federation([replace(client, joins=4) for client in still.values()], still.task)
    with pytest.raises(DataError, match="no client has joined by round 2"):
        Roster.of(late).at(2)
