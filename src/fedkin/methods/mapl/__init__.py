"""MAPL: peers with unlike models share heads and prototypes, and learn whom to listen to."""

from __future__ import annotations

from fedkin.methods.mapl.method import Mapl
from fedkin.methods.mapl.plus import MaplPlus

__all__ = ["Mapl", "MaplPlus"]
