"""Messages from which groups are found with nothing told: how much samples vary, the plan, the signature.

See `fedkin.graph.same`. A method whose clients can send these is a `SigningMethod`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.flow import Ask, Message, ServerFlow, ServerMethod, phase
from fedkin.forms import Bytes, Fields, Shaped, Sums
from fedkin.graph import Plan, Signature, Spread, sign
from fedkin.methods.blocks.coded import rows_of, width_of
from fedkin.tasks import Task
from fedkin.views import ClientView, ServerView

__all__ = ["SIGNED", "Planned", "SigningMethod", "collected", "signature_of", "spread_of", "usable"]

Signatures = dict[str, Tensor]

# A spread this many times the median one does not enter the plan: one client must not set the scale of all.
_FAR = 100.0


# The forms of both replies; a client without samples sends nothing.
_SPREAD: tuple[Fields, ...] = (
    {
        "counts": Shaped(3, dtype=torch.int64), "target": Sums(3, dtype=torch.float64),
        "squares": Sums(lambda at: width_of(at.task) if _has_columns(at.task) else 1, dtype=torch.float64),
    },
    {},
)  # fmt: skip
SIGNED: tuple[Fields, ...] = ({"signature": Bytes(2**20, Signature.from_bytes)}, {})


class Planned(TypedDict):
    """Where a server keeps the plan, in its state."""

    plan: NotRequired[dict[str, Tensor]]


class SigningMethod(ServerMethod):
    """A method whose server may ask clients for signatures (`collected`)."""

    @property
    def reads_order(self) -> bool:
        """Whether the order of a client's samples may mean something (`fedkin.graph.sign`)."""
        return True

    @phase(*_SPREAD)
    def spread(self, client: ClientView[Any], message: Message) -> Message:
        """How much the client's inputs vary."""
        return spread_of(client)

    @phase(*SIGNED)
    def sign_moments(self, client: ClientView[Any], message: Message) -> Message:
        """The client's signature, by the plan in the message."""
        return signature_of(client, message, self.reads_order)


# -- at a client ------------------------------------------------------------------------------------------------------


def samples_of(client: ClientView[Any]) -> tuple[Any, Any]:
    """(x [n, d], y [n] or None) as numpy arrays: the inputs as numbers, and class labels or the sum of the targets."""
    x, y = rows_of(client.train, client.task), client.train.labels()
    if client.task.labels:
        return x, y.numpy()
    return x, y.double().sum(1).numpy() if client.task.kind == "regression" else None


def spread_of(client: ClientView[Any]) -> Message:
    """One number, or one for each column of a table; empty without samples."""
    if not client.size:
        return Message()
    spread = Spread.of(*samples_of(client), per_feature=_has_columns(client.task))
    return Message(**tensors(spread.to_arrays()))


def _has_columns(task: Task) -> bool:
    """Whether inputs have columns of different units: a table, or several arrays."""
    return isinstance(task.shape, Mapping) or len(task.shape) == 1


def signature_of(client: ClientView[Any], message: Message, ordered: bool) -> Message:
    """The signature in its own bytes, half the size of a message with a tensor for each of its arrays."""
    if not client.size:
        return Message()
    plan = Plan.from_arrays(arrays(message))
    data = sign(plan, *samples_of(client), ordered=ordered).to_bytes()
    return Message(signature=torch.frombuffer(bytearray(data), dtype=torch.uint8))


# -- at the server ----------------------------------------------------------------------------------------------------


def collected(server: ServerView[Any], held: Planned, ids: Sequence[str]) -> ServerFlow[Signatures]:
    """Signatures of these clients, those that came and make sense.

    held: where the plan is kept; it is made first if there is none.
    """
    if not ids or not (yield from _planned(server, held, ids)):
        return {}
    plan = held["plan"]
    replies = yield from Ask("sign_moments", {id: Message(**plan) for id in ids})
    known = Plan.from_arrays(arrays(plan))
    return {
        id: reply["signature"] for id, reply in replies.items()
        if "signature" in reply and usable(reply["signature"], known) is not None
    }  # fmt: skip


def _planned(server: ServerView[Any], held: Planned, ids: Sequence[str]) -> ServerFlow[bool]:
    """Make the plan, once; False if no spread came."""
    if "plan" in held:
        return True
    replies = yield from Ask("spread", {id: Message() for id in ids})
    spreads = _sound([Spread.from_arrays(arrays(reply)) for _, reply in sorted(replies.items()) if len(reply)], server)
    if not spreads:
        return False
    classes = server.task.classes if server.task.labels else None
    held["plan"] = tensors(Plan.of(spreads, classes=classes, seed=server.key("plan")).to_arrays())
    return True


def _sound(spreads: list[Spread], server: ServerView[Any]) -> list[Spread]:
    """Those that may set the scale: of this task's shape, and neither in size nor in variance far above the median.

    Ordered by content, as sums of floats depend on the order.
    """
    width = width_of(server.task)
    columns = width if _has_columns(server.task) else 1
    good = [
        one for one in spreads
        if one.n > 0 and one.dim == width and len(one.squares) == columns
        and np.isfinite(one.squares).all() and (one.squares >= 0).all() and np.isfinite(one.target).all()
        and one.classes <= server.task.classes
    ]  # fmt: skip
    sizes = np.array([one.n for one in good], dtype=np.float64)
    each = np.array([one.squares.sum() for one in good]) / np.maximum(sizes, 1)
    high, large = (_FAR * float(np.median(v)) if len(good) else 0.0 for v in (each, sizes))
    kept = [one for one, var, n in zip(good, each, sizes, strict=True) if var <= high and n <= large]
    return sorted(kept, key=lambda one: (one.n, one.squares.tobytes(), one.target.tobytes()))


def usable(data: Tensor, plan: Plan) -> Signature | None:
    """The signature in these bytes; None if it is damaged, of another plan, or of values that no samples have."""
    try:
        one = Signature.from_bytes(data.numpy().tobytes())
        widths = {name: len(moments.mean) for name, moments in one.blocks.items()}
    except FedkinError:
        return None
    wanted = {"x": plan.features}
    if plan.labelled:
        wanted |= {"xy": plan.features, "y": plan.shares(np.zeros(1, dtype=np.int64)).shape[1]}
    if one.plan != plan.key or one.n < 1 or widths != wanted or (one.cells is None) == plan.labelled:
        return None
    # Cosines are bounded by sqrt(2 / features) each; waves and shares by sqrt(2).
    bounds = {"x": math.sqrt(2 / plan.features), "y": math.sqrt(2.0), "xy": math.inf}
    for name, moments in one.blocks.items():
        traces = moments.traces[np.isfinite(moments.traces)]
        sound = np.isfinite(moments.mean).all() and np.isfinite(moments.half).all() and moments.effect >= 1
        # Samples of length at most b sqrt(D) have a covariance of trace at most b^2 D; unbiased, twice that for n = 2.
        most = 2 * bounds[name] ** 2 * len(moments.mean)
        inside = np.abs(moments.mean).max() <= 1.01 * bounds[name] and (not len(traces) or traces[0] <= 1.01 * most)
        if not (sound and inside and moments.n in (0, one.n) and moments.noise >= 0):
            return None
    if one.cells is not None and not all(np.isfinite(v).all() for v in (one.cells.means, one.cells.counts)):
        return None
    return one


def tensors(found: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays as tensors, which travel."""
    return {name: torch.from_numpy(np.array(value)) for name, value in found.items()}


def arrays(message: Mapping[str, Tensor]) -> dict[str, Any]:
    """What `tensors` was given."""
    return {name: tensor.numpy() for name, tensor in message.items()}
