"""The experiment files that come with fedkin (presets), by name."""

from __future__ import annotations

from pathlib import Path

from fedkin.errors import ConfigError, nearest


def preset_folder() -> Path:
    """Return the folder of the presets: in the installed package, or at the top of the source tree."""
    inside = Path(__file__).parents[1] / "presets"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "presets"


def preset_names() -> list[str]:
    """Return the names of all presets, sorted.

    >>> "digits-rotated" in preset_names()
    True
    """
    return sorted(path.stem for path in preset_folder().glob("*.toml"))


def preset_or_file(path: Path) -> Path:
    """Return a preset's file for its name; any other path stays unchanged.

    A path without folder and suffix is a name if no such file exists. Raises ConfigError if no preset has this name.
    """
    if path.name != str(path) or path.suffix or path.exists():
        return path
    if path.name not in preset_names():
        raise ConfigError(f"{path}: no such file, and no preset has this name; {nearest(path.name, preset_names())}")
    return preset_folder() / f"{path.name}.toml"


def missing(path: Path) -> ConfigError:
    """Return the error for an experiment file that does not exist."""
    near = sorted(other.name for other in path.parent.glob("*.toml")) if path.parent.is_dir() else []
    hint = nearest(path.name, near) if near else "there is no such folder, or no experiment in it"
    return ConfigError(f"{path}: no such experiment file; {hint}")
