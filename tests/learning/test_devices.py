"""torch's global generator, shared by threads: who draws has it alone, so that the draws of two never mix."""

from __future__ import annotations

from threading import Thread

import pytest
import torch

from fedkin.learning.devices import alone, seeded


def is_mine() -> bool:
    """Whether this thread has the generator: another one does not get it."""
    got = list[bool]()

    def other() -> None:
        got.append(alone.acquire(blocking=False))
        if got[0]:
            alone.release()

    thread = Thread(target=other)
    thread.start()
    thread.join()
    return not got[0]


def test_it_is_this_threads_own_until_the_end_and_then_as_before() -> None:
    before = torch.get_rng_state()
    with seeded(3):
        assert is_mine()
        with seeded(4):
            torch.rand(2)
        first = torch.rand(2)
        assert is_mine()

    def fail() -> None:
        torch.rand(2)
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"), seeded():
        fail()
    assert not is_mine()
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(3):
        assert torch.equal(torch.rand(2), first)
