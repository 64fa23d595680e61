"""The messages between a pool of processes and its workers: orders and answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from fedkin.engines.executors.jobs import FitJob, Job, ScoreJob
from fedkin.engines.executors.mapped import Borrowed, Lent, Parcel
from fedkin.engines.executors.packed import PackedNet
from fedkin.federation import Samples

__all__ = ["Done", "Letter", "Order", "apart", "together", "whose"]


class Order(NamedTuple):
    """A job for a worker, with its tensors in the slot's arena, the number of its net and the names of its samples.

    new: the place of the net, if this worker needs it for the first time.
    """

    job: Job
    parcel: Parcel
    net: int
    new: PackedNet | None
    data: Lent | Samples | None


class Letter(NamedTuple):
    """An order as bytes, which may be unreadable, with the facts that are needed even then.

    arena: path and size of the slot's new arena.
    """

    slot: int
    whose: str
    arena: tuple[str, int] | None
    order: bytes


class Done(NamedTuple):
    """A worker's answer: in the slot's arena, or as a value if it is too large for the arena or has no tensors."""

    slot: int
    parcel: Parcel | None
    value: Any


def apart(job: Job) -> tuple[dict[str, Any], Job]:
    """Return (the tensors of the job, the job without its tensors, net and samples)."""
    if isinstance(job, FitJob):
        return (
            {"params": job.params, "extras": job.extras, "carry": job.carry},
            replace(job, params={}, extras={}, carry={}, net=None, data=None),
        )
    if isinstance(job, ScoreJob):
        return {"params": job.params}, replace(job, params={}, net=None)
    return {"params": job.params}, replace(job, params={}, net=None, data=None)


def together(order: Order, tree: dict[str, Any], clients: Borrowed) -> Job:
    """Return the job that `apart` split."""
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
    """Return the client that names the job in error messages."""
    return job.ids[0] if isinstance(job, ScoreJob) else job.id
