"""Where a run, comparison or tuning begins or goes on: its experiment, the folder of its records, that of the data."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedkin.errors import ConfigError, RunError
from fedkin.records.files import read_json
from fedkin.running import presets

if TYPE_CHECKING:
    from fedkin.records.reading import PlanFile
    from fedkin.running.experiment import Experiment


class GridCommand(NamedTuple):
    """What `compare` and `tune` run, and where. begun: the plan file of a folder that is resumed."""

    experiment: Experiment
    methods: list[str]
    seeds: list[int]
    folder: Path
    root: Path
    begun: PlanFile | None = None


def start_grid(
    command: str, experiment: Path | None, *, methods: str | None, seeds: str | None, changes: list[str],
    rounds: int | None, data_root: Path | None, out: Path | None, resume: Path | None, more: bool,
) -> GridCommand:  # fmt: skip
    """Return what a command runs with these options; without --methods and --seeds, those of the experiment.

    more: whether further options are given, which must not be given when resuming. Raises ConfigError.
    """
    loaded, folder, root = start_or_resume(experiment, changes, rounds, out, resume, data_root, command, methods)
    from fedkin.records.controls import changes_of
    from fedkin.records.reading import plan_in
    from fedkin.running.grid import parse_seeds, split_names
    from fedkin.running.plugins import resolve_names

    if resume is not None:
        if methods is not None or seeds is not None or more:
            raise ConfigError("--resume continues the methods, seeds and values in its folder: give no others")
        begun = plan_in(folder)
        for name in begun.methods:
            changes_of(name, f"{folder / 'plan.json'}: methods")
        return GridCommand(loaded, begun.methods, begun.seeds, folder, root, begun)
    names, files = resolve_names(split_names(methods or loaded.method.name, "--methods"), "method", "--methods")
    _check_changes_used(changes, loaded.method.name, names)
    seed_list = parse_seeds(seeds) if seeds is not None else [loaded.run.seed]
    return GridCommand(loaded.with_own(files), names, seed_list, folder, root)


def _check_changes_used(changes: Sequence[str], method: str, names: Sequence[str]) -> None:
    """Raise ConfigError for changes of the experiment's method if it is none of the methods that run."""
    from fedkin.records.controls import split_control

    lost = [text for text in changes if text.startswith("method.") and not text.startswith("method.name=")]
    if lost and method not in {split_control(name)[0] for name in names}:
        raise ConfigError(
            f"--set {lost[0]}: it changes {method}, which is none of --methods {','.join(names)}; "
            f"write --set methods.{names[0]}.{lost[0]}"
        )


def start_or_resume(
    experiment: Path | None, changes: list[str], rounds: int | None, out: Path | None, resume: Path | None,
    data_root: Path | None, command: str = "run", methods: str | None = None,
) -> tuple[Experiment, Path, Path]:  # fmt: skip
    """Return the experiment, the folder of its records and that of the data sets; raises ConfigError and RunError.

    command: the command that wrote the folder to resume: run, compare or tune. methods: the value of --methods, which
    `changes` may name.
    """
    _check_exists(experiment)
    from fedkin.running.experiment import load
    from fedkin.running.grid import split_names
    from fedkin.running.plugins import resolve_names

    if resume is not None:
        if changes or any(option is not None for option in (experiment, out, rounds)):
            raise ConfigError("--resume continues the experiment in its folder: no other option changes it")
        _check_resumable(resume, command)
        return load(resume / "experiment.toml"), resume, _data_root(resume, data_root)
    if experiment is None:
        raise ConfigError("name an experiment file, or --resume DIR")
    if methods is not None:
        resolve_names(split_names(methods, "--methods"), "method", "--methods")
    if rounds is not None:
        changes = [*changes, f"training.rounds={rounds}"]
    loaded = load(experiment, changes)
    return loaded, _new_folder(out, loaded.name), _data_root(None, data_root)


def _check_exists(path: Path | None) -> None:
    """Raise ConfigError for an experiment file or preset that does not exist, before slow imports."""
    try:
        if path is not None:
            presets.preset_or_file(path).stat()
    except FileNotFoundError:
        raise presets.missing(path or Path()) from None
    except (OSError, ValueError):
        pass  # the reader of the file reports what is wrong with it


def _check_resumable(folder: Path, command: str) -> None:
    """Raise ConfigError for a folder with nothing to continue, or one that another command continues."""
    from fedkin.records.files import begun, has_records, is_unused
    from fedkin.records.reading import plan_in

    if folder.is_dir() and not begun(folder) and is_unused(folder):
        raise ConfigError(f"--resume {folder}: nothing was begun in it; give the first command again, --out {folder}")
    marker = "experiment.toml" if command == "run" else "plan.json"
    if not (folder / marker).is_file():
        what = f"no {marker} in it, so there is nothing to continue" if folder.exists() else "no such folder"
        raise ConfigError(f"--resume {folder}: {what}{_did_you_mean(folder, command, marker)}")
    if not has_records(folder):
        raise ConfigError(f"--resume {folder}: no run was begun in it; {folder / marker} begins one without --resume")
    if (folder / "plan.json").is_file():
        right = "compare" if plan_in(folder).command == "compare" else "tune"
        if command != right:
            raise ConfigError(
                f"--resume {folder}: a comparison, a tuning or a sweep; continue it with fedkin {right} --resume"
            )


def _did_you_mean(folder: Path, command: str, marker: str) -> str:
    """Ask whether a folder was meant that this command continues: one inside, or beside with a similar name."""
    near = [path.parent for place in (folder, folder.parent) for path in sorted(place.glob(f"*/{marker}"))]
    if command == "run":
        near = [place for place in near if not (place / "plan.json").exists()]
    inside = [str(place) for place in near if place.parent == folder]
    close = inside or get_close_matches(str(folder), map(str, near), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _new_folder(out: Path | None, name: str) -> Path:
    """Return `out`, or else runs/NAME, with a number if it exists; raises ConfigError if `out` is in use."""
    from fedkin.records.files import is_unused

    if out is not None:
        if not is_unused(out):
            raise ConfigError(f"--out {out}: it exists and is not an empty folder; --resume {out} continues a run")
        return out
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def _data_root(begun: Path | None, given: Path | None) -> Path:
    """Return the folder of data sets: as given, else the one with which a run began; raises RunError."""
    path = Path() if begun is None else begun / "data-root.json"
    if given is None and path.is_file():
        root = read_json(path)
        if not isinstance(root, str) or not root:
            raise RunError(
                f"{path}: expected the folder of the data sets as a text, got {root!r}; give --data-root DIR"
            )
        return Path(root)
    root = given if given is not None else Path("data")
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"--data-root {root}: its name is not Unicode; rename it, or name it through a link"
        ) from None
    return root
