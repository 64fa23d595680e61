"""Fixtures of the network's tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from certificates import Net, Town, made_net, new_town
from fedkin.engines.accounting import Operations
from fedkin.engines.executors import jobs
from network.memory import MemoryNetwork


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that end with what they wait for are as long as a machine may need on which much else runs."""
    for place, much in {
        "server._END": 60.0, "client._HELLO": 1200, "client._UNABLE": 1200, "peer_exchange._TERMS": 30.0,
        "registration._ALIVE": 0.2,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"fedkin.network.{place}", much)


@pytest.fixture(scope="session")
def town() -> Town:
    """Certificates, made once: every test of these is of the same federation."""
    return new_town()


@pytest.fixture
def net(town: Town) -> Iterator[Net]:
    """A federation whose links leave when the test ends."""
    with made_net(town) as net:
        yield net


@pytest.fixture
def network() -> MemoryNetwork:
    """A network in memory, of nobody yet."""
    return MemoryNetwork()


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share torch's generator, from which augmentation draws: let one of them use it at a time."""
    turn = threading.Lock()

    def alone(before: Any) -> Any:
        def act(*args: Any) -> Any:
            with turn:
                return before(*args)

        return act

    monkeypatch.setattr(jobs, "carry_out", alone(jobs.carry_out))
    monkeypatch.setattr(Operations, "per_sample", alone(Operations.per_sample))
