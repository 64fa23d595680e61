"""Fixtures of the network's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from town import Net, Town, made_net, new_town


@pytest.fixture(scope="session")
def town() -> Town:
    """Certificates, made once: every test of these is of the same federation."""
    return new_town()


@pytest.fixture
def net(town: Town) -> Iterator[Net]:
    """A federation whose links leave when the test ends."""
    with made_net(town) as net:
        yield net
