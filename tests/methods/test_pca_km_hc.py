"""PCA+kM+HC against scikit-learn's PCA and k-means and scipy's hierarchy; what is done once, what every round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist, squareform
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from fedkin.engines import LocalEngine
from fedkin.federation import Client, Federation, Task
from fedkin.graph import ari
from fedkin.methods.blocks.vectors import centres_of
from fedkin.methods.pca_km_hc import PcaKmHc, factor
from support import after, present, samples_of, small_federation, small_setup, stored


def places(sets: Sequence[tuple[int, ...]], seed: int = 0, each: int = 14, width: int = 12) -> Federation:
    """One client per set of classes, out of six; each class is a place in space. Ids are shuffled."""
    rng = np.random.default_rng(seed)
    spots = rng.normal(size=(6, width)) * 3
    names = rng.permutation([f"site-{k:02d}" for k in range(len(sets))])
    clients = []
    for name, classes in zip(names, sets, strict=True):
        y = np.repeat(classes, each)
        samples = samples_of(spots[y] + rng.normal(size=(len(y), width)), y)
        clients.append(Client(str(name), samples, samples, group="+".join(map(str, classes))))
    return Federation(clients, Task(6, (width,)))


THREE = [(0, 1)] * 4 + [(2, 3)] * 3 + [(4, 5)] * 5


def agrees(federation: Federation, found: Any) -> bool:
    planted = present(federation.planted)
    return ari([planted[id] for id in found], list(found.values())) == 1


@pytest.mark.slow
@given(st.integers(2, 5), st.integers(1, 9), st.integers(0, 30))
def test_the_common_basis_is_the_pca_of_everyones_samples(clients: int, components: int, seed: int) -> None:
    federation = small_federation(clients, seed, width=6)
    engine, _ = after(PcaKmHc(components=components), 1, federation, dtype=torch.float64, local_steps=1)
    pooled = torch.cat([stored(client.train) for client in federation.values()]).double().numpy()
    want = PCA(min(components, 6), svd_solver="full").fit(pooled)
    basis = engine.server.state["basis"]
    np.testing.assert_allclose(basis["mean"].numpy(), want.mean_, atol=1e-9)
    axes = basis["axes"].numpy()
    assert axes.shape == want.components_.shape
    np.testing.assert_allclose(np.abs((axes * want.components_).sum(1)), 1, atol=1e-8)
    assert (axes[np.arange(len(axes)), np.abs(axes).argmax(1)] > 0).all()


def test_a_factor_of_low_rank_is_the_best_one() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 6)) * np.array([9, 5, 3, 1, 0.5, 0.1]))
    mean, rows = factor(x, 20)
    centred = x - x.mean(0)
    torch.testing.assert_close(mean, x.mean(0))
    torch.testing.assert_close(rows.T @ rows, centred.T @ centred)
    _, few = factor(x, 2)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    torch.testing.assert_close(few.T @ few, (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T)
    assert factor(x[:3], 20)[1].shape == (2, 6)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 30))
def test_centres_are_those_of_scikit_learn(count: int, k: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(count, 3))
    found = centres_of(torch.from_numpy(x), k, seed, starts=4)
    want = KMeans(min(k, count), n_init=4, random_state=seed).fit(x).cluster_centers_
    np.testing.assert_allclose(found.numpy(), want[np.lexsort(want.T[::-1])], atol=1e-9)


@pytest.mark.parametrize("clusters", [3, None])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_planted_groups_of_classes_are_found(clusters: int | None, seed: int) -> None:
    federation = places(THREE, seed)
    engine, outcome = after(PcaKmHc(clusters=clusters, centres=2, components=4), 1, federation)
    assert agrees(federation, outcome.graph.groups)
    assert len(engine.server.state["models"]) == 3


def test_groups_are_scipys_hierarchy_on_distances_written_out() -> None:
    federation = places([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 1), (3, 4)], each=20)
    method = PcaKmHc(clusters=4, centres=3, components=5)
    engine, _ = after(method, 1, federation)
    ids = sorted(federation)
    sets = [engine.server.state["signatures"][id].double().numpy() for id in ids]
    d = np.zeros((len(ids), len(ids)))
    for i, one in enumerate(sets):
        for j, other in enumerate(sets):
            cost = cdist(one, other, "sqeuclidean")
            d[i, j] = np.sqrt(cost[linear_sum_assignment(cost)].sum()) / 3
    want = fcluster(linkage(squareform(d, checks=False), "average"), 4, "maxclust")
    assert ari(want, [engine.server.state["group"][id] for id in ids]) == 1


def test_signing_happens_once_and_has_its_own_phases() -> None:
    federation = places(THREE)
    engine = LocalEngine(small_setup(PcaKmHc(components=4), federation, clients_per_round=3))
    first = Counter((m.phase, m.sender == "server") for m in engine.round(1).traffic)
    assert first == {
        ("moments", False): 12, ("sign", True): 12, ("sign", False): 12, ("train", True): 3, ("train", False): 3
    }  # fmt: skip
    later = engine.round(2)
    assert Counter(m.phase for m in later.traffic) == {"train": 6}
    assert len(later.sampled) == 3


def test_a_signature_is_k_centres_in_the_basis() -> None:
    federation = places(THREE)
    engine = LocalEngine(small_setup(PcaKmHc(components=4, centres=5), federation))
    traffic = engine.round(1).traffic
    assert {m.floats for m in traffic if m.phase == "sign" and m.receiver == "server"} == {5 * 4}
    assert {m.floats for m in traffic if m.phase == "sign" and m.sender == "server"} == {12 + 4 * 12}
    assert {m.floats for m in traffic if m.phase == "moments"} == {12 + 12 * 12}


def test_clients_whose_signature_was_lost_are_asked_again_and_attached() -> None:
    federation = places(THREE * 2)
    method = PcaKmHc(clusters=3, centres=2)
    engine, _ = after(method, 1, federation, dropout=0.4, seed=1, clients_per_round=2)
    missing = set(federation) - set(engine.server.state["signatures"])
    assert missing
    fixed = dict(engine.server.state["group"])
    for number in range(2, 9):
        outcome = engine.round(number)
        assert {id for id in missing if id not in fixed} <= {m.receiver for m in outcome.traffic if m.phase == "sign"}
        assert fixed.items() <= engine.server.state["group"].items()
        fixed = dict(engine.server.state["group"])
        missing = set(federation) - set(fixed)
    assert not missing
    assert agrees(federation, fixed)
