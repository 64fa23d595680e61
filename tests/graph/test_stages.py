"""Stages by name, fedkin's and a user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import tomli_w

import fedkin
from fedkin import graph
from fedkin import graph as g
from fedkin.errors import ConfigError, GraphError
from fedkin.graph import affinity
from fedkin.graph.stages import BUILT_IN, STAGES
from fedkin.running.experiment import load
from graph.strategies import assert_affinity, dense, kept_dense, planted
from support import small_federation
from tiny import TABLE

SIMILARITY = ["cosine", "dot", "l1", "l2", "rbf", "rbf:0.5"]
SPARSIFY = ["none", "epsilon:0.4", "knn:3", "mutual:3", "gamma:auto", "gamma:0.5"]
GROUPS = ["louvain", "leiden", "components", "hierarchical", "hierarchical:silhouette", "hierarchical:3",
          "kmeans:3", "single", "alone", "planted"]  # fmt: skip
CONTROL = ["none", "random", "uniform", "oracle", "shuffled", "self"]


@pytest.fixture
def clients() -> Any:
    """Vectors of 24 clients in three groups, in shuffled order, and the groups' names."""
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(["x", "y", "z"], 8))
    centre = {"x": [9.0, 0, 0, 1], "y": [0, 9.0, 0, 1], "z": [0, 0, 9.0, 1]}
    return np.array([centre[name] for name in truth]) + rng.normal(size=(24, 4)), truth


@pytest.mark.parametrize("similarity", SIMILARITY)
@pytest.mark.parametrize("sparsify", SPARSIFY)
def test_any_similarity_with_any_sparsifier(similarity: str, sparsify: str, clients: Any) -> None:
    s = g.similarity_stage(similarity)(clients[0])
    assert s.max() <= 1 + 1e-12
    a = kept_dense(g.sparsify_stage(sparsify)(s))
    assert_affinity(a)
    labels = g.groups_stage("louvain")(a, seed=1)
    # Of RBF's median scale, thresholds on 1 - S alone may be too narrow to link anyone.
    if similarity != "rbf:0.5":
        assert g.ari(clients[1], labels) > 0.2


@pytest.mark.parametrize("groups", GROUPS)
def test_groups_by_name(groups: str, clients: Any) -> None:
    x, truth = clients
    a = g.sparsify_stage("epsilon:0.4")(g.similarity_stage("cosine")(x))
    for kind in (a, sp.csr_array(a)):
        labels = g.groups_stage(groups)(kind, seed=3, resolution=1.0, planted=truth)
        np.testing.assert_array_equal(labels, g.canonical(labels))
        if groups not in ("single", "alone"):
            assert g.ari(truth, labels) == 1
    assert g.groups_stage("single")(a).max() == 0
    assert g.groups_stage("alone")(a).max() == 23


def test_groups_read_vectors_when_given(clients: Any) -> None:
    x, truth = clients
    nothing = np.zeros((24, 24))
    assert g.ari(truth, g.groups_stage("kmeans:3")(nothing, vectors=x)) == 1


def test_arguments_reach_the_stage(clients: Any) -> None:
    a, _ = planted(3, 60, inside=0.12, across=0.1)
    louvain = g.groups_stage("louvain")
    np.testing.assert_array_equal(louvain(a, seed=5, resolution=2.0), g.louvain(a, seed=5, resolution=2.0))
    np.testing.assert_array_equal(g.groups_stage("leiden")(a, seed=2), g.leiden(a, seed=2))
    s = g.cosine(clients[0])
    np.testing.assert_array_equal(g.sparsify_stage("knn:2")(s), g.knn(s, 2))
    np.testing.assert_array_equal(g.sparsify_stage("mutual:2")(s), g.knn(s, 2, mutual=True))
    np.testing.assert_array_equal(g.similarity_stage("rbf:0.5")(clients[0]), g.rbf(clients[0], 0.5))


