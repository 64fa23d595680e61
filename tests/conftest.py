"""Settings of all tests."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from fedkin.federation import Federation
from support import small_federation

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")
torch.set_num_threads(1)


@pytest.fixture
def federation() -> Federation:
    """Six clients, two planted groups."""
    return small_federation()
