"""What must hold for an advice: planted groups, what names and test samples may change, and who is withheld."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin.advice.work as work
from advised import BENCH, LONER, QUICK, A, advised, federation, hospitals
from fedkin.advice import Advice, OfClient, Plan, advise
from fedkin.advice.advising import _judgeable
from fedkin.errors import ConfigError, DataError, RunError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.running.api import run
from fedkin.running.experiment import Experiment
from support import changed, present
from tiny import TABLE


@pytest.fixture(scope="module")
def made() -> Federation:
    return hospitals(3)


@pytest.fixture(scope="module")
def found(made: Federation) -> Advice:
    return advised(made)


def judged(found: Advice) -> dict[str, Any]:
    """All that is said of each client but its test figure."""
    return {
        one["id"]: {name: told for name, told in one.items() if name != "test"} for one in found.to_json()["clients"]
    }


@pytest.mark.slow
def test_planted_groups_are_found_and_the_loner_stays_at_home(found: Advice) -> None:
    assert found.groups == (("ann", "cleo", "eve"), ("bob", "dan", "fay"))
    assert found["gus"].advice == "train alone"
    assert found.sentence.startswith("Train 2 groups: ann, cleo and eve together; bob, dan and fay together; gus alone")


@pytest.mark.slow
def test_no_verdict_on_a_client_with_two_events(found: Advice) -> None:
    assert found["hal"].advice == "not known: 2 events"
    assert "nothing can be said yet about hal (2 events)" in found.sentence
    assert found["hal"].gain is None


def dated(made: Federation, *ids: str) -> Federation:
    """The federation with times of these clients' training samples, or of all: ascending in stored order."""
    clients = [
        replace(client, train=replace(client.train, time=torch.arange(client.size, dtype=torch.float64)))
        if id in (ids or made) else client for id, client in made.items()
    ]  # fmt: skip
    return Federation(clients, made.task, made.name)


def test_with_times_it_says_which_events_were_counted(made: Federation) -> None:
    judgeable = _judgeable(dated(made), Plan(), 0)
    assert "hal" not in judgeable.ids.values()
    assert re.fullmatch(r"[012] events? in the latest 25% of its rows", judgeable.unknown["hal"])


def test_one_model_for_all_would_hurt_the_loner_and_the_notes_say_so(found: Advice) -> None:
    whole = present(found["gus"].whole)
    assert whole.hurt
    assert any("would hurt" in note and "gus" in note for note in found.notes)


@pytest.mark.slow
def test_test_samples_change_nothing_but_the_test_figures(made: Federation, found: Advice) -> None:
    def flipped(client: Client) -> Client:
        return replace(client, test=replace(client.test, y=1 - client.test.y))

    other = advised(Federation([flipped(client) for client in made.values()], made.task, made.name))
    assert judged(other) == judged(found)
    assert (other.sentence, other.method) == (found.sentence, found.method)
    assert any(other[id].test != found[id].test for id in made)


def test_one_client_is_refused_before_its_samples_are_read(made: Federation) -> None:
    one = Federation([next(iter(made.values()))], made.task)
    with pytest.raises(DataError, match="advice compares clients, and here is only ann; expected at least 2"):
        advise(one, BENCH, QUICK)


def test_neither_names_nor_a_client_with_too_few_events_change_anything(made: Federation, found: Advice) -> None:
    names = {"ann": "zoe", "bob": "abe", "gus": "lou"}
    other = advised(made.relabel(names).reorder(sorted(names.get(id, id) for id in made if id != "hal")))
    told, before = judged(other), judged(found)
    del before["hal"]
    assert len(told) == len(before)
    for id, one in before.items():
        new = told[names.get(id, id)]
        assert new["gain"] == one["gain"]
        assert new["takes"] == one["takes"]
        assert new["partners"] == sorted(names.get(partner, partner) for partner in one["partners"])


def test_the_method_trains_what_was_recommended(made: Federation, found: Advice) -> None:
    result = run(found.method, made, model=BENCH.model, training=BENCH.training, settings={"mode": "fast"})
    assert present(result.outcome).graph is None  # it is recorded once, in the first round
    takes = [id for id in made if found[id].takes]
    assert takes
    assert set(found.method.keep_own) == {id for id in made if found.shape.partners(id)} - set(takes)
    # Who keeps its own model draws its batches after the shared one's.
    for id in set(made) - set(found.method.keep_own):
        theirs = found.shared if id in takes else found.alone
        for name, tensor in result.models[id].items():
            np.testing.assert_allclose(tensor.numpy(), theirs[id][name].numpy(), atol=1e-4)


