"""The loopback engine: what a network would do to a method, without a network."""

from __future__ import annotations

from typing import Any, ClassVar

from fedkin import codec
from fedkin.engines.local import LocalEngine
from fedkin.flow import Message, PeerMethod, ServerMethod
from fedkin.keys import rng

__all__ = ["LoopbackEngine"]


class LoopbackEngine(LocalEngine):
    """Every message and every client's state passes through bytes, clients answer in shuffled order, and each
    client holds its own copy of the method: whatever a method smuggles past its messages is lost here."""

    name: ClassVar[str] = "loopback"

    def method(self) -> ServerMethod | PeerMethod:
        method = self.setup.method
        return type(method).model_validate(method.model_dump())

    def order(self, ids: Any) -> list[str]:
        names = sorted(ids)
        drawn = rng(self.setup.seed, "", self.number, "loopback order").permutation(len(names))
        return [names[i] for i in drawn]

    def carried(self, message: Message) -> Message:
        return Message.from_bytes(message.to_bytes())

    def keep(self, id: str, state: dict[str, Any]) -> None:
        self.states[id] = codec.encode(state)

    def stored(self, id: str) -> dict[str, Any]:
        return codec.decode(self.states[id])
