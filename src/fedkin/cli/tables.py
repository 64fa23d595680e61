"""`fedkin inspect` and `fedkin init`: a look at data of one's own, and a first experiment file for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from fedkin.cli.looking import SHOWN, bar, inspect_experiment, inspect_federation, levels
from fedkin.cli.options import ROOT
from fedkin.cli.screen import as_json, screen
from fedkin.untrusted import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from fedkin.data.inspection import ClientFacts, Finding, Inspection

__all__ = ["init", "inspect", "say", "several"]

_KINDS = ("A .csv or .parquet file, or a folder with one for each client; a .npz file; a folder of images "
          "CLIENT/CLASS/*.png; a dataset that save_to_disk wrote")  # fmt: skip
_DATA = typer.Argument(..., help=f"{_KINDS}.", metavar="DATA")
_LOOKED = typer.Argument(..., help=f"{_KINDS}; or an experiment file (.toml).", metavar="DATA")
_TARGET = typer.Option(
    None, help="The column to predict (tables). Without it, the columns are listed.", metavar="COLUMN"
)
_PREDICTED = typer.Option(
    None, help="The column to predict: needed for tables, and for a dataset without classes.", metavar="COLUMN"
)
_CLIENT = typer.Option(
    None, help="The column of clients; not needed for a folder with a file for each.", metavar="COLUMN"
)
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
    """Look at a table, or at the clients of other data or of an experiment: sizes, targets, and what looks wrong."""
    options = {"target": target, "client": client, "time": time, "group": group, "kind": kind}
    if data.suffix == ".toml":
        inspect_experiment(data, {**options, "leave_out": leave_out}, data_root, json)
        return
    from fedkin.running.first import Asked, first_experiment, inspected_table, kind_of, table_source

    asked = Asked(**options, leave_out=several(leave_out))
    if kind_of(data) not in ("csv", "parquet"):
        first = first_experiment(data, asked)
        assert first.federation is not None
        inspect_federation(first.federation, json)
        if not json:
            say(screen(soft_wrap=True), first.findings)
        return
    source = table_source(data, asked)
    if target is None:
        _columns(source.rows(Path())[0], json)
        return
    _, found = inspected_table(source, data)
    if json:
        print(as_json(_as_dict(found)))
        return
    console = screen(soft_wrap=True)
    console.print(_headline(found, target))
    screen().print(_of_clients(found))
    if len(found.clients) > SHOWN:
        console.print(f"... and {len(found.clients) - SHOWN} more clients")
    say(console, found.findings)
    if not found.findings:
        console.print("nothing looks wrong")


def init(
    data: Path = _DATA,
    target: str | None = _PREDICTED,
    client: str | None = _CLIENT,
    time: str | None = _TIME,
    group: str | None = _GROUP,
    kind: str | None = _KIND,
    leave_out: str = _LEAVE,
    out: Path = _OUT,
) -> None:
    """Write a first experiment file for data. Columns that are row numbers or constant are left out."""
    from fedkin.folders import write_new
    from fedkin.running.first import Asked, first_experiment

    first = first_experiment(data, Asked(target, client, time, group, kind, several(leave_out)))
    write_new(out, first.text.encode(), "name another file: --out")
    console = screen(soft_wrap=True)
    say(console, first.findings)
    for note in first.notes:
        console.print(note)
    console.print(f"wrote {out}; run it with: fedkin compare {out} --methods local,fedavg,kin --seeds 0,1,2")


def several(names: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name for name in names.split(",") if name)


def say(console: Console, findings: Sequence[Finding]) -> None:
    """Print what looks wrong."""
    for finding in findings:
        console.print(f"{finding.kind}: {finding.text}{_named(finding.about)}")


def _columns(table: pa.Table, json: bool) -> None:
    """What there is to choose from, where no target is named."""
    from fedkin.federation.table import kinds_of

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
