"""Federations of processes on this machine, over Zenoh: the commands, with keys, certificates, join files and data."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess as Process
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import tomli_w

from certificates import Town, free_port
from fedkin.data.own import own_client
from fedkin.federation import Federation
from fedkin.network.identity import certificate_pem
from fedkin.network.join_file import VERSION, Join, Member, read_join, write_join
from fedkin.network.status import FILE, read_status
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.loop import execute
from network.federations import experiment, write_samples

# Every process is forked from one that has imported everything: a start takes no time, also on a busy machine.
_FORKS = multiprocessing.get_context("forkserver")
_IMPORTED = ["fedkin.cli.commands", "fedkin.cli.output", "fedkin.network.client", "fedkin.network.zenoh_link",
             "fedkin.running.networked", "fedkin.report.collect", "fedkin.report.page", "fedkin.report.tables",
             "network.processes", "filelock",
             # What torch and pyarrow import when they first count operations, and write a table.
             "torch.utils.flop_counter", "pyarrow.dataset", "pandas"]  # fmt: skip


def _command(words: list[str], folder: Path, log: Path, space: str, gate: Path | None = None) -> None:
    """Run a command in a child, as from a shell in this folder (and network namespace)."""
    if space:
        with open(f"/run/netns/{space}") as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), 0x40000000):  # CLONE_NEWNET
                raise OSError(ctypes.get_errno(), f"the namespace {space} cannot be entered")
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(number, stream)
    sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))  # noqa: SIM115
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.argv = ["fedkin", "net", *words]
    from fedkin.cli import main

    if gate is not None:
        _wait_before_rounds(gate, log.stem)
    main()


def _wait_before_rounds(gate: Path, name: str) -> None:
    """Have a peer say which round it comes to, and wait before it until that is open."""
    from fedkin.network.peer import PeerEngine

    whole, pause = PeerEngine.round, threading.Event()

    def round(engine: PeerEngine, number: int) -> Any:
        _write(gate / name, number)
        while _number(gate / "open") < number:
            pause.wait(0.05)
        return whole(engine, number)

    PeerEngine.round = round  # type: ignore[method-assign,assignment]


def _write(path: Path, number: int) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(str(number))
    aside.replace(path)


def _number(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


@dataclass
class Place:
    """A folder with all that a federation needs, and the processes that were started there."""

    folder: Path
    plan: Experiment
    clients: Federation
    started: list[Process] = field(default_factory=list)
    gated: bool = False

    def serve(self, *more: str, space: str = "") -> Process:
        """Start the server; `more` are --out or --resume."""
        first = [] if "--resume" in more else ["experiment.toml"]
        return self._start("server", "serve", *first, "--join", "join.toml", "--key", "server.key", *more, space=space)

    def join(self, name: str, file: str = "join.toml", space: str = "", data: str = "") -> Process:
        """Start a client, with its own samples or others."""
        words = ["--key", f"{name}.key", "--data", f"{data or name}.npz", "--state", f"{name}-state", "--yes"]
        return self._start(name, "join", file, *words, space=space)

    def join_all(self, far: Iterable[str] = (), file: str = "far.toml", space: str = "") -> dict[str, Process]:
        """Start all clients, those that are far with this join file."""
        return {name: self.join(name, file if name in far else "join.toml", space) for name in self.names}

    def whole(self, run: Path | None) -> None:
        """Run all clients, and a server with this folder if there is one, until they have ended well."""
        server = {} if run is None else {"server": self.serve("--out", str(run))}
        ended(self, {**server, **self.join_all()})

    def leave(self, name: str) -> Process:
        """Start the command by which a client leaves for good."""
        return self._start(name, "leave", "join.toml", "--key", f"{name}.key")

    @property
    def ports(self) -> dict[str, int]:
        """The port of each who listens."""
        members = read_join(self.folder / "join.toml").members
        return {name: int(who.locator.rpartition(":")[2]) for name, who in members.items() if who.locator}

    def by(self, ports: Mapping[str, int]) -> str:
        """Write a join file with which these are dialled at other ports; returns its name."""
        join = read_join(self.folder / "join.toml")
        others = {name: Member(locator=f"tls/127.0.0.1:{port}") for name, port in ports.items()}
        write_join(join.model_copy(update={"members": {**join.members, **others}}), self.folder / "far.toml")
        return "far.toml"

    def _start(self, name: str, *words: str, space: str = "") -> Process:
        gate = self.gate if self.gated else None
        given = (list(words), self.folder, self.folder / f"{name}.log", space, gate)
        process = _FORKS.Process(target=_command, args=given)
        process.start()
        self.started.append(process)
        return process

    @property
    def gate(self) -> Path:
        """Where gated peers say which round they come to."""
        folder = self.folder / "gate"
        folder.mkdir(exist_ok=True)
        return folder

    def open(self, last: int) -> None:
        """Let gated peers do the rounds up to this one."""
        _write(self.gate / "open", last)

    def wait(self, done: Callable[[], bool], what: str, within: float = 300) -> None:
        """Wait until this is so."""
        end, pause = time.monotonic() + within, threading.Event()
        while not done():
            assert all((process.exitcode or 0) <= 0 for process in self.started), (
                f"not {what}, since one has ended with an error:\n{self.tails()}"
            )
            assert time.monotonic() < end, f"not {what} within {within:g} s:\n{self.tails()}"
            pause.wait(0.05)

    def level(self, round: int) -> None:
        """Wait until all gated peers, who see each other, stand before a round that is not open."""
        self.wait(lambda: all(self._stands(name, round) for name in self.names), f"before round {round}")

    def _stands(self, name: str, round: int) -> bool:
        status = self.folder / f"{name}-state" / FILE
        if _number(self.gate / name) != round or not status.exists():
            return False
        seen = read_status(status).others
        return all(other in seen and seen[other].here for other in self.names if other != name)

    @property
    def names(self) -> list[str]:
        """The names of the clients."""
        return sorted(self.clients)

    def log(self, name: str) -> str:
        """What a process has said so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def tails(self) -> str:
        """The last words of all."""
        return "\n".join(f"{path.name}\n{self.log(path.stem)[-2000:]}" for path in sorted(self.folder.glob("*.log")))


