"""Verdicts and tests on the page and in the terminal: what the records say, in words that are true of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.graph import Evidence, Graph, load_graph
from fedkin.graph.record import Node
from fedkin.records.run import read_run
from fedkin.report import write_report
from fedkin.report.choice import KinChoice
from fedkin.report.collect import collect
from fedkin.report.sentence import groups_in_terminal
from fedkin.report.verdicts import Findings, findings_text, judged_groups, verdict_data
from report.fake_runs import data_in, make_comparison, make_run, run_in
from support import present


@pytest.fixture(scope="module")
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kin beside others: three groups of 4, 4 and 3 clients, and one client far away from all of them."""
    folder = tmp_path_factory.mktemp("told") / "made"
    return make_comparison(folder, methods=("local", "fedavg", "kin"), clients=12, groups=3)


def verdicts_of(data: Any) -> Any:
    return run_in(data, "kin")["graph"]["verdicts"]


def chain(count: int) -> Graph:
    """Clients cut off one by one, until two are left that are the same."""
    ids = tuple(f"c{i:04d}" for i in range(count))
    nodes, leaf, at = [Node(None, {"x": 1e-9}, ("x",), "x")], {}, 0
    for i, id in enumerate(ids[:-2]):
        last = i == count - 3
        nodes.append(Node(at, {}, verdict="alone"))
        leaf[id] = len(nodes) - 1
        nodes.append(Node(at, {"x": 0.5}, verdict="same") if last else Node(at, {"x": 1e-9}, ("x",), "x"))
        at = len(nodes) - 1
    leaf |= dict.fromkeys(ids[-2:], at)
    groups = {id: min(i, count - 2) for i, id in enumerate(ids)}
    each = {id: "same" if id in ids[-2:] else "alone" for id in ids}
    graph = Graph(ids, np.zeros((count, count)), groups=groups)
    return graph.tested(each, Evidence(tuple(nodes), leaf, 0.001))


def by_degrees() -> Graph:
    """A root cut into clumps: clients 0 to 6, each cut off one after the other, and 7 to 9, who are alike."""
    ids = tuple(f"c{i}" for i in range(10))
    nodes = [Node(None, {"x": 1e-9, "xy": 1e-9}, ("xy",), "xy"), Node(0, {"x": 1e-9, "concept": 0.5}, ("x",), "x"),
             Node(0, {"x": 0.5, "concept": 0.5}, verdict="same")]  # fmt: skip
    leaf, inner = dict.fromkeys(ids[7:], 2), 1
    for i in range(5):
        nodes += [Node(inner, {}, verdict="alone"), Node(inner, {"x": 1e-9}, ("x",), "x")]
        leaf[ids[i]], inner = len(nodes) - 2, len(nodes) - 1
    nodes += [Node(inner, {}, verdict="alone"), Node(inner, {}, verdict="alone")]
    leaf |= {ids[5]: len(nodes) - 2, ids[6]: len(nodes) - 1}
    groups = {id: min(i, 7) for i, id in enumerate(ids)}
    each = {id: "same" if i >= 7 else "alone" for i, id in enumerate(ids)}
    return Graph(ids, np.zeros((10, 10)), groups=groups).tested(each, Evidence(tuple(nodes), leaf, 0.001))


def test_clients_that_differ_by_degrees_are_one_branch() -> None:
    def branches(graph: Graph) -> Any:
        return present(graph.evidence).branches(present(graph.groups))

    assert branches(by_degrees()) == {**dict.fromkeys(range(7), 1), 7: None}
    assert set(branches(chain(10)).values()) == {0}


# -- the page's data ------------------------------------------------------------------------------------------


