"""Engines, which carry out the requests of methods."""

from __future__ import annotations

from fedkin.engines.base import Engine, Outcome, Score, Traffic
from fedkin.engines.faults import Faults
from fedkin.engines.local import LocalEngine
from fedkin.engines.loopback import LoopbackEngine
from fedkin.engines.observer import Observer, Witness
from fedkin.engines.privacy import Privacy
from fedkin.engines.processes import ProcessesEngine
from fedkin.engines.ray import RayEngine
from fedkin.engines.settings import EngineSettings
from fedkin.engines.setup import Setup
from fedkin.engines.simulation import Simulation
from fedkin.engines.transport import Envelope, Transport

__all__ = [
    "ENGINES", "Engine", "EngineSettings", "Envelope", "Faults", "LocalEngine", "LoopbackEngine", "Observer", "Outcome",
    "Privacy", "ProcessesEngine", "RayEngine", "Score", "Setup", "Traffic", "Transport", "Witness",
]  # fmt: skip

ENGINES: dict[str, type[Simulation]] = {
    engine.name: engine for engine in (LocalEngine, LoopbackEngine, ProcessesEngine, RayEngine)
}
