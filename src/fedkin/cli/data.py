"""`fedkin init`: look at data and write a first experiment file for them. `fedkin data fetch`: published data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from fedkin.cli.completion import data_set_names
from fedkin.cli.lazy import command_after_import
from fedkin.cli.options import (
    JSON,
    ROOT,
    TABLE_CLIENT,
    TABLE_DATES,
    TABLE_DECIMAL,
    TABLE_GROUP,
    TABLE_KIND,
    TABLE_LEAVE_OUT,
    TABLE_MISSING,
    TABLE_TARGET,
    TABLE_THOUSANDS,
    TABLE_TIME,
    comma_list,
)  # fmt: skip
from fedkin.cli.output import as_json, make_console
from fedkin.errors import ConfigError
from fedkin.untrusted import shown

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from fedkin.data.inspection import ClientFacts, Finding, Inspection
    from fedkin.data.skew import Skew
    from fedkin.federation import Client, Federation
    from fedkin.running.init_experiment import Asked

__all__ = ["data", "init", "print_findings"]

_MAX_CLIENTS = 40
_BAR_WIDTH = 20
_HEIGHTS = "▁▂▃▄▅▆▇█"

data = typer.Typer(no_args_is_help=True, help="Data sets that others publish: fetch one, or see where to get it.")


def init(
    data: Path = typer.Argument(
        ..., metavar="DATA", help="A .csv or .parquet file, or a folder with one for each client; a .npz file; a "
        "folder of images CLIENT/CLASS/*.png; a dataset that save_to_disk wrote; with --look also an experiment file.",
    ),
    target: str | None = TABLE_TARGET,
    client: str | None = TABLE_CLIENT,
    time: str | None = TABLE_TIME,
    group: str | None = TABLE_GROUP,
    kind: str | None = TABLE_KIND,
    leave_out: str = TABLE_LEAVE_OUT,
    decimal: str | None = TABLE_DECIMAL,
    thousands: str | None = TABLE_THOUSANDS,
    missing: str = TABLE_MISSING,
    dates: str | None = TABLE_DATES,
    out: Path = typer.Option(Path("experiment.toml"), help="The experiment file to write.", metavar="FILE"),
    look: bool = typer.Option(False, "--look", help="Only look: sizes, targets and what looks wrong; write nothing."),
    data_root: Path | None = ROOT,
    json: bool = JSON,
) -> None:  # fmt: skip
    """Write a first experiment file for data, or look at them. Columns of row numbers or one value are left out."""
    if json and not look:
        raise ConfigError("--json goes with --look: init writes an experiment file")
    from fedkin.folders import write_new
    from fedkin.running.init_experiment import Asked, first_experiment

    asked = Asked(target, client, time, group, kind, comma_list(leave_out), decimal, thousands, comma_list(missing),
                  dates)  # fmt: skip
    if look:
        _look(data, asked, data_root, json)
        return
    first = first_experiment(data, asked)
    write_new(out, first.text.encode(), "name another file: --out")
    console = make_console(soft_wrap=True)
    print_findings(console, first.findings)
    for note in first.notes:
        console.print(note)
    console.print(f"wrote {out}; run it with: fedkin compare {out} --methods local,fedavg,kin --seeds 0,1,2")


def _look(path: Path, asked: Asked, data_root: Path | None, json: bool) -> None:
    """Print the clients of a table, of other data or of an experiment: sizes, targets, and what looks wrong."""
    if path.suffix == ".toml":
        from fedkin.running.experiment import load

        asked.only((), f"{path} is an experiment file, which says this in [data]")
        _print_federation(load(path).federation(data_root if data_root is not None else Path("data")), json)
        return
    from fedkin.running.init_experiment import first_experiment, inspected_table, kind_of, table_source

    if kind_of(path) not in ("csv", "parquet"):
        first = first_experiment(path, asked)
        assert first.federation is not None
        _print_federation(first.federation, json)
        if not json:
            print_findings(make_console(soft_wrap=True), first.findings)
        return
    source = table_source(path, asked)
    if asked.target is None:
        _print_columns(source.rows(Path())[0], json)
        return
    _print_table_inspection(inspected_table(source, path)[1], asked.target, json)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print what looks wrong, each with the clients that it is about."""
    for finding in findings:
        about = ""
        if len(finding.about) > 1:
            about = f": {', '.join(finding.about[:8])}{', ...' if len(finding.about) > 8 else ''}"
        console.print(f"{finding.kind}: {finding.text}{about}")


