"""Experiment files: every field checked, every field settable, complete when written back."""

from __future__ import annotations

import copy
import logging
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedkin.errors import ConfigError
from fedkin.running import presets
from fedkin.running.experiment import Experiment, load
from fedkin.running.papers import known_tables, table_folder
from fedkin.running.presets import preset_folder, preset_names, preset_or_file
from tiny import TABLE, written

PRESETS = sorted((Path(__file__).parents[2] / "presets").glob("*.toml"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "small.toml")


def changed(path: str, value: Any) -> dict[str, Any]:
    table = copy.deepcopy(TABLE)
    *sections, last = path.split(".")
    place = table
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return table


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("training.lr", "fast", r"^training\.lr: .*; got 'fast'"),
        ("method.name", "sfmtl", r"^method\.name: no 'sfmtl'; did you mean 'sfmtl-graph'\?"),
        ("method.alpha", 1.5, r"^method\.alpha: .*less than or equal to 1; got 1\.5"),
        ("method.graph.group", "louvain", r"^method\.graph\.group: no such setting; did you mean 'groups'\?"),
        ("scenario.name", "rotated", r"^scenario\.name: no 'rotated'; did you mean 'rotated-masked'\?"),
        ("scenario.client", 3, r"^scenario\.client: no such setting; did you mean 'clients'\?"),
        ("data.source", "digit", r"^data\.source: no 'digit'; did you mean 'digits'\?"),
        ("model.hidden", [], r"^model\.hidden: "),
        ("run.engine", "locl", r"^run\.engine: no 'locl'; did you mean 'local'\?"),
        ("methods.sfmtl-grpah", {}, r"^methods: no 'sfmtl-grpah'; did you mean 'sfmtl-graph'\?"),
        ("methods.local.scenario.clients", 4, r"^methods\.local\.scenario\.clients: methods are compared on"),
        ("methods.local", {"data.seed": 1}, r"^methods\.local\.data\.seed: methods are compared on the same samples"),
        ("training.batch_size", True, "batch_size"), ("training.clients_per_round", True, "clients_per_round"),
        ("training.clip", True, "clip"), ("training.betas", [1.5, 2], "betas"), ("model.hidden", [-4], "hidden"),
        ("model.hidden", [0], "hidden"), ("method.graph.seed", 2**40, "seed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(path: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Experiment.of(changed(path, value))


def test_what_is_written_back_is_complete_and_the_same() -> None:
    text = Experiment.of(TABLE).to_toml()
    again = Experiment.of(tomllib.loads(text))
    assert again.to_toml() == text
    assert again.resolved()["training"]["batch_size"] == 32
    assert again.method == Experiment.of(TABLE).method


def test_settings_from_the_command_line(path: Path) -> None:
    experiment = load(path, ["training.lr=0.5", "method.graph.groups=leiden", "model.hidden=[3, 4]", "name = other"])
    assert experiment.training.lr == 0.5
    assert experiment.resolved()["method"]["graph"]["groups"] == "leiden"
    assert experiment.resolved()["model"]["hidden"] == [3, 4]
    assert experiment.name == "other"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("training.lr", "expected section.field=value"),
        ("mu=1", r"no section 'mu'; a setting is named with its section, such as method\.mu; known: "),
        ("trainin.lr=1", r"no section 'trainin'; did you mean 'training'"),
        ("training.lr.x=1", "'lr' is a value, not a section"),
        (".lr=1", "expected section.field=value"),
        ("training.lr=-1", r"training\.lr: .*got -1"),
    ],
)
def test_bad_settings_from_the_command_line(path: Path, change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(path, [change])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name = [", "cannot be read as TOML"),
        (b"name = '\xff'", "cannot be read .*line 1 is not UTF-8; save the file as UTF-8"),
        ("name = 'a'".encode("utf-16"), "cannot be read .*line 1 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_files_that_are_no_experiment(path: Path, content: bytes, said: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"small\.toml: {said}"):
        load(path)
    with pytest.raises(ConfigError, match=r"smal\.toml: no such experiment file; did you mean 'small\.toml'"):
        load(path.with_name("smal.toml"))


def test_a_byte_order_mark_is_no_part_of_an_experiment(path: Path) -> None:
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert load(path).name == TABLE["name"]


def test_compare_changes_settings_for_one_method_only() -> None:
    experiment = Experiment.of(changed("methods.fedavg", {"training.lr": 0.03, "method.weights": "equal"}))
    fedavg = experiment.for_method("fedavg")
    assert (fedavg.training.lr, fedavg.method.name) == (0.03, "fedavg")
    assert fedavg.resolved()["method"]["weights"] == "equal"
    assert experiment.for_method("local").training.lr == TABLE["training"]["lr"]
    own = experiment.for_method("sfmtl-graph")
    assert own.resolved()["method"]["lam"] == TABLE["method"]["lam"]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_are_complete_experiments(path: Path) -> None:
    experiment = load(path)
    assert experiment.name == path.stem
    assert path.read_text().startswith("#"), "the first comment says what the preset reached"


def said_of(table: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        Experiment.of(table)
    return str(error.value)


def test_mistakes_in_several_sections_are_all_said_at_once(path: Path) -> None:
    table = changed("training.lrr", 0.1)
    table |= {"name": "a/b", "rnu": {}, "model": {"name": "mpl"}, "faults": 3}
    table["method"] = {**table["method"], "alfa": 1}
    table["run"] = {"sed": 1, "engine": "locl"}
    del table["data"]
    assert said_of(table).split("; ") == [
        "rnu: no such section", "did you mean 'run'?",
        "name: expected a text that can name a folder, got 'a/b'",
        "[data]: this section is missing",
        "model.name: no 'mpl'", "did you mean 'mlp'?",
        "training.lrr: no such setting", "did you mean 'lr'?",
        "method.alfa: no such setting", "did you mean 'alpha'?",
        "faults: expected a section [faults], got 3",
        "run.sed: no such setting", "did you mean 'seed'?",
    ]  # fmt: skip
    written(path, training={"lrr": 0.1}, model={"name": "mpl"})
    with pytest.raises(ConfigError, match=r"small\.toml: model\.name: .*; training\.lrr: no such setting"):
        load(path)


def test_a_section_with_a_wrong_name_is_not_said_to_be_missing_too() -> None:
    table = {name if name != "scenario" else "scenaro": part for name, part in TABLE.items()}
    assert said_of(table) == "scenaro: no such section; did you mean 'scenario'?"


def test_mistakes_in_the_sections_of_methods_are_said_once_each() -> None:
    table = changed("methods", {
        "fedavg": {"training.lrr": 1, "method.weigths": "equal"}, "local": {"training.rounds": 2}, "ifca": {},
        "tfll": {}, "sfmtl-graph": {"trainin.lr": 1},
    })  # fmt: skip
    table["training"] = {**table["training"], "lr": -1}
    text = said_of(table)
    for part in (
        "training.lr: ", "methods.fedavg: training.lrr: no such setting; did you mean 'lr'?",
        "methods.fedavg: method.weigths: no such setting; did you mean 'weights'?",
        "methods: no 'tfll'; did you mean 'tfl'?", "methods.sfmtl-graph: no section 'trainin'",
    ):  # fmt: skip
        assert text.count(part) == 1, (part, text)
    for sections in (3, {"fedavg": {"method.weights": "equal"}}):
        assert said_of({**table, "method": 3, "methods": sections}).count("method: expected a section") == 1


# -- changes from the command line: values, unset settings, and another kind of a section ----------------------------


def test_a_setting_without_a_value_is_unset_and_then_has_its_default(path: Path) -> None:
    assert load(path).training.local_steps == 2
    made = load(path, ["training.local_steps=", "training.local_epochs=3", "model.hidden = "])
    assert (made.training.local_steps, made.training.local_epochs) == (None, 3)
    assert "hidden" not in made.table["model"]
    made = load(path, ["method={name='flt'}", "method.graph.groups=3", "method.encoder.kind=none"])
    assert made.method.encoder.kind == "none"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["training.lrr", "model.hidden.x", "privacy", "privacy.clip"])
def test_a_setting_that_is_not_there_cannot_be_unset(path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"--set {name}=: {name} is not set, so it cannot be unset"):
        load(path, [f"{name}="])


@pytest.mark.parametrize("name", ["data.source", "scenario.name", "model.name", "method.name"])
def test_what_has_no_default_cannot_be_unset(path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: missing, and it has no default"):
        load(path, [f"{name}="])


def test_another_kind_drops_what_only_the_former_has(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fedkin"):
        made = load(path, ["model.name=lenet", "method.name=fedavg"])
    assert (made.model.name, made.method.name) == ("lenet", "fedavg")
    assert [record.message for record in caplog.records] == [
        "model.name = 'lenet': ignored hidden of the file (settings of 'mlp')",
        "method.name = 'fedavg': ignored lam of the file (settings of 'sfmtl-graph')",
    ]
    assert "hidden" not in made.table["model"]


def test_what_both_kinds_have_stays_and_what_is_given_is_never_dropped(path: Path) -> None:
    made = load(path, ["method.name=pfedme"])
    assert made.method.lam == 0.5  # type: ignore[union-attr]
    for given in (["method.name=fedavg", "method.lam=0.5"], ["method={lam=0.5}", "method.name=fedavg"]):
        with pytest.raises(ConfigError, match=r"method\.lam: no such setting"):
            load(path, given)
    # The same kind named again drops nothing, so that a slip in the file is still found.
    written(path, model={"name": "mlp", "hiden": [8]})
    with pytest.raises(ConfigError, match=r"model\.hiden: no such setting; did you mean 'hidden'"):
        load(path, ["model.name=mlp"])


# -- presets by their names: from any folder, in the source tree and in an installed package -------------------------


@pytest.mark.usefixtures("here")
def test_a_preset_is_found_by_its_name_from_any_folder() -> None:
    assert load(Path("digits-rotated"), ["training.rounds=3"]).training.rounds == 3
    assert "digits-rotated" in preset_names()
    assert known_tables(table_folder(None))


@pytest.mark.usefixtures("here")
def test_a_file_goes_before_a_preset_and_a_path_is_no_name() -> None:
    Path("digits-rotated").write_text("name = 3")
    assert preset_or_file(Path("digits-rotated")) == Path("digits-rotated")
    with pytest.raises(ConfigError, match="name: expected a text"):
        load(Path("digits-rotated"))
    for path in ("digits-rotated.toml", "there/digits-rotated", "/digits-rotated"):
        assert preset_or_file(Path(path)) == Path(path)
    with pytest.raises(ConfigError, match=r"digits-rotatde: no such file, and no preset .*'digits-rotated'"):
        load(Path("digits-rotatde"))


def test_an_installed_package_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "site-packages" / "fedkin" / "presets"
    inside.mkdir(parents=True)
    (inside / "mine.toml").write_text("")
    monkeypatch.setattr(presets, "__file__", str(inside.parent / "running" / "presets.py"))
    assert preset_folder() == inside
    assert preset_or_file(Path("mine")) == inside / "mine.toml"
