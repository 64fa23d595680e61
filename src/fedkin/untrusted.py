"""Untrusted text and files: read within limits, and made harmless for terminals and spreadsheets.

The readers raise Refused, a ValueError, with what was wrong; their callers add the name of the file.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


# The largest depth of nested tables, lists and trees.
DEEPEST = 64
# Any file may have this many bytes when it is unpacked; a larger file may grow by this factor.
_LEAST_LIMIT = 1 << 29
_GROWTH = 100
# Control characters of terminals, marks that change the direction of text, and codes that are no characters.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IN_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_FORMULA = tuple("=+-@\t\r'＝＋－＠")


class Refused(ValueError):
    """Input that exceeds a limit or is invalid; the text says what is wrong."""


def escaped(text: str, most: int = 0) -> str:
    r"""Replace control characters by visible escapes; cut the text after `most` characters, if `most` is above 0.

    >>> escaped("a\x1b[31m\u202e")
    'a\\x1b[31m\\u202e'
    """
    if 0 < most < len(text):
        text = f"{text[:most]} ... ({len(text) - most} more characters)"
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def printable(text: str) -> bool:
    """Whether this text is not empty and `escaped` leaves it unchanged."""
    return bool(text) and not _CONTROLS.search(text)


def plain_word(name: object) -> TypeGuard[str]:
    """Whether a part or a participant can have this name: 1 to 64 of A-Z a-z 0-9 . _ -, first a letter or digit.

    >>> plain_word("my-method"), plain_word("knn:10"), plain_word("a b")
    (True, False, False)
    """
    return isinstance(name, str) and _WORD.fullmatch(name) is not None


def error_text(error: BaseException) -> str:
    """The text of an error in one line of at most 300 characters; its type if it has no text."""
    return escaped(" ".join(str(error).split()), 300) or type(error).__name__


def cell(value: Any) -> Any:
    """A value for a CSV file: a text that a spreadsheet would take for a formula gets an apostrophe in front.

    >>> cell("=A1"), cell("-7"), cell("ann"), cell(3)
    ("'=A1", '-7', 'ann', 3)
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def most(size: int) -> int:
    """The most bytes that a file of this size may take: 512 MB or 100 times its size, at most the machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 40
    return min(max(_LEAST_LIMIT, _GROWTH * size), memory)


def text_in(path: Path, limit: int) -> str:
    """The text of a file of at most `limit` bytes, in UTF-8, without a byte order mark; raises OSError, Refused."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise Refused(f"it has more than {limit:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Refused(f"line {line} is not UTF-8; save the file as UTF-8") from None


def json_of(text: str) -> Any:
    """The value of a JSON text; raises ValueError, also for values that are too deep or too large."""
    return _within_limits(json.loads, text)


def toml_of(text: str) -> dict[str, Any]:
    """The table of a TOML text; raises ValueError, also for values that are too deep or too large."""
    table: dict[str, Any] = _within_limits(tomllib.loads, text)
    return table


def _within_limits(loads: Callable[[str], Any], text: str) -> Any:
    """Return the parsed value; raises Refused for nesting above DEEPEST, integers above 64 bits and invalid texts."""
    try:
        value = loads(text)
    except RecursionError:
        raise Refused(f"nested more than {DEEPEST} deep") from None
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise Refused(f"nested more than {DEEPEST} deep")
        inside: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inside += one
                inside += one.values()
            elif isinstance(one, list):
                inside += one
            else:
                _check_value(one)
        level, depth = inside, depth + 1
    return value


def _check_value(value: Any) -> None:
    if isinstance(value, str) and _IN_NO_TEXT.search(value):
        raise Refused(f"{escaped(value, 40)!r} holds a character that no text has")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise Refused(f"a whole number of {value.bit_length()} bits; expected at most 64")


# -- arrays ---------------------------------------------------------------------------------------------------


def arrays_in(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, np.ndarray[Any, Any]], list[str]]:
    """Return (the wanted arrays of a .npz file, the names of all); unpacks only wanted arrays, to `most` bytes in all.

    Raises OSError if the file cannot be opened, and Refused.
    """
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise Refused("holds one bare array")
        file.seek(0)
        try:
            with warnings.catch_warnings(), zipfile.ZipFile(file) as archive:
                # numpy warns if it has to guess what a header means.
                warnings.simplefilter("error")
                return _unpacked(archive, most(path.stat().st_size), wanted)
        except (Refused, MemoryError):
            raise
        # With a damaged file the readers of zip, deflate and npy raise many kinds of exceptions.
        except Exception as error:
            raise Refused(error_text(error)) from None


