"""The tests behind a graph's groups: what is recorded of a tree of tests, and that it comes back as it was."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin.errors import GraphError
from fedkin.graph import Evidence, Graph, Node, Plan, Spread, Verdicts, find, load_graph, oracle, sign


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
    assert again.evidence is not None
    assert again.evidence.nodes == found.evidence.nodes
    assert again.evidence.leaf == found.evidence.leaf
    assert again.digest() == graph.digest()
    assert list(again.values["verdict"]) == [found.by_client[id] for id in again.ids]
    again.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_other_tests_are_another_graph(found: Verdicts) -> None:
    graph = graph_of(found)
    less = replace(found.evidence, leaf={id: leaf for id, leaf in found.evidence.leaf.items() if id != "c9"})
    assert replace(graph, evidence=less).digest() != graph.digest()
    assert replace(graph, evidence=None).digest() != graph.digest()
    assert sum(less.sizes) < sum(found.evidence.sizes)


def test_graphs_without_tests_are_written_as_before(tmp_path: Path) -> None:
    graph = Graph(("a", "b"), np.zeros((2, 2)))
    graph.save(tmp_path / "a.npz")
    assert zipfile.ZipFile(tmp_path / "a.npz").namelist() == ["meta.npy", "ids.npy", "weights.npy"]
    assert load_graph(tmp_path / "a.npz").evidence is None
    # Of an older version: a graph of these values had this digest before there was evidence.
    assert graph.digest() == "f6da8857fb1291e6aea1f34675fe5af9"


def test_clients_that_joined_later_have_no_leaf(tmp_path: Path) -> None:
    node = Node(None, {"x": 0.5}, verdict="same")
    evidence = Evidence((node,), {"a": 0}, 0.001)
    graph = Graph(("a", "b"), np.zeros((2, 2)), groups={"a": 0, "b": 0}).tested({"a": "same", "b": "same"}, evidence)
    graph.save(tmp_path / "a.npz")
    again = load_graph(tmp_path / "a.npz").evidence
    assert again is not None
    assert again.leaf == {"a": 0}
    assert again.sizes == (1,)


ROOT = {"parent": None, "p": {"x": 1e-5}, "rejected": ["x"], "cut": "x", "verdict": None}
LEAF = {"parent": 0, "p": {"x": 0.5}, "rejected": [], "cut": None, "verdict": "same"}


@pytest.mark.parametrize(
    ("nodes", "leaf", "said"),
    [
        ([ROOT, LEAF, LEAF | {"parent": 2}], {}, "node 2 .* expected a parent from 0 to 1, got 2"),
        ([ROOT, LEAF | {"parent": None}], {}, "node 1 .* expected a parent from 0 to 0, got None"),
        ([ROOT | {"parent": 1}, LEAF], {}, "the first node is the root"),
        ([ROOT | {"p": {"x": 2}}], {}, "expected p-values from 0 to 1"),
        ([ROOT | {"p": {"x": float("nan")}}], {}, "expected p-values from 0 to 1"),
        ([ROOT | {"p": 3}], {}, "damaged"),
        ([{"parent": None}], {}, "damaged"),
        ([ROOT | {"rejected": ["y"]}], {}, "rejects y, but has p-values of x"),
        ([ROOT | {"verdict": 3}], {}, "expected texts for cut and verdict"),
        ([ROOT, LEAF], {"a": 0}, "'a' ends at node 0, which is no leaf"),
        ([ROOT, LEAF], {"a": 7}, "'a' ends at node 7"),
        ([ROOT, LEAF], {"a": "1"}, "'a' ends at node '1'"),
    ],
)
def test_what_is_no_tree_of_tests_is_refused(nodes: list[Any], leaf: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        Evidence.of(nodes, leaf, 0.001)


@pytest.mark.parametrize("alpha", [2, "small", True, float("nan")])
def test_a_level_is_a_probability(alpha: Any) -> None:
    with pytest.raises(GraphError, match=r"alpha is .* expected a number from 0 to 1"):
        Evidence.of([LEAF | {"parent": None}], {}, alpha)


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
