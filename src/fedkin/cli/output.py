"""Print text, tables, JSON and paths: never as markup, and without control characters; stop cleanly on Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

from rich.measure import Measurement
from rich.table import Table

from fedkin.errors import first_few
from fedkin.running.progress import Progress, ProgressOfSeveral, StopFlag, make_console
from fedkin.untrusted import escaped

# The control characters that JSON itself does not escape.
_CONTROL = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_NOTES = 4  # lines of notes below a table


def say(*lines: str, stderr: bool = False) -> None:
    """Print lines unchanged, without wrapping them."""
    console = make_console(stderr=stderr, soft_wrap=True)
    for line in lines:
        console.print(line)


def printed_as_json(as_json: bool, value: Any) -> bool:
    """Print the value as JSON without control characters if `as_json`, and return `as_json`."""
    if as_json:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        print(_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text))
    return as_json


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), wrapped: Sequence[str] | None = None
) -> None:  # fmt: skip
    """Print a table without lines between cells; right: the heads of columns that are aligned to the right.

    wrapped: the columns that may wrap (None: all). If it is given, nothing wraps in a file or a pipe.
    """
    table = Table(box=None, pad_edge=False, collapse_padding=wrapped is not None)
    for head in heads:
        justify: Literal["right", "left"] = "right" if head in right else "left"
        table.add_column(
            escaped(head), justify=justify, no_wrap=wrapped is not None and head not in wrapped, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(escaped, row))
    console = make_console(soft_wrap=wrapped is not None)
    if wrapped is not None and not (console.is_terminal or "COLUMNS" in os.environ):
        console.width = Measurement.get(console, console.options.update_width(10_000), table).maximum
    console.print(table)


def write_run_report(folders: Iterable[Any], out_folder: Path) -> Path:
    """Write the report of these runs as `report.html` in a folder; return its path."""
    from fedkin.report import write_report

    return write_report([Path(folder) for folder in folders], out_folder / "report.html")


def print_lines(lines: Iterable[str]) -> None:
    """Print sentences, wrapped to the width of the terminal."""
    width = make_console().width
    say(*(_wrapped(line, width) for line in lines))


def _wrapped(text: str, width: int) -> str:
    return fill(text, width, subsequent_indent="    ", break_on_hyphens=False)


def print_notes(
    results: Mapping[str, Mapping[int, Any]], before: Iterable[str] = (), after: Iterable[str] = ()
) -> None:
    """Print warnings and the results of group tests, between other notes: at most four lines; the report has all."""
    from fedkin.report.sentence import groups_in_terminal

    warnings: dict[str, list[str]] = {}
    texts: list[str] = []
    for method, by_seed in results.items():
        for seed, result in by_seed.items():
            for text in result.summary.get("warnings") or ():
                warnings.setdefault(text, []).append(f"{method} seed {seed}")
        texts += groups_in_terminal(method, list(by_seed.values()))
    warning_lines = [f"warning: {first_few(runs, 3)}: {text}" for text, runs in warnings.items()]
    width = make_console().width
    blocks = dict.fromkeys(_wrapped(text, width) for text in (*before, *warning_lines, *texts, *after))
    say(*_fitting(list(blocks)))


def _fitting(blocks: Sequence[str]) -> list[str]:
    """The blocks of lines that fit below a table, and how many do not."""
    room = _NOTES if sum(block.count("\n") + 1 for block in blocks) <= _NOTES else _NOTES - 1
    kept = []
    for block in blocks:
        if (lines := block.count("\n") + 1) <= room:
            room -= lines
            kept.append(block)
    if left := len(blocks) - len(kept):
        kept.append(f"and {left} more note{'s' * (left > 1)} in the report")
    return kept


def print_paths(folder: Path, *reports: Path) -> None:
    """Print where records and reports are."""
    say(f"records: {folder}", *(f"report:  {report}" for report in reports))


@contextmanager
def stop_on_signals(folder: Path, again: str | None = None) -> Iterator[StopFlag]:
    """Stop after the current round on Ctrl-C or SIGTERM, immediately on the second; exit status 130.

    again: how to continue (None: with --resume FOLDER).
    """
    from fedkin.running.loop import Stop

    flag = StopFlag()
    console = make_console(stderr=True, soft_wrap=True)
    with flag.on_signals(lambda: console.print("stopping after this round; press Ctrl-C again to stop at once")):
        try:
            yield flag
        except (Stop, KeyboardInterrupt) as stop:
            where = str(stop) if isinstance(stop, Stop) else "stopped at once: the last checkpoint stands"
            flag.close()
            console.print(f"{where}; go on with {again or f'--resume {folder}'}")
            sys.exit(130)


@contextmanager
def run_watchers(folder: Path, quiet: bool, again: str | None = None) -> Iterator[Callable[[str, int, int], Progress]]:
    """As `stop_on_signals`, for several runs; yields a function that returns the progress of the next run."""
    with stop_on_signals(folder, again) as stop:
        yield ProgressOfSeveral(stop, quiet).next
