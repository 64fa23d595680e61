"""Settings of nets that come with values: which files and options are refused, without the packages themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkin.data.sources.hub import Hub
from fedkin.errors import ConfigError
from fedkin.federation import Task
from fedkin.learning.models import MODELS, Transformers
from fedkin.learning.models.pretrained import _UNREAD, _digest
from fedkin.running.experiment import Experiment
from fedkin.running.networked import plan_of, settings_of
from fedkin.settings import parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TASK = Task(2, (10,), codes=("x",))


def model(**table: Any) -> Any:
    return parse(MODELS[table["name"]], table, "model")


@pytest.mark.parametrize("revision", [None, "main", "v1.0", COMMIT[:12], COMMIT[:-1] + "g", COMMIT.upper()])
def test_a_net_of_the_hub_is_one_commit(revision: str | None) -> None:
    with pytest.raises(ConfigError, match=r"hub: .*revision, the 40 characters of a commit .* other values"):
        model(name="transformers", hub="a/b", revision=revision)
    assert model(name="transformers", hub="a/b", revision=COMMIT).revision == COMMIT


@pytest.mark.parametrize("mixed", [False, True])
def test_over_a_network_nothing_is_fetched_from_the_hub(mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(*_: Any) -> None:
        raise AssertionError("a net was built before anybody was asked")

    monkeypatch.setattr(Transformers, "build", fetched)
    net = {"name": "transformers", "hub": "a/b", "revision": COMMIT}
    table = {"name": "mixed", "bodies": ["small-plain", "own"], "nets": {"own": net}} if mixed else net
    experiment = Experiment.of({
        "name": "texts", "data": {"source": "digits"}, "scenario": {"name": "iid", "clients": 2}, "model": table,
        "training": {"rounds": 1, "lr": 0.1}, "method": {"name": "fedavg"}, "network": {"clients": ["one", "two"]},
    })  # fmt: skip
    why = "model.hub: over a network nothing is fetched from the Hub; .* set model.path"
    with pytest.raises(ConfigError, match=why):
        settings_of(experiment)
    # What another side sends is not taken either.
    with monkeypatch.context() as patch:
        patch.setattr("fedkin.running.networked._refuse_hub", lambda _: None)
        text = settings_of(experiment)
    with pytest.raises(ConfigError, match=why):
        plan_of(text, TASK)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("pretrained", "set model.path"), ("checkpoint_path", "set model.path"), ("pretrained_cfg", "set model.path"),
        ("pretrained_cfg_overlay", "set model.path"), ("cache_dir", "set model.path"),
        ("num_classes", "the task decides"), ("in_chans", "the task decides"),
    ],
)  # fmt: skip
def test_options_that_go_round_the_files_are_refused(option: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"model.options.*{option}: .*{why}"):
        model(name="timm", net="resnet18", options={option: "x", "img_size": 8})


@pytest.mark.parametrize(
    ("file", "why"),
    [
        *((f"values{end}", "is not safetensors .a pickle runs code") for end in _UNREAD),
        ("adapter_config.json", "an adapter, which is not loaded"),
    ],
)
def test_values_in_other_forms_are_not_replaced_by_random_ones(tmp_path: Path, file: str, why: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / file).write_text("{}")
    with pytest.raises(ConfigError, match=f"model.path: .*{file}.* {why}"):
        model(name="transformers", path=str(tmp_path)).build(TASK)


@pytest.mark.parametrize("file", ["config.json", "model-1.safetensors", "model.safetensors.index.json", "other.json"])
def test_the_hash_is_of_all_settings_and_values(tmp_path: Path, file: str) -> None:
    for name in ("config.json", "model-1.safetensors", "README.md"):
        (tmp_path / name).write_text("one")
    before = _digest(tmp_path)
    (tmp_path / "README.md").write_text("three")
    assert _digest(tmp_path) == before
    (tmp_path / file).write_text("three")
    assert _digest(tmp_path) != before


def test_a_revision_is_refused_where_nothing_is_fetched() -> None:
    with pytest.raises(ConfigError, match=r"revision: it is the commit of a net on the Hub; leave it out with path"):
        model(name="transformers", path="here", revision=COMMIT)
    with pytest.raises(ConfigError, match="config and revision are of a dataset on the Hub; leave them out with path"):
        parse(Hub, {"path": "here", "target": "y", "client": "c", "revision": COMMIT}, "data")
