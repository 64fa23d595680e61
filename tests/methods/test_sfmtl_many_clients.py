"""SFMTL-Graph with more clients than a matrix of all pairs is made for, on few clients with a low limit."""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.methods.sfmtl_graph import SfmtlGraph
from support import Watched, small_setup

LARGEST = "fedkin.methods.sfmtl_graph.LARGEST"


def in_groups(clients: int, seed: int = 0, classes: int = 4) -> Federation:
    """Clients of three groups, which have other places for the same classes; some clients lack a class."""
    rng = np.random.default_rng(seed)
    places = 2 * rng.normal(size=(3, classes, 6))
    made = []
    for number in range(clients):
        group = int(rng.integers(3))
        y = np.concatenate([np.arange(classes - int(rng.integers(2))), rng.integers(classes - 1, size=8)])
        x = (places[group, y] + 0.4 * rng.normal(size=(len(y), 6))).astype(np.float32)
        samples = Samples(torch.from_numpy(x), torch.from_numpy(y))
        made.append(Client(f"client-{number:03d}", samples, samples, group=f"g{group}"))
    return Federation(made, Task(classes, (6,)))


def after(method: SfmtlGraph, federation: Federation, rounds: int = 1) -> tuple[Watched, Any]:
    engine = Watched(small_setup(method, federation, dtype=torch.float64))
    outcome = None
    for number in range(1, rounds + 1):
        outcome = engine.round(number)
    assert outcome is not None
    return engine, outcome


@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(
    clients=st.integers(3, 14),
    seed=st.integers(0, 5),
    similarity=st.sampled_from(["both", "heads", "anchors"]),
    match=st.sampled_from(["union", "shared", "rows"]),
    sparsify=st.sampled_from(["none", "knn:3", "mutual:3", "epsilon:0.5"]),
)
def test_with_complete_neighbours_it_is_the_matrix_of_all_pairs(
    clients: int, seed: int, similarity: str, match: str, sparsify: str
) -> None:
    federation = in_groups(clients, seed)
    method = SfmtlGraph(lam=0.3, graph={"similarity": similarity, "match": match, "sparsify": sparsify})
    one, dense = after(method, federation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LARGEST, 2)
        other, sparse = after(method, federation)
    assert isinstance(sparse.graph.weights, sp.csr_array)
    np.testing.assert_allclose(sparse.graph.weights.toarray(), np.asarray(dense.graph.weights), atol=1e-12)
    assert sparse.graph.groups == dense.graph.groups
    for id in federation:
        for name, tensor in one.model(id).items():
            torch.testing.assert_close(tensor, other.model(id)[name], rtol=1e-9, atol=1e-11)


def test_the_same_seed_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LARGEST, 20)
    federation = in_groups(90)
    (one, first), (other, second) = (after(SfmtlGraph(share="model"), federation, rounds=2) for _ in range(2))
    assert np.array_equal(first.graph.weights.toarray(), second.graph.weights.toarray())
    for id in federation:
        assert all(torch.equal(tensor, other.model(id)[name]) for name, tensor in one.model(id).items())


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ({"groups": "hierarchical:2"}, "method.graph.groups: 12 clients in a round"),
        ({"similarity": "rbf"}, "method.graph.similarity: 12 clients in a round"),
        ({"sparsify": "gamma:auto"}, "method.graph.sparsify: 12 clients in a round"),
    ],
)
def test_what_compares_all_pairs_is_refused(graph: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LARGEST, 8)
    trained: list[str] = []
    train = SfmtlGraph.train

    @wraps(train)
    def noting(self: SfmtlGraph, client: Any, sent: Any) -> Any:
        trained.append(client.id)
        return train(self, client, sent)

    monkeypatch.setattr(SfmtlGraph, "train", noting)
    with pytest.raises(ConfigError, match=message):
        after(SfmtlGraph(graph=graph), in_groups(12))
    assert trained == []
