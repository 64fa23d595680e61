"""`fedkin run`, `compare`, `tune` and `bench`, and where they begin or go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from fedkin.cli import options, output
from fedkin.errors import ConfigError, RunError
from fedkin.records.files import read_json, write_bytes
from fedkin.running import presets
from fedkin.running.progress import Progress, make_console

if TYPE_CHECKING:
    from fedkin.records.reading import PlanFile, Validation
    from fedkin.records.run import Result
    from fedkin.running.experiment import Experiment
    from fedkin.running.grid import Choice
    from fedkin.running.tune import Candidate, Equal
    from fedkin.tasks import Metric


def run(
    experiment: Path | None = options.EXPERIMENT,
    changes: list[str] = options.SET,
    seed: int | None = options.SEED,
    rounds: int | None = options.ROUNDS,
    data_root: Path | None = options.ROOT,
    out: Path | None = options.OUT,
    resume: Path | None = options.RESUME,
    json: bool = options.JSON,
    profile: bool = typer.Option(False, "--profile", help="Print where the time went."),
) -> None:
    """Run one experiment and write its records, summary and report.

    Examples:
    fedkin run digits-rotated --seed 1
    fedkin run EXPERIMENT.toml --set training.lr=0.1 --rounds 20
    fedkin run --resume runs/digits-rotated
    """
    if seed is not None:
        changes = [*changes, f"run.seed={seed}"]
    loaded, folder, root = start_or_resume(experiment, changes, rounds, out, resume, data_root)
    from fedkin.running.loop import run_experiment

    with output.stop_on_signals(folder) as stop:
        result = run_experiment(loaded, root, folder, watcher=Progress(loaded.method.name, stop, json))
    finish_run(loaded, result, folder, json, profile)


def finish_run(experiment: Experiment, result: Result, folder: Path, json: bool, profile: bool = False) -> None:
    """Write the report of a finished run and print its figures."""
    from fedkin.report.tables import one_run, time_table, training_paths

    report = output.write_run_report([folder], folder)
    if output.printed_as_json(json, result.summary):
        return
    make_console().print(one_run(result))
    if profile:
        make_console().print(time_table(result.summary), *training_paths(result.summary))
    output.print_notes({experiment.method.name: {experiment.run.seed: result}})
    output.print_paths(folder, report)


def compare(
    experiment: Path | None = options.EXPERIMENT,
    methods: str | None = options.METHODS,
    seeds: str | None = options.SEEDS,
    changes: list[str] = options.SET,
    rounds: int | None = options.ROUNDS,
    data_root: Path | None = options.ROOT,
    out: Path | None = options.OUT,
    resume: Path | None = options.RESUME,
    json: bool = options.JSON,
    leave_out: str | None = typer.Option(
        None, metavar="each|GROUPS",
        help="Leave out one group of clients (domain, region) after another as unseen: each, or a,b,c.",
    ),
    controls: bool = typer.Option(
        False, "--controls", help="Run each method's controls too: without exchange (NAME@self), one group, random and "
        "true groups; shows what exchange adds.",
    ),
) -> None:  # fmt: skip
    """Run several methods on the same federations and print means with intervals over seeds.

    Examples:
    fedkin compare digits-rotated --methods local,fedavg,kin --seeds 0-4
    fedkin compare EXPERIMENT.toml --methods local,mine.py:Mine --controls
    fedkin compare --resume runs/digits-rotated
    """
    grid = start_grid(
        "compare", experiment, methods=methods, seeds=seeds, changes=changes, rounds=rounds, data_root=data_root,
        out=out, resume=resume, more=leave_out is not None or controls,
    )  # fmt: skip
    names = grid.methods
    from fedkin.records.controls import with_controls
    from fedkin.report.sentence import validation_in
    from fedkin.running.grid import split_names

    groups: list[str] | None = []  # each group
    if grid.begun is not None:
        groups = grid.begun.leave_out
    elif leave_out != "each":
        groups = None if leave_out is None else split_names(leave_out, "--leave-out")
    if controls:
        names = with_controls(names, grid.experiment.federation(grid.root).planted is not None)
    if groups is not None:
        _compare_leaving_out(grid, names, groups, json)
        return
    # The validation figures of `fedkin tune` are valid for its tuned.toml, if no setting is changed.
    folder = grid.folder
    if experiment is not None and experiment.name == "tuned.toml" and not changes and rounds is None:
        folder = experiment.parent
    _compare(grid, names, validation_in(folder), json)


def _compare(grid: GridCommand, names: list[str], validation: Validation | None, json: bool) -> None:
    """Run a comparison, write its report and print its table; validation: the results of a tuning of the methods."""
    from fedkin.records.comparison import comparison_rows, over_how_many, unequal_conditions
    from fedkin.report.ranks import ranking_lines
    from fedkin.report.sentence import chosen_line
    from fedkin.report.tables import comparison
    from fedkin.running.grid import Runs
    from fedkin.running.grid import compare as run_comparison

    kept = None if validation is None else validation.model_dump()
    with output.run_watchers(grid.folder, json) as watch:
        results = run_comparison(
            Runs(grid.experiment, grid.root), names, grid.seeds, grid.folder, validation=kept, watch=watch
        )
    every = [result for by_seed in results.values() for result in by_seed.values()]
    report = output.write_run_report([result.folder for result in every], grid.folder)
    if output.printed_as_json(json, [result.summary for result in every]):
        return
    make_console().print(comparison(comparison_rows(results)))
    chosen = chosen_line(names, validation, every[0].metric.higher)
    unlike = [] if validation else unequal_conditions({name: next(iter(of.values())) for name, of in results.items()})
    before = [text for text in (over_how_many(every), chosen) if text]
    output.print_notes(results, before, [*ranking_lines(results), *unlike])
    output.print_paths(grid.folder, report)


def _compare_leaving_out(grid: GridCommand, names: list[str], groups: list[str], json: bool) -> None:
    """Leave out one group after another: one report per group, and one table. No groups: each group."""
    from fedkin.records.comparison import over_how_many
    from fedkin.report.tables import left_out
    from fedkin.running.grid import leave_out

    with output.run_watchers(grid.folder, json) as watch:
        results = leave_out(grid.experiment, names, grid.seeds, grid.root, grid.folder, groups or None, watch=watch)
    summaries, reports, partial = {}, [], []
    for group, by_method in results.items():
        runs = [result for by_seed in by_method.values() for result in by_seed.values()]
        summaries[group] = [run.summary for run in runs]
        folder = Path(runs[0].folder or grid.folder).parent
        reports.append(output.write_run_report([run.folder for run in runs], folder))
        if text := over_how_many(runs, unseen=True):
            partial.append(f"without {group}: {text}")
    if output.printed_as_json(json, summaries):
        return
    make_console().print(left_out(results))
    output.say(*partial)
    output.print_paths(grid.folder, *reports)


def tune(
    experiment: Path | None = options.EXPERIMENT,
    choices: list[str] = typer.Option(
        [], "--try", metavar="A.B=V,V", help="Values of a setting to try: training.lr=0.01,0.1; may be repeated. "
        "tfl:method.q=0.1,1 is tried for one method only. Not for data and scenario.",
    ),
    equal: str | None = typer.Option(
        None, metavar="N", help="In place of --try: N candidates for every method, over its rate and the "
        "settings that it declares; then variants of the best one outside the tried range.",
    ),
    rates: str | None = typer.Option(
        None, metavar="LOW,HIGH", help="With --equal: range of training.lr (default: a tenth to ten times)."
    ),
    grid: list[str] = typer.Option(
        [], metavar="A.B=V,V", help="In place of --try: run every combination on the test samples and choose "
        "nothing: a table, a plot and sweep.csv. May be repeated."
    ),
    methods: str | None = options.METHODS,
    hold_out: str | None = typer.Option(
        None, metavar="WHAT:SHARE", help="What candidates are judged on: samples:0.2 of each client's "
        "training samples (the default), or clients:0.25.",
    ),
    seeds: str | None = options.SEEDS,
    changes: list[str] = options.SET,
    rounds: int | None = options.ROUNDS,
    data_root: Path | None = options.ROOT,
    out: Path | None = options.OUT,
    resume: Path | None = options.RESUME,
    json: bool = options.JSON,
) -> None:  # fmt: skip
    """Choose settings per method, judged on held-out training data; writes tuned.toml for `compare`.

    Examples:
    fedkin tune EXPERIMENT.toml --methods fedavg,tfl --try training.lr=0.01,0.1
    fedkin tune EXPERIMENT.toml --methods fedavg,tfl --equal 12 --seeds 0,1
    fedkin tune digits-rotated --methods sfmtl-graph --grid method.lam=0.1,1 --seeds 0-4
    """
    searches = bool(choices) or equal is not None or rates is not None
    if grid and (searches or hold_out is not None):
        raise ConfigError("--grid runs every combination on the test samples: give no --try, --equal or --hold-out")
    start = start_grid(
        "tune", experiment, methods=methods, seeds=seeds, changes=changes, rounds=rounds, data_root=data_root,
        out=out, resume=resume, more=searches or bool(grid),
    )  # fmt: skip
    from fedkin.running.tune import plan_choices

    if start.begun is not None:
        candidates, swept, hold_out = plan_choices(start.begun), start.begun.command == "sweep", start.begun.hold_out
    else:
        candidates, swept = _candidates(choices, equal, rates, grid), bool(grid)
    if swept:
        assert isinstance(candidates, list)
        _run_sweep(start, candidates, json)
    else:
        _run_tuning(start, candidates, hold_out or "samples:0.2", json)


def _candidates(
    choices: Sequence[str], equal: str | None, rates: str | None, grid: Sequence[str]
) -> list[Choice] | Equal:  # fmt: skip
    """Return the candidates that the options describe; raises ConfigError."""
    from fedkin.running.grid import Choice
    from fedkin.running.tune import Equal

    if grid:
        return [Choice.parse(text, "--grid") for text in grid]
    if bool(choices) == (equal is not None) or (rates is not None and equal is None):
        raise ConfigError(
            "--try: name at least one setting and its values, such as training.lr=0.01,0.1; or give --equal N, with "
            "--rates LOW,HIGH; or --grid A.B=V,V"
        )
    return [Choice.parse(text) for text in choices] if equal is None else Equal.parse(equal, rates)


def _run_tuning(start: GridCommand, candidates: list[Choice] | Equal, hold_out: str, json: bool) -> None:
    """Run every candidate, print them, and write tuned.toml."""
    from fedkin.running.grid import HoldOut
    from fedkin.running.tune import best
    from fedkin.running.tune import tune as run_tuning

    loaded, folder, held = start.experiment, start.folder, HoldOut.parse(hold_out)
    with output.run_watchers(folder, json) as watch:
        results = run_tuning(loaded, start.methods, candidates, held, start.seeds, start.root, folder, watch=watch)
    figures = {
        name: [{"settings": dict(trial.settings), "values": trial.values, "failed": trial.failed} for trial in tried]
        for name, tried in results.items()
    }
    if not output.printed_as_json(json, figures):
        _print_tuning(results, loaded.data.loaded(start.root).task.metric, loaded)
        output.say(
            f"judged on {held} of the training data, seeds {', '.join(map(str, start.seeds))}",
            f"experiment with the chosen settings: {folder / 'tuned.toml'}",
        )
    failed = {name: tried[0].failed for name, tried in results.items() if best(tried, higher=True) is None}
    if failed:
        why = "; ".join(f"{name}: {first or 'nothing held out could be judged'}" for name, first in failed.items())
        raise ConfigError(
            f"every candidate failed of {', '.join(failed)}, whose settings stay as they were; of each the first: {why}"
        )


def _run_sweep(start: GridCommand, cells: list[Choice], json: bool) -> None:
    """Run every combination of settings; print a table and write a plot and sweep.csv."""
    from fedkin.records.comparison import over_how_many
    from fedkin.report.sweeping import draw
    from fedkin.report.tables import comparison
    from fedkin.running.grid import Runs, rows, sweep

    folder, title = start.folder, f"{start.experiment.name}: a sweep"
    with output.run_watchers(folder, json) as watch:
        results = sweep(Runs(start.experiment, start.root), start.methods, cells, start.seeds, folder, watch=watch)
    table_rows = rows(results)
    page = folder / "sweep.html"
    draw(table_rows, list(dict.fromkeys(choice.path for choice in cells)), page, title=title)
    if output.printed_as_json(json, table_rows):
        return
    make_console().print(comparison([{**row, "method": f"{row['method']}, {row['settings']}"} for row in table_rows]))
    partial = dict.fromkeys(over_how_many(list(cell.results.values())) for cell in results)
    output.say(
        *filter(None, partial), "figures on test samples: to choose a setting, use fedkin tune --try or --equal",
        f"records: {folder}", f"table:   {folder / 'sweep.csv'}", f"plot:    {page}",
    )  # fmt: skip


def _print_tuning(results: Mapping[str, Sequence[Candidate]], metric: Metric, experiment: Experiment) -> None:
    """Print a line per candidate; the chosen one names its settings at the border of what was tried."""
    from fedkin.report.units import figure
    from fedkin.running.grid import words
    from fedkin.running.tune import at_the_border, best

    lines = []
    for name, tried in results.items():
        chosen, every = best(tried, metric.higher), [trial.settings for trial in tried]
        for trial in tried:
            value = trial.failed if trial.failed is not None else figure(trial.mean, metric.share, 4)
            note = ""
            if trial is chosen:
                note = "; ".join(["chosen", *at_the_border(experiment.for_method(name), trial.settings, every)])
            lines.append((name, words(trial.settings), value, note))
    output.print_table(("method", "settings", f"{metric.title}, held out", ""), lines)
    if any(trial.faster is not None for tried in results.values() for trial in tried):
        output.say("a candidate counts as the worse of itself and of the one with twice its rate")


def bench(
    method: str = typer.Argument(..., help="A method, or FILE.py:CLASS."),
    suite: str = typer.Option("quick", help="quick, or a Python file with SUITE = Suite(...)."),
    change: list[str] | None = typer.Option(None, "--set", help="A setting of the method, such as lam=0.1."),
    out: Path | None = typer.Option(None, help="Folder of the runs (default: runs/bench/METHOD)."),
    store: bool = typer.Option(False, "--store", help="Keep the results among those of the suite, for later methods."),
    json: bool = typer.Option(False, "--json", help="Print what bench.json holds."),
) -> None:
    """Rank a method among all others: on a suite of federations, equally tuned, over several seeds.

    Examples:
    fedkin bench mine.py:Mine
    fedkin bench ditto --set lam=0.3 --out runs/ditto
    """
    from fedkin.methods import METHODS
    from fedkin.report import bench_page
    from fedkin.running import bench as benching
    from fedkin.running.experiment import setting_value
    from fedkin.running.plugins import resolve_names
    from fedkin.running.suites import suite_of
    from fedkin.settings import choose, parse

    chosen = suite_of(suite)
    (name,), _ = resolve_names([method], "method", "METHOD")
    settings = {}
    for text in change or ():
        setting, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected SETTING=VALUE, such as lam=0.1")
        settings[setting.removeprefix("method.")] = setting_value(value, f"--set {text}")
    built = parse(choose(METHODS, name, "METHOD"), settings, "method")
    label = name + "".join(f", {setting}={value}" for setting, value in settings.items())
    folder = out or Path("runs") / "bench" / label.replace(", ", "-").replace("=", "-").replace("/", "-")
    with output.run_watchers(folder, json, "the same command") as watch:
        data = benching.bench(chosen, built, label, folder, watch)
    if store:
        benching.store(chosen, label, folder)
    write_bytes(folder / "bench.html", bench_page.page(data).encode())
    if output.printed_as_json(json, data):
        return
    _print_bench(data)
    # Where a rate beyond those tried may be better.
    at = ", ".join(row["federation"] for row in data["federations"] if row["border"])
    borders = [f"the chosen rate is the first or last that was tried on: {at}"] if at else []
    output.print_lines([bench_page.headline(data), "; ".join([*bench_page.NOTES, *borders])])
    output.print_paths(folder, folder / "bench.html")


def _print_bench(data: Mapping[str, Any]) -> None:
    from fedkin.report.bench_page import interval

    lines = []
    for row in data["federations"]:
        if row["mean"] is None:
            lines.append((row["federation"], "-", "-", "", row["failed"][:40] or "no rate works", "", ""))
            continue
        hurt = "-" if row["hurt"] is None else f"{row['hurt']} ({len(row['surely'])}) of {row['clients']}"
        lines.append((
            row["federation"], f"{row['mean']:.1f}", f"{row['rank']} of {row['of']}", row["reference"] or "-",
            interval(row["gain"], brackets=False), interval(row["adds"].get("self"), brackets=False), hurt,
        ))  # fmt: skip
    output.print_table(("federation", "mean", "rank", "best simple", "difference", "adds", "hurt"), lines)


# -- where a run, comparison or tuning begins or goes on: its experiment, its folder, and that of the data -------------


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
    from fedkin.records.controls import changes_of, split_control
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
    method = loaded.method.name
    lost = [text for text in changes if text.startswith("method.") and not text.startswith("method.name=")]
    if lost and method not in {split_control(name)[0] for name in names}:
        raise ConfigError(
            f"--set {lost[0]}: it changes {method}, which is none of --methods {','.join(names)}; "
            f"write --set methods.{names[0]}.{lost[0]}"
        )
    seed_list = parse_seeds(seeds) if seeds is not None else [loaded.run.seed]
    return GridCommand(loaded.with_own(files), names, seed_list, folder, root)


def start_or_resume(
    experiment: Path | None, changes: list[str], rounds: int | None, out: Path | None, resume: Path | None,
    data_root: Path | None, command: str = "run", methods: str | None = None,
) -> tuple[Experiment, Path, Path]:  # fmt: skip
    """Return the experiment, the folder of its records and that of the data sets; raises ConfigError and RunError.

    command: the command that wrote the folder to resume: run, compare or tune. methods: the value of --methods, which
    `changes` may name.
    """
    try:
        if experiment is not None:
            presets.preset_or_file(experiment).stat()
    except FileNotFoundError:
        raise presets.missing(experiment or Path()) from None
    except (OSError, ValueError):
        pass  # the reader of the file reports what is wrong with it
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
    if begun(folder) and not has_records(folder):
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
