"""Trees of arrays and small values as bytes: safetensors, never pickle.

A tree is a dict with text keys whose leaves are tensors or small JSON values (text, numbers, true, false,
None, lists of these). Its leaves are named by JSON pointers (RFC 6901): {"params": {"head.bias": t}} has the
leaf "params/head.bias". Tensors are stored as safetensors; the rest as JSON in the same file's metadata.

In every dict, values that hold tensors keep their order, and so do values that hold small values. Where a dict has
both kinds, the tensors come first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from fedkin.errors import MethodError, NoField
from fedkin.untrusted import DEEPEST, Refused

__all__ = [
    "Named", "Params", "Tree", "bytes_of", "decode", "encode", "leaves", "mapped", "read", "size", "tensor_of",
    "tensors_of", "tree_of", "write",
]  # fmt: skip

Tree = Mapping[str, Any]
# Parameters and buffers of a net by name.
Params = Mapping[str, Tensor]
_META = "fedkin"
# Exceptions that invalid bytes can raise; RecursionError: too many nested brackets.
_UNREADABLE = (
    ValueError, KeyError, TypeError, SafetensorError, AttributeError, OverflowError, RecursionError, IndexError,
)  # fmt: skip
_PLAIN = (str, bool, int, float, type(None), Mapping)  # the tests of the first types take less time
# In the order in which safetensors puts them into a file: that of its own enumeration, from the last one on.
_DTYPES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_PLACES = {dtype: place for place, dtype in enumerate(_DTYPES)}


class Named(dict[str, Any]):
    """Fields by name; the error for a missing field suggests existing names."""

    def __missing__(self, name: str) -> Any:
        raise NoField(name, tuple(self))


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (pointer, leaf) for every leaf, in the tree's order; an empty dict is a leaf too."""
    for key, value in tree.items():
        if not isinstance(key, str):
            raise MethodError(f"{prefix or 'message'}: keys must be text, got {key!r}")
        name = prefix + key.replace("~", "~0").replace("/", "~1")
        if name.count("/") >= DEEPEST:
            raise MethodError(f"{name[:40]}...: a tree is at most {DEEPEST} deep; put less in each other")
        if name == "__metadata__":
            raise MethodError(f"{name}: this name is safetensors' own; choose another")
        if isinstance(value, Mapping) and value:
            yield from leaves(value, name + "/")
        else:
            yield name, _checked(name, value)


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return the tree with all leaves changed; parts without a change are the same objects."""
    if not isinstance(tree, Mapping):
        return change(tree)
    changed = {name: mapped(item, change) for name, item in tree.items()}
    return tree if all(changed[name] is item for name, item in tree.items()) else changed


def _checked(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.dtype not in _DTYPES:
            raise MethodError(f"{name}: tensors of {value.dtype} cannot travel; use {', '.join(map(str, _DTYPES))}")
        return value
    if isinstance(value, np.ndarray):
        raise MethodError(f"{name}: arrays travel as torch tensors; wrap it in torch.from_numpy")
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (Tensor, Mapping)) for item in value):
            raise MethodError(f"{name}: a list holds small values only; put tensors and dicts into a dict")
        return [_checked(name, item) for item in value]
    raise MethodError(f"{name}: a {type(value).__name__} cannot travel; use tensors, text, numbers, lists or dicts")


def _split(tree: Tree) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    small: dict[str, Any] = {}
    for name, leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            tensors[name] = leaf
        else:
            small[name] = leaf
    return tensors, small


def tensors_of(tree: Tree) -> dict[str, Tensor]:
    """The tree's tensors by pointer."""
    return _split(tree)[0]


def tensor_of(data: bytes) -> Tensor:
    """Return bytes as a uint8 tensor [n], which can be a leaf of a tree."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of a tensor in memory: the inverse of `tensor_of`."""
    return tensor.numpy().tobytes()


def encode(tree: Tree) -> bytes:
    """The tree as safetensors bytes; the same tree in the same order gives the same bytes."""
    file = BytesIO()
    write(tree, file)
    return file.getvalue()


def decode(data: bytes) -> dict[str, Any]:
    """The tree that `encode` wrote; raises MethodError for bytes that are not such a tree."""
    try:
        length = int.from_bytes(data[:8], "little")
        return _restored(json.loads(data[8 : 8 + length]), load(data))
    except _UNREADABLE as error:
        raise MethodError(f"not a fedkin message: {len(data)} bytes that do not parse ({error})") from None


