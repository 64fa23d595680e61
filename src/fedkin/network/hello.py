"""Hellos: what a client tells a server to join, to leave, or when its samples have changed; and the answers.

To join, it says hello in up to three stages: with the columns of its table, with a profile of its rows (both only if
the experiment learns from tables), and with its description.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictStr

from fedkin.federation import Client, Federation
from fedkin.network.agreement import Agreement
from fedkin.network.messages import Count, Id, WireMessage
from fedkin.settings import Settings
from fedkin.tasks import Task

NEXT_ROUND = "the next round"  # what a late client waits for
LARGEST_HELLO = 1 << 26  # bytes
_SAMPLES = 10**12


class About(Settings):
    """A client's description of itself: numbers of samples, a hash of them, and optionally its group.

    seen: whether the client takes part; otherwise it is only evaluated, and takes a model home.
    """

    n_train: int = Field(ge=1, le=_SAMPLES)
    n_test: int = Field(ge=0, le=_SAMPLES)
    digest: str = Field(pattern="^[0-9a-f]{32}$")
    group: str | None = Field(None, max_length=100)
    seen: bool = True


def about_of(client: Client, task: Task) -> About:
    """Return the description of a client."""
    digest = Federation([client], task).fingerprint()
    return About(n_train=client.size, n_test=len(client.test), digest=digest, group=client.group)


Stage = Literal["columns", "profile", "about"]


class Hello(WireMessage):
    """A client's hello to the server: its columns, its profile (both as JSON), or its description.

    nonce: id of this hello; the server answers each hello once. life: id of the client's process. leaves: whether the
    client leaves for good. seen: as in `About`.
    """

    nonce: Annotated[StrictStr, Field(pattern="^[0-9a-f]{8}$")]
    life: Id
    agreement: Agreement
    columns: StrictStr = ""
    profile: StrictStr = ""
    leaves: StrictBool = False
    seen: StrictBool = True
    about: About | None = None

    @property
    def stage(self) -> Stage:
        """The stage of registration."""
        return "about" if self.about is not None else "profile" if self.profile else "columns"


class HelloReceived(WireMessage):
    """The server has read a hello. missing: whom or what it still waits for, as text."""

    missing: Annotated[StrictStr, Field(max_length=1000)] = ""


class Welcome(WireMessage):
    """The server's answer to a hello: the common columns or encoding, where a client begins, or why it is refused.

    columns, encoding: as JSON.
    """

    run: Annotated[StrictStr, Field(pattern="^[0-9a-z]{0,32}$")] = ""
    epoch: Annotated[StrictStr, Field(pattern="^[0-9a-z]{0,32}$")] = ""
    number: Count = 0
    columns: StrictStr = ""
    encoding: StrictStr = ""
    refused: Annotated[StrictStr, Field(max_length=2000)] = ""