def test_groups_verdicts_and_members_are_the_records(comparison_folder: Path) -> None:
    data = collect([comparison_folder])
    found, ids = verdicts_of(data), data["federations"][0]["ids"]
    graph_groups = present(load_graph(comparison_folder / "kin-seed0/graphs/round-000001.npz").groups)
    assert [(row["verdict"], row["size"]) for row in found["groups"]] == [("same", 4), ("same", 4), ("same", 3)]
    for row in found["groups"]:
        members = [ids[i] for i in row["clients"]]
        (group,) = {graph_groups[id] for id in members}
        assert sorted(members) == sorted(id for id, other in graph_groups.items() if other == group)
        assert row["words"] == "no significant difference: one model serves all"
    assert found["alone"][:2] == [1, [ids.index("site-011")]]
    assert found["choice"] == "chosen: one model for each group"
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_tree_is_the_tests_that_were_made(comparison_folder: Path) -> None:
    data = collect([comparison_folder])
    tree, ids = verdicts_of(data)["tests"], data["federations"][0]["ids"]
    evidence = present(load_graph(comparison_folder / "kin-seed0/graphs/round-000001.npz").evidence)
    assert tree["all"] == len(tree["nodes"]) == len(evidence.nodes)
    assert tree["alpha"] == evidence.alpha
    for node, tested, size in zip(tree["nodes"], evidence.nodes, evidence.sizes, strict=True):
        assert (node["parent"], node["size"], node["left"]) == (tested.parent, size, 0)
        for test in tested.rejected:
            assert f"{tested.p[test]:.0e}".replace("e-0", "e-") in node["said"] or tested.p[test] < 1e-300
        assert node["said"].startswith("differ in " if tested.rejected else "no significant" if tested.p else "")
        assert node["cut"] == (tested.verdict is None)
        assert (node["group"] is None) == (tested.verdict is None)
    assert dict(zip(ids, tree["leaf"], strict=True)) == evidence.leaf
    (lone,) = [node for node in tree["nodes"] if node["client"] is not None]
    assert (ids[lone["client"]], lone["verdict"]) == ("site-011", "alone")


def test_runs_without_verdicts_have_no_section(comparison_folder: Path, tmp_path: Path) -> None:
    data = collect([make_run(tmp_path / "run")])
    assert data["runs"][0]["graph"]["verdicts"] is None
    assert 'id="tests"' not in write_report([tmp_path / "run"], tmp_path / "a.html").read_text()
    with_tests = write_report([comparison_folder], tmp_path / "b.html").read_text()
    assert 'id="tests"' in with_tests
    assert data_in(with_tests)["runs"][2]["graph"]["verdicts"]["groups"]


def test_the_tree_shows_which_levels_have_a_model_where() -> None:
    """Seven clients that differ by degrees are one branch of the root, and three that cannot be told apart another."""
    graph = by_degrees()
    number = {id: place for place, id in enumerate(graph.ids)}
    figures = {"level": 1, "pull_weights": 1.0, "groups": 1, "lead_all": 0.1, "lead_all_low": 0.05,
               "lead_all_high": 0.15, "lead_groups": 0.2, "lead_groups_low": 0.1, "lead_groups_high": 0.3}  # fmt: skip

    def levels(rounds: list[Any]) -> list[Any]:
        return [node["level"] for node in present(verdict_data(graph, None, number, rounds))["tests"]["nodes"]]

    first, second, *others = levels([{"figures": figures}])
    assert (first, second) == (("one model for all", False), ("one model for this branch", True))
    assert {*others, *levels([])} == {None}


# -- many clients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 40, 3000])
def test_a_large_tree_is_cut_and_says_so(count: int) -> None:
    graph = chain(count)
    number = {id: i for i, id in enumerate(graph.ids)}
    found = present(verdict_data(graph, graph.groups, number, []))
    tree = found["tests"]
    nodes = tree["nodes"]
    assert tree["all"] == len(present(graph.evidence).nodes) == 2 * (count - 2) + 1
    assert len(nodes) == min(63, tree["all"])
    assert sum(node["left"] for node in nodes) + len(nodes) == tree["all"]
    assert nodes[0]["parent"] is None
    assert all(node["parent"] < at for at, node in enumerate(nodes[1:], 1))
    # Every client is under the node where it was last drawn.
    assert min(tree["leaf"]) >= 0
    below = np.bincount(tree["leaf"], minlength=len(nodes))
    for at in range(len(nodes) - 1, 0, -1):
        below[nodes[at]["parent"]] += below[at]
    assert below.tolist() == [node["size"] for node in nodes]
    assert len(json.dumps(found)) < 50_000
    assert found["alone"][0] == count - 2
    assert len(found["alone"][1]) <= 16


# -- verdicts -------------------------------------------------------------------------------------------------


def groups_of(leaves: dict[str, int], verdict: dict[str, str], groups: dict[str, int], *nodes: Node) -> Any:
    graph = Graph(tuple(verdict), np.zeros((len(verdict),) * 2), groups=groups)
    return judged_groups(graph.tested(verdict, Evidence(nodes, leaves, 0.001)))


ROOT = Node(None, {"x": 1e-7, "y": 1e-5}, ("x", "y"), "x+y")


def leaf(verdict: str, parent: int = 0) -> Node:
    return Node(parent, {"x": 0.3}, verdict=verdict)


