"""What a setting may be, in words: its type and range, as a person writes it in TOML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

__all__ = ["describe_type", "describe_value"]

_WORDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    Path: "path",
    NoneType: "not set",
    Any: "anything",
}
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def describe_type(kind: Any, metadata: Iterable[Any] = ()) -> str:
    """Say what values of this type are, with the bounds in its metadata.

    >>> describe_type(tuple[Literal["hard", "soft"], ...] | None)
    'list of: hard or soft; or not set'
    """
    return "; or ".join(_parts(kind, metadata))


def describe_value(value: Any) -> str:
    """Write a default as a file would have it.

    >>> describe_value((0, 90)), describe_value(None), describe_value(True)
    ('[0, 90]', 'not set', 'true')
    """
    if value is None:
        return _WORDS[NoneType]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {describe_value(each)}" for name, each in value.items()) or "{}"
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, str):
        return f"[{', '.join(map(describe_value, value))}]"
    return str(value)


def _parts(kind: Any, metadata: Iterable[Any]) -> list[str]:
    """Return the alternatives of a type, each in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        more = [part for each in inner[1:] for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
        return _parts(inner[0], [*metadata, *more])
    if origin in (Union, UnionType):
        bounds = list(metadata)
        return list(dict.fromkeys(text for each in inner for text in _parts(each, () if each is NoneType else bounds)))
    if origin is Literal:
        return [_either([describe_value(each) for each in inner])]
    if origin in (tuple, list, set, frozenset, Sequence):
        each = inner[:-1] if inner and inner[-1] is Ellipsis else inner
        words = list(dict.fromkeys(describe_type(one) for one in each))
        return [f"list of: {' / '.join(words)}{_bounded(metadata)}" if words else "list"]
    if origin in (dict, Mapping):
        return [f"table of: {describe_type(inner[-1])}"]
    return [f"{_WORDS.get(kind, 'table')}{_bounded(metadata)}"]


def _bounded(metadata: Iterable[Any]) -> str:
    told = [
        f"{word} {getattr(each, name)}" for each in metadata for name, word in _BOUNDS.items() if hasattr(each, name)
    ]
    return "".join(f", {each}" for each in told)


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
