"""The server of an experiment on a Flower deployment: what `flwr run` starts from the app of `fedkin flower new`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from fedkin.cli.output import write_run_report
from fedkin.errors import FedkinError
from fedkin.untrusted import said

if TYPE_CHECKING:
    from fedkin.network.flower.grid import GridCalls

__all__ = ["server_app"]

_LOOK = 5.0  # seconds between two looks at the SuperLink
_GONE = 180.0  # seconds; a message of 25 MB takes 16


class _Rounds:
    """Says how far the run is, in the log that `flwr run --stream` shows."""

    def __init__(self) -> None:
        self.rounds = 0

    def started(self, rounds: int, done: int) -> None:
        self.rounds = rounds
        _say(f"{done} of {rounds} rounds are done")

    def round_done(self, row: Mapping[str, Any]) -> None:
        _say(f"round {row['round']} of {self.rounds} is done")

    def stopping(self) -> bool:
        """Flower kills an app whose run is stopped; the run goes on from its last round when it is submitted again."""
        return False


def server_app(experiment: Path) -> Any:
    """Return the ServerApp of an experiment file; raises ImportError without Flower."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    def main(grid: Any, context: Any) -> None:
        _main(experiment, grid, context)

    app.main()(main)
    return app


def _main(experiment: Path, grid: Any, context: Any) -> None:
    """Run an experiment and write its report; raises RuntimeError with one line for whatever is wrong."""
    from fedkin.network.flower.grid import GridCalls, NumberedCalls
    from fedkin.running.flowered import in_app, played

    calls = NumberedCalls(grid, _say) if context.run_config.get("simulation") else GridCalls(grid, _say)
    Thread(target=_end_with, args=(calls,), name="superlink", daemon=True).start()
    try:
        result, folder = played(in_app(experiment, context.run_config), calls, context.run_config, _say, _Rounds())
        write_run_report([folder], folder)
    except FedkinError as error:
        raise RuntimeError(said(error)) from None
    _say(f"the run has ended after {len(result.rounds)} rounds: {folder}")


def _end_with(calls: GridCalls) -> None:
    """End at once when the SuperLink is gone: it starts another one of this, which cannot go on with the same records.

    A kill at any moment costs the round at hand and no more.
    """
    while not calls.over.wait(_LOOK):
        if time.monotonic() - calls.answered > _GONE:
            _say(f"Flower's SuperLink has not answered for {_GONE:g} s: submit the run again when it is back")
            os._exit(1)


def _say(line: str) -> None:
    print(f"fedkin: {line}", flush=True)
