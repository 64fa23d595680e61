"""Scenarios: which client gets which samples. To add one, add a module with a named subclass of Scenario here."""

from __future__ import annotations

from fedkin.data.registry import discover
from fedkin.data.scenarios.base import Scenario

__all__ = ["SCENARIOS", "Scenario"]

SCENARIOS: dict[str, type[Scenario]] = discover(__name__, __path__, Scenario, "name")
