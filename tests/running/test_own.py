"""Own parts: from a file, under the name that they give themselves, and never from what somebody else sent."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedkin
from cli.invoked import said
from fedkin.errors import ConfigError, FedkinError, RunError
from fedkin.learning.metrics import MEASURES, Measure, code_of, file_of
from fedkin.running import plugins
from fedkin.running.experiment import Experiment, load, read_table
from fedkin.running.grid import Choice, HoldOut
from fedkin.running.loop import run_experiment
from fedkin.running.networked import check_no_files, settings_of, setup_of
from fedkin.running.plugins import resolve_names
from fedkin.running.tune import tune
from fedkin.tasks import Task
from support import small_federation

pytestmark = pytest.mark.usefixtures("forgotten")
METHOD = """
from typing import ClassVar

from fedkin.methods.fedavg import FedAvg

class Mine(FedAvg):
    name: ClassVar[str] = "my-average"
    title: ClassVar[str] = "My average"
"""
MODEL = """
from typing import Literal

from fedkin.learning.models import Mlp

class Broad(Mlp):
    name: Literal["broad"] = "broad"
    hidden: tuple[int, ...] = (12,)
"""
NET = """
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.of = nn.Linear(width, width)

    def forward(self, x):
        return self.of(x).relu()

class Plain(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, width), Block(width))
        self.fc = nn.Linear(width, 10)

    def forward(self, x):
        return self.fc(self.net(x))
