"""The embedded digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.data.dataset import Dataset
from fedkin.data.sources.images import Digits


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return Digits().load(Path())
