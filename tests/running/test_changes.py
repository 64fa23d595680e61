"""Changes from the command line: values, unset settings, and another kind of a section."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tomli_w

from fedkin.errors import ConfigError
from fedkin.running.experiment import load
from tiny import TABLE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "small.toml"
    place.write_text(tomli_w.dumps(TABLE))
    return place


def test_none_unsets_a_setting_which_then_has_its_default(path: Path) -> None:
    assert load(path).training.local_steps == 2
    made = load(path, ["training.local_steps=none", "training.local_epochs=3"])
    assert (made.training.local_steps, made.training.local_epochs) == (None, 3)
    assert load(path, ["training.lr=none"]).training.lr == 0.1


def test_none_is_kept_where_it_is_a_value(path: Path) -> None:
    words = ["method={name='flt'}", "method.graph.groups=3", "method.encoder.kind=none", "training.local_steps=none"]
    made = load(path, words)
    assert made.method.encoder is not None  # type: ignore[union-attr]
    assert made.method.encoder.kind == "none"  # type: ignore[union-attr]
    assert made.training.local_steps is None


def test_an_unknown_setting_is_refused_also_if_it_is_unset(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.lrr: no such setting; did you mean 'lr'"):
        load(path, ["training.lrr=none"])
    with pytest.raises(ConfigError, match=r"method\.name: no 'none'"):
        load(path, ["method.name=none"])


def test_another_kind_drops_what_only_the_former_has(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fedkin"):
        made = load(path, ["model.name=lenet", "method.name=fedavg"])
    assert (made.model.name, made.method.name) == ("lenet", "fedavg")
    assert [record.message for record in caplog.records] == [
        "model.name = 'lenet': left out hidden of the file, which are settings of 'mlp'",
        "method.name = 'fedavg': left out lam of the file, which are settings of 'sfmtl-graph'",
    ]
    assert "hidden" not in made.table["model"]


def test_what_both_kinds_have_stays_and_what_is_given_is_never_dropped(path: Path) -> None:
    made = load(path, ["method.name=pfedme"])
    assert made.method.lam == 0.5  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"method\.lam: no such setting"):
        load(path, ["method.name=fedavg", "method.lam=0.5"])
    # The same kind named again drops nothing, so that a slip in the file is still found.
    path.write_text(tomli_w.dumps({**TABLE, "model": {"name": "mlp", "hiden": [8]}}))
    with pytest.raises(ConfigError, match=r"model\.hiden: no such setting; did you mean 'hidden'"):
        load(path, ["model.name=mlp"])
