"""Predict with an exported model: rows in, one prediction per row out. Needs no fedkin.

Next to this file are a program of the same name (.pt2 needs torch, .onnx needs onnxruntime) and a .json that describes
its inputs and outputs. `fedkin export` copies this file under the name of the model:

    python NAME.py rows.csv                          prints a prediction for each row of a file as in training
    import NAME; NAME.predict({"age": [70, None]})   a frame of pandas or polars, a dict of columns, or arrays
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["about", "arrays_of", "no_embedding", "outputs", "predict"]

_BATCH = 1024
_DAY = datetime.timedelta(days=1)
_START = datetime.datetime(1970, 1, 1)


def predict(rows: Any, file: Path = Path(__file__)) -> Any:
    """Return predictions [n, ...]: class names or labels, the probability of an event, or numbers.

    rows: for a model of a table, its columns by name; else an array [n, ...], or a dict of arrays. Raises ValueError
    for rows that do not fit.
    """
    model, values = about(file), outputs(rows, file)
    if model["task"] == "segmentation":
        return values.argmax(1)
    if model["task"] != "classification":
        return values
    labels = values.argmax(1)
    return np.array(model["classes"])[labels] if model["classes"] else labels


def outputs(rows: Any, file: Path = Path(__file__)) -> Any:
    """Return the program's outputs [n, ...]: for a classification, probabilities [n, classes]."""
    model = about(file)
    arrays, run = arrays_of(rows, model), _program(file)
    count = len(arrays[0])
    if not count:
        raise ValueError("no rows; expected at least one")
    try:
        parts = [run([array[at : at + _BATCH] for array in arrays]) for at in range(0, count, _BATCH)]
    except IndexError:
        if words := no_embedding(dict(zip([one["name"] for one in model["inputs"]], arrays, strict=True))):
            raise ValueError(words) from None
        raise
    return np.concatenate(parts)


def no_embedding(arrays: Mapping[str, Any]) -> str:
    """Return the words for an IndexError of a model that takes token ids or category codes; empty if it takes none."""
    codes = [f"{name} from {x.min()} to {x.max()}" for name, x in arrays.items() if x.dtype.kind == "i" and x.size]
    return f"the model has no embedding for a code; the codes are: {', '.join(codes)}" if codes else ""


@lru_cache
def about(file: Path = Path(__file__)) -> dict[str, Any]:
    """Return the description of the model, from the .json next to this file."""
    content: dict[str, Any] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    return content


@lru_cache
def _program(file: Path) -> Any:
    model = about(file)
    path, names = file.with_name(model["program"]), [one["name"] for one in model["inputs"]]
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))

        def run_onnx(arrays: list[Any]) -> Any:
            for name, array in zip(names, arrays, strict=True):
                if array.dtype.kind == "i" and array.size and array.min() < 0:
                    raise ValueError(f"{name}: expected 0 or more, got {array.min()}, which ONNX counts from the end")
            return session.run(None, dict(zip(names, arrays, strict=True)))[0]

        return run_onnx
    import torch

    module = torch.export.load(path).module()

    def run(arrays: list[Any]) -> Any:
        with torch.no_grad():
            return module(*map(torch.from_numpy, arrays)).numpy()

    return run


def arrays_of(rows: Any, model: Mapping[str, Any]) -> list[Any]:
    """Return the program's input arrays; model: its description from `about`."""
    if model["columns"] is None:
        return [_array(rows, form, len(model["inputs"]) > 1) for form in model["inputs"]]
    columns = {column["name"]: list(_column(rows, column["name"])) for column in model["columns"]}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns have different lengths: {lengths}")
    inputs = [part for column in model["columns"] for part in _encoded(columns[column["name"]], column, model["far"])]
    return [np.stack(inputs, axis=1).astype(np.float32)]


def _encoded(values: list[Any], column: Mapping[str, Any], far: float) -> list[Any]:
    """Encode a column's values: as a number, or 0 or 1 for each category; and, if flagged, whether it is missing."""
    if column["kind"] == "number":
        numbers = np.array([_number(value, column["name"], row) for row, value in enumerate(values)])
        missing = ~np.isfinite(numbers)
        scaled = (numbers - column["mean"]) / (column["spread"] or math.inf)
        inputs = [np.clip(np.where(missing, 0.0, scaled), -far, far)]
    else:
        _need_known_texts(values, column)
        places = {value: number for number, value in enumerate(column["values"])}
        codes = np.array([_code(value, places) for value in values])
        missing = codes < 0
        inputs = [codes == at for at in range(len(places) + 1)]
    return [*inputs, *([missing] if column["flagged"] else [])]


