"""Settings of all tests."""

from __future__ import annotations

import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")
torch.set_num_threads(1)
