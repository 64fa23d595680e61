"""Whether a message has one of the forms that its phase declares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedkin import codec
from fedkin.forms.base import Context, Problem, bad_form, bad_value, shortened, unsound
from fedkin.forms.kinds import Fields

__all__ = ["problem_of"]


def problem_of(message: Mapping[str, Any], declared: Sequence[Fields] | None, context: Context) -> Problem | None:
    """What is wrong with a message, if anything; a message that cannot even be looked at is of a wrong form.

    declared: the fields, or several possible sets of fields. None: nothing is declared; the message must only be able
    to travel, have finite numbers, and not be too large.

    >>> from torch import nn
    >>> from fedkin.forms import COUNT, NET
    >>> from fedkin.learning.net import Net
    >>> from fedkin.tasks import Task
    >>> net = Net(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> context = Context(None, net, Task(2, (4,)))
    >>> problem_of({"params": net.initial, "n": 3}, [{"params": NET, "n": COUNT}], context)
    >>> problem_of({"params": net.initial, "n": -20}, [{"params": NET, "n": COUNT}], context).words
    'n: -20 is not within 1 and 1e+09'
    """
    try:
        if declared is None:
            return _undeclared(message, context)
        sent = dict(message.items())
        problems = [_keys(sent, fields, context) for fields in declared]
        if None not in problems:
            return problems[0]
        lengths: dict[str, int] = {}
        with np.errstate(all="ignore"):
            for name, form in declared[problems.index(None)].items():
                if name in sent:
                    problem = form.problem(sent[name], context, lengths)
                    if problem is not None:
                        return problem._replace(words=f"{name}: {problem.words}")
        return None
    except Exception as error:  # whoever made the message may have put anything into it
        return bad_form(f"it cannot be read ({type(error).__name__}: {shortened(error)})")


def _keys(message: Mapping[str, Any], fields: Fields, context: Context) -> Problem | None:
    for name, form in fields.items():
        wanted = form.wanted(context)
        if wanted is not None and wanted != (name in message):
            return bad_form(f"{name} is missing" if wanted else f"{name} was not asked for")
    odd = next((name for name in message if name not in fields), None)
    return None if odd is None else bad_form(f"{shortened(odd)} is not declared")


def _undeclared(message: Mapping[str, Any], context: Context) -> Problem | None:
    fields = dict(message)
    size = codec.size(fields)[0]
    if size > context.most_bytes:
        return bad_value(f"{size:,} bytes are more than run.message_limit_mb allows")
    for name, leaf in codec.leaves(fields):
        problem = unsound(leaf) if isinstance(leaf, Tensor) else _infinite(leaf)
        if problem is not None:
            return problem._replace(words=f"{name}: {problem.words}")
    return None


def _infinite(leaf: Any) -> Problem | None:
    if isinstance(leaf, list):
        return next((problem for item in leaf if (problem := _infinite(item))), None)
    fine = not isinstance(leaf, float) or math.isfinite(leaf)
    return None if fine else bad_value(f"{leaf} is not a finite number")
