"""The answer to an Ask with a mean: what a server's flow gets of the replies, the same from every runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fedkin.errors import OnlyMean
from fedkin.flow import Ask, Message
from fedkin.learning.aggregate import Mean, Summed

__all__ = ["Rest", "answer_to"]


class Rest(Message):
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
    if mean is None or isinstance(replies, Summed):
        return replies
    return Summed(mean, _Rests(replies, mean), partial(mean.of, replies))


class _Rests(Mapping[str, Message]):
    """Replies as `Rest`, each made when it is looked at: most servers look at none."""

    def __init__(self, replies: Mapping[str, Message], mean: Mean) -> None:
        self.replies, self.mean = replies, mean

    def __getitem__(self, id: str) -> Message:
        return Rest(self.replies[id], self.mean)

    def __iter__(self) -> Iterator[str]:
        return iter(self.replies)

    def __len__(self) -> int:
        return len(self.replies)
