"""The last layer and the loss, written out for a stack of clients, or mapped over it for losses that are not.

An end takes the features z [K, b, d] of a step, hands the gradient of the head to the sink, and returns the gradient of
the loss with respect to z.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fedkin.codec import Tree
from fedkin.learning.batches import Batches, Member
from fedkin.learning.devices import CPU, moved
from fedkin.learning.layers import Linear, Now, Sink
from fedkin.learning.losses import Batch, CrossEntropy, Loss, Proximal, SquaredError
from fedkin.learning.stacked import put, stacked
from fedkin.learning.written import LossNotWritten, NotWritten, Program

__all__ = [
    "CrossEntropyEnd", "End", "Given", "WrittenLoss", "bytes_of", "end_of", "is_written", "shares", "takes_rows",
    "views_of",
]  # fmt: skip

_BLOCK = 64  # number of steps whose outputs are stored before their losses are computed


class Given(NamedTuple):
    """What an end is made of; `totals` [K] are each member's losses, to which it adds."""

    head: Linear
    program: Program
    batches: Batches
    members: Sequence[Member]
    totals: Tensor


class WrittenLoss(Protocol):
    """A loss that says itself how it is written out.

    Its class may have further: written_views: ClassVar[int]: how often each batch has its samples. written_rows:
    ClassVar[bool]: it takes what the body's method `written_rows` gives in place of the features.
    written_bytes(program, rows): about the memory that the end needs for a client with batches of so many rows.
    """

    def written_end(self, given: Given) -> End:
        """Return the end of a net with this loss."""
        ...


def end_of(loss: Loss, given: Given) -> End:
    """Return the end for this loss, without a proximal term."""
    alone = type(loss) is not Proximal
    loss = loss.loss if type(loss) is Proximal else loss
    if type(loss) is CrossEntropy:
        return CrossEntropyEnd(given)
    if type(loss) is SquaredError:
        return _SquaredError(given)
    if alone and _ends_itself(loss):
        return loss.written_end(given)  # type: ignore[attr-defined, no-any-return]
    return _Mapped(loss, given, alone)


class End(ABC):
    """The end of a net, for all steps of a stack. names: of the parameters beside body and head that it trains."""

    names: tuple[str, ...] = ()

    def __init__(self, given: Given) -> None:
        self.head, self.batches, self.totals = given.head, given.batches, given.totals
        self.carry: Any = None
        self.given = [member.carry for member in given.members]

    def bind(self, stack: Mapping[str, Tensor], active: int) -> None:  # noqa: B027 (most ends have no parameters)
        """Take the parameters of the first `active` members."""

    def seen(self, x: Tensor, now: Now) -> Tensor:
        """Return what the net gets in place of the inputs x [K, b, ...] of the batch, which may be changed in place."""
        return x

    @abstractmethod
    def slope(self, step: int, z: Tensor, x: Tensor, now: Now, sink: Sink, needed: bool) -> Tensor:
        """Take one step of the head, and return the gradient with respect to z; anything if it is not needed.

        x: the inputs of the batch, as the net gets them.
        """

    def finish(self) -> None:  # noqa: B027 (most ends have nothing left to add)
        """Add the losses of the last steps to the totals."""

    def carries(self, places: Sequence[int]) -> list[Tree]:
        """Return the last carry of each of these places."""
        return [self.given[place] for place in places]


def is_written(loss: Loss) -> bool:
    """Whether this loss is written out, alone or under a proximal term; others are mapped."""
    return type(loss.loss if type(loss) is Proximal else loss) in (CrossEntropy, SquaredError) or _ends_itself(loss)


def views_of(loss: Loss) -> int:
    """Return how often a batch has its samples, if the loss is written out."""
    return getattr(loss, "written_views", 1) if _ends_itself(loss) else 1


def takes_rows(loss: Loss) -> bool:
    """Whether the loss, if it is written out, takes something else than the features."""
    return _ends_itself(loss) and getattr(loss, "written_rows", False)


def bytes_of(loss: Loss, program: Program, rows: int) -> int:
    """Return about how much memory the end needs for each member, if the loss says so: else 0."""
    asked = getattr(loss, "written_bytes", None) if _ends_itself(loss) else None
    return 0 if asked is None else int(asked(program, rows))


def _ends_itself(loss: Loss) -> bool:
    """Whether it is a `WrittenLoss`; a subclass that computes another loss is none."""
    kinds = type(loss).__mro__
    ends, calls = (next((kind for kind in kinds if name in vars(kind)), None) for name in ("written_end", "__call__"))
    return ends is not None and ends is calls


def shares(batches: Batches) -> Tensor:
    """Return what each sample counts in the mean over its batch, [K, steps, b]."""
    masks = batches.masks if batches.weights is None else batches.masks * batches.weights
    total = masks.sum(2, keepdim=True)
    # A member that has finished has no more samples, so its share is 0.
    return masks / total.where(total > 0, 1.0)


