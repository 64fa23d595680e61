"""Federations over a network in one process: an experiment, its simulation, and clients in threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch

from fedkin import codec
from fedkin.data.own import OwnSamples
from fedkin.errors import ConfigError, FedkinError
from fedkin.federation import Client
from fedkin.learning.metrics import MEASURES, metric
from fedkin.network.client import NetworkClient
from fedkin.network.link import Left
from fedkin.network.status import FILE, read_status
from fedkin.records.models import digest_of
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.loop import Stop, execute
from fedkin.running.model_loader import load
from fedkin.running.networked import serve, setup_of, take_home
from network.memory import MemoryNetwork
from support import Ending, same

NOWHERE = Path("/nonexistent")


def experiment(
    method: str = "fedavg", /, clients: int = 8, rounds: int = 3, **sections: Mapping[str, Any]
) -> Experiment:
    """Digits, rotated in groups; `sections` change or add to the sections of the table."""
    table: dict[str, Any] = {
        "name": "tiny",
        "data": {"source": "digits"},
        "scenario": {"name": "rotated-masked", "clients": clients},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"rounds": rounds, "local_steps": 3, "batch_size": 16, "lr": 0.1},
        "method": {"name": method},
        "run": {"checkpoint_every": 1, "mode": "one-by-one"},
        "network": {"clients": clients, "deadline": 60.0, "grace": 0.2},
    }
    for name, fields in sections.items():
        table[name] = dict(fields) if name == "model" else {**table.get(name, {}), **fields}
    return Experiment.of(table)


@metric(higher=False, title="share of wrong classes")
def wrong_share(outputs: Any, targets: Any) -> Any:
    """A metric that a package brings."""
    return (outputs.argmax(1) != targets).mean()


def own_metric(method: str = "fedavg", /, **options: Any) -> Experiment:
    """Such an experiment with a metric of fedkin's and one that a package brings; the fixture `forgotten` too."""
    MEASURES[wrong_share.name] = wrong_share
    return experiment(method, **options, run={"metrics": ["balanced-accuracy", wrong_share.name]})


def write_samples(folder: Path, name: str, client: Client) -> None:
    """Write a client's samples with their split, as `--data NAME.npz` reads them."""
    parts = [(client.train, "train"), (client.test, "test")]
    np.savez(
        folder / f"{name}.npz", x=torch.cat([part.inputs(slice(None)) for part, _ in parts]).numpy(),
        y=torch.cat([part.labels() for part, _ in parts]).numpy(),
        split=np.concatenate([np.full(len(part), word) for part, word in parts]),
    )  # fmt: skip


def simulated(plan: Experiment, folder: Path, **options: Any) -> Result:
    """The same experiment in one process."""
    # Participants of a network train one client after another, and so does this.
    plan = replace(plan, run=plan.run.model_copy(update={"mode": "one-by-one"}))
    setup = plan.setup(plan.federation(NOWHERE))
    with plan.claimed(folder, NOWHERE):
        return execute(setup, plan.run, name=plan.name, folder=folder, model=plan.model, **options)


class Owner:
    """Says this to all that a participant's owner is asked; `asked`: each time, and `told`: all lines."""

    def __init__(self, says: str) -> None:
        self.says, self.asked = says, list[list[str]]()

    def __call__(self, lines: list[str]) -> bool:
        self.asked.append(lines)
        if self.says not in ("yes", "no"):
            raise ConfigError(self.says)
        return self.says == "yes"

    @property
    def told(self) -> list[str]:
        return [line for lines in self.asked for line in lines]


class Killed(Exception):
    """A participant is killed."""


def kill() -> None:
    """Kill the participant in which this is called."""
    raise Killed


