"""The panel Begin: `fedkin init`, `advise`, `data fetch` and `new`."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from fedkin.cli import options
from fedkin.cli.exit_status import on_interrupt
from fedkin.cli.output import print_lines, print_table, printed_as_json, say
from fedkin.errors import ConfigError, RunError
from fedkin.running.progress import make_console
from fedkin.untrusted import escaped

if TYPE_CHECKING:
    import pyarrow as pa

    from fedkin.advice import Advice
    from fedkin.data.inspection import Finding, Inspection
    from fedkin.federation import Client, Federation
    from fedkin.running.experiment import Experiment
    from fedkin.running.init_experiment import DataOptions

# Most columns of a table that a terminal can show.
_WIDEST = 14
# Training settings of an advice: half as many rounds as in a file of `fedkin init`, with as many steps in total.
_TRAINING = {"rounds": 20, "local_steps": 10}

data = typer.Typer(no_args_is_help=True, help="Data sets that others publish: fetch one, or see where to get it.")


# -- init --------------------------------------------------------------------------------------------------------------


def init(
    data: Path = typer.Argument(
        ..., metavar="DATA", help="A .csv or .parquet file, or a folder with one for each client; a .npz file; a "
        "folder of images CLIENT/CLASS/*.png; a dataset that save_to_disk wrote; with --look also an experiment file.",
    ),
    target: str | None = options.TABLE_TARGET,
    client: str | None = options.TABLE_CLIENT,
    time: str | None = options.TABLE_TIME,
    group: str | None = options.TABLE_GROUP,
    person: str | None = options.TABLE_PERSON,
    kind: str | None = options.TABLE_KIND,
    leave_out: str = options.TABLE_LEAVE_OUT,
    decimal: str | None = options.CSV_DECIMAL,
    thousands: str | None = options.CSV_THOUSANDS,
    missing: str = options.CSV_MISSING,
    dates: str | None = options.CSV_DATES,
    out: Path = typer.Option(Path("experiment.toml"), help="The experiment file to write.", metavar="FILE"),
    look: bool = typer.Option(False, "--look", help="Only print sizes, targets and probable errors; write nothing."),
    data_root: Path | None = options.ROOT,
    json: bool = typer.Option(False, "--json", help="With --look: print what it finds as JSON, and nothing else."),
) -> None:  # fmt: skip
    """Write a first experiment file for data, without unique and constant columns; --look only describes the data.

    Examples:
    fedkin init stays.csv --target died --client hospital
    fedkin init stays.csv --look
    fedkin init EXPERIMENT.toml --look
    """
    if json and not look:
        raise ConfigError("--json goes with --look: init writes an experiment file")
    from fedkin.folders import write_new
    from fedkin.running.init_experiment import first_experiment

    given = options.given(
        target=target, client=client, time=time, group=group, person=person, kind=kind,
        leave_out=options.comma_list(leave_out), decimal=decimal, thousands=thousands,
        missing=options.comma_list(missing), dates=dates,
    )  # fmt: skip
    if look:
        look_at(data, given, data_root, json)
        return
    first = first_experiment(data, given)
    write_new(out, first.text.encode(), "name another file: --out")
    print_findings(first.findings)
    say(*first.notes, f"wrote {out}; run it with: fedkin compare {out} --methods local,fedavg,kin --seeds 0,1,2")


# -- init --look: the clients of a table, of other data or of an experiment, and probable errors in them ---------------


_MAX_CLIENTS = 40
_BAR_WIDTH = 20
_HEIGHTS = "▁▂▃▄▅▆▇█"


def look_at(path: Path, given: DataOptions, data_root: Path | None, json: bool) -> None:
    """Print the clients of a table, of other data or of an experiment: sizes, targets, and probable errors."""
    from fedkin.running.init_experiment import check_allowed, first_experiment, inspected_table, kind_of, table_source

    if path.suffix == ".toml":
        from fedkin.running.experiment import load

        check_allowed(given, (), f"{path} is an experiment file, which says this in [data]")
        _print_federation(load(path).federation(data_root or Path("data")), json)
        return
    if kind_of(path) not in ("csv", "parquet"):
        first = first_experiment(path, given)
        assert first.federation is not None
        _print_federation(first.federation, json)
        if not json:
            print_findings(first.findings)
        return
    source = table_source(path, given)
    if "target" in given:
        _print_inspection(inspected_table(source, path)[1], given["target"], json)
    else:
        _print_columns(source.rows(Path())[0], json)


def print_findings(findings: Sequence[Finding], stderr: bool = False) -> None:
    """Print each finding with the columns or clients concerned."""
    for finding in findings:
        say(finding.sentence, stderr=stderr)


def _print_columns(table: pa.Table, json: bool) -> None:
    """Print the columns to choose from, when no target is named."""
    from fedkin.federation.table_values import kinds_of

    rows = []
    for name in table.column_names:
        column = table.column(name)
        kind = next(iter(kinds_of(table.select([name])).values()))
        different = column.drop_null().unique()
        values = [str(value) for value in different.to_pylist()[:3]]
        rows.append({"column": name, "kind": kind, "type": str(column.type), "empty": column.null_count,
                     "different": len(different), "values": values})  # fmt: skip
    if printed_as_json(json, {"rows": table.num_rows, "columns": rows}):
        return
    print_table(
        ("column", "kind", "type", "empty", "different", "such as"),
        [(row["column"], row["kind"], row["type"], f"{row['empty']:,}", f"{row['different']:,}",
          ", ".join(row["values"])) for row in rows],
        right=("empty", "different"),
    )  # fmt: skip
    print_lines([f"{table.num_rows:,} rows. Name the column to predict, and that of the clients: --target, --client"])


def _print_inspection(inspection: Inspection, target: str, json: bool) -> None:
    """Print the clients of a table and its probable errors."""
    goal, encoding = inspection.encoded.target, inspection.encoded.encoding
    clients = [asdict(client) for client in inspection.clients]
    report = {
        "kind": goal.kind, "classes": list(goal.classes), "inputs": list(encoding.names), "clients": clients,
        "findings": [asdict(finding) for finding in inspection.findings],
    }  # fmt: skip
    if printed_as_json(json, report):
        return
    about = f"{goal.kind} of {escaped(target)}"
    if goal.kind == "risk":
        about += f" (event: {escaped(goal.classes[1])})"
    elif goal.classes:
        about += f" ({len(goal.classes)} classes)"
    inputs = f"{len(encoding.names)} inputs of {len(encoding.kinds)} columns"
    head = {"risk": goal.classes[1] if goal.classes else "", "regression": "mean"}.get(goal.kind, "classes")
    empty = [f"{client['missing']:.0%}" for client in clients]
    _print_clients(clients, f"rows, {about}, {inputs}", head, {"empty": empty})
    print_findings(inspection.findings)
    if not inspection.findings:
        from fedkin.data.inspection import CHECKS

        say(f"none of these checks found anything: {', '.join(CHECKS)}")


def _print_federation(federation: Federation, json: bool) -> None:
    """Print the clients of a federation, their sizes and targets, and how much these differ."""
    from fedkin.data.inspection import skew_of

    task, groups = federation.task.kind, federation.planted
    targets = {id: client.train.labels().numpy() for id, client in federation.items()}
    # Pixels of one image are no samples.
    skew = None if task == "segmentation" else skew_of(targets, federation.task.classes)
    facts = [_client_facts(federation, federation[id]) for id in sorted(federation)]
    if printed_as_json(json, {"task": task, "clients": facts, "skew": None if skew is None else skew._asdict()}):
        return
    head = {"risk": "events", "regression": "mean"}.get(task, "classes")
    more = {"group": [groups[client["id"]] for client in facts]} if groups else {}
    _print_clients(facts, f"samples, {task}", head, more)
    if skew is not None and skew.matters:
        text = f"targets differ between clients beyond chance (effect {skew.effect:.2f} of 1)"
        say(f"skew: {text}; furthest from all: {', '.join(skew.apart)}")


def _client_facts(federation: Federation, client: Client) -> dict[str, Any]:
    labels, task = client.train.labels(), federation.task
    facts = {"id": client.id, "train": len(client.train), "test": len(client.test), "seen": client.seen}
    if task.kind == "regression":
        unit = federation.target  # of a table: its numbers are standardised
        values = labels.double() if unit is None else labels.double() * unit.deviation + unit.mean
        return {**facts, "mean": values.mean(0).tolist() if len(labels) else None}
    return {**facts, "classes": labels.reshape(-1).bincount(minlength=task.classes).tolist()}


def _print_clients(
    rows: Sequence[Mapping[str, Any]], about: str, head: str, more: Mapping[str, Sequence[str]]
) -> None:  # fmt: skip
    """Print one line per client: sizes, a bar of its size, events or classes or means, and more columns."""
    train, test = sum(client["train"] for client in rows), sum(client["test"] for client in rows)
    say(f"{len(rows):,} clients, {train:,} training and {test:,} test {about}")
    largest = max([1, *(client["train"] + client["test"] for client in rows)])
    cells = []
    for number, client in enumerate(rows[:_MAX_CLIENTS]):
        id = client["id"] if client.get("seen", True) else f"{client['id']} (unseen)"
        bar = "█" * max(1, round(_BAR_WIDTH * (client["train"] + client["test"]) / largest))
        last = (column[number] for column in more.values())
        cells.append([id, f"{client['train']:,}", f"{client['test']:,}", bar, _target(client), *last])
    print_table(["client", "train", "test", "", head, *more], cells, right=("train", "test", "empty"))
    if len(rows) > _MAX_CLIENTS:
        say(f"... and {len(rows) - _MAX_CLIENTS:,} more clients")


def _target(client: Mapping[str, Any]) -> str:
    """Return a client's means, its events and their share, or its classes as bars; no bar for 0."""
    if (mean := client.get("mean")) is not None:
        return ", ".join(f"{value:.4g}" for value in (mean if isinstance(mean, list) else [mean])[:3])
    classes = client.get("classes") or []
    counts = list(classes.values() if isinstance(classes, dict) else classes)[:60]
    if not sum(counts):
        return ""
    if len(counts) == 2:
        return f"{counts[1]:,} ({counts[1] / sum(counts):.0%})"
    top = len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[round(top * count / max(counts))] if count else " " for count in counts)


