"""Local work on a Ray cluster, where actors hold shards of the clients."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.engines.executors.cluster import Cluster, Place
from fedkin.engines.executors.jobs import Executor, FitJob, Job, ScoreJob
from fedkin.engines.executors.sharing import Sharing
from fedkin.errors import RunError
from fedkin.federation import Client, Federation, Samples
from fedkin.learning.net import Net
from fedkin.untrusted import said

__all__ = ["Shards"]

_LOG = logging.getLogger("fedkin")
_AHEAD = 2  # number of jobs at each actor: one running and one waiting
# Jobs depend on their content alone, so that numbers do not change if a job is repeated elsewhere.
_REPEATS = 3


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
        self.sharing = Sharing(self.ray.put)
        try:
            self._settle(sorted(federation))
        except BaseException:
            self.close()
            raise

    @property
    def room(self) -> int:
        return _AHEAD * len(self.places) - len(self.open)

    def submit(self, job: Job) -> None:
        if isinstance(job, FitJob):
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
        params, (data, rows) = self.sharing(job.params), self._data(job)
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

    def _data(self, job: Job) -> tuple[Samples | None, Tensor | None]:
        """(samples to send with the job, or which of its client's own training samples it is about)."""
        if isinstance(job, ScoreJob) or job.data is None:
            return None, None
        rows = _rows_in(job.data, self.federation[job.id].at(job.round))
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


def _rows_in(data: Samples, client: Client) -> Tensor | None:
    """Which of the client's training samples these are; None if they are others."""
    whole = client.train
    if data.x is not whole.x or data.y is not whole.y or data.scale != whole.scale:
        return None
    if whole.rows is None:
        return torch.arange(len(data)) if data.rows is None else data.rows
    if data.rows is None:
        return None
    sorted_rows, order = whole.rows.sort(stable=True)
    at = torch.searchsorted(sorted_rows, data.rows).clamp(max=len(order) - 1)
    return order[at] if torch.equal(sorted_rows[at], data.rows) else None
