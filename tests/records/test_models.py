"""Models that are kept with a run: one file for each different model, whole or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

import fedkin
from fedkin.errors import RunError
from fedkin.federation import Federation
from fedkin.records.checking import check
from fedkin.records.files import seal_of
from fedkin.records.run import read_run
from fedkin.running.experiment import Experiment
from fedkin.running.loop import run_experiment
from support import same, small_federation
from tiny import TABLE, assert_equal_runs, cut

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
    assert_equal_models(tmp_path / "local", tmp_path / "loopback")


def assert_equal_models(one: Path, other: Path) -> None:
    assert files(one) == files(other)
    assert all((one / "models" / name).read_bytes() == (other / "models" / name).read_bytes() for name in files(one))


def test_the_files_are_plain_safetensors_under_the_seal(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = fedkin.run("local", small_federation(), rounds=1, training=PLAN, out=folder)
    index = json.loads((folder / "models/index.json").read_text())
    for id, client in index["clients"].items():
        path = folder / "models" / client["file"]
        assert load_file(path).keys() == result.models[id].keys()
        assert f"models/{client['file']}" in seal_of(folder).files
    assert "models/index.json" in seal_of(folder).files


def test_none_are_kept_if_the_run_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, out=folder, settings={"models": "none"})
    assert not (folder / "models").exists()
    assert dict(read_run(folder).models) == {}
    with pytest.raises(RunError, match=r"no models were kept with this run.* run\.models = 'last'"):
        fedkin.load(folder)


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
    folder = tmp_path / "run"
    fed = small_federation()
    fedkin.run("local", fed, rounds=1, training=PLAN, out=folder)
    path, first = folder / "models" / file, min(fed)
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    with pytest.raises(RunError, match=rf"{file}: not as it was written: its hash differs"):
        fedkin.load(folder).model(first)
    assert any(str(path) in problem for one in check(folder) for problem in one.problems)
    path.unlink()
    with pytest.raises(RunError, match=r"no models were kept|it is gone"):
        fedkin.load(folder).model(first)


@pytest.mark.slow
def test_a_run_that_went_on_keeps_the_same_models(tmp_path: Path) -> None:
    experiment = Experiment.of(TABLE)
    run_experiment(experiment, Path(), tmp_path / "whole")
    cut(experiment, tmp_path / "cut", 5)
    assert not (tmp_path / "cut" / "models").exists()
    run_experiment(experiment, Path(), tmp_path / "cut")
    assert_equal_runs(tmp_path / "whole", tmp_path / "cut")
    assert_equal_models(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
def test_files_of_an_attempt_that_was_killed_do_not_stay(tmp_path: Path) -> None:
    experiment = Experiment.of(TABLE)
    cut(experiment, tmp_path / "run", 5)
    (tmp_path / "run" / "models").mkdir()
    (tmp_path / "run" / "models" / "gone.safetensors").write_bytes(b"")
    run_experiment(experiment, Path(), tmp_path / "run")
    assert "gone.safetensors" not in files(tmp_path / "run")


def test_an_index_with_a_missing_field_is_refused_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fedkin.run("local", small_federation(), rounds=1, training=PLAN, out=folder)
    path = folder / "models/index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in index.items() if name != "method"}))
    (folder / "seal.json").unlink()
    with pytest.raises(RunError, match=r"index\.json: method: .*; put the file back") as caught:
        fedkin.load(folder).model(next(iter(index["clients"])))
    assert "validation error" not in str(caught.value)
