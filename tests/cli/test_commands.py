"""The command line: what it prints, what it writes, one clear line for whatever is wrong, and the examples."""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from rich.text import Text

from cli.invoked import COMMANDS, Terminal, fault, said
from fedkin import __version__
from fedkin.cli.listing import describe_type, describe_value
from fedkin.cli.output import print_notes
from tiny import written

KEYS = {"method", "scenario", "seed", "rounds", "clients", "accuracy", "bytes", "groups", "seconds", "versions"}


@pytest.fixture
def experiment(here: Path) -> Path:
    """A tiny experiment file, in a folder of its own that is the current one."""
    return written(here / "small.toml")


def python(code: str, status: int) -> str:
    """What this program writes to stderr in a process of its own; it must exit with this status."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    return ended.stderr


def test_the_text_of_a_part_fills_the_lines_of_a_terminal() -> None:
    text = said("list", "scenarios", "rotated-masked", columns=80)
    paragraph = next(part for part in text.split("\n\n") if part.startswith("Each split is shuffled"))
    assert all(len(line) > 60 for line in paragraph.splitlines()[:-1])
    assert "\n>>> from fedkin.data import federate\n" in text


@pytest.mark.parametrize(
    "words",
    [
        ["--help"], ["--version"], ["copmare"], ["run", "--help"], ["run", "--ruonds", "3"], ["run", "nothere.toml"],
        ["compare", "digits-rotatd"], ["list", "metods"],
        ["new", "metod", "mine"], ["new", "method", "Mine"],
    ],
)  # fmt: skip
def test_help_and_typos_import_little(words: list[str]) -> None:
    """What only reads options must not wait for torch and scipy."""
    code = (
        "import sys\n"
        "from fedkin.cli import main\n"
        f"sys.argv = ['fedkin', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "slow = {'torch', 'numpy', 'scipy', 'pyarrow', 'pydantic', 'networkx'} & set(sys.modules)\n"
        # Newer versions of typer read options with pydantic themselves.
        "slow -= {'pydantic'} if 'typer._adapters' in sys.modules else set()\n"
        "sys.exit(f'{slow} are imported' if slow else 0)\n"
    )
    assert "are imported" not in python(code, 0)


def test_run_prints_figures_and_writes_records(experiment: Path) -> None:
    result = said("run", str(experiment), "--rounds", "3", "--seed", "5")
    folder = Path("runs/small")
    assert "accuracy, mean over clients" in result
    assert f"report:  {folder}/report.html" in result
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["seed"], summary["rounds"]) == (5, 3)
    for name in ("experiment.toml", "rounds.jsonl", "clients.parquet", "messages.parquet", "report.html"):
        assert (folder / name).stat().st_size > 0
    assert len(list((folder / "graphs").glob("*.npz"))) == 3


def test_json_is_the_summary_and_nothing_else(experiment: Path) -> None:
    summary = json.loads(said("run", str(experiment), "--rounds", "2", "--json"))
    assert summary.keys() >= KEYS
    assert summary["accuracy"].keys() >= {"mean", "std", "worst10", "worst20"}
    assert summary["bytes"].keys() >= {"up", "down"}
    assert summary["groups"].keys() >= {"found", "ari", "nmi"}
    assert summary["seconds"].keys() >= {"total", "local", "graph", "evaluate"}
    assert summary == json.loads(Path("runs/small/summary.json").read_text())


@pytest.mark.slow
def test_compare_over_seeds(experiment: Path) -> None:
    words = ["compare", str(experiment), "--methods", "local,fedavg,sfmtl-graph", "--seeds", "0,1", "--rounds", "2"]
    result = said(*words, "--out", "here", columns=80)
    for word in ("local", "fedavg", "sfmtl-graph", "±", "worst 10%", "clients", "here/report.html"):
        assert word in result
    assert max(map(len, result.splitlines())) <= 80
    kept = json.loads(Path("here/compare.json").read_text())
    assert [row["method"] for row in kept] == ["local"] * 2 + ["fedavg"] * 2 + ["sfmtl-graph"] * 2
    assert [row["seed"] for row in kept] == [0, 1] * 3
    lines = {row["method"]: row for row in csv.DictReader(Path("here/compare.csv").read_text().splitlines())}
    assert list(lines) == ["local", "fedavg", "sfmtl-graph"]
    for method, line in lines.items():
        means = [row["accuracy"]["mean"] for row in kept if row["method"] == method]
        assert line["seeds"] == "0 1"
        assert float(line["mean.mean"]) == pytest.approx(statistics.mean(means))
        assert float(line["mean.sd"]) == pytest.approx(statistics.stdev(means))
        assert float(line["flops.mean"]) > 0
        assert (line["gain.mean"] == "") == (method == "local")
    assert json.loads(said("compare", "--resume", "here", "--json")) == kept


@pytest.mark.slow
def test_what_tests_found_is_printed_for_the_methods_that_record_it(experiment: Path) -> None:
    words = ["--set", "scenario.clients=8", "--set", "scenario.mask_rate=0", "--rounds", "1"]
    of_two = ["compare", str(experiment), "--methods", "sfmtl-graph,kin", *words, "--out", "here"]
    both = said(*of_two, columns=80)
    summary = json.loads(Path("here/kin-seed0/summary.json").read_text())
    told = " ".join(both.split())
    assert f"kin: {summary['groups']['verdicts']['same']} group" in told
    assert "within groups no difference is significant (alpha = 0.0005, corrected for " in told
    assert len(both.partition("sent")[2].splitlines()) < 20
    one = said("run", str(experiment), "--set", "method={name='kin'}", *words, "--out", "one")
    assert "no difference is significant (alpha = 0.0005, corrected" in " ".join(one.split())


def test_below_a_table_are_at_most_four_lines_of_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_notes({}, ["first", "long " * 60, "second"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["first", "second", "and 1 more note in the report"]
    print_notes({}, ["note " * 30, "note"])
    assert len(capsys.readouterr().out.splitlines()) == 3


def signalled(after_a_round: str) -> str:
    """What `fedkin run small.toml --out cut` writes to stderr when this is done after its rounds; it exits with 130."""
    code = (
        "import os, signal, sys\n"
        "from fedkin.cli import main\n"
        "from fedkin.running import progress\n"
        "real = progress.Progress.round_done\n"
        "def cut(self, row):\n"
        "    real(self, row)\n"
        f"{after_a_round}"
        "progress.Progress.round_done = cut\n"
        "sys.argv = ['fedkin', 'run', 'small.toml', '--out', 'cut']\n"
        "main()\n"
    )
    told = python(code, 130)
    assert "Traceback" not in told
    return told


@pytest.mark.slow
def test_resume_after_a_cut(experiment: Path) -> None:
    """Ctrl-C stops after the round, a second signal at once, and --resume ends the run like an uncut one."""
    whole = said("run", experiment, "--out", "whole", "--json")
    stopped = signalled("    if row['round'] == 3: os.kill(os.getpid(), signal.SIGINT)\n")
    assert "stopped after round 3; go on with --resume cut" in stopped
    resumed = said("run", "--resume", "cut", "--json")
    assert {**json.loads(whole), "seconds": 0} == {**json.loads(resumed), "seconds": 0}
    assert Path("whole/clients.parquet").read_bytes() == Path("cut/clients.parquet").read_bytes()
    shutil.rmtree("cut")
    stopped = signalled("    os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT)\n")
    assert "stopped at once" in stopped
    assert "go on with --resume cut" in stopped
    said("run", "--resume", "cut", "--json")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run"], "name an experiment file, or --resume DIR"),
        (["run", "smal.toml"], "smal.toml: no such experiment file; did you mean 'small.toml'?"),
        (["run", "small.toml", "--set", "training.lrr=3"], "training.lrr: no such setting; did you mean 'lr'?"),
        (["run", "small.toml", "--set", "training.lr"], "expected section.field=value"),
        (["run", "small.toml", "--set", "training.clients_per_round=99"], "99 clients a round, but the federation has"),
        (["run", "small.toml", "--set", "data.source=mnist"], "data/MNIST/raw"),
        (["run", "small.toml", "--set", "training.lr=1e30"], "lower training.lr"),
        (["run", "--resume", "nowhere"], "--resume nowhere: no such folder"),
        (["run", "small.toml", "--resume", "x"], "no other option changes it"),
        (["run", "small.toml", "--out", "small.toml"], "it exists and is not an empty folder"),
        (["compare", "small.toml", "--methods", "local,sfmtl-grpah"], "no 'sfmtl-grpah'; did you mean 'sfmtl-graph'?"),
        (["compare", "small.toml", "--methods", "local,,x"], "expected names separated by commas"),
        (["compare", "small.toml", "--methods", "local,local"], "methods: local is named twice; expected each once"),
        (["compare", "small.toml", "--seeds", "4-0"], "expected the smaller number first"),
        (["list", "methods", "sfmtl-grpah"], "no 'sfmtl-grpah'; did you mean 'sfmtl-graph'?"),
        (["list", "scenarios", "rotated"], "no 'rotated'; did you mean 'rotated-masked'?"),
        (["report", "nowhere"], "nowhere"),
        (["compare", "small.toml", "--seeds", "²"], "expected whole numbers from 0 up, got '²'"),
        (["compare", "--resume", "small.toml", "--seeds", "1"], "no plan.json in it"),
    ],
)
def test_what_is_wrong_is_one_line(experiment: Path, words: list[str], expected: str, terminal: Terminal) -> None:
    status, out, err = terminal(*words)
    assert (status, out) == (2, "")
    assert words[-1] == "training.lr=1e30" or not Path("runs").exists()
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert expected in line
    assert "Traceback" not in err


# What only a programmer would write of a setting's type.
OF_PYTHON = re.compile(r"[\[\]<>|']|typing|Union|None|Info|Path|\bint\b|\bstr\b")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["methods", "scenarios", "sources", "models"])
def test_catalogues(command: str) -> None:
    from fedkin.data import SCENARIOS, SOURCES
    from fedkin.learning.models import MODELS
    from fedkin.methods import METHODS
    from fedkin.settings import tunables

    registry: Any = {"methods": METHODS, "scenarios": SCENARIOS, "sources": SOURCES, "models": MODELS}[command]
    listed = said("list", command, columns=200)
    for name, entry in registry.items():
        assert name in listed
        shown = said("list", command, name, columns=200)
        for field in entry.model_fields:
            assert field in shown
        for setting in json.loads(said("list", command, name, "--json"))["settings"]:
            assert not OF_PYTHON.search(setting["expected"]), setting
        tuned = tunables(entry, "method")
        assert ("fedkin tune --equal" in shown) == bool(tuned)
        assert all(f"{path} (" in " ".join(shown.split()) for path in tuned)


@pytest.mark.parametrize("columns", [80, 100])
def test_the_methods_fit_a_screen(columns: int) -> None:
    from fedkin.methods import METHODS

    lines = said("list", "methods", columns=columns).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).replace(",", "").split()
    classes, models = words.index("classes:"), words.index("models:")
    assert set(METHODS) <= set(words[:classes])
    assert {"fedcollab", "mapl"} <= set(words[classes:models])
    assert "kin" not in words[classes:]
    assert {"local", "mapl"} <= set(words[models:])


def test_a_preset_is_printed_as_its_file_or_as_json() -> None:
    text = said("list", "presets", "digits-rotated")
    told = json.loads(said("list", "presets", "digits-rotated", "--json"))
    assert told.pop("experiment") == tomllib.loads(text)
    assert any(told.items() <= row.items() for row in json.loads(said("list", "presets", "--json")))


def test_bounds_and_alternatives_are_said() -> None:
    shown = said("list", "scenarios", "rotated-masked", columns=200)
    for line in (
        "scenario.unseen +not set +number, above 0, below 1; or text; or list of: text; or not set",
        "scenario.pooled +false +true or false", r"scenario.rotations +\[0, 90, 180, 270\] +list of: 0, 90, 180 or 270",
    ):  # fmt: skip
        assert re.search(line, shown)
    assert describe_type(dict[str, tuple[str, ...]]) == "table of: list of: text"
    assert describe_type(list[Annotated[str, {"unit": "s"}]]) == "list of: text"
    assert describe_type(Path) == "path"
    assert describe_type(Literal["", "a"]) == " or a"
    assert describe_value({"a": True}) == "a = true"


def test_a_metric_of_a_file_is_shown(tmp_path: Path) -> None:
    said("new", "metric", "own-recall", "--out", str(tmp_path))
    assert "own-recall" in said("list", "metrics", f"{tmp_path}/own_recall.py:own_recall")


def test_the_package_runs_as_a_module() -> None:
    ended = subprocess.run([sys.executable, "-m", "fedkin", "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == f"fedkin {__version__}"


def test_without_a_command_five_are_named() -> None:
    shown = said()
    assert len(re.findall(r"^  fedkin ", shown, re.MULTILINE)) == 5
    assert "fedkin --help" in shown


def test_resume_of_a_mistyped_folder_names_the_nearest(experiment: Path, terminal: Terminal) -> None:
    for name in ("digits-fedavg", "other", "compared"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "experiment.toml").touch()
    Path("runs/compared/plan.json").touch()
    for words, near in (
        (["run", "--resume", "runs/digits-fedvag"], "no such folder; did you mean runs/digits-fedavg?"),
        (["run", "--resume", "run/digits-fedavg"], "no such folder"),
        (["run", "--resume", "runs"], "nothing to continue; did you mean runs/digits-fedavg?"),
        (["compare", "--resume", "runs/comparde"], "no such folder; did you mean runs/compared?"),
    ):
        status, _, err = terminal(*words)
        assert (status, near in err) == (2, True), err


@pytest.mark.slow
def test_resume_knows_where_the_data_lay(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    Path("root").mkdir()
    rng = np.random.default_rng(0)
    np.savez("root/own.npz", x=rng.normal(size=(60, 4)), y=rng.integers(0, 3, 60))
    written(experiment, data={"source": "npz", "path": "own.npz"}, scenario={"name": "iid", "clients": 4})
    said("run", "small.toml", "--data-root", "root", "--out", "a")
    Path("a/summary.json").unlink()
    shutil.rmtree("a/checkpoint")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    said("run", "--resume", "../a")
    assert Path("../a/summary.json").exists()


def test_profile_accounts_for_the_whole_run(experiment: Path) -> None:
    result = said("run", "small.toml", "--rounds", "2", "--profile", columns=100)
    rows = result[result.index("where the time went") :].splitlines()
    rows = rows[: next(number for number, row in enumerate(rows) if "how nets were trained" in row)]
    shares = {re.split(r"  +", row.strip())[0]: row.split()[-1] for row in rows if row.strip().endswith("%")}
    assert shares.keys() >= {"evaluation", "messages", "records", "checkpoints", "the rest", "total"}
    assert {name for name in shares if name.startswith("at clients")} == {"at clients: train", "at clients: update"}
    parts = sum(float(share.rstrip("%")) for name, share in shares.items() if name != "total")
    assert parts == pytest.approx(100, abs=1)


@pytest.mark.slow
def test_compare_leaves_out_one_group_after_another(experiment: Path) -> None:
    changes = ["--methods", "local,fedavg", "--rounds", "1", "--leave-out", "rot0,rot90", "--out", "lo"]
    result = said("compare", str(experiment), *changes)
    assert "test accuracy of unseen clients" in result
    shown = next(line for line in result.splitlines() if line.startswith("fedavg")).split()
    means = [
        json.loads(Path("lo", group, "fedavg-seed0", "summary.json").read_text())["unseen"]["mean"]
        for group in ("rot0", "rot90")
    ]
    assert shown[1:] == [f"{value:.3f}" for value in (*means, sum(means) / 2)]
    assert all(Path("lo", group, "report.html").is_file() for group in ("rot0", "rot90"))
    assert sorted(json.loads(said("compare", "--resume", "lo", "--json"))) == ["rot0", "rot90"]


# -- the examples in every command's help --------------------------------------------------------------------------


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        elif not command.hidden:
            yield f"{before}{name}", command


EVERY = dict(commands(COMMANDS))


def test_every_command_ends_its_help_with_examples() -> None:
    for name, command in EVERY.items():
        head, *examples = command.epilog.split("\n\n")
        assert head == "Examples:"
        assert examples
        assert all(example.startswith(f"fedkin {name}") for example in examples)
        assert "\n" not in command.help


def test_no_brackets_of_a_help_are_taken_for_styles() -> None:
    for name, command in EVERY.items():
        for text in (command.help, *(option.help for option in command.params if hasattr(option, "help"))):
            shown = Text.from_markup(text or "").plain
            assert shown.count("[") == (text or "").count("["), f"{name}: {text}"


@pytest.mark.parametrize("example", [line for one in EVERY.values() for line in one.epilog.split("\n\n")[1:]])
def test_every_example_is_read(example: str) -> None:
    """Its command is there and takes these options and values, though nothing is run."""
    assert fault(example) is None
