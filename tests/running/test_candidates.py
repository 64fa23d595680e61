"""Equal tuning: as many candidates for every method, in the ranges that it declares."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedkin.errors import ConfigError, RunError
from fedkin.methods import METHODS
from fedkin.methods.mapl import Mapl
from fedkin.running.experiment import Experiment
from fedkin.running.holdout import HoldOut
from fedkin.running.tune import RATE, Equal, at_the_border, best, tune
from fedkin.settings import Span
from tiny import TABLE, CutAt


def experiment(name: str = "fedavg") -> Experiment:
    return Experiment.of({**TABLE, "method": {"name": name}, "training": {**TABLE["training"], "rounds": 2}})


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
    assert 1 <= len(ranges) <= 4
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
    logs = np.log10([one[RATE] for one in drawn])
    counts, _ = np.histogram(logs, bins=np.linspace(-3, 0, 9))
    assert counts.min() >= 3
    assert counts.max() <= 5


def test_the_first_candidate_too_may_be_at_the_border() -> None:
    base = experiment("fedprox")
    lower = Equal(3, (base.training.lr / 100, base.training.lr / 10))
    tried = lower.settings(base)
    assert "lr: the largest tried" in lower.border(base, {}, tried)
    assert not any("largest" in words and "lr" in words for words in lower.border(base, tried[1], tried))
    both = Equal(8, (base.training.lr / 10, base.training.lr * 10), fixed=("method.mu",))
    assert both.border(base, {}, both.settings(base)) == []


def test_what_is_in_a_fixed_section_is_not_tuned() -> None:
    base = experiment("mapl")
    assert "method.augment.crop" in Equal(3).ranges(base)
    assert "method.augment.crop" not in Equal(3, fixed=("method.augment",)).ranges(base)
    assert "method.augment.crop" in Equal(3, fixed=("method.aug",)).ranges(base)


def test_a_border_is_said_for_numbers() -> None:
    tried = [{}, {RATE: 0.1, "method.mu": 1.0}, {RATE: 0.5, "method.mu": 0.2}, {RATE: 0.3, "method.mu": 0.5}]
    assert at_the_border(tried[1], tried) == ["lr: the smallest tried", "mu: the largest tried"]
    assert at_the_border(tried[3], tried) == []
    assert at_the_border({}, tried) == []


@pytest.mark.parametrize(
    ("text", "rates", "says"),
    [
        ("1", None, "--equal '1'"),
        ("many", None, "--equal 'many'"),
        ("4", "1", "--rates '1'"),
        ("4", "1,0.1", "--rates"),
    ],
)
def test_what_is_wrong_is_said(text: str, rates: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Equal.parse(text, rates)


def test_halving_chooses_at_full_length_and_goes_on(tmp_path: Path) -> None:
    base = Experiment.of({**TABLE, "method": {"name": "fedavg"}, "training": {**TABLE["training"], "rounds": 9}})
    equal, hold = Equal(9, (0.001, 1.0), halving=True), HoldOut("samples", 0.2)
    watched: list[tuple[int, int]] = []

    def hears(method: str, values: object, seed: int, done: int, of: int) -> CutAt:
        watched.append((done, of))
        return CutAt(99)

    found = tune(base, ["fedavg"], equal, hold, [0, 1], Path("nowhere"), tmp_path / "t", watcher=hears)["fedavg"]
    assert sorted(str(one.rounds) for one in found) == ["1"] * 6 + ["3"] * 2 + ["None"]
    assert watched == [(number, 26) for number in range(26)]
    chosen = best(found, True)
    assert chosen is not None
    assert chosen.rounds is None
    # Of the first nine, those with the best mean went on.
    first = {
        place: float(np.mean([accuracy(tmp_path / "t" / f"fedavg-{place}-1-rounds-seed{seed}") for seed in (0, 1)]))
        for place in range(9)
    }
    went = {place for place in range(9) if (tmp_path / "t" / f"fedavg-{place}-3-rounds-seed0").exists()}
    assert len(went) == 3
    assert min(first[place] for place in went) >= max(first[place] for place in set(first) - went)
    again = tune(base, ["fedavg"], equal, hold, [0, 1], Path("nowhere"), tmp_path / "t", resume=True)["fedavg"]
    assert again == found
    with pytest.raises(RunError, match="must be the same in every option"):
        tune(base, ["fedavg"], Equal(9, (0.001, 1.0)), hold, [0, 1], Path("nowhere"), tmp_path / "t", resume=True)


def accuracy(run: Path) -> float:
    return float(json.loads((run / "summary.json").read_text())["accuracy"]["mean"])
