"""The server's app on Flower: it ends when its SuperLink is gone, and only then."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fedkin.cli import flower as server_app
from fedkin.network.flower import server_calls as grid
from fedkin.network.flower.server_calls import GridCalls
from fedkin.network.link import LinkError


class Ended(BaseException):
    """What `os._exit` does here."""


class World:
    """A clock that goes on when the app waits, and a SuperLink without nodes that answers until `gone`."""

    def __init__(self, gone: float) -> None:
        self.now, self.gone = 1000.0, 1000.0 + gone
        self.calls: GridCalls | None = None

    def monotonic(self) -> float:
        return self.now

    def get_nodes(self) -> list[Any]:
        if self.now >= self.gone:
            raise OSError("connection refused")
        return []

    def wait(self, seconds: float) -> bool:
        """Two seconds are between two looks at who can be called."""
        for _ in range(round(seconds)):
            self.now += 1
            if self.calls is not None and self.now % 2 == 0:
                try:
                    self.calls.names()
                except LinkError:
                    continue
        return self.now > 6000


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the watch in a world; returns the second at which the app was ended, None: it was not."""

    def run(gone: float, asked: bool = True) -> float | None:
        world = World(gone)
        monkeypatch.setattr(grid, "time", world)
        monkeypatch.setattr(server_app, "time", world)
        calls = GridCalls(world)
        calls.close()  # its thread
        monkeypatch.setattr(calls, "over", world)
        world.calls = calls if asked else None

        def leave(code: int) -> None:
            assert code == 1
            raise Ended

        monkeypatch.setattr(os, "_exit", leave)
        try:
            server_app._end_with(calls)
        except Ended:
            return world.now - 1000
        return None

    return run


def test_it_ends_three_minutes_after_the_last_answer_of_its_superlink(
    ending: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = ending(gone=600)
    assert ended is not None
    assert 600 + 175 <= ended <= 600 + 185
    assert "has not answered for 180 s: submit the run again when it is back" in capsys.readouterr().out
    assert ending(gone=0) <= 190


def test_it_goes_on_while_its_superlink_answers_and_while_samples_are_read(ending: Any) -> None:
    assert ending(gone=float("inf")) is None
    # The samples of a simulation are read before anything is asked.
    assert ending(gone=float("inf"), asked=False) is None
