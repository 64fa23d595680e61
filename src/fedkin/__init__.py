"""fedkin: learn who should learn with whom.

>>> import fedkin
>>> fed = fedkin.federate("digits", "rotated-masked", clients=8, seed=0)
>>> result = fedkin.run("sfmtl-graph", fed, rounds=2, seed=0)
>>> len(result.rounds)
2
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedkin._version import __version__

if TYPE_CHECKING:
    from fedkin.comparing import Comparison, compare, sweep
    from fedkin.data import federate
    from fedkin.errors import FedkinError
    from fedkin.federation import Client, Federation, Samples, Task
    from fedkin.flow import Ask, Fit, Infer, Message, PeerMethod, ServerMethod, Share, phase
    from fedkin.learning.metrics import metric
    from fedkin.learning.net import Net
    from fedkin.learning.training import Training
    from fedkin.records.run import Result
    from fedkin.running.api import run
    from fedkin.running.model_loader import Loaded, load

_PLACES = {
    "compare": "fedkin.comparing", "Comparison": "fedkin.comparing", "sweep": "fedkin.comparing",
    "federate": "fedkin.data",
    "FedkinError": "fedkin.errors", "Client": "fedkin.federation",
    "Federation": "fedkin.federation", "Samples": "fedkin.federation", "Task": "fedkin.federation",
    "Ask": "fedkin.flow", "Fit": "fedkin.flow", "Infer": "fedkin.flow", "Message": "fedkin.flow",
    "PeerMethod": "fedkin.flow", "ServerMethod": "fedkin.flow", "Share": "fedkin.flow",
    "phase": "fedkin.flow",
    "metric": "fedkin.learning.metrics",
    "Net": "fedkin.learning.net", "Training": "fedkin.learning.training", "run": "fedkin.running.api",
    "Loaded": "fedkin.running.model_loader", "load": "fedkin.running.model_loader", "Result": "fedkin.records.run",
}  # fmt: skip

_ROOMS = ("analysis", "data", "flow", "forms", "graph", "learning", "methods", "testing")

__all__ = [
    "Ask", "Client", "Comparison", "Federation", "FedkinError", "Fit", "Infer", "Loaded", "Message", "Net",
    "PeerMethod", "Result", "Samples", "ServerMethod", "Share", "Task", "Training", "__version__", "compare",
    "federate", "load", "metric", "phase", "run", "sweep",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return the public names and the public submodules."""
    return sorted([*__all__, *_ROOMS])


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `fedkin.graph` alone must not load torch."""
    if name in _ROOMS:
        return import_module(f"fedkin.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'fedkin' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