def test_a_group_whose_model_nobody_should_use_is_not_recommended(found: Advice) -> None:
    clients = tuple(replace(one, takes=one.id == "ann") for one in found.clients)
    one = replace(found, clients=clients, shape=found.shape.trained_for({"ann"}))
    assert one.groups == (("ann", "cleo", "eve"),)
    said = "rain 1 group: ann, cleo and eve together, used by ann only; gus alone; bob, dan and fay alone, as sharing"
    assert said in one.sentence
    assert "cleo and eve train with their group, but use local models (no sure gain)" in one.sentence
    assert one["cleo"].advice.startswith("use a local model: ")


@pytest.mark.parametrize(
    ("partners", "words"),
    [("a", "train with a"), ("abc", "train with a, b and c"), ("abcdefghi", "train with 9 others")],
)
def test_partners_are_named_up_to_eight(partners: str, words: str) -> None:
    assert OfClient("z", 40, "40 samples", None, tuple(partners), True, None, None, None).advice == words


@pytest.mark.slow
def test_clients_of_one_distribution_train_one_model() -> None:
    one = advised(federation({f"c{place:02d}": (A, 50 + 10 * place) for place in range(12)}, seed=1))
    assert one.candidate == "all"
    assert one.groups == (tuple(f"c{place:02d}" for place in range(12)),)
    assert one.sentence.startswith("Train one model for all 12 clients")


@pytest.mark.slow
def test_clients_that_have_nothing_in_common_train_alone() -> None:
    slopes = [np.roll((2.0, -2.0, 0.0, 0.0), place) * sign for sign in (1, -1) for place in (0, 1, 2)]
    one = advised(federation({f"c{place}": (tuple(each), 250) for place, each in enumerate(slopes)}, seed=2))
    assert one.candidate == "local"
    assert one.sentence.startswith("Train alone")
    assert one.method.groups == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_other_tasks_find_planted_groups_too(kind: str) -> None:
    lr = 0.05 if kind == "regression" else 0.3
    bench = replace(BENCH, training=BENCH.training.model_copy(update={"lr": lr}))
    who = {f"c{place}": ((A, LONER)[place % 2], 60) for place in range(6)}
    one = advised(federation(who, kind, seed=3), bench=bench)
    assert one.groups == (("c0", "c2", "c4"), ("c1", "c3", "c5"))
    assert sum(client.takes for client in one.clients) >= 4


@pytest.mark.slow
def test_clients_that_differ_by_degrees_share_a_model_with_a_bias_or_a_head_of_their_own() -> None:
    same_slopes = federation({f"c{place}": (A, 80) for place in range(8)}, "regression", seed=3)

    def moved(samples: Samples, by: float) -> Samples:
        return replace(samples, y=samples.y + by)

    made = Federation(
        [
            replace(client, train=moved(client.train, place - 3.5), test=moved(client.test, place - 3.5))
            for place, client in enumerate(same_slopes.values())
        ],
        same_slopes.task, "moved",
    )  # fmt: skip
    bench = replace(BENCH, training=BENCH.training.model_copy(update={"lr": 0.05}))
    one = advised(made, bench=bench)
    assert one.candidate == "all-heads"
    assert re.match(
        r"Train one model for all 8 clients that could be judged, with a (head|bias) for each client", one.sentence
    )
    result = run(one.method, made, model=bench.model, training=bench.training, settings={"mode": "fast"})
    for id in made:
        np.testing.assert_allclose(result.models[id]["head.bias"], one.shared[id]["head.bias"], atol=1e-4)
    assert len({float(one.shared[id]["head.bias"][0]) for id in made}) == 8
    assert all(client.gain is not None and client.gain.value > 0 for client in one.clients)


@pytest.mark.slow
def test_finished_runs_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, rates, trained = hospitals(), [], work.trained

    def noted(*given: Any) -> Any:
        if not given[0].own_body:
            rates.append(given[-1])
        return trained(*given)

    monkeypatch.setattr(work, "trained", noted)
    first = advise(made, BENCH, Plan(folds=3, rates=(1.0, 3.0)), folder=tmp_path)
    assert len(rates) == 2
    (tmp_path / "folds" / "run-1.safetensors").unlink()
    again = advise(made, BENCH, Plan(folds=3, rates=(1.0, 3.0)), folder=tmp_path)
    assert len(rates) == 3
    assert judged(again) == judged(first)
    with pytest.raises(RunError, match="holds an advice on other data or with other settings"):
        advise(made, BENCH, QUICK, folder=tmp_path)
    (tmp_path / "folds" / "run-0.safetensors").write_bytes(b"cut")
    with pytest.raises(RunError, match=r"run-0.safetensors: is damaged"):
        advise(made, BENCH, Plan(folds=3, rates=(1.0, 3.0)), folder=tmp_path)


