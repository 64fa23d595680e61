"""Nested tables as one level, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["csv_text", "flat"]


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`a.b` for every value, however deep; what is None is left out.

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
    """A line per row under the names of all its values, `a.b` where they are nested; of a list, how long it is."""
    lines = [
        {name: len(value) if isinstance(value, list) else value for name, value in flat(row).items()} for row in rows
    ]
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    return text.getvalue()
