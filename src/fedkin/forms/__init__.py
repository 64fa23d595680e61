"""Forms of messages: what an honest sender would send, field by field, so that others can be refused unread.

A phase declares the fields of its reply, `@phase(params=NET, n=COUNT)`, and a method without a server those of each
exchange, `shares = {"share": {"params": NET}}`. `problem_of` says what is wrong with a message, if anything.
"""

from __future__ import annotations

from fedkin.forms.base import Context, Form, Problem, Upto
from fedkin.forms.check import problem_of
from fedkin.forms.kinds import (
    BODY,
    COUNT,
    HEAD,
    NET,
    TRAINABLE,
    Bytes,
    Choice,
    Each,
    Fields,
    Flag,
    Number,
    Shaped,
    Sums,
    Weights,
    Whole,
    Wholes,
)

__all__ = [
    "BODY",
    "COUNT",
    "HEAD",
    "NET",
    "TRAINABLE",
    "Bytes",
    "Choice",
    "Context",
    "Each",
    "Fields",
    "Flag",
    "Form",
    "Number",
    "Problem",
    "Shaped",
    "Sums",
    "Upto",
    "Weights",
    "Whole",
    "Wholes",
    "problem_of",
]  # fmt: skip
