"""One model on many clients' samples: the marks are those of each client alone, in far fewer passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.errors import FedkinError
from fedkin.federation import Samples
from fedkin.federation.samples import Scale
from fedkin.learning.computing import Computing
from fedkin.learning.evaluation import score
from fedkin.learning.layout import decide
from fedkin.learning.net import Net
from fedkin.learning.scoring import NO_MARKS, marks
from fedkin.learning.sgd import infer, outputs
from fedkin.tasks import Task

SIZES = (20, 1, 40, 0, 3, 17, 20, 128, 129, 300, 31, *(20, 33) * 30)
CLASSES, IMAGES = Task(10, (6,)), Task(10, (3, 8, 8))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each call of a Linear layer with 10 outputs, from now on."""
    rows: list[int] = []
    plain = nn.Linear.forward

    def forward(layer: nn.Linear, x: Tensor) -> Tensor:
        if layer.out_features == 10:
            rows.append(len(x))
        return plain(layer, x)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    return rows


class Of(nn.Module):
    """A module of a function of the batch."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Experts(nn.Module):
    """Each row is computed with those that chose the same expert."""

    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, number)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(number))

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = self.gate(x).argmax(1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out[chosen == number] = expert(x[chosen == number])
        return out


class Chain(nn.Module):
    """Flatten, Linear, ReLU, as a class with a forward; width: of the inputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 9)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(F.relu(self.layer(x.view(x.size(0), -1))), 0.5, self.training)


def dense(*between: nn.Module) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(6, 9), *between), nn.Linear(9, 10)


def convolution() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten()), nn.Linear(180, 10)


def given(task: Task, sizes: tuple[int, ...] = SIZES, shared: bool = False, seed: int = 0) -> list[Samples]:
    """Samples of clients: normal inputs, in an array of each or in one of all."""
    make = torch.Generator().manual_seed(seed)
    pixels = task.target_shape if task.kind == "segmentation" else ()
    x = torch.randn(sum(sizes), *task.shapes["x"], generator=make)
    y = torch.randint(0, task.classes or 2, (len(x), *pixels), generator=make)
    if task.kind == "regression":
        y = torch.randn(len(x), task.targets, generator=make)
    where = torch.split(torch.randperm(len(x), generator=make), list(sizes))
    return [Samples(x, y, rows) if shared else Samples(x[rows], y[rows]) for rows in where]


def both(make: Callable[[], tuple[nn.Module, nn.Module]], task: Task, sets: list[Samples]) -> tuple[Any, Any, Net]:
    """Marks of all sets at once, and of each set in a call of its own."""
    net = Net.build(make, 3)
    module = net.scratch()
    for _ in range(3):  # in the third call, trials of the most usual sizes are complete
        together = score(net, module, net.initial, iter(sets), task)
    return together, [score(net, module, net.initial, [samples], task)[0] for samples in sets], net


