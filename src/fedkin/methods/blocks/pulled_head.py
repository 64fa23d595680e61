"""A client's own head, pulled to the head of a shared model: one number says how much of a model is personal.

    min_{V, c}  sum_i loss(F_i V + c, y_i) + (a / 2) |V - W|^2 + (b / 2) |c - w|^2

F [n, d]: the client's features under the shared body; W, w: weights and bias of the shared head; a, b: strengths. The
problem is convex. With infinite strengths the solution is the shared head itself. For a linear model and half the
squared error it is the best linear unbiased prediction of a mixed-effects model, with strength = variance within
clients over variance between them.

Before that a client may train the body further (`with_own_body`): an own body.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from fedkin.federation import Samples
from fedkin.flow import ClientFlow, Fit, Infer, Params
from fedkin.learning.net import body_of, head_of
from fedkin.learning.training import Training
from fedkin.methods.blocks.vectors import Array
from fedkin.tasks import Task
from fedkin.views import ClientView


class Strength(NamedTuple):
    """How strongly weights and bias of a client's head are pulled to the shared ones; infinite: they are shared.

    >>> Strength(math.inf, 3.0).personal
    True
    """

    weights: float
    bias: float

    @property
    def personal(self) -> bool:
        """Whether a client's head may differ from the shared one."""
        return min(self.weights, self.bias) < math.inf


SHARED = Strength(math.inf, math.inf)
_GRID = (math.inf, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
PASSES = 5  # over a client's samples, to train its own body
_DESCENT: Any = {"maxiter": 500, "gtol": 2e-3, "ftol": 1e-8}  # close enough that no choice depends on it


@cache
def strengths(task: Task) -> tuple[Strength, ...]:
    """Return the strengths that are tried, the strongest pull first.

    Weights and bias have the same strength. For squared errors all pairs are tried, since slopes and intercepts differ.
    """
    if task.kind == "regression":
        return tuple(Strength(weights, bias) for weights in _GRID for bias in _GRID)
    return tuple(Strength(pull, pull) for pull in _GRID)


def can_pull(params: Params, task: Task) -> bool:
    """Return whether the net ends in a linear head with weights [outputs, d], and samples have one label or numbers."""
    weight = params.get("head.weight")
    return weight is not None and weight.ndim == 2 and (task.labels or task.kind == "regression")


def with_head(params: Params, head: Tensor) -> dict[str, Tensor]:
    """Return the parameters with another head [d + 1, outputs]; its last row is the bias."""
    new = {**params, "head.weight": head[:-1].T.to(params["head.weight"].dtype).contiguous()}
    if "head.bias" in params:
        new["head.bias"] = head[-1].to(params["head.bias"].dtype)
    return new


def with_own_head(client: ClientView, params: Params, strength: Strength) -> ClientFlow[Params]:
    """The shared model with the client's own head, pulled to the shared one; the model itself if heads are shared."""
    if not strength.personal or not client.size or not can_pull(params, client.task):
        return params
    features = yield from Infer(params, "features")
    (head,) = pulled_heads(params, features, client.train.labels(), [strength], client.task)
    return with_head(params, head)


def with_own_parts(client: ClientView, params: Params, strength: Strength, own_body: bool) -> ClientFlow[Params]:
    """The shared model with the client's own head of this strength, and before that its own body, if it has one."""
    if own_body and client.size and body_of(params):
        params = yield from with_own_body(client, params, client.train)
    return (yield from with_own_head(client, params, strength))


def with_own_body(client: ClientView, params: Params, part: Samples) -> ClientFlow[Params]:
    """Train a shared model on these samples for a few passes; return its body with the shared head.

    Training starts from the shared head: under a solved head the loss is nearly 0, and the body would learn nothing.
    """
    training = in_proportion(client.training.with_epochs(PASSES), len(part), client.size)
    fitted = yield from Fit(params, data=part, training=training)
    return {**fitted.params, **head_of(params)}


def in_proportion(training: Training, kept: int, n: int) -> Training:
    """Scale the batch size by the share of samples kept, so that a pass has no more steps than on all samples.

    65 of 80 samples in batches of 32 would end each pass with a step on a single sample.

    >>> in_proportion(Training(batch_size=32), 65, 80).batch_size
    26
    """
    if training.batch_size == "all":
        return training
    return training.model_copy(update={"batch_size": math.ceil(training.batch_size * kept / n)})


def pulled_heads(
    params: Params, features: Tensor, targets: Tensor, tried: Sequence[Strength], task: Task
) -> list[Tensor]:
    """Return a client's head [d + 1, outputs] for each strength, from its features [n, d] and targets [n] or [n, t].

    Computed in double precision. For a net without a bias the last row is zero. If training has diverged, so that
    features or the shared head are not finite, every head is the shared one.
    """
    weight, bias = params["head.weight"].double(), params.get("head.bias")
    shared = torch.cat([weight.T, (torch.zeros(len(weight)) if bias is None else bias).double()[None]])
    if not len(features) or not (features.isfinite().all() and shared.isfinite().all()):
        return [shared] * len(tried)
    x = torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], 1)
    heads: dict[Strength, Tensor] = {}
    for alike in _alike(tried):
        # Columns are divided by the square root of their strength: then all coordinates are pulled with strength 1.
        scale = (
            torch.tensor([[strength.weights] * (len(shared) - 1) + [strength.bias] for strength in alike])
            .double()
            .rsqrt()
        )
        if bias is None:
            scale[:, -1] = 0.0
        # Strengths with the same ratio scale all columns equally, so they share the singular vectors.
        widest = scale[scale.amax(1).argmax()]
        left, sizes, right = torch.linalg.svd(x * widest, full_matrices=False)
        factor = scale.amax(1) / max(float(widest.amax()), 1e-300)
        step = _solved(left, sizes * factor[:, None], x @ shared, targets, task)
        heads |= zip(alike, shared + scale[:, :, None] * (right.T @ step), strict=True)
    return [heads[strength] for strength in tried]


