"""Forms of messages: what an honest sender would send, field by field, so that others can be refused unread.

A phase declares the fields of its reply, `@phase(params=NET, n=COUNT)`, and a method without a server those of each
exchange, `shares = {"share": {"params": NET}}`. `fault_of` says what is wrong with a message, if anything.
"""

from __future__ import annotations

from fedkin.forms.base import Fault, Form, Place, Upto
from fedkin.forms.check import all_fine, fault_of
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
)  # fmt: skip

__all__ = [
    "BODY",
    "COUNT",
    "HEAD",
    "NET",
    "TRAINABLE",
    "Bytes",
    "Choice",
    "Each",
    "Fault",
    "Fields",
    "Flag",
    "Form",
    "Number",
    "Place",
    "Shaped",
    "Sums",
    "Upto",
    "Weights",
    "Whole",
    "Wholes",
    "all_fine",
    "fault_of",
]  # fmt: skip
