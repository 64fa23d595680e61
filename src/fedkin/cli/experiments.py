"""`fedkin run`, and what every command with an experiment file reads and checks."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from fedkin.cli.ended import done, reported, verdicts
from fedkin.cli.options import EXPERIMENT, JSON, OUT, RESTART, RESUME, ROOT, ROUNDS, SET
from fedkin.cli.progress import LiveProgress, stop_on_signals
from fedkin.cli.screen import as_json, screen
from fedkin.errors import ConfigError, RunError
from fedkin.records.files import read_json
from fedkin.running.seeds import listed, numbers

__all__ = ["ending", "kept_plan", "planned", "rooted", "run", "wanted"]


def run(
    experiment: Path | None = EXPERIMENT,
    changes: list[str] = SET,
    seed: int | None = typer.Option(None, "--seed", min=0, max=10**18 - 1, help="Seed, in place of run.seed."),
    rounds: int | None = ROUNDS,
    data_root: Path | None = ROOT,
    out: Path | None = OUT,
    resume: Path | None = RESUME,
    restart: bool = RESTART,
    json: bool = JSON,
    profile: bool = typer.Option(False, "--profile", help="Print where the time went."),
) -> None:
    """Run one experiment and write its records, summary and report."""
    from fedkin.running.compare import run_experiment

    more = [f"run.seed={seed}"] if seed is not None else []
    plan, folder = planned(experiment, [*changes, *more], rounds, out, resume, restart)
    root = rooted(folder, data_root, resume is not None)
    with stop_on_signals(folder) as stop:
        result = run_experiment(
            plan, root, folder, resume=resume is not None, restart=restart,
            watcher=LiveProgress(plan.method.name, stop, folder, json),
        )  # fmt: skip
    ending(plan, result, folder, json, profile)


def ending(plan: Any, result: Any, folder: Path, json: bool, profile: bool = False) -> None:
    """Write the report of a run that has ended, and print its figures."""
    from fedkin.report.tables import one_run, profiled, ways_taken

    report = reported([folder])
    if json:
        print(as_json(result.summary))
        return
    screen().print(one_run(result))
    verdicts({plan.method.name: {plan.run.seed: result}})
    if profile:
        screen().print(profiled(result.summary), *ways_taken(result.summary))
    done(folder, report)


def planned(
    experiment: Path | None, changes: list[str], rounds: int | None, out: Path | None, resume: Path | None,
    restart: bool = False, marker: str = "experiment.toml", methods: str | None = None,
) -> tuple[Any, Path]:  # fmt: skip
    """The experiment and the folder of its records. methods: those of --methods, which changes may name."""
    from fedkin.records.claims import begun, free
    from fedkin.running.experiment import load
    from fedkin.running.own_tables import named_in

    if restart and resume is None:
        raise ConfigError("--restart goes with --resume DIR: a run without a folder begins at round 0")
    if resume is not None:
        if experiment is not None or changes or out is not None or rounds is not None:
            raise ConfigError("--resume goes on with the experiment in its folder: no other option changes it")
        if resume.is_dir() and not begun(resume) and free(resume):
            raise ConfigError(
                f"--resume {resume}: nothing was begun in it; give the first command again, --out {resume}"
            )
        if not (resume / marker).is_file():
            what = f"no {marker} in it, so there is nothing to go on with" if resume.exists() else "no such folder"
            raise ConfigError(f"--resume {resume}: {what}{_like(resume, marker)}")
        if marker != "plan.json" and (resume / "plan.json").is_file():
            raise ConfigError(
                f"--resume {resume}: a comparison, a tuning or a sweep, not a run; go on with fedkin "
                f"{_command(resume / 'plan.json')} --resume"
            )
        return load(resume / "experiment.toml", begun=True), resume
    if experiment is None:
        raise ConfigError("name an experiment file, or --resume DIR")
    more = [f"training.rounds={rounds}"] if rounds is not None else []
    if methods is not None:
        named_in(listed(methods, "--methods"), "method", Path(), "--methods")
    plan = load(experiment, [*changes, *more])
    if out is not None:
        if not free(out):
            raise ConfigError(f"--out {out}: it exists and is not an empty folder; --resume {out} goes on with a run")
        folder = out
    else:
        folder = _new(Path("runs"), plan.name)
    return plan, folder


def _like(folder: Path, marker: str) -> str:
    """The runs beside a folder, or in it, that have nearly its name, as a hint; empty if there are none."""
    beside = folder if folder.is_dir() else folder.parent
    found = {*beside.glob(f"*/{marker}")} if beside.is_dir() else {*beside.parent.glob(f"*/*/{marker}")}
    runs = [str(path.parent) for path in found if marker == "plan.json" or not (path.parent / "plan.json").is_file()]
    close = get_close_matches(str(folder), runs, n=1, cutoff=0.6)
    one = close or (runs if len(runs) == 1 else [])
    if one:
        return f"; did you mean {one[0]}?"
    return f"; beside it there are {len(runs)}, such as {min(runs)}" if runs else ""


def _command(plan: Path) -> str:
    """The command that goes on with what has this plan."""
    with suppress(RunError, TypeError):
        kept = read_json(plan)
        return "tune" if "try" in kept else "sweep" if "grid" in kept else "compare"
    return "compare"


def rooted(folder: Path, given: Path | None, resume: bool) -> Path:
    """The folder of data sets: as given, else the one with which the run began; raises RunError."""
    kept = folder / "data-root.json"
    if given is None and resume and kept.exists():
        root = read_json(kept)
        if not isinstance(root, str) or not root:
            raise RunError(
                f"{kept}: expected the folder of the data sets as a text, got {root!r}; give --data-root DIR"
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


def _new(parent: Path, name: str) -> Path:
    """A folder that does not exist yet."""
    number, folder = 1, parent / name
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder


def wanted(plan: Any, methods: str | None, seeds: str | None) -> tuple[Any, list[str], list[int]]:
    """The experiment, methods and seeds of these options; without them those of the experiment."""
    from fedkin.running.own_tables import named_in

    names, own = named_in(listed(methods or plan.method.name, "--methods"), "method", Path(), "--methods")
    return plan.with_own(own), names, numbers(seeds) if seeds is not None else [plan.run.seed]


def kept_plan(folder: Path, form: Any, key: str, kind: str) -> Any:
    """The plan in a folder that is gone on with, which has this key; raises RunError, and ConfigError for another's."""
    from fedkin.records.reading import checked
    from fedkin.records.schema import Plan

    place = folder / "plan.json"
    kept = checked(Plan, read_json(place), place)
    if key not in kept:
        raise ConfigError(f"--resume {folder}: not a {kind}; go on with fedkin {_command(place)}")
    return checked(form, kept, place)
