"""Whom a MAPL peer sends to, whom it asks to stop, and what its weights begin with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.flow import Fitted, Message
from fedkin.learning.net import head_of
from fedkin.methods.mapl import EdgeState, outbox, previous, receivers, remember, requests
from fedkin.views import PeerView
from methods.mapl_toys import MAPL, PROTOTYPES, setup_of, two_groups

# -- one peer's round, by hand ---------------------------------------------------------------------------------


def peer_view(id: str, near: tuple[str, ...], method: Any, number: int) -> PeerView[Any]:
    federation = two_groups(4)
    setup = setup_of(method, federation)
    net = method.equip(setup.net, federation.task, 0)
    view: PeerView[Any] = PeerView(
        seed=0, round=number, net=net, task=federation.task, training=setup.training, state={}, id=id,
        train=federation["peer-000"].train, neighbours=near,
    )  # fmt: skip
    method.join(view)
    return view


class Talk:
    """Drives one peer's round by hand."""

    def __init__(self, peer: PeerView, method: Any) -> None:
        self.peer, self.method = peer, method

    def round(self, like: dict[str, float], wants: dict[str, bool] | None = None) -> tuple[set[str], dict[str, bool]]:
        """Who is sent heads and prototypes, and who is told what, when these neighbours send theirs.

        like: 1 for a neighbour whose head changed as this one's, -1 for one whose head changed against it.
        """
        start = self.peer.initial
        self.peer.round += 1
        flow = self.method.round(self.peer)
        fit = next(flow)
        params = {**fit.params, "head.weight": fit.params["head.weight"] + 1}
        first = flow.send(Fitted(params, {}, 0.0, 1, 1))
        heads = {
            id: Message(head={**head_of(start), "head.weight": start["head.weight"] + sign}, n=30)
            for id, sign in like.items()
        }
        second = flow.send(heads)
        assert (first.phase, second.phase) == ("head", "prototypes")
        answer = Message(prototypes=start[PROTOTYPES], owned=torch.ones(6, dtype=torch.bool))
        came = dict.fromkeys(like, answer)
        for id, want in (wants or {}).items():
            came[id] = Message(**came.get(id, Message()), want=want)
        with pytest.raises(StopIteration):
            flow.send(came)
        sent = {id for id, message in second.message.items() if "prototypes" in message}
        assert sent == first.message.keys()
        return sent, {id: message["want"] for id, message in second.message.items() if "want" in message}


def test_a_peer_asks_unlike_neighbours_to_stop_and_asks_again_when_they_go_on() -> None:
    method = MAPL(warmup=0, graph={"probe": 0.0})
    talk = Talk(peer_view("me", ("friend", "other"), method, 0), method)
    sent, requests = talk.round({"friend": 1.0, "other": -1.0})
    assert sent == {"friend", "other"}
    assert requests == {"other": False}
    assert talk.peer.state["dropped"] == ["other"]
    assert talk.peer.state["weights"].keys() == {"me", "friend"}
    # The stop was lost: "other" goes on sending, and is told again.
    assert talk.round({"friend": 1.0, "other": -1.0})[1] == {"other": False}
    # It arrived: nothing more is said.
    assert talk.round({"friend": 1.0})[1] == {}
    assert talk.peer.state["dropped"] == ["other"]
    # A message that is lost on its way is no reason to drop a friend.
    talk.round({})
    assert talk.peer.state["dropped"] == ["other"]
    assert talk.peer.state["weights"] == {"me": 1.0}


def test_a_peer_sends_to_whoever_wants_it() -> None:
    method = MAPL(warmup=0, graph={"probe": 0.0})
    talk = Talk(peer_view("me", ("friend", "other"), method, 0), method)
    assert talk.round({}, {"friend": False})[0] == {"friend", "other"}
    assert talk.round({})[0] == {"other"}
    talk.round({}, {"friend": True})
    assert talk.round({})[0] == {"friend", "other"}


def test_gone_neighbours_are_probed_and_come_back_when_alike() -> None:
    method = MAPL(warmup=0, graph={"probe": 1.0})
    talk = Talk(peer_view("me", ("friend", "other"), method, 0), method)
    assert talk.round({"friend": 1.0, "other": -1.0})[1] == {"other": False}  # not asked in the same breath
    assert talk.round({"friend": 1.0})[1] == {"other": True}
    talk.round({"friend": 1.0, "other": 1.0})
    assert talk.peer.state["dropped"] == []
    rare = MAPL(warmup=0, graph={"probe": 0.2})
    talk = Talk(peer_view("me", ("friend", "other"), rare, 0), rare)
    talk.round({"friend": 1.0, "other": -1.0})
    asked = sum("other" in talk.round({"friend": 1.0})[1] for _ in range(200))
    assert 20 < asked < 60


# -- the parts ---------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_a_stop_is_repeated_until_it_arrives(losses: list[tuple[bool, bool]]) -> None:
    """losses: of the head, and of the request, in each round; then a round in which both arrive."""
    sender, receiver = (EdgeState(dropped=[], refused_by=[]) for _ in range(2))
    arrived = False
    for head_lost, request_lost in [*losses, (False, False)]:
        sends = receivers(sender, ["receiver"]) == ["receiver"]
        assert sends != arrived
        heard = {"sender"} if sends and not head_lost else set()
        wants = requests(receiver, ["sender"], heard, set(), lambda id: False)
        assert wants == dict.fromkeys(heard, False)
        came = {} if request_lost or not wants else {"receiver": outbox([], Message(), wants)["sender"]}
        remember(sender, came)
        arrived = arrived or bool(came)
    assert (sender["refused_by"], receiver["dropped"]) == (["receiver"], ["sender"])
    remember(sender, {"receiver": Message(want=True)})
    assert receivers(sender, ["receiver"]) == ["receiver"]


def test_weights_begin_with_the_last_ones_an_equal_share_for_the_new_and_none_for_the_dropped() -> None:
    heads = ["a", "b", "c", "me"]
    assert previous("me", heads, {"me": 1.0}, []) == dict.fromkeys(heads, 0.25)
    begun = previous("me", heads, {"me": 0.4, "a": 0.6}, ["b"])
    assert begun == {"me": 0.4, "a": 0.6, "b": 0.0, "c": 0.25}