NETS: dict[str, tuple[Callable[[], tuple[nn.Module, nn.Module]], Task]] = {
    "relu": (lambda: dense(nn.ReLU()), CLASSES),
    "normalised": (lambda: dense(nn.BatchNorm1d(9), nn.ReLU(), nn.LayerNorm(9), nn.Dropout(0.5)), CLASSES),
    "convolution": (convolution, IMAGES),
    "inputs": (lambda: (nn.Identity(), nn.Linear(6, 10)), CLASSES),
    "its inputs are its outputs": (lambda: (nn.Linear(6, 12), Of(lambda z: z[:, :10])), CLASSES),
    "flattened": (lambda: (nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.ReLU()), nn.Linear(9, 10)), IMAGES),
    "a class": (lambda: (Chain(192), nn.Linear(9, 10)), IMAGES),
    "smooth": (lambda: (nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.SiLU()), nn.Linear(9, 10)), IMAGES),
    # Their products are of one column or few, whose order of sums a trial may not show.
    "one output": (lambda: (nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1)), Task.regression(1, (8,))),
    "a bottleneck": (lambda: (nn.Sequential(nn.Linear(2, 1), nn.Tanh()), nn.Linear(1, 10)), Task(10, (2,))),
    # These give a row another value in another batch.
    "statistics of the batch": (lambda: dense(nn.BatchNorm1d(9, track_running_stats=False)), CLASSES),
    "the mean of the batch": (lambda: dense(Of(lambda x: x - x.mean(0))), CLASSES),
    "the size of the batch": (lambda: dense(Of(lambda x: x + 1e-3 * len(x))), CLASSES),
    "only whole batches": (lambda: dense(Of(lambda x: x if len(x) > 1 else x * 0)), CLASSES),
    "a branch on the batch": (lambda: dense(Of(lambda x: x / 255 if x.max() > 3 else x)), CLASSES),
    "experts": (lambda: dense(Experts(9, 4)), CLASSES),
    # These raise an error for inputs that no client has.
    "no rows of zeros": (lambda: (Of(lambda x: torch.linalg.inv(x[:, :4].view(-1, 2, 2)).flatten(1)), nn.Linear(4, 10)),
                         CLASSES),
}  # fmt: skip


@pytest.mark.parametrize("shared", [False, True], ids=["own arrays", "one array"])
@pytest.mark.parametrize("name", NETS)
def test_marks_are_those_of_each_client_alone_bit_by_bit(name: str, shared: bool) -> None:
    make, task = NETS[name]
    sizes = tuple(n + (n % 128 == 1 and name == "statistics of the batch") for n in SIZES)  # of one row it has none
    together, alone, _ = both(make, task, given(task, sizes, shared))
    assert together == [mark if n else NO_MARKS for mark, n in zip(alone, SIZES, strict=True)]
    each = 1 if task.labels else 4  # bytes of an outcome
    assert [len(mark.outcomes) for mark in together] == [each * n for n in sizes]


def test_marks_are_those_of_a_plain_loop() -> None:
    net = Net.build(lambda: dense(nn.ReLU()), 3)
    sets = given(CLASSES)
    found = score(net, net.scratch(), net.initial, sets, CLASSES)
    plain = net.scratch().eval()
    for samples, mark in zip(sets, found, strict=True):
        if not len(samples):
            assert mark is NO_MARKS
            continue
        out = plain(samples.x).detach()
        assert mark.loss == pytest.approx(float(F.cross_entropy(out, samples.y)), abs=1e-6)
        assert mark.right == int((out.argmax(1) == samples.y).sum())
        assert mark.outcomes == bytes((out.argmax(1) == samples.y).int().tolist())


@pytest.mark.parametrize(
    "task",
    [Task(2, (6,), "risk"), Task.regression(1, (6,)), Task.regression(20, (6,)), Task(3, (1, 6, 5), "segmentation")],
    ids=lambda t: t.kind,
)
def test_every_kind_of_task(task: Task) -> None:
    def make() -> tuple[nn.Module, nn.Module]:
        if task.kind == "segmentation":
            return nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        return nn.Sequential(nn.Linear(6, 9), nn.ReLU()), nn.Linear(9, task.outputs)

    together, alone, _ = both(make, task, given(task))
    assert repr(together) == repr(alone)


def test_clients_with_a_scale_and_a_type_of_their_own() -> None:
    make = torch.Generator().manual_seed(1)
    sets = []
    for k, n in enumerate((20, 30, 20, 25, 40)):
        x, y = torch.randint(0, 256, (n, 6), generator=make, dtype=torch.uint8), torch.arange(n) % 4
        sets.append(Samples(x, y, None, Scale((0.1 * k,), (0.5 + k,))) if k % 2 else Samples(x.double() / 255, y))
    one = torch.randint(0, 256, (60, 6), generator=make, dtype=torch.uint8)
    sets += [Samples(one, torch.arange(60) % 4, torch.arange(k, k + 20), Scale((0.3,), (0.2,))) for k in (0, 20, 40)]
    together, alone, _ = both(lambda: dense(nn.ReLU()), CLASSES, sets)
    assert together == alone


