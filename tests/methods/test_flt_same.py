"""FLT-same: groups from tests of signatures, in FLT's rounds."""

from __future__ import annotations

from fedkin.engines import LocalEngine, Witness
from fedkin.federation import Change, Federation, Task
from fedkin.methods.flt_same import FltSame
from methods.flt_world import engine_after, grouped, groups_of, member, samples, score
from support import small_setup


def test_with_nothing_told_the_groups_are_found_and_no_encoder_travels() -> None:
    federation, witness = grouped(), Witness()
    engine = LocalEngine(small_setup(FltSame(), federation), observers=[witness])
    first = engine.round(1)
    assert score(groups_of(engine), federation) == 1.0
    seen = {ask.phase: {name for reply in replies.values() for name in reply} for _, ask, replies in witness.asks}
    assert seen["sign_moments"] == {"signature"}
    assert set(seen) == {"spread", "sign_moments", "train"}
    assert max(m.bytes for m in first.traffic if m.phase == "sign_moments") < 4096


def test_the_tests_behind_groups_are_recorded() -> None:
    late = member(30, "b", joins=2)
    engine = engine_after(FltSame(), grouped(12, extra=[late]), 1)
    graph = engine.round(2).graph
    assert graph is not None
    assert graph.evidence is not None
    assert graph.evidence.nodes[0].rejected
    assert set(graph.evidence.leaf) == set(grouped(12))
    assert set(graph.values["verdict"]) == {"same"}


def test_one_distribution_is_one_group() -> None:
    federation = Federation([member(number, "a") for number in range(12)], Task(6, (8,)), "one")
    assert len(set(groups_of(engine_after(FltSame(), federation, 1)).values())) == 1


def test_changed_data_are_signed_again_and_the_client_moves() -> None:
    change = member(40, "a", changes=[Change(2, samples("b", 30, 7), samples("b", 10, 8), "b")])
    federation = grouped(12, extra=[change])
    engine = engine_after(FltSame(), federation, 1)
    before = groups_of(engine)[change.id]
    engine.round(2)
    engine.round(3)
    after = groups_of(engine)
    fellows = [id for id in federation if federation[id].group == "b"]
    assert after[change.id] == after[fellows[0]] != before


def test_a_newcomer_joins_by_its_moments() -> None:
    federation = grouped(12, extra=[member(30, "b", joins=2)])
    engine = engine_after(FltSame(), federation, 2)
    assert score(groups_of(engine), federation) == 1.0
