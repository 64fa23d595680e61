"""What leaves a participant, in words, from what the method declares: shown before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedkin.data.own import CLASS
from fedkin.engines.privacy import protects
from fedkin.engines.setup import Plan
from fedkin.federation import Client
from fedkin.flow import PeerMethod
from fedkin.forms import Bytes, Choice, Each, Fields, Flag, Form, Number, Place, Shaped, Upto, Weights, Whole, Wholes
from fedkin.forms.base import Dim, Sometimes, length_of
from fedkin.learning.metrics import file_of
from fedkin.network.ledger import Page
from fedkin.untrusted import shown

__all__ = ["about", "largest_message", "leaving", "releases_in"]

_ROOM = 1 << 16  # bytes of names in a message


def about(client: Client, labels: bool = False, peer: bool = False) -> list[str]:
    """Return lines that say what a participant tells of itself before the first round.

    labels: whether it tells its number of samples of each class. peer: whether there is no server, to whom alone it
    tells its numbers of samples.
    """
    columns = [str(name) for name in client.about.get("columns", ())]
    classes = [name.removeprefix(CLASS).strip() for name in columns if name.startswith(CLASS)]
    inputs = [name for name in columns if not name.startswith(CLASS)]
    told = ["its name", "the shape of its inputs", "the number of its classes or targets"]
    if not peer:
        told += ["its numbers of training and test samples", "a hash of its samples"]
        told += ["its number of samples of each class"] if labels else []
        told += [f"its group {shown(client.group)!r}"] if client.group is not None else []
    lines = [f"about this {'peer' if peer else 'client'}: {', '.join(told)}"]
    for what, names in (("columns", inputs), ("classes", classes)):
        lines += [f"names of its {what}: {', '.join(map(shown, names))}"] if names else []
    return lines


def leaving(plan: Plan, client: Client, labels: bool = False, page: Page | None = None) -> list[str]:
    """Return lines that say what a participant sends: each message of the method, and what it tells of itself.

    labels: as for `about`. page: the participant's part of a ledger, under `[privacy]`.
    """
    lines, place, peers = list[str](), _place(plan, client.id), isinstance(plan.method, PeerMethod)
    for name in _names(plan):
        sets = plan.method.declared(name)
        if sets is None:
            lines.append(f"{name}: not declared by the method, so anything that it puts into the message")
            continue
        described = [_fields(fields, place, plan.privacy.on) for fields in sets]
        size = max(count for _, count in described)
        large = f", about {size:,} bytes each time" if size else ""
        lines.append(f"{name}: {' or '.join(words for words, _ in described)}{large}")
    if plan.privacy.on:
        lines += _noise(plan, releases_in(plan, client), page)
    lines += about(client, labels, peers)
    if not peers:
        exact = ", without noise" if plan.privacy.on else ""
        lines.append(f"evaluation: the loss and the task's figures over its test samples, and their number{exact}")
        further = ", ".join(f"{each.name} ({file_of(each) or 'fedkin'})" for each in plan.measures)
        lines += [f"metrics: a number of each over its test samples{exact}: {further}"] if further else []
    return lines


def releases_in(plan: Plan, client: Client) -> int:
    """Return how many releases a round has, with one message of each kind, under `[privacy]`."""
    place, count = _place(plan, client.id), 0
    for name in _names(plan):
        sets = plan.method.declared(name) or ()
        count += max((_releases(fields, place, plan) for fields in sets), default=0)
    return count


def largest_message(plan: Plan, id: str) -> int:
    """Return the most bytes that a message of this participant may have, with room for its head and for rounding.

    By its declared form twice that; `run.message_limit_mb` where a form leaves the size open, and never more.
    """
    limit, place, largest = int(plan.engine.message_limit_mb * 2**20), _place(plan, id), 0
    for name in _names(plan):
        sets = plan.method.declared(name)
        if sets is None:
            return limit
        for fields in sets:
            sizes = [_bound(form, place) for form in fields.values()]
            known = [size for size in sizes if size is not None]
            if len(known) < len(sizes):
                return limit
            largest = max(largest, sum(known))
    return min(limit, 2 * largest + _ROOM)


def _bound(form: Form, place: Place) -> int | None:
    """Return the most bytes of a field; None if its form leaves that open."""
    match form:
        case Sometimes():
            return _bound(form.form, place)
        case Weights():
            return _weights(form, place)[1]
        case Shaped():
            sizes = [_most(dim, place) for dim in form.dims]
            width = (form.dtype or place.net.dtype).itemsize
            known = [size for size in sizes if size is not None]
            return math.prod(known) * width if len(known) == len(sizes) else None
        case Wholes():
            length = _most(form.dim, place)
            return None if length is None else 16 * length
        case Whole() | Number() | Flag():
            return 32
        case Choice():
            return max(map(len, form.texts), default=0)
        case Bytes():
            return form.most
    return None


def _most(dim: Dim, place: Place) -> int | None:
    """Return the largest length; None for a name that is free, or a length that depends on what is asked."""
    if isinstance(dim, Upto):
        return _most(dim.most, place)
    if isinstance(dim, str) and dim not in ("classes", "width", "size"):
        return None
    try:
        return length_of(dim, place)
    except KeyError:  # nothing was asked yet
        return None


def _names(plan: Plan) -> list[str]:
    """Return the names of the messages that the method sends."""
    method = plan.method
    return sorted(method.shares) if isinstance(method, PeerMethod) else sorted(method.phases())


def _place(plan: Plan, id: str) -> Place:
    most = int(plan.engine.message_limit_mb * 2**20)
    return Place(plan.method, plan.net_of(id), plan.task, plan.engine.largest_n, most)


def _releases(fields: Fields, place: Place, plan: Plan) -> int:
    """Return how many releases one message of these fields is."""
    noised = [form for form in fields.values() if _wanted(form, place) is not False and protects(form)]
    return len(noised) if isinstance(plan.privacy.clip, Mapping) else min(1, len(noised))


def _noise(plan: Plan, releases: int, page: Page | None) -> list[str]:
    """Return what is done to messages, and what it costs. releases: in a round with one message of each kind."""
    private, rounds = plan.privacy, plan.training.rounds
    clip = private.clip if isinstance(private.clip, Mapping) else {"all together": private.clip or 0.0}
    bounds = ", ".join(f"{name} {bound:g}" for name, bound in clip.items())
    spread = f"normal noise of {2 * (private.noise or 0):g} times that, drawn from this machine's own randomness"
    most = private.epsilon(releases * rounds)
    lines = [
        f"noise: fields 'with noise' are clipped to the norm ({bounds}), and get {spread}",
        f"epsilon: {most:.3g} at delta {private.delta:g} after {rounds} rounds with one message of each kind; no more",
    ]
    if page is not None and page.ledger.lines:
        lines.append(f"epsilon so far: {page.ledger.epsilon(private.delta):.3g}, with all runs on this machine")
    limits = {"the experiment": private.budget, "this participant, over all runs": page and page.ledger.limit}
    lines += [f"nothing more is sent above epsilon {limit:g} (set by {who})" for who, limit in limits.items() if limit]
    return lines


def _fields(fields: Fields, place: Place, noise: bool) -> tuple[str, int]:
    """Return one set of fields in words, and its size in bytes as far as it is known."""
    words, size = [], 0
    for name, form in fields.items():
        if _wanted(form, place) is False:
            continue
        told, count = _form(form, place)
        how = ("; with noise" if protects(form) else "; as it is") if noise else ""
        words.append(f"{name} ({told}{how})")
        size += count
    return ", ".join(words) or "an empty message", size


def _wanted(form: Form, place: Place) -> bool | None:
    """Return whether the field is sent; None if it may be, also where that depends on what the server will ask."""
    try:
        return form.wanted(place)
    except KeyError:  # `place.asked` is empty: nothing was asked yet
        return None


def _form(form: Form, place: Place) -> tuple[str, int]:
    match form:
        case Sometimes():
            told, size = _form(form.form, place)
            return (f"perhaps: {told}" if _wanted(form, place) is None else told), size
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
    chosen = {name: place.net.initial[name] for name in form.names(place.net)}
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
