"""A client's model as files that need no fedkin: a program of torch.export or ONNX, with its inputs and outputs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedkin.errors import ConfigError, imported
from fedkin.federation import Scale
from fedkin.federation.table import Encoding
from fedkin.learning.net import BodyHead
from fedkin.records.files import json_bytes, write_bytes, write_with
from fedkin.running import exported
from fedkin.running.model_loader import Loaded

__all__ = ["ENDINGS", "Answer", "Columns", "export_model"]

Form = Literal["torch", "onnx"]
ENDINGS: Mapping[str, str] = {"torch": ".pt2", "onnx": ".onnx"}
_NEEDS = ("onnx", "onnxscript")
_SAYS = {
    "classification": "[n, classes] the probability of each class, in the order of `classes`, or of the labels from 0",
    "risk": "[n] the probability of the event, which is the second of `classes`",
    "regression": "[n] or [n, targets] numbers, in the units of a table's target",
    "segmentation": "[n, classes, height, width]; the largest is the label of a pixel",
}


class Columns(nn.Module):
    """An `Encoding` of numbers [n, k] (NaN: missing) and categories [n, m] as inputs [n, d].

    A category is its place among the values that the encoding has a column for, one more for any other value, and -1
    for a missing one.
    """

    means: Tensor
    deviations: Tensor
    kept: Tensor
    column: Tensor
    value: Tensor
    order: Tensor

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.numbers = [name for name, kind in encoding.kinds.items() if kind == "number"]
        self.categories = [name for name, kind in encoding.kinds.items() if kind == "category"]
        means = [encoding.means[name] for name in self.numbers]
        # A column that is constant but for rounding has nothing to say.
        deviations = [encoding.spread(name) for name in self.numbers]
        self._keep("means", means, torch.float64)
        self._keep("deviations", [each or 1.0 for each in deviations], torch.float64)
        self._keep("kept", [float(each > 0) for each in deviations], torch.float64)
        codes = [
            (at, value)
            for at, name in enumerate(self.categories)
            for value in [*range(len(encoding.values[name]) + 1), *([-1] if name in encoding.flagged else [])]
        ]
        self._keep("column", [at for at, _ in codes], torch.int64)
        self._keep("value", [value for _, value in codes], torch.int64)
        self._keep("order", self._order(encoding), torch.int64)
        self.far = encoding.FAR

    def _keep(self, name: str, values: Sequence[float], dtype: torch.dtype) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=dtype))

    def _order(self, encoding: Encoding) -> list[int]:
        """Where each input is among all numbers, all their flags, and all values of categories."""
        count, order = len(self.numbers), list[int]()
        number, value = 0, 2 * count
        for name, kind in encoding.kinds.items():
            if kind == "number":
                order += [number, *([count + number] if name in encoding.flagged else [])]
                number += 1
            else:
                size = len(encoding.values[name]) + 1 + (name in encoding.flagged)
                order += range(value, value + size)
                value += size
        return order

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        present = torch.isfinite(numbers)
        scaled = (torch.where(present, numbers, self.means) - self.means) / self.deviations * self.kept
        has = torch.eq(categories[:, self.column], self.value)
        parts = [scaled.clamp(-self.far, self.far).float(), (~present).float(), has.float()]
        return torch.cat(parts, 1)[:, self.order]


class Answer(nn.Module):
    """A model with what comes before and after it: stored values in, probabilities or numbers in their units out.

    names: of the model's inputs, if it takes a dict of them.
    """

    def __init__(
        self, model: nn.Module, kind: str, before: Columns | Scale | None, names: Sequence[str], mean: float,
        deviation: float, one: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.kind, self.names = model, kind, list(names)
        self.columns = before if isinstance(before, Columns) else None
        self.scale = before if isinstance(before, Scale) else None
        self.mean, self.deviation, self.one = mean, deviation, one

    def forward(self, *given: Tensor) -> Tensor:
        x: Any = given[0]
        if self.columns is not None:
            x = self.columns(*given)
        elif self.names:
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


def export_model(models: Loaded, client: str | None, to: Form, out: Path) -> list[Path]:
    """Write a client's model to `out`, and beside it a .json with its inputs and outputs, and a .py.

    The .py is `fedkin.running.exported`: with it, a frame goes in and predictions come out, and no fedkin is needed.
    Any number of rows can go in. Returns the three paths. Raises ConfigError for a form that cannot be written here, a
    file that exists, and inputs that are several arrays with bytes among them.
    """
    for name in _NEEDS if to == "onnx" else ():
        imported(name, "--to onnx", "onnx")
    paths = [out, out.with_suffix(".json"), out.with_suffix(".py")]
    if out.suffix != ENDINGS[to]:
        raise ConfigError(f"--out {out}: expected a name that ends with {ENDINGS[to]}")
    if existing := [path for path in paths if path.exists()]:
        raise ConfigError(f"--out {out}: {existing[0]} exists; name another file")
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
    """(the model with what comes before and after, its inputs as the .json names them)."""
    task, target, scale = models.task, models.target, models.index.scale(client)
    several = isinstance(task.shape, Mapping)
    if several and scale is not None:
        raise ConfigError("export: inputs are several arrays, some of them bytes; load the model with fedkin.load")
    before: Columns | Scale | None = scale
    inputs = [
        {"name": name, "dtype": "int64" if name in task.codes else "float32", "shape": ["n", *shape]}
        for name, shape in task.shapes.items()
    ]
    if models.encoding is not None:
        before = Columns(models.encoding)
        each = (("numbers", "float64", before.numbers), ("categories", "int64", before.categories))
        inputs = [{"name": name, "dtype": dtype, "shape": ["n", len(of)]} for name, dtype, of in each]
    moments = (0.0, 1.0) if target is None else (target.mean, target.deviation)
    names = list(task.shapes) if several else []
    model = models.model(client).float()
    if isinstance(model, BodyHead):
        model.precision = "float32"  # float32, on whatever machine the program runs
    return Answer(model, task.kind, before, names, *moments, target is not None), inputs


def _exported(whole: Answer, inputs: Sequence[Mapping[str, Any]]) -> torch.export.ExportedProgram:
    types = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}
    example = tuple(torch.zeros(2, *one["shape"][1:], dtype=types[one["dtype"]]) for one in inputs)
    rows = torch.export.Dim("n", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        try:
            return torch.export.export(whole.eval(), example, dynamic_shapes=(tuple({0: rows} for _ in inputs),))
        except Exception as error:  # torch raises many kinds for modules that it cannot follow
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"export: torch cannot follow this model ({reason}); load it with fedkin.load") from None


def _as_onnx(program: torch.export.ExportedProgram, names: Sequence[str]) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx_program = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=list(names), output_names=["y"]
        )
    assert onnx_program is not None
    return onnx_program.model_proto.SerializeToString()  # type: ignore[no-any-return]


def _about(models: Loaded, client: str, out: Path, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    encoding, target = models.encoding, models.target
    columns = None if encoding is None else [
        {"name": name, "kind": kind, "values": list(encoding.values.get(name, ()))}
        for name, kind in encoding.kinds.items()
    ]  # fmt: skip
    return {
        "client": client, "task": models.task.kind, "program": out.name, "inputs": list(inputs), "columns": columns,
        "output": _SAYS[models.task.kind], "classes": None if target is None else list(target.classes) or None,
    }  # fmt: skip