def test_token_ids_and_several_arrays_go_alone() -> None:
    ids = [Samples(torch.randint(0, 5, (20, 7)), torch.arange(20) % 4) for _ in range(3)]
    task = Task(4, (7,), codes=("x",))
    together, alone, _ = both(lambda: (nn.EmbeddingBag(5, 6), nn.Linear(6, 4)), task, ids)
    assert together == alone

    class Sum(nn.Module):
        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return x["a"] + x["b"]

    sets = [Samples({"a": torch.randn(20, 6), "b": torch.randn(20, 6)}, torch.arange(20) % 4) for _ in range(3)]
    together, alone, _ = both(lambda: (Sum(), nn.Linear(6, 4)), Task(4, {"a": (6,), "b": (6,)}), sets)
    assert together == alone


def test_a_net_that_draws_random_numbers_draws_as_one_client_after_another() -> None:
    net = Net.build(
        lambda: (nn.Linear(6, 9), nn.Sequential(Of(lambda z: z + torch.randn(z.shape)), nn.Linear(9, 10))), 3
    )
    sets, module = given(CLASSES, (20, 20, 30)), net.scratch()
    torch.manual_seed(5)
    together = score(net, module, net.initial, sets, CLASSES)
    torch.manual_seed(5)
    assert together == [score(net, module, net.initial, [samples], CLASSES)[0] for samples in sets]


@pytest.mark.parametrize(
    ("body", "shape"),
    [(lambda: nn.Linear(64, 9), (64,)), (lambda: Chain(64), (64,)), (lambda: Chain(192), (3, 8, 8))],
    ids=["layers", "a class", "images"],
)
def test_a_hundred_clients_take_few_passes_of_few_rows(
    passes: list[int], body: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    net = Net.build(lambda: (body(), nn.Linear(9, 10)), 3)
    module, task = net.scratch(), Task(10, shape)
    sets = given(task, (20,) * 100)
    first = score(net, module, net.initial, sets, task)
    assert sum(passes) < 2.2 * 2000  # its trials take no more rows than the samples
    for _ in range(3):
        passes.clear()
        assert score(net, module, net.initial, sets, task) == first
    assert len(passes) <= 9
    assert sum(passes) < 1.3 * 2000


def test_sizes_that_few_clients_have_are_not_tried(passes: list[int]) -> None:
    net = Net.build(lambda: dense(nn.ReLU()), 3)
    score(net, net.scratch(), net.initial, given(CLASSES, tuple(range(1, 121))), CLASSES)
    assert passes == list(range(1, 121))


def test_large_samples_take_passes_that_fit_the_cache(passes: list[int]) -> None:
    task = Task(10, (3, 64, 64))
    net = Net.build(lambda: (nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 8)), nn.Linear(8, 10)), 3)
    score(net, net.scratch(), net.initial, given(task, (16,) * 20), task)
    assert 16 < max(passes) <= 32


def test_many_outputs_take_passes_that_hold_few_of_them(passes: list[int]) -> None:
    task = Task(3000, (6,))
    net = Net.build(lambda: (nn.Linear(6, 10), nn.Linear(10, 3000)), 3)
    score(net, net.scratch(), net.initial, given(task, (20,) * 20), task)
    assert set(passes) == {20}


def test_marks_do_not_depend_on_how_clients_are_divided_into_jobs() -> None:
    task = Task.regression(1, (8,))
    net = Net.build(lambda: (nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1)), 1)
    sets, module = given(task, tuple(range(5, 61, 2)) * 4, seed=8), net.scratch()
    whole = score(net, module, net.initial, sets, task)
    for step in (1, 3, 4):
        jobs = [sets[start : start + step] for start in range(0, len(sets), step)]
        assert [mark for job in jobs for mark in score(net, module, net.initial, job, task)] == whole