class CrossEntropyEnd(End):
    """Mean cross-entropy -sum share * log softmax(outputs)[y], where share = mask / sum of mask by default.

    Outputs of a block of steps are stored and their losses computed together: in small nets the calls of a step cost
    more than its arithmetic. The layout is [K, classes, b]: a softmax across rows is many times as fast as one along
    short rows.
    """

    def __init__(self, given: Given, each: Tensor | None = None) -> None:
        super().__init__(given)
        self.classes, self.open = given.program.head.out_features, False
        self.shares = shares(given.batches) if each is None else each

    def _begin(self, start: int) -> None:
        """Make the targets of the block of steps from `start` on."""
        steps = slice(start, start + _BLOCK)
        y, self.share = (t[:, steps].transpose(0, 1)[:, :, None] for t in (self.batches.labels, self.shares))
        self.target = self.share.new_zeros(*y.shape[:2], self.classes, y.shape[3]).scatter_(2, y, -self.share)
        self.outputs = torch.zeros_like(self.target)
        self.steps = list(zip(self.outputs.unbind(0), self.target.unbind(0), self.share.unbind(0), strict=True))
        self.open = True

    def slope(self, step: int, z: Tensor, x: Tensor, now: Now, sink: Sink, needed: bool) -> Tensor:
        if not step % _BLOCK:
            self._begin(step)
        parts = self.steps[step % _BLOCK]
        if parts[0].shape[::2] != z.shape[:2]:
            parts = parts[0][: len(z), :, : z.shape[1]], parts[1][: len(z), :, : z.shape[1]], (
                parts[2][: len(z), :, : z.shape[1]]
            )  # fmt: skip
        outputs, target, share = parts
        self.head.forward_into(z, outputs)
        slope = torch.addcmul(target, torch.softmax(outputs, 1), share).transpose(1, 2)
        below = self.head.backward(slope, sink, needed)
        if step % _BLOCK == _BLOCK - 1:
            self.finish()
        return below

    def finish(self) -> None:
        if self.open:
            self.totals += F.log_softmax(self.outputs, 2).mul_(self.target).sum((2, 3)).double().sum(0)
        self.open = False


class _SquaredError(End):
    """The squared error, summed over the outputs of a sample, mean over the samples of a batch."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        outputs, batches = given.program.head.out_features, given.batches
        if batches.labels.ndim != 4 or batches.labels.shape[3] != outputs:
            raise NotWritten(f"there is no target for each of the net's {outputs} outputs")
        self.shares = shares(batches)

    def slope(self, step: int, z: Tensor, x: Tensor, now: Now, sink: Sink, needed: bool) -> Tensor:
        active, width = z.shape[:2]
        y, share = (t[:active, step, :width] for t in (self.batches.labels, self.shares))
        away = self.head.forward(z, now) - y.to(z.dtype)
        self.totals[:active] += (away.square().sum(2) * share).sum(1).double()
        return self.head.backward(away.mul_(2 * share[:, :, None]), sink, needed)


class _Mapped(End):
    """Any other loss: torch.func.vmap maps it over the members, on their features and heads alone."""

    def __init__(self, loss: Loss, given: Given, alone: bool) -> None:
        super().__init__(given)
        self.loss, self.alone = loss, alone
        # A second pass would draw other numbers, and move running statistics once more.
        self.passes = 1 if given.program.draws or given.program.batched else None
        self.extras, self.carry = (
            moved(stacked(trees), given.totals.device) for trees in ([m.extras for m in given.members], self.given)
        )

    def bind(self, stack: Mapping[str, Tensor], active: int) -> None:
        self.stack = {name: stack[name][:active] for name in self.head.names}

    def slope(self, step: int, z: Tensor, x: Tensor, now: Now, sink: Sink, needed: bool) -> Tensor:
        active, width = z.shape[:2]
        here = slice(active), step, slice(width)
        batch: dict[str, Tensor] = {"x": x, "y": self.batches.labels[here], "mask": self.batches.masks[here]}
        if self.batches.weights is not None:
            batch["weight"] = self.batches.weights[here]

        def one(z: Tensor, head: dict[str, Tensor], batch: Any, extras: Any, carry: Any) -> tuple[Tensor, Any]:
            given = Batch(**batch)
            result = self.loss(_Seen(given.x, z, head, self.passes), given, extras, carry)  # type: ignore[arg-type]
            if isinstance(result, tuple) and not self.alone:
                raise LossNotWritten("the loss under a proximal term returns a carry")
            return result if isinstance(result, tuple) else (result, carry)

        extras, carry = (pytree.tree_map(lambda t: t[:active], tree) for tree in (self.extras, self.carry))
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            head = {name: t.detach().requires_grad_() for name, t in self.stack.items()}
            # The layers below still need x and z.
            given = [leaf, *batch.values()]
            before = [t._version for t in given]
            values, new = vmap(one)(
                leaf, {name.removeprefix("head."): t for name, t in head.items()}, batch, extras, carry
            )
            if [t._version for t in given] != before:
                raise LossNotWritten("the loss changes the batch or its features in place")
            below, *grads = torch.autograd.grad(values.sum(), [leaf, *head.values()])
        for (name, own), grad in zip(head.items(), grads, strict=True):
            sink.whole(name, own.detach(), grad)
        self.carry = new if active == len(self.given) else pytree.tree_map(put(active), new, self.carry)
        self.totals[:active] += values.detach().double()
        return below

    def carries(self, places: Sequence[int]) -> list[Tree]:
        carry = moved(self.carry, CPU)
        return [pytree.tree_map(lambda t, place=place: t[place].detach().clone(), carry) for place in places]


class _Seen:
    """One member's model as a loss sees it: its features of the batch are known, and its head is computed."""

    def __init__(self, x: Any, z: Tensor, head: Mapping[str, Tensor], passes: int | None) -> None:
        self.known, self.z, self.weights, self.passes, self.asked = x, z, head, passes, 0

    def features(self, x: Any) -> Tensor:
        if x is not self.known:
            raise LossNotWritten("the loss asks for features of other inputs than the batch's")
        self.asked += 1
        if self.passes is not None and self.asked > self.passes:
            raise LossNotWritten("the loss asks twice for features of a net with dropout or batch normalisation")
        return self.z if torch.is_grad_enabled() else self.z.detach()

    def head(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weights["weight"], self.weights.get("bias"))

    def __call__(self, x: Any) -> Tensor:
        return self.head(self.features(x))

    def __getattr__(self, name: str) -> Any:
        raise LossNotWritten(f"the loss asks for the model's {name!r}")
