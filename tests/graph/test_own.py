"""Graph stages of one's own: used by name, and refused in one line where their output is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import fedkin
from fedkin import graph
from fedkin.errors import ConfigError, GraphError
from fedkin.graph.stages import BUILT_IN, STAGES
from fedkin.running.experiment import load
from support import small_federation
from tiny import TABLE

pytestmark = pytest.mark.usefixtures("forgotten")
A = np.array([[0.0, 2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
FILE = """
from fedkin.graph import stage


@stage("groups")
def file_ends(a, seed=0):
    return ["last" if at == len(a) - 1 else "first" for at in range(len(a))]


def unmarked(a):
    return a
"""


def test_a_stage_gives_what_its_function_gives_and_gets_the_keywords_that_it_names() -> None:
    STAGES["ends"] = graph.stage("groups", name="ends")(lambda a, seed: [seed, 5, seed])
    assert graph.groups_stage("ends")(A, seed=7, planted=["x", "y", "z"], resolution=2.0).tolist() == [0, 1, 0]
    doubled = graph.stage("sparsify", name="doubled")(lambda s: 2 * s)
    STAGES["doubled"] = doubled
    assert np.array_equal(np.asarray(graph.sparsify_stage("doubled")(A, distances=None)), 2 * A)
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
    for name, argument in BUILT_IN[kind].items():
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


def test_a_stage_of_a_file_in_an_experiment(tmp_path: Path) -> None:
    (tmp_path / "own_stages.py").write_text(FILE)
    method = {"name": "sfmtl-graph", "graph": {"groups": "own_stages.py:file_ends"}}
    (tmp_path / "e.toml").write_text(tomli_w.dumps({**TABLE, "method": method}))
    plan = load(tmp_path / "e.toml")
    assert plan.resolved()["method"]["graph"]["groups"] == "file-ends"
    (tmp_path / "begun.toml").write_text(plan.to_toml())
    assert load(tmp_path / "begun.toml").method == plan.method
    with pytest.raises(ConfigError, match="unmarked does not say which stage it is"):
        load(tmp_path / "e.toml", [f"method.graph.groups={tmp_path}/own_stages.py:unmarked"])
