"""Limits that are checked before memory is taken, and texts without effect."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin import untrusted
from fedkin.data.sources.eicu import read_csv
from fedkin.data.sources.folder import read_image
from fedkin.data.sources.images import read_idx
from fedkin.errors import DataError
from fedkin.graph.tables import read_signatures
from fedkin.untrusted import Refused, arrays_in, cell, escaped, json_of, most, parquet_in, text_in, toml_of
from support import idx_bytes, module_at


@pytest.fixture
def megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may grow to a megabyte, so that tests need not make larger ones."""
    monkeypatch.setattr(untrusted, "_LEAST_LIMIT", 1 << 20)


@given(st.text(st.characters(codec=None)))
def test_a_shown_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    found = escaped(text)
    assert all(char.isprintable() or not untrusted._CONTROLS.search(char) for char in found)
    assert escaped(found) == found
    found.encode()
    assert not {"\x1b", "\n", "\r", "\x9b", "\u202e"} & set(found)


@given(st.text(max_size=8))
def test_no_cell_is_a_formula_and_each_can_be_told_from_the_others(text: str) -> None:
    made = cell(text)
    assert made in (text, "'" + text)
    if made == text:
        assert not text.startswith(("=", "@", "\t", "\r", "'"))
        assert not text.startswith(("+", "-")) or float(text) is not None


def test_growth_is_bounded_by_the_size_of_a_file_and_by_memory() -> None:
    assert most(0) == most(1 << 20) == 1 << 29
    assert most(1 << 24) == 100 << 24
    assert most(1 << 60) < 1 << 50


@pytest.mark.parametrize("reads", [json_of, lambda text: toml_of(f"x = {text}")])
def test_depth_and_numbers_have_limits(reads: object) -> None:
    assert callable(reads)
    for text in ("[" * 62 + "]" * 62, str(2**64 - 1), str(-(2**63)), '"é\\n"', "0.5"):
        reads(text)
    for text in ("[" * 70 + "]" * 70, "[" * 100_000, str(2**64), "1" * 5000, '"a\\u0000"'):
        with pytest.raises(ValueError):
            reads(text)


def test_a_long_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert text_in(tmp_path / "a", 100) == "x" * 100
    with pytest.raises(Refused, match="more than 99 bytes"):
        text_in(tmp_path / "a", 99)


def archive(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in entries.items():
            made.writestr(f"{name}.npy", content)
    return path


def npy(array: object) -> bytes:
    made = io.BytesIO()
    np.save(made, np.asarray(array))
    return made.getvalue()


def test_arrays_that_are_not_needed_are_not_unpacked(tmp_path: Path, megabyte: None) -> None:
    path = archive(tmp_path / "a.npz", ids=npy(["a", "b"]), x=npy(np.eye(2)), more=npy(np.zeros(10**6)))
    assert path.stat().st_size < 30_000
    assert read_signatures(path)[0] == ("a", "b")
    with pytest.raises(Refused, match="more than"):
        arrays_in(path)


def test_an_array_that_grows_too_much_is_refused_unread(tmp_path: Path, megabyte: None) -> None:
    path = archive(tmp_path / "a.npz", ids=npy(["a", "b"]), x=npy(np.zeros((2, 10**6))))
    with pytest.raises(DataError, match=r"a\.npz.*save it without compression"):
        read_signatures(path)
    np.savez(path, ids=["a", "b"], x=np.ones((2, 10**6)))
    assert np.shape(read_signatures(path)[1]) == (2, 10**6)


def test_a_table_that_grows_too_much_is_refused_unread(tmp_path: Path, megabyte: None) -> None:
    pq.write_table(pa.table({"client": ["a"] * 10**6, "x": np.zeros(10**6)}), tmp_path / "a.parquet")
    with pytest.raises(Refused, match="too much for a file of its size"):
        parquet_in(tmp_path / "a.parquet")
    once = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int32)), pa.array(["x" * 10_000]))
    pq.write_table(pa.table({"client": once}), tmp_path / "b.parquet")
    with pytest.raises(Refused, match="column 'client' takes"):
        parquet_in(tmp_path / "b.parquet")


def test_packed_files_that_grow_too_much_are_refused_unread(tmp_path: Path, megabyte: None) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx_bytes(np.zeros((2000, 32, 32)))))
    with pytest.raises(DataError, match="truncated"):
        read_idx(tmp_path / "a.gz", 3)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"id\n" + b"1\n" * 10**6))
    with pytest.raises(DataError, match="too much for a file of its size"):
        read_csv(tmp_path, "t", {"id": "id"})


def test_images_and_volumes_that_grow_too_much_are_refused_unread(tmp_path: Path, megabyte: None) -> None:
    from PIL import Image

    Image.new("L", (2000, 2000)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="2000 x 2000 pixels, too many"):
        read_image(tmp_path / "a.png", (8, 8))
    import nibabel

    made: Any = nibabel.nifti1.Nifti1Image
    volume = made(np.zeros((100, 100, 100), np.int16), np.eye(4))
    nibabel.save(volume, tmp_path / "a.nii.gz")
    with pytest.raises(DataError, match="too many for a file of its size"):
        module_at(Path(__file__).parents[1] / "examples/nifti_source.py").read_volume(tmp_path / "a.nii.gz")
