"""Local work on a Ray cluster, where actors on its nodes hold shards of the clients."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.engines.executors.jobs import Executor, Job, Modules, ScoreJob, attempt, own_rows, with_own_rows
from fedkin.errors import ConfigError, DataError, FedkinError, RunError
from fedkin.federation import Client, Federation, Samples
from fedkin.federation.samples import hashes
from fedkin.flow import Params
from fedkin.learning.net import Net
from fedkin.untrusted import said, shown

__all__ = ["Shards"]

_LOG = logging.getLogger("fedkin")
_PATIENCE = 60  # seconds until it is said that cores are waited for
_HEAVY = 100_000  # bytes from which parameters that are sent again are stored
_STORED = 4  # so many are remembered
_AHEAD = 2  # number of jobs at each actor: one running and one waiting
# Jobs depend on their content alone, so that numbers do not change if a job is repeated elsewhere.
_REPEATS = 3


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
        given = [actor.add.remote({id: with_own_rows(there[id]) for id in told}) for actor, told in wanted]
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
                    clients = {id: with_own_rows(self.federation[id]) for id in made}
                    asked.append(([place], place.actor.add.remote(clients)))
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


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError("run.engine = 'ray' needs Ray: pip install 'fedkin[ray]'") from None
    return ray


# -- the executor -----------------------------------------------------------------------------------------------------


@dataclass
class _Parts:
    """A job at several actors, and its results so far."""

    job: Job
    open: int = 0
    results: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Sent:
    """A piece of a job at an actor. tries: how often it was lost before."""

    parts: _Parts
    ids: tuple[str, ...]
    place: Place
    tries: int


@dataclass
class _Stored:
    """Values of parameters when they were sent, and a reference to them if they were sent again."""

    values: Params
    reference: Any = None


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether all bits are equal: 0.0 and -0.0 differ, and a nan is equal to itself."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    bits = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(*bits)


class Shards(Executor):
    """Ray actors, each with some of the clients; a job goes to the actor that has its client.

    An actor that is lost is started again on its node. If the node is lost, other actors take its clients over.
    """

    mode: ClassVar[str] = "ray"
    parts = 16  # every actor gets work, with few copies of the model

    def __init__(self, net: Net, federation: Federation, workers: int) -> None:
        super().__init__(net, federation)
        self.workers = workers
        self.cluster = Cluster(federation)
        self.ray = self.cluster.ray
        self.places: list[Place] = []
        self.home: dict[str, Place] = {}
        self.open: dict[Any, _Sent] = {}
        # Nets are stored, so that no others can get the same id.
        self.nets: dict[int, tuple[int, Net, Any]] = {}
        self.stored: dict[tuple[tuple[str, int], ...], _Stored] = {}
        try:
            self._settle(sorted(federation))
        except BaseException:
            self.close()
            raise

    @property
    def room(self) -> int:
        return _AHEAD * len(self.places) - len(self.open)

    def submit(self, job: Job) -> None:
        self.note(job, "in processes", "run.engine is 'ray'")
        self._send(_Parts(job), job.ids if isinstance(job, ScoreJob) else (job.id,), 0)

    def collect(self) -> Sequence[tuple[Job, Any]]:
        done: list[tuple[Job, Any]] = []
        while self.open and not done:
            # A call costs as much as there are open jobs: it takes all that are done.
            references = list(self.open)
            ready, _ = self.ray.wait(references, num_returns=len(references), timeout=0)
            for reference in ready or self.ray.wait(references, num_returns=1)[0]:
                sent = self.open.pop(reference)
                sent.parts.open -= 1
                try:
                    value = self.ray.get(reference)
                except self.ray.exceptions.RayError as error:
                    if not self.cluster.lost(error):
                        raise self.cluster.failed(sent.place.node, error) from None
                    self._repeat(sent, error)
                else:
                    done += self._gathered(sent, value)
        return done

    def close(self) -> None:
        for place in self.places:
            self.cluster.end(place)
        self.places = []
        self.cluster.close()

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _send(self, parts: _Parts, ids: Iterable[str], tries: int) -> None:
        """Send the part of the job for these clients to the actors that have them."""
        job, here = parts.job, dict[Place, list[str]]()
        for id in ids:
            here.setdefault(self.home[id], []).append(id)
        number, _, net = self._net(job.net or self.net)
        params, (data, rows) = self._shared(job.params), self._data(job)
        for place, own in here.items():
            if number not in place.nets:
                place.nets[number] = place.actor.learn.remote(number, net)
            if isinstance(job, ScoreJob):
                piece: Job = replace(job, ids=tuple(own), params={}, net=None)
            else:
                piece = replace(job, params={}, net=None, data=data)
            parts.open += 1
            reference = place.actor.do.remote(piece, params, number, rows, place.nets[number])
            self.open[reference] = _Sent(parts, tuple(own), place, tries)

    def _net(self, net: Net) -> tuple[int, Net, Any]:
        """(number, net, reference) of a net, which each actor gets once."""
        if id(net) not in self.nets:
            self.nets[id(net)] = len(self.nets), net, self.ray.put(net)
        return self.nets[id(net)]

    def _shared(self, params: Params) -> Any:
        """Return the parameters; if they are large and are sent again, a reference to them, stored once for all nodes.

        A method may change tensors in place after each job: a reference is used only while all bits are as they were.
        """
        if sum(tensor.nbytes for tensor in params.values()) < _HEAVY:
            return params
        # Another tensor may get the id of one that is no more: only its bits then tell.
        key = tuple((name, id(tensor)) for name, tensor in params.items())
        stored = self.stored.pop(key, None)
        if stored is None or not all(_same_bits(tensor, params[name]) for name, tensor in stored.values.items()):
            stored = _Stored({name: tensor.detach().clone() for name, tensor in params.items()})
        elif stored.reference is None:
            stored.reference = self.ray.put(params)
        self.stored[key] = stored
        if len(self.stored) > _STORED:
            del self.stored[next(iter(self.stored))]
        return params if stored.reference is None else stored.reference

    def _data(self, job: Job) -> tuple[Samples | None, Tensor | None]:
        """(samples to send with the job, or which of its client's own training samples it is about)."""
        if isinstance(job, ScoreJob) or job.data is None:
            return None, None
        rows = own_rows(job.data, self.federation[job.id].at(job.round))
        return (job.data.own(), None) if rows is None else (None, rows)

    def _gathered(self, sent: _Sent, value: Any) -> list[tuple[Job, Any]]:
        """Return the job with its result once all its parts have results."""
        parts = sent.parts
        if not isinstance(parts.job, ScoreJob) or isinstance(value, Exception):
            return [(parts.job, value)]
        parts.results |= dict(zip(sent.ids, value, strict=True))
        return [] if parts.open else [(parts.job, [parts.results[id] for id in parts.job.ids])]

    # -- lost actors and nodes -------------------------------------------------------------------------------------

    def _repeat(self, sent: _Sent, error: Exception) -> None:
        """Have a lost piece of a job done again; raises RunError if it was lost too often."""
        if sent.tries >= _REPEATS:
            raise self._too_often(sent.place.node, sent.ids[0], said(error))
        if sent.place in self.places:
            self._settle(self._replaced([sent.place]))
        self._send(sent.parts, sent.ids, sent.tries + 1)

    def _too_often(self, node: str, id: str, why: str) -> RunError:
        return RunError(
            f"Ray node {self.cluster.names[node]}: the actor with client {id!r} was lost more than {_REPEATS} times "
            f"({why}); if memory ran out, start the node with fewer cores; go on from the checkpoint with --resume"
        )

    def _replaced(self, lost: Collection[Place]) -> list[str]:
        """Replace lost actors, with all others of a node that is lost; returns their clients."""
        ids: list[str] = []
        for node in sorted({place.node for place in lost}):
            there = self.cluster.alive(node)
            away = [place for place in self.places if place.node == node and (place in lost or not there)]
            self.places = [place for place in self.places if place not in away]
            homeless = sorted({id for place in away for id in place.ids})
            for place in away:
                self.cluster.end(place)
                if there:
                    self.places.append(self.cluster.start(node))
            if not there:
                goes_on = f": others take its {len(homeless)} clients over, with the same results"
                _LOG.warning("Ray node %s was lost%s", self.cluster.names[node], goes_on if self.places else "")
            ids += homeless
        return sorted(ids)

    def _settle(self, ids: list[str]) -> None:
        """Give these clients to the actors that have the fewest, or to new ones if there are none."""
        losses: Counter[str] = Counter()
        while ids:
            if not self.places:
                self.places = self._started()
            moved: dict[Place, list[str]] = {}
            for id in ids:
                least = min(self.places, key=lambda place: len(place.ids))
                least.ids.add(id)
                self.home[id] = least
                moved.setdefault(least, []).append(id)
            lost = self.cluster.bring(list(moved.items()))
            losses.update({place.node for place in lost})
            for place, why in lost.items():
                if losses[place.node] > _REPEATS and self.cluster.alive(place.node):
                    raise self._too_often(place.node, min(place.ids), why)
            ids = self._replaced(lost)

    def _started(self) -> list[Place]:
        """New actors: one for each core, or as many as the setting says, spread over the nodes."""
        nodes = self.cluster.nodes()
        if not nodes:
            raise RunError(
                "no node with a core is left in the Ray cluster: start one (`ray start --address=HOST:6379`), and go on"
                " from the checkpoint with --resume"
            )
        most = max(nodes.values())
        cores = [node for turn in range(most) for node, count in nodes.items() if turn < count]
        count = min(self.workers or len(cores), len(cores), len(self.federation))
        return [self.cluster.start(node) for node in cores[:count]]
