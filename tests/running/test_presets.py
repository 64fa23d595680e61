"""Presets by their names: from any folder, in the source tree and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.errors import ConfigError
from fedkin.running import presets
from fedkin.running.experiment import load
from fedkin.running.papers import known_tables, table_folder
from fedkin.running.presets import preset_folder, preset_names, preset_or_file


def test_a_preset_is_found_by_its_name_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(Path("digits-rotated"), ["training.rounds=3"]).training.rounds == 3
    assert "digits-rotated" in preset_names()
    assert known_tables(table_folder(None))


def test_a_file_goes_before_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits-rotated").write_text("name = 3")
    assert preset_or_file(Path("digits-rotated")) == Path("digits-rotated")
    with pytest.raises(ConfigError, match="name: expected a text"):
        load(Path("digits-rotated"))


@pytest.mark.parametrize("path", ["digits-rotated.toml", "there/digits-rotated", "/digits-rotated"])
def test_a_path_is_no_name(path: str) -> None:
    assert preset_or_file(Path(path)) == Path(path)


def test_a_name_with_a_mistake_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"digits-rotatde: no such file, and no preset .*'digits-rotated'"):
        load(Path("digits-rotatde"))


def test_an_installed_package_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "site-packages" / "fedkin" / "presets"
    inside.mkdir(parents=True)
    (inside / "mine.toml").write_text("")
    monkeypatch.setattr(presets, "__file__", str(inside.parent / "running" / "presets.py"))
    assert preset_folder() == inside
    assert preset_or_file(Path("mine")) == inside / "mine.toml"
