"""Tables for the terminal and the report of one run or many: one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["write_report"]


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write one self-contained HTML file about these finished runs (methods x seeds); returns its path.

    A folder that holds run folders stands for all of them; if it holds the advice of `fedkin advise`, this comes first.
    Raises RunError for a folder without a finished run.
    """
    from fedkin.records.files import write_bytes
    from fedkin.report.collect import collect
    from fedkin.report.page import answer_in, page

    write_bytes(out, page(collect(runs), answer_in(runs)).encode())
    return out
