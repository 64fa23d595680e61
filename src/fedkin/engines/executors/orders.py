"""What crosses between a pool of processes and its workers: orders and answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from fedkin.engines.executors.jobs import FitJob, Job, ScoreJob
from fedkin.engines.executors.mapped import Borrowed, Lent, Parcel
from fedkin.engines.executors.packed import PackedNet
from fedkin.federation import Samples

__all__ = ["Done", "Letter", "Order", "apart", "together", "whose"]


class Order(NamedTuple):
    """A job for a worker: its tensors lie in the slot's arena, its net goes by number, its samples by name.

    new: where the net is, the first time that this worker needs it.
    """

    job: Job
    parcel: Parcel
    net: int
    new: PackedNet | None
    data: Lent | Samples | None


class Letter(NamedTuple):
    """An order that may turn out unreadable, and what must be known of it even then.

    arena: path and size of the slot's new arena.
    """

    slot: int
    whose: str
    arena: tuple[str, int] | None
    order: bytes


class Done(NamedTuple):
    """A worker's answer: in the slot's arena, or (too large for it, or no tensors) as it is."""

    slot: int
    parcel: Parcel | None
    value: Any


def apart(job: Job) -> tuple[dict[str, Any], Job]:
    """(the job's tensors, the job without them, its net and its samples)."""
    if isinstance(job, FitJob):
        return (
            {"params": job.params, "extras": job.extras, "carry": job.carry},
            replace(job, params={}, extras={}, carry={}, net=None, data=None),
        )
    if isinstance(job, ScoreJob):
        return {"params": job.params}, replace(job, params={}, net=None)
    return {"params": job.params}, replace(job, params={}, net=None, data=None)


def together(order: Order, tree: dict[str, Any], clients: Borrowed) -> Job:
    """What `apart` took apart."""
    job = order.job
    if isinstance(job, ScoreJob):
        return replace(job, params=tree["params"])
    data = order.data
    if isinstance(data, Lent):
        data = clients.samples(data._replace(rows=tree["rows"].numpy()) if "rows" in tree else data)
    if isinstance(job, FitJob):
        trees = {"extras": tree.get("extras", {}), "carry": tree.get("carry", {})}
        return replace(job, params=tree["params"], data=data, **trees)
    return replace(job, params=tree["params"], data=data)


def whose(job: Job) -> str:
    """The client that a job is named by."""
    return job.ids[0] if isinstance(job, ScoreJob) else job.id
