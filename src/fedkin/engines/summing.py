"""Replies of which a server needs a mean only: they are added as they come, so that few are in memory at once.

A weighted mean multiplies each term by its weight over the sum of all weights. That sum is known when the last reply
has come, so it is guessed: each client's weight is taken to be that of its last reply, or its number of samples. If the
guess turns out wrong, because a client failed or weighs otherwise, the clients that answered compute their replies
again, which have the same bits, and these are added with the right sum. Either way the mean has the bits of
`weighted_mean` of all replies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

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
        self.size = sum(tensor.nbytes for tensor in plan.net.initial.values())
        self.weights: dict[str, dict[str, float]] = {}
        self.wrong: Counter[str] = Counter()

    def can(self, ask: Ask, there: Mapping[str, Message], transport: Transport) -> bool:
        """Whether the replies to these messages, as they arrived, can be summed."""
        mean = ask.mean
        if mean is None or not self.able or len(there) * self.size < LEAST or type(transport) is not Transport:
            return False
        if self.wrong[ask.phase] >= _WRONG:
            return False
        declared = self.plan.method.declared(ask.phase) or ()
        if len(declared) != 1 or not isinstance(declared[0].get(mean.field), Weights):
            return False
        weight = None if mean.weight is None else declared[0].get(mean.weight)
        return mean.weight is None or (isinstance(weight, Whole) and weight.low > 0)

    def take(
        self, phase: str, mean: Mean, there: Mapping[str, Message], came: Callable[[str, Message], Message | None]
    ) -> Summed:
        """Ask the clients; `came` returns a reply as it arrives, or None if it does not arrive."""
        site, known = self.site, self.weights.setdefault(phase, {})
        assert site is not None
        guess = {id: self._guess(known, mean, id) for id in sorted(there)}
        total = float(sum(guess.values()))
        repeat, sum_, replies = site.repeat(phase, there), RunningMean(total), dict[str, Message]()
        for id, reply in site.replies(phase, there):
            message = came(id, reply)
            if message is None:
                continue
            known[id] = mean.weigh(message)
            if total:
                sum_.add(message[mean.field], known[id])
            replies[id] = Message(**{name: value for name, value in message.items() if name != mean.field})
        for id in there:
            if id not in replies:
                known[id] = 0.0
        right = float(sum(known[id] for id in sorted(replies)))
        self.wrong[phase] = self.wrong[phase] + 1 if right != total else 0
        if replies and right != total:
            sum_ = self._again(phase, mean, {id: there[id] for id in replies}, right, repeat)
        return Summed(replies, sum_.made)

    def _guess(self, known: Mapping[str, float], mean: Mean, id: str) -> float:
        assert self.site is not None
        size = self.site.side.client(id).size
        return known[id] if id in known else float(size if mean.weight is not None else size > 0)

    def _again(
        self, phase: str, mean: Mean, there: Mapping[str, Message], total: float, repeat: Callable[[], None]
    ) -> RunningMean:
        """Add the replies of these clients, which compute them again."""
        site, sum_, known = self.site, RunningMean(total), self.weights[phase]
        assert site is not None
        repeat()
        left = list(there)
        with site.uncounted():
            for id, reply in site.replies(phase, there):
                left.remove(id)
                sum_.add(reply[mean.field], known[id])
        if left:
            raise MethodError(
                f"phase {phase!r}: client {left[0]!r} answered, and not when it was asked the same again: a phase must "
                "depend on nothing but the client's samples, its state, its message and draws from client.rng"
            )
        return sum_
