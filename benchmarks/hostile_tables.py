"""Generated tables in the notations that people use: fedkin and pandas must agree on values, counts and clients.

python benchmarks/hostile_tables.py [--tables 20000] [--seed 0] [--seconds 300] [--found DIR]

Each table is written as CSV (delimiter, decimal sign, thousands, units, dates, quotes, missing values, byte order mark,
line ends) or as Parquet (types of every kind). pandas reads it with the settings it was written with; fedkin detects
these settings, or gets them. A table passes if all values agree, if fedkin notes that a column stays text, or if it
refuses the file. Other tables are stored in DIR, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import csv
import io
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fedkin.data.sources.tables import Csv, Parquet
from fedkin.data.table_files import code_like, column_notes
from fedkin.errors import FedkinError
from fedkin.federation.table_values import numbers, texts

SITES = (
    ["north", "south", "east"],
    ["1", "2", "10"],
    ["01", "1", "007"],
    ["Zürich", "São Paulo", "O'Hare, IL"],
    ["a;b", "c|d", "e f"],
)
WORDS = ("icu", "er", "a, b", 'say "no"', "two\nlines", "ä;ö", "x|y", "Ja", "nein", "> 89", "1-2", "tab\there")
KINDS = ("whole", "money", "decimal", "tiny", "huge", "signed", "code", "word", "date", "truth", "gaps", "long")


def column(kind: str, count: int, rng: np.random.Generator) -> list[Any]:
    """Values of a kind; None for missing values."""
    draw: dict[str, Any] = {
        "whole": lambda: int(rng.integers(0, 200)), "money": lambda: int(rng.integers(1, 10**7)),
        "decimal": lambda: round(float(rng.normal(50, 30)), int(rng.integers(1, 4))),
        "tiny": lambda: float(f"{rng.random() * 1e-9:.4g}"), "huge": lambda: float(f"{rng.random() * 1e15:.4g}"),
        "signed": lambda: int(rng.integers(-5000, 5000)), "code": lambda: f"{rng.integers(1000):03d}",
        "word": lambda: WORDS[rng.integers(len(WORDS))],
        "date": lambda: pd.Timestamp("2020-01-01") + pd.Timedelta(days=int(rng.integers(2000))),
        "truth": lambda: bool(rng.integers(2)), "gaps": lambda: round(float(rng.random() * 100), 1),
        "long": lambda: int(rng.integers(2**53, 2**62)),
    }  # fmt: skip
    share = {"gaps": 0.5, "long": 0.0}.get(kind, float(rng.choice([0.0, 0.0, 0.1])))
    return [None if rng.random() < share else draw[kind]() for _ in range(count)]


def spelt(value: Any, how: dict[str, Any]) -> str:
    """A value as it is written in a CSV file."""
    if value is None:
        return str(how["missing"])
    if isinstance(value, pd.Timestamp):
        return value.strftime(how["date"])
    if isinstance(value, bool):
        return how["truth"][value]
    if isinstance(value, str):
        return value
    plain = repr(value)
    sign, plain = ("-", plain[1:]) if plain[0] == "-" else ("", plain)
    whole, point, rest = plain.partition(".")
    if how["thousands"] and "e" not in plain and abs(value) < 10**12:
        whole = f"{int(whole):,}".replace(",", how["thousands"])
    return sign + whole + (how["decimal"] if point else "") + rest


def ways(rng: np.random.Generator) -> dict[str, Any]:
    """A random format of a CSV file."""
    decimal = str(rng.choice([".", ".", ","]))
    marks = ["", "", " ", "'", "," if decimal == "." else "."]
    thousands, delimiter = str(rng.choice(marks)), [",", ",", ";", "\t", "|"][rng.integers(5)]
    # If commas separate cells, fedkin takes points for decimal signs unless it is told otherwise.
    told = bool(rng.random() < 0.3) or (thousands == "." and delimiter == ",")
    return {
        "decimal": decimal, "thousands": thousands, "delimiter": delimiter, "told": told,
        "missing": str(rng.choice(["", "NA", "NaN", "null", "N/A"])), "date": str(rng.choice(["%Y-%m-%d", "%d.%m.%Y"])),
        "truth": [("false", "true"), ("False", "True"), ("0", "1")][rng.integers(3)],
        "quoting": int(rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])), "mark": bool(rng.random() < 0.2),
        "end": str(rng.choice(["\n", "\r\n"])), "sep": bool(rng.random() < 0.1),
    }  # fmt: skip


def generated(rng: np.random.Generator) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """(columns by name, the kind of each), with the clients in `site` and a target in `y`."""
    count = int(rng.integers(6, 60))
    sites = SITES[rng.integers(len(SITES))]
    columns: dict[str, list[Any]] = {"site": [sites[rng.integers(len(sites))] for _ in range(count)]}
    columns["y"] = [int(value) for value in rng.permutation(np.arange(count) % 2)]
    kinds = {"site": "site", "y": "whole"}
    for number in range(int(rng.integers(1, 7))):
        kind = str(rng.choice(KINDS))
        name = str(rng.choice([f"{kind}{number}", f"{kind} {number}, mean", f"ü{number}"]))
        columns[name], kinds[name] = column(kind, count, rng), kind
    return columns, kinds


def write_csv(path: Path, columns: dict[str, list[Any]], how: dict[str, Any]) -> None:
    """Write the columns in this format."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=how["delimiter"], quoting=how["quoting"], lineterminator=how["end"])
    if how["sep"]:
        out.write(f"sep={how['delimiter']}{how['end']}")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([spelt(value, how) for value in row])
    path.write_bytes(out.getvalue().encode("utf-8-sig" if how["mark"] else "utf-8"))


