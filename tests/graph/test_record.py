"""Graphs as values: saved, loaded, exported, with the tests behind their groups."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin import graph as g
from fedkin.errors import GraphError
from fedkin.graph import Evidence, Graph, Plan, Spread, Verdicts, find, load_graph, oracle, sign
from fedkin.graph.record import Node
from graph.strategies import affinities, dense
from support import present

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=6)


@st.composite
def graphs(draw: Any) -> g.Graph:
    a = draw(affinities(most=5))
    n = len(a)
    ids = tuple(draw(st.lists(names, min_size=n, max_size=n, unique=True)))
    directed = draw(st.booleans())
    weights = np.triu(a) if directed else a
    return g.Graph(
        ids,
        sp.csr_array(weights) if draw(st.booleans()) else weights,
        groups={id: draw(st.integers(-2, 3)) for id in ids} if draw(st.booleans()) else None,
        directed=directed,
        round=draw(st.none() | st.integers(0, 99)),
        values={"prior": np.arange(n) / 7, "mixed rows": np.ones((n, 2, 3), np.float32), "name": np.array(ids)},
        mixing=draw(st.sampled_from([None, np.eye(n), sp.csr_array(np.eye(n))])),
    )


def _assert_equal(one: g.Graph, two: g.Graph) -> None:
    assert (one.ids, one.groups, one.directed, one.round) == (two.ids, two.groups, two.directed, two.round)
    for a, b in ((one.weights, two.weights), (one.mixing, two.mixing)):
        assert type(a) is type(b)
        if a is not None:
            np.testing.assert_array_equal(dense(a), dense(b))
    assert one.values.keys() == two.values.keys()
    for name, value in one.values.items():
        assert value.dtype == two.values[name].dtype
        np.testing.assert_array_equal(value, two.values[name])


@pytest.mark.slow
@given(graphs())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_saved_and_loaded_is_the_same_and_in_the_same_bytes(tmp_path: Path, graph: g.Graph) -> None:
    path, again = tmp_path / "graph.npz", tmp_path / "again.npz"
    graph.save(path)
    loaded = g.load_graph(path)
    _assert_equal(loaded, graph)
    loaded.save(again)
    assert path.read_bytes() == again.read_bytes()


@pytest.mark.slow
@given(graphs())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_digest_is_of_all_but_the_round(tmp_path: Path, graph: g.Graph) -> None:
    graph.save(tmp_path / "graph.npz")
    assert g.load_graph(tmp_path / "graph.npz").digest() == graph.digest()
    assert dataclasses.replace(graph, round=1234).digest() == graph.digest()
    n = len(graph.ids)
    others = [
        {"ids": tuple(f"{id}!" for id in graph.ids), "groups": None},
        {"weights": dense(graph.weights) + np.eye(n)},
        {"groups": dict(zip(graph.ids, range(7, 7 + n), strict=True))},
        {"directed": not graph.directed, "weights": np.zeros((n, n))},
        {"values": {**graph.values, "prior": np.arange(n) / 7 + 1e-12}},
        {"values": {}},
        {"mixing": np.full((n, n), 0.5)},
    ]
    assert all(dataclasses.replace(graph, **other).digest() != graph.digest() for other in others)


def _three(**change: Any) -> g.Graph:
    a = np.array([[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]])
    plain = g.Graph(
        ("ann", "bob", "cy"), a, groups={"ann": 0, "bob": 0, "cy": 1}, round=3, values={"prior": np.ones(3) / 3}
    )
    return dataclasses.replace(plain, **change)


def test_every_cut_and_every_foreign_file_is_one_graph_error(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    _three().save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(GraphError, match=r"graph\.npz"):
            g.load_graph(path)
    for start in range(0, len(whole), 97):
        path.write_bytes(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
        with contextlib.suppress(GraphError):
            _assert_equal(g.load_graph(path), _three())
    for text in (b"", b"hello", b"PK\x03\x04"):
        path.write_bytes(text)
        with pytest.raises(GraphError, match="not a graph file saved by fedkin"):
            g.load_graph(path)
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    np.save(tmp_path / "one.npy", np.ones(3))
    np.savez(tmp_path / "pickle.npz", meta=np.array([{"format": 1}], dtype=object), ids=np.array(["a"]))
    for name in ("other.npz", "one.npy", "pickle.npz", "."):
        with pytest.raises(GraphError, match="not a graph file"):
            g.load_graph(tmp_path / name)
    with pytest.raises(GraphError, match="no such file"):
        g.load_graph(tmp_path / "none.npz")


def test_a_newer_format_and_inconsistent_arrays_say_so(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    meta = {"format": 9, "directed": False, "round": None}
    np.savez(path, meta=np.array(json.dumps(meta)), ids=np.array(["a"]), weights=np.zeros((1, 1)))
    with pytest.raises(GraphError, match="graph format 9; this version reads 1"):
        g.load_graph(path)
    meta["format"] = 1
    np.savez(path, meta=np.array(json.dumps(meta)), ids=np.array(["a"]), weights=np.zeros((2, 2)))
    with pytest.raises(GraphError, match=r"g\.npz: weights: expected 1 rows"):
        g.load_graph(path)
    part = {"weights/data": [1.0], "weights/indices": [7], "weights/indptr": [0, 1]}
    np.savez(path, meta=np.array(json.dumps(meta)), ids=np.array(["a"]), **part)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="not a graph file"):
        g.load_graph(path)


@given(graphs())
def test_as_a_networkx_graph(graph: g.Graph) -> None:
    there = graph.to_networkx()
    assert there.is_directed() == graph.directed
    assert list(there) == list(graph.ids)
    edges: Any = there.edges(data="weight")
    assert {(a, b): w for a, b, w in edges} == {(a, b): w for a, b, w in graph.edges()}
    if graph.groups is not None:
        assert {id: there.nodes[id]["group"] for id in graph.ids} == dict(graph.groups)


@given(graphs())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_json_and_csv_are_read_back(tmp_path: Path, graph: g.Graph) -> None:
    graph.to_json(tmp_path / "g.json")
    read = nx.node_link_graph(json.loads((tmp_path / "g.json").read_text(encoding="utf-8")), edges="edges")
    assert dict(read.nodes) == dict(graph.to_networkx().nodes)
    assert list(read.edges(data="weight")) == list(graph.to_networkx().edges(data="weight"))
    graph.to_csv(tmp_path / "g.csv")
    with (tmp_path / "g.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["source", "target", "weight"]
    # An apostrophe in front is no part of the id: it keeps a spreadsheet from reading a formula.
    assert [(a.removeprefix("'"), b.removeprefix("'"), float(w)) for a, b, w in rows[1:]] == graph.edges()


@pytest.mark.parametrize("directed", [False, True])
def test_graphml_is_read_back_by_networkx(tmp_path: Path, directed: bool) -> None:
    ids = ("ann & <bob>", 'c"y', "dé 好")
    a = np.array([[0.0, 0.1, 0], [0, 0, 1e-300], [0, 0, 2.5]])
    graph = g.Graph(
        ids, a if directed else a + np.triu(a, 1).T, groups=dict.fromkeys(ids, 1), directed=directed, round=4,
        values={"prior": np.array([0.25, 0.5, 1 / 3]), "seen": np.array([True, False, True]),
                "site": np.array(["x", "y", "z"]), "rows": np.ones((3, 2))},
    )  # fmt: skip
    graph.to_graphml(tmp_path / "g.graphml")
    read = nx.read_graphml(tmp_path / "g.graphml")
    assert read.is_directed() == directed
    assert read.graph["round"] == 4
    assert dict(read.nodes) == dict(graph.to_networkx().nodes)
    assert "rows" not in read.nodes["dé 好"]
    assert list(read.edges(data="weight")) == list(graph.to_networkx().edges(data="weight"))


def test_what_a_format_cannot_hold_is_said(tmp_path: Path) -> None:
    odd = g.Graph(("a\x01",), np.zeros((1, 1)), values={"x": np.array([np.inf])})
    with pytest.raises(GraphError, match="control character"):
        odd.to_graphml(tmp_path / "g.graphml")
    with pytest.raises(GraphError, match="not finite"):
        odd.to_json(tmp_path / "g.json")


def test_edges_are_listed_once_and_loops_kept() -> None:
    assert _three().edges() == [("ann", "bob", 0.5)]
    looped = _three(weights=np.diag([1.0, 0, 0]))
    assert looped.edges() == [("ann", "ann", 1.0)]
    assert _three().labels.tolist() == [0, 0, 1]
    with pytest.raises(GraphError, match="no groups"):
        _ = _three(groups=None).labels


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ids": ("ann", "ann", "cy")}, "'ann' occurs twice, again in row 1"),
        ({"ids": ("ann", "", "cy")}, "row 1 is ''; expected a non-empty text"),
        ({"ids": ("ann", 2, "cy")}, "row 1 is 2"),
        ({"ids": "abc"}, "expected a tuple of texts"),
        ({"ids": ("ann", "bob")}, "weights: expected 2 rows, one per id, got 3"),
        ({"weights": np.triu(np.ones((3, 3)))}, "weights: not symmetric"),
        ({"weights": np.full((3, 3), np.nan)}, "row 0, column 0 is not finite"),
        ({"mixing": np.eye(2)}, "mixing: expected 3 rows"),
        ({"groups": {"ann": 0, "bob": 1}}, "groups: 'cy' has none"),
        ({"groups": {"ann": 0, "bob": 1, "cy": 1, "dan": 2}}, "'dan' is not among the ids"),
        ({"groups": {"ann": 0, "bob": 1.5, "cy": 1}}, "'bob' has 1.5; expected a whole number"),
        ({"values": {"prior": np.ones(2)}}, r"values\['prior'\]: expected .* first axis 3 clients"),
        ({"values": {"prior": np.array([None] * 3)}}, "expected numbers or text"),
        ({"values": {"a/b": np.ones(3)}}, "names without '/'"),
    ],
)
def test_errors_name_what_is_wrong(change: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        _three(**change)


# -- evidence ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Verdicts:
    """Three groups of three and one client by itself, of inputs alone."""
    rng = np.random.default_rng(3)
    data = {f"c{i}": rng.normal(size=(70, 5)) + (40 if i == 9 else 3 * (i % 3)) for i in range(10)}
    plan = Plan.of(Spread.of(x) for x in data.values())
    return find({id: sign(plan, x) for id, x in data.items()})


def graph_of(found: Verdicts) -> Graph:
    graph = Graph(found.ids, oracle(found.labels), groups=found.groups, round=4)
    return graph.tested(found.by_client, found.evidence)


def test_the_record_is_the_tree_that_find_made(found: Verdicts) -> None:
    evidence = found.evidence
    assert evidence.alpha == found.alpha
    for node, tested, children, size in zip(found.tree, evidence.nodes, evidence.children, evidence.sizes, strict=True):
        assert (tested.parent, list(tested.rejected), tested.cut, tested.verdict) == (
            node["parent"], node["rejected"], node["cut"], node["verdict"],
        )  # fmt: skip
        assert list(children) == node["children"]
        assert size == len(node["clients"])
        assert tested.p == pytest.approx(node["p"], rel=0.01)
    for id, leaf in evidence.leaf.items():
        assert id in found.tree[leaf]["clients"]
        assert not found.tree[leaf]["children"]
    assert set(evidence.leaf) == set(found.ids)


def test_it_comes_back_from_the_file(found: Verdicts, tmp_path: Path) -> None:
    graph = graph_of(found)
    graph.save(tmp_path / "a.npz")
    again = load_graph(tmp_path / "a.npz")
    evidence = present(again.evidence)
    assert evidence.nodes == found.evidence.nodes
    assert evidence.leaf == found.evidence.leaf
    assert again.digest() == graph.digest()
    assert list(again.values["verdict"]) == [found.by_client[id] for id in again.ids]
    again.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


ROOT = {"parent": None, "p": {"x": 1e-5}, "rejected": ["x"], "cut": "x", "verdict": None}
LEAF = {"parent": 0, "p": {"x": 0.5}, "rejected": [], "cut": None, "verdict": "same"}


@pytest.mark.parametrize(
    ("nodes", "leaf", "said"),
    [
        ([ROOT, LEAF, LEAF | {"parent": 2}], {}, "node 2 of the tree of tests is damaged"),
        ([ROOT, LEAF | {"parent": None}], {}, "node 1 of the tree of tests is damaged"),
        ([ROOT | {"parent": 1}, LEAF], {}, "node 0 of the tree of tests is damaged"),
        ([ROOT | {"p": {"x": 2}}], {}, "damaged"),
        ([ROOT | {"p": {"x": float("nan")}}], {}, "damaged"),
        ([ROOT | {"p": 3}], {}, "damaged"),
        ([{"parent": None}], {}, "damaged"),
        ([ROOT | {"rejected": ["y"]}], {}, "damaged"),
        ([ROOT | {"verdict": 3}], {}, "damaged"),
        ([ROOT, LEAF], {"a": 0}, "'a' ends at node 0, which is no leaf"),
        ([ROOT, LEAF], {"a": 7}, "'a' ends at node 7"),
        ([ROOT, LEAF], {"a": "1"}, "'a' ends at node '1'"),
    ],
)
def test_what_is_no_tree_of_tests_is_refused(nodes: list[Any], leaf: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        Evidence.of(nodes, leaf, 0.001)


def test_verdicts_and_leaves_are_of_the_graphs_clients() -> None:
    graph, node = Graph(("a", "b"), np.zeros((2, 2))), Node(None, {}, verdict="same")
    with pytest.raises(GraphError, match="'b' has none"):
        graph.tested({"a": "same"}, Evidence((node,), {"a": 0}, 0.001))
    with pytest.raises(GraphError, match="'c' is not among the ids"):
        graph.tested({"a": "same", "b": "same"}, Evidence((node,), {"c": 0}, 0.001))


@pytest.mark.parametrize("content", [b"{", b"[]", b"3", b"\xff", b"{}", json.dumps({"leaf": [0]}).encode()])
def test_damaged_evidence_in_a_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    Graph(("a", "b"), np.zeros((2, 2))).save(path)
    with zipfile.ZipFile(path, "a") as archive, archive.open("evidence.npy", "w") as entry:
        np.lib.format.write_array(entry, np.frombuffer(content, dtype=np.uint8))
    with pytest.raises(GraphError, match=r"a\.npz: evidence: not readable as a tree of tests") as caught:
        load_graph(path)
    assert "\n" not in str(caught.value)