def _unpacked(
    archive: zipfile.ZipFile, limit: int, wanted: Callable[[str], bool]
) -> tuple[dict[str, np.ndarray[Any, Any]], list[str]]:
    import numpy as np

    names = [entry.filename.removesuffix(".npy") for entry in archive.infolist()]
    chosen = {name: entry for name, entry in zip(names, archive.infolist(), strict=True) if wanted(name)}
    if len(chosen) < sum(map(wanted, names)):
        raise Refused("an array is in it twice")
    total = sum(entry.file_size for entry in chosen.values())
    if total > limit:
        raise Refused(
            f"unpacked it takes {total / 1e9:.1f} GB, more than {limit / 1e9:.1f} GB for a file of its size; save it "
            "without compression (np.savez)"
        )
    arrays = {}
    for name, entry in chosen.items():
        with archive.open(entry) as file:
            _check_header(name, file, entry.file_size)
        with archive.open(entry) as file:
            arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
        _check_texts(name, arrays[name])
    return arrays, names


def _check_header(name: str, file: Any, size: int) -> None:
    """Raise Refused if the file is smaller than its header says: numpy allocates that size before it reads."""
    import numpy as np

    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = reader(file)
    if dtype.hasobject:
        raise Refused(f"array {name} holds Python objects, which may run code")
    if math.prod(shape) * dtype.itemsize > size or (shape and shape[0] > size):
        raise Refused(f"array {name} is cut short: {size} bytes for {dtype} of shape {shape}")


def _check_texts(name: str, array: np.ndarray[Any, Any]) -> None:
    import numpy as np

    if array.dtype.kind == "U" and array.size:
        codes = np.ascontiguousarray(array).reshape(-1).view(np.uint32 if array.dtype.isnative else ">u4")
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any():
            raise Refused(f"array {name} holds a character that no text has")


# -- Parquet --------------------------------------------------------------------------------------------------


def parquet_in(path: Path, lists: Collection[str] = ()) -> pa.Table:
    """The table of a Parquet file, within `most` of its size, with texts that are valid UTF-8.

    lists: columns that may hold lists of whole numbers. Raises OSError, KeyError, pyarrow's errors and Refused.
    """
    import pyarrow as pa
    from pyarrow import parquet

    full_path = path.absolute()
    limit = most(full_path.stat().st_size)
    schema = parquet.read_schema(full_path)
    texts = [field.name for field in schema if _is_text(field.type)]
    for field in schema:
        integers = pa.types.is_list(field.type) and pa.types.is_integer(field.type.value_type)
        if pa.types.is_nested(field.type) and not (integers and field.name in lists):
            raise Refused(f"column {escaped(field.name, 40)!r}: expected numbers or texts, got {field.type}")
    # Parquet stores a repeated text once: read it in that form, and count its bytes before repeating it.
    with parquet.ParquetFile(full_path, read_dictionary=texts) as file:
        _check_size(file.metadata, limit)
        # The lengths of lists are known only after reading, so read a few rows at a time.
        few = lists and file.metadata.num_rows
        table = pa.Table.from_batches(list(within(file.iter_batches(256), limit))) if few else file.read()
    table.validate(full=True)
    for name in texts:
        table = _with_plain_texts(table, name, limit)
    return table


def _check_size(metadata: Any, limit: int) -> None:
    """Raise Refused for a Parquet file that says that it holds more bytes than the limit, or contradicts itself."""
    # Do not read the metadata of single columns: if they are damaged, pyarrow ends the process.
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    rows, stored = (sum(getattr(one, name) for one in groups) for name in ("num_rows", "total_byte_size"))
    need = max(8 * rows * metadata.num_columns, stored)
    if need > limit or rows != metadata.num_rows:
        raise Refused(f"it says that it holds {rows} rows in {need / 1e9:.1f} GB; too much for a file of its size")


def within(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """These batches; raises Refused once they take more bytes than the limit."""
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > limit:
            raise Refused(f"unpacked it takes more than {limit / 1e9:.1f} GB, too much for a file of its size")
        yield batch


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _with_plain_texts(table: pa.Table, name: str, limit: int) -> pa.Table:
    """The table with a dictionary-encoded text column as plain texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table[name]
    if not pa.types.is_dictionary(column.type):
        return table
    need = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary)
        need += pc.sum(lengths.take(chunk.indices)).as_py() or 0
    if need > limit:
        raise Refused(f"column {escaped(name, 40)!r} takes {need / 1e9:.1f} GB, more than {limit / 1e9:.1f} GB")
    at = table.column_names.index(name)
    return table.set_column(at, name, column.cast(column.type.value_type))
