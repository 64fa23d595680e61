"""Losses: functions of (model, batch, extras, carry).

The batches of a `stackable` loss may be padded: `mask` is 1 for real samples and 0 for padding, which means leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.errors import MethodError
from fedkin.learning.net import BodyHead
from fedkin.tasks import Task


class Batch(NamedTuple):
    """The samples of one step.

    x: inputs [b, ...], or a dict of inputs; y: targets [b, ...]; mask [b]: 1 for a sample, 0 for padding; whole: True
    if there is no padding. weight [b]: the weight of each sample, if `training.class_weights` is set.
    """

    x: Any
    y: Tensor
    mask: Tensor
    whole: bool = False
    weight: Tensor | None = None


class Loss(Protocol):
    """A function that returns the value to minimise, or (value, new carry).

    A loss that averages over samples with `masked_mean` uses class weights, and declares
    `weighted: ClassVar[bool] = True`. False means that the loss has no classes and is never weighted. A loss without
    this declaration is refused with class weights. A loss with `stackable: ClassVar[bool] = True` is trained for many
    clients at once: it uses only `model.features(batch.x)` and `model.head(z)`, draws no random numbers, and changes no
    tensor in place.
    """

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor | tuple[Tensor, Tree]: ...


def masked_mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of values [b] over the real samples of the batch: sum w v / sum w, if they have weights w.

    >>> batch = Batch(torch.zeros(2, 1), torch.zeros(2), torch.tensor([1.0, 0.0]))
    >>> masked_mean(torch.tensor([3.0, 9.0]), batch)
    tensor(3.)
    """
    if batch.weight is None:
        return values.mean() if batch.whole else (values * batch.mask).sum() / batch.mask.sum()
    share = batch.mask * batch.weight
    return (values * share).sum() / share.sum()


def class_means(z: Tensor, y: Tensor, mask: Tensor | None, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean feature of each class [classes, d] (zero if absent), and its number of samples [classes].

    mask: 1 for a sample that counts, 0 for padding (None: all count).
    """
    counted = 1.0 if mask is None else mask[:, None]
    member = (y[:, None] == torch.arange(classes, device=y.device)).to(z.dtype) * counted
    count = member.sum(0)
    return member.T @ z / count.clamp(min=1)[:, None], count


@dataclass(frozen=True)
class CrossEntropy:
    """The mean cross-entropy of the batch, weighted as torch's CrossEntropyLoss(weight=...) if samples have weights."""

    weighted: ClassVar[bool] = True

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        if batch.whole and batch.weight is None:
            return F.cross_entropy(model(batch.x), batch.y)
        return masked_mean(F.cross_entropy(model(batch.x), batch.y, reduction="none"), batch)


@dataclass(frozen=True)
class Proximal:
    """The loss plus weight / 2 * |w - w_0|^2 over the trainable parameters, with w_0 = extras["start"] by name.

    The loss gets no extras and no carry. Raises MethodError if it returns a carry.
    """

    loss: Loss
    weight: float

    @property
    def weighted(self) -> bool | None:
        """Whether the loss uses class weights."""
        return getattr(self.loss, "weighted", None)

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        value = self.loss(model, batch, {}, {})
        if isinstance(value, tuple):
            raise MethodError(
                f"{type(self.loss).__name__}: a loss under a proximal term returns its value alone, not (value, new "
                "carry): the term passes no carry on"
            )
        for name, w in model.params.items():
            value = value + self.weight / 2 * (w - extras["start"][name]).square().sum()
        return value


@dataclass(frozen=True)
class SquaredError:
    """The squared error of the outputs, summed over the targets of a sample, mean over the samples of the batch."""

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        return masked_mean(_squared_error(model(batch.x), batch.y), batch)


@dataclass(frozen=True)
class PixelCrossEntropy:
    """The cross-entropy, mean over the pixels of a sample, then over the samples of the batch."""

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        return masked_mean(_pixel_cross_entropy(model(batch.x), batch.y), batch)


def per_sample(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of each sample: (outputs [b, ...], targets [b, ...]) -> [b]; `default_loss` is its mean."""
    if task.kind == "regression":
        return _squared_error
    return _pixel_cross_entropy if task.kind == "segmentation" else _cross_entropy


def default_loss(task: Task) -> Loss:
    """Return the loss for methods that name none: cross-entropy for tasks with classes, else squared error."""
    return _DEFAULT.get(task.kind, _DEFAULT["classification"])


# One object of each kind: other modules cache facts about a loss by its identity.
_DEFAULT: dict[str, Loss] = {
    "classification": CrossEntropy(), "regression": SquaredError(), "segmentation": PixelCrossEntropy(),
}  # fmt: skip


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.to(outputs.dtype)).square().sum(1)


def _pixel_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none").mean((1, 2))
