"""MAPL's settings of graph learning were renamed: the old name is refused wherever settings are given."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from fedkin import run
from fedkin.cli import app
from fedkin.errors import ConfigError, RunError
from fedkin.methods.mapl import Mapl, MaplPlus
from fedkin.methods.mapl.weights import CollaborationSettings
from fedkin.running.experiment import Experiment, load
from support import small_federation

LINE = r"method\.graph_learning: renamed; write method\.graph$"

OLD = """
name = "small"

[data]
source = "digits"

[scenario]
name = "mapl"
clients = 4
per_class = [4, 6]
test_per_class = 3

[model]
name = "mlp"

[training]
rounds = 1

[method]
name = "local"

[methods.mapl.method]
warmup = 1
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def graph_of(experiment: Experiment) -> CollaborationSettings:
    assert isinstance(experiment.method, Mapl)
    return experiment.method.graph


def test_an_experiment_file_with_the_old_name_is_refused(tmp_path: Path) -> None:
    text = OLD.replace('"local"', '"mapl"\n\n[method.graph_learning]\nstep = "paper"')
    with pytest.raises(ConfigError, match=r"small\.toml: " + LINE):
        load(written(tmp_path, text))
    assert graph_of(load(written(tmp_path, text.replace("graph_learning", "graph")))).step == "paper"


def test_a_change_with_the_old_name_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, OLD.replace('"local"', '"mapl"'))
    with pytest.raises(ConfigError, match=LINE):
        load(path, ["method.graph_learning.on=false"])
    assert not graph_of(load(path, ["method.graph.on=false"])).on


def test_the_settings_of_a_compared_method_with_the_old_name_are_refused(tmp_path: Path) -> None:
    text = OLD.replace("warmup = 1", "graph_learning.on = false")
    with pytest.raises(ConfigError, match=r"methods\.mapl: " + LINE):
        load(written(tmp_path, text))
    renamed = load(written(tmp_path, text.replace("graph_learning", "graph")))
    assert not graph_of(renamed.for_method("mapl")).on


def test_options_in_python_with_the_old_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="^" + LINE):
        run("mapl", small_federation(), graph_learning={"on": False})
    with pytest.raises(ValueError, match="graph_learning: renamed; write graph"):
        MaplPlus.model_validate({"graph_learning": {"on": False}})


def test_a_run_that_was_stored_under_the_old_name_is_not_resumed(tmp_path: Path) -> None:
    """Its folder is left as it was, and the error has the line that says what to write."""
    experiment = load(written(tmp_path, OLD.replace('"local"', '"mapl"')))
    folder = tmp_path / "run"
    folder.mkdir()
    table = tomllib.loads(experiment.to_toml())
    table["method"]["graph_learning"] = table["method"].pop("graph")
    stored = tomli_w.dumps(table)
    (folder / "experiment.toml").write_text(stored, encoding="utf-8")
    with pytest.raises(RunError, match=r"method\.graph_learning: renamed; write method\.graph"):
        experiment.check_claim(folder, resume=True)
    result = CliRunner().invoke(app, ["run", "--resume", str(folder)])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).endswith("experiment.toml: method.graph_learning: renamed; write method.graph")
    assert [path.name for path in folder.iterdir()] == ["experiment.toml"]
    assert (folder / "experiment.toml").read_text(encoding="utf-8") == stored


def test_resolved_settings_have_the_new_name(tmp_path: Path) -> None:
    table = load(written(tmp_path, OLD.replace('"local"', '"mapl"'))).resolved()
    assert "graph" in table["method"]
    assert Experiment.of(table).resolved() == table