def test_no_similarity_links_no_one_whatever_the_gap() -> None:
    for spec in ("gamma:auto", "gamma:5"):
        assert not dense(g.sparsify_stage(spec)(np.zeros((3, 3)))).any()


@pytest.mark.parametrize("name", CONTROL)
def test_control_by_name(name: str, clients: Any) -> None:
    x, truth = clients
    a = g.knn(g.cosine(x), 3)
    c = g.control_stage(name)(a, seed=7, planted=truth)
    expected: dict[str, Callable[[], Any]] = {
        "none": lambda: a,
        "random": lambda: affinity.random(a, seed=7),
        "uniform": lambda: affinity.uniform(a),
        "oracle": lambda: g.oracle(truth),
        "shuffled": lambda: affinity.shuffled(a, seed=7),
        "self": lambda: 0 * a,
    }
    np.testing.assert_array_equal(c, expected[name]())


@pytest.mark.parametrize("spec", ["oracle", "planted"])
def test_planted_groups_must_be_known(spec: str) -> None:
    stage: Any = g.control_stage(spec) if spec == "oracle" else g.groups_stage(spec)
    with pytest.raises(GraphError, match="needs the planted groups"):
        stage(np.eye(3))
    with pytest.raises(GraphError, match="planted: expected 3 labels"):
        stage(np.eye(3), planted=[0, 1])


