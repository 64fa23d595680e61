"""Named arrays as bytes with little around them: a signature of 4 KB cannot afford a zip of .npy files."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedkin.errors import DataError
from fedkin.untrusted import said

__all__ = ["Arrays", "pack", "unpack"]

Arrays = dict[str, np.ndarray[Any, Any]]
_MAGIC = b"fks1"
_KINDS = ("b1", "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def pack(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Little-endian: magic, then per array name, dtype, shape and values, in the order of names."""
    parts = [_MAGIC, struct.pack("<H", len(arrays))]
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        text, kind = name.encode(), little.dtype.str[1:].encode()
        parts.append(struct.pack("<BBB", len(text), len(kind), value.ndim) + text + kind)
        parts.append(struct.pack(f"<{value.ndim}I", *value.shape) + little.tobytes())
    return b"".join(parts)


def unpack(data: bytes, what: str = "signature") -> Arrays:
    """The arrays that `pack` wrote; DataError if these bytes are not such."""
    try:
        if data[:4] != _MAGIC:
            raise ValueError("other magic")
        (count,) = struct.unpack_from("<H", data, 4)
        at, found = 6, {}
        for _ in range(count):
            named, kinded, ndim = struct.unpack_from("<BBB", data, at)
            name = data[at + 3 : at + 3 + named].decode()
            text = data[at + 3 + named : at + 3 + named + kinded].decode()
            if text not in _KINDS:
                raise ValueError(f"an array of {text!r}")
            kind = np.dtype("<" + text)
            at += 3 + named + kinded
            shape = struct.unpack_from(f"<{ndim}I", data, at)
            size, at = math.prod(shape), at + 4 * ndim
            if at + size * kind.itemsize > len(data):
                raise ValueError("cut short")
            found[name] = np.frombuffer(data, kind, size, at).reshape(shape).astype(kind.newbyteorder("="))
            at += size * kind.itemsize
        if at != len(data):
            raise ValueError("bytes left over")
    except (ValueError, struct.error) as error:
        raise DataError(
            f"{what}: {len(data)} bytes that are not a {what} of fedkin ({said(error)}); send it again"
        ) from None
    return found
