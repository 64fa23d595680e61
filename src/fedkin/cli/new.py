"""`fedkin new`: a first file for a part of one's own, and its test."""

from __future__ import annotations

from pathlib import Path

import typer

from fedkin.cli.output import make_console

__all__ = ["new"]


def new(
    kind: str = typer.Argument(..., help="method, scenario or metric."),
    name: str = typer.Argument(..., help="Its name in settings and tables, such as my-method."),
    out: Path = typer.Option(Path(), "--out", help="The folder for the files."),
) -> None:
    """Write a file for a method, scenario or metric of your own, and its test."""
    from fedkin.running.new import write_new

    file, test, command = write_new(kind, name, out)
    console = make_console(soft_wrap=True)
    console.print(f"wrote {file} and {test}")
    console.print(f"test it:  python -m pytest {test}", markup=False)
    console.print(f"use it:   {command}", markup=False)
