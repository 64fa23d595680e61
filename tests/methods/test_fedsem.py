"""FedSEM: its E and M steps against plain numpy, and what k-means on weights finds."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from fedkin.flow import Message
from fedkin.methods.blocks import vectors
from fedkin.methods.blocks.clusters import squared_distances
from fedkin.methods.fedsem import FedSem, first_groups, opened
from fedkin.views import ServerView
from support import after, flat, one_ask, server_view


def some_params(server: ServerView[Any], rng: np.random.Generator, near: float = 0.0) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(rng.normal(near, 1.0, tuple(tensor.shape)).astype(np.float32))
        for name, tensor in server.initial.items()
    }


@pytest.mark.slow
@given(st.integers(2, 7), st.integers(0, 9))
def test_e_and_m_step_by_hand(count: int, seed: int) -> None:
    method = FedSem(clusters=3)
    rng = np.random.default_rng(seed)
    server = server_view(method, tuple(f"c{k}" for k in range(count)))
    centres = {str(k): some_params(server, rng, near=k) for k in range(3)}
    server.state["models"] = dict(reversed(centres.items()))  # a checkpoint does not keep the order
    replies = {
        f"c{k}": Message(params=some_params(server, rng, near=int(rng.integers(3))), n=int(rng.integers(1, 9)))
        for k in range(count)
    }
    one_ask(method, server, replies)
    nearest = {
        id: min(centres, key=lambda k: float(((flat(centres[k]) - flat(reply["params"])) ** 2).sum()))
        for id, reply in replies.items()
    }
    assert server.state["cluster"] == nearest
    for k, old in centres.items():
        members = [replies[id] for id in replies if nearest[id] == k]
        if not members:
            assert server.state["models"][k] is old
            continue
        n = np.array([reply["n"] for reply in members], dtype=float)
        want = n @ np.stack([flat(reply["params"]) for reply in members]) / n.sum()
        np.testing.assert_allclose(flat(server.state["models"][k]), want, atol=1e-5)


def test_a_client_gets_its_own_centre_only_and_others_the_members_mean() -> None:
    method = FedSem(clusters=2)
    rng = np.random.default_rng(1)
    ids = ("a", "b", "c", "d")
    server = server_view(method, ids)
    replies = {id: Message(params=some_params(server, rng, near=9.0 * (id == "c")), n=5) for id in "abc"}
    asked = one_ask(method, server, replies)
    assert all(message["params"] is server.initial for message in asked.values())
    models, where = server.state["models"], server.state["cluster"]
    assert where["a"] == where["b"] != where["c"]
    assert method.offer(server, "a")["params"] is models[where["a"]]
    assert set(method.offer(server, "a")) == {"params"}
    want = (2 * flat(models[where["a"]]) + flat(models[where["c"]])) / 3
    np.testing.assert_allclose(flat(method.offer(server, "d")["params"]), want, atol=1e-5)
    where_before = dict(where)
    one_ask(method, server, {"c": Message(params=some_params(server, rng, near=9.0), n=5)})
    assert {id: server.state["cluster"][id] for id in "ab"} == {id: where_before[id] for id in "ab"}


@pytest.mark.slow
@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 50))
def test_first_groups_are_k_means_of_the_weights(count: int, clusters: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 30)) + 6 * rng.integers(0, 3, (count, 1))
    labels = first_groups(x @ x.T, clusters, seed)

    def inertia(found: Any) -> float:
        return float(sum(((x[found == k] - x[found == k].mean(0)) ** 2).sum() for k in np.unique(found)))

    best = KMeans(min(clusters, count), n_init=30, random_state=0).fit(x).inertia_
    assert inertia(labels) <= best * 1.05 + 1e-9
    turn = rng.permutation(count)
    assert np.array_equal(first_groups(x[turn] @ x[turn].T, clusters, seed), labels[turn])


def test_centres_are_opened_at_the_farthest_client_until_there_are_enough() -> None:
    x = np.array([[0.0], [1.0], [10.0], [4.0]])
    between = (x - 0.0) ** 2
    wide = opened(between, x @ x.T, 3)
    np.testing.assert_allclose(wide[:, 1], ((x - 10) ** 2)[:, 0])
    np.testing.assert_allclose(wide[:, 2], ((x - 4) ** 2)[:, 0])
    assert opened(np.zeros((3, 1)), np.zeros((3, 3)), 3).shape == (3, 1)


def test_one_client_a_round_still_gives_all_centres() -> None:
    engine, outcome = after(FedSem(clusters=3), 12, clients_per_round=1)
    assert sorted(engine.server.state["models"]) == ["0", "1", "2"]
    assert set(outcome.graph.groups) == set(engine.server.state["cluster"])


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 20), st.sampled_from([1, 7, 1 << 18]))
def test_distances_and_inner_products_are_those_of_whole_vectors(rows: int, centres: int, seed: int, held: int) -> None:
    rng = np.random.default_rng(seed)

    def params() -> dict[str, torch.Tensor]:
        return {"w": torch.from_numpy(rng.normal(size=(3, 4))), "b": torch.from_numpy(rng.normal(size=5))}

    one, two, origin = [params() for _ in range(rows)], [params() for _ in range(centres)], params()
    names = ["b", "w"]
    whole = np.array([flat(p) - flat(origin) for p in one])
    with patch.object(vectors, "_BLOCK", held):
        found = vectors.inner_products_of_params(one, names, origin)
        np.testing.assert_allclose(found, whole @ whole.T, atol=1e-9)
        np.testing.assert_array_equal(found, found.T)
        rows_as_tensors = [torch.from_numpy(row) for row in whole]
        np.testing.assert_allclose(vectors.inner_products(rows_as_tensors), whole @ whole.T, atol=1e-9)
        want = [[((flat(p) - flat(q)) ** 2).sum() for q in two] for p in one]
        np.testing.assert_allclose(squared_distances(one, two, names), want, atol=1e-9)


def test_distances_between_heads_look_at_heads_only() -> None:
    method = FedSem(compare="head")
    server = server_view(method, ("a",))
    assert method.compared(server) == ["head.weight", "head.bias"]
    assert len(FedSem().compared(server)) == 4
