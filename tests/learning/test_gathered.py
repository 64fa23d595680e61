"""Sets of samples that are scored again: gathered once, with the same marks, within a bound of memory."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedkin.federation import Samples
from fedkin.learning import evaluation, gathered
from fedkin.learning.evaluation import score
from fedkin.learning.net import Net
from fedkin.tasks import Task

TASK = Task(10, (6,))


def clients(sizes: list[int], shared: bool, seed: int = 0) -> list[Samples]:
    make = torch.Generator().manual_seed(seed)
    x, y = torch.randn(sum(sizes), 6, generator=make), torch.randint(0, 10, (sum(sizes),), generator=make)
    where = torch.split(torch.randperm(len(x), generator=make), sizes)
    return [Samples(x, y, rows) if shared else Samples(x[rows], y[rows]) for rows in where]


def net_of(*first: nn.Module) -> Net:
    return Net.build(lambda: (nn.Sequential(*first, nn.Linear(6, 9), nn.ReLU()), nn.Linear(9, 10)), 3)


def model(net: Net, seed: int) -> dict[str, Tensor]:
    make = torch.Generator().manual_seed(seed)
    return {name: torch.randn(t.shape, generator=make, dtype=t.dtype) for name, t in net.initial.items()}


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sets of each pass that is gathered from now on."""
    found: list[int] = []
    plain = gathered._joined

    def counted(samples: list[Samples], filling: int, dtype: torch.dtype) -> Tensor:
        found.append(len(samples))
        return plain(samples, filling, dtype)

    monkeypatch.setattr(gathered, "_joined", counted)
    return found


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([4, 8, 20, 33]), min_size=2, max_size=40), st.booleans(), st.data())
def test_marks_of_any_lists_of_clients_one_after_another(sizes: list[int], shared: bool, data: st.DataObject) -> None:
    net, all_ = net_of(), clients(sizes, shared)
    module = net.scratch()
    for call in range(data.draw(st.integers(2, 6))):
        some = data.draw(st.one_of(st.just(all_), st.lists(st.sampled_from(all_), max_size=len(all_))))
        params = model(net, call)
        alone = net.scratch()
        assert score(net, module, params, some, TASK) == [
            score(net, alone, params, [samples], TASK)[0] for samples in some
        ]


@pytest.mark.parametrize("shared", [False, True])
def test_the_same_clients_are_gathered_once(shared: bool, joined: list[int]) -> None:
    net, sets = net_of(), clients([20] * 60, shared)
    module = net.scratch()
    for call in range(6):  # in the first ones, the number of samples is tried out
        score(net, module, model(net, call), sets, TASK)
    assert joined
    del joined[:]
    score(net, module, model(net, 9), sets, TASK)
    assert joined == []
    score(net, module, model(net, 9), sets[1:], TASK)
    assert joined
    del joined[:]
    score(net, net.scratch(), model(net, 9), sets, TASK)
    assert joined


def test_a_net_that_writes_into_its_inputs_gets_fresh_ones(joined: list[int]) -> None:
    net, sets = net_of(nn.ReLU(inplace=True)), clients([20] * 60, True)
    module = net.scratch()
    for call in range(6):
        params = model(net, call)
        found = score(net, module, params, sets, TASK)
        fresh = clients([20] * 60, True)
        assert found == [score(net, net.scratch(), params, [samples], TASK)[0] for samples in fresh]
    passes = len(joined)
    assert passes
    assert sum(each.bytes for each in gathered._KNOWN[module].values()) == 0
    score(net, module, model(net, 9), sets, TASK)
    assert len(joined) > passes


def test_inputs_beyond_the_bound_are_not_kept(monkeypatch: pytest.MonkeyPatch, joined: list[int]) -> None:
    net, sets = net_of(), clients([20] * 60, False)
    module = net.scratch()
    monkeypatch.setattr(gathered, "KEPT", 10_000)
    for call in range(8):
        score(net, module, model(net, call), sets, TASK)
    assert sum(each.bytes for each in gathered._KNOWN[module].values()) == 0
    lists = [sets[start : start + 12] for start in range(0, 48, 4)]
    for call in range(3):
        for some in lists:
            score(net, module, model(net, call), some, TASK)
            held = [each.bytes for each in gathered._KNOWN[module].values()]
            assert max(held) <= 10_000
            assert sum(held) <= 20_000
    assert sum(held) > 0


def test_what_was_gathered_goes_with_its_module() -> None:
    net, sets = net_of(), clients([20] * 40, False)
    module = net.scratch()
    score(net, module, net.initial, sets, TASK)
    gone = weakref.ref(next(iter(gathered._KNOWN[module].values())))
    assert gone() is not None
    del module
    gc.collect()
    assert gone() is None


def test_one_client_alone_is_not_gathered() -> None:
    net, sets = net_of(), clients([20] * 3, False)
    module = net.scratch()
    score(net, module, net.initial, sets[:1], TASK)
    assert module not in gathered._KNOWN
    assert evaluation.score(net, module, net.initial, [], TASK) == []


def test_arrays_that_were_changed_in_place_are_gathered_anew(joined: list[int]) -> None:
    net, sets = net_of(), clients([20] * 60, True)
    module, params = net.scratch(), model(net, 1)
    for call in range(8):  # until the number of samples has been tried out
        score(net, module, model(net, call), sets, TASK)
    before = score(net, module, params, sets, TASK)
    joined.clear()
    assert score(net, module, params, sets, TASK) == before
    assert not joined
    sets[0].x.mul_(-1)  # type: ignore[union-attr]
    after = score(net, module, params, sets, TASK)
    assert joined
    assert after != before
    assert after == [score(net, net.scratch(), params, [samples], TASK)[0] for samples in sets]


def test_the_bound_is_that_of_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    net, sets = net_of(), clients([20] * 60, False)
    monkeypatch.setattr(gathered, "KEPT", 60 * 20 * 6 * 4 * 3 // 2)
    monkeypatch.setattr(gathered, "_KNOWN", weakref.WeakKeyDictionary())
    modules, most = [net.scratch() for _ in range(5)], 0
    for call in range(10):
        for module in modules:
            score(net, module, model(net, call), sets, TASK)
            most = max(most, gathered._kept())
    assert gathered.KEPT < most <= 2 * gathered.KEPT
