"""The answer to an Ask with a mean: what a server's flow gets of the replies, the same from every runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkin.errors import OnlyMean
from fedkin.flow import Ask, Message
from fedkin.learning.aggregate import AveragedReplies, Mean, RunningMean

__all__ = ["PartialReply", "answer_to"]


class PartialReply(Message):
    """A reply without the field of which the server has asked for the mean."""

    def __init__(self, reply: Message, mean: Mean) -> None:
        super().__init__(**{name: value for name, value in reply.items() if name != mean.field})
        self.mean = mean

    def __getitem__(self, name: str) -> Any:
        if name == self.mean.field:
            raise OnlyMean(
                f"the reply has no field {name!r} of its own, since it answers Ask(..., mean={self.mean!r}): "
                "`mean.of(answer)`, with the answer as it came, is the mean over all replies; leave out `mean` where "
                "single replies are needed"
            )
        return super().__getitem__(name)


def answer_to(ask: Ask, replies: Mapping[str, Message]) -> Mapping[str, Message]:
    """Return what the server's flow gets for its request when these replies have come."""
    mean = ask.mean
    if mean is None or isinstance(replies, AveragedReplies):
        return replies
    running = RunningMean()
    for id in sorted(replies):
        running.add(replies[id][mean.field], mean.weigh(replies[id]))
    return AveragedReplies(mean, {id: PartialReply(reply, mean) for id, reply in replies.items()}, running)
