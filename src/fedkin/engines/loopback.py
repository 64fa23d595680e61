"""The loopback engine, which tests a method under the conditions of a network, without a network."""

from __future__ import annotations

from typing import ClassVar

from fedkin.engines.local import LocalEngine
from fedkin.engines.local_site import LocalSite
from fedkin.engines.privacy import keyed
from fedkin.engines.states import BytesStates
from fedkin.engines.transport import BytesTransport

__all__ = ["LoopbackEngine"]


class LoopbackEngine(LocalEngine):
    """The engine in which every message and every client's state passes through bytes.

    Clients answer in shuffled order, and each has its own copy of the method, so that data that a method passes outside
    its messages are lost.
    """

    name: ClassVar[str] = "loopback"

    def make_site(self) -> LocalSite:
        return LocalSite(
            self.setup.plan, self.setup.federation, self.make_executor(), BytesStates(), self.clock, self.adversaries,
            own_method=True, noise=keyed(self.setup.seed),
        )  # fmt: skip

    def make_transport(self) -> BytesTransport:
        return BytesTransport(self.setup.seed)
