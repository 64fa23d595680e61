"""Views: all data that a client, a peer or the server may use inside a flow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from typing_extensions import TypeVar

from fedkin.codec import Params
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Samples, Task
from fedkin.keys import key, rng

if TYPE_CHECKING:
    from fedkin.data import Dataset
    from fedkin.graph import Graph
    from fedkin.learning.net import Net
    from fedkin.learning.training import Training

__all__ = ["ClientView", "PeerView", "Sealed", "ServerView", "View"]

# The type of the state that a method keeps at a participant: a TypedDict of the method, or any dict.
S = TypeVar("S", bound=Mapping[str, Any], default=dict[str, Any])


@dataclass(eq=False)
class View(Generic[S]):
    """The part of every view: the task, the net, the training settings, the round, and the participant's state."""

    seed: int
    round: int
    net: Net
    task: Task
    training: Training
    state: S
    # Standard deviation of the noise on a client's signature under `privacy.signature_epsilon`; None: no noise.
    signature_noise: float | None = field(default=None, kw_only=True)

    @property
    def initial(self) -> Params:
        """The initial parameters, which are the same for every participant."""
        return self.net.initial


@dataclass(eq=False)
class ClientView(View[S]):
    """A client of a ServerMethod, with its own samples and state."""

    id: str
    train: Samples

    @property
    def size(self) -> int:
        """The number of training samples, n_k."""
        return len(self.train)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator keyed by (seed, client id, round, purpose)."""
        return rng(self.seed, self.id, self.round, purpose)


class Sealed:
    """A stand-in for a client's samples where a flow must not read them: it gives only their number."""

    def __init__(self, size: int, method: str) -> None:
        self._size, self._method = size, method

    def __len__(self) -> int:
        return self._size

    def __getattr__(self, name: str) -> Any:
        raise RunError(
            f"method {self._method!r} reads samples outside of training, which privacy.sample_epsilon does not "
            "protect; choose another method (docs/privacy.md)"
        )


@dataclass(eq=False)
class PeerView(ClientView[S]):
    """A peer: a client without a server, which knows the ids of its neighbours."""

    neighbours: tuple[str, ...]


def no_public_data(name: str) -> Dataset:
    """Raise ConfigError, since this server owns no data."""
    raise ConfigError(f"the server has no folder of data sets to read {name!r} from: give a data root")


@dataclass(eq=False)
class ServerView(View[S]):
    """The server, with the ids of its clients and its own state, but without the clients' samples.

    clients: the sorted ids of clients that take part and have joined. public(name): a data set that the server owns.
    graph: the graph that this round made, if any. info: the figures of this round by name, for the records. drifted:
    clients that have drifted away from their group, as found by a test in this round.
    """

    clients: tuple[str, ...]
    planted: Mapping[str, str] | None = None
    graph: Graph | None = None
    info: Mapping[str, float | None] = field(default_factory=dict)
    drifted: Collection[str] = ()
    public: Callable[[str], Dataset] = no_public_data

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator keyed by (seed, "server", round, purpose)."""
        return rng(self.seed, "", self.round, purpose)

    def key(self, purpose: str) -> int:
        """Return an integer seed below 2^31 for other libraries, keyed by (seed, "server", round, purpose)."""
        return key(self.seed, "", self.round, purpose) >> 32
