"""Class features of a client's model for the report; they need no random draws, and no participant keeps them."""

from __future__ import annotations

import torch

from fedkin.engines.client_side import ClientSide
from fedkin.engines.executors.jobs import Modules
from fedkin.federation import Samples
from fedkin.flow import Message, Params, PeerMethod
from fedkin.learning.losses import class_means
from fedkin.learning.net import head_of
from fedkin.learning.sgd import infer

__all__ = ["features_of"]

_SAMPLES = 32  # number of samples per class and client, which are enough for a mean feature


def features_of(side: ClientSide, id: str, params: Params) -> Message:
    """Return the class features of a client with these parameters.

    means [C, d]: the mean feature of each class; known [C]: the classes with samples; head: the head's parameters;
    vectors [C, d] and vectors_known [C]: the class vectors that the method keeps, if any.

    The message is empty for a client without samples, and for a net without features [batch, d].
    """
    task, samples = side.plan.task, side.client(id).train
    if not task.labels or not len(samples):
        return Message()
    net, modules = side.plan.net_of(id), Modules()
    few = _few(samples, task.classes)
    z = infer(net, modules(net), params, "features", few)
    if z.ndim != 2:
        return Message()
    y = few.labels()
    means, count = class_means(z, y, torch.ones(len(y), dtype=z.dtype), task.classes)
    method = side.plan.method
    kept = method.class_vectors(side.peer(id) if isinstance(method, PeerMethod) else side.view(id))
    more = {} if kept is None else {"vectors": kept.table, "vectors_known": kept.known}
    return Message(means=means, known=count > 0, head=head_of(params), **more)


def _few(samples: Samples, classes: int) -> Samples:
    """Return the first samples of each class."""
    y = samples.labels()
    rows = [(y == label).nonzero()[:_SAMPLES, 0] for label in range(classes)]
    return samples.take(torch.cat(rows).sort().values)
