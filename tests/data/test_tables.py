"""Tables of people's records as they are read from CSV files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fedkin.data.tables import code_like, read_csv


def test_leading_zeros_are_found_beside_a_long_cell(tmp_path: Path) -> None:
    rows = "".join(f"{row:03d},{'x' * 2_500_000}\n" for row in range(2))
    (tmp_path / "long.csv").write_text("code,text\n" + rows)
    read = read_csv(tmp_path / "long.csv")
    assert code_like(read) == {"code": "000"}
    assert read.column("text")[1].as_py() == "x" * 2_500_000


@pytest.mark.parametrize("words", [b"nonsense", b"[1]", b'{"x": 5}', b"\xff"])
def test_what_other_programs_put_in_the_metadata_is_nothing(words: bytes) -> None:
    table = pa.table({"x": [1, 2]})
    assert code_like(table.replace_schema_metadata({b"fedkin.codes": words})) == {}
