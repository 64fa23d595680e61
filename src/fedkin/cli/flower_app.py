"""What Flower starts from the app of `fedkin flower new`: the server of a run, and a client for each message.

A client without `fedkin flower node` keeps its state in a folder between two messages. In Flower's simulation its
samples are those of the experiment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from fedkin.cli.output import write_run_report
from fedkin.cli.participant import joined, ledger_in, read_samples
from fedkin.errors import ConfigError, FedkinError
from fedkin.settings import Settings, parse
from fedkin.untrusted import said

if TYPE_CHECKING:
    from fedkin.federation import Federation
    from fedkin.network.flower.server_calls import GridCalls
    from fedkin.network.stateless_client import VisitingLink
    from fedkin.running.experiment import Experiment

__all__ = ["answered", "server_app"]

_OURS, _PARTITION = "fedkin-", "partition-id"
_WHERE = "a SuperNode's --node-config"
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
    from fedkin.network.flower.server_calls import GridCalls, NumberedCalls
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


# -- a client for each message -----------------------------------------------------------------------------------------


class _Place(Settings):
    """What a SuperNode's configuration says of its client, each with `fedkin-` before its name.

    data, target, group, test_fraction, tell_labels, max_epsilon, device: as the options of `fedkin flower node`.
    metric: FILE.py:NAME, with absolute paths, several with commas between them.
    state: folder of its states. yes: what is listed in the SuperNode's log may leave this machine.
    """

    data: str
    state: Path
    yes: bool = False
    target: str | None = None
    group: str | None = None
    test_fraction: float | None = None
    tell_labels: bool = False
    max_epsilon: float | None = None
    device: str = "cpu"
    metric: str = ""


def answered(experiment: Path, letter: bytes, context: Any) -> bytes:
    """Return the answer to the server's letter, or this client's name if the letter is empty; raises FedkinError.

    context: Flower's, with the configuration of the node and of the run.
    """
    from fedkin.network.calls import addressee
    from fedkin.running.experiment import load
    from fedkin.running.flowered import in_app
    from fedkin.running.shared_metrics import read_metrics

    node, run = context.node_config, context.run_config
    if run.get("simulation"):
        # A run's settings are those of whoever submits it: at the node of a site they are no consent.
        if _PARTITION not in node or any(name.startswith(_OURS) for name in node):
            raise ConfigError(
                f"an app for Flower's simulation, and this is the node of a site: {_WHERE} has fedkin settings, or no "
                "partition-id; write the app without --simulation"
            )
        return _simulated(in_app(experiment, run), letter, node, run)
    place = _place(node)
    read_metrics([each.strip() for each in place.metric.split(",") if each.strip()], f"{_WHERE}: fedkin-metric")
    return _worked(load(experiment), addressee(letter), letter, place, None)


def _place(node: Mapping[str, Any]) -> _Place:
    given = {
        name.removeprefix(_OURS).replace("-", "_"): value for name, value in node.items() if name.startswith(_OURS)
    }
    if not given:
        raise ConfigError(f"{_WHERE} has no fedkin-socket of fedkin flower node, and no fedkin-data to work without it")
    place = parse(_Place, given, f"{_WHERE}: fedkin")
    # MODULE:FUNCTION is no path.
    files = [("metric", Path(each.strip())) for each in place.metric.split(",") if each.strip()]
    for name, path in (("state", place.state), ("data", Path(place.data)), *files):
        if not path.is_absolute() and (name != "data" or ":" not in place.data):
            raise ConfigError(f"{_WHERE}: fedkin-{name}: {path} is not absolute, and Flower's folder is not yours")
    return place


def _simulated(plan: Experiment, letter: bytes, node: Mapping[str, Any], run: Mapping[str, Any]) -> bytes:
    """Answer as the client whose number Flower's simulation gives this node."""
    from fedkin.data.partitions import Partitions
    from fedkin.running.flowered import simulated, states_in

    federation = _federation(plan.to_toml(), Path(str(run["data-root"])))
    client = Partitions(federation).client(node[_PARTITION])
    if not letter:
        return client.id.encode()
    out = Path(str(run["out"]))
    place = _Place(data="", state=states_in(out) / client.id, yes=True)
    return _worked(simulated(plan, federation), client.id, letter, place, federation)


@lru_cache(maxsize=1)
def _federation(text: str, root: Path) -> Federation:
    from fedkin.running.experiment import Experiment
    from fedkin.untrusted import toml_of

    return Experiment.of(toml_of(text)).federation(root)


def _worked(plan: Experiment, name: str, letter: bytes, place: _Place, federation: Federation | None) -> bytes:
    """Take part for as long as this letter has something to do."""
    from fedkin.folders import held
    from fedkin.network.client import NetworkClient
    from fedkin.network.stateless_client import visited
    from fedkin.running import networked

    settings = networked.settings_of(plan)
    with held(place.state), ledger_in(plan, place.state, name, place.max_epsilon) as ledger:

        def work(link: VisitingLink, memory: dict[str, Any]) -> None:
            consent = _consenting(place.yes, memory)
            if federation is not None:
                client, task = federation[name], federation.task
            else:
                samples = read_samples(plan, name, place.data, place.target, place.test_fraction, place.group)
                client, task = joined(samples, plan, link, place.state, "server", consent, ledger, Event())
            NetworkClient(
                link, client, task, networked.plan_of, place.state, settings=settings, labels=place.tell_labels,
                device=place.device, say=_say, consent=consent, ledger=ledger, memory=memory,
            ).run()  # fmt: skip

        return visited(place.state, name, letter, work)


def _consenting(yes: bool, memory: dict[str, Any]) -> Callable[[list[str]], bool]:
    """Show in the log, once, what will leave this client."""

    def ask(lines: list[str]) -> bool:
        if lines not in memory.get("shown", []):
            memory["shown"] = [*memory.get("shown", []), lines]
            for line in ["what leaves this client, to the server of the Flower deployment:", *lines]:
                _say(line)
        if not yes:
            raise ConfigError(
                "nobody can be asked whether this may leave: read the SuperNode's log, set fedkin-yes=true"
            )
        return True

    return ask


def _say(line: str) -> None:
    print(f"fedkin: {line}", flush=True)
