"""FLT: signatures, a graph of who is related, groups, and averaging along them."""

from __future__ import annotations

from fedkin.methods.flt.method import Flt

__all__ = ["Flt"]
