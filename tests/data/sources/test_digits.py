"""The embedded digits."""

from __future__ import annotations

from pathlib import Path

import torch

from fedkin.data.dataset import Dataset
from fedkin.data.sources.images import Digits


def test_split(digits: Dataset) -> None:
    assert digits.train.x.dtype == torch.uint8
    assert digits.train.x.shape == (1438, 1, 8, 8)
    assert int(digits.train.x.max()) == 16
    assert digits.white == 16
    assert digits.scale is not None
    assert float(digits.scale(digits.train.x, torch.float32).max()) == 1
    everyone = torch.bincount(torch.cat([digits.train.y, digits.test.y]))
    assert everyone.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180], "scikit-learn's counts"
    shares = torch.bincount(digits.test.y) / everyone
    assert shares.sub(0.2).abs().max() < 0.5 / 174 + 1e-6, "stratified"


def test_seed_and_fraction(digits: Dataset) -> None:
    again, other = Digits().load(Path()), Digits(seed=1).load(Path())
    assert torch.equal(digits.test.x, again.test.x)
    assert not torch.equal(digits.test.x[:300], other.test.x[:300])
    assert abs(len(Digits(test_fraction=0.5).load(Path()).test) - 1797 / 2) <= 5
