"""The server of an experiment on a Flower deployment: what `flwr run` starts from the app of `fedkin flower new`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.cli.experiments import reported
from fedkin.errors import FedkinError
from fedkin.untrusted import said

__all__ = ["server_app"]


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
    from fedkin.running.experiment import load
    from fedkin.running.flowered import played

    try:
        result, folder = played(load(experiment), grid, context.run_config, _say, _Rounds())
        reported([folder])
    except FedkinError as error:
        raise RuntimeError(said(error)) from None
    _say(f"the run has ended after {len(result.rounds)} rounds: {folder}")


def _say(line: str) -> None:
    print(f"fedkin: {line}", flush=True)