def test_a_net_whose_buffer_mixes_samples_only_later() -> None:
    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.share: Tensor
            self.register_buffer("share", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return x - self.share * x.mean(0)

    net = Net.build(lambda: dense(Mix()), 3)
    sets, module = given(CLASSES, (20,) * 10), net.scratch()
    params = {**net.initial, "body.1.share": torch.tensor(1.0)}
    for _ in range(4):
        together = score(net, module, params, sets, CLASSES)
    assert together == [score(net, module, params, [samples], CLASSES)[0] for samples in sets]


def test_rows_from_the_end_and_inputs_with_gradients() -> None:
    task = Task(10, (6,))
    net = Net.build(lambda: dense(nn.ReLU()), 3)
    x, y = torch.randn(400, 6, generator=torch.Generator().manual_seed(2)).requires_grad_(), torch.arange(400) % 10
    sets, module = [Samples(x, y, torch.arange(at, at + 20)) for at in range(-400, 400, 20)], net.scratch()
    sets += [Samples(x[at : at + 20], y[at : at + 20]) for at in range(0, 400, 20)]
    for _ in range(4):
        together = score(net, module, net.initial, sets, task)
    assert together[:20] == together[20:40] == together[40:]
    assert score(net, module, net.initial, [], task) == []


def test_what_was_tried_holds_for_other_weights() -> None:
    """Weights of zero give equal bits in any order of sums, so they must not be what is tried."""
    net = Net.build(lambda: (nn.Identity(), nn.Linear(600, 10)), 3)
    task = Task(10, (600,))
    sets, module = given(task, (1, 2, 3, 5, 7, 11, 20) * 9), net.scratch()
    zero = {name: torch.zeros_like(tensor) for name, tensor in net.initial.items()}
    for _ in range(60):
        score(net, module, zero, sets, task)
    assert score(net, module, net.initial, sets, task) == [
        score(net, module, net.initial, [samples], task)[0] for samples in sets
    ]


def test_a_loss_that_is_no_number_stays_with_its_client() -> None:
    sets = given(CLASSES, (20,) * 40)
    sets[1] = Samples(torch.full((20, 6), math.nan), sets[1].y)
    together, alone, _ = both(lambda: dense(nn.ReLU()), CLASSES, sets)
    assert [place for place, mark in enumerate(together) if math.isnan(mark.loss)] == [1]
    assert together[2:] == alone[2:]


def test_samples_that_do_not_fit_the_net_raise_an_error() -> None:
    net = Net.build(lambda: dense(nn.ReLU()), 3)
    sets = [*given(CLASSES, (20, 20)), Samples(torch.zeros(20, 5), torch.zeros(20, dtype=torch.int64))]
    with pytest.raises((RuntimeError, FedkinError)):
        score(net, net.scratch(), net.initial, sets, CLASSES)


class Viewed(nn.Module):
    """Convolutions and a view of their feature map, which cannot have channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        return x.view(x.size(0), -1)


def flat() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 4, 3), nn.Flatten())


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("body", [Viewed, flat])
def test_a_score_is_the_first_job_of_a_module(body: Callable[[], nn.Module], last: bool) -> None:
    net = Net.build(lambda: (body(), nn.Linear(64, 10)), 3, computing=Computing(channels_last=last))
    decide(net, IMAGES)
    samples, fresh = given(IMAGES, (20,))[0], net.scratch()
    mark = score(net, fresh, net.initial, [samples], IMAGES)[0]
    assert fresh.last is net.last is (last and body is flat)
    alone = infer(net, net.scratch(), net.initial, "logits", samples)
    assert torch.equal(outputs(net, fresh, "logits", samples), alone)
    assert mark == marks(IMAGES, alone, samples.labels())