class Follow:
    """Reads what a process says."""

    def __init__(self, place: Place, name: str) -> None:
        self.place, self.name, self.read = place, name, 0

    def until(self, words: str) -> None:
        """Wait for a line with these words, after the one that was found last."""
        self.place.wait(lambda: self._found(words), f"in the log of {self.name}: {words!r}")

    def _found(self, words: str) -> bool:
        text = self.place.log(self.name)
        found = text.find(words, self.read)
        end = text.find("\n", found) if found >= 0 else -1
        self.read = max(self.read, end)
        return end >= 0


@contextmanager
def made(
    folder: Path, table: dict[str, Any], town: Town, federation: Federation, peers: bool = False,
    host: str = "127.0.0.1",
) -> Iterator[Place]:  # fmt: skip
    """Write keys, certificates, data of each client, the experiment and the join file; end all processes at last."""
    names = sorted(federation)
    for name in ("server", *names):
        town.save(name, folder)
    for name, client in federation.items():
        write_samples(folder, name, client)
    text = tomli_w.dumps(table)
    (folder / "experiment.toml").write_text(text)
    if peers:
        members = {name: Member(locator=f"tls/127.0.0.1:{free_port()}") for name in names}
    else:
        members = {"server": Member(locator=f"tls/{host}:{free_port()}"), **dict.fromkeys(names, Member())}
    ca = certificate_pem([town.ca]).decode()
    write_join(
        Join(version=VERSION, federation="tiny", server="" if peers else "server", ca=ca, experiment=text,
             members=members), folder / "join.toml",
    )  # fmt: skip
    _FORKS.set_forkserver_preload(_IMPORTED)
    plan = Experiment.of(table)
    own = [own_client(name, str(folder / f"{name}.npz"), classes=10, seed=plan.run.seed) for name in names]
    place = Place(folder, plan, Federation([client for client, _ in own], own[0][1], plan.name))
    try:
        yield place
    finally:
        for process in place.started:
            process.kill()
            process.join()


def place_for(
    folder: Path, town: Town, method: str, /, *, clients: int = 8, rounds: int = 5, grace: float = 20.0,
    peers: bool = False, host: str = "127.0.0.1", **sections: Mapping[str, Any],
) -> AbstractContextManager[Place]:  # fmt: skip
    """Such a place for an experiment on digits, rotated in groups; `sections` are as in `federations.experiment`."""
    plan = experiment(method, clients=clients, rounds=rounds, **sections)
    table = {**plan.table, "network": {"classes": 10, "deadline": 120.0, "grace": grace}}
    return made(folder, table, town, plan.federation(Path()), peers, host)


def simulated(place: Place, folder: Path, **options: Any) -> Result:
    """The same experiment in one process."""
    return execute(place.plan.setup(place.clients), place.plan.run, name="tiny", folder=folder, **options)


def kill(*processes: Process) -> None:
    """SIGKILL to all of them, and wait until they are gone."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def equal(folder: Path, here: Result) -> None:
    """Assert that the records of a server are those of a simulation."""
    assert rounds(folder) == here.rounds
    assert sorted(rows(folder, "clients")) == sorted(here.clients)
    assert sorted(rows(folder)) == sorted(here.messages)


def ended(place: Place, processes: Mapping[str, Process], within: float = 500) -> None:
    """Wait until all have ended well."""
    for name, process in processes.items():
        process.join(within)
        assert process.exitcode == 0, f"{name}\n{place.tails()}"


def rounds(folder: Path) -> list[dict[str, Any]]:
    """The rows of rounds.jsonl."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def rows(folder: Path, name: str = "messages") -> list[tuple[Any, ...]]:
    """The rows of a table; of messages (round, sender, receiver, phase, bytes, floats, missing)."""
    return list(zip(*pq.read_table(folder / f"{name}.parquet").to_pydict().values(), strict=True))


def accuracy(folder: Path) -> float:
    """The mean over the last 50 rounds: with a few test samples a client, single rounds differ by 2.3 points (sd)."""
    return statistics.fmean(line["accuracy"]["mean"] for line in rounds(folder)[-50:])