def _need_known_texts(values: list[Any], column: Mapping[str, Any]) -> None:
    """Raise ValueError for numbers, or true and false, where training had texts that these cannot be."""
    known = column["values"]
    given = next((v for v in map(_of_python, values) if isinstance(v, int | float) and not _missing(v)), None)
    if given is None or not known:
        return
    coded = next((text for text in known if re.fullmatch("0[0-9]+", text)), None)
    if coded or not any(text in ("true", "false") or _plain_number(text, None, None) is not None for text in known):
        raise ValueError(f"column {column['name']!r}: expected texts such as {coded or known[0]!r}, got {given}")


def _column(rows: Any, name: str) -> Any:
    try:
        return rows[name]
    except (KeyError, IndexError, TypeError, ValueError):
        raise ValueError(f"no column {name!r}; expected a table with it") from None
    except Exception as error:  # each library has its own types of exceptions
        raise ValueError(f"no column {name!r} ({type(error).__name__}); expected a table with it") from None


def _array(rows: Any, form: Mapping[str, Any], several: bool) -> Any:
    name, shape = form["name"], tuple(form["shape"][1:])
    array = np.asarray(_column(rows, name) if several else rows)
    if array.shape[1:] != shape or not array.ndim:
        raise ValueError(f"{name}: expected an array {form['shape']}, got {list(array.shape)}")
    if form["dtype"] == "int64" and array.dtype.kind not in "iub":
        raise ValueError(f"{name}: expected whole numbers, got {array.dtype}")
    return np.ascontiguousarray(array.astype(form["dtype"]))


def _missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _number(value: Any, name: str, row: int) -> float:
    """Return a value as a number: days since 1970 for dates and times, NaN for a missing value."""
    value = _of_python(value)
    if _missing(value) or (isinstance(value, str) and not value):
        return math.nan
    if isinstance(value, np.datetime64 | np.timedelta64):
        since = value - np.datetime64("1970-01-01") if isinstance(value, np.datetime64) else value
        return float(since / np.timedelta64(1, "us") / 86_400e6)
    if isinstance(value, str):
        value = _read(value, name, row)
    if (time := _since_1970(value)) is not None:
        return float(time / _DAY)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"column {name!r}, row {row}: expected a number, got {type(value).__name__}") from None


def _of_python(value: Any) -> Any:
    """Return a NumPy number or text as a Python object; dates and times stay as they are, with all their digits."""
    return value.item() if isinstance(value, np.generic) and value.dtype.kind not in "mM" else value


def _since_1970(value: Any) -> datetime.timedelta | None:
    """Return the time from 1970 to a date or time, or a duration itself; a time of day is one in 1970. Else None."""
    if isinstance(value, datetime.timedelta):
        return value
    if isinstance(value, datetime.time):
        value = datetime.datetime.combine(_START, value.replace(tzinfo=None))
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, datetime.time())
    if not isinstance(value, datetime.datetime):
        return None
    return (value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)) - _START


def _read(text: str, name: str, row: int, csv_format: Mapping[str, Any] | None = None) -> Any:
    """Parse a cell of a CSV file as a number, a boolean or a date."""
    form, cell = csv_format or {}, text.strip()
    if cell.lower() in ("true", "false"):
        return cell.lower() == "true"
    if (number := _plain_number(cell, form.get("decimal"), form.get("thousands"))) is not None:
        return number
    for read in (
        datetime.datetime.fromisoformat, datetime.time.fromisoformat,
        lambda given: datetime.datetime.strptime(given, form.get("dates") or "%d.%m.%Y").date(),
    ):  # fmt: skip
        try:
            return read(cell)
        except ValueError:
            continue
    wanted = "; write 61.5 and 2026-01-31, or as [data] of the run says (decimal, thousands, dates)" if form else ""
    raise ValueError(f"column {name!r}, row {row}: expected a number or a date, got {text[:40]!r}{wanted}")


def _plain_number(text: str, decimal: str | None, thousands: str | None) -> float | None:
    """Return a number that is written with these signs, None for any other text."""
    if decimal or thousands:
        decimal = decimal or ("," if thousands == "." else ".")
        thousands = thousands or {",": ".", ".": ","}[decimal]
        point, mark = re.escape(decimal), re.escape(thousands)
        whole = rf"(?:[0-9]+|[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+)"
        if not re.fullmatch(rf"[+-]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?", text):
            return None
        text = text.replace(thousands, "").replace(decimal, ".")
    try:
        return float(text)
    except ValueError:
        return None


