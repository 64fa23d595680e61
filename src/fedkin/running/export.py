"""A client's model as files that need no fedkin: a program of torch.export or ONNX, with its inputs and outputs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pyarrow.csv import ConvertOptions
from torch import Tensor, nn

from fedkin.data.csv_cells import DATES, CsvFormat
from fedkin.errors import ConfigError, RunError, imported
from fedkin.federation import Scale
from fedkin.federation.table_encoding import Encoding
from fedkin.records import reading
from fedkin.records.files import json_bytes, write_bytes, write_with
from fedkin.running import exported
from fedkin.running.model_loader import Loaded
from fedkin.untrusted import error_text

__all__ = ["ENDINGS", "Answer", "columns_of", "export_model"]

ExportFormat = Literal["torch", "onnx"]
ENDINGS: Mapping[str, str] = {"torch": ".pt2", "onnx": ".onnx"}
_NEEDS = ("onnx", "onnxscript")
_SAYS = {
    "classification": "[n, classes] the probability of each class, in the order of `classes`, or of the labels from 0",
    "risk": "[n] the probability of the event, which is the second of `classes`",
    "regression": "[n] or [n, targets] numbers, in the units of a table's target",
    "segmentation": "[n, classes, height, width]; the largest is the label of a pixel",
}


class Answer(nn.Module):
    """A model with its pre- and postprocessing: stored values in, probabilities or numbers in their units out.

    names: names of the model's inputs, if it takes a dict.
    """

    def __init__(
        self, model: nn.Module, kind: str, scale: Scale | None, names: Sequence[str], mean: float, deviation: float,
        one: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.kind, self.scale, self.names = model, kind, scale, list(names)
        self.mean, self.deviation, self.one = mean, deviation, one

    def forward(self, *given: Tensor) -> Tensor:
        x: Any = given[0]
        if self.names:
            x = dict(zip(self.names, given, strict=True))
        elif self.scale is not None:
            shape = (1, -1) + (1,) * (x.ndim - 2)
            mean, std = (torch.tensor(values).reshape(shape) for values in (self.scale.mean, self.scale.std))
            x = (x / self.scale.divide - mean) / std
        out: Tensor = self.model(x)
        if self.kind == "segmentation":
            return out
        if self.kind == "regression":
            scaled = out * self.deviation + self.mean
            return scaled[:, 0] if self.one else scaled
        shares = torch.softmax(out, 1)
        return shares[:, 1] if self.kind == "risk" else shares


def export_model(models: Loaded, client: str | None, to: ExportFormat, out: Path) -> list[Path]:
    """Write a client's model to `out`, and next to it a .json with its inputs and outputs, and a .py.

    The .py is a copy of `fedkin.running.exported`: it predicts from a frame with any number of rows, without fedkin.
    Returns the three paths. Raises ConfigError for a form that cannot be written here, a file that exists, and inputs
    that are several arrays with bytes among them.
    """
    for name in _NEEDS if to == "onnx" else ():
        imported(name, "to = 'onnx'", "onnx")
    paths = [out, out.with_suffix(".json"), out.with_suffix(".py")]
    if out.suffix != ENDINGS[to]:
        raise ConfigError(f"{out}: expected a name that ends with {ENDINGS[to]}")
    if existing := [path for path in paths if path.exists()]:
        raise ConfigError(f"{existing[0]} exists; name another file")
    client_id = models.client_id(client)
    whole, inputs = _whole(models, client_id)
    program = _exported(whole, inputs)
    if to == "onnx":
        data = _as_onnx(program, [one["name"] for one in inputs])
        write_bytes(out, data)
    else:
        write_with(out, lambda file: torch.export.save(program, file))
    write_bytes(paths[1], json_bytes(_about(models, client_id, out, inputs)))
    write_bytes(paths[2], inspect.getsource(exported).encode())
    return paths


def _whole(models: Loaded, client: str) -> tuple[Answer, list[dict[str, Any]]]:
    """Return (the model with its pre- and postprocessing, its inputs as named in the .json)."""
    task, target, scale = models.task, models.target, models.index.scale(client)
    several = isinstance(task.shape, Mapping)
    if several and scale is not None:
        raise ConfigError("export: inputs are several arrays, some of them bytes; load the model with fedkin.load")
    inputs = [
        {"name": name, "dtype": "int64" if name in task.codes else "float32", "shape": ["n", *shape]}
        for name, shape in task.shapes.items()
    ]
    moments = (0.0, 1.0) if target is None else (target.mean, target.deviation)
    names = list(task.shapes) if several else []
    model = models.model(client).float()
    model.precision = "float32"  # compute in float32 on every machine
    return Answer(model, task.kind, scale, names, *moments, target is not None), inputs


def _exported(whole: Answer, inputs: Sequence[Mapping[str, Any]]) -> torch.export.ExportedProgram:
    types = {"float32": torch.float32, "int64": torch.int64}
    example = tuple(torch.zeros(2, *one["shape"][1:], dtype=types[one["dtype"]]) for one in inputs)
    rows = torch.export.Dim("n", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about itself
        try:
            return torch.export.export(whole.eval(), example, dynamic_shapes=(tuple({0: rows} for _ in inputs),))
        except Exception as error:  # torch raises many types for modules that it cannot trace
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"export: torch cannot follow this model ({reason}); load it with fedkin.load") from None


def _as_onnx(program: torch.export.ExportedProgram, names: Sequence[str]) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            onnx_program = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=list(names), output_names=["y"]
            )
        except Exception as error:  # as many types; the cause names the operation
            reason = " ".join(str(error.__cause__ or error).split())[:200]
            raise ConfigError(f"export: ONNX has no form of this model ({reason}); export it to torch") from None
    assert onnx_program is not None
    return onnx_program.model_proto.SerializeToString()  # type: ignore[no-any-return]


def columns_of(encoding: Encoding) -> list[dict[str, Any]]:
    """Describe the columns of a table for the .json: how each column becomes inputs."""
    return [
        {"name": name, "kind": kind, "flagged": name in encoding.flagged, "values": list(encoding.values.get(name, ()))}
        | ({"mean": encoding.means[name], "spread": encoding.spread(name)} if kind == "number" else {})
        for name, kind in encoding.kinds.items()
    ]


def csv_format_of(models: Loaded) -> dict[str, Any]:
    """Describe how the run read CSV files, for the .json; the usual format if it read none."""
    path, form = models.folder / "experiment.toml", models.index.csv
    if form is None:
        data: Mapping[str, Any] = {}
        if path.exists():
            reading.check_unchanged(path.parent, path.name)
            data = reading.settings_in(path).get("data", {})
        try:
            form = CsvFormat.model_validate({name: data[name] for name in CsvFormat.model_fields if name in data})
        except ValueError as error:
            raise RunError(f"{path}: data: {error_text(error)}; {reading.MEND}") from None
    return {
        "delimiter": form.delimiter, "decimal": form.decimal, "thousands": form.thousands,
        "dates": None if form.dates is None else DATES[form.dates],
        "missing": [*ConvertOptions().null_values, *form.missing],
    }  # fmt: skip


def _about(models: Loaded, client: str, out: Path, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    target = models.target
    columns = None if models.encoding is None else columns_of(models.encoding)
    return {
        "client": client, "task": models.task.kind, "program": out.name, "inputs": list(inputs), "columns": columns,
        "far": Encoding.FAR, "csv": csv_format_of(models),
        "output": _SAYS[models.task.kind], "classes": None if target is None else list(target.classes) or None,
    }  # fmt: skip
