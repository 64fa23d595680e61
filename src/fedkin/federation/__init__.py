"""A federation: clients with ids, their samples, and their planted groups if these are known."""

from __future__ import annotations

from fedkin.federation.federation import AnyRoster, Entry, Federation, Roster
from fedkin.federation.inputs import Inputs
from fedkin.federation.samples import Change, Client, Samples, Scale, constant
from fedkin.tasks import Task

__all__ = [
    "AnyRoster", "Change", "Client", "Entry", "Federation", "Inputs", "Roster", "Samples", "Scale", "Task", "constant",
]  # fmt: skip