def _code(value: Any, places: Mapping[str, int]) -> int:
    """Return the index of a category, the number of categories for an unknown one, -1 for a missing value."""
    value = _of_python(value)
    if _missing(value):
        return -1
    text = str(value).lower() if isinstance(value, bool) else str(value)
    whole = text
    if isinstance(value, float) and value.is_integer():
        whole = str(int(value))
    elif isinstance(value, str):
        whole = value.removesuffix(".0")  # pandas writes whole numbers in a column with gaps as "3.0"
    return places.get(text, places.get(whole, len(places)))


def _csv_columns(path: str, model: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Read the model's columns of a CSV file, as the run read its file; raises OSError, ValueError and csv.Error."""
    cells, delimiter = _csv_cells(path, model["csv"]["delimiter"])
    form = {**model["csv"], "delimiter": delimiter}
    columns = {}
    for column in model["columns"] or ():
        if (texts := cells.get(column["name"])) is not None:
            marks = dict(form)
            if column["kind"] == "number" and not (form["decimal"] or form["thousands"]):
                marks["decimal"] = _decimal_of(texts, column["name"], form)
            columns[column["name"]] = [_cell(text, column, row, marks) for row, text in enumerate(texts, 1)]
    return columns


def _csv_cells(path: str, delimiter: str | None) -> tuple[dict[str, Sequence[str]], str]:
    """(the cells of a CSV file by column, the delimiter: if none is given, the most frequent one in the first line)."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8; save it as UTF-8 (in a spreadsheet: CSV UTF-8)") from None
    if (stated := re.match(r'"?sep=(.)"?[ \t]*(\r\n|\r|\n)', text)) is not None:  # as Excel writes it
        text, delimiter = text[stated.end() :], delimiter or stated[1]
    delimiter = delimiter or max(",;\t|", key=text.partition("\n")[0].count)
    head, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row] or [[]]
    if twice := [name for column, name in enumerate(head) if name in head[:column]]:
        raise ValueError(f"two columns are called {twice[0]!r}; rename one")
    if not rows:
        raise ValueError("no rows; expected at least one below the names of the columns")
    for number, row in enumerate(rows, 1):
        if len(row) != len(head):
            raise ValueError(f"row {number}: expected {len(head)} cells, one for each column, got {len(row)}")
    return dict(zip(head, zip(*rows, strict=True), strict=True)), delimiter


def _decimal_of(texts: Sequence[str], name: str, form: Mapping[str, Any]) -> str | None:
    """Return the decimal sign of numbers with commas, as training finds it; None if it is not clear, or not needed.

    Raises ValueError if points may be marks of thousands; beside commas as delimiters they are decimal signs.
    """
    numbers = [text.strip() for text in texts if text not in form["missing"]]
    in_thousands = re.compile(r"[^,]*|[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+")
    if not all(map(in_thousands.fullmatch, numbers)):
        return next((d for d in ",." if all(_plain_number(number, d, None) is not None for number in numbers)), None)
    dotted = [number for number in numbers if "." in number] if form["delimiter"] != "," else []
    if dotted and all(re.fullmatch(r"[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+", number) for number in dotted):
        row = 1 + next(row for row, text in enumerate(texts) if text.strip() == dotted[0])
        meanings = f"may be {dotted[0].replace('.', '')} or {dotted[0]}"
        which = "data.decimal or data.thousands of the run says which"
        raise ValueError(f"column {name!r}, row {row}: {dotted[0]!r} {meanings}; {which}")
    return None


def _cell(text: str, column: Mapping[str, Any], row: int, form: Mapping[str, Any]) -> Any:
    """Return a cell's value: None if it is missing, a number or a date for a column of numbers, else its text."""
    if text in form["missing"] and text not in column["values"]:
        return None
    if column["kind"] == "number":
        return _read(text, column["name"], row, form)
    try:  # training writes truth values as true and false, and dates as 2026-01-31
        written = str(_read(text, column["name"], row, form)).lower()
    except ValueError:
        written = text.strip()
    return written if text not in column["values"] and written in column["values"] else text


def _main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {Path(sys.argv[0]).name} ROWS.csv")
    try:
        predictions = predict(_csv_columns(sys.argv[1], about()))
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror or error}")
    except (ValueError, csv.Error) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    try:
        print("prediction", *(value.item() for value in predictions), sep="\n", flush=True)
    except BrokenPipeError:  # a reader such as `head` has enough; without this, Python's last flush fails again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    _main()
