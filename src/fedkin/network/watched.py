"""The door of a participant on a network: it also counts by whom messages came that were refused for their form."""

from __future__ import annotations

from fedkin.engines.door import Door
from fedkin.engines.setup import Plan
from fedkin.flow import Message
from fedkin.forms import Fault
from fedkin.network.link import Refusals

__all__ = ["WatchedDoor"]


class WatchedDoor(Door):
    """A door that notes each fault among the refusals of a link."""

    def __init__(self, plan: Plan, refused: Refusals) -> None:
        super().__init__(plan)
        self.refused = refused

    def fault(self, sender: str, phase: str, message: Message, asked: Message) -> Fault | None:
        found = super().fault(sender, phase, message, asked)
        if found is not None:
            self.refused.add(sender, phase, found.words)
        return found
