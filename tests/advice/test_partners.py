"""What partners add: Shapley values of games whose values are known, and a federation with a planted order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import fedkin.advice.partners as partners
from advised import BENCH, A, federation
from fedkin.advice import Advice, PartnerValues, Plan, advise
from fedkin.advice.choice import Estimate, Marks
from fedkin.advice.partners import Coalition, coalition_shapes, coalitions_of, interval, worth_of
from fedkin.federation import Federation, Task
from fedkin.keys import rng
from support import present

Game = Callable[[str, Coalition], float]


def played(game: Game, *groups: str) -> PartnerValues:
    """What partners add where a model of a coalition scores what the game says, with noise of mean 0 in two folds."""
    ids = sorted("".join(groups))
    noise = np.array([-1.0, 0.0, 1.0])
    alone = [frozenset(id) for id in ids]
    coalitions = [*alone, *coalitions_of(map(frozenset, groups), ids, 0)]
    marks = {
        id: [{each: Marks("regression", (game(id, each) + noise,)) for each in coalitions if id in each}] * 2
        for id in ids
    }
    return worth_of(marks, {id: frozenset(group) for group in groups for id in group})


def test_samples_of_one_unit_count_once() -> None:
    coalitions = [frozenset(each) for each in ("a", "b", "ab")]

    def found(times: int) -> Estimate:
        units = np.repeat(np.arange(6), times)
        one = {
            each: Marks("regression", (units.astype(np.float64) ** len(each),), units=(units,)) for each in coalitions
        }
        return worth_of({id: [one] for id in "ab"}, dict.fromkeys("ab", frozenset("ab"))).adds["a"]["b"]

    assert found(8) == pytest.approx(found(1))


def rough(id: str, coalition: Coalition) -> float:
    """A game without any order in it."""
    return float(rng(0, id, *sorted(coalition)).normal())


def by_name(id: str, coalition: Coalition) -> float:
    """An additive game: each partner adds the number of its letter, whoever is there."""
    return float(sum(map(ord, coalition - {id})))


def test_it_is_the_mean_over_all_orders_in_which_group_and_partner_join() -> None:
    found = played(rough, "abcd", "ef")
    for id, group in {**dict.fromkeys("abcd", "abcd"), **dict.fromkeys("ef", "ef")}.items():
        for partner in sorted(set("abcdef") - {id}):
            others = sorted({*group, partner} - {id})
            gains = []
            for order in permutations(others):
                before = frozenset({id, *order[: order.index(partner)]})
                gains.append(rough(id, before | {partner}) - rough(id, before))
            assert found.adds[id][partner].value == pytest.approx(np.mean(gains))
            players = frozenset({id, *others})
            assert found.last[id][partner].value == pytest.approx(rough(id, players) - rough(id, players - {partner}))
        mates = sum(found.adds[id][partner].value for partner in group if partner != id)
        assert found.groups[id].value == pytest.approx(mates)
        whole = rough(id, frozenset("abcdef")) - rough(id, frozenset(id))
        assert found.everybody[id].value == pytest.approx(whole)
    assert (found.exact, found.edges) == (True, 30)


def test_a_partner_and_its_copy_share_what_either_adds() -> None:
    found = played(lambda id, coalition: float(bool(coalition & {"b", "c"})), "abcd")
    assert [found.adds["a"][partner].value for partner in "bcd"] == pytest.approx([0.5, 0.5, 0.0])
    assert found.last["a"]["b"].value == pytest.approx(0.0)


def test_who_offsets_a_harm_that_is_not_in_the_group_is_worth_nothing_for_it() -> None:
    found = played(lambda id, coalition: -1.0 if coalition > {"a", "z"} and "b" not in coalition else 0.0, "abc", "z")
    assert found.adds["a"]["b"].value == pytest.approx(0.0)
    assert found.adds["a"]["z"].value < 0


def test_drawn_coalitions_know_what_they_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = played(rough, "abcdefg", "h")
    monkeypatch.setattr(partners, "EXACT", 3)
    found = played(by_name, "abcdefg", "h")
    assert not found.exact
    for row in found.adds.values():
        for partner, one in row.items():
            assert one.value == pytest.approx(ord(partner))
    drawn = played(rough, "abcdefg", "h")
    errors = [
        (drawn.adds[id][partner].value - truth.adds[id][partner].value) / drawn.adds[id][partner].deviation
        for id in "abcdefg" for partner in "abcdefg" if partner != id
    ]  # fmt: skip
    assert 0.3 < np.std(errors) < 1.5


def test_each_coalition_is_trained_once_beside_others() -> None:
    coalitions = coalitions_of([frozenset("abc"), frozenset("d")], list("abcd"), 0)
    shapes = coalition_shapes(coalitions)
    trained = [frozenset(members) for shape in shapes for members in shape.groups]
    assert sorted(map(sorted, trained)) == sorted(map(sorted, coalitions))
    assert len(set(coalitions)) == len(coalitions) == 11, "all of two or more"
    assert max(len(shape.groups) for shape in shapes) == 2


def test_intervals_hold_for_all_at_once() -> None:
    one = Estimate(1.0, 1.0)
    assert interval(one, 1) == pytest.approx((one.low, one.high))
    assert interval(one, 100)[0] < one.low


@pytest.fixture(scope="module")
def planted() -> Federation:
    """One small client, a useful partner, and a harmful one whose labels are turned round."""
    turned = tuple(-slope for slope in A)
    return federation({"small": (A, 60), "useful": (A, 300), "harmful": (turned, 200)}, width=len(A))


@pytest.fixture(scope="module")
def found(planted: Federation) -> Advice:
    return advise(planted, BENCH, Plan(folds=3, rates=(1.0,)), partners=3)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Task(2, (3,), "risk"), "gain in ROC-AUC [90%], in points"),
        (Task.regression(1, (3,)), "fall in squared error [90%]"),
    ],
)
def test_the_head_says_which_way_is_better(task: Task, said: str) -> None:
    advice = Advice.__new__(Advice)
    vars(advice)["task"] = task
    assert advice.heads[3] == said


@pytest.mark.slow
def test_who_helps_and_who_hurts_is_found(found: Advice) -> None:
    worth = present(found.worth)
    assert worth.verdict("small", "useful") == "helps"
    assert worth.verdict("small", "harmful") == "hurts"
    matrix, each = found.partner_tables()
    assert matrix["heads"][:4] == ["client", "harmful", "small", "useful"]
    row = next(row for row in matrix["rows"] if row[0] == "small")
    assert row[2] == ""
    assert row[1].startswith("-")
    assert row[1].endswith("*")
    assert [row[0] for row in each["rows"]][-1] == "harmful"
    told: dict[str, Any] = found.to_json()["partners"]
    assert {(pair["client"], pair["partner"]): pair["verdict"] for pair in told["pairs"]}["small", "useful"] == "helps"


@pytest.mark.slow
def test_a_client_alone_is_the_local_model_of_the_advice() -> None:
    """Its rate need not be that of the shared models: else a partner is worth what a better rate alone would give."""
    made = federation(dict.fromkeys(("ann", "bob", "cleo"), (A, 24)), "regression")
    advice = advise(made, BENCH, Plan(folds=3, rates=(1.0, 0.2)), partners=3)
    assert (advice.candidate, advice.stable) == ("all", 3)
    assert (advice.rate, advice.own_rate) == pytest.approx((0.3, 0.06))
    for client in advice.clients:
        worth = present(advice.worth).everybody[client.id].trained_on_all(2 / 3)
        assert worth.value == pytest.approx(present(client.whole).value, rel=1e-4)


@pytest.mark.slow
def test_without_it_the_notes_say_how_to_get_it(planted: Federation) -> None:
    other = advise(planted, BENCH, Plan(folds=3, rates=(1.0,)), partners=2)
    assert other.worth is None
    assert other.partner_tables() == []
    assert "What each partner adds was not computed: --partners does it." in other.notes


@pytest.mark.slow
def test_the_headline_says_how_sure_it_is(found: Advice) -> None:
    shape = replace(found.shape, groups=(("harmful", "small", "useful"),))

    def headline(*gains: Estimate) -> str:
        each = zip(found.clients, gains, strict=True)
        clients = tuple(replace(one, takes=True, partners=("x",), gain=gain) for one, gain in each)
        return replace(found, clients=clients, shape=shape).sentence

    sure, likely = Estimate(1.0, 0.01), Estimate(0.1, 0.01)
    assert headline(likely, likely, likely) == (
        "Likely, but not sure (all 3 intervals of gains contain 0): train one model for all 3 clients that could be "
        "judged."
    )
    assert headline(sure, sure, likely) == (
        "Train one model for all 3 clients that could be judged; the gain of useful is likely, but not sure."
    )
    assert headline(sure, sure, sure) == "Train one model for all 3 clients that could be judged."


def test_coalitions_of_a_large_group_are_drawn_and_not_listed() -> None:
    ids = [f"c{number:02d}" for number in range(40)]  # 2^40 subsets
    coalitions = coalitions_of([frozenset(ids)], ids, 0)
    assert {len(ids), len(ids) - 1, 2} <= set(map(len, coalitions))
    assert len(coalitions) < 100_000