# -- advise ------------------------------------------------------------------------------------------------------------


def advise(
    data: Path = typer.Argument(
        ...,
        help="As for fedkin init: tables, a .npz file, images, a saved dataset; or an experiment file.",
        metavar="DATA",
    ),
    target: str | None = options.TABLE_TARGET,
    client: str | None = options.TABLE_CLIENT,
    time: str | None = options.TABLE_TIME,
    group: str | None = options.TABLE_GROUP,
    person: str | None = options.TABLE_PERSON,
    kind: str | None = options.TABLE_KIND,
    leave_out: str = options.TABLE_LEAVE_OUT,
    decimal: str | None = options.CSV_DECIMAL,
    thousands: str | None = options.CSV_THOUSANDS,
    missing: str = options.CSV_MISSING,
    dates: str | None = options.CSV_DATES,
    budget: float | None = typer.Option(
        None,
        help="Minutes in all: to keep to them, fedkin tries fewer folds, rates or rounds.",
        metavar="MINUTES",
    ),
    partners: bool | None = typer.Option(
        None, help="Say what each partner adds. Default: only without a budget, and if at most 6 clients can be judged."
    ),
    seed: int | None = options.SEED,
    changes: list[str] = options.SET,
    data_root: Path | None = options.ROOT,
    out: Path | None = typer.Option(
        None, help="Folder for the advice (default: runs/advice-NAME); the same command continues.", metavar="DIR"
    ),
    json: bool = options.JSON,
) -> None:
    """Who should train with whom, and how sure is that? Judged on held-out training rows; writes an experiment file.

    Examples:
    fedkin advise stays.csv --target died --client hospital
    """
    begun = perf_counter()  # before imports, which take seconds
    from fedkin.advice.recommending import RECOMMENDED, Budget, recommend
    from fedkin.folders import locked
    from fedkin.report import write_report

    limit = None if budget is None else Budget(budget, begun=begun)
    given = options.given(
        target=target, client=client, time=time, group=group, person=person, kind=kind,
        leave_out=options.comma_list(leave_out), decimal=decimal, thousands=thousands,
        missing=options.comma_list(missing), dates=dates,
    )  # fmt: skip
    experiment = _experiment(data, given, changes, seed)
    folder = out if out is not None else Path("runs") / f"advice-{experiment.name}"
    if folder.exists() and not folder.is_dir():
        raise RunError(f"--out {folder}: a file; name a folder")
    root = data_root or Path("data")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), _advice_progress(json, folder) as step:
        advice = recommend(experiment, root, folder, budget=limit, partners=partners, progress=step)
        report = write_report([folder], folder / "report.html")
    if limit is not None and limit.spent > 60 * limit.minutes:
        late = f"took {limit.spent / 60:.1f} minutes, more than the budget of {limit.minutes:g}"
        say(f"{late}; the advice is complete", stderr=True)
    if not printed_as_json(json, advice.to_json()):
        _print_advice(advice, folder / RECOMMENDED, report)


