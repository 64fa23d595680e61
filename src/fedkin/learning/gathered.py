"""Sets of samples that are scored together again and again: their inputs and targets, gathered once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedkin.federation import Samples
from fedkin.federation.samples import prepared
from fedkin.learning.devices import arranged

__all__ = ["KEPT", "Gathered", "gathered"]

KEPT = 64 << 20  # bytes of the inputs of one list of sets that stay, and of all others that stay
_MOST = 64  # lists of sets of one module


class _Pass(NamedTuple):
    """The places of some sets, how many samples they have, and their inputs, if these stay."""

    places: list[int]
    used: int
    inputs: Tensor | None


class Gathered:
    """These sets of samples, which are not changed meanwhile. able: the places of those that may share a pass."""

    def __init__(self, sets: Sequence[Samples], able: list[int]) -> None:
        self.sets, self.able = sets, able
        self.sizes = {place: len(sets[place]) for place in able}
        self.bytes = 0
        self.stays = True  # until a net writes into its inputs
        self._of: object = None
        self._passes: list[_Pass] = []
        self._targets: dict[tuple[int, ...], Tensor] = {}

    def passes(
        self, packed: Sequence[list[int]], rows: int, dtype: torch.dtype, last: bool
    ) -> Iterator[tuple[list[int], int, Tensor]]:
        """Yield the places of each pass, the number of samples in it, and its inputs, with `rows` rows."""
        of = rows, dtype, last, packed
        if self._of != of:
            self._of, self.bytes, self._targets = of, 0, {}
            self._passes = [_Pass(places, sum(self.sizes[place] for place in places), None) for places in packed]
        for number, (places, used, inputs) in enumerate(self._passes):
            if inputs is None:
                inputs = arranged(_joined([self.sets[place] for place in places], rows - used, dtype), last)
                if self.stays and inputs.nbytes * len(self._passes) <= KEPT:
                    self._passes[number] = _Pass(places, used, inputs)
                    self.bytes += inputs.nbytes
            version = inputs._version
            yield places, used, inputs
            if inputs._version != version:
                self.forget()
                self.stays = False

    def forget(self) -> None:
        """Let go of all inputs."""
        self._passes = [one._replace(inputs=None) for one in self._passes]
        self.bytes = 0

    def targets(self, places: Sequence[int]) -> Tensor:
        """Return the targets of these sets, one set after another."""
        known = self._targets.get(at := tuple(places))
        if known is None:
            known = self._targets[at] = _labels([self.sets[place] for place in places])
        return known


# For each module, what was scored last, by the identity of the sets, which are stored too, and how often they changed.
_KNOWN: WeakKeyDictionary[nn.Module, OrderedDict[tuple[int, ...], Gathered]] = WeakKeyDictionary()


def gathered(module: nn.Module, sets: Sequence[Samples], able: Callable[[Sequence[Samples]], list[int]]) -> Gathered:
    """Return these sets as gathered before for this module, or anew; what was not used for longest is let go."""
    known = _KNOWN.setdefault(module, OrderedDict())
    at = (*map(id, sets), *map(_version, sets))
    found = known.pop(at, None) or Gathered(sets, able(sets))
    while known and (len(known) >= _MOST or found.bytes + _kept() > KEPT):
        known.popitem(last=False)
    if _kept() > KEPT:  # by other modules
        for others in list(_KNOWN.values()):
            others.clear()
    known[at] = found
    return found


def _version(samples: Samples) -> int:
    """How often the arrays of these samples were changed in place, as torch counts it."""
    arrays = [samples.y, *([samples.x] if isinstance(samples.x, Tensor) else samples.x.values())]
    return sum(each._version for each in arrays if not each.is_inference())


def _kept() -> int:
    """The bytes that stay, of all modules."""
    return sum(each.bytes for lists in _KNOWN.values() for each in lists.values())


def _joined(samples: Sequence[Samples], filling: int, dtype: torch.dtype) -> Tensor:
    """Return the inputs of these samples, one set after another, then `filling` copies of the first row."""
    first = samples[0]
    x, rows = first.x, first.rows
    if isinstance(x, Tensor) and rows is not None:
        own = [s.rows for s in samples if s.x is x and s.scale == first.scale and s.rows is not None]
        if len(own) == len(samples):
            where = torch.cat([*own, rows[:1].expand(filling)])
            # Indexing allows rows from the end, but takes twice as long.
            held = x.index_select(0, where.where(where >= 0, where + len(x)))
            filled: Tensor = prepared(held, first.scale, dtype)
            return filled
    parts = [each.inputs(slice(None), dtype) for each in samples]
    return torch.cat([*parts, parts[0][:1].expand(filling, *parts[0].shape[1:])])


def _labels(samples: Sequence[Samples]) -> Tensor:
    """Return the targets of these samples, one set after another."""
    first = samples[0]
    if all(s.y is first.y and s.rows is not None for s in samples):
        return first.y[torch.cat([s.rows for s in samples if s.rows is not None])]
    return torch.cat([s.y if s.rows is None else s.labels() for s in samples])
