"""Names that a shell completes: read from the files of the package, because imports would take seconds."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path

from fedkin.errors import ConfigError, nearest
from fedkin.running import presets

__all__ = [
    "experiment_files", "fetched_names", "known", "method_names", "methods_listed", "model_names", "preset_names",
    "scenario_names", "source_names", "table_names", "there",
]  # fmt: skip

_PACKAGE = Path(__file__).parents[1]


def _named(room: str, field: str) -> list[str]:
    """The values that classes in a room's files give to this field, sorted."""
    given = re.compile(rf'^    {field}: (?:ClassVar\[str\]|Literal\["[^"]+"\]) = "([^"]+)"', re.MULTILINE)
    files = (_PACKAGE / room).rglob("*.py")
    return sorted({name for path in files for name in given.findall(path.read_text(encoding="utf-8"))})


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def method_names(incomplete: str) -> list[str]:
    """Names of methods that begin so."""
    return _begun(_named("methods", "name"), incomplete)


def scenario_names(incomplete: str) -> list[str]:
    """Names of scenarios that begin so."""
    return _begun(_named("data/scenarios", "name"), incomplete)


def source_names(incomplete: str) -> list[str]:
    """Names of data sources that begin so."""
    return _begun(_named("data/sources", "source"), incomplete)


def model_names(incomplete: str) -> list[str]:
    """Names of models that begin so."""
    return _begun(_named("learning/models", "name"), incomplete)


def there(path: str | None) -> None:
    """Raise ConfigError for an experiment that is not there."""
    try:
        if path is not None:
            presets.preset_or_file(Path(path)).stat()
    except FileNotFoundError:
        raise presets.missing(Path(path or "")) from None
    except (OSError, ValueError):
        pass  # whoever reads it says what is wrong with it


def known(names: Callable[[str], list[str]], section: str, where: str) -> Callable[[str | None], None]:
    """Return a check that raises ConfigError for a name that no file of the package has, nor another package can."""

    def check(name: str | None) -> None:
        found = names("")
        if name is None or name in found or ":" in name or "fedkin.methods" in sys.modules:
            return
        if not entry_points(group=f"fedkin.{section}s"):
            raise ConfigError(f"{where}: no {name!r}; {nearest(name, found)}")

    return check


def preset_names(incomplete: str) -> list[str]:
    """Names of presets that begin so."""
    return _begun(presets.preset_names(), incomplete)


def table_names(incomplete: str) -> list[str]:
    """Names of the papers' tables that begin so."""
    return _begun(
        ["all", *sorted(path.stem for path in (presets.preset_folder() / "tables").glob("*.toml"))], incomplete
    )


def methods_listed(incomplete: str) -> list[str]:
    """Lists of methods, separated by commas, whose last one begins so; none is named twice."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in method_names(last) if name not in before.split(",")]


def experiment_files(incomplete: str) -> list[str]:
    """Experiment files and folders that begin so, and presets."""
    head, _, last = incomplete.rpartition("/")
    folder = Path(head or ("/" if incomplete.startswith("/") else "."))
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    near = [path for path in there if path.name.startswith(last) and (path.suffix == ".toml" or path.is_dir())]
    lead = incomplete.removesuffix(last)
    paths = [f"{lead}{path.name}/" if path.is_dir() else f"{lead}{path.name}" for path in near if path.name[0] != "."]
    return [*preset_names(incomplete), *paths]


def fetched_names(incomplete: str) -> list[str]:
    """Data sets that `fedkin data fetch` knows, that begin so."""
    import tomllib

    return _begun(tomllib.loads((_PACKAGE / "data/origins.toml").read_text(encoding="utf-8")), incomplete)
