"""Groups from the test of signatures, in the methods that take their number, or the groups, from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedkin import graph as g
from fedkin.federation import Federation, Samples, Task
from fedkin.federation.inputs import parts
from fedkin.flow import ServerMethod
from fedkin.methods.blocks.numeric_rows import numeric_rows, width_of
from fedkin.methods.cfl import Cfl
from fedkin.methods.fedsem import FedSem
from fedkin.methods.ifca import Ifca
from fedkin.methods.pca_km_hc import PcaKmHc
from fedkin.methods.sfmtl_graph import SfmtlGraph
from methods.flt_world import grouped, member, score
from support import after, play, present, same

COUNTED: dict[str, ServerMethod] = {
    "ifca": Ifca(clusters="same"),
    "fedsem": FedSem(clusters="same"),
    "pca-km-hc": PcaKmHc(clusters="same", components=4),
}
ALL: dict[str, ServerMethod] = {
    **COUNTED, "cfl": Cfl(split="same"), "sfmtl-graph": SfmtlGraph(graph={"groups": "same"}),
}  # fmt: skip


def one_distribution() -> Federation:
    return Federation([member(number, "a") for number in range(9)], Task(6, (8,)), "one")


@pytest.mark.parametrize("name", ALL)
def test_three_planted_groups_are_found(name: str) -> None:
    engine, _ = after(ALL[name], 1, grouped(12))
    assert score(engine.server.state["same"]["group"], grouped(12)) == 1.0


@pytest.mark.parametrize("name", ALL)
def test_one_distribution_is_one_group(name: str) -> None:
    federation = one_distribution()
    engine, _ = after(ALL[name], 2, federation)
    assert set(engine.server.state["same"]["group"].values()) == {0}
    graph = engine.round(3).graph
    assert graph is None or len(set((graph.groups or {}).values())) == 1


@pytest.mark.parametrize("name", COUNTED)
def test_a_number_from_the_test_is_the_number_given(name: str) -> None:
    """From the round in which it is known, the method is the one that was given this number, bit for bit."""
    federation = grouped(12)
    given = COUNTED[name].model_copy(update={"clusters": 3})
    (one, _), (other, _) = after(COUNTED[name], 3, federation), after(given, 3, federation)
    assert one.server.state["models"].keys() == other.server.state["models"].keys()
    assert same(one.models(), other.models())


def test_cfl_splits_until_no_leaf_has_clients_of_two_groups() -> None:
    federation = grouped(12)
    engine, _ = after(Cfl(split="same"), 12, federation)
    state = engine.server.state
    of_leaf: dict[str, set[int]] = {}
    for id, node in state["node"].items():
        of_leaf.setdefault(node, set()).add(state["same"]["group"][id])
    assert all(len(groups) == 1 for groups in of_leaf.values())


def test_sfmtl_graph_mixes_inside_the_groups_found() -> None:
    graph = present(after(SfmtlGraph(graph={"groups": "same"}), 2, grouped(12))[1].graph)
    assert score(dict(graph.groups or {}), grouped(12)) == 1.0
    other = np.asarray(graph.labels)[:, None] != np.asarray(graph.labels)
    assert not np.asarray(graph.mixing)[other].any()


@pytest.mark.parametrize("name", ["cfl", "sfmtl-graph"])
def test_a_newcomer_joins_its_group_and_moves_nobody(name: str) -> None:
    late, alone = member(30, "b", joins=2), member(31, "a", joins=3)
    shifted = replace(alone.train, x=alone.train.inputs(slice(None)) + 40.0)
    federation = grouped(12, extra=[late, replace(alone, id="far", train=shifted)])
    engine, _ = after(ALL[name], 1, federation)
    first = dict(engine.server.state["same"]["group"])
    play(engine, 2, 3)
    last = engine.server.state["same"]["group"]
    assert {id: last[id] for id in first} == first
    fellow = next(id for id in first if federation[id].group == "b")
    assert last[late.id] == last[fellow]
    assert list(last.values()).count(last["far"]) == 1


# -- samples as numbers -------------------------------------------------------------------------------------------


WORDS = Task(2, {"words": (12,), "age": (1,)}, codes=("words",))


def coded(seed: int, low: int, high: int, n: int = 60) -> Samples:
    rng = np.random.default_rng(seed)
    x = {
        "words": torch.from_numpy(rng.integers(low, high, size=(n, 12))),
        "age": torch.from_numpy(rng.normal(size=(n, 1)).astype(np.float32)),
    }
    return Samples(x, torch.from_numpy(rng.integers(2, size=n)))


def test_tokens_and_columns_are_told_apart_by_their_codes() -> None:
    """Clients with partly other words are two groups; with the same words they are one."""
    x = [numeric_rows(coded(k, 50 * (k % 2), 50 * (k % 2) + 80), WORDS) for k in range(8)]
    assert {rows.shape[1] for rows in x} == {width_of(WORDS)} == {257}
    plan = g.Plan.of(g.Spread.of(rows, per_feature=True) for rows in x)
    labels = g.find([g.sign(plan, rows) for rows in x]).labels
    assert labels.tolist() == [0, 1] * 4
    alike = [numeric_rows(coded(k, 0, 80), WORDS) for k in range(8)]
    plan = g.Plan.of(g.Spread.of(rows, per_feature=True) for rows in alike)
    assert g.find([g.sign(plan, rows) for rows in alike]).labels.tolist() == [0] * 8


def test_equal_codes_are_equal_numbers_whatever_their_type() -> None:
    one = coded(0, 0, 9)
    x = parts(one.x)
    other = Samples({**x, "words": x["words"].int()}, one.y)
    assert np.array_equal(numeric_rows(one, WORDS), numeric_rows(other, WORDS))