@pytest.mark.parametrize(
    ("make", "spec", "says"),
    [
        (g.similarity_stage, "cosin", "unknown similarity 'cosin'.*did you mean 'cosine'"),
        (g.similarity_stage, "cosine:3", "'cosine' takes no argument"),
        (g.similarity_stage, "rbf:-1", "expected a number above 0"),
        (g.similarity_stage, "", "unknown similarity ''"),
        (g.sparsify_stage, "knn", "expected knn:K"),
        (g.sparsify_stage, "knn:", "expected knn:K"),
        (g.sparsify_stage, "knn:0", "whole number of at least 1 after the colon, got '0'"),
        (g.sparsify_stage, "knn:ten", "whole number of at least 1 after the colon, got 'ten'"),
        (g.sparsify_stage, "epsilon:-1", "expected a number of at least 0"),
        (g.sparsify_stage, "epsilon:nan", "expected a number of at least 0"),
        (g.sparsify_stage, "gamma", "expected gamma:auto or gamma:DISTANCE"),
        (g.sparsify_stage, "kn:5", "did you mean 'knn'"),
        (g.groups_stage, "louvian", "did you mean 'louvain'"),
        (g.groups_stage, "kmeans", "expected kmeans:N"),
        (g.groups_stage, "kmeans:auto", "whole number"),
        (g.groups_stage, "hierarchical:", "nothing after the colon"),
        (g.control_stage, "rand", "did you mean 'random'"),
        (g.control_stage, "random:1", "takes no argument"),
    ],
)
def test_a_spec_that_cannot_be_read_says_why(make: Any, spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(spec)


# -- own ---------------------------------------------------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("forgotten")
A = np.array([[0.0, 2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


def test_a_stage_gives_what_its_function_gives_and_gets_the_keywords_that_it_names() -> None:
    STAGES["ends"] = graph.stage("groups", name="ends")(lambda a, seed: [seed, 5, seed])
    assert graph.groups_stage("ends")(A, seed=7, planted=["x", "y", "z"], resolution=2.0).tolist() == [0, 1, 0]
    doubled = graph.stage("sparsify", name="doubled")(lambda s: 2 * s)
    STAGES["doubled"] = doubled
    assert np.array_equal(np.asarray(graph.sparsify_stage("doubled")(A)), 2 * A)
    with pytest.raises(ConfigError, match="groups 'doubled': this is a sparsify stage"):
        graph.groups_stage("doubled")
    with pytest.raises(ConfigError, match="unknown groups 'endz' in 'endz'; did you mean 'ends'"):
        graph.groups_stage("endz")


@pytest.mark.parametrize(
    ("kind", "output", "words"),
    [
        ("groups", [0, 1], r"expected labels of shape \(3,\) for 3 clients, got \(2,\)"),
        ("groups", [0.5, 1.0, 0.0], "expected a whole number or a text for each client, got float64"),
        ("similarity", [1.0, 2.0, 3.0], r"expected a matrix of shape \(3, 3\) for 3 clients, got \(3,\)"),
        ("similarity", np.full((3, 3), np.nan), "expected finite numbers"),
        ("sparsify", np.eye(3), "expected a symmetric matrix with a zero diagonal"),
        ("control", -A, "expected weights of at least 0, got -2"),
        ("groups", [[1, 2], [3]], "expected one array, got ValueError: setting an array element"),
    ],
)
def test_output_that_is_none_is_refused_in_one_line(kind: Any, output: Any, words: str) -> None:
    with pytest.raises(GraphError, match=f"{kind} stage 'odd': {words}") as caught:
        graph.stage(kind, name="odd")(lambda first: output)(A)
    assert "\n" not in str(caught.value)


def test_a_function_that_fails_is_named() -> None:
    with pytest.raises(GraphError, match="groups stage 'bad': ZeroDivisionError: division by zero") as caught:
        graph.stage("groups", name="bad")(lambda a: 1 / 0)(A)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_function_where_a_stage_has_a_name() -> None:
    def halves(a: Any) -> Any:
        return np.arange(len(a)) % 2

    made = fedkin.run(
        "sfmtl-graph", small_federation(), rounds=1, training={"local_steps": 2}, graph={"groups": halves}
    )
    assert made.summary["groups"]["found"] == 2
    assert graph.groups_stage("halves")(A).tolist() == [0, 1, 0]
    with pytest.raises(ConfigError, match=r"method\.graph\.groups: stage: a lambda has no name"):
        fedkin.run("sfmtl-graph", small_federation(), rounds=1, graph={"groups": lambda a: a})
    with pytest.raises(ConfigError, match=r"halves.*: this is a groups stage"):
        fedkin.run("sfmtl-graph", small_federation(), rounds=1, graph={"similarity": "halves"})


@pytest.mark.parametrize("kind", list(BUILT_IN))
def test_a_stage_cannot_take_the_name_of_a_built_in_one(kind: Any) -> None:
    make = getattr(graph, f"{kind}_stage")
    for name, (argument, _) in BUILT_IN[kind].items():
        make(name if argument in ("", "?ALPHA", "?GAMMA", "?N") else f"{name}:1")
        with pytest.raises(ConfigError, match=f"stage '{name}': fedkin has a [a-z]+ stage of this name"):
            graph.stage("groups", name=name)(lambda a: a)

    def louvain(a: Any) -> Any:
        return np.zeros(len(a))

    def both(a: Any) -> Any:
        return a

    federation = small_federation()
    with pytest.raises(ConfigError, match=r"method\.graph\.groups: stage 'louvain': fedkin has a groups stage"):
        fedkin.run("sfmtl-graph", federation, rounds=1, graph={"groups": louvain})
    with pytest.raises(ConfigError, match=r"method\.graph\.similarity: stage 'both': this setting has"):
        fedkin.run("sfmtl-graph", federation, rounds=1, graph={"similarity": both})
    with pytest.raises(ConfigError, match="stage 'knn:10': this is no plain word: give it another"):
        graph.stage("sparsify", name="knn:10")(both)
    assert not STAGES


def test_a_function_of_a_file_that_is_no_stage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own_stages.py").write_text("def unmarked(a):\n    return a\n")
    (tmp_path / "e.toml").write_text(tomli_w.dumps(TABLE))
    with pytest.raises(ConfigError, match="unmarked does not say which stage it is"):
        load(tmp_path / "e.toml", [f"method.graph.groups={tmp_path}/own_stages.py:unmarked"])
