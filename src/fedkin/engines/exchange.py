"""Exchanges of messages between a server and its clients, or between peers: sent, carried, checked, answered.

What does not arrive, is refused at the door, or fails at a client is missing, and the post records it with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

from fedkin.engines.answers import PartialReply
from fedkin.engines.blame import place_in
from fedkin.engines.client_side import Outbox
from fedkin.engines.door import Awaited, Door
from fedkin.engines.failures import Failure, TooFew, raise_if_all
from fedkin.engines.forging import Forgery
from fedkin.engines.post import Check, Post
from fedkin.engines.setup import Plan
from fedkin.engines.site import Site
from fedkin.engines.transport import SERVER, Envelope
from fedkin.errors import MethodError
from fedkin.flow import Ask, Message
from fedkin.forms import Fault
from fedkin.learning.aggregate import AveragedReplies, Mean, RunningMean

__all__ = ["Exchange", "Skipped"]


_BLOCK = 256 << 20  # bytes of models that are held at once where only their mean is needed


class Skipped(Exception):
    """Too few clients answered, so that the round is skipped."""


class Exchange:
    """Requests of a server and messages of peers go by way of a post, and a site answers them.

    patient: whether too few replies have the consequence that the settings say. forgery: what adversaries send.
    """

    def __init__(
        self, plan: Plan, site: Site, post: Post, patient: bool = True, forgery: Forgery | None = None
    ) -> None:
        self.plan, self.site, self.post, self.patient = plan, site, post, patient
        self.door, self.forgery = Door(plan), forgery
        size = sum(tensor.nbytes for tensor in plan.net.initial.values())
        self.block = max(1, _BLOCK // max(size, 1))

    def answers(self, ask: Ask, round: int, turn: int) -> Mapping[str, Message]:
        """Return replies as the server receives them, in the order in which clients are served.

        Raises Skipped or TooFew if too few clients have answered.
        """
        settings = self.plan.engine
        needed = settings.needed(len(ask.messages)) if self.patient else 0
        tries = 1 + (settings.retries if needed and settings.on_missing == "wait" else 0)
        made: dict[str, Message] = {}
        came: dict[str, Message] = {}
        for attempt in range(tries):
            rest = Ask(ask.phase, {id: message for id, message in ask.messages.items() if id not in came}, ask.mean)
            answer = self._asked(rest, round, turn, attempt, made)
            if isinstance(answer, AveragedReplies):
                return answer
            came |= answer
            if len(came) >= needed:
                return {id: came[id] for id in self.post.transport.order(came, round)} if attempt else came
        told = (
            f"round {round}, phase {ask.phase!r}: {len(came)} of {len(ask.messages)} clients answered, fewer than the "
            f"{needed} of run.min_replies"
        )
        raise TooFew(told) if settings.on_missing == "stop" else Skipped(told)

    def _asked(self, ask: Ask, round: int, turn: int, attempt: int, made: dict[str, Message]) -> Mapping[str, Message]:
        """Ask once. made: what clients have answered to the same request before, which they send again."""
        order = self.post.transport.order(ask.messages, round)
        sent = [Envelope(round, ask.phase, turn, SERVER, id, ask.messages[id], "", attempt) for id in order]
        there = {envelope.receiver: envelope.message for envelope in self.post.send(sent)}
        sums_at_once = not (self.post.observers or self.forgery or self.plan.engine.min_replies)
        if ask.mean is not None and sums_at_once and order == sorted(order):
            return self._averaged(ask, ask.mean, there, round, turn)
        replies = self.site.ask(ask.phase, {id: message for id, message in there.items() if id not in made})
        failed = self.failed(round)
        if self.forgery:
            replies = self.forgery.replies(ask.phase, there, replies, round)
        made |= replies
        ready = {id: made[id] for id in there if id in made} if attempt else replies
        back = [Envelope(round, ask.phase, turn, id, SERVER, reply, "", attempt) for id, reply in ready.items()]
        came = self.post.send(back, check=self._check(ask, round, turn))
        self._stop_if_all(len(there), failed, back)
        return {envelope.sender: envelope.message for envelope in came}

    def _check(self, ask: Ask, round: int, turn: int) -> Check:
        return partial(self.door.look, awaited=Awaited(round, turn, ask.messages, lambda envelope: ask.phase))

    def _averaged(self, ask: Ask, mean: Mean, there: Mapping[str, Message], round: int, turn: int) -> AveragedReplies:
        """Ask once, and add the replies to the mean in blocks, as they come in the order of the ids."""
        post, check, running = self.post, self._check(ask, round, turn), RunningMean()
        replies: dict[str, Message] = {}
        sent: list[Envelope] = []
        refused: list[tuple[Envelope, Fault]] = []
        unsent: dict[str, Exception] = {}
        replies_in_order = self.site.replies(ask.phase, there)
        while block := list(islice(replies_in_order, self.block)):
            back = [Envelope(round, ask.phase, turn, id, SERVER, reply) for id, reply in block]
            for envelope in post.send(back, check=check):
                running.add(envelope.message[mean.field], mean.weigh(envelope.message))
                replies[envelope.sender] = PartialReply(envelope.message, mean)
            sent += [envelope._replace(message=Message()) for envelope in back]
            refused += [(envelope._replace(message=Message()), fault) for envelope, fault in post.refused]
            unsent |= post.unsent
        post.refused, post.unsent = refused, unsent
        self._stop_if_all(len(there), self.failed(round), sent)
        return AveragedReplies(mean, replies, running)

    def step(
        self, inboxes: Mapping[str, dict[str, Message] | None], round: int, turn: int
    ) -> dict[str, dict[str, Message] | None]:
        """Give peers their inboxes; returns the new inboxes of those that have shared, and not ended their round."""
        posts = self.site.step(inboxes)
        failed = self.failed(round)
        if self.forgery:
            posts = self.forgery.posts(posts, round, turn)
        senders = dict.fromkeys(posts, Message())
        awaited = Awaited(round, turn, senders, lambda envelope: posts[envelope.receiver].phase, answers=False)
        found: dict[str, dict[str, Message]] = {id: {} for id in posts}
        sent: list[Envelope] = []
        refused: list[tuple[Envelope, Fault]] = []
        unsent: dict[str, Exception] = {}
        for sender in self.post.transport.order(posts, round):
            shared = _envelopes(posts[sender], round, turn, sender)
            for envelope in self.post.send(shared, posts, partial(self.door.look, awaited=awaited)):
                found[envelope.receiver][sender] = envelope.message
            sent += shared
            refused += self.post.refused
            unsent |= self.post.unsent
        self.post.refused, self.post.unsent = refused, unsent
        self._stop_if_all(len(inboxes), failed, sent)
        return {**found}

    def reports(self, ids: Iterable[str], round: int) -> dict[str, Message]:
        """Return the reports of peers for the records, those that are fit for them."""
        told = self.site.reports(ids)
        self.failed(round)
        fine = {}
        for id, message in told.items():
            fault = self.door.fault(id, "report", message, Message())
            if fault is None:
                fine[id] = message
            else:
                self.post.miss(Envelope(round, "report", 0, id, SERVER, message), f"refused: {fault.words}")
        return fine

    def late(self, arrived: Sequence[Envelope], round: int) -> None:
        """Refuse what comes in this round and is of an earlier one."""
        faults = self.door.look(arrived, Awaited(round, 0, {}, lambda envelope: envelope.phase))
        for envelope, fault in zip(arrived, faults, strict=True):
            assert fault is not None
            self.post.miss(envelope._replace(round=round), f"{fault.kind}: {fault.words}")

    def failed(self, round: int, post: Post | None = None) -> list[Failure]:
        """Return the failures at the site, recorded by a post (None: this one's)."""
        failed = self.site.failed()
        for failure in failed:
            envelope = Envelope(round, failure.phase, 0, failure.id, SERVER, Message())
            (post or self.post).miss(envelope, f"{failure.kind}: {failure.words}")
        return failed

    def _stop_if_all(self, asked: int, failed: Sequence[Failure], sent: Sequence[Envelope]) -> None:
        """Raise the first error if all clients have failed, or if the form of every message was refused."""
        unsent = [Failure(id, "", str(error), error) for id, error in self.post.unsent.items()]
        if unsent and self.plan.engine.errors == "stop":
            raise self.post.unsent[unsent[0].id]
        raise_if_all(asked, [*failed, *unsent])
        refused = self.post.refused
        if len(sent) > 1 and len(refused) == len(sent) and not self.plan.faults.garbage:
            envelope, fault = refused[0]
            raise MethodError(
                f"{place_in(self.plan.method, envelope.phase)}round {envelope.round}, phase {envelope.phase!r}: every "
                "message was refused, the first, of "
                f"{envelope.sender!r}, because {fault.words}; declare what this phase sends: @phase(...), or `shares`"
            )


def _envelopes(post: Outbox, round: int, turn: int, sender: str) -> list[Envelope]:
    return [Envelope(round, post.phase, turn, sender, receiver, message) for receiver, message in post.messages.items()]
