"""Kin: clients say once what their samples are like; tests find who may share a model, and how."""

from __future__ import annotations

from fedkin.methods.kin.method import Kin

__all__ = ["Kin"]
