"""Simulation of a federation on one machine, with the samples of all clients at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedkin.engines.adversaries import Attacks
from fedkin.engines.facts import facts_of
from fedkin.engines.forging import Forgery
from fedkin.engines.observer import Observer
from fedkin.engines.poisoning import poisoned
from fedkin.engines.roster import Roster
from fedkin.engines.rounds import Rounds
from fedkin.engines.setup import Setup
from fedkin.engines.transport import Transport
from fedkin.federation import Federation

__all__ = ["Simulation"]


class Simulation(Rounds):
    """The rounds of a federation whose clients are simulated (see `Rounds`)."""

    setup: Setup

    def __init__(self, setup: Setup, *, transport: Transport | None = None, observers: Sequence[Observer] = ()) -> None:
        attacks = Attacks.parse(setup.engine.adversaries)
        self.adversaries = attacks.clients(setup.federation.seen, setup.seed) if attacks else frozenset[str]()
        # Only too few replies undo a simulated round.
        self.undoes = setup.engine.min_replies > 0
        self.setup = setup = poisoned(setup, attacks, self.adversaries).equipped()
        super().__init__(
            setup.plan, Roster.of(setup.federation), setup.public, transport=transport, observers=observers,
            forgery=Forgery.of(setup, attacks, self.adversaries),
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        return facts_of(self.setup.federation)

    @property
    def federation(self) -> Federation:
        """The clients of the current round."""
        return self.setup.federation.at(max(self.server.round, 1))
