"""torch's global generator, shared by threads: who draws has it alone, so that the draws of two never mix."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin.learning import CrossEntropy, Net, Training
from fedkin.learning.sgd import fit
from fedkin.learning.torch_rng import alone, seeded
from fedkin.methods.ifca import redrawn
from support import small_federation


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


class Looking(nn.Linear):
    """A layer that notes, when it draws or is applied, whether its thread has the generator."""

    noted: ClassVar[list[bool]] = []

    def reset_parameters(self) -> None:
        self.noted.append(is_mine())
        super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        self.noted.append(is_mine())
        return super().forward(x)


def net() -> Net:
    return Net.build(lambda: (nn.Sequential(nn.Flatten(), Looking(5, 3)), nn.Linear(3, 4)), 5)


def fitted(made: Net) -> None:
    samples = next(iter(small_federation().values())).train
    rng = np.random.default_rng(0)
    fit(made, made.scratch(), made.initial, CrossEntropy(), samples, Training(local_steps=2), {}, {}, rng)


@pytest.mark.parametrize(
    "draws",
    [
        lambda made: net(),
        lambda made: made.extended(lambda: {"more": Looking(3, 3)}, 6),
        lambda made: redrawn(made, 7),
        fitted,
    ],
    ids=["build", "extended", "redrawn", "fit"],
)
def test_nets_are_made_and_trained_while_no_other_thread_draws(draws: Callable[[Net], object]) -> None:
    made = net()
    Looking.noted.clear()
    draws(made)
    assert Looking.noted
    assert all(Looking.noted)
