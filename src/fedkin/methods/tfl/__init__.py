"""TFL: a graph of clients' models says who is central, and central clients are the prior of the objective."""

from __future__ import annotations

from fedkin.methods.tfl.method import Tfl

__all__ = ["Tfl"]
