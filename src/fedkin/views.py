"""What a client, a peer or the server has at hand inside a flow; nothing else may be reached from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from typing_extensions import TypeVar

from fedkin.codec import Params
from fedkin.errors import ConfigError
from fedkin.federation import Samples, Task
from fedkin.keys import key, rng

if TYPE_CHECKING:
    from fedkin.data import Dataset
    from fedkin.graph import Graph
    from fedkin.learning.net import Net
    from fedkin.learning.training import Training

__all__ = ["ClientView", "PeerView", "ServerView", "View"]

# What a method keeps at this participant: a TypedDict of the method's, or any dict.
S = TypeVar("S", bound=Mapping[str, Any], default=dict[str, Any])


@dataclass(eq=False)
class View(Generic[S]):
    """What every participant knows: the task, the net, the settings of training, the round, its own state."""

    seed: int
    round: int
    net: Net
    task: Task
    training: Training
    state: S

    @property
    def initial(self) -> Params:
        """The parameters that every participant starts from."""
        return self.net.initial


@dataclass(eq=False)
class ClientView(View[S]):
    """A client's side of a ServerMethod: its own samples and state."""

    id: str
    train: Samples

    @property
    def size(self) -> int:
        """Number of training samples, n_k."""
        return len(self.train)

    def rng(self, purpose: str) -> np.random.Generator:
        """A generator keyed by (seed, client id, round, purpose)."""
        return rng(self.seed, self.id, self.round, purpose)


@dataclass(eq=False)
class PeerView(ClientView[S]):
    """A peer: a client without a server, which knows the ids of its neighbours."""

    neighbours: tuple[str, ...]


def no_public_data(name: str) -> Dataset:
    """Raise ConfigError: this server owns no data."""
    raise ConfigError(f"the server has no folder of data sets to read {name!r} from: give a data root")


@dataclass(eq=False)
class ServerView(View[S]):
    """The server: the ids of its clients (sorted), its own state, and never a client's samples.

    clients: those that take part, and have joined by now. public(name): a data set that the server owns itself.
    graph: the graph that this round made, if it made one. info: this round's figures by name, for the records.
    """

    clients: tuple[str, ...]
    planted: Mapping[str, str] | None = None
    graph: Graph | None = None
    info: Mapping[str, float | None] = field(default_factory=dict)
    public: Callable[[str], Dataset] = no_public_data

    def rng(self, purpose: str) -> np.random.Generator:
        """A generator keyed by (seed, "server", round, purpose)."""
        return rng(self.seed, "", self.round, purpose)

    def key(self, purpose: str) -> int:
        """A seed, for libraries that want an integer: keyed by (seed, "server", round, purpose), below 2^31."""
        return key(self.seed, "", self.round, purpose) >> 32
