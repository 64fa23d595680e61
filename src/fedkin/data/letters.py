"""Whether a file of text is UTF-8, and what it probably is if not."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path
from typing import BinaryIO, cast

from fedkin.untrusted import Refused, most, shown

__all__ = ["check_text"]

_SAVE = "save it as UTF-8 (in a spreadsheet: CSV UTF-8)"
# The mark of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip
_BLOCK = 1 << 20


def check_text(path: Path) -> None:
    """Raise Refused for a file that is not UTF-8, naming what it seems to be; packed files are unpacked to look."""
    limit = most(path.stat().st_size)
    with cast(BinaryIO, (gzip.open if path.suffix == ".gz" else open)(path, "rb")) as file:
        decoder, lines, read = codecs.getincrementaldecoder("utf-8")(), 1, 0
        while block := file.read(_BLOCK):
            if not read:
                _wide(block)
            read += len(block)
            if read > limit:
                return  # the reader of the table says so
            before = decoder.getstate()[0]
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                raise Refused(_told(before + block, error.start, lines)) from None
            lines += block.count(b"\n")
        if left := decoder.getstate()[0]:
            raise Refused(_told(left, 0, lines))


def _wide(block: bytes) -> None:
    """Raise Refused for two or four bytes to a letter: by the mark in front, or by the zeros between letters."""
    name = next((name for mark, name in _MARKS.items() if block.startswith(mark)), None)
    if name is None and block[:1000].count(0) > len(block[:1000]) // 3:
        name = "UTF-16 (every other byte is zero)"
    if name is not None:
        raise Refused(f"the file is {name}, not UTF-8; {_SAVE}")


def _told(data: bytes, at: int, lines: int) -> str:
    """Say in which line the first byte is that is not UTF-8, with the text around it."""
    line = lines + data.count(b"\n", 0, at)
    near = data[max(data.rfind(b"\n", 0, at) + 1, at - 20) : at + 10].partition(b"\n")[0].decode("latin-1")
    return f"line {line}: {shown(repr(near))} is not UTF-8, perhaps Latin-1 or Windows-1252; {_SAVE}"
