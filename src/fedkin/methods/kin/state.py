"""What kin keeps at the server and at a client."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

from fedkin.flow import Params
from fedkin.methods.blocks.signatures import Planned, Tests

__all__ = ["ClientState", "State"]


class State(Planned):
    """At the server. Groups are numbered from 0, as text.

    plan: what went down for the signatures. signatures: {client id: [bytes] uint8}, as they came.
    group: {client id: group} of every client with a signature. verdict: {group: "same", "shares", "offsets" or
    "alone"}. models: {group: params}; a client that is alone keeps its model itself, and has an entry here only until
    it has started from that.
    placed: {client id: True} of clients that joined groups found before. looks: how often groups were found.
    tests: those of the last time that groups were found.
    keeps: {client id: "group" or "own"}, the model that the client says it uses.
    """

    signatures: dict[str, Tensor]
    group: dict[str, str]
    verdict: dict[str, str]
    models: dict[str, Params]
    placed: dict[str, bool]
    looks: int
    tests: Tests
    keeps: dict[str, str]


class ClientState(TypedDict, total=False):
    """At a client: own, the model that it trains by itself; keeps, which of the two it uses, "group" or "own".

    look: when the groups were found that it is on trial in; tried: how many trials it had in these.
    """

    own: Params
    keeps: str
    look: int
    tried: int