def test_a_group_of_several_leaves_is_not_said_to_be_indistinguishable() -> None:
    """Groups that differ surely but too little are merged: tests do tell these clients apart."""
    leaves = {"a": 1, "b": 1, "c": 2, "d": 2}
    verdict, groups = dict.fromkeys("abcd", "same"), dict.fromkeys("abcd", 0)
    (one,) = groups_of(leaves, verdict, groups, ROOT, leaf("same"), leaf("same"))
    assert (one.verdict, one.node) == ("near", 0)
    text = findings_text([Findings.of([one], None)])
    assert "significant" not in text
    assert "too little for separate models to be better" in text


def test_merged_leaves_with_others_between_them_have_no_test_of_their_own() -> None:
    verdict = dict.fromkeys("abcdef", "same")
    groups = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 0, "f": 0}
    leaves = {"a": 1, "b": 1, "c": 3, "d": 3, "e": 4, "f": 4}
    inner = Node(0, {"x": 1e-6}, ("x",), "x")
    first, second = groups_of(leaves, verdict, groups, ROOT, leaf("same"), inner, leaf("same", 2), leaf("same", 2))
    assert (first.members, first.verdict, first.node) == (("a", "b", "e", "f"), "near", None)
    assert (second.members, second.verdict, second.node) == (("c", "d"), "same", 3)


def test_how_many_clients_the_tests_saw_is_said_on_the_page_and_the_terminal() -> None:
    tests = Evidence((Node(None, {"x": 0.3}, verdict="same"),), {"a": 0, "b": 0}, 0.05)
    ids, groups = tuple("abno"), dict.fromkeys("abno", 0)
    graph = Graph(ids, np.zeros((4, 4)), groups=groups).tested(dict.fromkeys(ids, "same"), tests)
    found = judged_groups(graph)
    said = "(2 of 4 clients were tested; the others were placed in a group after that)"
    page = present(verdict_data(graph, None, {id: place for place, id in enumerate(ids)}, []))
    assert page["words"].endswith(said)
    two = [Findings.of(found, tests), Findings({"same": 1}, clients=4)]
    assert "(not all clients were tested;" in findings_text(two)
    assert "tested" not in findings_text(two[1:])


SHARES = "differ, but not clearly in what a class looks like"
FOUND: list[tuple[list[Findings], str, str]] = [
    ([Findings({"same": 4}, p=0.104)], "4 groups", "within groups no difference is significant (smallest p 0.1)"),
    ([Findings({"same": 1})], "1 group", "within groups no difference is significant"),
    ([Findings({}, 9)], "no groups", "every client differs from all others"),
    ([Findings({"shares": 1})], "1 group", f"within groups clients {SHARES}"),
    ([Findings({"near": 2})], "2 groups", "within groups clients differ too little for separate models to be better"),
    ([Findings({"offsets": 1}, 2)], "1 group and 2 clients alone",
     "within groups each client's inputs have a shift of their own"),
    ([Findings({"same": 2, "shares": 1}, p=0.5)], "3 groups",
     f"in 2 no difference is significant (smallest p 0.5), in 1 clients {SHARES}"),
    ([Findings({"same": 4}, p=0.5), Findings({"same": 4}, p=0.02)], "4 groups",
     "within groups no difference is significant (smallest p 0.02)"),
    ([Findings({"same": 4}), Findings({"shares": 1}, 1)], "1 to 4 groups and up to 1 client alone",
     f"in some no difference is significant, in some clients {SHARES}"),
]  # fmt: skip


@pytest.mark.parametrize(("seeds", "count", "said"), FOUND)
def test_what_was_found_in_words(seeds: list[Findings], count: str, said: str) -> None:
    assert findings_text(seeds, ", as planted") == f"{count} found by tests, as planted: {said}"


# -- the sentence and the terminal ----------------------------------------------------------------------------


def test_the_sentence_says_what_was_found(comparison_folder: Path) -> None:
    text = collect([comparison_folder])["sentence"]
    assert text.startswith("With Kin: ")
    assert re.search(
        r"\. 3 groups and 1 client alone found by tests \(ARI 0\.\d\d to the planted ones\): "
        r"within groups no difference is significant \(alpha = [\d.]+, corrected for \d tests; "
        r"smallest p 0\.\d+\)\. Chosen: one model for each group\.$",
        text,
    )