def _print_columns(table: pa.Table, json: bool) -> None:
    """Print the columns to choose from, when no target is named."""
    from fedkin.federation.table import kinds_of

    rows = []
    for name in table.column_names:
        column = table.column(name)
        kind = next(iter(kinds_of(table.select([name])).values()))
        values = [str(value) for value in column.unique().to_pylist()[:3]]
        rows.append({"column": name, "kind": kind, "type": str(column.type), "empty": column.null_count,
                     "different": len(column.unique()), "values": values})  # fmt: skip
    if json:
        print(as_json({"rows": table.num_rows, "columns": rows}))
        return
    listing = _new_table("column", "kind", "type", "empty", "different", "such as", right=("empty", "different"))
    for row in rows:
        listing.add_row(row["column"], row["kind"], row["type"], f"{row['empty']:,}", f"{row['different']:,}",
                        ", ".join(row["values"]))  # fmt: skip
    console = make_console()
    console.print(listing)
    console.print(f"{table.num_rows:,} rows. Name the column to predict, and that of the clients: --target, --client")


def _print_table_inspection(inspection: Inspection, target: str, json: bool) -> None:
    """Print the clients of a table and what looks wrong in it."""
    goal, encoding, clients = inspection.encoded.target, inspection.encoded.encoding, inspection.clients
    if json:
        print(as_json({
            "kind": goal.kind, "classes": list(goal.classes), "inputs": list(encoding.names),
            "clients": [{"id": one.id, "train": one.train, "test": one.test, "classes": dict(one.classes),
                         "mean": one.mean, "missing": one.missing} for one in clients],
            "findings": [{"kind": one.kind, "text": one.text, "about": list(one.about)}
                         for one in inspection.findings],
        }))  # fmt: skip
        return
    about = f"{goal.kind} of {shown(target)}"
    if goal.kind == "risk":
        about += f" (event: {shown(goal.classes[1])})"
    elif goal.classes:
        about += f" ({len(goal.classes)} classes)"
    train, test = sum(one.train for one in clients), sum(one.test for one in clients)
    console = make_console(soft_wrap=True)
    console.print(
        f"{len(clients)} clients, {train:,} training and {test:,} test rows, {about}, {len(encoding.names)} inputs of "
        f"{len(encoding.kinds)} columns"
    )
    head = {"risk": goal.classes[1] if goal.classes else "", "regression": "mean"}.get(goal.kind, "classes")
    listing = _new_table("client", "train", "test", "", head, "empty", right=("train", "test", head, "empty"))
    largest = max(one.train + one.test for one in clients)
    for one in clients[:_MAX_CLIENTS]:
        bar = _size_bar(one.train + one.test, largest)
        listing.add_row(one.id, f"{one.train:,}", f"{one.test:,}", bar, _target_of_rows(one), f"{one.missing:.0%}")
    make_console().print(listing)
    _print_left_out_count(console, len(clients))
    print_findings(console, inspection.findings)
    if not inspection.findings:
        from fedkin.data.inspection import CHECKS

        console.print(f"none of these checks found anything: {', '.join(CHECKS)}")


def _target_of_rows(client: ClientFacts) -> str:
    """Return a client's events and their share, its classes as bars, or its mean."""
    if client.mean is not None:
        return f"{client.mean:.4g}"
    counts = list(client.classes.values())
    return _events(counts) if len(counts) == 2 else _class_bars(counts)


