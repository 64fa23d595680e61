"""Inputs made of others: bytes changed, moved and spliced, inside archives and behind headers as well."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np

__all__ = ["mutated"]

WORDS = [
    b"[" * 200, b"{" * 200, b'{"a":' * 80, b"9" * 4400, b"0x" + b"f" * 300, b"-1", b"0", b"1e400", b"NaN", b"Infinity",
    b"null", b"true", b'"\\ud800"', b'"\\u0000"', b"\xff\xfe", b"\x00", b"\x1b[31m", b"\xc2\x9b", b"=cmd|' /C x'!A0",
    b"[/x]", b"\\[/x]", b"a/" * 100, b"../../../etc/passwd", b"/dev/zero", b"18446744073709551616", b"4294967296",
    b"x" * 300, b"\n", b",,,,", b"1979-05-27", b'"', b"'", b"\xe2\x80\xae", b"(1,)", b"O", b"|O", b"<U0",
    b"99999999999", b"__metadata__", b"F64", b"BF16", b"F8_E5M2", b"client", b"centre", b"ids",
]  # fmt: skip
ODD = [0, 1, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


def mutated(data: bytes, others: Sequence[bytes], rng: np.random.Generator) -> bytes:
    """A changed copy of `data`; the inside of zip, gzip and safetensors is changed as often as the whole."""
    if rng.random() < 0.6:
        if data[:2] == b"PK":
            return _inside_zip(data, others, rng)
        if data[:2] == b"\x1f\x8b":
            try:
                return gzip.compress(_changed(gzip.decompress(data), others, rng), 1)
            except (OSError, EOFError, zlib.error):
                pass
        if len(data) > 9 and data[8:9] == b"{":
            return _behind_length(data, others, rng)
    return _changed(data, others, rng)


def _changed(data: bytes, others: Sequence[bytes], rng: np.random.Generator) -> bytes:
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 1 << int(rng.integers(1, 5))))):
        _step(found, others, rng)
    return bytes(found[: 1 << 20])


def _step(data: bytearray, others: Sequence[bytes], rng: np.random.Generator) -> None:
    at = int(rng.integers(0, len(data) + 1))
    end = min(len(data), at + int(rng.integers(1, 1 << int(rng.integers(1, 11)))))
    match int(rng.integers(0, 9)):
        case 0 if at < len(data):
            data[at] ^= 1 << int(rng.integers(0, 8))
        case 1 if at < len(data):
            data[at] = int(rng.integers(0, 256))
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = data[at:end] * int(rng.integers(1, 4))
        case 4:
            data[at:at] = WORDS[int(rng.integers(0, len(WORDS)))]
        case 5:
            data[at:end] = WORDS[int(rng.integers(0, len(WORDS)))]
        case 6:
            width = int(rng.choice([1, 2, 4, 8]))
            value = ODD[int(rng.integers(0, len(ODD)))] % (1 << 8 * width)
            data[at : at + width] = value.to_bytes(width, "little" if rng.random() < 0.7 else "big")
        case 7 if others:
            other = others[int(rng.integers(0, len(others)))]
            start = int(rng.integers(0, len(other) + 1))
            data[at:end] = other[start : start + int(rng.integers(1, 200))]
        case _:
            data[at:end] = rng.bytes(end - at)


def _inside_zip(data: bytes, others: Sequence[bytes], rng: np.random.Generator) -> bytes:
    """One entry changed, renamed, doubled or left out; checksums are right, so that readers see it."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError):
        entries = []
    if not entries:
        return _changed(data, others, rng)
    at = int(rng.integers(0, len(entries)))
    name, content = entries[at]
    match int(rng.integers(0, 8)):
        case 0:
            entries[at] = (_changed(name.encode(), [], rng).decode("utf-8", "replace").split("\0")[0][:60], content)
        case 1:
            entries.append((name, content))
        case 2:
            del entries[at]
        case 3:
            entries[at] = (name, entries[int(rng.integers(0, len(entries)))][1])
        case _:
            # Mostly the header, which is in the first bytes.
            head = content[:128] if rng.random() < 0.7 else content
            entries[at] = (name, _changed(head, others, rng) + content[len(head) :])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.5 else zipfile.ZIP_STORED) as archive:
        seen: set[str] = set()
        for name, content in entries:
            if name and name not in seen:
                archive.writestr(name, content)
                seen.add(name)
    return made.getvalue()


def _behind_length(data: bytes, others: Sequence[bytes], rng: np.random.Generator) -> bytes:
    """The JSON header of safetensors changed, with its length put right."""
    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.5:
        try:
            tree = json.loads(header)
            names = list(tree)
            name = names[int(rng.integers(0, len(names)))]
            other = names[int(rng.integers(0, len(names)))]
            match int(rng.integers(0, 4)):
                case 0:
                    tree[name + "/" + "a/" * int(rng.integers(0, 90))] = tree.pop(name)
                case 1:
                    tree[name] = tree[other]
                case 2:
                    tree[other + "/x"] = tree[name]
                case _:
                    text = tree["__metadata__"]["fedkin"]
                    changed = _changed(text.encode(), [], rng).decode("utf-8", "replace")
                    tree["__metadata__"]["fedkin"] = changed
            header = json.dumps(tree).encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            header = _changed(header, others, rng)
    else:
        header = _changed(header, others, rng)
    return len(header).to_bytes(8, "little") + header + rest
