"""Runners: they carry out what methods yield."""

from __future__ import annotations

from fedkin.engines.base import Engine, Outcome, Score, Setup, Traffic
from fedkin.engines.local import LocalEngine
from fedkin.engines.loopback import LoopbackEngine
from fedkin.engines.ray import RayEngine

__all__ = ["ENGINES", "Engine", "LocalEngine", "LoopbackEngine", "Outcome", "RayEngine", "Score", "Setup", "Traffic"]

ENGINES: dict[str, type[Engine]] = {"local": LocalEngine, "loopback": LoopbackEngine, "ray": RayEngine}
