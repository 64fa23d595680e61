"""Numbers of tables in words, and rows of Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.report.units import megabytes

__all__ = ["line", "number", "signed_megabytes"]


def number(value: float, share: bool, sign: str = "") -> str:
    """Return a figure, of a share in per cent.

    >>> number(0.1234, True, "+"), number(0.1234, False)
    ('+12.3', '0.123')
    """
    return f"{100 * value:{sign}.1f}" if share else f"{value:{sign}.3f}"


def line(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def signed_megabytes(count: float) -> str:
    """Return a difference of bytes with its sign."""
    return ("+" if count > 0 else "-" if count < 0 else "") + megabytes(abs(count))