def _print_federation(federation: Federation, json: bool) -> None:
    """Print the clients of a federation, their sizes and targets, and how much these differ."""
    skew = _skew(federation)
    facts = [_client_facts(federation, federation[id]) for id in sorted(federation)]
    task = federation.task.kind
    if json:
        print(as_json({"task": task, "clients": facts, "skew": None if skew is None else skew._asdict()}))
        return
    console = make_console(soft_wrap=True)
    train, test = sum(one["train"] for one in facts), sum(one["test"] for one in facts)
    console.print(f"{len(facts):,} clients, {train:,} training and {test:,} test samples, {task}")
    head, groups = {"risk": "events", "regression": "mean"}.get(task, "classes"), federation.planted
    heads = ("client", "train", "test", "", head, *(["group"] if groups else []))
    listing = _new_table(*heads, right=("train", "test"))
    largest = max(one["train"] + one["test"] for one in facts)
    for one in facts[:_MAX_CLIENTS]:
        name = one["id"] if one["seen"] else f"{one['id']} (unseen)"
        group = [str(groups.get(one["id"], ""))] if groups else []
        bar = _size_bar(one["train"] + one["test"], largest)
        listing.add_row(name, f"{one['train']:,}", f"{one['test']:,}", bar, _target_of_samples(task, one), *group)
    make_console().print(listing)
    _print_left_out_count(console, len(facts))
    if skew is not None and skew.matters:
        text = f"targets differ between clients beyond chance (effect {skew.effect:.2f} of 1)"
        console.print(f"skew: {text}; furthest from all: {', '.join(skew.apart)}")


def _client_facts(federation: Federation, client: Client) -> dict[str, Any]:
    labels, task = client.train.labels(), federation.task
    facts = {"id": client.id, "train": len(client.train), "test": len(client.test), "seen": client.seen}
    if task.kind == "regression":
        return {**facts, "mean": labels.double().mean(0).tolist() if len(labels) else None}
    return {**facts, "classes": labels.reshape(-1).bincount(minlength=task.classes).tolist()}


def _skew(federation: Federation) -> Skew | None:
    from fedkin.data.skew import of_classes, of_numbers

    labels = {id: client.train.labels() for id, client in federation.items()}
    if federation.task.kind == "regression":
        return of_numbers({id: y[:, 0].numpy() for id, y in labels.items()})
    if not federation.task.labels:  # pixels of one image are no samples
        return None
    return of_classes({id: y.bincount(minlength=federation.task.classes).numpy() for id, y in labels.items()})


def _target_of_samples(task: str, facts: dict[str, Any]) -> str:
    if task == "regression":
        return "" if facts["mean"] is None else ", ".join(f"{value:.4g}" for value in facts["mean"][:3])
    counts = facts["classes"]
    if not sum(counts):
        return ""
    return _events(counts) if task == "risk" else _class_bars(counts[:60])


def _new_table(*heads: str, right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left")
    return table


def _print_left_out_count(console: Console, clients: int) -> None:
    if clients > _MAX_CLIENTS:
        console.print(f"... and {clients - _MAX_CLIENTS:,} more clients")


def _size_bar(size: int, largest: int) -> str:
    return "█" * max(1, round(_BAR_WIDTH * size / max(largest, 1)))


def _class_bars(counts: list[int]) -> str:
    """Return counts as bars beside each other; no bar for 0."""
    top = len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[round(top * count / max(counts))] if count else " " for count in counts)


def _events(counts: Sequence[int]) -> str:
    return f"{counts[1]:,} ({counts[1] / sum(counts):.0%})"


@data.command("fetch", cls=command_after_import("fedkin.data.fetching"))
def _fetch(
    name: str | None = typer.Argument(
        None, help="A data set; without it, all are listed.", autocompletion=data_set_names
    ),
    root: Path = typer.Option(Path("data"), "--data-root", help="Folder that holds the data sets."),
    json: bool = JSON,
) -> None:
    """Fetch an open data set below the data root and check its checksum; a download that was cut continues."""
    from fedkin.data.fetching import fetch
    from fedkin.data.origins import ORIGINS

    if name is not None:
        fetch(name, root, make_console(soft_wrap=True).print)
        return
    rows = [(name, origin.folder, "fetch" if origin.files else "by hand", origin.where)
            for name, origin in ORIGINS.items()]  # fmt: skip
    if json:
        print(as_json([dict(zip(("source", "folder", "how", "where"), row, strict=True)) for row in rows]))
        return
    table = Table("source", "folder below the data root", "how", "what", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    make_console().print(table)