"""
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
SHORT: dict[str, Any] = {
    "name": "tiny", "data": {"source": "digits"}, "scenario": {"name": "iid", "clients": 3}, "model": {"name": "mlp"},
    "training": {"rounds": 1, "lr": 0.1, "local_steps": 1}, "method": {"name": "fedavg"},
}  # fmt: skip


def written(path: Path, **sections: Any) -> Path:
    """An experiment with these sections."""
    path.write_text(tomli_w.dumps(SHORT | sections))
    return path


def forget(*names: str) -> None:
    """Know no file and none of these parts, as in a process of its own."""
    plugins._FILES.clear()
    for kind, name in itertools.product(plugins.KINDS.values(), names):
        kind.known.pop(name, None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path = tmp_path / "a#b"  # "#" also begins the hash of a file
    tmp_path.mkdir()
    (tmp_path / "own_average.py").write_text(METHOD)
    (tmp_path / "own_net.py").write_text(NET)
    written(tmp_path / "e.toml", method={"name": "own_average.py:Mine"})
    return tmp_path


def test_a_method_of_a_file_gives_what_the_method_gives_and_is_named_as_it_says(place: Path) -> None:
    plan = load(place / "e.toml")
    assert plan.method.name == "my-average"
    digest = plugins._FILES[str(place / "own_average.py")].digest
    assert plan.resolved()["own"] == [f"{place / 'own_average.py'}#{digest}"]
    again = Experiment.of(plan.resolved())
    federation = plan.federation(place)
    for method in (again.method, f"{place / 'own_average.py'}:Mine"):
        found, wanted = (fedkin.run(one, federation, rounds=2).rounds for one in (method, "fedavg"))
        assert found == wanted
    assert plugins.origin(type(plan.method)) == str(place / "own_average.py")


def test_a_plain_torch_module_of_a_file_is_a_model_with_its_arguments_as_settings(place: Path) -> None:
    plan = load(place / "e.toml", [f"model.name={place}/own_net.py:Plain", "model.width=5", "model.head=fc"])
    assert plan.model.model_dump() == {"name": "Plain", "head": "fc", "width": 5}
    (place / "begun.toml").write_text(plan.to_toml())
    again = load(place / "begun.toml")
    assert again.model == plan.model
    assert plugins.origin(type(again.model)) == str(place / "own_net.py")
    setup = again.setup(again.federation(place))
    assert {name: tuple(tensor.shape) for name, tensor in setup.net.initial.items() if "weight" in name} == {
        "body.net.1.weight": (5, 64), "body.net.2.of.weight": (5, 5), "head.weight": (10, 5),
    }  # fmt: skip


def test_a_module_a_class_of_modules_and_its_file_as_models_from_python(place: Path) -> None:
    federation = load(place / "e.toml").federation(place)
    train: dict[str, Any] = {"rounds": 1, "training": {"lr": 0.1}}
    by_name = fedkin.run("fedavg", federation, model=f"{place}/own_net.py:Plain", head="fc", **train)
    of = sys.modules["own_net"].Plain
    by_class = fedkin.run("fedavg", federation, model=f"{place}/own_net.py:Plain", **train, out=place / "run")
    assert fedkin.run("fedavg", federation, model=of, **train).rounds == by_class.rounds
    assert by_name.rounds == by_class.rounds
    net = of()
    given = fedkin.run("fedavg", federation, model=net, **train, out=place / "given")
    assert given.rounds != by_class.rounds  # it starts from other values
    assert fedkin.load(place / "run", own=True).model().get_submodule("head").out_features == 10
    models = fedkin.load(place / "given", model=of(), head="fc")
    assert models.predict(federation["c00"].test.x[:3]).shape == (3,)
    assert "body.fc.weight" not in dict(models.model().named_parameters())
    with pytest.raises(ConfigError, match=r"model\.head: no such setting"):
        fedkin.run("fedavg", federation, model="mlp", head="fc", **train)


def test_the_models_of_a_run_with_own_parts_are_loaded_on_request_only(place: Path) -> None:
    plan = load(place / "e.toml", [f"model.name={place}/own_net.py:Plain", "training.rounds=1"])
    run_experiment(plan, place, place / "run")
    forget("Plain", "my-average")
    with pytest.raises(ConfigError, match=r"its model 'Plain' is from .*own_net.py, which is code .* own=True"):
        fedkin.load(place / "run").model()
    models = fedkin.load(place / "run", own=True)
    assert models.model().get_submodule("head").out_features == 10
    settings = place / "run" / "experiment.toml"
    kept = settings.read_text()
    settings.write_text(kept.replace("own_net.py", "other.py"))
    forget("Plain", "my-average")
    for own in (True, False):
        with pytest.raises(RunError, match=r"experiment\.toml: not as it was written"):
            fedkin.load(place / "run", own=own).model()
    settings.write_text(kept)
    (place / "own_net.py").write_text(NET + "\n# changed\n")
    with pytest.raises(ConfigError, match=r"own_net\.py has changed since this was begun"):
        fedkin.load(place / "run", own=True)


def test_a_file_that_has_changed_is_refused_where_its_hash_is_noted(place: Path) -> None:
    plan = load(place / "e.toml")
    (place / "begun.toml").write_text(plan.to_toml())
    assert load(place / "begun.toml").resolved() == plan.resolved()
    (place / "own_average.py").write_text(METHOD + "\n# changed\n")
    with pytest.raises(ConfigError, match=r"own_average.py has changed since this was begun \(its hash was [0-9a-f]+"):
        load(place / "begun.toml")
    assert load(place / "e.toml").method.name == "my-average"


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("", "own_none.py:Mine", "method.name: .*own_none.py: No such file"),
        (METHOD, "own_a.py:Mina", "method.name: own_a.py: no method 'Mina'; did you mean 'Mine'?"),
        (MODEL, "own_b.py:Board", "no method 'Board'; the file has no method with a name"),
        ("\nx = y\n", "own_c.py:Mine", "own_c.py, line 2: NameError: name 'y' is not defined"),
        ("\nimport sys\nsys.exit(4)\n", "own_k.py:Mine", "own_k.py, line 3: SystemExit: 4"),
        (PARTS, "own_l.py:own_errors", r"own_errors is no ServerMethod or PeerMethod: write class own_errors\(Serv"),
        ("def f(:\n", "own_d.py:Mine", "own_d.py, line 1: SyntaxError"),
        (METHOD.replace("my-average", "fedavg"), "own_e.py:Mine", "Mine is 'fedavg', and there is a method 'fedavg'"),
        (METHOD.replace("my-average", "a/b"), "own_f.py:Mine", "Mine has no name, or one that is no plain word"),
        ("class Mine:\n    pass\n", "own_h.py:Mine", r"Mine is no ServerMethod or PeerMethod: write class Mine\(Serv"),
        ("import fedkin\nclass Mine(fedkin.ServerMethod): ...\n", "own_i.py:Mine", "lacks what it needs: offer, round"),
        (METHOD, "own_j.py", "method.name: own_j.py: say which part of the file is meant: own_j.py:NAME"),
        (METHOD, "numpy.py:Mine", "there is a Python module 'numpy' already; rename the file"),
        (METHOD, "own-g.py:Mine", "its name cannot be that of a Python module; rename it"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path: Path, text: str, name: str, words: str) -> None:
    if text:
        (tmp_path / name.partition(":")[0]).write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load(written(tmp_path / "e.toml", method={"name": name}))
    assert "\n" not in str(caught.value)
    assert "own_f" not in sys.modules or "my-average" not in plugins.KINDS["method"].known


SOURCE = """
from typing import Literal

