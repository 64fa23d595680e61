"""`fedkin inspect` and `fedkin init`: a look at tables, and a first experiment file for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from fedkin.cli.looking import SHOWN, bar, inspect_experiment, levels
from fedkin.cli.options import ROOT
from fedkin.cli.screen import as_json, screen
from fedkin.errors import ConfigError
from fedkin.untrusted import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from fedkin.data.inspection import ClientFacts, Inspection
    from fedkin.data.sources._table import TableSource
    from fedkin.federation.frame import Reading

__all__ = ["first_experiment", "init", "inspect"]

_DATA = typer.Argument(..., help="A .csv or .parquet file, or a folder with one for each client.", metavar="DATA")
_LOOKED = typer.Argument(
    ...,
    help="A .csv or .parquet file, a folder with one for each client, or an experiment file (.toml).",
    metavar="DATA",
)
_TARGET = typer.Option(None, help="The column to predict. Without it, the columns are listed.", metavar="COLUMN")
_CLIENT = typer.Option(None, help="The column of clients; not needed for a folder.", metavar="COLUMN")
_TIME = typer.Option(None, help="A column of dates or times: each client's latest rows are tested.", metavar="COLUMN")
_GROUP = typer.Option(None, help="The column of known groups of clients.", metavar="COLUMN")
_KIND = typer.Option(None, help="classification, risk or regression. Default: found.", metavar="KIND")
_LEAVE = typer.Option("", help="Columns that are no inputs.", metavar="COLUMN,COLUMN")
_OUT = typer.Option(Path("experiment.toml"), help="The experiment file to write.", metavar="FILE")


def inspect(
    data: Path = _LOOKED,
    target: str | None = _TARGET,
    client: str | None = _CLIENT,
    time: str | None = _TIME,
    group: str | None = _GROUP,
    kind: str | None = _KIND,
    leave_out: str = _LEAVE,
    data_root: Path | None = ROOT,
    json: bool = typer.Option(False, "--json", help="Print the facts as JSON, and nothing else."),
) -> None:
    """Look at a table, or at the clients of an experiment file: their sizes and targets, and what looks wrong."""
    if data.suffix == ".toml":
        options = {"target": target, "client": client, "time": time, "group": group, "kind": kind}
        inspect_experiment(data, {**options, "leave_out": leave_out}, data_root, json)
        return
    source = _source(data, target or "", client, time, group, kind, leave_out)
    if target is None:
        _columns(source.rows(Path())[0], json)
        return
    table, owner = source.table(Path())
    _, found = _inspected(source, table, owner, data)
    if json:
        print(as_json(_as_dict(found)))
        return
    console = screen(soft_wrap=True)
    console.print(_headline(found, target))
    screen().print(_of_clients(found))
    if len(found.clients) > SHOWN:
        console.print(f"... and {len(found.clients) - SHOWN} more clients")
    for finding in found.findings:
        console.print(f"{finding.kind}: {finding.text}{_named(finding.about)}")
    if not found.findings:
        console.print("nothing looks wrong")


def init(
    data: Path = _DATA,
    target: str = typer.Option(..., help="The column to predict.", metavar="COLUMN"),
    client: str | None = _CLIENT,
    time: str | None = _TIME,
    group: str | None = _GROUP,
    kind: str | None = _KIND,
    leave_out: str = _LEAVE,
    out: Path = _OUT,
) -> None:
    """Write a first experiment file for a table. Columns that are row numbers or constant are left out."""
    from fedkin.folders import write_new

    text, found = first_experiment(data, target, client, time, group, kind, leave_out)
    write_new(out, text.encode(), "name another file: --out")
    console = screen(soft_wrap=True)
    for finding in found.findings:
        console.print(f"{finding.kind}: {finding.text}{_named(finding.about)}")
    console.print(f"wrote {out}; run it with: fedkin compare {out} --methods local,fedavg,kin --seeds 0,1,2")


def first_experiment(
    data: Path, target: str, client: str | None, time: str | None, group: str | None, kind: str | None, leave_out: str
) -> tuple[str, Inspection]:
    """The text of a first experiment file for a table, and what was found in the table."""
    from fedkin.data.inspection import without

    source = _source(data, target, client, time, group, kind, leave_out)
    table, owner = source.table(Path())
    reading, found = _inspected(source, table, owner, data)
    return _experiment(data, source, without(reading, found), found), found


def _source(
    data: Path, target: str, client: str | None, time: str | None, group: str | None, kind: str | None, leave_out: str
) -> TableSource:
    """The source that reads this path."""
    from fedkin.data.sources.csv import Csv
    from fedkin.data.sources.parquet import Parquet
    from fedkin.settings import parse

    names = [path.name for path in data.iterdir()] if data.is_dir() else [data.name]
    options = {"path": str(data.absolute()), "target": target, "client": client, "time": time, "group": group,
               "kind": kind, "leave_out": [name for name in leave_out.split(",") if name]}  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    sources: list[Any] = [parse(each, given, "data") for each in (Csv, Parquet)]
    for source in sources:
        if any(name.endswith(source.endings) for name in names):
            found: TableSource = source
            return found
    expected = ", ".join(ending for source in sources for ending in source.endings)
    raise ConfigError(f"{data}: expected a file, or a folder of files, that ends with {expected}")


def _inspected(source: TableSource, table: pa.Table, owner: str, data: Path) -> tuple[Reading, Inspection]:
    from fedkin.data.inspection import inspect as inspected

    reading = source.reading(owner)
    return reading, inspected(table, reading, str(data))


def _columns(table: pa.Table, json: bool) -> None:
    """What there is to choose from, where no target is named."""
    from fedkin.federation.encoding import kinds_of

    rows = []
    for name in table.column_names:
        column = table.column(name)
        values = column.unique().to_pylist()[:3]
        kind = next(iter(kinds_of(table.select([name])).values()))
        rows.append({"column": name, "kind": kind, "type": str(column.type), "empty": column.null_count,
                     "different": len(column.unique()), "values": [str(value) for value in values]})  # fmt: skip
    if json:
        print(as_json({"rows": table.num_rows, "columns": rows}))
        return
    console = screen()
    made = Table(box=None, pad_edge=False)
    for head in ("column", "kind", "type", "empty", "different", "such as"):
        made.add_column(head, justify="right" if head in ("empty", "different") else "left")
    for row in rows:
        made.add_row(row["column"], row["kind"], row["type"], f"{row['empty']:,}", f"{row['different']:,}",
                     ", ".join(row["values"]))  # fmt: skip
    console.print(made)
    console.print(f"{table.num_rows:,} rows. Name the column to predict, and that of the clients: --target, --client")


def _headline(found: Inspection, target: str) -> str:
    told, clients = found.encoded.target, len(found.clients)
    train, test = (sum(getattr(one, part) for one in found.clients) for part in ("train", "test"))
    what = f"{told.kind} of {shown(target)}"
    if told.kind == "risk":
        what += f" (event: {shown(told.classes[1])})"
    elif told.classes:
        what += f" ({len(told.classes)} classes)"
    inputs = f"{len(found.encoded.encoding.names)} inputs of {len(found.encoded.encoding.kinds)} columns"
    return f"{clients} clients, {train:,} training and {test:,} test rows, {what}, {inputs}"


def _of_clients(found: Inspection) -> Table:
    told = found.encoded.target
    last = {"risk": told.classes[1] if told.classes else "", "classification": "classes", "regression": "mean"}[
        told.kind
    ]
    made = Table(box=None, pad_edge=False)
    for head in ("client", "train", "test", "", last, "empty"):
        made.add_column(head, justify="left" if head in ("client", "") else "right")
    largest = max(one.train + one.test for one in found.clients)
    for one in found.clients[:SHOWN]:
        size = bar(one.train + one.test, largest)
        made.add_row(one.id, f"{one.train:,}", f"{one.test:,}", size, _said(one), f"{one.missing:.0%}")
    return made


def _said(one: ClientFacts) -> str:
    """A client's targets: events and their share, the classes' shares as bars, or the mean."""
    if one.mean is not None:
        return f"{one.mean:.4g}"
    counts = list(one.classes.values())
    if len(counts) == 2:
        return f"{counts[1]:,} ({counts[1] / sum(counts):.0%})"
    return levels(counts)


def _named(about: tuple[str, ...]) -> str:
    """The clients that a finding is about, if it does not name them itself."""
    return f": {', '.join(about[:8])}{', ...' if len(about) > 8 else ''}" if len(about) > 1 else ""


def _as_dict(found: Inspection) -> dict[str, Any]:
    return {
        "kind": found.encoded.target.kind, "classes": list(found.encoded.target.classes),
        "inputs": list(found.encoded.encoding.names),
        "clients": [{"id": one.id, "train": one.train, "test": one.test, "classes": dict(one.classes),
                     "mean": one.mean, "missing": one.missing} for one in found.clients],
        "findings": [{"kind": one.kind, "text": one.text, "about": list(one.about)} for one in found.findings],
    }  # fmt: skip


def _experiment(data: Path, source: TableSource, reading: Reading, found: Inspection) -> str:
    """The text of an experiment file."""
    import tomli_w

    wanted = {"source": source.source, "path": str(data.absolute()), "target": reading.target, "client": source.client,
              "time": reading.time, "group": reading.group, "kind": found.encoded.target.kind,
              "leave_out": list(reading.leave_out) or None}  # fmt: skip
    sizes = sorted(one.train for one in found.clients)
    table = {
        "name": data.name.split(".")[0] or "tables",
        "data": {name: value for name, value in wanted.items() if value is not None},
        "scenario": {"name": "natural"},
        "model": {"name": "mlp", "hidden": [32]},
        "training": {"rounds": 40, "local_steps": 5, "batch_size": min(32, max(4, sizes[len(sizes) // 2])), "lr": 0.1},
        "method": {"name": "kin"},
        "run": {"mode": "stacked"},
    }
    notes = [f"# {finding.kind}: {shown(finding.text)}" for finding in found.findings]
    head = [
        "# A first experiment, written by fedkin init. The rate is a guess: `fedkin tune` finds a better one.",
        *notes,
    ]
    return "\n".join(head) + "\n" + tomli_w.dumps(table)