def test_of_equal_means_the_method_that_says_why_is_told_of(tmp_path: Path) -> None:
    for name in ("sfmtl-graph", "kin"):
        make_run(tmp_path / f"{name}-seed0", name, skill=0.8)
    runs = [tmp_path / "sfmtl-graph-seed0", tmp_path / "kin-seed0"]
    for order in (runs, runs[::-1]):
        data = collect(order)
        assert data["table"][0]["mean"] == data["table"][1]["mean"]
        assert data["sentence"].startswith("With Kin, chosen of 2 methods other than Local and FedAvg on")
        assert data["runs"][data["shown"]]["method"] == "kin"


def test_the_terminal_has_two_lines_a_method(comparison_folder: Path, tmp_path: Path) -> None:
    chosen = [{"figures": {"level": 0, "pull_weights": 1.0, "pull_bias": 1.0}}]
    first, second = groups_in_terminal("kin", [replace(read_run(comparison_folder / "kin-seed0"), rounds=chosen)])
    assert first.startswith("kin: 3 groups and 1 client alone found by tests: within groups no difference is signif")
    assert second == "kin chosen: one model for all, a head for each client (pull 1)"
    assert groups_in_terminal("fedavg", [read_run(comparison_folder / "fedavg-seed0")]) == []
    more = [make_run(tmp_path / f"kin-seed{seed}", "kin", seed, clients=12, groups=3) for seed in range(3)]
    line, last = groups_in_terminal("kin", [replace(read_run(run), rounds=chosen) for run in more])
    assert line.startswith("kin, 3 seeds: ")
    assert last == "kin chosen: one model for all, a head for each client (pull 1)"


@pytest.mark.parametrize("method", ["kin", "flt-same"])
def test_tests_that_see_less_since_rows_are_sorted_are_said(method: str, tmp_path: Path) -> None:
    rng, clients = np.random.default_rng(0), []
    for id in ("a", "b", "c"):
        rows = np.concatenate([np.sort(rng.normal(size=(80, 1)), axis=0), rng.normal(size=(80, 2))], axis=1)
        samples = Samples(torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(rng.integers(2, size=80)))
        clients.append(Client(id, samples.take(list(range(60))), samples.take(list(range(60, 80)))))
    run = tmp_path / "run"
    result = fedkin.run(method, Federation(clients, Task(2, (3,)), "sorted"), rounds=1, out=run)
    lines = groups_in_terminal(method, [replace(result, rounds=[])])
    less = "at 3 of 3 clients neighbours in stored order are similar, so tests have less power"
    assert lines[1] == f"{method}: {less}"
    graph = load_graph(max((run / "graphs").glob("*.npz")))
    drawn = verdict_data(graph, None, {id: place for place, id in enumerate("abc")}, [])
    assert less in present(drawn)["words"]


@pytest.mark.parametrize(
    ("rounds", "words"),
    [([], None), ([{}], None), ([{"figures": None}], None),
     ([{"figures": {"level": None, "pull_weights": None}}], "on trial: no level is chosen yet"),
     ([{"figures": {"level": 2, "pull_weights": None, "pull_bias": None}}],
      "chosen: one model for each group"),
     ([{"figures": {"level": 0, "pull_weights": None, "pull_bias": 3.0}}],
      "chosen: one model for all, a bias for each client (pull 3); a smaller pull is more personal"),
     ([{"figures": {"level": 0, "pull_weights": 1.0, "groups": 0, "lead_groups": 0.019, "lead_groups_low": 0.012,
                    "lead_groups_high": 0.026}}],
      ("chosen: one model for all, a head for each client (pull 1); a smaller pull is more personal; "
       "on held-out samples 0.019 lower in loss than training alone (95 % interval 0.012 to 0.026)")),
     ([{"figures": {"level": 0, "pull_weights": None, "points_groups": -1.24, "points_groups_low": -2.0,
                    "points_groups_high": -0.5}}],
      ("chosen: one model for all; on held-out samples 1.2 points worse than one model for each group "
       "(95 % interval 0.5 to 2.0)")),
     ([{"figures": {"level": 2, "pull_weights": None, "groups": 3, "lead_branches": -0.001, "lead_branches_low": -0.02,
                    "lead_branches_high": 0.018}}],
      ("chosen: one model for each group; on held-out samples not significantly different from one model for each "
       "branch: 0.001 higher in loss (95 % interval -0.018 to 0.02)"))],
)  # fmt: skip
def test_the_choice_is_said_in_words(rounds: list[Any], words: str | None) -> None:
    choice = KinChoice.of(rounds)
    assert (choice and choice.explained()) == words