from fedkin.data import Scenario, Source

class Mine(Source):
    source: Literal["mine"] = "mine"

    def load(self, root):
        return BODY

class Dealt(Scenario):
    name: Literal["dealt"] = "dealt"

    def build(self, dataset, seed):
        return BODY
"""


@pytest.mark.parametrize(("body", "section", "words"), [
    ("1 / 0", {"data": {"source": "own_s.py:Mine"}}, r"own_s\.py, line 10: ZeroDivisionError: division by zero"),
    ("None", {"data": {"source": "own_s.py:Mine"}}, r"data\.source: Mine\.load: expected to get a .*Dataset, got None"),
    ("1 / 0", {"scenario": {"name": "own_s.py:Dealt"}}, r"own_s\.py, line 16: ZeroDivisionError: division by zero"),
    ("3", {"scenario": {"name": "own_s.py:Dealt"}}, r"Dealt\.build: expected to get a fedkin\.Federation, got 3"),
])  # fmt: skip
def test_errors_of_an_own_source_or_scenario_name_its_file_and_line(
    tmp_path: Path, body: str, section: dict[str, Any], words: str
) -> None:
    (tmp_path / "own_s.py").write_text(SOURCE.replace("BODY", body))
    with pytest.raises(FedkinError, match=words):
        load(written(tmp_path / "e.toml", **section)).federation(tmp_path)


def test_errors_of_a_scenario_of_fedkin_stay_as_they_are(place: Path) -> None:
    broken: Any = None
    with pytest.raises(AttributeError):
        load(place / "e.toml").scenario.federation(broken, 0)


def test_an_alias_is_another_name_of_the_same_part(place: Path) -> None:
    path = place / "own_average.py"
    path.write_text(METHOD + "\n\nDefault = Mine\n")
    both = [f"{path}:Default", f"{path}:Mine"]
    assert plugins.resolve_names(both, "method", "m")[0] == ["my-average"] * 2
    path.write_text(METHOD + "\n\nDefault = Mine  # read again\n")
    assert load(place / "e.toml").method.name == "my-average"
    path.write_text(METHOD + "\n\nclass Other(Mine):\n    name: ClassVar[str] = 'my-average'\n")
    with pytest.raises(ConfigError, match="Other is 'my-average', and there is a method 'my-average' already"):
        load(place / "e.toml")


def names_of(own: list[str]) -> list[str]:
    """The files that are noted as an experiment's own."""
    return [Path(plugins.without_hash(each)[0]).name for each in own]


def test_a_file_is_read_wherever_a_part_can_be_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "own_stage.py").write_text(PARTS)
    (place / "own_broad.py").write_text(MODEL)
    stage = {"graph": {"groups": "own_stage.py:own_halves"}}
    methods = {"sfmtl-graph": {"method": stage}, "fedavg": {"model": {"name": "own_broad.py:Broad"}}}
    plan = load(written(place / "m.toml", methods=methods))
    assert plan.for_method("sfmtl-graph").resolved()["method"]["graph"]["groups"] == "own-halves"
    assert plan.for_method("fedavg").model.model_dump() == {"name": "broad", "hidden": (12,)}
    assert names_of(plan.table["own"]) == ["own_stage.py", "own_broad.py"]

    monkeypatch.chdir(place)
    forget("my-prox", "own-halves", "own-errors")
    metrics = "balanced-accuracy, own_stage.py:own_errors"
    changed = Experiment.of({**SHORT, "method": {"name": "sfmtl-graph"}}).with_changes(
        **{"method.graph.groups": "own_stage.py:own_halves", "run.metrics": metrics}
    )
    assert changed.resolved()["method"]["graph"]["groups"] == "own-halves"
    assert changed.run.metrics == ("balanced-accuracy", "own-errors")
    assert names_of(changed.table["own"]) == ["own_stage.py"]
    assert load(place / "e.toml", ["run.metrics=own_stage.py:own_errors"]).run.metrics == ("own-errors",)


