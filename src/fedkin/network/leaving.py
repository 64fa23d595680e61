"""What leaves a participant, in words, from what the method declares: shown before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedkin.engines.setup import Plan
from fedkin.flow import PeerMethod
from fedkin.forms import Bytes, Choice, Each, Fields, Flag, Form, Number, Place, Shaped, Upto, Weights, Whole, Wholes
from fedkin.forms.base import Dim, Sometimes, length_of

__all__ = ["leaving"]


def leaving(plan: Plan, labels: bool = False, id: str = "") -> list[str]:
    """Return lines that say what a participant sends: each message of the method, and what is said about it.

    labels: whether the participant tells its number of samples of each class. id: its name, where bodies differ.
    """
    method = plan.method
    place = Place(method, plan.net_of(id), plan.task, plan.engine.largest_n, int(plan.engine.message_limit_mb * 2**20))
    peers = isinstance(method, PeerMethod)
    names = sorted(method.shares) if isinstance(method, PeerMethod) else sorted(method.phases())
    lines = []
    for name in names:
        sets = method.declared(name)
        if sets is None:
            lines.append(f"{name}: not declared by the method, so anything that it puts into the message")
            continue
        told = [_fields(fields, place) for fields in sets]
        size = max(count for _, count in told)
        most = f", about {size:,} bytes each time" if size else ""
        lines.append(f"{name}: {' or '.join(words for words, _ in told)}{most}")
    counts = "its numbers of training and test samples"
    counts += ", its number of samples of each class" if labels else ""
    lines.append(f"about this {'peer' if peers else 'client'}: its name, {counts}, a hash of its samples")
    lines.append("evaluation: the loss and the task's figures over its test samples, and their number")
    return lines


def _fields(fields: Fields, place: Place) -> tuple[str, int]:
    """Return one set of fields in words, and its size in bytes as far as it is known."""
    words, size = [], 0
    for name, form in fields.items():
        if form.wanted(place) is False:
            continue
        told, count = _form(form, place)
        words.append(f"{name} ({told})")
        size += count
    return ", ".join(words) or "an empty message", size


def _form(form: Form, place: Place) -> tuple[str, int]:
    match form:
        case Sometimes():
            told, size = _form(form.form, place)
            return (told if form.condition is not None else f"perhaps: {told}"), size
        case Weights():
            return _weights(form, place)
        case Shaped():
            width = (form.dtype or place.net.dtype).itemsize
            sizes = [_length(dim, place) for dim in form.dims]
            known = math.prod(n for n in sizes if isinstance(n, int)) * width
            return f"numbers [{', '.join(map(str, sizes))}]", known
        case Whole():
            return "a whole number", 8
        case Number():
            return "a number", 8
        case Flag():
            return "true or false", 1
        case Choice():
            return f"one of {', '.join(form.texts)}", max(map(len, form.texts), default=0)
        case Wholes():
            length = _length(form.dim, place)
            return f"whole numbers [{length}]", 8 * length if isinstance(length, int) else 0
        case Each():
            told, size = _form(form.form, place)
            return f"any number of: {told}", size
        case Bytes():
            return f"at most {form.most:,} bytes", form.most
    return type(form).__name__, 0


def _weights(form: Weights, place: Place) -> tuple[str, int]:
    chosen = {
        name: tensor for name, tensor in place.net.initial.items()
        if name.startswith(form.only) and not name.startswith(form.but)
    }  # fmt: skip
    size = sum(tensor.numel() * tensor.element_size() for tensor in chosen.values())
    return f"of the net: {_shapes({name: tuple(tensor.shape) for name, tensor in chosen.items()})}", size


def _shapes(tensors: Mapping[str, Sequence[int]]) -> str:
    shown = [f"{name} {list(shape)}" for name, shape in tensors.items()]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more tensors" if len(shown) > 6 else "")


def _length(dim: Dim, place: Place) -> int | str:
    if isinstance(dim, Upto):
        return f"up to {_length(dim.most, place)}"
    if isinstance(dim, str) and dim not in ("classes", "width", "size"):
        return dim
    return length_of(dim, place)
