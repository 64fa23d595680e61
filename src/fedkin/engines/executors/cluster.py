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
from fedkin.federation.samples import hashes
from fedkin.flow import Params
from fedkin.learning.net import Net
from fedkin.untrusted import said, shown

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

    def do(self, job: Job, params: Params, number: int, rows: Tensor | None, learned: None) -> Any:
        """Return the result of the job, or the error that a user can act on.

        learned: the answer of `learn`: if it failed, Ray raises its error here.
        """
        job = replace(job, params=params)
        if rows is not None and not isinstance(job, ScoreJob):
            job = replace(job, data=self.clients[job.id].at(job.round).train.take(rows))
        return attempt(job, self.nets[number], self.modules, self.clients)


class _Reader:
    """An actor that reads the samples of all actors on its node, and hands them over there."""

    def read(
        self, read: Callable[[], Mapping[str, Client]], wanted: Sequence[tuple[Any, Mapping[str, Any]]], where: str
    ) -> tuple[str | None, dict[int, str]]:
        """Give each actor its clients, of which the hashes are known.

        Returns what is wrong, or None, and which of the actors were lost, and why. where: the files, in words.
        """
        try:
            there = read()
        except (FedkinError, OSError, ImportError) as error:
            return said(error), {}
        for _, told in wanted:
            found = hashes(there[id] for id in told if id in there)
            if odd := sorted(id for id in told if found.get(id) != told[id]):
                what = f"client {odd[0]!r} has other samples here than where the run was started"
                return f"{what}: copy the same files ({where})", {}
        ray, lost = _ray(), dict[int, str]()
        given = [actor.add.remote({id: own_rows(there[id]) for id in told}) for actor, told in wanted]
        for place, reference in enumerate(given):
            try:
                ray.get(reference)
            except ray.exceptions.RayActorError as error:
                lost[place] = said(error)
        return None, lost


@dataclass(eq=False)
class Place:
    """An actor, the node on which it is, its clients, and for each net that it was sent whether it has it."""

    node: str
    actor: Any
    ids: set[str] = field(default_factory=set)
    nets: dict[int, Any] = field(default_factory=dict)


class Cluster:
    """The cluster at RAY_ADDRESS, or one on this machine only, which is started and ended here."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.ray = _ray()
        self.started = not self.ray.is_initialized()
        if self.started:
            self._join()
        self.names: dict[str, str] = {}
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
            if node["Alive"] and cores:
                found[node["NodeID"]] = cores
                self.names[node["NodeID"]] = f"{node['NodeName']} ({node['NodeManagerHostname']})"
        return found

    def start(self, node: str) -> Place:
        """Start an actor on this node."""
        return Place(node, self.actor.options(scheduling_strategy=self._on(node)).remote())

    def bring(self, places: Sequence[tuple[Place, Sequence[str]]]) -> dict[Place, str]:
        """Bring these clients' samples to these actors; returns the actors that were lost meanwhile, and why.

        A node reads them from the files for itself, once for all its actors. Those that were made in this process are
        sent to it. Raises DataError if a node cannot read the files, or reads others than this process did.
        """
        asked, readers, origin = list[tuple[list[Place], Any]](), [], self.federation.origin
        for node in dict.fromkeys(place.node for place, _ in places):
            here = [(place, *self._parted(ids)) for place, ids in places if place.node == node]
            reading = [place for place, read, _ in here if read]
            if reading and origin is not None:
                wanted = [(place.actor, hashes(self.federation[id] for id in read)) for place, read, _ in here if read]
                readers.append(self.reader.options(scheduling_strategy=self._on(node)).remote())
                asked.append((reading, readers[-1].read.remote(origin.read, wanted, origin.where)))
            for place, _, made in here:
                if made:
                    asked.append(([place], place.actor.add.remote({id: own_rows(self.federation[id]) for id in made})))
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

    def _all(self, asked: Sequence[tuple[list[Place], Any]]) -> dict[Place, str]:
        """Wait for all answers; returns the actors that were lost, and why."""
        references = [reference for _, reference in asked]
        _, waiting = self.ray.wait(references, num_returns=len(references), timeout=_PATIENCE)
        if waiting:
            _LOG.warning("waiting for the Ray cluster: its cores are taken, or its nodes still read the samples")
        lost: dict[Place, str] = {}
        for places, reference in asked:
            try:
                wrong, away = self.ray.get(reference) or (None, {})
            except self.ray.exceptions.RayError as error:
                if not self.lost(error):
                    raise self.failed(places[0].node, error) from None
                wrong, away = None, dict.fromkeys(range(len(places)), said(error))
            if wrong is not None:
                raise DataError(f"Ray node {self.names[places[0].node]}: {wrong}")
            lost |= {places[at]: why for at, why in away.items()}
        return lost

    def lost(self, error: Exception) -> bool:
        """Whether an actor is no more that had been started: its memory ran out, or its node is lost."""
        errors = self.ray.exceptions
        if isinstance(error, errors.RayTaskError):
            return isinstance(error.cause, errors.RayActorError) and self.lost(error.cause)
        return not getattr(error, "actor_init_failed", False)

    def alive(self, node: str) -> bool:
        """Whether the cluster takes this node to be there."""
        return node in self.nodes()

    def failed(self, node: str, error: Exception) -> RunError:
        """What to say if Ray could not do something on a node that is there."""
        # Ray hands over what an actor raised at its start as a traceback alone, and puts one after its own errors.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = getattr(error, "cause", None)
        text = str(cause).partition("\ntraceback:")[0]
        what = f"{type(cause).__name__}: {text}" if isinstance(cause, Exception) else lines[-1]
        what = shown(" ".join(what.split()), 300)
        return RunError(
            f"Ray node {self.names[node]}: {what}; every node needs the same Python, fedkin and files of your own as "
            "this machine"
        )

    def end(self, place: Place) -> None:
        """End an actor, if it still is there."""
        self.ray.kill(place.actor)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self.started:
            self.ray.shutdown()

    def _on(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


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