def test_a_stage_of_a_file_from_python_is_noted_with_the_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "own_stage.py").write_text(PARTS)
    monkeypatch.chdir(place)
    few: dict[str, Any] = {"rounds": 1, "training": {"local_steps": 1}}
    groups = "own_stage.py:own_halves"
    result = fedkin.run("sfmtl-graph", small_federation(), out=place / "run", graph={"groups": groups}, **few)
    assert result.summary["groups"]["found"] == 2
    assert "own_stage.py#" in (place / "run" / "experiment.toml").read_text()
    found = fedkin.sweep(small_federation(), "sfmtl-graph", {"method.graph.groups": ["louvain", groups]}, **few)
    tried = [one.settings["method.graph.groups"] for one in found.grid]
    assert tried == ["louvain", f"{place}/{groups}"]
    assert found.grid[1].results[0].groups == result.groups


def test_a_file_that_was_refused_leaves_nothing_behind_and_can_be_mended(place: Path) -> None:
    path = place / "own_average.py"
    known = "\n\nclass Same(FedAvg):\n    name: ClassVar[str] = 'fedavg'\n"
    for more, says in ((known, "Same is 'fedavg', and there is a method 'fedavg' already"), ("\nx = y\n", "NameError")):
        path.write_text(METHOD + more)
        with pytest.raises(ConfigError, match=says):
            load(place / "e.toml")
        assert "my-average" not in plugins.KINDS["method"].known
        path.write_text(METHOD)
        assert load(place / "e.toml").method.name == "my-average"


def test_what_somebody_sent_reads_no_file(place: Path) -> None:
    path, read = place / "own_average.py", dict(plugins._FILES)
    sent = {**SHORT, "method": {"name": "own_average.py:Mine"}}
    with pytest.raises(ConfigError, match=r"method\.name: no 'own_average\.py:Mine'"):
        Experiment.of(sent)
    with pytest.raises(ConfigError, match="files are read for an experiment file that you name, only"):
        Experiment.of({**sent, "own": [str(path)]})
    assert read == plugins._FILES
    assert "own_average" not in sys.modules


PROGRAM = "from fedkin.running.plugins import *; add_installed(); print(KINDS['method'].known['my-average'].title)"


@pytest.mark.slow
def test_an_installed_package_brings_parts_and_a_broken_one_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "own_average.py").write_text(METHOD)
    about = tmp_path / "averages-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: averages\nVersion: 1.0\n")
    parts = "mine = own_average:Mine\nworse = own_worse:Worse\nno = own_average:ClassVar\n"
    (about / "entry_points.txt").write_text(f"[fedkin.methods]\n{parts}")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=env)
    wanted = "ClassVar is no ServerMethod or PeerMethod: write class ClassVar(ServerMethod)"
    assert done.stdout == "My average\n"
    assert sorted(done.stderr.splitlines()) == [
        f"averages: own_average:ClassVar cannot be used: ConfigError: {wanted}",
        "averages: own_worse:Worse cannot be used: ModuleNotFoundError: No module named 'own_worse'",
    ]


# -- FILE.py:NAME wherever settings and lists name a part ---


