"""Replies of which a server needs a mean only: they are added as they come, so that few are in memory at once.

A weighted mean multiplies each term by its weight over the sum of all weights. That sum is known when the last reply
has come, so it is guessed: each client's weight is taken to be that of its last reply, or its number of samples. If the
guess turns out wrong, because a client failed or weighs otherwise, the clients that answered go back to their states
before, and compute their replies again, which have the same bits. These are added with the right sum. Either way the
mean has the bits of `weighted_mean` of all replies.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedkin.engines.answers import Rest
from fedkin.engines.faults import Faults
from fedkin.engines.local_site import LocalSite
from fedkin.engines.setup import Plan
from fedkin.engines.site import Site
from fedkin.engines.transport import Transport
from fedkin.errors import MethodError
from fedkin.flow import Ask, Message
from fedkin.forms import Weights, Whole
from fedkin.learning.aggregate import Mean, RunningMean, Summed

__all__ = ["LEAST", "Summing"]

LEAST = 256 << 20  # bytes of the models of one exchange from which they are not held
_WRONG = 3  # wrong guesses in a row after which the replies of a phase are held again
_REST = 10  # exchanges in which they are, before it is tried again
_GONE = 2  # failures in a row after which a client is expected to fail
_LOG = logging.getLogger("fedkin")

_Key = tuple[str, Mean]  # a phase, and what is asked of its replies


@dataclass
class _Last:
    """The weight of a client's last reply (None: there was none), its size then, and how often it failed since."""

    weight: float | None = None
    size: int = 0
    missed: int = 0

    def guess(self, size: int, alike: bool) -> float:
        """Return the weight that is expected of a client that now has so many samples. alike: every weight is 1."""
        if not size or self.missed >= _GONE:
            return 0.0
        if alike:
            return 1.0
        return float(size) if self.weight is None or self.weight == self.size else self.weight


class Summing:
    """What is known of the weights in each phase, and whether its replies can be summed as they come.

    This needs clients in this process, whose replies go nowhere else: nobody changes, loses, delays or watches them.
    """

    def __init__(self, plan: Plan, site: Site) -> None:
        self.plan = plan
        self.site = site if isinstance(site, LocalSite) else None
        settings = plan.engine
        self.able = (
            self.site is not None and plan.faults == Faults() and not plan.privacy.on and plan.nets is None
            and settings.adversaries == "none" and not settings.min_replies
        )  # fmt: skip
        self.last: defaultdict[_Key, defaultdict[str, _Last]] = defaultdict(lambda: defaultdict(_Last))
        self.wrong: Counter[_Key] = Counter()
        self.resting: Counter[_Key] = Counter()
        self.told: set[_Key] = set()

    def can(self, ask: Ask, there: Mapping[str, Message], transport: Transport) -> bool:
        """Whether the replies to these messages, as they arrived, can be summed."""
        mean = ask.mean
        if mean is None or not self.able or type(transport) is not Transport:
            return False
        declared = self.plan.method.declared(ask.phase) or ()
        form = declared[0].get(mean.field) if len(declared) == 1 else None
        if not isinstance(form, Weights) or len(there) * self._size(form) < LEAST:
            return False
        weight = None if mean.weight is None else declared[0].get(mean.weight)
        if mean.weight is not None and not (isinstance(weight, Whole) and weight.low > 0):
            return False
        rests = self.resting[ask.phase, mean] > 0
        self.resting[ask.phase, mean] -= rests
        return not rests

    def _size(self, form: Weights) -> int:
        """Return the bytes of the tensors that this form declares."""
        named = self.plan.net.initial.items()
        return sum(t.nbytes for name, t in named if name.startswith(form.only) and not name.startswith(form.but))

    def take(
        self, phase: str, mean: Mean, there: Mapping[str, Message], came: Callable[[str, Message], Message | None],
        sound: Callable[[str, Message], bool],
    ) -> Summed:  # fmt: skip
        """Ask the clients; `came` returns a reply as it arrives, or None if it does not arrive.

        sound: whether the door lets a reply pass that is computed again.
        """
        site, last = self.site, self.last[phase, mean]
        assert site is not None
        sizes = {id: site.side.client(id).size for id in sorted(there)}
        total = float(sum(last[id].guess(size, mean.weight is None) for id, size in sizes.items()))
        repeat, sum_, replies = site.repeat(phase, there), RunningMean(total), dict[str, Message]()
        weights: dict[str, float] = {}
        for id, reply in site.replies(phase, there):
            message = came(id, reply)
            if message is None:
                continue
            weights[id] = mean.weigh(message)
            if total:
                sum_.add(message[mean.field], weights[id])
            replies[id] = Rest(message, mean)
        for id, size in sizes.items():
            if id in weights:
                last[id] = _Last(weights[id], size)
            elif size:
                last[id].missed += 1
        right = float(sum(weights[id] for id in sorted(weights)))
        self._note((phase, mean), right == total)
        if replies and right != total:
            repeat(weights)
            sum_ = self._again(phase, mean, {id: there[id] for id in weights}, weights, sound)
        return Summed(mean, replies, lambda: sum_.made)

    def _note(self, key: _Key, right: bool) -> None:
        """Count wrong guesses; after some in a row the replies of the next exchanges are held."""
        self.wrong[key] = 0 if right else self.wrong[key] + 1
        if self.wrong[key] < _WRONG:
            return
        self.resting[key] = _REST
        if key not in self.told:
            self.told.add(key)
            _LOG.warning(
                f"phase {key[0]!r}: the sum of the weights was not what was expected in {_WRONG} exchanges in a row, "
                "since clients fail or weigh otherwise than before, so that each was computed twice: the replies of "
                f"{_REST} exchanges are held in memory, then adding them as they come is tried again"
            )

    def _again(
        self, phase: str, mean: Mean, there: Mapping[str, Message], weights: Mapping[str, float],
        sound: Callable[[str, Message], bool],
    ) -> RunningMean:  # fmt: skip
        """Add the replies of these clients, which compute them again."""
        site, sum_ = self.site, RunningMean(float(sum(weights[id] for id in sorted(weights))))
        assert site is not None
        left = dict.fromkeys(there)
        with site.uncounted():
            for id, reply in site.replies(phase, there):
                if sound(id, reply) and mean.weigh(reply) == weights[id]:
                    del left[id]
                    sum_.add(reply[mean.field], weights[id])
        if left:
            raise MethodError(
                f"phase {phase!r}: client {next(iter(left))!r} answered, and not the same, or not at all, when it was "
                "asked the same again: a phase must depend on nothing but the client's samples, its state, its message "
                "and draws from client.rng"
            )
        return sum_