def _print_advice(advice: Advice, experiment: Path, report: Path) -> None:
    say(advice.sentence)
    print_table(advice.heads, advice.rows(), right=[h for at, h in enumerate(advice.heads) if at not in (0, 2)])
    for table in advice.partner_tables():
        if len(table["heads"]) > _WIDEST:
            say(f"{table['title']}: {len(table['rows'])} clients are too many for a terminal; the report has them")
            continue
        say(table["title"])
        print_table(table["heads"], table["rows"], right=table["heads"][1:])
    say(
        advice.why, *advice.notes,
        f"experiment: {experiment}; run it with: fedkin run {experiment}", f"report:  {report}",
    )  # fmt: skip


def _experiment(data: Path, given: DataOptions, changes: list[str], seed: int | None) -> Experiment:
    """Return the experiment in a file, or a first one for data with these options; raises ConfigError."""
    from fedkin.running.experiment import changed_experiment, load
    from fedkin.running.init_experiment import check_allowed, first_experiment

    more = [*changes, *([f"run.seed={seed}"] if seed is not None else [])]
    if data.suffix == ".toml":
        check_allowed(given, (), f"{data} is an experiment file, which says this in [data]")
        return load(data, more)
    first = first_experiment(data, given)
    table = {**first.table, "training": {**first.table["training"], **_TRAINING}}
    print_findings(first.findings, stderr=True)
    return changed_experiment(table, more, str(data))


