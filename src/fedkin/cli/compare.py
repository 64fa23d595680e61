"""`fedkin compare`: several methods on the same federations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkin.cli.ended import done, lines, reported, verdicts, warnings
from fedkin.cli.experiments import planned, rooted, wanted
from fedkin.cli.options import (
    BLOCKS,
    CONTROLS,
    EXPERIMENT,
    JSON,
    LEAVE_OUT,
    METHODS,
    OUT,
    RESTART,
    RESUME,
    ROOT,
    ROUNDS,
    SEEDS,
    SET,
)  # fmt: skip
from fedkin.cli.progress import Several, stop_on_signals
from fedkin.cli.screen import as_json, screen
from fedkin.errors import ConfigError
from fedkin.records.files import read_json
from fedkin.running.seeds import listed

__all__ = ["compare"]


def compare(
    experiment: Path | None = EXPERIMENT,
    methods: str | None = METHODS,
    seeds: str | None = SEEDS,
    changes: list[str] = SET,
    rounds: int | None = ROUNDS,
    data_root: Path | None = ROOT,
    out: Path | None = OUT,
    resume: Path | None = RESUME,
    restart: bool = RESTART,
    json: bool = JSON,
    leave_out: str | None = LEAVE_OUT,
    controls: bool = CONTROLS,
    blocks: str = BLOCKS,
) -> None:
    """Run several methods on the same federations and print mean and spread over seeds."""
    from fedkin.records.controls import with_controls
    from fedkin.report.headline import chosen_line, validation_in
    from fedkin.report.ranks import blocks_of, tested
    from fedkin.report.tables import comparison
    from fedkin.running.compare import compare as run_all
    from fedkin.running.compared import table

    kind = blocks_of(blocks)
    plan, folder = planned(experiment, changes, rounds, out, resume, restart, marker="plan.json", methods=methods)
    if resume is not None:
        if methods is not None or seeds is not None or leave_out is not None or controls:
            raise ConfigError("--resume goes on with the methods and seeds in its folder: give no others")
        names, seeded, groups = _planned_before(folder)
    else:
        groups = None if leave_out is None else [] if leave_out == "each" else listed(leave_out, "--leave-out")
        plan, names, seeded = wanted(plan, methods, seeds)
    root = rooted(folder, data_root, resume is not None)
    if controls:
        names = with_controls(names, plan.federation(root).planted is not None)
    if groups is not None:
        _compare_without(plan, names, seeded, root, folder, groups, restart, json)
        return
    # Settings as `fedkin tune` chose and judged them.
    tuned = experiment is not None and experiment.name == "tuned.toml" and not changes and rounds is None
    held = validation_in(experiment.parent if experiment is not None and tuned else folder)
    with stop_on_signals(folder) as stop:
        shown = Several(stop, json)
        results = run_all(
            plan, names, seeded, root, folder, resume=True, restart=restart,
            validation=None if held is None else held.model_dump(),
            watcher=lambda name, number, done, of: shown.next(f"{name} seed {number}", done, of),
        )  # fmt: skip
    report = reported([result.folder for by_seed in results.values() for result in by_seed.values()], folder, kind)
    if json:
        print(as_json([r.summary for by_seed in results.values() for r in by_seed.values()]))
        return
    screen().print(comparison(table(results)))
    higher = next(iter(next(iter(results.values())).values())).metric.higher
    lines(filter(None, [chosen_line(names, held, higher), *tested(results, kind)]))
    verdicts(results)
    warnings(results)
    done(folder, report)


def _compare_without(
    plan: Any, names: list[str], seeds: list[int], root: Path, folder: Path, groups: list[str], restart: bool,
    json: bool,
) -> None:  # fmt: skip
    """`compare` with one group left out after another: a report for each, and one table."""
    from fedkin.report.tables import left_out
    from fedkin.running.leave_out import leave_out

    with stop_on_signals(folder) as stop:
        shown = Several(stop, json)
        results = leave_out(
            plan, names, seeds, root, folder, groups or None, resume=True, restart=restart,
            watcher=lambda group, name, number, done, of: shown.next(
                f"without {group}: {name} seed {number}", done, of
            ),
        )  # fmt: skip
    runs = {
        group: [result for by_seed in of_group.values() for result in by_seed.values()]
        for group, of_group in results.items()
    }
    reports = [
        reported([run.folder for run in mine], Path(mine[0].folder or folder).parent) for mine in runs.values()
    ]  # fmt: skip
    if json:
        print(as_json({group: [run.summary for run in mine] for group, mine in runs.items()}))
        return
    screen().print(left_out(results))
    done(folder, *reports)


def _planned_before(folder: Path) -> tuple[list[str], list[int], list[str] | None]:
    """Methods, seeds and groups left out of the comparison in this folder; raises RunError and ConfigError."""
    from fedkin.records.controls import changes_of
    from fedkin.records.reading import checked
    from fedkin.records.schema import Plan

    path = folder / "plan.json"
    kept = checked(Plan, read_json(path), path)
    for key, kind, command in (("try", "tuning", "tune"), ("grid", "sweep", "sweep")):
        if key in kept:
            raise ConfigError(f"--resume {folder}: a {kind}, not a comparison; go on with fedkin {command}")
    for name in kept["methods"]:
        changes_of(name, f"{path}: methods")
    return kept["methods"], kept["seeds"], kept.get("leave_out")