@pytest.fixture
def parts_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_parts.py").write_text(PARTS)
    written(tmp_path / "e.toml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_a_section_of_a_method_is_named_by_its_file(parts_place: Path) -> None:
    methods = {"own_parts.py:Mine": {"method": {"mu": 0.5}}, "own_parts.py:Mine@self": {"training": {"lr": 0.2}}}
    plan = load(written(parts_place / "m.toml", methods=methods))
    assert sorted(plan.table["methods"]) == ["my-prox", "my-prox@self"]
    assert plan.for_method("my-prox").resolved()["method"]["mu"] == 0.5
    control = plan.for_method("my-prox@self")
    assert (control.run.alone, control.training.lr, control.resolved()["method"]["mu"]) == (True, 0.2, 0.5)
    (parts_place / "elsewhere" / "begun.toml").write_text(plan.to_toml())
    assert load(parts_place / "elsewhere" / "begun.toml").resolved() == plan.resolved()


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({"my-prox": {}, "own_parts.py:Mine": {}}, r"own_parts\.py:Mine: this is 'my-prox', which has a section"),
        ({"own_parts.py:Mien": {}}, r"methods\.own_parts\.py:Mien: .*no method 'Mien'; did you mean 'Mine'"),
        ({"my-prox": {"methods": {"own_parts.py:Mien": {}}}}, r"^methods\.my-prox\.methods\.own_parts\.py:Mien: .*no "),
        ({"own_parts.py:Mine": {"method": {"nu": 1}}}, r"methods\.my-prox: method\.nu: no such setting"),
        ({"own_parts.py:Mine": 3}, r"my-prox"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_such_a_section_is_said_in_one_line(parts_place: Path, methods: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(written(parts_place / "m.toml", methods=methods))
    assert "\n" not in str(caught.value)


def test_a_grid_for_one_method_names_its_file(parts_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(parts_place)
    assert Choice.parse("own_parts.py:Mine:method.mu=0.1,1") == Choice("method.mu", (0.1, 1), "my-prox")
    with pytest.raises(ConfigError, match=r"--try .*no method 'Mien'; did you mean 'Mine'"):
        Choice.parse("own_parts.py:Mien:method.mu=0.1")
    found = fedkin.sweep(
        small_federation(), ["fedavg", "own_parts.py:Mine"], {"own_parts.py:Mine:method.mu": [0.1, 1.0]}, rounds=1,
        training={"local_steps": 1},
    )  # fmt: skip
    assert [(one.method, dict(one.settings)) for one in found.grid] == [
        ("fedavg", {}), ("my-prox", {"method.mu": 0.1}), ("my-prox", {"method.mu": 1.0}),
    ]  # fmt: skip


def test_a_path_may_have_an_at_sign_and_a_control_behind_its_name(parts_place: Path) -> None:
    (parts_place / "a@b").mkdir()
    file = (parts_place / "own_parts.py").rename(parts_place / "a@b" / "other_parts.py")
    given = [f"{file}:Mine", "../a@b/other_parts.py:Mine@self", "fedavg@self", "fedavg"]
    names, own = resolve_names(given, "method", "x")
    assert names == ["my-prox", "my-prox@self", "fedavg@self", "fedavg"]
    assert {plugins.without_hash(each)[0] for each in own} == {str(file.resolve())}
    found = fedkin.compare(small_federation(), [f"{file}:Mine@self"], rounds=1)
    assert list(found) == ["my-prox@self"]


def test_what_a_tuning_chose_from_a_file_can_be_compared(parts_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(parts_place)
    tried = [Choice.parse("method.graph.groups=own_parts.py:own_halves")]
    hold, folder = HoldOut("samples", 0.2), parts_place / "tuning"
    tune(load(parts_place / "e.toml"), ["sfmtl-graph"], tried, hold, [0], parts_place, folder)
    monkeypatch.chdir(parts_place / "elsewhere")
    plan = load(parts_place / "tuning" / "tuned.toml")
    assert plan.for_method("sfmtl-graph").resolved()["method"]["graph"]["groups"] == "own-halves"


@pytest.mark.parametrize("command", ["grid", "from python"])
def test_values_in_a_file_are_found_again_from_another_folder(
    parts_place: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(parts_place)
    if command == "from python":
        grid = {"method.graph": [{"groups": "own_parts.py:own_halves"}]}
        fedkin.sweep("e.toml", "sfmtl-graph", grid, out="kept")
    else:
        given = ["--grid", "method.graph.groups=own_parts.py:own_halves,components"]
        said("tune", "e.toml", "--methods", "sfmtl-graph", *given, "--seeds", "0", "--out", "kept")
    monkeypatch.chdir(parts_place / "elsewhere")
    said("tune", "--resume", parts_place / "kept")


def test_a_metric_of_a_notebook_on_an_experiment(parts_place: Path) -> None:
    def made(higher: bool) -> Measure:
        @fedkin.metric(higher=higher)
        def of_notebook(outputs: Any, targets: Any) -> float:
            return float((outputs.argmax(1) == targets).mean())

        return of_notebook

    for higher in (True, False):  # its cell is run again
        found = fedkin.compare(parts_place / "e.toml", "fedavg", metrics=["balanced-accuracy", made(higher)])
        told = found["fedavg"][0].summary["metrics"]["of-notebook"]
        assert (told["higher"], told["mean"]) == (higher, pytest.approx(found["fedavg"][0].accuracy))

    @fedkin.metric(higher=True, name="balanced-accuracy")
    def other(outputs: Any, targets: Any) -> float:
        return 0.0

    with pytest.raises(ConfigError, match="metrics: there is a metric 'balanced-accuracy' already; give yours another"):
        fedkin.compare(parts_place / "e.toml", "fedavg", metrics=[other])


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
def test_a_metric_of_a_comparison_that_is_refused_stays_unknown(parts_place: Path, arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedkin.compare(**{"on": parts_place / "e.toml", "methods": "fedavg", "metrics": [later_on], **arguments})
    assert "later-on" not in MEASURES


def test_the_files_of_objects_are_noted_with_the_runs_of_a_comparison(parts_place: Path) -> None:
    resolve_names([f"{parts_place}/own_parts.py:own_errors"], "metric", "here")
    parts = sys.modules["own_parts"]
    for number, on in enumerate[Any]((parts_place / "e.toml", small_federation())):
        out = parts_place / f"c{number}"
        fedkin.compare(on, ["local", parts.Mine()], metrics=[parts.own_errors], rounds=1, out=out)
        for name in ("local-seed0", "my-prox-seed0"):
            (noted,) = read_table(out / name / "experiment.toml")["own"]
            assert plugins.without_hash(noted)[0] == str((parts_place / "own_parts.py").resolve())


def test_a_text_of_a_method_may_end_as_a_file_does(parts_place: Path) -> None:
    (parts_place / "own_noted.py").write_text(METHOD + '    note: str = ""\n')
    noted = written(parts_place / "noted.toml", method={"name": "own_noted.py:Mine", "note": "prep.py"})
    assert load(noted).resolved()["method"]["note"] == "prep.py"
    assert load(noted, ["method.note=other.py"]).resolved()["method"]["note"] == "other.py"
    for section, setting in (
        ({"method": {"name": "tfl", "graph": {"groups": "own_parts.py"}}}, "method.graph.groups"),
        ({"model": {"name": "own_parts.py"}}, "model.name"),
        ({"run": {"metrics": ["own_parts.py"]}}, "run.metrics"),
    ):
        with pytest.raises(ConfigError, match=rf"^{setting}: own_parts.py: say which part of the file is meant"):
            load(written(parts_place / "part.toml", **section))


WRAPPED = """
import functools

import fedkin

def share(outputs, targets, of):
    return float((targets == of).mean())

own_zeros = fedkin.metric(higher=True, name="own-zeros")(functools.partial(share, of=0))
"""


def test_a_metric_is_of_the_file_in_which_it_is_made(parts_place: Path) -> None:
    (parts_place / "own_wrapped.py").write_text(WRAPPED)
    known, _ = resolve_names([f"{parts_place}/own_wrapped.py:own_zeros"], "metric", "run.metrics")
    measure = MEASURES[known[0]]
    assert file_of(measure) == str(parts_place / "own_wrapped.py")
    before = code_of(measure)
    assert len(before) == 16
    (parts_place / "own_wrapped.py").write_text(WRAPPED.replace("of=0", "of=1"))
    assert code_of(measure) != before
    (parts_place / "own_wrapped.py").unlink()
    with pytest.raises(ConfigError, match="metric 'own-zeros': its code is in no file that can be read"):
        code_of(measure)


# -- over a network: parts from files are refused, and what others send names none ----------------------------------


@pytest.mark.parametrize(
    "sections",
    [{"method": {"name": "own_parts.py:Mine"}}, {"model": {"name": "own_net.py:Plain"}},
     {"run": {"metrics": ["own_parts.py:own_errors"]}}],
    ids=["method", "model", "metric"],
)  # fmt: skip
def test_a_part_from_a_file_is_refused_over_a_network(sections: dict[str, Any], parts_place: Path) -> None:
    (parts_place / "own_net.py").write_text(NET)
    plan = load(written(parts_place / "n.toml", **sections))
    for refused in (settings_of, check_no_files):
        with pytest.raises(ConfigError, match=r"own: .*own_(parts|net).py: over a network files stay where they are"):
            refused(plan)


@pytest.mark.parametrize("name", ["own_parts.py:own_errors", "own-errors"])
def test_settings_of_others_name_metrics_that_are_known_and_no_file(name: str, parts_place: Path) -> None:
    plan = load(written(parts_place / "n.toml", run={"metrics": ["balanced-accuracy"]}))
    sent = settings_of(plan).replace("balanced-accuracy", name.replace("own_parts", f"{parts_place}/own_parts"))
    with pytest.raises(ConfigError, match=r"run\.metrics: no '"):
        setup_of(sent, Task(2, (4,)))
    assert "own_parts" not in sys.modules