def _alike(tried: Sequence[Strength]) -> list[list[Strength]]:
    """Strengths grouped by the ratio of their two numbers."""
    groups: dict[float, list[Strength]] = {}
    for strength in tried:
        ratio = 1.0 if strength.weights == strength.bias else strength.weights / strength.bias
        groups.setdefault(ratio, []).append(strength)
    return list(groups.values())


def _solved(left: Tensor, sizes: Tensor, base: Tensor, targets: Tensor, task: Task) -> Tensor:
    """Return argmin_T sum_i loss(base_i + (left sizes_s)_i T, y_i) + |T|^2 / 2 for each row s of sizes [s, r].

    left [n, r]: orthonormal columns, so that a bound on the curvature is diagonal.
    """
    if task.kind == "regression":
        sizes = sizes[:, :, None]
        residual = targets.double().reshape(len(base), -1) - base
        return sizes / (sizes.square() + 1) * (left.T @ residual)
    matrix, start = left.numpy(), base.numpy()
    labels = np.eye(start.shape[1])[targets.numpy()]
    step, steps = np.zeros((matrix.shape[1], start.shape[1])), []
    for size in sizes.numpy():  # from the strongest pull on; each starts at the previous solution
        if size.any():
            step = _descended(matrix * size.T, start, labels, step)
        steps.append(step)
    return torch.from_numpy(np.stack(steps))


def _descended(x: Array, base: Array, labels: Array, start: Array) -> Array:
    """argmin_T of cross-entropy of base + x T [n, outputs], one-hot labels, plus |T|^2 / 2, by L-BFGS."""

    def objective(flat: Any) -> Any:
        outputs = base + x @ flat.reshape(start.shape)
        outputs -= outputs.max(1, keepdims=True)
        chances = np.exp(outputs)
        total = chances.sum(1, keepdims=True)
        value = np.log(total).sum() - (outputs * labels).sum() + flat @ flat / 2
        return value, (x.T @ (chances / total - labels)).ravel() + flat

    minimum: Any = scipy.optimize.minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=_DESCENT)
    return np.asarray(minimum.x.reshape(start.shape))
