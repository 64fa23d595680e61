"""`fedkin export`."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import typer

from fedkin.cli.output import make_console

__all__ = ["Form", "export"]


class Form(StrEnum):
    """The forms of a model that is exported."""

    torch = "torch"
    onnx = "onnx"


_RUN = typer.Argument(..., help="The folder of a finished run.", metavar="RUN")
_CLIENT = typer.Option(
    None, "--client", help="Whose model; may be left out if all clients have the same one.", metavar="ID"
)
_TO = typer.Option(Form.torch, "--to", help='torch: a program of torch.export. onnx: needs pip install "fedkin[onnx]".')
_OUT = typer.Option(
    None, "--out", help="The file to write, .pt2 or .onnx (default: named after the client).", metavar="FILE"
)


def export(run: Path = _RUN, client: str | None = _CLIENT, to: Form = _TO, out: Path | None = _OUT) -> None:
    """Write a client's model as files that need no fedkin: a frame in, predictions out."""
    from fedkin.running.export import ENDINGS, export_model
    from fedkin.running.model_loader import load

    models = load(run)
    known = models.known(client)
    # A name that Python can import too.
    name = re.sub(r"\W", "_", known if client else "model")
    place = out if out is not None else Path(f"m{name}" if name[0].isdigit() else name).with_suffix(ENDINGS[to.value])
    console = make_console(soft_wrap=True)
    for path in export_model(models, known, to.value, place):
        console.print(f"written: {path}")
