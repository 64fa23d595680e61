"""Hostile input on the command line: one line that says what is wrong, and nothing a terminal or spreadsheet obeys."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.invoked import Terminal
from report.fake_runs import make_run
from tiny import written

ESCAPE = "\x1b]0;owned\x07\x1b[31m"
# What a terminal obeys: C0 but for the ends of lines, DEL, C1, marks that turn the direction of writing.
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def told(here: Path, terminal: Terminal) -> Terminal:
    """Whole commands in an empty folder."""
    return terminal


@pytest.fixture
def fails(told: Terminal) -> Callable[..., str]:
    """The one line with which a command refuses."""

    def run(*words: str) -> str:
        line = told.refused(*words)
        assert "Traceback" not in line
        assert not OBEYED.search(line)
        assert len(line) < 4_000
        return line

    return run


# -- texts that look like markup, or that a terminal obeys ----------------------------------------------------


@pytest.mark.parametrize(
    "name", [r"\[/x]", "t[/x]", "[bold]", "[/]", "[link=file]x", ESCAPE, "a\u202eb", "a\rb"], ids=range(8)
)
def test_a_path_is_shown_as_it_is_and_without_effect(fails: Callable[..., str], name: str) -> None:
    shown = fails("run", f"{name}.toml")
    if not OBEYED.search(name):
        assert f"{name}.toml: no such experiment file" in shown
    assert "owned" not in shown or r"\x1b]0;owned\x07" in shown
    for words in (
        ["graph", f"{name}.npz"], ["runs", "--in", name], ["report", name], ["run", "--resume", name],
        ["run", "--seed", name], ["run", f"--{name}"], [f"{name}x"],
    ):  # fmt: skip
        fails(*words)


def test_names_that_look_like_markup_are_shown_as_they_are(told: Terminal, tmp_path: Path) -> None:
    ids = [r"\[/x]", "t[/x]", "[bold]", "[/]"]
    np.savez(tmp_path / "a.npz", ids=np.array(ids), x=np.eye(4)[[0, 0, 1, 1]])
    code, out, err = told("graph", "a.npz", "--out", "t[/x]")
    assert (code, err) == (0, "")
    assert all(id in out for id in ids)
    assert "wrote t[/x]/graph.npz" in out


@pytest.mark.parametrize("id", [ESCAPE, "a\nb", "a\u202eb", "\x9b31m", "\0", "\ud800"], ids=range(6))
def test_ids_that_a_terminal_obeys_are_refused(fails: Callable[..., str], tmp_path: Path, id: str) -> None:
    ids = np.array(["ann", f"b{id}b", "carl"])
    np.savez(tmp_path / "a.npz", ids=ids, x=np.eye(3))
    assert "a.npz" in fails("graph", "a.npz")
    np.savez(tmp_path / "b.npz", ids=np.repeat(ids, 4), x=np.arange(24.0).reshape(12, 2))
    assert "b.npz" in fails("graph", "b.npz", "--groups", "same")
    if id not in ("\0", "\ud800"):
        pq.write_table(pa.table({"client": ["ann", f"b{id}b"], "a": [1.0, 2.0]}), tmp_path / "a.parquet")
        assert "a.parquet" in fails("graph", "a.parquet")


def test_names_of_runs_reach_the_screen_without_effect(told: Terminal, tmp_path: Path) -> None:
    make_run(tmp_path / f"a{ESCAPE}" / "run")
    make_run(tmp_path / f"a{ESCAPE}" / "b\u202ec", seed=1)
    toml = tmp_path / f"a{ESCAPE}" / "run" / "experiment.toml"
    toml.write_text(toml.read_text() + '[model]\nname = "\\u001b[31m"\n')
    for words, shown in (
        (["runs", "--in", f"a{ESCAPE}"], r"b\u202ec"),
        (["runs", "diff", f"a{ESCAPE}/run", f"a{ESCAPE}/b\u202ec"], r"\x1b[31m"),
        (["report", f"a{ESCAPE}"], "report"),
    ):
        code, out, err = told(*words)
        assert (code, err) == (0, "")
        assert shown in out
        assert not OBEYED.search(out)


def test_json_on_the_screen_holds_nothing_that_a_terminal_obeys(told: Terminal, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", ids=np.array(["ann", "böb"]), x=np.eye(2))
    code, out, _ = told("graph", "a.npz", "--json", "--out", f"o{ESCAPE}\x9b31m")
    assert code == 0
    assert not OBEYED.search(out)
    assert json.loads(out)["files"][0] == f"o{ESCAPE}\x9b31m/graph.npz"
    assert "böb" in out


# -- formulas -------------------------------------------------------------------------------------------------

FORMULAS = ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3", "@SUM(A1)", "'=x"]


def test_edges_hold_no_formula(told: Terminal, tmp_path: Path) -> None:
    ids = [*FORMULAS, "-7", "plain"]
    np.savez(tmp_path / "a.npz", ids=np.array(ids), x=np.ones((len(ids), 2)))
    assert told("graph", "a.npz", "--sparsify", "none", "--out", "o")[0] == 0
    with (tmp_path / "o" / "edges.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = {row[end] for row in rows for end in ("source", "target")}
    assert cells == {*("'" + id for id in FORMULAS), "-7", "plain"}


# -- numbers, depth and length ----------------------------------------------------------------------------------

LONG, HEX = "1" * 4301, "0x" + "f" * 5000
DEEP = "[" * 5000


VALUES = [LONG, HEX, DEEP, DEEP + "]" * 5000, "[" * 80 + "]" * 80, "{a=" * 3000, str(2**64)]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_settings_beyond_all_limits(fails: Callable[..., str], tmp_path: Path, value: str) -> None:
    good = str(written(tmp_path / "good.toml"))
    assert "--set training.lr" in fails("run", good, "--set", f"training.lr={value}")
    assert "--try" in fails("tune", good, "--try", f"training.lr={value}")
    bad = tmp_path / "bad.toml"
    bad.write_text((tmp_path / "good.toml").read_text() + f"\n[methods.local]\ntraining.lr = {value}\n")
    assert "bad.toml" in fails("run", str(bad))
    assert "bad.toml" in fails("compare", str(bad))


@pytest.mark.parametrize("seed", [LONG, HEX, str(2**63), "4294967296"], ids=range(4))
def test_seeds_beyond_all_limits(fails: Callable[..., str], tmp_path: Path, seed: str) -> None:
    np.savez(tmp_path / "a.npz", ids=np.array(["a", "b", "c"]), x=np.eye(3))
    fails("graph", "a.npz", "--seed", seed)
    good = str(written(tmp_path / "good.toml"))
    if seed != "4294967296":
        assert "seed" in fails("run", good, "--seed", seed)
        assert "--seeds" in fails("compare", good, "--seeds", seed)
        assert "--seeds" in fails("tune", good, "--try", "training.lr=0.1,0.2", "--seeds", seed)


NESTED = "[" * 100_000
TEXTS = [NESTED, NESTED + "]" * 100_000, LONG, '"\\ud800"', '"\\u0000"', "[" * 90 + "]" * 90]


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_json_of_a_run_beyond_all_limits(fails: Callable[..., str], told: Terminal, tmp_path: Path, text: str) -> None:
    whole = make_run(tmp_path / "whole")
    for name in ("summary.json", "rounds.jsonl", "timing.jsonl", "federation.json"):
        folder = shutil.copytree(whole, tmp_path / name)
        kept = folder / name
        content = kept.read_text()
        # The hostile value stands beside the known ones, and in their place.
        kept.write_text(content.replace("{", '{"odd": ' + text + ", ", 1))
        assert name in fails("report", name)
        kept.write_text(text)
        assert name in fails("report", name)
    kept = tmp_path / "summary.json" / "summary.json"
    # The list of runs names a run that it cannot read, and goes on.
    code, out, err = told("runs", "--in", "summary.json")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("summary.json/summary.json: ")
    assert len(err) < 4_000
    assert not OBEYED.search(err)
    shutil.copyfile(kept, tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text(text)
    written(tmp_path / "experiment.toml")
    assert "plan.json" in fails("compare", "--resume", ".")
    assert "plan.json" in fails("tune", "--resume", ".")
    (tmp_path / "plan.json").unlink()
    (tmp_path / "data-root.json").write_text(text)
    assert "data-root.json" in fails("run", "--resume", ".")


# -- names too long, or of no file ------------------------------------------------------------------------------


def test_names_of_300_letters(fails: Callable[..., str], tmp_path: Path) -> None:
    long = "x" * 300
    good = str(written(tmp_path / "good.toml"))
    for words in (
        ("run", long), ("run", good, "--out", long), ("run", "--resume", long), ("graph", f"{long}.npz"),
        ("report", long), ("runs", "--in", long), ("runs", "diff", long, long), ("run", good, "--data-root", long,
         "--set", "data.source=mnist"), ("compare", good, "--out", f"{long}/x"), ("report", ".", "--out", long),
    ):  # fmt: skip
        fails(*words)
    assert "name" in fails("run", str(written(tmp_path / "a.toml", name=long)))
    np.savez(tmp_path / "a.npz", ids=np.array(["a", "b"]), x=np.eye(2))
    fails("graph", "a.npz", "--out", long)


def test_a_group_of_300_letters_has_a_folder(told: Terminal, tmp_path: Path) -> None:
    group = np.repeat(["x" * 300, "x" * 299 + "y"], 20)
    np.savez(tmp_path / "d.npz", x=np.eye(40), y=np.arange(40) % 2, client=np.repeat([*"abcd"], 10), group=group)
    path = written(
        tmp_path / "a.toml", data={"source": "npz", "path": str(tmp_path / "d.npz")}, scenario={"name": "natural"},
        method={"name": "local"}, training={"rounds": 1},
    )  # fmt: skip
    code, _, err = told("compare", path, "--leave-out", "each", "--out", "o", "--methods", "local")
    assert code == 0, err
    assert len(list((tmp_path / "o").glob("*/compare.json"))) == 2


@pytest.mark.parametrize("path", ["a\0b", "a" * 300], ids=["nul", "long"])
def test_paths_in_an_experiment_that_no_file_can_have(fails: Callable[..., str], tmp_path: Path, path: str) -> None:
    for source in ("npz", "folder", "mnist", "cifar10", "femnist", "tpt48", "eicu-demo"):
        fails("run", str(written(tmp_path / "a.toml", data={"source": source, "path": path})))


def test_words_that_are_not_unicode(fails: Callable[..., str], tmp_path: Path) -> None:
    odd = "a\udcff"
    good = str(written(tmp_path / "good.toml"))
    assert r"a\udcff" in fails("run", odd)
    assert r"\udcff" in fails("run", good, "--set", f"name={odd}")
    assert r"\udcff" in fails("run", good, "--set", f"scenario.name='{odd}'")
    assert r"\udcff" in fails("compare", good, "--methods", odd)
    assert r"\udcff" in fails("run", good, "--data-root", odd, "--out", "o")


# -- tables ---------------------------------------------------------------------------------------------------


def test_an_entry_that_is_no_array(fails: Callable[..., str], tmp_path: Path) -> None:
    for name, content in (("ids", b"not an array"), ("ids.npy", b"\x93NUMPY"), ("x.npy", b"")):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr(name, content)
            if not name.startswith("x"):
                raw = io.BytesIO()
                np.save(raw, np.eye(2))
                archive.writestr("x.npy", raw.getvalue())
        assert "a.npz" in fails("graph", "a.npz")
        assert "a.npz" in fails("graph", "a.npz", "--groups", "same")


def test_a_table_of_texts_that_are_not_utf8(fails: Callable[..., str], tmp_path: Path) -> None:
    bad = pa.array([b"ann", b"\xff\xfe", b"carl"]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"client": bad, "a": [1.0, 2.0, 3.0]}), tmp_path / "a.parquet")
    assert "a.parquet" in fails("graph", "a.parquet")
    assert "a.parquet" in fails("graph", "a.parquet", "--groups", "same")
