"""`fedkin reproduce`: a table from its definition to its page, on embedded data."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tomli_w
from typer.testing import CliRunner

from cli.invoked import refused
from fedkin.cli import app
from fedkin.errors import ConfigError
from fedkin.methods import METHODS
from fedkin.records.controls import split_control
from fedkin.records.files import csv_text
from fedkin.records.run import Result
from fedkin.report import results
from fedkin.running.experiment import Experiment, load
from fedkin.running.grid import words as in_words
from fedkin.running.papers import Claim, PaperTable, known_tables
from fedkin.running.reproduce import Cells, FinishedPart, TunedRow, claim_value, figures_row, runs_of
from fedkin.running.tune import RATE
from fedkin.settings import parse, tunables
from support import present
from tiny import written

ROOT = Path(__file__).parents[2]
DEFINITIONS = known_tables(ROOT / "presets" / "tables")
ONE: dict[str, Any] = {
    "name": "six clients", "preset": "../small.toml", "paper": {"fedavg": 12.5},
    "set": {"training.rounds": 12, "training.local_steps": 8},
}  # fmt: skip
SMALL: dict[str, Any] = {
    "title": "A small table", "source": "nowhere", "paper": "FLT", "apart": "it is small.",
    "methods": ["local", "fedavg"],
    "seeds": [0, 1, 2], "tune": {"candidates": 2, "rates": [0.2, 0.5], "seeds": [0, 1]},
    "row": [{"name": "fedavg-slow", "method": "fedavg", "set": {"training.lr": 0.0001}, "tuned_as": "fedavg"}],
    "federation": [ONE],
    "claim": [
        {"text": "a slow rate is worse", "better": "fedavg", "than": "fedavg-slow", "on": ["six clients"]},
        {"text": "a slow rate is better", "better": "fedavg-slow", "than": "fedavg", "on": ["six clients"]},
        {"text": "Local sends less", "better": "local", "than": "fedavg", "figure": "bytes"},
        {"text": "a table is round", "untestable": "there is no table"},
    ],
    "quick": {"set": {"training.rounds": 1}, "seeds": [0, 1]},
}  # fmt: skip
VIEWS = {"name": "local-views", "method": "local", "set": {"training.augment": {"crop": 0.2}}}
PROX = {"name": "fedprox", "method": "fedprox"}
PROX_RUNS = {f"{row}-seed{seed}" for row in ("local", "fedprox", "fedprox@self") for seed in (0, 1)}
PROX_CLAIM = {"text": "FedProx is better", "better": "fedprox", "than": "fedavg"}
OTHER = {**ONE, "name": "five clients", "set": {"scenario.clients": 5, "training.clients_per_round": 3}, "paper": {}}


@pytest.fixture
def folder(here: Path) -> Path:
    """Definitions in presets/tables of the current folder."""
    (here / "presets" / "tables").mkdir(parents=True)
    define(here)
    written(here / "presets" / "small.toml")
    return here


def define(folder: Path, **changes: Any) -> None:
    (folder / "presets" / "tables" / "tiny.toml").write_text(tomli_w.dumps({**SMALL, **changes}))


def ran(*words: str) -> str:
    done = CliRunner().invoke(app, ["reproduce", *words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.mark.parametrize("part", ["row", "federation", "quick", "methods"])
def test_a_part_of_a_definition_that_is_of_a_wrong_kind_is_refused(folder: Path, part: str) -> None:
    define(folder, **{part: 3})
    with pytest.raises(ConfigError, match=rf"tiny\.toml\.{part}: "):
        known_tables(folder / "presets" / "tables")


def pages_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows_run(folder: Path) -> set[str]:
    """ROW-seedSEED of the quick runs that have ended."""
    return {path.parent.name for path in (folder / "quick").rglob("runs/*/summary.json")}


def verdicts(pages: Path, quick: bool = True) -> list[dict[str, str]]:
    """The verdicts on the claims, from the CSV of a page."""
    presets = Path("presets/tables")
    table = known_tables(presets)["tiny"]
    rows = results.csv_rows((pages / "tiny.csv").read_text())
    return results.claim_rows(table.shortened() if quick else table, rows, presets)


def claims(pages: Path, quick: bool = True) -> dict[tuple[str, str], tuple[str, str]]:
    return {(row["claim"], row["federation"]): (row["verdict"], row["found"]) for row in verdicts(pages, quick)}


@pytest.mark.slow
def test_a_page_with_verdicts_from_the_records(folder: Path) -> None:
    ran("tiny", "--pages", "pages", "--out", "runs")
    page = (folder / "pages" / "tiny.md").read_text()
    found = claims(folder / "pages", quick=False)
    assert found["a slow rate is worse", "six clients"][0] == "holds"
    assert found["a slow rate is better", "six clients"][0] == "does not hold"
    assert found["Local sends less", "six clients"][0] == "holds"
    assert found["a table is round", ""][0] == "not testable here: there is no table"
    assert "12.5" in page
    rows = results.csv_rows((folder / "pages" / "tiny.csv").read_text())
    means: dict[str, list[float]] = {}
    for row in rows:
        means.setdefault(row["row"], []).append(float(row["mean"]))
    assert set(means) == {"local", "fedavg", "fedavg@self", "fedavg-slow", "fedavg-slow@self"}
    # A page says what its records say: FedAvg's figure, with its interval, by hand.
    one, slow = (100 * sum(means[name]) / 3 for name in ("fedavg", "fedavg-slow"))
    assert re.search(rf"^\| fedavg\*? \| {one:.1f}±", page, re.M)
    assert found["a slow rate is worse", "six clients"][1].startswith(f"{one - slow:+.1f}")
    index = (folder / "pages" / "index.md").read_text()
    assert re.search(r"^\| a slow rate is better \| \*\*does not hold\*\* .*\|", index, re.M)
    assert "- a table is round: there is no table." in index
    # Again: nothing is run twice, and the pages are the same to the byte.
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("summary.json")}
    before = pages_of(folder / "pages")
    ran("tiny", "--pages", "pages", "--out", "runs")
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("summary.json")} == stamps
    assert pages_of(folder / "pages") == before


@pytest.mark.slow
def test_what_has_ended_is_written_and_nothing_is_run(folder: Path) -> None:
    define(folder, federation=[ONE, OTHER])
    assert "nothing has ended" in ran("tiny", "--quick", "--finished", "--out", "runs")
    assert not list((folder / "runs").rglob("summary.json"))
    ran("tiny", "--quick", "--out", "runs")
    pages = folder / "runs" / "quick" / "pages"
    whole = pages_of(pages)
    for path in (folder / "runs" / "quick" / "tiny" / "five-clients" / "runs").glob("fedavg-seed1/summary.json"):
        path.unlink()
    ran("tiny", "--quick", "--finished", "--out", "runs", "--pages", "part")
    part = (folder / "part" / "tiny.md").read_text()
    assert "Not run yet." in part
    figures = (pages / "tiny.md").read_text().split("## six clients")[1].split("## five clients")[0]
    assert figures in part
    # A page is written anew from the CSV file beside it, without records and without data.
    (pages / "tiny.md").write_text((pages / "tiny.md").read_text().replace("| fedavg", "| nothing"))
    ran("tiny", "--quick", "--finished", "--out", "elsewhere", "--data-root", "none", "--pages", str(pages))
    assert pages_of(pages) == whole


@pytest.mark.slow
def test_a_row_that_fails_in_training_is_left_out_and_named(folder: Path) -> None:
    ran("tiny", "--quick", "--out", "runs", "--pages", "slow")
    define(folder, row=[{**SMALL["row"][0], "set": {"training.lr": 1e30}}])
    said = ran("tiny", "--quick", "--out", "fast", "--pages", "fast-pages")
    why = re.search("row fedavg-slow is left out, since its method failed in training: seed 0: .* became nan", said)
    assert why is not None
    page = (folder / "fast-pages" / "tiny.md").read_text()
    assert "No figures: fedavg-slow (not run here, or failed in training)." in page
    found = claims(folder / "fast-pages")
    assert found["a slow rate is better", "six clients"] == ("a figure is not known", "")
    less = "Local sends less", "six clients"
    assert found[less] == claims(folder / "slow")[less]
    # Nothing is trained again.
    whole = pages_of(folder / "fast-pages")
    assert why[0] in ran("tiny", "--quick", "--finished", "--out", "fast", "--pages", "fast-pages")
    assert pages_of(folder / "fast-pages") == whole
    # A page that had the row has it no more, nor its control.
    table = parse(PaperTable, SMALL, "tiny").shortened()
    part = table.federation[0]
    experiment = load(folder / "presets" / "small.toml").with_changes(**part.set)
    failed = FinishedPart(part, experiment, table.seeds, {}, {}, {"fedavg": "seed 0: it failed"})
    kept = results.csv_rows((folder / "slow" / "tiny.csv").read_text())
    merged = results.merged(table, [failed], kept)
    assert {row["row"] for row in merged} == {"local", "fedavg-slow", "fedavg-slow@self"}
    # A new seed that fails takes no figures of others away.
    further = results.merged(table, [replace(failed, seeds=(7,))], kept)
    assert {(row["row"], row["seed"]) for row in further} == {(row["row"], row["seed"]) for row in kept}


@pytest.mark.slow
def test_one_federation_at_a_time_gives_the_pages_of_all_at_once(folder: Path) -> None:
    made = [{key: value for key, value in claim.items() if key != "on"} for claim in SMALL["claim"]]
    both: dict[str, Any] = {"federation": [ONE, OTHER], "claim": made}
    define(folder, **both)
    ran("tiny", "--quick", "--out", "whole", "--pages", "at-once")
    ran("tiny", "--quick", "--out", "one", "--pages", "pages", "--federation", "five clients")
    page = (folder / "pages" / "tiny.md").read_text()
    assert page.split("## six clients")[1].split("##")[0].strip() == "Not run yet."
    # A page of a definition that did not have the other one.
    define(folder, **both | {"federation": [OTHER]})
    ran("tiny", "--quick", "--out", "one", "--pages", "older")
    define(folder, **both)
    # The other one, as on another machine: there are no records of the first.
    for pages in ("pages", "older"):
        ran("tiny", "--quick", "--out", "two", "--pages", pages, "--federation", "six clients")
        assert pages_of(folder / pages) == pages_of(folder / "at-once")
    assert not list((folder / "two").rglob("five-clients"))
    # Nothing that is kept may come from another definition.
    before = pages_of(folder / "pages")
    for change, words in (({"source": "elsewhere"}, "its settings"), ({"row": [], "claim": []}, "its rows for")):
        define(folder, **(both | change))
        again = ("tiny", "--quick", "--out", "two", "--pages", "pages", "--federation", "six clients")
        assert words in refused("reproduce", *again)
        assert pages_of(folder / "pages") == before


def test_a_page_of_another_definition_is_not_in_the_index(folder: Path) -> None:
    (folder / "presets" / "tables" / "more.toml").write_text(tomli_w.dumps(SMALL))
    (folder / "pages").mkdir()
    (folder / "pages" / "tiny.md").write_text("## How it was run\n\nIn another way.\n")
    said = " ".join(ran("more", "--finished", "--out", "none", "--pages", "pages").split())
    assert "index: left out pages/tiny.md: written from another definition (its settings are not those" in said
    assert "](tiny.md)" not in (folder / "pages" / "index.md").read_text()


@pytest.mark.parametrize(
    ("method", "kept"), [("fedavg", ["local", "fedavg"]), ("mapl", ["local", "mapl", "local-views"])]
)
def test_local_on_views_is_kept_beside_a_method_that_trains_on_views(method: str, kept: list[str]) -> None:
    table = PaperTable(**{**SMALL, "methods": ["local", "fedavg", "mapl"], "row": [VIEWS], "claim": []})
    assert [row.name for row in table.only([method]).rows()] == kept


@pytest.mark.slow
def test_methods_that_are_not_named_are_not_run_and_claims_about_them_are_not_judged(folder: Path) -> None:
    define(folder, row=[*SMALL["row"], PROX], claim=[*SMALL["claim"], PROX_CLAIM])
    ran("tiny", "--quick", "--methods", "fedprox", "--out", "runs")
    pages = folder / "runs" / "quick" / "pages"
    assert rows_run(folder / "runs") == PROX_RUNS
    found = claims(pages)
    assert found["FedProx is better", "six clients"] == ("a figure is not known", "")
    assert found["a table is round", ""][0] == "not testable here: there is no table"
    assert "No figures: fedavg, fedavg-slow (not run here, or" in (pages / "tiny.md").read_text()
    # The other rows, later: the finished runs are read, and the page is that of the whole table.
    ran("tiny", "--quick", "--out", "runs")
    ran("tiny", "--quick", "--out", "whole")
    assert pages_of(pages) == pages_of(folder / "whole" / "quick" / "pages")


@pytest.mark.slow
def test_the_rows_of_a_method_are_added_to_a_page(folder: Path) -> None:
    ran("tiny", "--quick", "--out", "runs")
    define(folder, row=[PROX, *SMALL["row"]], claim=[PROX_CLAIM, *SMALL["claim"]])
    for _ in range(2):
        ran("tiny", "--quick", "--methods", "fedprox", "--out", "more", "--pages", "runs/quick/pages")
    assert rows_run(folder / "more") == PROX_RUNS
    ran("tiny", "--quick", "--out", "runs", "--pages", "whole")
    assert pages_of(folder / "runs" / "quick" / "pages") == pages_of(folder / "whole")
    # If Local is another one than before, gains of rows that are kept are over the new one.
    csv_file = folder / "whole" / "tiny.csv"
    rows = results.csv_rows(csv_file.read_text(encoding="utf-8"))
    other = [{**row, "mean": "0.125"} if row["row"] == "local" else row for row in rows]
    csv_file.write_text(csv_text(other), encoding="utf-8")
    ran("tiny", "--quick", "--methods", "fedprox", "--out", "more", "--pages", "whole")
    again = results.csv_rows(csv_file.read_text(encoding="utf-8"))
    for cell in ("gain.mean", "gain.low", "gain.high"):
        assert [float(row[cell]) for row in again] == pytest.approx([float(row[cell]) for row in rows])


@pytest.mark.slow
def test_seeds_are_added_to_a_page_with_the_settings_that_its_tuning_chose(folder: Path) -> None:
    quick = {**SMALL["quick"], "candidates": 4}
    define(folder, quick={**quick, "seeds": [0, 1, 2]})
    ran("tiny", "--quick", "--out", "whole", "--pages", "at-once")
    define(folder, quick={**quick, "seeds": [0]})
    ran("tiny", "--quick", "--out", "first", "--pages", "pages")
    define(folder, quick={**quick, "seeds": [0, 1, 2]})
    for seeds in ("2", "1-2"):
        ran("tiny", "--quick", "--seeds", seeds, "--out", "more", "--pages", "pages")
    assert pages_of(folder / "pages") == pages_of(folder / "at-once")
    assert not list((folder / "more").rglob("tuning"))
    assert {path.parent.name[-1] for path in (folder / "more").rglob("summary.json")} == {"1", "2"}
    for options, words in (
        (("--seeds", "3", "--pages", "pages"), "the definition has [0, 1, 2], not 3"),
        (("--seeds", "1", "--pages", "none"), "no figures for 'six clients'"),
    ):
        assert words in refused("reproduce", "tiny", "--quick", "--out", "more", *options)


def test_without_tuning_seeds_are_added_for_new_rows_too(folder: Path) -> None:
    bare = {name: value for name, value in SMALL.items() if name != "tune"} | {"row": [], "claim": []}
    path = folder / "presets" / "tables" / "tiny.toml"
    for methods, options in ((["local"], ()), (["local", "fedavg"], ("--seeds", "0,1", "--methods", "fedavg"))):
        path.write_text(tomli_w.dumps({**bare, "methods": methods}))
        ran("tiny", "--quick", *options, "--out", "runs", "--pages", "pages")
    rows = results.csv_rows((folder / "pages" / "tiny.csv").read_text(encoding="utf-8"))
    assert {(row["row"], row["seed"]) for row in rows} >= {("local", "0"), ("fedavg", "0"), ("fedavg", "1")}


def test_a_table_goes_on_with_the_samples_that_it_began_with(folder: Path) -> None:
    bare = {name: value for name, value in SMALL.items() if name != "tune"} | {"row": [], "claim": []}
    (folder / "presets" / "tables" / "tiny.toml").write_text(tomli_w.dumps(bare))
    stays = folder / "stays.csv"
    data = {"source": "csv", "path": str(stays), "target": "died", "client": "site"}
    written(folder / "presets" / "small.toml", data=data, scenario={"name": "natural"})
    rows = [f"{'abcd'[row % 4]},{row % 7},{row % 3 == 0:d}" for row in range(160)]
    stays.write_text("\n".join(["site,age,died", *rows]))
    ran("tiny", "--quick", "--out", "runs")
    stays.write_text("\n".join(["site,age,died", *rows[::-1]]))
    ran("tiny", "--quick", "--out", "runs")  # nothing is left to run
    (last,) = (folder / "runs").rglob("fedavg-seed1")
    shutil.rmtree(last)
    words = refused("reproduce", "tiny", "--quick", "--out", "runs")
    assert "the clients or their samples are not those that this run began with" in words
    assert not last.exists()


def test_tuned_settings_are_read_from_the_words_of_a_page() -> None:
    for name, method in METHODS.items():
        paths = [RATE, *tunables(method, "method")]
        last = [path.rpartition(".")[2] for path in paths]
        assert len(set(last)) == len(last), name
    cells = {"federation": "six clients", "row": "fedavg", "tuned": "rate 3", "border": "", "failed": "0"}
    with pytest.raises(ConfigError, match="tuned 'rate 3': fedavg: no 'rate'"):
        results.tuned_rows(parse(PaperTable, SMALL, "tiny"), [cells])
    for name, table in DEFINITIONS.items():
        rows = results.read_rows(name, table, ROOT / "presets" / "tables", ROOT / "docs" / "results")
        tuned = results.tuned_rows(table, rows)
        for row in rows:
            if split_control(row["row"])[1] is None:
                assert in_words(tuned[row["federation"]][row["row"]].settings, " ") == row["tuned"]


def test_a_row_without_the_one_that_it_is_tuned_as_is_refused() -> None:
    slow = {"name": "slow", "method": "fedprox", "tuned_as": "fedavg"}
    table = parse(PaperTable, {**SMALL, "row": [slow], "claim": []}, "here")
    with pytest.raises(ConfigError, match="'slow' has the tuned settings of row 'fedavg'; name its method fedavg too"):
        table.only(["fedprox"])
    assert [row.name for row in table.only(["fedavg"]).rows()] == ["local", "fedavg"]


def test_the_best_round_is_that_of_the_unseen_clients_and_counts_the_bytes_until_then() -> None:
    table = pa.table({
        "round": [1, 1, 2, 2, 3, 3], "client": ["a", "b"] * 3, "accuracy": [0.1, 0.9, 0.2, 0.8, 0.3, None],
    })  # fmt: skip
    messages = pa.table({"round": [1, 1, 2], "bytes": [30, 20, 100]})
    summary = {
        "clients": 1, "accuracy": {"mean": 0.3}, "bytes": {"up": 50, "down": 100}, "flops": {"local_training": 1},
        "seconds": {"total": 1},
    }  # fmt: skip
    result = Result(summary, [{}, {}, {}], table, messages, {}, unseen=("b",))
    assert (figures_row(result)["best_round"], figures_row(result)["best_bytes"]) == (1, 50)
    # Without unseen clients the mean is over all: .5, .5, .3 and the first of equal rounds.
    assert figures_row(replace(result, unseen=()))["best_round"] == 1
    claim = Claim(text="a is faster", better="a", than="b", figure="best_round")
    cells = {"metric": "accuracy", "best_round": "2.0"}
    value = claim_value(claim, {"a": {0: cells}, "b": {0: {**cells, "best_round": "5.0"}}})
    assert present(value).value == 3


def test_a_federation_or_method_that_a_table_does_not_have_is_refused(folder: Path) -> None:
    for words, said in (
        (["tiny", "--federation", "six client"], "--federation: no 'six client'; did you mean 'six clients'"),
        (["all", "--federation", "six clients"], "--federation: give the name of one table"),
        (["all", "--methods", "fedavg"], "--methods: give the name of one table"),
        (["tiny", "--methods", "fedavgg"], "--methods: no 'fedavgg'; did you mean 'fedavg'"),
    ):
        assert said in refused("reproduce", *words, "--quick")


@pytest.mark.slow
def test_quick_says_that_it_is_quick_and_a_claim_shows_what_was_found_and_what_was_needed(folder: Path) -> None:
    both = {"better": "fedavg", "than": "fedavg-slow"}
    made = [{"text": "plain", **both}, {"text": "margin", **both, "by": -9.0},
            {"text": "figure", "better": "fedavg", "least": -5.0}]  # fmt: skip
    define(folder, claim=made)
    ran("all", "--quick")
    pages = folder / "runs" / "reproduce" / "quick" / "pages"
    page = (pages / "tiny.md").read_text()
    assert "A quick run" in page
    assert not (folder / "docs").exists()
    assert "tiny" in ran()
    plain, margin, figure = verdicts(pages)
    assert (margin["found"], margin["needed"], margin["verdict"]) == (plain["found"], "above -900.0", "holds")
    assert plain["needed"] == "above 0"
    assert (figure["needed"], figure["verdict"]) == ("above -500.0", "holds")
    index = (pages / "index.md").read_text()
    assert f"| margin (needed: above -900.0) | **holds** {plain['found']} |" in index


@pytest.mark.slow
def test_a_claim_of_a_paper_is_not_judged_on_less_than_half_of_its_rounds(folder: Path) -> None:
    both = {"better": "fedavg", "than": "fedavg-slow", "by": -9.0}
    made = [{"text": "theirs", **both, "paper": "2 against 1"}, {"text": "ours: both", **both},
            {"text": "less", "better": "fedavg", "than": "fedavg-slow", "figure": "bytes"}]  # fmt: skip
    pages = folder / "runs" / "quick" / "pages"
    for rounds, verdict in ((3, "not judged"), (2, "holds")):
        quick = {"set": {"training.rounds": 1, "training.local_steps": 30}, "seeds": [0, 1, 2]}
        define(folder, claim=made, federation=[{**ONE, "paper_rounds": rounds}], quick=quick)
        ran("tiny", "--quick", "--out", "runs")
        found = claims(pages)
        assert found["theirs", "six clients"][0] == verdict
        assert found["ours: both", "six clients"] == ("holds", found["theirs", "six clients"][1])
        assert found["less", "six clients"][0] == "cannot be told apart"
        assert f"Length: 1 of the paper's {rounds} rounds." in (pages / "tiny.md").read_text()
        index = (pages / "index.md").read_text()
        assert f"holds {int(verdict == 'holds')}, does not hold 0, open 1, not judged" in index
        assert f"](tiny.md)** (3 seeds, 1 of {rounds} rounds; ours: holds 1)" in index
        value = f"**{verdict}** {found['theirs', 'six clients'][1]}"
        assert f"| theirs (paper: 2 against 1; needed: above -900.0) | {value} |" in index


@pytest.mark.slow
def test_a_control_keeps_what_makes_it_one_whatever_was_tuned(folder: Path) -> None:
    define(folder, methods=["local", "ifca"], controls=["self", "one"], row=[], claim=[], seeds=[0])
    ran("tiny", "--quick", "--out", "runs")
    for control, alone, clusters in (("self", True, None), ("one", False, 1)):
        (place,) = (folder / "runs" / "quick" / "tiny" / "six-clients" / "runs").glob(f"ifca@{control}-seed0")
        made = load(place / "experiment.toml")
        assert made.run.alone is alone
        assert clusters is None or made.method.clusters == clusters  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"claim": [{"text": "x", "better": "fltt", "than": "local"}]}, "no row 'fltt'"),
        ({"claim": [{"text": "x", "better": "fedavg"}]}, "than"),
        ({"claim": [{"text": "x", "better": "fedavg", "least": 0.5, "by": 0.1}]}, "by goes with than"),
        ({"methods": ["local", "fedavgg"]}, "did you mean 'fedavg'"),
        ({"row": [{"name": "fedavg", "method": "fedavg"}]}, "share a name"),
        ({"tune": {"candidates": 2, "rates": [0.1, 1.0], "hold_out": "half"}}, "hold_out"),
        ({"methods": ["local", "fedavg", "mapl"]}, "add a row with method local and training.augment, so"),
        ({"row": [{"name": "gentle", "method": "mapl", "set": {"method.augment": {"crop": 0.8}}}, VIEWS], "claim": []},
         "training.augment {'crop': 0.8}"),
    ],
)  # fmt: skip
def test_a_wrong_definition_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(PaperTable, {**SMALL, **change}, "tiny.toml")


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_definition_fits_its_presets(name: str) -> None:
    table = DEFINITIONS[name]
    for one in (table, table.shortened()):
        for part in one.federation:
            base = load(ROOT / "presets" / "tables" / part.preset).with_changes(**part.set)
            for row in one.rows():
                made = base.for_method(row.method).with_changes(**row.set)
                assert isinstance(made, Experiment)
            assert set(part.paper) <= set(one.names(planted=True))
    assert not table.federation or len(table.seeds) >= 3
    if table.federation and table.tune is None:
        assert "tuned" in table.apart  # an untuned table says so
    else:
        assert table.tune is None or len(table.tune.seeds) >= 2
    assert runs_of(table.shortened()) <= runs_of(table)


def test_a_page_says_which_rows_have_views_that_no_row_of_local_has() -> None:
    table = DEFINITIONS["mapl-table1"]
    part = table.federation[0]
    base = load(ROOT / "presets" / "tables" / part.preset).with_changes(**part.set)
    tuned = {row.name: TunedRow({}) for row in table.rows()}
    assert FinishedPart(part, base, (), {}, tuned).unmatched_views(table) == []
    tuned["mapl"] = TunedRow({"method.augment.crop": 0.5})
    assert FinishedPart(part, base, (), {}, tuned).unmatched_views(table) == ["mapl"]
    tuned["mapl"] = TunedRow({"method.augment.crop": 0.761})
    assert FinishedPart(part, base, (), {}, tuned).unmatched_views(table) == []


def test_a_verdict_is_of_the_rows_that_are_kept_and_of_those_that_were_run_again() -> None:
    claim = {"text": "fedavg spreads less", "better": "fedavg", "than": "local", "figure": "variance"}
    table, done = on_digits(claim=[claim])

    def verdict(rows: Sequence[Cells]) -> str:
        return results.claim_rows(table, rows, ROOT / "presets" / "tables")[0]["verdict"]

    first = results.merged(table, [done({"local": 0.2, "fedavg": 0.2})], [])
    assert verdict(first) == "cannot be told apart"
    again = results.merged(table, [done({"fedavg": 0.1})], first)
    assert [row["row"] for row in again] == ["local"] * 3 + ["fedavg"] * 3
    assert verdict(again) == "holds"
    # Pages that were written without this figure.
    bare = [{name: cell for name, cell in row.items() if name != "variance"} for row in again]
    assert verdict(results.merged(table, [done({"fedavg": 0.1})], bare)) == "a figure is not known"


def test_a_gain_is_positive_where_less_is_better() -> None:
    means = {"local": ("2.0", "3.0"), "fedavg": ("1.5", "2.5")}
    rows = [
        {"row": name, "seed": str(seed), "metric": "squared_error", "mean": mean}
        for name, by_seed in means.items() for seed, mean in enumerate(by_seed)
    ]  # fmt: skip
    found = [(row["gain.mean"], row["gain.low"], row["adds.mean"]) for row in results.with_gains(rows)]
    assert found == [("0.0", "0.0", "0.0")] * 2 + [("0.5", "0.5", "")] * 2


def test_a_page_with_figures_of_controls_alone_says_which_rows_have_none() -> None:
    table, done = on_digits(claim=[])
    rows = results.merged(table, [done({"fedavg@self": 0.1})], [])
    assert "No figures: " in results.page("tiny", table, rows, ROOT / "presets" / "tables")


def test_rows_with_the_same_mean_are_named_together() -> None:
    table, done = on_digits(claim=[])
    rows = results.merged(table, [done({"local": 0.1, "fedavg": 0.1})], [])
    text = results.page("tiny", table, rows, ROOT / "presets" / "tables")
    assert "- Highest mean: local and fedavg on six clients (50.0)." in text


def on_digits(claim: list[dict[str, str]]) -> tuple[PaperTable, Callable[[dict[str, float]], FinishedPart]]:
    """A table on the digits, and a federation of it whose rows have these variances."""
    part = {**ONE, "preset": "../digits-rotated.toml"}
    definition = {**SMALL, "row": [], "claim": claim, "federation": [part]}
    table = parse(PaperTable, definition, "here")

    def done(variances: dict[str, float]) -> FinishedPart:
        run = {"metric": "accuracy", "clients": 6, "given": "", "mean": 0.5, "bytes": 1.0}
        runs = {name: {seed: {**run, "variance": value} for seed in range(3)} for name, value in variances.items()}
        part = table.federation[0]
        return FinishedPart(part, part.experiment(ROOT / "presets" / "tables"), table.seeds, runs, {})

    return table, done


def test_every_page_is_written_again_from_its_definition_and_its_csv(tmp_path: Path) -> None:
    kept = ROOT / "docs" / "results"
    pages = Path(shutil.copytree(kept, tmp_path / "pages"))
    (pages / "index.md").unlink()
    for name in DEFINITIONS:
        if (page := pages / f"{name}.md").is_file():  # its tables of figures and its verdicts go
            lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
            page.write_text("".join(line for line in lines if not line.startswith("|")), encoding="utf-8")
    places = ("--out", str(tmp_path / "none"), "--pages", str(pages), "--tables", str(ROOT / "presets" / "tables"))
    ran("all", "--finished", *places)
    again, before = pages_of(pages), pages_of(kept)
    assert [name for name in before if again.get(name) != before[name]] == []
    assert set(again) == set(before)


# -- a claim's line ------------------------------------------------------------------------------------------------


def test_a_claim_on_two_federations_names_its_figure_wherever_that_is_given() -> None:
    table = next(one for one in DEFINITIONS.values() if len(one.federation) > 1)
    once = table.claim[0].model_copy(update={"text": "it is better", "paper": None})
    table = table.model_copy(update={"claim": (once, once.model_copy(update={"paper": "12.3"}))})
    row = {"claim": "it is better", "verdict": "holds", "needed": "above 0", "paper": "12.3", "found": "+1.0"}
    line = results._claims(table, [{**row, "federation": part.name} for part in table.federation])[-1]
    assert line.startswith("| it is better (paper: 12.3) |")
    assert line.count("12.3") == 1


@pytest.mark.parametrize(
    ("figure", "gains", "shown"),
    [
        # From 1.62 to 1.74: ends that are rounded first, 1.6 and 1.7, would give ±0.0.
        ("mean", (0.01655, 0.01678, 0.01703), "+1.7±0.1"),
        ("bytes", (-163.1e6, -163.1e6, -163.11e6), "+163.1 MB"),
        ("bytes", (-1.62e8, -1.63e8, -1.64e8), "+163.0±2.5 MB"),
        ("bytes", (-0.9e9, -1.1e9, -1.2e9), "+1.1±0.4 GB"),
    ],
)  # fmt: skip
def test_the_half_interval_of_a_claim_is_not_that_of_rounded_ends(figure: str, gains: Any, shown: str) -> None:
    table = DEFINITIONS["flt-mnist"]
    claim = next(one for one in table.claim if (one.better, one.than) == ("flt", "local"))
    table = table.model_copy(update={"claim": (claim.model_copy(update={"figure": figure}),)})
    rows = [
        {"federation": table.federation[0].name, "row": name, "seed": str(seed), "metric": "accuracy", figure: value}
        for name, values in {"flt": map(str, gains), "local": ("0.0",) * 3}.items() for seed, value in enumerate(values)
    ]  # fmt: skip
    assert results.claim_rows(table, rows, ROOT / "presets" / "tables")[0]["found"] == shown
