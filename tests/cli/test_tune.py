"""`fedkin tune`: a table, an experiment file that `compare` takes, and going on after a stop."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from cli.invoked import Terminal, refused, said
from fedkin.methods import METHODS
from tiny import TABLE, written


@pytest.fixture(autouse=True)
def _experiment(here: Path) -> None:
    written(here / "small.toml", training={**TABLE["training"], "rounds": 2})


TUNE = ["tune", "small.toml", "--methods", "local,fedavg", "--try", "training.lr=0.001,0.5", "--out", "tuned"]


@pytest.mark.slow
def test_what_was_chosen_is_what_compare_runs() -> None:
    result = said(*TUNE)
    assert result.count("chosen") == 3
    assert "judged on samples:0.2 of the training data, seeds 0" in result
    chosen = tomllib.loads(Path("tuned/tuned.toml").read_text())["methods"]["fedavg"]["training.lr"]
    rows = json.loads(said("tune", "--resume", "tuned", "--json"))["fedavg"]
    assert max(rows, key=lambda row: row["values"][0])["settings"] == {"training.lr": chosen}
    said("compare", "tuned/tuned.toml", "--methods", "fedavg", "--out", "c")
    assert tomllib.loads(Path("c/fedavg-seed0/experiment.toml").read_text())["training"]["lr"] == chosen


@pytest.mark.slow
def test_the_best_of_methods_that_were_tuned_is_chosen_on_validation() -> None:
    methods = "local,fedavg,ifca,mapl"
    said(*TUNE[:3], methods, *TUNE[4:])
    held = json.loads(Path("tuned/validation.json").read_text())
    assert held["hold_out"] == "samples:0.2"
    rows = json.loads(said("tune", "--resume", "tuned", "--json"))
    assert held["means"] == {name: max(row["values"][0] for row in every) for name, every in rows.items()}
    result = said("compare", "tuned/tuned.toml", "--methods", methods, "--out", "c")
    best = max(("ifca", "mapl"), key=lambda name: held["means"][name])
    choice = f"by validation (20% of the training samples), the best of 2 methods is {best}"
    assert choice in " ".join(result.split())
    page = Path("c/report.html").read_text()
    chosen = "chosen of 2 methods other than Local and FedAvg on validation (20% of the training samples)"
    assert f"{METHODS[best].title}, {chosen}" in page
    assert "too good on average" not in page
    # The same after a stop, and not for other settings than those that were judged.
    assert choice in " ".join(said("compare", "--resume", "c").split())
    changed = ["compare", "tuned/tuned.toml", "--methods", methods, "--rounds", "1", "--out", "d"]
    assert "use fedkin tune: the best of" in " ".join(said(*changed).split())
    assert "chosen of 2 methods other than Local and FedAvg on the test samples" in Path("d/report.html").read_text()


def test_a_method_whose_candidates_all_fail_does_not_cost_the_others_theirs(terminal: Terminal) -> None:
    grid = ["--try", "local:training.lr=0.1", "--try", "fedavg:training.lr=1e30"]
    code, out, err = terminal(*TUNE[:4], *grid, "--out", "tuned")
    assert (code, out.count("chosen")) == (2, 2)
    assert "every candidate failed of fedavg" in err
    assert "fedavg: round 1, client" in err
    assert tomllib.loads(Path("tuned/tuned.toml").read_text())["methods"] == {"local": {"training.lr": 0.1}}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tune", "small.toml"], "--try: name at least one setting"),
        (["tune", "small.toml", "--try", "training.lr"], "expected section.field=value,value"),
        (["tune", "small.toml", "--try", "training.lrr=1"], "training.lrr: no such setting; did you mean 'lr'"),
        (["tune", "small.toml", "--try", "training.lr=1", "--hold-out", "half"], "--hold-out 'half': expected"),
        (["tune", "--resume", "tuned", "--methods", "local"], "give no others"),
        (["compare", "--resume", "tuned"], "continue it with fedkin tune --resume"),
        (["tune", "small.toml", "--grid", "training.lr=1", "--equal", "3"], "--grid runs every combination"),
        (["tune", "small.toml", "--grid", "training.lr"], "--grid 'training.lr': expected section.field=value,value"),
        (["tune", "small.toml", "--grid", "training.lrr=1"], "training.lrr: no such setting; did you mean 'lr'"),
        *((["tune", "small.toml", "--methods", "local,fedprox", option, "fedavg:training.lr=1"],
           f"{where} fedavg:training.lr: method 'fedavg' does not run here; known: fedprox, local")
          for option, where in (("--grid", "grid"), ("--try", "--try"))),
        (["tune", "--resume", "swept", "--seeds", "1"], "give no others"),
        (["compare", "--resume", "swept"], "continue it with fedkin tune --resume"),
        (["run", "--resume", "swept"], "a comparison, a tuning or a sweep; continue it with fedkin tune --resume"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(words: list[str], says: str, terminal: Terminal) -> None:
    if "tuned" in words:
        said(*TUNE)
    if "swept" in words:
        said(*TUNE[:3], "local", "--grid", "training.lr=0.1", "--out", "swept")
    code, _, err = terminal(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert says in err


@pytest.mark.slow
def test_an_equal_tuning_goes_on_with_its_candidates() -> None:
    methods = ["--methods", "local,fedprox"]
    result = said("tune", "small.toml", *methods, "--equal", "3", "--rates", "0.01,0.5", "--out", "tuned")
    assert result.count("chosen") == 3
    rows = json.loads(said("tune", "--resume", "tuned", "--json"))
    assert all(3 <= len(tried) <= 9 for tried in rows.values())
    assert set(rows["fedprox"][1]["settings"]) == {"training.lr", "method.mu"}
    count = sum(map(len, rows.values()))
    assert f"tuning: {count} of {count} begun runs have ended" in said("runs", "check", "tuned")


# -- `fedkin tune`: a table, a plot, going on, and what is wrong in one line ---


SWEEP = ["tune", "small.toml", "--methods", "local,fedavg", "--grid", "training.lr=0.05,0.5", "--seeds", "0-1",
         "--out", "swept"]  # fmt: skip


@pytest.mark.slow
def test_a_table_a_plot_and_the_same_again() -> None:
    result = said(*SWEEP)
    for text in ("local, lr=0.05", "fedavg, lr=0.5", "seeds 0, 1", "to choose a setting, use fedkin tune", "sweep.csv"):
        assert text in result
    page = Path("swept/sweep.html").read_text()
    assert "training.lr" in page
    assert "small: a sweep" in page
    rows = json.loads(said("tune", "--resume", "swept", "--json"))
    assert [(row["method"], row["training.lr"]) for row in rows] == [
        ("local", 0.05), ("local", 0.5), ("fedavg", 0.05), ("fedavg", 0.5),
    ]  # fmt: skip
    assert rows[0]["gain"] is None
    assert rows[2]["gain"] is not None
    said("report", "swept/lr=0.05", "swept/lr=0.5")
    standing = said("runs", "check", "swept")
    assert "sweep: 8 of 8 begun runs have ended; continue with fedkin tune --resume swept" in standing


@pytest.mark.usefixtures("forgotten")
def test_a_change_may_name_a_method_of_a_file_that_is_compared() -> None:
    Path("own_prox.py").write_text(
        "from fedkin.methods.fedprox import FedProx\n\nclass Mine(FedProx):\n    name = 'own-prox'\n    title = 'Own'\n"
    )
    change = ("--set", "methods.own-prox.method.mu=7.5", "--out", "mine")
    said("compare", "small.toml", "--methods", "own_prox.py:Mine", *change)
    assert "mu = 7.5" in Path("mine/own-prox-seed0/experiment.toml").read_text()


def test_a_change_of_a_method_that_does_not_run_is_refused() -> None:
    words = ("compare", "small.toml", "--methods", "fedavg,fedprox", "--out", "out", "--set", "method.lam=1")
    assert "it changes sfmtl-graph, which is none of --methods fedavg,fedprox" in refused(*words)
    assert not Path("out").exists()
