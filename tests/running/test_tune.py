"""Settings chosen on held-out training data, and tables of comparisons and of every combination of settings."""

from __future__ import annotations

import csv
import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedkin
from fedkin.data.scenarios.natural import Natural
from fedkin.data.sources.tables import Csv
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Client, Federation
from fedkin.methods import METHODS
from fedkin.methods.mapl import Mapl
from fedkin.records.comparison import comparison_rows
from fedkin.records.models import StoredModels
from fedkin.running.experiment import Experiment
from fedkin.running.grid import Choice, HoldOut, Runs, check_choices, combinations, compare, held_out, rows, sweep
from fedkin.running.loop import Stop, run_experiment
from fedkin.running.tune import RATE, Candidate, Equal, at_the_border, best, tune
from fedkin.settings import Span
from support import present, same, small_federation
from tiny import TABLE, CutAt

SHORT: dict[str, Any] = {**TABLE, "training": {**TABLE["training"], "rounds": 2}}
SOME, ONE = HoldOut("samples", 0.3), [Choice("training.lr", (0.1,))]


def inputs(client: Client, part: str) -> set[bytes]:
    samples = getattr(client, part)
    return {row.numpy().tobytes() for row in samples.inputs(slice(None))}


@pytest.mark.slow
@given(share=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_held_out_samples_are_training_samples_and_no_longer_trained_on(share: float, seed: int) -> None:
    federation = small_federation()
    apart = held_out(federation, HoldOut("samples", share), seed)
    assert apart.seen == federation.seen
    for id, client in apart.items():
        assert inputs(client, "train") | inputs(client, "test") == inputs(federation[id], "train")
        assert not inputs(client, "train") & inputs(client, "test")
        expected = min(max(1, round(share * federation[id].size)), federation[id].size - 1)
        assert len(client.test) == expected


@given(share=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_held_out_clients_are_unseen_and_tested_on_training_samples(share: float, seed: int) -> None:
    federation = small_federation()
    apart = held_out(federation, HoldOut("clients", share), seed)
    assert len(apart.unseen) == min(max(1, round(share * len(federation))), len(federation) - 1)
    for id, client in apart.items():
        trained, tested = ("test", "train") if id in apart.unseen else ("train", "test")
        assert inputs(client, trained) == inputs(federation[id], "train")
        assert len(getattr(client, tested)) == 0


def test_samples_of_a_person_are_held_out_together(tmp_path: Path) -> None:
    frame = pd.DataFrame({"site": np.repeat(["a", "b"], 60), "patient": np.arange(120) // 3, "age": np.arange(120.0)})
    frame.assign(died=np.arange(120) % 2).to_csv(tmp_path / "t.csv", index=False)
    source = Csv(path=Path("t.csv"), target="died", client="site", person="patient")
    dataset = source.load(tmp_path)
    federation, units = Natural().federation(dataset, 0), present(dataset.train.person)
    for client in held_out(federation, HoldOut("samples", 0.25), 0).values():
        trained, tested = (set(units[present(samples.rows).numpy()]) for samples in (client.train, client.test))
        assert (len(trained), len(tested), len(client.test)) == (12, 4, 12)
        assert not trained & tested


@pytest.mark.parametrize("person", [None, "patient"])
def test_if_times_are_known_the_latest_samples_are_held_out(tmp_path: Path, person: str | None) -> None:
    day = np.random.default_rng(0).permutation(120)
    frame = pd.DataFrame(
        {"site": np.repeat(["a", "b"], 60), "patient": day // 3, "day": day, "age": day % 7, "died": day % 2}
    )
    federation = Federation.from_frame(frame, target="died", client="site", time="day", person=person)
    for client in held_out(federation, HoldOut("samples", 0.25), 0).values():
        trained, tested = (present(samples.times()) for samples in (client.train, client.test))
        assert trained.max() < tested.min()
        assert len(np.unique(tested)) == (len(tested) if person is None else len(set(client.test.units())))


def test_clients_that_were_unseen_take_no_part_in_tuning(federation: Federation) -> None:
    away = sorted(federation)[0]
    marked = [replace(client, seen=client.id != away) for client in federation.values()]
    assert away not in held_out(Federation(marked, federation.task), HoldOut("samples", 0.2), 0)


def test_order_of_clients_changes_nothing(federation: Federation) -> None:
    turned = federation.reorder(list(reversed(list(federation))))
    for what in ("samples", "clients"):
        one, other = (held_out(f, HoldOut(what, 0.4), 3) for f in (federation, turned))
        assert one.unseen == other.unseen
        for id in one:
            assert torch.equal(one[id].train.x[one[id].train.rows], other[id].train.x[other[id].train.rows])


@pytest.mark.slow
def test_the_best_candidate_is_chosen_and_written_down(tmp_path: Path) -> None:
    choices = [Choice.parse("training.lr=1e-6,0.3"), Choice.parse("sfmtl-graph:method.lam=0.1,0.2")]
    found = tune(Experiment.of(SHORT), ["local", "sfmtl-graph"], choices, SOME, [0, 1], Path(), tmp_path)
    assert [len(found[name]) for name in ("local", "sfmtl-graph")] == [2, 4]
    table = tomllib.loads((tmp_path / "tuned.toml").read_text())
    for name, tried in found.items():
        top = max(tried, key=lambda one: one.mean)
        assert table["methods"][name] == dict(top.settings)
    for place, one in enumerate(found["local"]):
        for seed, value in enumerate(one.values):
            summary = json.loads((tmp_path / f"local-{place}-seed{seed}" / "summary.json").read_text())
            assert summary["accuracy"]["mean"] == value
    assert {key: value for key, value in table.items() if key != "methods"} == Experiment.of(SHORT).resolved()


def test_a_value_that_is_refused_is_named_with_its_option_and_method(tmp_path: Path) -> None:
    choices = [Choice.parse("training.lr=a,b")]
    with pytest.raises(ConfigError, match=r"--try for local: training\.lr: .*; got 'a'"):
        tune(Experiment.of(SHORT), ["local"], choices, SOME, [0], Path(), tmp_path)


def test_test_samples_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same values when every test sample is another one."""
    experiment = Experiment.of(SHORT)

    def values(folder: Path) -> dict[str, list[Candidate]]:
        return tune(experiment, ["fedavg"], ONE, HoldOut("clients", 0.4), [0], Path(), folder)

    one = values(tmp_path / "a")
    kind = type(experiment.scenario)
    made = kind.build

    def spoilt(self: Any, dataset: Any, seed: int) -> Federation:
        federation = made(self, dataset, seed)
        return Federation([replace(c, test=c.test.take([0])) for c in federation.values()], federation.task)

    monkeypatch.setattr(kind, "build", spoilt)
    assert values(tmp_path / "b") == one


def test_a_candidate_that_fails_is_not_chosen_nor_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: Any = (["fedavg"], [Choice("training.lr", (1e30, 0.1))], SOME, [0], Path(), tmp_path)
    found = tune(Experiment.of(SHORT), *arguments)
    assert "the training loss became" in (found["fedavg"][0].failed or "")
    assert tomllib.loads((tmp_path / "tuned.toml").read_text())["methods"]["fedavg"] == {"training.lr": 0.1}

    monkeypatch.setattr("fedkin.running.loop.execute", lambda *_, **more: pytest.fail("it ran again"))
    assert tune(Experiment.of(SHORT), *arguments) == found


def test_the_best_of_what_did_not_fail() -> None:
    failed, one, other = Candidate({}, (), "too fast"), Candidate({"a": 1}, (2.0,)), Candidate({"a": 2}, (1.0,))
    assert best([failed], True) is None
    assert best([one, other, failed], higher=False) is other


def test_pooled_data_are_tuned_on_clients_held_out(tmp_path: Path) -> None:
    pooled = Experiment.of(SHORT).with_changes(**{"scenario.pooled": True, "training.clients_per_round": "all"})
    found = tune(pooled, ["fedavg"], ONE, HoldOut("clients", 0.4), [0], Path(), tmp_path)
    facts = json.loads((tmp_path / "fedavg-0-seed0" / "federation.json").read_text())["clients"]
    assert sorted(fact.get("seen", True) for fact in facts.values()) == [False, False, True]
    assert found["fedavg"][0].failed is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        *((lambda text=text: HoldOut.parse(text), "--hold-out .*: expected .* with a share between 0 and 1")
          for text in ("samples", "samples:1", "rounds:0.2", "clients:x")),
        *((lambda text=text: Choice.parse(text), "--try .*expected section.field=value,value")
          for text in ("training.lr", "=1", "training.lr=", "training.lr=1,,2", ":training.lr=1")),
        (lambda: Choice.parse("fedavgg:training.lr=1"), "no method 'fedavgg'; .*fedavg"),
        *((lambda text=text: Equal.parse(text), f"--equal '{text}'") for text in ("1", "many")),
        *((lambda text=text: Equal.parse("4", text), f"--rates '{text}'") for text in ("1", "1,0.1")),
    ],
)  # fmt: skip
def test_options_that_mean_nothing(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize(
    ("path", "values", "says"),
    [
        ("scenario.clients", (4, 6), r"^--try scenario\.clients: figures on other samples choose nothing"),
        ("data.seed", (0, 1), r"^--try data\.seed: figures on other samples choose nothing"),
        ("run.seed", (0, 1), r"^--try run\.seed: every combination runs with the same seeds"),
        ("training.lr", (0.1, 0.1), r"^--try training\.lr: lr=0\.1 is named twice; expected each once"),
        ("training.lr", (), r"^--try training\.lr: at least one is needed"),
    ],
)
def test_what_a_tuning_cannot_choose_is_refused(path: str, values: tuple[Any, ...], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        tune(Experiment.of(SHORT), ["local"], [Choice(path, values)], HoldOut("samples", 0.3), [0], Path(), tmp_path)


def test_settings_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    arguments: Any = (SOME, [0], Path(), tmp_path / "new")
    with pytest.raises(ConfigError, match=r"training\.lrr"):
        tune(Experiment.of(SHORT), ["fedavg"], [Choice("training.lrr", (1,))], *arguments)
    with pytest.raises(ConfigError, match="--try: at least one"):
        tune(Experiment.of(SHORT), ["fedavg"], [], *arguments)
    assert not (tmp_path / "new").exists()
    tune(Experiment.of(SHORT), ["fedavg"], ONE, *arguments)
    with pytest.raises(RunError, match="differs from what to tune"):
        tune(Experiment.of(SHORT), ["fedavg"], [Choice("training.lr", (0.2,))], *arguments)


# -- equal tuning: as many candidates for every method, in the ranges that it declares -------------------------------


def experiment(name: str = "fedavg") -> Experiment:
    return Experiment.of({**SHORT, "method": {"name": name}})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_as_many_candidates_and_takes_each(name: str) -> None:
    base, equal = experiment(name), Equal(9, seed=3)
    drawn = equal.settings(base)
    assert len(drawn) == 9
    assert drawn[0] == {}
    assert drawn == equal.settings(base)
    ranges = equal.ranges(base)
    for one in drawn[1:]:
        assert set(one) == set(ranges)
        base.with_changes(**one)
        for path, span in ranges.items():
            assert span.low <= one[path] <= span.high if isinstance(span, Span) else one[path] in span
    assert 1 <= len(ranges) <= 8
    if name in ("local", "fedavg", "kin"):
        assert set(ranges) == {RATE}
    # The number of groups is never the planted one: its values are the same for all federations.
    assert ranges.get("method.clusters", (2, 3, 4, 5, 6, 8)) == (2, 3, 4, 5, 6, 8)


@pytest.mark.parametrize("name", ["mapl", "mapl-plus"])
def test_no_candidate_ends_its_warm_up_after_the_run(name: str) -> None:
    base = experiment(name)
    for one in Equal(30).settings(base):
        method = base.with_changes(**one).method
        assert isinstance(method, Mapl)
        assert method.warmup < 1


def test_candidates_spread_over_the_whole_range() -> None:
    drawn = Equal(33, (0.001, 1.0)).settings(experiment())[1:]
    counts, _ = np.histogram(np.log10([one[RATE] for one in drawn]), bins=np.linspace(-3, 0, 9))
    assert set(counts) <= {3, 4, 5}


def test_the_first_candidate_too_may_be_at_the_border() -> None:
    base = experiment("fedprox")
    tried = Equal(3, (base.training.lr / 100, base.training.lr / 10)).settings(base)
    assert "lr: the largest tried" in at_the_border(base, {}, tried)
    assert not any("largest" in words and "lr" in words for words in at_the_border(base, tried[1], tried))
    both = Equal(8, (base.training.lr / 10, base.training.lr * 10), fixed=("method.mu",))
    assert at_the_border(base, {}, both.settings(base)) == []


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(1e-4, 1e-3), (3.0, 30.0)])
def test_a_rate_at_the_border_is_moved_on(tmp_path: Path, rates: tuple[float, float]) -> None:
    """It is doubled or halved until the best is no longer at the border; started again, nothing changes."""
    base = Experiment.of({**SHORT, "training": {**SHORT["training"], "lr": sum(rates) / 2}})
    arguments: Any = (["local"], Equal(3, rates), SOME, [0], Path(), tmp_path)
    tried = tune(base, *arguments)["local"]
    lrs = [one.settings.get(RATE, base.training.lr) for one in tried]
    for count in range(3, len(lrs)):
        assert any(lrs[count] in (2 * rate, rate / 2) for rate in lrs[:count])
    winner = best(tried, True)
    rate = present(winner).settings.get(RATE, base.training.lr)
    assert 3 < len(tried) <= 9
    assert len(tried) == 9 or (min(lrs) < rate and 2 * rate in lrs)
    assert tune(base, *arguments)["local"] == tried


def test_a_rate_beside_those_that_diverge_is_not_chosen() -> None:
    fast = Candidate({"lr": 0.4}, (0.2,))
    edge = Candidate({"lr": 0.2}, (0.9,), faster=fast)
    safe = Candidate({"lr": 0.1}, (0.8,), faster=edge)
    slow = Candidate({"lr": 0.05}, (0.7,), faster=safe)
    assert best([slow, safe, edge, fast], True) is safe
    broken = Candidate({"lr": 0.8}, (), "diverged")
    assert best([slow, replace(safe, faster=broken), edge], True) is slow
    assert best([replace(safe, faster=broken)], True) == replace(safe, faster=broken)
    equal = Equal(3, (0.01, 1.0))
    base = experiment()
    tried = [Candidate({}, (0.9,)), Candidate({RATE: 2 * base.training.lr}, (0.3,)), Candidate({RATE: 1e-3}, (0.1,))]
    first, second, third = equal.twinned(base, tried)
    assert (first.faster, second.faster, third.faster) == (tried[1], None, None)
    assert equal.further(base, [first, second, third], True) is None
    assert equal.further(base, [second, third], True) == {RATE: 4 * base.training.lr}
    assert equal.further(base, [replace(third, values=(0.95,), faster=second), second], True) == {RATE: 5e-4}


@pytest.mark.parametrize(
    ("method", "path", "tried", "value", "expected"),
    [
        ("fedprox", "method.mu", [0.1, 0.2, 0.4], 0.4, 0.632),  # half-way from .4 to 1 on a logarithmic scale
        ("fedprox", "method.mu", [0.1, 0.2, 0.4], 0.1, 0.01),
        ("fedprox", "method.mu", [0.1, 0.2, 0.4], 0.2, None),
        ("fedprox", "method.mu", [0.1, 0.2, 1.0], 1.0, None),  # the end of the declared range
        ("apfl", "method.alpha", [0.3, 0.5], 0.3, 0.2),
        ("ifca", "method.clusters", [2, 6], 6, 8),
        ("ifca", "method.clusters", [3, 6], 3, 2),
        ("ifca", "method.clusters", [2, 8], 8, None),
        ("tfl", "method.scale", ["raw", "normalised"], "raw", None),
    ],
)
def test_a_setting_at_the_border_is_moved_on_once_the_rate_is_found(
    method: str, path: str, tried: list[Any], value: Any, expected: Any
) -> None:
    base, equal = experiment(method), Equal(8, (1e-3, 1.0))
    lr = base.training.lr
    twin = Candidate({RATE: 2 * lr, path: value}, (0.8,))
    best_one = Candidate({RATE: lr, path: value}, (0.9,), faster=twin)
    others = [Candidate({RATE: lr / 2, path: other}, (0.5,)) for other in tried]
    moved = equal.further(base, [best_one, twin, *others], True)
    assert moved == (None if expected is None else {RATE: lr, path: expected})
    untried = Candidate({RATE: lr / 4}, (0.95,))  # nobody knows what is next to it
    assert best([best_one, twin, *others, untried], True) is best_one
    assert equal.further(base, [replace(best_one, faster=None), *others], True) == {RATE: 2 * lr, path: value}
    assert Equal(1).further(base, [best_one, twin, *others], True) is None


def test_what_is_in_a_fixed_section_is_not_tuned() -> None:
    for fixed, tuned in (((), True), (("method.augment",), False), (("method.aug",), True)):
        assert ("method.augment.crop" in Equal(3, fixed=fixed).ranges(experiment("mapl"))) is tuned


def test_a_border_is_said_for_numbers() -> None:
    base = experiment("fedprox").with_changes(**{RATE: 0.3, "method.mu": 0.5})
    tried = [{}, {RATE: 0.1, "method.mu": 1.0}, {RATE: 0.5, "method.mu": 0.2}, {RATE: 0.3, "method.mu": 0.5}]
    assert at_the_border(base, tried[1], tried) == ["lr: the smallest tried", "mu: the largest tried"]
    assert at_the_border(base, tried[3], tried) == at_the_border(base, {}, tried) == []


# -- comparisons and sweeps, recomputed by hand from the runs' own records -----------------------------------------


@pytest.mark.slow
def test_table_against_the_records(tmp_path: Path) -> None:
    results = compare(Runs(Experiment.of(TABLE)), ["local", "fedavg"], [0, 1, 2], tmp_path / "c")
    rows = {row["method"]: row for row in comparison_rows(results)}

    def last(method: str, seed: int) -> dict[str, float]:
        found = pq.read_table(tmp_path / "c" / f"{method}-seed{seed}" / "clients.parquet").to_pandas()
        found = found[found["round"] == 7]
        return dict(zip(found["client"], found["accuracy"], strict=True))

    means = [np.mean(list(last("fedavg", seed).values())) for seed in (0, 1, 2)]
    assert rows["fedavg"]["mean"] == (pytest.approx(np.mean(means)), pytest.approx(np.std(means, ddof=1)))
    gained = [[last("fedavg", seed)[id] - last("local", seed)[id] for id in last("local", seed)] for seed in (0, 1, 2)]
    assert rows["fedavg"]["gain"][0] == pytest.approx(np.mean(gained))
    assert rows["fedavg"]["hurt"][0] == pytest.approx(np.mean(np.array(gained) < -1e-9))
    assert rows["local"]["gain"] is None
    assert rows["local"]["bytes_up"] == (0.0, 0.0)
    assert rows["fedavg"]["found"] is None
    one, other = ((tmp_path / "c" / f"{name}-seed2" / "federation.json").read_bytes() for name in ("local", "fedavg"))
    assert one == other


@pytest.mark.slow
def test_models_stay_in_the_folders_of_a_comparison(tmp_path: Path) -> None:
    """Those of all runs together would not fit into memory."""
    results = compare(Runs(Experiment.of(TABLE)), ["local", "fedavg"], [0], tmp_path / "c")
    for name, by_seed in results.items():
        result = by_seed[0]
        assert isinstance(result.models, StoredModels)
        alone = run_experiment(Experiment.of(TABLE).for_method(name), Path()).models
        assert isinstance(alone, dict)
        assert same(dict(result.models), alone)


@pytest.mark.slow
def test_models_that_no_folder_has_stay_with_the_result(tmp_path: Path) -> None:
    for name, value in (("models", "none"), ("models_limit_mb", 1e-4)):
        plan = Experiment.of(TABLE).with_changes(**{f"run.{name}": value})
        result = compare(Runs(plan), ["fedavg"], [0], tmp_path / name)["fedavg"][0]
        assert len(result.models) == len(result.scores)
    assert len(compare(Runs(Experiment.of(TABLE)), ["fedavg"], [0])["fedavg"][0].models) == len(result.scores)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_comparison_goes_on_with_the_samples_that_it_began_with(tmp_path: Path, seed: int) -> None:
    rows = [f"{'ab'[row % 2]},{row % 7},{row % 3 == 0:d}" for row in range(60)]
    place = tmp_path / "stays.csv"
    plan = Experiment.of(
        {
            **TABLE, "data": {"source": "csv", "path": str(place), "target": "died", "client": "site"},
            "scenario": {"name": "natural"}, "training": {"rounds": 1, "local_steps": 1, "lr": 0.1},
            "run": {"adversaries": "label-flip:0.5"},
        }
    )  # fmt: skip
    place.write_text("\n".join(["site,age,died", *rows]))
    compare(Runs(plan), ["local", "fedavg"], [0, 1], tmp_path / "all")
    shutil.rmtree(tmp_path / "all" / f"fedavg-seed{seed}")
    place.write_text("\n".join(["site,age,died", *rows[::-1]]))
    with pytest.raises(RunError, match=r"local-seed0.*the clients or their samples are not those that this run began"):
        compare(Runs(plan), ["local", "fedavg"], [0, 1], tmp_path / "all")
    assert not (tmp_path / "all" / f"fedavg-seed{seed}").exists()
    place.write_text("\n".join(["site,age,died", *rows]))
    assert set(compare(Runs(plan), ["local", "fedavg"], [0, 1], tmp_path / "all")["fedavg"]) == {0, 1}


def test_a_tuning_tries_more_only_on_the_samples_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Experiment.of({**TABLE, "training": {"rounds": 1, "local_steps": 1, "lr": 0.1}})

    def stops(what: str, done: int, of: int) -> CutAt:
        if of == 1:  # the first of the further candidates
            raise KeyboardInterrupt
        return CutAt(99, "stop")

    with pytest.raises(KeyboardInterrupt):
        tune(plan, ["local"], Equal(2), SOME, [0], Path(), tmp_path / "t", watch=stops)
    monkeypatch.setattr(Runs, "federation", lambda self, seed: small_federation(seed=9))
    with pytest.raises(RunError, match="are not those that this run began with"):
        tune(plan, ["local"], Equal(2), SOME, [0], Path(), tmp_path / "t")
    assert len(list((tmp_path / "t").glob("local-*"))) == 2


def test_a_message_between_peers_is_sent_once() -> None:
    def sent(method: str) -> tuple[float, float, float]:
        result = fedkin.run(method, small_federation(), rounds=1, training={"local_steps": 1})
        (row,) = comparison_rows({method: {0: result}})
        return row["bytes_sent"][0], row["bytes_up"][0], row["bytes_down"][0]

    once, up, down = sent("dfedavgm")
    assert once == up == down > 0
    both, up, down = sent("fedavg")
    assert both == up + down


# -- a combinations of settings: its runs are those of single experiments, and it goes on after a stop ---------------


GRID = [Choice.parse("training.lr=0.05,0.5", "--grid"), Choice.parse("fedprox:method.mu=0,1", "--grid")]


@pytest.fixture
def small() -> Experiment:
    return Experiment.of({**TABLE, "training": {**TABLE["training"], "rounds": 2}, "method": {"name": "fedprox"}})


@pytest.mark.slow
def test_every_run_is_that_of_its_settings(small: Experiment, tmp_path: Path) -> None:
    found = sweep(Runs(small), ["local", "fedprox"], GRID, [0, 1], tmp_path / "s")
    assert [(one.method, tuple(one.settings.values())) for one in found] == [
        ("local", (0.05,)), ("local", (0.5,)),
        ("fedprox", (0.05, 0)), ("fedprox", (0.05, 1)), ("fedprox", (0.5, 0)), ("fedprox", (0.5, 1)),
    ]  # fmt: skip
    alone = run_experiment(small.with_changes(**{"training.lr": 0.5, "method.mu": 1, "run.seed": 1}), Path("nowhere"))
    assert found[-1].results[1].scores == alone.scores
    assert alone.scores != found[-2].results[1].scores
    assert all(isinstance(result.models, StoredModels) for one in found for result in one.results.values())
    made = rows(found)
    assert made[-1]["settings"] == "lr=0.5, mu=1"
    assert made[-1]["mean"][0] == pytest.approx((found[-1].results[0].value + found[-1].results[1].value) / 2)
    with (tmp_path / "s" / "sweep.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["settings"] for line in lines] == [row["settings"] for row in made]
    assert float(lines[0]["mean.mean"]) == pytest.approx(made[0]["mean"][0])


def test_gains_are_against_local_with_the_same_settings(small: Experiment, tmp_path: Path) -> None:
    found = sweep(Runs(small), ["local", "fedavg"], GRID[:1], [0], tmp_path / "s")
    for row, alone, other in zip(rows(found)[2:], found[:2], found[2:], strict=True):
        assert row["gain"][0] == pytest.approx(other.results[0].value - alone.results[0].value)


@pytest.mark.slow
def test_a_sweep_that_was_stopped_goes_on_and_ends_alike(small: Experiment, tmp_path: Path) -> None:
    def stops(what: str, done: int, of: int) -> CutAt:
        assert of == 4
        return CutAt(1 if done == 2 else 99, "stop")

    whole = sweep(Runs(small), ["fedprox"], GRID, [0], tmp_path / "whole")
    with pytest.raises(Stop):
        sweep(Runs(small), ["fedprox"], GRID, [0], tmp_path / "cut", watch=stops)
    assert not (tmp_path / "cut" / "sweep.csv").exists()
    watcher = Mock(**{"stopping.return_value": False})
    again = sweep(Runs(small), ["fedprox"], GRID, [0], tmp_path / "cut", watch=lambda *_: watcher)
    assert watcher.started.call_count == 2
    assert [one.results[0].scores for one in again] == [one.results[0].scores for one in whole]
    for name in ("plan.json", "experiment.toml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(RunError, match="differs from what to sweep"):
        sweep(Runs(small), ["fedprox"], GRID[:1], [0], tmp_path / "cut")


def test_what_is_wrong_is_refused_before_anything_runs(small: Experiment, tmp_path: Path) -> None:
    for choices, why in (
        (["method.mu=0,-1"], r"^grid for fedprox: method\.mu"), (["training.lr=a,b"], "^grid for fedprox: training"),
        (["training.lrr=1"], r"training\.lrr: no such setting"),
        (["training.clients_per_round=2,99"], "99 clients a round"),
    ):  # fmt: skip
        wanted = [Choice.parse(text, "--grid") for text in choices]
        with pytest.raises(ConfigError, match=why):
            sweep(Runs(small), ["fedprox"], wanted, [0], tmp_path / "s")
        assert not (tmp_path / "s").exists()


def test_values_for_a_method_are_also_those_of_its_controls(small: Experiment, tmp_path: Path) -> None:
    wanted = [Choice.parse("fedprox:method.mu=0.1,1", "--grid")]
    check_choices(wanted, ["fedprox@self"], "--grid")
    for name in ("fedprox", "fedprox@self"):
        assert combinations(wanted, name) == [{"method.mu": 0.1}, {"method.mu": 1}]
    assert combinations(wanted, "fedavg@self") == [{}]
    found = sweep(Runs(small), ["fedavg", "fedprox@self"], wanted, [0], tmp_path / "s")
    assert [(one.method, dict(one.settings)) for one in found] == [
        ("fedavg", {}), ("fedprox@self", {"method.mu": 0.1}), ("fedprox@self", {"method.mu": 1}),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="method 'fedprox' does not run here; known: fedavg"):
        check_choices(wanted, ["fedavg@self"], "--grid")


@pytest.mark.parametrize("path", ["scenario.clients", "data.seed"])
def test_no_method_has_samples_of_its_own(path: str) -> None:
    check_choices([Choice(path, (3, 4))], ["fedavg"], "--grid")
    with pytest.raises(ConfigError, match=f"--grid fedavg:{path}: methods are compared on the same samples"):
        check_choices([Choice(path, (3, 4), "fedavg")], ["fedavg"], "--grid")


def test_names_of_folders_differ_where_values_do(small: Experiment, tmp_path: Path) -> None:
    wanted = [Choice.parse("model.hidden=[8],[4, 4]", "--grid")]
    assert wanted[0].values == ([8], [4, 4])
    found = sweep(Runs(small), ["fedavg"], wanted, [0], tmp_path / "s")
    homes = [one.results[0].folder for one in found]
    assert len({home.parent.name for home in homes if home is not None}) == 2


def test_a_number_and_a_text_of_it_are_two_values() -> None:
    check_choices([Choice("method.k", (1, "1", True, "true"))], ["fedavg"], "--grid")
    with pytest.raises(ConfigError, match='k="1" is named twice'):
        check_choices([Choice("method.k", (1, "1", "1"))], ["fedavg"], "--grid")
