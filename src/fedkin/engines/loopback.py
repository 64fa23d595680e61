"""The loopback engine: what a network would do to a method, without a network."""

from __future__ import annotations

from typing import ClassVar

from fedkin.engines.local import LocalEngine
from fedkin.engines.site import LocalSite
from fedkin.engines.states import BytesStates
from fedkin.engines.transport import BytesTransport

__all__ = ["LoopbackEngine"]


class LoopbackEngine(LocalEngine):
    """Every message and every client's state passes through bytes.

    Clients answer in shuffled order, and each has its own copy of the method: what a method passes outside its messages
    is lost here.
    """

    name: ClassVar[str] = "loopback"

    def make_site(self) -> LocalSite:
        return LocalSite(
            self.setup.plan, self.setup.federation, self.make_executor(), BytesStates(), self.clock, self.adversaries,
            own_method=True,
        )  # fmt: skip

    def make_transport(self) -> BytesTransport:
        return BytesTransport(self.setup.seed)
