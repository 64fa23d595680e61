"""Whether a message has one of the forms that its phase declares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedkin import codec
from fedkin.forms.base import Fault, Place, bad_form, bad_value, shortened, unsound
from fedkin.forms.kinds import Fields

__all__ = ["all_fine", "fault_of"]


def fault_of(message: Mapping[str, Any], declared: Sequence[Fields] | None, place: Place) -> Fault | None:
    """What is wrong with a message, if anything; a message that cannot even be looked at is of a wrong form.

    declared: the fields, or several possible sets of fields. None: nothing is declared; the message must only be able
    to travel, have finite numbers, and not be too large.

    >>> from torch import nn
    >>> from fedkin.forms import COUNT, NET
    >>> from fedkin.learning.net import Net
    >>> from fedkin.tasks import Task
    >>> net = Net(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> place = Place(None, net, Task(2, (4,)))
    >>> fault_of({"params": net.initial, "n": 3}, [{"params": NET, "n": COUNT}], place)
    >>> fault_of({"params": net.initial, "n": -20}, [{"params": NET, "n": COUNT}], place).words
    'n: -20 is not within 1 and 1e+09'
    """
    try:
        if declared is None:
            return _undeclared(message, place)
        sent = dict(message.items())
        faults = [_keys(sent, fields, place) for fields in declared]
        if None not in faults:
            return faults[0]
        known: dict[str, int] = {}
        with np.errstate(all="ignore"):
            for name, form in declared[faults.index(None)].items():
                if name in sent:
                    found = form.fault(sent[name], place, known)
                    if found is not None:
                        return found._replace(words=f"{name}: {found.words}")
        return None
    except Exception as error:  # whoever made the message may have put anything into it
        return bad_form(f"it cannot be read ({type(error).__name__}: {shortened(error)})")


def all_fine(messages: Sequence[Mapping[str, Any]], declared: Sequence[Fields] | None, place: Place) -> bool:
    """Whether `fault_of` finds nothing in any of these messages, by one look at all; False: it needs a look at each.

    One look costs a small part of many where messages are small. place: `asked` is not looked at, so fields that
    depend on it need a look at each.
    """
    if declared is None or len(declared) != 1:
        return False
    (fields,) = declared
    try:
        if {frozenset(dict(message.items())) for message in messages} != {frozenset(fields)}:
            return False
        return all(form.all_fine([message[name] for message in messages], place) for name, form in fields.items())
    except Exception:  # whoever made the messages may have put anything into them; `fault_of` says what
        return False


def _keys(message: Mapping[str, Any], fields: Fields, place: Place) -> Fault | None:
    for name, form in fields.items():
        wanted = form.wanted(place)
        if wanted is not None and wanted != (name in message):
            return bad_form(f"{name} is missing" if wanted else f"{name} was not asked for")
    odd = next((name for name in message if name not in fields), None)
    return None if odd is None else bad_form(f"{shortened(odd)} is not declared")


def _undeclared(message: Mapping[str, Any], place: Place) -> Fault | None:
    fields = dict(message)
    size = codec.size(fields)[0]
    if size > place.most_bytes:
        return bad_value(f"{size:,} bytes are more than run.message_limit_mb allows")
    for name, leaf in codec.leaves(fields):
        found = unsound(leaf) if isinstance(leaf, Tensor) else _infinite(leaf)
        if found is not None:
            return found._replace(words=f"{name}: {found.words}")
    return None


def _infinite(leaf: Any) -> Fault | None:
    if isinstance(leaf, list):
        return next((found for item in leaf if (found := _infinite(item))), None)
    fine = not isinstance(leaf, float) or math.isfinite(leaf)
    return None if fine else bad_value(f"{leaf} is not a finite number")
