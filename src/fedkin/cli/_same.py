"""`fedkin graph TABLE --groups same`: groups of clients whose samples cannot be told apart."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkin.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedkin.graph import Signature, Verdicts

__all__ = ["same"]

# All clients of a group are linked; the graph of more clients than this is not written.
_LARGEST_GRAPH = 2000


def same(table: Path, spec: str, client: str | None, target: str | None, seed: int, out: Path | None) -> Any:
    """(summary as plain data, lines to print) of a table of raw rows or of saved signatures."""
    from fedkin import graph as room

    alpha = room.same_alpha(spec)
    signed, about = room.read_signed(table), "saved signatures"
    if signed is None:
        rows = room.read_rows(table, client or "client", target)
        signed = rows.sign(seed)
        about = f"{len(rows.x)} samples of {rows.x.shape[1]} numbers, target: {rows.target}"
    elif client or target:
        raise ConfigError(f"--client, --target: {table} holds signatures, made from rows before; leave them out")
    verdicts = room.find(signed, alpha=alpha, seed=seed)
    summary: dict[str, Any] = {
        "groups_by": spec,
        "seed": seed,
        "table": about,
        "clients": len(signed),
    } | verdicts.to_json()
    lines = [f"{table.name}: {about}", *verdicts.lines()]
    if out is not None:
        summary["files"] = _write(signed, verdicts, summary, out, table.name, seed)
        lines += [f"wrote {path}" for path in summary["files"]]
    return summary, lines


def _write(
    signed: dict[str, Signature], verdicts: Verdicts, summary: dict[str, Any], out: Path, title: str, seed: int
) -> list[str]:
    from fedkin import graph as room
    from fedkin.graph.picture import draw

    def tree(path: Path) -> None:
        path.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    writers: dict[str, Any] = {"groups.json": tree, "signatures.npz": partial(_signed, signed)}
    if len(verdicts.ids) <= _LARGEST_GRAPH:
        found = room.Graph(verdicts.ids, room.oracle(verdicts.labels), groups=verdicts.groups)
        found = found.tested(verdicts.by_client, verdicts.evidence)
        writers |= {
            "graph.npz": found.save, "graph.graphml": found.to_graphml, "graph.json": found.to_json,
            "edges.csv": found.to_csv, "graph.html": partial(draw, found, title=title, seed=seed),
        }  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, write in writers.items():
            write(out / name)
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from None
    return [str(out / name) for name in writers]


def _signed(signed: dict[str, Signature], path: Path) -> None:
    from fedkin import graph as room

    room.write_signed(path, signed)
