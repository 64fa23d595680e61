"""CFL: when a cluster is split and into what, that no client is ever lost, and how clients are placed in the tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.engines import LocalEngine
from fedkin.federation import Federation
from fedkin.flow import Message
from fedkin.methods.cfl import Cfl
from fedkin.views import ServerView
from support import after, finish, one_ask, present, server_view, small_federation, small_setup

EAGER = {"eps1": 1e9, "eps2": 0.0}


def moved(start: Any, direction: int, by: float, rest: float = 0.0) -> dict[str, torch.Tensor]:
    """`start` moved along one of its coordinates, and a little along all others."""
    params = {name: tensor.clone() for name, tensor in start.items()}
    for tensor in params.values():
        tensor += rest
    params["head.weight"].view(-1)[direction] += by
    return params


def is_leaf(server: ServerView[Any], node: str) -> bool:
    return f"{node}0" not in server.state["models"]


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_alike_clients_stay_together(seed: int) -> None:
    federation = small_federation(20, seed)
    alike = Federation([client for client in federation.values() if client.group == "g0"], federation.task)
    _, outcome = after(Cfl(), 20, alike, local_steps=10)
    assert set(outcome.graph.groups.values()) == {0}


def test_every_split_keeps_all_members_in_one_of_the_two_parts() -> None:
    engine = LocalEngine(small_setup(Cfl(**EAGER), small_federation(8)))
    before = {"r": set(engine.setup.federation)}
    for number in range(1, 8):
        engine.round(number)
        now: dict[str, set[str]] = {}
        for id, node in engine.server.state["node"].items():
            now.setdefault(node, set()).add(id)
        for node, members in before.items():
            if is_leaf(engine.server, node):
                assert now[node] == members
            else:
                assert now[f"{node}0"] | now[f"{node}1"] == members
                assert len(now[f"{node}0"]) >= len(now[f"{node}1"]) >= 1
        before = now
    assert max(map(len, before.values())) == 1


def test_a_split_by_hand() -> None:
    """Two clients pull up, three pull down; every part goes on from the cluster's model by its own mean update."""
    method = Cfl(eps1=0.9, eps2=1.0, scale="absolute")
    server = server_view(method, tuple("abcde"))
    start = server.initial
    pulls = {"a": 2.0, "b": -1.0, "c": -1.5, "d": 3.0, "e": -1.2}
    sizes = {"a": 10, "b": 30, "c": 20, "d": 5, "e": 10}
    one_ask(method, server, {id: Message(params=moved(start, 0, by), n=sizes[id]) for id, by in pulls.items()})
    assert server.state["node"] == {"a": "r1", "d": "r1", "b": "r0", "c": "r0", "e": "r0"}
    assert server.state["models"]["r"] is start
    for node, members in (("r0", "bce"), ("r1", "ad")):
        step = sum(sizes[id] * pulls[id] for id in members) / sum(sizes[id] for id in members)
        for name, tensor in moved(start, 0, step).items():
            torch.testing.assert_close(server.state["models"][node][name], tensor)
        side = server.state["directions"][node]["head.weight"].view(-1)
        assert side[0] == pytest.approx(-1.0 if node == "r0" else 1.0)
        assert float(side[1:].abs().max()) == 0
    assert present(server.graph).groups == {"a": 1, "b": 0, "c": 0, "d": 1, "e": 0}


@pytest.mark.parametrize(
    ("change", "splits"),
    [
        ({}, True), ({"eps1": 0.1}, False), ({"eps2": 2.1}, False), ({"after": 3}, True), ({"after": 4}, False),
        ({"min_size": 2}, True), ({"min_size": 3}, False), ({"gamma_max": 0.99}, True),
    ],
)  # fmt: skip
def test_each_condition_of_a_split(change: dict[str, Any], splits: bool) -> None:
    method = Cfl(**{"eps1": 0.6, "eps2": 1.0, "scale": "absolute", "weights": "equal", **change})
    server = server_view(method, tuple("abcde"), number=4)
    pulls = {"a": 1.0, "b": -2.0, "c": -1.0, "d": 1.0, "e": -1.0}  # the mean is -0.4 long, the longest 2
    one_ask(method, server, {id: Message(params=moved(server.initial, 0, by), n=1) for id, by in pulls.items()})
    assert (len(server.state["models"]) == 3) == splits


