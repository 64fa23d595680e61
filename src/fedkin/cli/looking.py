"""`fedkin init --look`: the clients of a table, of other data or of an experiment, and what looks wrong in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkin.cli.output import print_lines, print_table, printed_as_json, say
from fedkin.untrusted import escaped

if TYPE_CHECKING:
    import pyarrow as pa

    from fedkin.data.inspection import Finding, Inspection
    from fedkin.federation import Client, Federation
    from fedkin.running.init_experiment import DataOptions

_MAX_CLIENTS = 40
_BAR_WIDTH = 20
_HEIGHTS = "▁▂▃▄▅▆▇█"


def look_at(path: Path, given: DataOptions, data_root: Path | None, json: bool) -> None:
    """Print the clients of a table, of other data or of an experiment: sizes, targets, and what looks wrong."""
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
    """Print the clients of a table and what looks wrong in it."""
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
    _print_clients(clients, f"rows, {about}, {inputs}", head, ("empty", empty))
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
    _print_clients(
        facts, f"samples, {task}", head, ("group", [groups[client["id"]] for client in facts]) if groups else None
    )
    if skew is not None and skew.matters:
        text = f"targets differ between clients beyond chance (effect {skew.effect:.2f} of 1)"
        say(f"skew: {text}; furthest from all: {', '.join(skew.apart)}")


def _client_facts(federation: Federation, client: Client) -> dict[str, Any]:
    labels, task = client.train.labels(), federation.task
    facts = {"id": client.id, "train": len(client.train), "test": len(client.test), "seen": client.seen}
    if task.kind == "regression":
        return {**facts, "mean": labels.double().mean(0).tolist() if len(labels) else None}
    return {**facts, "classes": labels.reshape(-1).bincount(minlength=task.classes).tolist()}


def _print_clients(
    rows: Sequence[Mapping[str, Any]], about: str, head: str, last: tuple[str, Sequence[str]] | None
) -> None:  # fmt: skip
    """Print one line per client: sizes, a bar of its size, events or classes or means, and a last column."""
    train, test = sum(client["train"] for client in rows), sum(client["test"] for client in rows)
    say(f"{len(rows):,} clients, {train:,} training and {test:,} test {about}")
    largest = max([1, *(client["train"] + client["test"] for client in rows)])
    cells = []
    for number, client in enumerate(rows[:_MAX_CLIENTS]):
        id = client["id"] if client.get("seen", True) else f"{client['id']} (unseen)"
        bar = "█" * max(1, round(_BAR_WIDTH * (client["train"] + client["test"]) / largest))
        more = [last[1][number]] if last else []
        cells.append([id, f"{client['train']:,}", f"{client['test']:,}", bar, _target(client), *more])
    heads = ["client", "train", "test", "", head, *([last[0]] if last else [])]
    print_table(heads, cells, right=("train", "test", "empty"))
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
