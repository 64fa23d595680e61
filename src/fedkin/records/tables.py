"""Nested tables, flattened to one level and written as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.untrusted import cell

__all__ = ["csv_text", "flat"]


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name every value of a nested table `a.b`, at any depth; None values are left out.

    >>> flat({"round": 3, "bytes": {"up": 8, "down": 9}, "groups": {"ari": None}})
    {'round': 3, 'bytes.up': 8, 'bytes.down': 9}
    """
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value
    return found


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a CSV line per row, with nested values in columns `a.b`; a list is replaced by its length.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    lines = [
        {cell(name): len(value) if isinstance(value, list) else cell(value) for name, value in flat(row).items()}
        for row in rows
    ]
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()
