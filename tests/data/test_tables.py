"""Tables of people's records as they are read from CSV files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fedkin.data import tables
from fedkin.data.tables import code_like, read_any_csv


class Watched:
    """A table that counts which of its attributes are taken."""

    def __init__(self, table: pa.Table, taken: Counter[str]) -> None:
        self.table, self.taken = table, taken

    def __getattr__(self, name: str) -> Any:
        self.taken[name] += 1
        return getattr(self.table, name)


def test_the_names_of_columns_are_not_listed_anew_for_each_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A table makes the list of its names anew each time, so that a list for each column takes quadratic time.
    taken: Counter[str] = Counter()
    monkeypatch.setattr(tables, "_with_commas", lambda table: Watched(table, taken))
    listed = []
    for count in (5, 50):
        taken.clear()
        (tmp_path / "wide.csv").write_text(";".join(f"g{i}" for i in range(count)) + "\n" + ";".join(["07"] * count))
        read = read_any_csv(tmp_path / "wide.csv", names=["g0"], codes=["g1"])
        listed.append(taken["column_names"] + taken["schema"])
        if count == 50:
            assert sorted(code_like(read)) == sorted(f"g{i}" for i in range(2, 50))
    assert 0 < listed[1] == listed[0]


def test_leading_zeros_are_found_beside_a_long_cell(tmp_path: Path) -> None:
    rows = "".join(f"{row:03d},{'x' * 2_500_000}\n" for row in range(2))
    (tmp_path / "long.csv").write_text("code,text\n" + rows)
    read = read_any_csv(tmp_path / "long.csv")
    assert code_like(read) == {"code": "000"}
    assert read.column("text")[1].as_py() == "x" * 2_500_000


@pytest.mark.parametrize("words", [b"nonsense", b"[1]", b'{"x": 5}', b"\xff"])
def test_what_other_programs_put_in_the_metadata_is_nothing(words: bytes) -> None:
    table = pa.table({"x": [1, 2]})
    assert code_like(table.replace_schema_metadata({b"fedkin.codes": words})) == {}