def write_parquet(path: Path, columns: dict[str, list[Any]], kinds: dict[str, str], rng: np.random.Generator) -> None:
    """Write the columns in types of many kinds."""
    arrays = {}
    for name, values in columns.items():
        array = pa.array(values)
        if pa.types.is_string(array.type):
            stored = rng.integers(4)
            array = [array, array.dictionary_encode(), array.cast(pa.large_string()), array.cast(pa.string_view())][
                stored
            ]
        elif kinds[name] == "whole":
            array = array.cast([pa.int16(), pa.uint8(), pa.float32(), pa.int64()][rng.integers(4)])
        elif kinds[name] == "decimal":
            array = array.cast([pa.float64(), pa.decimal128(20, 6)][rng.integers(2)])
        elif kinds[name] == "date":
            array = array.cast([pa.timestamp("ns"), pa.timestamp("s"), pa.date32()][rng.integers(3)], safe=False)
        arrays[name] = array
    pq.write_table(pa.table(arrays), path)


def oracle(path: Path, kinds: dict[str, str], how: dict[str, Any]) -> pd.DataFrame:
    """What pandas reads with the settings with which the file was written."""
    if path.suffix == ".parquet":
        frame = pd.read_parquet(path)
    else:
        as_text = {
            name: str for name, kind in kinds.items() if kind in ("site", "code", "word", "long", "truth", "date")
        }
        frame = pd.read_csv(
            path, sep=how["delimiter"], decimal=how["decimal"], thousands=how["thousands"] or None, dtype=as_text,
            float_precision="round_trip", encoding="utf-8-sig", skiprows=int(how["sep"]),
        )  # fmt: skip
    for name, kind in kinds.items():
        if kind == "date":
            stated = how["date"] if path.suffix == ".csv" else None
            frame[name] = (pd.to_datetime(frame[name], format=stated) - pd.Timestamp(0)) / pd.Timedelta(days=1)
        elif kind == "truth" and path.suffix == ".csv":
            frame[name] = frame[name].map(dict(zip(how["truth"], (0.0, 1.0), strict=True)))
    return frame