def test_without_enough_events_there_is_no_advice() -> None:
    with pytest.raises(DataError, match=r"at least 2 clients with enough training samples.*b: 2 events"):
        advised(federation({"a": (A, 90), "b": (A, 60)}, few=["b"]))


def of_persons(made: Federation, **persons: Any) -> Federation:
    """The federation with the person of each training sample of these clients."""
    for id, person in persons.items():
        made = changed(made, id, train=replace(made[id].train, person=torch.from_numpy(person)))
    return made


def test_a_client_without_advice_lacks_samples_or_persons() -> None:
    one, two = federation({"a": (A, 90), "b": (A, 1)}), federation({"a": (A, 90), "b": (A, 60)})
    assert re.fullmatch(r"[01] (non-)?events?", _judgeable(one, Plan(folds=3), 0).unknown["b"])
    two = of_persons(two, b=np.arange(60) // 10)
    assert re.fullmatch(r"\d persons? with(out)? an event", _judgeable(two, Plan(folds=3), 0).unknown["b"])
    classes = federation({"a": (A, 90), "b": (A, 60)}, "classification")
    # Some rows of the earliest person are among the latest 25 %, so none is left to train on.
    classes = of_persons(classes, b=np.maximum(np.arange(60) - 52, 0))
    found = _judgeable(dated(classes, "b"), Plan(folds=3), 0)
    assert found.unknown == {"b": "too few persons"}
    assert found.has == {"a": "90 samples", "b": "8 persons"}


def test_intervals_count_persons() -> None:
    rows = np.repeat(np.arange(40), 8)

    def flips(person: Any) -> Federation:
        rng = np.random.default_rng(0)
        clients = []
        for id in "abcd":
            x, y = rng.normal(size=(40, 4)).astype(np.float32), rng.permutation(40) % 2
            samples = Samples(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]), person=torch.from_numpy(person))
            clients.append(Client(id, samples, samples))
        return Federation(clients, Task(2, (4,), "risk"), "flips")

    by_person, by_row = (advised(flips(person)) for person in (rows, np.arange(320)))
    assert by_person["a"].has == "20 persons with an event"
    for id in "abcd":
        one, other = present(by_person[id].whole), present(by_row[id].whole)
        assert one.deviation > 2 * other.deviation
        test, by_rows = present(by_person[id].test), present(by_row[id].test)
        assert present(test.high) - present(test.low) > 1.5 * (present(by_rows.high) - present(by_rows.low))


def test_segmentation_is_refused() -> None:
    task = Task(2, (1, 4, 4), "segmentation")
    samples = Samples(torch.zeros(3, 1, 4, 4), torch.zeros(3, 4, 4, dtype=torch.int64))
    with pytest.raises(ConfigError, match="this task is segmentation"):
        advised(Federation([Client("a", samples, samples), Client("b", samples, samples)], task))


def test_all_rows_of_a_person_are_on_one_side_of_the_split(tmp_path: Path) -> None:
    lines = [f"{site},p{row // 4},{row},{row % 2}" for site in "ab" for row in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["site,patient,age,died", *lines]))
    data = {"source": "csv", "path": "t.csv", "target": "died", "client": "site", "person": "patient"}
    own = Experiment.of({**TABLE, "data": data, "scenario": {"name": "natural"}, "model": {"name": "mlp"}})
    for client in own.federation(tmp_path).values():
        assert [len(set(part.units())) for part in (client.train, client.test)] == [16, 4]
        # Ages are standardised, but keep their order: four rows of a person are neighbours.
        ages = np.concatenate([np.asarray(part.inputs(slice(None)))[:, 0] for part in (client.train, client.test)])
        side = np.repeat([0, 1], [len(client.train), len(client.test)])[np.argsort(ages)]
        assert (side.reshape(20, 4) == side.reshape(20, 4)[:, :1]).all()


def test_the_times_are_those_of_each_client_s_training_rows(tmp_path: Path) -> None:
    days = np.random.default_rng(0).permutation(160)
    lines = [f"{'ab'[day % 2]},{day},{day},{day // 2 % 2}" for day in days]
    (tmp_path / "t.csv").write_text("\n".join(["site,day,copy,died", *lines]))
    data = {"source": "csv", "path": "t.csv", "target": "died", "client": "site", "time": "day"}
    own = Experiment.of({**TABLE, "data": data, "scenario": {"name": "natural"}, "model": {"name": "mlp"}})
    federation = own.federation(tmp_path)
    for place, (_, client) in enumerate(sorted(federation.items())):
        times = present(client.train.times())
        assert sorted(times) == list(range(place, 128, 2))  # the latest fifth is tested
        copies = np.asarray(client.train.inputs(slice(None)))[:, 0]
        assert np.corrcoef(times, copies)[0, 1] == pytest.approx(1)
