"""Models that are kept with a run: one file for each different model, whole or not at all."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

import fedkin
from fedkin.errors import RunError
from fedkin.federation import Federation
from fedkin.records.checking import check
from fedkin.records.files import drop_models, seal_of
from fedkin.records.run import read_run
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from support import same, small_federation
from tiny import TABLE, cut

PLAN = {"local_steps": 2, "lr": 0.1}
ODD = ("../etc", "Ward 3 / north", "a", "A", "北京", ".hidden", "x" * 300)


def odd_federation() -> Federation:
    fed = small_federation()
    return Federation([replace(fed[id], id=name) for id, name in zip(fed, ODD, strict=False)], fed.task)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "models").iterdir())


def test_models_come_back_under_their_ids_whatever_these_hold(tmp_path: Path) -> None:
    fed = odd_federation()
    result = fedkin.run("local", fed, rounds=1, training=PLAN, out=tmp_path / "run")
    back = read_run(tmp_path / "run").models
    assert sorted(back) == sorted(fed)
    assert len(files(tmp_path / "run")) == len(fed) + 1
    for id, params in result.models.items():
        assert list(back[id]) == list(params)
        assert same(back[id], params)


def test_clients_with_one_model_share_a_file(tmp_path: Path) -> None:
    for engine in ("local", "loopback"):  # which makes a copy for each client
        folder = tmp_path / engine
        fedkin.run("fedavg", small_federation(), rounds=1, training=PLAN, out=folder, settings={"engine": engine})
        assert files(folder) == ["index.json", "model-1.safetensors"]
    for name in files(folder):
        one, other = ((tmp_path / engine / "models" / name).read_bytes() for engine in ("local", "loopback"))
        assert one == other


def test_the_files_are_plain_safetensors_under_the_seal(tmp_path: Path) -> None:
    result = fedkin.run("local", small_federation(), rounds=1, training=PLAN, out=tmp_path)
    index = json.loads((tmp_path / "models/index.json").read_text())
    for id, client in index["clients"].items():
        path = tmp_path / "models" / client["file"]
        assert load_file(path).keys() == result.models[id].keys()
        assert f"models/{client['file']}" in seal_of(tmp_path).files
    assert "models/index.json" in seal_of(tmp_path).files


def test_none_are_kept_if_the_run_says_so(tmp_path: Path) -> None:
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, out=tmp_path, settings={"models": "none"})
    assert not (tmp_path / "models").exists()
    assert dict(read_run(tmp_path).models) == {}
    with pytest.raises(RunError, match=r"no models were kept with this run.* run\.models = 'last'"):
        fedkin.load(tmp_path)


def test_models_above_the_limit_are_not_kept_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, out=folder, settings={"models_limit_mb": 0.01})
    assert "the models are not kept: its models take" in caplog.text
    assert files(folder) == ["index.json"]
    with pytest.raises(RunError, match=r"no models were kept: its models take .* run\.models_limit_mb is 0\.01"):
        fedkin.load(folder)
    # One model of all clients is below it.
    fedkin.run("fedavg", small_federation(), rounds=1, training=PLAN, out=tmp_path / "one",
               settings={"models_limit_mb": 0.2})  # fmt: skip
    assert "model-1.safetensors" in files(tmp_path / "one")


@pytest.mark.parametrize("file", ["index.json", "model-1.safetensors"])
def test_a_changed_file_is_refused_and_named(tmp_path: Path, file: str) -> None:
    fed = small_federation()
    fedkin.run("local", fed, rounds=1, training=PLAN, out=tmp_path)
    path, first = tmp_path / "models" / file, min(fed)
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    with pytest.raises(RunError, match=rf"{file}: not as it was written: its hash differs"):
        fedkin.load(tmp_path).model(first)
    assert any(str(path) in problem for one in check(tmp_path) for problem in one.problems)
    path.unlink()
    with pytest.raises(RunError, match=r"no models were kept|it is gone"):
        fedkin.load(tmp_path).model(first)


@pytest.mark.slow
def test_files_of_an_attempt_that_was_killed_do_not_stay(tmp_path: Path) -> None:
    experiment = Experiment.of(TABLE)
    cut(experiment, tmp_path / "run", 5)
    (tmp_path / "run" / "models").mkdir()
    (tmp_path / "run" / "models" / "gone.safetensors").write_bytes(b"")
    run_experiment(experiment, Path(), tmp_path / "run")
    assert "gone.safetensors" not in files(tmp_path / "run")


def test_an_index_with_a_missing_field_is_refused_in_words(tmp_path: Path) -> None:
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, out=tmp_path)
    path = tmp_path / "models/index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in index.items() if name != "method"}))
    (tmp_path / "seal.json").unlink()
    with pytest.raises(RunError, match=r"index\.json: method: .*; put the file back") as caught:
        fedkin.load(tmp_path).model(next(iter(index["clients"])))
    assert "validation error" not in str(caught.value)


# -- the end of a run: what stays of it when it is made lighter ----------------------------------------------------


@pytest.mark.slow
def test_a_light_run_has_its_figures_and_is_as_it_was_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_experiment(Experiment.of(TABLE), tmp_path, run)
    whole = read_run(run)
    assert (run / "models").is_dir()
    shutil.copytree(run, tmp_path / "killed")
    drop_models(run)
    assert not any((run / name).exists() for name in ("models", "checkpoint"))
    assert not check(run)[0].problems
    light = read_run(run)
    assert (light.summary, light.scores) == (whole.summary, whole.scores)
    # As a process leaves it that was killed after it had written the seal.
    shutil.copy(run / "seal.json", tmp_path / "killed" / "seal.json")
    assert not check(tmp_path / "killed")[0].problems
    drop_models(tmp_path / "killed")
    assert not (tmp_path / "killed" / "models").exists()


def test_a_run_that_is_not_finished_keeps_what_it_goes_on_with(tmp_path: Path) -> None:
    for name in ("models", "checkpoint"):
        (tmp_path / name).mkdir()
    drop_models(tmp_path)
    assert (tmp_path / "checkpoint").is_dir()


def test_a_finished_run_that_is_read_again_stays_as_it_was_written(federation: Federation, tmp_path: Path) -> None:
    """Also where clients are told of otherwise, which is no part of their samples."""
    first = fedkin.run("local", federation, rounds=1, out=tmp_path / "run")
    before = (tmp_path / "run" / "federation.json").read_bytes()
    told = [replace(client, about={"place": id}) for id, client in federation.items()]
    again = fedkin.run("local", Federation(told, federation.task, federation.name), rounds=1, out=tmp_path / "run")
    assert again.values == first.values
    assert (tmp_path / "run" / "federation.json").read_bytes() == before
