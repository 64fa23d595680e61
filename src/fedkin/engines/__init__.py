"""Engines, which carry out the requests of methods."""

from __future__ import annotations

from fedkin.engines.privacy import Privacy
from fedkin.engines.results import Missing, Outcome, Traffic
from fedkin.engines.rounds import Engine
from fedkin.engines.setup import EngineSettings, Faults, Setup
from fedkin.engines.simulation import LocalEngine, LoopbackEngine, RayEngine
from fedkin.engines.transport import Envelope, Observer, RecordingObserver, Transport
from fedkin.learning.metrics import Score

__all__ = [
    "ENGINES", "Engine", "EngineSettings", "Envelope", "Faults", "LocalEngine", "LoopbackEngine", "Missing", "Observer",
    "Outcome", "Privacy", "RayEngine", "RecordingObserver", "Score", "Setup", "Traffic", "Transport",
]  # fmt: skip

ENGINES: dict[str, type[LocalEngine]] = {engine.name: engine for engine in (LocalEngine, LoopbackEngine, RayEngine)}
