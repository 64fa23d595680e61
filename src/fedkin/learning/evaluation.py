"""Scores of one model on the test samples of many clients, in few passes, with the bits of one client after another.

The samples of several clients share a pass of a fixed number of rows. A product of another number of rows may be summed
in another order. So it is tried out, once for each number of samples: do a client's rows have the same bits alone and
within such a pass? Inputs and weights of this trial are normal values, with which another order shows. Clients for
which it fails are scored alone, as are those of nets that mix samples, that draw random numbers, or whose frozen body
has its features kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import prod
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedkin.codec import Params
from fedkin.federation import Samples
from fedkin.federation.inputs import CODES
from fedkin.federation.samples import prepared
from fedkin.learning.devices import CPU, arranged, device_of
from fedkin.learning.frozen import trunk_of
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.scoring import NO_MARKS, Marks, marks, marks_of
from fedkin.learning.sgd import ROWS, load, outputs
from fedkin.tasks import Task

__all__ = ["score"]

_MOST, _LEAST = 256, 32  # rows of a pass, a power of two
_BYTES = 2 << 20  # of a pass's inputs, which then stay in a core's cache
_HELD = 1 << 16  # outputs that are held until they are scored together

# For each net, by (shape of a sample, rows of a pass, threads, samples of a client): whether the trial has succeeded.
_TRIED: WeakKeyDictionary[Net, dict[tuple[tuple[int, ...], int, int, int], bool]] = WeakKeyDictionary()


def score(net: Net, module: BodyHead, params: Params, parts: Iterable[Samples], task: Task) -> list[Marks]:
    """Score the model on each of these sets of samples; an empty set gives NO_MARKS.

    Samples are on the device of the module. On a GPU, whose memory may not hold all of them, each set goes alone.
    """
    load(module, params)
    if device_of(module) != CPU:
        return [_alone(net, module, samples, task) for samples in parts]
    sets = list(parts)
    sizes = [len(samples) for samples in sets]
    found: dict[int, Marks] = {}
    for places, answers in _several(_passes(net, module, sets, sizes)):
        targets = _labels([sets[place] for place in places])
        scored = marks_of(task, answers, targets, [sizes[place] for place in places])
        found |= zip(places, scored, strict=True)
    return [
        found[place] if place in found else _alone(net, module, samples, task) for place, samples in enumerate(sets)
    ]


def _alone(net: Net, module: BodyHead, samples: Samples, task: Task) -> Marks:
    if not len(samples):
        return NO_MARKS
    return marks(task, outputs(net, module, "logits", samples), samples.labels().to(CPU))


def _several(passes: Iterable[tuple[list[int], Tensor]]) -> Iterator[tuple[list[int], Tensor]]:
    """Yield several of these together, since each call of torch costs more than the few outputs of one pass."""
    places: list[int] = []
    held: list[Tensor] = []
    for here, answers in passes:
        places, held = places + here, [*held, answers]
        if sum(each.numel() for each in held) > _HELD:
            yield places, torch.cat(held)
            places, held = [], []
    if held:
        yield places, torch.cat(held)


def _passes(
    net: Net, module: BodyHead, sets: Sequence[Samples], sizes: Sequence[int]
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield, for each pass that sets share, their places, and the outputs of all their samples one after another."""
    able = _able(module, sets, sizes)
    if len(able) < 2:
        return
    shape = tuple(sets[able[0]].x.shape[1:])  # type: ignore[union-attr]
    most = min(_MOST, _BYTES // (net.dtype.itemsize * max(1, prod(shape))))
    rows = _power(sum(sizes[place] for place in able), most)
    fine = _tried(net, shape, rows, {sizes[place] for place in able})
    space = torch.empty(rows, *shape, dtype=net.dtype)
    module.eval()
    for places in _packed([place for place in able if sizes[place] in fine], sizes, rows):
        fewer = _power(sum(sizes[place] for place in places), rows)
        here = {sizes[place] for place in places}
        if fewer < rows and not here <= _tried(net, shape, fewer, here):
            fewer = rows
        used = _fill(space[:fewer], [sets[place] for place in places])
        with torch.no_grad():
            answers = module(arranged(space[:fewer]))[:used]
            yield places, answers.clone()  # a net may return its inputs, whose memory the next pass has


def _able(module: BodyHead, sets: Sequence[Samples], sizes: Sequence[int]) -> list[int]:
    """Return the places of the sets that may share a pass: alone they take one, of numbers, of one shape."""
    if trunk_of(module.body) is not None:
        return []
    able: list[int] = []
    first = sets[0]
    for place, (samples, size) in enumerate(zip(sets, sizes, strict=True)):
        x, y = samples.x, samples.y
        if not 0 < size <= ROWS or not isinstance(x, Tensor) or (x.dtype in CODES and samples.scale is None):
            continue
        if not able:
            first, kind = samples, (x.shape[1:], y.shape[1:], y.dtype)
        if (x is first.x and y is first.y) or (x.shape[1:], y.shape[1:], y.dtype) == kind:
            able.append(place)
    return able


def _power(count: int, most: int) -> int:
    """Return the least power of two that is not below `count`, from 32 to `most`; 0 if `most` is below 32.

    >>> _power(100, 256), _power(2000, 170), _power(3, 256), _power(3, 20)
    (128, 128, 32, 0)
    """
    rows = _LEAST
    while rows < count and rows * 2 <= most:
        rows *= 2
    return rows if rows <= most else 0


def _packed(places: Sequence[int], sizes: Sequence[int], rows: int) -> Iterator[list[int]]:
    """Yield runs of at least two sets that have at most `rows` samples together."""
    pack: list[int] = []
    used = 0
    for place in places:
        if used + sizes[place] > rows:
            if len(pack) > 1:
                yield pack
            pack, used = [], 0
        pack.append(place)
        used += sizes[place]
    if len(pack) > 1:
        yield pack


def _fill(space: Tensor, samples: Sequence[Samples]) -> int:
    """Write the inputs of these samples, one set after another, then zeros; returns the number of samples."""
    used, first = 0, samples[0]
    x = first.x
    assert isinstance(x, Tensor)
    if all(s.x is x and s.scale == first.scale and s.rows is not None for s in samples):
        rows = torch.cat([s.rows for s in samples if s.rows is not None])
        used = len(rows)
        if first.scale is None and x.dtype == space.dtype:
            torch.index_select(x, 0, rows, out=space[:used])
        else:
            space[:used] = prepared(x.index_select(0, rows), first.scale, space.dtype)
    else:
        for each in samples:
            n = len(each)
            space[used : used + n] = each.inputs(slice(None), space.dtype)
            used += n
    space[used:] = 0
    return used


def _labels(samples: Sequence[Samples]) -> Tensor:
    """Return the targets of these samples, one set after another."""
    first = samples[0]
    if all(s.y is first.y and s.rows is not None for s in samples):
        return first.y[torch.cat([s.rows for s in samples if s.rows is not None])]
    return torch.cat([s.y if s.rows is None else s.labels() for s in samples])


def _tried(net: Net, shape: tuple[int, ...], rows: int, sizes: Collection[int]) -> set[int]:
    """Return those of the sizes whose outputs have the same bits alone and within a pass of `rows` rows."""
    known = _TRIED.setdefault(net, {})
    threads = torch.get_num_threads()
    new = [n for n in sorted(sizes) if (shape, rows, threads, n) not in known]
    if new:
        known |= {(shape, rows, threads, n): same for n, same in _trial(net, shape, rows, new).items()}
    return {n for n in sizes if known[shape, rows, threads, n]}


@torch.no_grad()
def _trial(net: Net, shape: tuple[int, ...], rows: int, sizes: Sequence[int]) -> dict[int, bool]:
    """Compare n rows at the start, in the middle and at the end of a pass of normal values with the same rows alone."""
    fitting = [n for n in sizes if n < rows]
    if not fitting:
        return dict.fromkeys(sizes, False)
    make = torch.Generator().manual_seed(rows)
    module = net.scratch().eval()
    named = dict(module.named_parameters())
    for name in net.trainable:
        fan = named[name][0].numel() if named[name].ndim > 1 else 1
        named[name].data = arranged(torch.randn(named[name].shape, generator=make, dtype=net.dtype) / fan**0.5)
    x = torch.randn(rows, *shape, generator=make, dtype=net.dtype)

    def alike(start: int, n: int) -> bool:
        return torch.equal(module(arranged(x[start : start + n].clone())), whole[start : start + n])

    try:
        with torch.random.fork_rng(devices=[]):
            whole = module(arranged(x))
            return {n: n in fitting and all(alike(at, n) for at in (0, (rows - n) // 2, rows - n)) for n in sizes}
    except Exception:  # a net of the user's, which may refuse these values: then each client goes alone
        return dict.fromkeys(sizes, False)