@contextmanager
def _advice_progress(quiet: bool, folder: Path) -> Iterator[Any]:
    """Show the progress on a terminal, by the yielded function. Ctrl-C keeps the work that was done."""
    console = make_console(stderr=True, soft_wrap=True)
    status = console.status("begun")

    def step(name: str, done: int, total: int) -> None:
        status.update(f"{name}: {done} of {total}")

    before = on_interrupt(signal.default_int_handler)
    try:
        with nullcontext() if quiet or not console.is_terminal else status:
            yield step
    except KeyboardInterrupt:
        console.print(f"stopped; what was done is in {folder}, and the same command continues from it")
        raise
    finally:
        on_interrupt(before)


# -- data fetch, new ---------------------------------------------------------------------------------------------------


@data.command("fetch")
def _fetch(
    name: str | None = typer.Argument(None, help="A data set; without it, all are listed."),
    root: Path = typer.Option(Path("data"), "--data-root", help="Folder that holds the data sets."),
    json: bool = options.JSON,
) -> None:
    """Fetch an open data set below the data root and check its checksum; a download that was cut continues.

    Examples:
    fedkin data fetch
    fedkin data fetch mnist --data-root data
    """
    from fedkin.data.fetching import ORIGINS, fetch

    if name is not None:
        fetch(name, root, say)
        return
    rows = [(name, origin.folder, "fetch" if origin.files else "by hand", origin.where)
            for name, origin in ORIGINS.items()]  # fmt: skip
    if printed_as_json(json, [dict(zip(("source", "folder", "how", "where"), row, strict=True)) for row in rows]):
        return
    print_table(("source", "folder below the data root", "how", "what"), rows)


def new(
    kind: str = typer.Argument(..., help="method, scenario or metric."),
    name: str = typer.Argument(..., help="Its name in settings and tables, such as my-method."),
    out: Path = typer.Option(Path(), help="The folder for the files."),
) -> None:
    """Write a file for a method, scenario or metric of your own, and its test.

    Examples:
    fedkin new method my-method
    fedkin new metric recall-at-5 --out src
    """
    from fedkin.running.new import write_new

    file, test, command = write_new(kind, name, out)
    say(f"wrote {file} and {test}", f"test it:  python -m pytest {test}", f"use it:   {command}")