def difference(table: pa.Table, frame: pd.DataFrame, kinds: dict[str, str]) -> str | None:
    """The first difference between fedkin's and pandas' values, in words; None if there is none."""
    if table.num_rows != len(frame) or set(kinds) - set(table.column_names):
        return f"{table.num_rows} rows of {table.column_names}, expected {len(frame)} of {list(kinds)}"
    said = {**column_notes(table), **code_like(table)}
    for name, kind in kinds.items():
        stored = table.schema.field(name).type
        as_text = pa.types.is_string(stored) or pa.types.is_dictionary(stored) or pa.types.is_large_string(stored)
        expected = frame[name]
        if kind in ("site", "word") or (as_text and kind in ("code", "long")):
            given = [None if value is None else str(value) for value in texts(table, name)]
            wanted = [None if pd.isna(value) else str(value) for value in expected]
            if [value and value.strip() for value in given] != [value and value.strip() for value in wanted]:
                return f"{name}: texts {given[:4]}, expected {wanted[:4]}"
        elif as_text:
            if name not in said and expected.notna().any():
                return f"{name}: {kind} stays text, and nothing is said of it"
        elif kind == "long":
            given = [None if value is None else str(value) for value in texts(table, name)]
            if given != [str(value) for value in expected]:
                return f"{name}: whole numbers {given[:3]}, expected {list(expected[:3])}"
        else:
            given, wanted = numbers(table, name), expected.to_numpy(np.float64, na_value=np.nan)
            if not np.allclose(given, wanted, rtol=1e-14, atol=0, equal_nan=True):
                at = int(np.flatnonzero(~np.isclose(given, wanted, rtol=1e-14, atol=0, equal_nan=True))[0])
                return f"{name}: {kind} {given[at]!r} in row {at}, expected {wanted[at]!r}"
            if kind == "code" and name not in said and expected.astype(str).str.startswith("0").any():
                return f"{name}: codes are numbers, and nothing is said of it"
    return None


def tried(folder: Path, rng: np.random.Generator) -> tuple[str, str, Path]:
    """Try one table; return (its outcome, a message, its file)."""
    columns, kinds = generated(rng)
    how = ways(rng)
    path = folder / ("t.csv" if rng.random() < 0.8 else "t.parquet")
    if path.suffix == ".csv":
        write_csv(path, columns, how)
        told = {name: how[name] or None for name in ("decimal", "thousands", "delimiter")} if how["told"] else {}
        source: Any = Csv(path=path, target="y", client="site", **told)
    else:
        write_parquet(path, columns, kinds, rng)
        source = Parquet(path=path, target="y", client="site")
    frame = oracle(path, kinds, how)
    try:
        table, _ = source.table(folder)
        if words := difference(table, frame, kinds):
            return "another value", words, path
        made = source.load(folder)
    except FedkinError as error:
        return "refused", str(error).rpartition("t.csv")[2], path
    assert made.train.client is not None
    assert made.test.client is not None
    clients = Counter([*made.train.client.tolist(), *made.test.client.tolist()])
    expected = Counter(frame["site"].astype(str))
    if clients != expected:
        return "another client", f"{dict(clients)}, expected {dict(expected)}", path
    return "agreed", "", path


def main() -> None:
    """Try the tables and print their outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--found", type=Path, default=Path("tables-found"))
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    ends, refused = Counter[str](), Counter[str]()
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fedkin-tables-"))
    for number in range(arguments.tables):
        if time.monotonic() - start > arguments.seconds:
            break
        try:
            end, words, path = tried(folder, np.random.default_rng([arguments.seed, number]))
        except Exception as error:
            end, words, path = f"{type(error).__name__}", str(error), folder / "t.csv"
        ends[end] += 1
        if end == "refused":
            refused[" ".join(words.split()[:6])] += 1
        elif end != "agreed":
            print(f"table {number}: {end}: {words}", flush=True)
            arguments.found.mkdir(parents=True, exist_ok=True)
            (arguments.found / f"{number}{path.suffix}").write_bytes(path.read_bytes())
    print(f"{sum(ends.values())} tables in {time.monotonic() - start:.0f} s: {dict(ends)}")
    for words, count in refused.most_common(8):
        print(f"  refused {count}: {words}")
    sys.exit(any(end not in ("agreed", "refused") for end in ends))


if __name__ == "__main__":
    main()
