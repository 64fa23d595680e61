"""A Ray cluster: its nodes, the actors on them, and how the clients' samples get there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedkin.engines.executors.jobs import Job, Modules, ScoreJob, attempt
from fedkin.errors import ConfigError, DataError, FedkinError, RunError
from fedkin.federation import Client, Federation
from fedkin.federation.origin import hashes
from fedkin.flow import Params
from fedkin.learning.net import Net
from fedkin.untrusted import said

__all__ = ["Cluster", "Place", "own_rows"]

_LOG = logging.getLogger("fedkin")
_PATIENCE = 60  # seconds until it is said that cores are waited for


class _Shard:
    """An actor with the samples of some clients, which does one job at a time on one thread."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.clients: dict[str, Client] = {}
        self.nets: dict[int, Net] = {}
        self.modules = Modules()

    def add(self, clients: dict[str, Client]) -> None:
        """Take the samples of these clients."""
        self.clients |= clients

    def learn(self, number: int, net: Net) -> None:
        """Take a net, which jobs then name by its number."""
        self.nets[number] = net

    def do(self, job: Job, params: Params, number: int, rows: Tensor | None) -> Any:
        """Return the result of the job, or the error that a user can act on."""
        job = replace(job, params=params)
        if rows is not None and not isinstance(job, ScoreJob):
            job = replace(job, data=self.clients[job.id].at(job.round).train.take(rows))
        return attempt(job, self.nets[number], self.modules, self.clients)


class _Reader:
    """An actor that reads the samples of all actors on its node, and hands them over there."""

    def read(
        self, read: Callable[[], Mapping[str, Client]], wanted: Sequence[tuple[Any, Mapping[str, Any]]]
    ) -> str | None:
        """Give each actor its clients, of which the hashes are known; returns what is wrong, or None."""
        try:
            there = read()
        except (FedkinError, OSError, ImportError) as error:
            return said(error)
        for _, told in wanted:
            found = hashes(there[id] for id in told if id in there)
            if odd := sorted(id for id in told if found.get(id) != told[id]):
                return f"client {odd[0]!r} has other samples here than where the run was started: copy the same files"
        _ray().get([actor.add.remote({id: own_rows(there[id]) for id in told}) for actor, told in wanted])
        return None


@dataclass(eq=False)
class Place:
    """An actor, the node on which it is, and the clients and nets that it has."""

    node: str
    actor: Any
    ids: set[str] = field(default_factory=set)
    nets: set[int] = field(default_factory=set)


