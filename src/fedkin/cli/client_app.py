"""A client of an experiment on Flower without `fedkin flower node`: Flower starts this for each message.

Between two messages its state lies in a folder. In Flower's simulation its samples are those of the experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from fedkin.cli._samples import joined, reader
from fedkin.cli.taking import ledger_in
from fedkin.errors import ConfigError
from fedkin.settings import Settings, parse

if TYPE_CHECKING:
    from fedkin.federation import Federation
    from fedkin.network.visits import VisitingLink
    from fedkin.running.experiment import Experiment

__all__ = ["answered"]

_OURS, _PARTITION = "fedkin-", "partition-id"
_WHERE = "a SuperNode's --node-config"


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
    from fedkin.network.mailbox import addressee
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
    from fedkin.network.node import Node
    from fedkin.network.visits import visited
    from fedkin.running import networked

    settings = networked.settings_of(plan)
    with held(place.state), ledger_in(plan, place.state, name, place.max_epsilon) as ledger:

        def work(link: VisitingLink, memory: dict[str, Any]) -> None:
            consent = _consenting(place.yes, memory)
            if federation is not None:
                client, task = federation[name], federation.task
            else:
                read = reader(plan, name, place.data, place.target, place.test_fraction, place.group)
                client, task = joined(read, plan, link, place.state, "server", consent, ledger, Event())
            Node(
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
