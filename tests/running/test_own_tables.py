"""FILE.py:NAME wherever settings and lists name a part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

import fedkin
from fedkin.cli import app
from fedkin.errors import ConfigError
from fedkin.learning.metrics import MEASURES, Measure, code_of, file_of
from fedkin.running.experiment import load, read_table
from fedkin.running.grid import Choice
from fedkin.running.holdout import HoldOut
from fedkin.running.plugins import named, named_in
from fedkin.running.tune import tune
from support import small_federation

pytestmark = pytest.mark.usefixtures("forgotten")

PARTS = """
from typing import ClassVar

import fedkin
from fedkin.graph import stage
from fedkin.methods.fedprox import FedProx


class Mine(FedProx):
    name: ClassVar[str] = "my-prox"
    title: ClassVar[str] = "My FedProx"


@fedkin.metric(higher=False)
def own_errors(outputs, targets):
    return float((outputs.argmax(1) != targets).mean())


@stage("groups")
def own_halves(a):
    return [at % 2 for at in range(len(a))]
"""
TABLE: dict[str, Any] = {
    "name": "tiny", "data": {"source": "digits"}, "scenario": {"name": "iid", "clients": 3}, "model": {"name": "mlp"},
    "training": {"rounds": 1, "lr": 0.1, "local_steps": 1}, "method": {"name": "fedavg"},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_parts.py").write_text(PARTS)
    (tmp_path / "e.toml").write_text(tomli_w.dumps(TABLE))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def written(place: Path, methods: dict[str, Any]) -> Path:
    (place / "m.toml").write_text(tomli_w.dumps({**TABLE, "methods": methods}))
    return place / "m.toml"


def test_a_section_of_a_method_is_named_by_its_file(place: Path) -> None:
    methods = {"own_parts.py:Mine": {"method": {"mu": 0.5}}, "own_parts.py:Mine@self": {"training": {"lr": 0.2}}}
    plan = load(written(place, methods))
    assert sorted(plan.table["methods"]) == ["my-prox", "my-prox@self"]
    assert plan.for_method("my-prox").resolved()["method"]["mu"] == 0.5
    control = plan.for_method("my-prox@self")
    assert (control.run.alone, control.training.lr, control.resolved()["method"]["mu"]) == (True, 0.2, 0.5)
    (place / "elsewhere" / "begun.toml").write_text(plan.to_toml())
    assert load(place / "elsewhere" / "begun.toml").resolved() == plan.resolved()


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (
            {"my-prox": {"method": {"mu": 0.5}}, "own_parts.py:Mine": {"training": {"lr": 0.2}}},
            r"methods\.own_parts\.py:Mine: this is 'my-prox', which has a section of its own already",
        ),
        ({"own_parts.py:Mien": {}}, r"methods\.own_parts\.py:Mien: .*no method 'Mien'; did you mean 'Mine'"),
        ({"own_parts.py:Mine": {"method": {"nu": 1}}}, r"methods\.my-prox: method\.nu: no such setting"),
        ({"own_parts.py:Mine": 3}, r"my-prox"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_such_a_section_is_said_in_one_line(
    place: Path, methods: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(written(place, methods))
    assert "\n" not in str(caught.value)


def test_a_grid_for_one_method_names_its_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    assert Choice.parse("own_parts.py:Mine:method.mu=0.1,1") == Choice("method.mu", (0.1, 1), "my-prox")
    with pytest.raises(ConfigError, match=r"--try .*no method 'Mien'; did you mean 'Mine'"):
        Choice.parse("own_parts.py:Mien:method.mu=0.1")
    found = fedkin.sweep(
        small_federation(), ["fedavg", "own_parts.py:Mine"], {"own_parts.py:Mine:method.mu": [0.1, 1.0]}, rounds=1,
        training={"local_steps": 1},
    )  # fmt: skip
    assert [(one.method, dict(one.settings)) for one in found] == [
        ("fedavg", {}), ("my-prox", {"method.mu": 0.1}), ("my-prox", {"method.mu": 1.0}),
    ]  # fmt: skip


def test_a_path_may_have_an_at_sign_and_a_control_behind_its_name(place: Path) -> None:
    folder = place / "a@b"
    folder.mkdir()
    (folder / "other_parts.py").write_text(PARTS)
    given = [f"{folder}/other_parts.py:Mine", "../a@b/other_parts.py:Mine@self", "fedavg@self", "fedavg"]
    names, own = named_in(given, "method", Path(), "x")
    assert names == ["my-prox", "my-prox@self", "fedavg@self", "fedavg"]
    assert {each.partition("#")[0] for each in own} == {str((folder / "other_parts.py").resolve())}
    found = fedkin.compare(small_federation(), [f"{folder}/other_parts.py:Mine@self"], rounds=1)
    assert list(found) == ["my-prox@self"]


def test_what_a_tuning_chose_from_a_file_can_be_compared(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    tried = [Choice.parse("method.graph.groups=own_parts.py:own_halves")]
    tune(load(place / "e.toml"), ["sfmtl-graph"], tried, HoldOut.parse("samples:0.2"), [0], place, place / "tuning")
    monkeypatch.chdir(place / "elsewhere")
    plan = load(place / "tuning" / "tuned.toml")
    assert plan.for_method("sfmtl-graph").resolved()["method"]["graph"]["groups"] == "own-halves"


@pytest.mark.parametrize("command", ["grid", "from python"])
def test_values_in_a_file_are_found_again_from_another_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(place)
    if command == "from python":
        grid = {"method.graph": [{"groups": "own_parts.py:own_halves"}]}
        fedkin.sweep("e.toml", "sfmtl-graph", grid, out="kept")
    else:
        given = ["--grid", "method.graph.groups=own_parts.py:own_halves,components"]
        words = ["tune", "e.toml", "--methods", "sfmtl-graph", *given, "--seeds", "0", "--out", "kept"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    monkeypatch.chdir(place / "elsewhere")
    done = CliRunner().invoke(app, ["tune", "--resume", str(place / "kept")])
    assert done.exit_code == 0, done.output


def test_a_metric_of_a_notebook_on_an_experiment(place: Path) -> None:
    def made(higher: bool) -> Measure:
        @fedkin.metric(higher=higher)
        def of_notebook(outputs: Any, targets: Any) -> float:
            return float((outputs.argmax(1) == targets).mean())

        return of_notebook

    for higher in (True, False):  # its cell is run again
        found = fedkin.compare(place / "e.toml", "fedavg", metrics=["balanced-accuracy", made(higher)])
        told = found["fedavg"][0].summary["metrics"]["of-notebook"]
        assert (told["higher"], told["mean"]) == (higher, pytest.approx(found["fedavg"][0].accuracy))

    @fedkin.metric(higher=True, name="balanced-accuracy")
    def other(outputs: Any, targets: Any) -> float:
        return 0.0

    with pytest.raises(ConfigError, match="metrics: there is a metric 'balanced-accuracy' already; give yours another"):
        fedkin.compare(place / "e.toml", "fedavg", metrics=[other])


@fedkin.metric(higher=True)
def later_on(outputs: Any, targets: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"changes": {"run.metrics": ["balanced-accuracy"]}}, "given in changes too"),
        ({"changes": {"training.lrr": 1}}, "lrr"),
        ({"on": "nowhere.toml"}, "nowhere.toml"),
        ({"data_root": 3}, "data_root: expected a path"),
        ({"metrics": [later_on, later_on]}, "metrics: 'later-on' twice"),
    ],
)
def test_a_metric_of_a_comparison_that_is_refused_is_not_known_afterwards(
    place: Path, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        fedkin.compare(**{"on": place / "e.toml", "methods": "fedavg", "metrics": [later_on], **arguments})
    assert "later-on" not in MEASURES


def test_the_files_of_objects_are_noted_with_the_runs_of_a_comparison(place: Path) -> None:
    named(f"{place}/own_parts.py:own_errors", "metric", Path(), "here")
    parts = sys.modules["own_parts"]
    for on in (place / "e.toml", small_federation()):
        out = place / f"c{on == place / 'e.toml'}"
        found = fedkin.compare(on, ["local", parts.Mine()], metrics=[parts.own_errors], rounds=1, out=out)
        for name in ("local", "my-prox"):
            folder = found[name][0].folder
            assert folder is not None
            assert [each.partition("#")[0] for each in read_table(folder / "experiment.toml")["own"]] == [
                str((place / "own_parts.py").resolve())
            ]


def test_a_text_of_a_method_may_end_as_a_file_does(place: Path) -> None:
    text = (
        "from fedkin.methods.fedavg import FedAvg\n\n\nclass Noted(FedAvg):\n    name = 'noted'\n    note: str = ''\n"
    )
    (place / "own_noted.py").write_text(text)
    table = {**TABLE, "method": {"name": "own_noted.py:Noted", "note": "prep.py"}}
    (place / "noted.toml").write_text(tomli_w.dumps(table))
    assert load(place / "noted.toml").resolved()["method"]["note"] == "prep.py"
    assert load(place / "noted.toml", ["method.note=other.py"]).resolved()["method"]["note"] == "other.py"
    for section, setting in (
        ({"method": {"name": "tfl", "graph": {"groups": "own_parts.py"}}}, "method.graph.groups"),
        ({"model": {"name": "own_parts.py"}}, "model.name"),
        ({"run": {"metrics": ["own_parts.py"]}}, "run.metrics"),
    ):
        (place / "part.toml").write_text(tomli_w.dumps({**TABLE, **section}))
        with pytest.raises(ConfigError, match=rf"^{setting}: own_parts.py: say which part of the file is meant"):
            load(place / "part.toml")


WRAPPED = """
import functools

import fedkin


def share(outputs, targets, of):
    return float((targets == of).mean())


own_zeros = fedkin.metric(higher=True, name="own-zeros")(functools.partial(share, of=0))
"""


def test_a_metric_is_of_the_file_in_which_it_is_made(place: Path) -> None:
    (place / "own_wrapped.py").write_text(WRAPPED)
    known, _ = named_in(["own_wrapped.py:own_zeros"], "metric", place, "run.metrics")
    measure = MEASURES[known[0]]
    assert file_of(measure) == str(place / "own_wrapped.py")
    before = code_of(measure)
    assert len(before) == 16
    (place / "own_wrapped.py").write_text(WRAPPED.replace("of=0", "of=1"))
    assert code_of(measure) != before
    (place / "own_wrapped.py").unlink()
    with pytest.raises(ConfigError, match="metric 'own-zeros': its code is in no file that can be read"):
        code_of(measure)