class Cluster:
    """The cluster at RAY_ADDRESS, or one on this machine only, which is started and ended here."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.ray = _ray()
        self.started = not self.ray.is_initialized()
        if self.started:
            self._join()
        self.loud = _quiet(self.ray) if self.started else None
        self.names: dict[str, str] = {}
        self.gone: set[str] = set()
        self.actor = self.ray.remote(max_restarts=0, max_task_retries=0, num_cpus=1)(_Shard)
        self.reader = self.ray.remote(max_restarts=0, num_cpus=0)(_Reader)

    def _join(self) -> None:
        address = os.environ.get("RAY_ADDRESS", "")
        try:
            self.ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError, self.ray.exceptions.RayError) as error:
            raise ConfigError(
                f"run.engine = 'ray': no Ray cluster answers at RAY_ADDRESS={address!r} ({said(error)}): start one by "
                "`ray start --head`, correct RAY_ADDRESS, or unset it for a cluster on this machine alone; if the "
                "cluster asks for a token, set RAY_AUTH_MODE=token"
                if address
                else f"run.engine = 'ray': Ray cannot be started ({said(error)})"
            ) from None

    def nodes(self) -> dict[str, int]:
        """The nodes that can work, each with the number of its cores, in the order of their names."""
        found = {}
        for node in sorted(self.ray.nodes(), key=lambda one: (one["NodeName"], one["NodeID"])):
            cores = int(node["Resources"].get("CPU", 0))
            if node["Alive"] and cores and node["NodeID"] not in self.gone:
                found[node["NodeID"]] = cores
                self.names[node["NodeID"]] = f"{node['NodeName']} ({node['NodeManagerHostname']})"
        return found

    def start(self, node: str) -> Place:
        """Start an actor on this node."""
        return Place(node, self.actor.options(scheduling_strategy=self._on(node)).remote())

    def bring(self, places: Sequence[tuple[Place, Sequence[str]]]) -> set[str]:
        """Bring these clients' samples to these actors; returns the nodes that were lost meanwhile.

        A node reads them from the files for itself, once for all its actors. Those that were made in this process are
        sent to it. Raises DataError if a node cannot read the files, or reads others than this process did.
        """
        asked, readers = [], []
        for node in dict.fromkeys(place.node for place, _ in places):
            here = [(place.actor, *self._parted(ids)) for place, ids in places if place.node == node]
            wanted = [(actor, hashes(self.federation[id] for id in read)) for actor, read, _ in here if read]
            if wanted and self.federation.origin is not None:
                readers.append(self.reader.options(scheduling_strategy=self._on(node)).remote())
                asked.append((node, readers[-1].read.remote(self.federation.origin.read, wanted)))
            for actor, _, made in here:
                if made:
                    asked.append((node, actor.add.remote({id: own_rows(self.federation[id]) for id in made})))
        try:
            return self._all(asked)
        finally:
            for reader in readers:
                self.ray.kill(reader)

    def _parted(self, ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """(clients that a node can read for itself, clients that only this process has)."""
        origin = self.federation.origin
        read = [id for id in ids if origin is not None and origin.has(self.federation[id])]
        return read, sorted(set(ids).difference(read))

    def _all(self, asked: Sequence[tuple[str, Any]]) -> set[str]:
        """Wait for all answers; returns the nodes that were lost, on which nothing is started again."""
        references = [reference for _, reference in asked]
        _, waiting = self.ray.wait(references, num_returns=len(references), timeout=_PATIENCE)
        if waiting:
            _LOG.warning("waiting for the Ray cluster: its cores are taken, or its nodes still read the samples")
        lost, errors = set(), self.ray.exceptions
        for node, reference in asked:
            try:
                wrong = self.ray.get(reference)
            except errors.RayError as error:
                if isinstance(error, errors.RayTaskError) and not isinstance(error.cause, errors.RayError):
                    raise self.failed(node, error) from None
                _LOG.debug("Ray node %s: %s: %s", self.names[node], type(error).__name__, error)
                lost.add(node)
            else:
                if wrong is not None:
                    raise DataError(f"Ray node {self.names[node]}: {wrong}")
        self.gone |= lost
        return lost

    def alive(self, node: str) -> bool:
        """Whether the cluster takes this node to be there."""
        return node in self.nodes()

    def failed(self, node: str, error: Exception) -> RunError:
        """What to say if Ray could not do something on a node that is there."""
        cause = getattr(error, "cause", None) or error
        return RunError(
            f"Ray node {self.names[node]}: {type(cause).__name__}: {said(cause)}; every node needs the same Python, "
            "fedkin and files of your own as this machine"
        )

    def end(self, place: Place) -> None:
        """End an actor, if it still is there."""
        self.ray.kill(place.actor)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self.started:
            self.ray.shutdown()
        if self.loud is not None:
            self.ray._private.worker.print_to_stdstream = self.loud
            self.loud = None

    def _on(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _quiet(ray: Any) -> Any:
    """Keep what Ray prints about a lost node, a page of its logs, out of what a command prints; returns the old way.

    Ray has no setting for that.
    """
    worker = ray._private.worker
    loud = getattr(worker, "print_to_stdstream", None)

    def said(data: Any, *options: Any, **more: Any) -> None:
        if data.get("pid") == "raylet":
            _LOG.debug("Ray: %s", data.get("lines"))
        elif loud is not None:
            loud(data, *options, **more)

    worker.print_to_stdstream = said
    return loud


def own_rows(client: Client) -> Client:
    """Return the client with only its own rows, for another process or machine."""
    changes = tuple(replace(c, train=c.train.own(), test=c.test.own()) for c in client.changes)
    return replace(client, train=client.train.own(), test=client.test.own(), changes=changes)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError("run.engine = 'ray' needs Ray: pip install 'fedkin[ray]'") from None
    return ray
