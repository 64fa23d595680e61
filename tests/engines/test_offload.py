"""States on disk: the same bits in less memory, and nothing left behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkin import codec
from fedkin.engines import LocalEngine, Setup
from fedkin.engines.offload import Offload
from fedkin.errors import RunError
from fedkin.methods import METHODS
from fedkin.methods.local import Local
from fedkin.methods.sfmtl_graph import SfmtlGraph
from support import by_pattern, cases, local_site, small_setup


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


CASES = {name: kind() for name, kind in METHODS.items()} | cases()


def ran(setup: Setup, rounds: int = 3) -> tuple[list[Any], bytes]:
    """(scores after every round, the state at the end)."""
    engine = LocalEngine(setup)
    try:
        scores = []
        for number in range(1, rounds + 1):
            engine.round(number)
            scores.append(engine.evaluate())
        return scores, codec.encode(engine.state())
    finally:
        engine.close()


@pytest.mark.parametrize("name", by_pattern(CASES))
def test_where_states_lie_changes_no_bit(name: str, tmp_path: Path) -> None:
    setup = small_setup(CASES[name], per_round=4)
    assert ran(setup.having(state_limit_mb=0.0)) == ran(setup)
    assert not list(tmp_path.glob("fedkin-*"))


def test_a_run_goes_on_from_a_state_on_disk() -> None:
    setup = small_setup(SfmtlGraph(), per_round=4).having(state_limit_mb=0.001)
    whole = ran(setup, 4)
    first, second = LocalEngine(setup), LocalEngine(setup)
    for number in (1, 2):
        first.round(number)
    second.restore(codec.decode(codec.encode(first.state())))
    first.close()
    scores = []
    for number in (3, 4):
        second.round(number)
        scores.append(second.evaluate())
    assert (scores, codec.encode(second.state())) == (whole[0][2:], whole[1])
    second.close()


def test_untouched_models_on_disk_are_not_scored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine(small_setup(Local(), per_round=2).having(state_limit_mb=0.0))
    scored: list[str] = []
    executor = local_site(engine).executor
    run = executor.run

    def heard(jobs: Any) -> Any:
        scored.extend(id for job in jobs for id in job.ids)
        return run(jobs)

    monkeypatch.setattr(executor, "run", heard)
    engine.round(1)
    engine.evaluate()
    assert len(scored) == len(engine.federation)
    scored.clear()
    sampled = engine.round(2).sampled
    engine.evaluate()
    assert sorted(scored) == sorted(sampled)
    engine.close()


def state(*tensors: Tensor) -> Mapping[str, Any]:
    return {"params": {f"w{k}": tensor for k, tensor in enumerate(tensors)}, "n": 3}


KEPT = st.lists(st.tuples(st.sampled_from("abcd"), st.lists(st.integers(0, 5), max_size=3, unique=True)), max_size=12)


@given(kept=KEPT, limit=st.integers(0, 5000))
def test_memory_stays_below_the_limit_and_values_stay(kept: list[tuple[str, list[int]]], limit: int) -> None:
    tensors = [torch.arange(k, k + 200, dtype=torch.float32).reshape(20, 10) for k in range(6)]
    values = [tensor.clone() for tensor in tensors]
    offload = Offload(limit, stay=tensors[:1])
    now: dict[str, list[int]] = {}
    for client, own in kept:
        offload.keep(client, state(*(tensors[k] for k in own)))
        now[client] = own
        held = {k for numbers in now.values() for k in numbers if k}
        resident = [k for k in held if id(tensors[k]) in offload.resident]
        assert offload.bytes == sum(tensors[k].nbytes for k in resident) <= limit
        assert set(offload.resident) | set(offload.mapped) == {id(tensors[k]) for k in held}
        offload.rest()
    assert all(torch.equal(one, other) for one, other in zip(tensors, values, strict=True))
    for client in now:
        offload.drop(client)
    assert (offload.bytes, offload.resident, offload.mapped, offload.users) == (0, {}, {}, {})
    offload.close()


def test_strides_stay_and_what_cannot_keep_them_is_not_moved() -> None:
    last = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    wide = torch.randn(1).expand(50)
    strides, value = last.stride(), last.clone()
    offload = Offload(0)
    offload.keep("a", state(last, wide, torch.zeros(0)))
    assert set(offload.mapped) == {id(last)}
    offload.rest([last])
    assert last.stride() == strides
    assert torch.equal(last, value)
    assert wide.stride() == (0,)
    offload.close()


def test_a_full_disk_is_said_to_be_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    offload = Offload(0)
    monkeypatch.setattr("fedkin.engines.executors.mapped.os.posix_fallocate", full)
    with pytest.raises(RunError, match=r"No space left on device.*state_limit_mb"):
        offload.keep("a", state(torch.zeros(10)))
    offload.close()