@dataclass
class Clients:
    """The clients of an experiment in threads, gone at the end of `with`, and their server; `said`, `errors` by name.

    Clients have the folders folder/nodes/NAME, and the server folder/there.
    """

    plan: Experiment
    folder: Path
    network: Any = field(default_factory=MemoryNetwork)
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    stops: dict[str, threading.Event] = field(default_factory=dict)
    nodes: dict[str, NetworkClient] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    speaking: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.federation, self.root = self.plan.federation(NOWHERE), self.folder / "nodes"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *names: str, **options: Any) -> None:
        """Start these clients (none named: all)."""
        for name in names or sorted(self.federation):
            self.stops[name] = threading.Event()
            self.said.setdefault(name, [])
            self.errors.pop(name, None)
            given = name, {**self.options, **options}
            self.threads[name] = threading.Thread(target=self._run, args=given, daemon=True)
            self.threads[name].start()

    def _run(self, name: str, options: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        try:
            with self.network.link(name) as link:
                self.join_with(link, name, options)
        except FedkinError as error:
            self.errors[name] = str(error)
        except (Left, Stop, Killed) as error:
            self.errors[name] = type(error).__name__

    def join_with(self, link: Any, name: str, options: dict[str, Any]) -> None:
        """Take part over this link."""
        samples = self.samples_of(name, options)
        self.nodes[name] = NetworkClient(
            link, samples, options.pop("setup_of", setup_of), self.root / name, stop=self.stops[name],
            say=partial(self.note, name), patience=0.05, take_home=take_home, **options,
        )  # fmt: skip
        self.nodes[name].run()

    def samples_of(self, name: str, options: dict[str, Any]) -> OwnSamples:
        """The client's samples, or those of the options."""
        return options.pop("client", self.federation[name]), options.pop("task", self.federation.task)

    def serve(self, **watched: Any) -> Result:
        """Serve the experiment to its end; `watched`: of `Ending`, which stops it by raising Stop."""
        with self.network.link("server") as link:
            say, watcher = partial(self.note, "server"), Ending(**watched)
            return serve(self.plan, link, self.folder / "there", data_root=NOWHERE, watcher=watcher, say=say)

    def stopped(self, after: int, **watched: Any) -> None:
        """Serve the experiment until it is stopped after this round."""
        with pytest.raises(Stop):
            self.serve(after=after, **watched)

    def whole(self, **watched: Any) -> Result:
        """Start all clients, and serve until all have ended without an error."""
        self.start()
        result = self.serve(**watched)
        self.ended()
        return result

    def note(self, name: str, line: str) -> None:
        """Note what is said."""
        with self.speaking:
            self.said.setdefault(name, []).append(line)
            self.speaking.notify_all()

    def heard(self, name: str, words: str, times: int = 1) -> None:
        """Wait until this one has said these words so often."""
        with self.speaking:
            assert self.speaking.wait_for(
                lambda: sum(words in line for line in self.said.get(name, ())) >= times, 60
            ), self.said.get(name)

    def stop(self, *names: str) -> None:
        """Have these clients (none named: all) leave, and wait until they have."""
        for name in names or list(self.threads):
            self.stops[name].set()
        self.join(*names)

    def join(self, *names: str) -> None:
        """Wait until these clients (none named: all) have ended."""
        for name in names or list(self.threads):
            self.threads[name].join(60)
            assert not self.threads[name].is_alive(), name

    def ended(self) -> None:
        """Wait until all have ended, without an error."""
        self.join()
        assert self.errors == {}

    def states(self) -> dict[str, Any]:
        """The newest state of each client, from its disk."""
        found = {}
        for name in sorted(self.federation):
            files = sorted((self.root / name).glob("*/round-*.safetensors"))
            part = codec.decode(files[-1].read_bytes()[32:])["part"] if files else {}
            if "state" in part:
                found[name] = part["state"]
        return found


def equal(result: Result, here: Result) -> None:
    """Assert that two runs have the same rows."""
    assert result.rounds == here.rounds
    assert sorted(result.clients) == sorted(here.clients)
    assert result.messages == here.messages


def state_in(folder: Path) -> dict[str, Any]:
    """The engine's state in the newest checkpoint."""
    state: dict[str, Any] = codec.read(max((folder / "checkpoint").glob("*.safetensors")))["engine"]
    return state


def own_models(root: Path, here: Result) -> dict[str, str]:
    """The hash of the model in each participant's own folder, by name: the model of a simulation."""
    for name, params in here.models.items():
        own = load(root / name)
        assert list(own) == [name]
        assert same(own.stored[name], params), name
        assert read_status(root / name / FILE).model == digest_of(params)
        assert own.model() is not None  # the net is made anew, and the tensors fit
    return {name: digest_of(params) for name, params in here.models.items()}