def tree_of(named: Mapping[str, Any]) -> dict[str, Any]:
    """Build the tree from its leaves by pointer: the inverse of `leaves`."""
    tree: dict[str, Any] = {}
    for name, leaf in named.items():
        if name.count("/") >= DEEPEST:
            raise Refused(f"a tree more than {DEEPEST} deep")
        *path, last = (part.replace("~1", "/").replace("~0", "~") for part in name.split("/"))
        level = tree
        for part in path:
            level = level.setdefault(part, {})
        level[last] = leaf
    return tree


def _restored(header: dict[str, Any], loaded: Mapping[str, Tensor]) -> dict[str, Any]:
    """Build the tree of these tensors and the header's small values, in the header's order."""
    small = json.loads(header.pop("__metadata__")[_META])
    for name, value in small.items():
        _check_small(name, value)
    return _merged(tree_of({name: loaded[name] for name in header}), tree_of(small))


def _check_small(name: str, value: Any, depth: int = 0) -> None:
    """Raise Refused for values that `leaves` never gives: too deep lists, tables in lists, and non-empty tables."""
    if isinstance(value, list):
        if depth >= DEEPEST or any(isinstance(item, dict) for item in value):
            raise Refused(f"{name[:40]}: a list of tables, or of lists more than {DEEPEST} deep")
        for item in value:
            _check_small(name, item, depth + 1)
    elif isinstance(value, dict) and value:
        raise Refused(f"{name[:40]}: a table in place of its values")


def _merged(tensors: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Merge both trees. A key that both have keeps its place; between two such keys, tensors come first."""
    merged: dict[str, Any] = {}
    later = iter(small.items())
    for key, value in tensors.items():
        if key in small:
            for name, held in later:
                if name == key:
                    value = _merged(value, held)
                    break
                merged[name] = held
        merged[key] = value
    return merged | dict(later)


def write(tree: Tree, file: BinaryIO) -> None:
    """Write `encode(tree)` to a file, tensor by tensor, so that memory-mapped tensors may exceed memory."""
    tensors, small = _split(tree)
    header, order = _header(tensors, small)
    file.write(header)
    for name in order:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        # `view` refuses the stride of an empty numpy array.
        if flat.numel():
            file.write(flat.view(torch.uint8).numpy().data)


def read(path: Path) -> dict[str, Any]:
    """The tree in a file, with memory-mapped tensors: they are read on use. Raises MethodError and OSError."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, path.stat().st_size)))
        return _restored(header, load_file(path))
    except _UNREADABLE as error:
        raise MethodError(f"not a fedkin message: {path} does not parse ({error})") from None


def size(tree: Tree) -> tuple[int, int]:
    """(bytes, floats): the length of `encode(tree)`, computed without encoding, and the number of floats in it."""
    tensors, small = _split(tree)
    header, _ = _header(tensors, small)
    floats = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
    return len(header) + sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors.values()), floats


def _header(tensors: Mapping[str, Tensor], small: Mapping[str, Any]) -> tuple[bytes, list[str]]:
    """Return (safetensors' header, preceded by its length; names of the tensors in their order in the file)."""
    meta = f'"{_META}":{json.dumps(json.dumps(small, separators=(",", ":")), ensure_ascii=False)}'
    # safetensors orders tensors by decreasing alignment, then by name. The header may name them in any order, so
    # keeping the tree's order needs no extra bytes.
    order = sorted(tensors, key=lambda name: (_PLACES[tensors[name].dtype], name.encode()))
    entries = dict.fromkeys(["__metadata__", *tensors], '"__metadata__":{' + meta + "}")
    offset = 0
    for name in order:
        tensor, code = tensors[name], _DTYPES[tensors[name].dtype]
        end = offset + tensor.numel() * tensor.dtype.itemsize
        shape = ",".join(map(str, tensor.shape))
        quoted = json.dumps(name, ensure_ascii=False)
        entries[name] = f'{quoted}:{{"dtype":"{code}","shape":[{shape}],"data_offsets":[{offset},{end}]}}'
        offset = end
    header = ("{" + ",".join(entries.values()) + "}").encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header, order
