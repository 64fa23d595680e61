"""Scores of one model on the test samples of many clients, in few passes, with the bits of one client after another.

The samples of several clients share a pass only if the net is a chain of layers that treat each row on its own (see
`learning.written`), with ReLU or LeakyReLU, and no layer has fewer than 4 outputs. Even so, a product of another number
of rows may be summed in another order. So it is tried out, once for each number of samples: do a client's rows have the
same bits alone and within such a pass? All other nets and clients are scored alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedkin.codec import Params
from fedkin.federation import Samples
from fedkin.federation.inputs import CODES
from fedkin.learning.devices import CPU, arranged, device_of
from fedkin.learning.gathered import Gathered, gathered
from fedkin.learning.layout import settled
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.scoring import NO_MARKS, Marks, marks, marks_of
from fedkin.learning.sgd import ROWS, load, outputs
from fedkin.learning.written import Program, program_of
from fedkin.tasks import Task

__all__ = ["score"]

_MOST, _LEAST = 256, 32  # rows of a pass, a power of two
_BYTES = 2 << 20  # of a pass's inputs, which then stay in a core's cache
_HELD = 1 << 16  # outputs of a pass, and outputs that are held until they are scored together
# Outputs of a layer. In 22,000 shapes of products, another order of sums shows in at least 35 of 40 draws with 2 to 16
# outputs, but with one output in as few as 5.
_WIDE = 4
_DRAWS = 8  # of weights and inputs, that a trial compares
_FEW = 4  # clients with the same number of samples, for which a trial pays

# For each net, by (shape of a sample, rows of a pass, threads, samples of a client): the draws that had equal bits, up
# to _DRAWS, or -1 if one had not.
_TRIED: WeakKeyDictionary[Net, dict[tuple[tuple[int, ...], int, int, int], int]] = WeakKeyDictionary()


def score(net: Net, module: BodyHead, params: Params, parts: Iterable[Samples], task: Task) -> list[Marks]:
    """Score the model on each of these sets of samples; an empty set gives NO_MARKS.

    Samples are on the device of the module. On a GPU, whose memory may not hold all of them, each set goes alone.
    """
    load(module, params)
    program = program_of(net)
    if isinstance(program, str) or not _by_rows(program) or device_of(module) != CPU:
        return [_alone(net, module, samples, task) for samples in parts]
    sets = list(parts)
    if len(sets) < 2:
        return [_alone(net, module, samples, task) for samples in sets]
    found: dict[int, Marks] = {}
    table = gathered(module, sets, lambda sets: _able(program, sets))
    for places, answers in _several(_passes(net, program, module, table)):
        scored = marks_of(task, answers, table.targets(places), [table.sizes[place] for place in places])
        found |= zip(places, scored, strict=True)
    return [
        found[place] if place in found else _alone(net, module, samples, task) for place, samples in enumerate(sets)
    ]


def _by_rows(program: Program) -> bool:
    """Whether a trial tells, for all layers, if the bits of a row depend on the rest of the pass."""
    return all(_row_by_row(part) for part in (*(part for _, part in program.parts), program.head))


def _row_by_row(part: nn.Module) -> bool:
    if isinstance(part, nn.Linear):
        return part.out_features >= _WIDE
    if isinstance(part, nn.BatchNorm1d):
        return part.running_mean is not None  # else it takes the means of the pass
    # Torch computes the last few numbers of a tensor one by one, and some functions are then rounded otherwise
    # (Sigmoid and SiLU in torch 2.13). These are so few numbers that a trial may not show it.
    return isinstance(part, nn.ReLU | nn.LeakyReLU | nn.Dropout | nn.LayerNorm)


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


@torch.no_grad()
def _passes(net: Net, program: Program, module: BodyHead, table: Gathered) -> Iterator[tuple[list[int], Tensor]]:
    """Yield, for each pass that sets share, their places, and the outputs of all their samples one after another."""
    if not table.able:
        return
    first = table.sets[table.able[0]]
    x, sizes = first.x, table.sizes
    assert isinstance(x, Tensor)
    shape, last = tuple(x.shape[1:]), settled(net, module, first)
    scored = sum(sizes.values())
    rows = _power(
        scored // 2, _MOST, _BYTES // (net.dtype.itemsize * max(1, prod(shape))), _HELD // program.head.out_features
    )
    fine = _tried(net, shape, last, rows, Counter(sizes.values()), scored) if rows else set()
    module.eval()
    packed = list(_packed({place: n for place, n in sizes.items() if n in fine}, rows))
    for places, used, inputs in table.passes(packed, rows, net.dtype, last):
        yield places, module(inputs)[:used]


def _able(program: Program, sets: Sequence[Samples]) -> list[int]:
    """Return the places of the sets that may share a pass: alone they take one, of rows of numbers, of one shape."""
    able: list[int] = []
    kind = None
    for place, samples in enumerate(sets):
        x, y = samples.x, samples.y
        if not 0 < len(samples) <= ROWS or not isinstance(x, Tensor) or (x.dtype in CODES and samples.scale is None):
            continue
        own = x.shape[1:], y.shape[1:], y.dtype
        kind = kind or own
        if own == kind and (x.ndim == 2 or program.flat):
            able.append(place)
    return able


def _power(*most: int) -> int:
    """Return the largest power of two that is above none of these, 0 if it is below 32.

    >>> _power(100, 256), _power(2000, 256), _power(31, 256)
    (64, 256, 0)
    """
    rows = 1 << min(most).bit_length() >> 1
    return rows if rows >= _LEAST else 0


def _packed(sizes: dict[int, int], rows: int) -> Iterator[list[int]]:
    """Yield runs of at least two sets that have at most `rows` samples together, and more than a quarter of it."""
    pack: list[int] = []
    used = 0
    for place, size in (*sizes.items(), (-1, rows + 1)):
        if used + size > rows:
            if len(pack) > 1 and used * 4 > rows:
                yield pack
            pack, used = [], 0
        pack.append(place)
        used += size


def _tried(
    net: Net, shape: tuple[int, ...], last: bool, rows: int, sizes: Counter[int], most: int
) -> set[int]:  # fmt: skip
    """Return those of the sizes whose outputs have the same bits alone and within a pass of `rows` rows.

    Trials compute at most `most` rows; the draws that are left over are made in later calls, and count together.
    """
    known = _TRIED.setdefault(net, {})
    threads = torch.get_num_threads()
    keys = {n: (shape, rows, threads, n) for n in sizes}
    module: BodyHead | None = None
    for n in sorted(sizes, key=lambda n: (-n * sizes[n], n)):
        done = known.get(keys[n], 0 if n < rows else -1)
        while 0 <= done < _DRAWS and sizes[n] >= _FEW and most >= 2 * rows:
            module = module or net.scratch().eval()
            done = done + 1 if _alike(net, module, shape, last, rows, n, done) else -1
            most -= 2 * rows
        known[keys[n]] = done
    return {n for n in sizes if known[keys[n]] == _DRAWS}


def _alike(
    net: Net, module: BodyHead, shape: tuple[int, ...], last: bool, rows: int, n: int, draw: int
) -> bool:  # fmt: skip
    """Compare runs of n rows, which together are all rows of a pass of drawn values, with the same rows alone."""
    make = torch.Generator().manual_seed(draw)
    named = dict(module.named_parameters())
    for name in net.trainable:
        own = named[name]
        fan = own[0].numel() if own.ndim > 1 else 1
        own.data = torch.randn(own.shape, generator=make, dtype=net.dtype) / fan**0.5
    x = torch.randn(rows, *shape, generator=make, dtype=net.dtype)
    whole = module(arranged(x, last))
    starts = {*range(0, rows - n, n), rows - n}
    return all(torch.equal(module(arranged(x[at : at + n].clone(), last)), whole[at : at + n]) for at in starts)