def test_shares_of_the_first_rounds_largest_update() -> None:
    method = Cfl(eps1=0.25, eps2=0.5, weights="equal")
    server = server_view(method, tuple("ab"))
    # |mean| = 4, then 0.9 and 1.1; the largest = 4, so that the limits are 1 and 2.
    for number, (one, other, nodes) in enumerate([(4.0, 4.0, 1), (3.2, -1.0, 1), (1.9, -1.9, 1), (2.9, -1.1, 3)], 1):
        server.round = number
        start = server.state["models"]["r"]
        pulls = {"a": one, "b": other}
        one_ask(method, server, {id: Message(params=moved(start, 0, by), n=1) for id, by in pulls.items()})
        assert len(server.state["models"]) == nodes
    assert server.state["largest"] == pytest.approx(4.0)


def split_server(method: Cfl) -> ServerView[Any]:
    """Everyone split by the sign of the first coordinate, then the second part by that of the second."""
    server = server_view(method, tuple("abcdxy"))
    pulls = {"a": (0, 1.0), "b": (0, 1.0), "c": (0, -1.0), "d": (0, -1.5)}
    one_ask(method, server, {id: Message(params=moved(server.initial, *pull), n=3) for id, pull in pulls.items()})
    return server


def test_clients_that_missed_a_split_are_placed_when_they_are_next_sampled() -> None:
    method = Cfl(eps1=1.2, eps2=0.5, scale="absolute")
    server = split_server(method)
    where = server.state["node"]
    assert where == {"a": "r1", "b": "r1", "c": "r0", "d": "r0", "x": "r", "y": "r"}
    assert method.offer(server, "x")["params"] is server.state["models"]["r"]
    flow = method.round(server, ["a", "x", "y"])
    ask = next(flow)
    assert ask.phase == "settle"
    assert set(ask.messages) == {"x", "y"}
    assert all(message["params"] is server.state["models"]["r"] for message in ask.messages.values())
    start = server.state["models"]["r"]
    ask = flow.send({"x": Message(params=moved(start, 0, 0.1, rest=0.03))})  # y's answer is lost
    assert ask.phase == "train"
    assert set(ask.messages) == {"a", "x"}
    assert all(message["params"] is server.state["models"]["r1"] for message in ask.messages.values())
    assert server.state["node"]["x"] == "r1"
    assert server.state["node"]["y"] == "r"


@pytest.mark.slow
@given(st.integers(0, 99))
def test_a_newcomer_goes_where_its_updates_cosine_is_larger(seed: int) -> None:
    method = Cfl(eps1=1e9, eps2=0.0, scale="absolute")
    server = server_view(method, tuple("abcd"))
    rng = np.random.default_rng(seed)

    def step() -> dict[str, torch.Tensor]:
        return {
            name: tensor + torch.from_numpy(rng.normal(size=tuple(tensor.shape)).astype(np.float32))
            for name, tensor in server.initial.items()
        }

    def flat(params: Any) -> Any:
        return np.concatenate([(params[n] - server.initial[n]).double().numpy().ravel() for n in sorted(params)])

    sent = {id: step() for id in "abcd"}
    one_ask(method, server, {id: Message(params=params, n=2) for id, params in sent.items()})
    where = dict(server.state["node"])
    u = {id: flat(params) / np.linalg.norm(flat(params)) for id, params in sent.items()}
    means = [sum(u[id] for id in u if where[id] == f"r{label}") for label in (0, 1)]
    new = step()
    cosines = [float(flat(new) @ mean) / np.linalg.norm(mean) for mean in means]
    placing = method.placed(server, ["late"])
    next(placing)
    assert finish(placing, {"late": Message(params=new)}) == {"late": f"r{int(cosines[1] > cosines[0])}"}
