"""Who gets which samples. Adding one takes one module here, with a subclass of Scenario that names itself."""

from __future__ import annotations

from fedkin.data.registry import discover
from fedkin.data.scenarios.base import Scenario

__all__ = ["SCENARIOS", "Scenario"]

SCENARIOS: dict[str, type[Scenario]] = discover(__name__, __path__, Scenario, "name")
