from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from sklearn.metrics import silhouette_score

from fedkin import graph as g
from fedkin.graph.picture import places
from graph.strategies import affinities, planted


@given(affinities())
def test_places_are_finite_bounded_and_repeatable(a: Any) -> None:
    place = places(a, seed=1)
    assert place.shape == (len(a), 2)
    assert np.isfinite(place).all()
    linked = a.any(axis=1)
    assert (np.abs(place[linked]) <= 1 + 1e-9).all()
    assert (place[~linked, 1] < -1.2).all()
    np.testing.assert_array_equal(places(sp.csr_array(a), seed=1), place)


def test_groups_lie_apart() -> None:
    a, labels = planted(3, 20, inside=0.6, across=0.01)
    place = places(a, seed=0)
    assert silhouette_score(place, labels) > 0.4


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("most", [300, 10])
def test_the_page_holds_everything(kind: Any, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.graph.picture._LARGEST_MATRIX", most)
    a, _ = planted(3, 5, inside=1.0, across=0.1)
    a[0] = a[:, 0] = 0
    ids = tuple(f"c{row}" for row in range(15))
    graph = g.Graph(ids, kind(a), groups=g.by_id(ids, g.louvain(a)))
    g.draw(graph, tmp_path / "one.html", title="A <title>")
    page = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert "<h1>A &lt;title&gt;</h1>" in page
    assert "groups of one (1)" in page
    assert ("means over 3 clients" in page) == (most == 10)
    g.draw(graph, tmp_path / "two.html", title="A <title>")
    assert page == (tmp_path / "two.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("clients", [300, pytest.param(1999, marks=pytest.mark.slow)])
def test_a_page_is_small_enough_to_send_and_loads_nothing(clients: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients, 8)) + 4 * np.eye(8)[np.arange(clients) % 5]
    weights, ids = g.knn_graph(x, 10), tuple(f"client-{row:04d}" for row in range(clients))
    g.draw(g.Graph(ids, weights, groups=g.by_id(ids, np.arange(clients) % 5)), tmp_path / "g.html", title="many")
    page = (tmp_path / "g.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 1_500_000
    assert "https://" not in page
    assert "default-src 'none'" in page
