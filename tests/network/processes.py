"""Federations of processes on this machine, over Zenoh: the commands, with keys, certificates, join files and data."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess as Process
from pathlib import Path
from typing import IO, Any

import numpy as np
import tomli_w
import torch

from fedkin.data.own import own_client
from fedkin.federation import Federation
from fedkin.network.book import Member
from fedkin.network.identity import certificate_pem
from fedkin.network.joining import VERSION, Join, hash_of, write_join
from fedkin.network.keys import write_private
from fedkin.running.experiment import Experiment
from town import Town, free_port

# Every process is forked from one that has imported everything: a start takes no time, also on a busy machine.
_FORKS = multiprocessing.get_context("forkserver")
_IMPORTED = ["fedkin.cli.commands", "fedkin.cli.progress", "fedkin.network.node", "fedkin.network.zenoh",
             "fedkin.running.networked", "fedkin.report", "network.processes"]  # fmt: skip


def _command(words: list[str], folder: Path, log: Path) -> None:
    """Run a command in a child, as from a shell in this folder."""
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(number, stream)
    sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))  # noqa: SIM115
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.argv = ["fedkin", *words]
    from fedkin.cli import main

    main()


@dataclass
class Place:
    """A folder with all that a federation needs, and the processes that were started there."""

    folder: Path
    plan: Experiment
    clients: Federation
    started: list[Process] = field(default_factory=list)

    def serve(self, *more: str) -> Process:
        """Start the server; `more` are --out or --resume."""
        first = [] if "--resume" in more else [str(self.folder / "experiment.toml")]
        join = ["--join", str(self.folder / "join.toml"), "--key", str(self.folder / "server.key")]
        return self._start("server", "serve", *first, *join, *more)

    def join(self, name: str, *more: str) -> Process:
        """Start a client."""
        files = ["--data", str(self.folder / f"{name}.npz"), "--key", str(self.folder / f"{name}.key"), "--yes"]
        return self._start(name, "join", str(self.folder / "join.toml"), *files, *more)

    def peer(self, name: str, *more: str) -> Process:
        """Start a peer."""
        files = ["--data", str(self.folder / f"{name}.npz"), "--key", str(self.folder / f"{name}.key"), "--yes"]
        return self._start(name, "peer", str(self.folder / "join.toml"), *files, *more)

    def _start(self, name: str, *words: str) -> Process:
        process = _FORKS.Process(target=_command, args=(list(words), self.folder, self.folder / f"{name}.log"))
        process.start()
        self.started.append(process)
        return process

    def log(self, name: str) -> str:
        """What a process has said so far."""
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def follow(self, name: str) -> Follow:
        """A reader of what a process says from now on."""
        return Follow(self.folder / f"{name}.log")


class Follow:
    """Reads a file that grows."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.process = subprocess.Popen(["tail", "-n", "+1", "-f", str(path)], stdout=subprocess.PIPE)

    def until(self, words: str) -> None:
        """Wait for a line with these words."""
        stream: IO[bytes] | None = self.process.stdout
        assert stream is not None
        while words not in (line := stream.readline().decode()):
            assert line, f"ended without {words!r}"

    def __enter__(self) -> Follow:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()


@contextmanager
def made(
    folder: Path, table: dict[str, Any], town: Town, federation: Federation, peers: bool = False
) -> Iterator[Place]:
    """Write keys, certificates, data of each client, the experiment and the join file; end all processes at last."""
    names = sorted(federation)
    for name in ("server", *names):
        write_private(folder / f"{name}.key", town[name].key_pem)
        (folder / f"{name}.crt").write_bytes(certificate_pem(town[name].chain))
    for name, client in federation.items():
        parts = [(client.train, "train"), (client.test, "test")]
        np.savez(
            folder / f"{name}.npz", x=torch.cat([part.inputs(slice(None)) for part, _ in parts]).numpy(),
            y=torch.cat([part.labels() for part, _ in parts]).numpy(),
            split=np.concatenate([np.full(len(part), word) for part, word in parts]),
        )  # fmt: skip
    text = tomli_w.dumps(table)
    (folder / "experiment.toml").write_text(text)
    if peers:
        members = {name: Member(locator=f"tls/127.0.0.1:{free_port()}") for name in names}
    else:
        members = {"server": Member(locator=f"tls/127.0.0.1:{free_port()}"), **dict.fromkeys(names, Member())}
    ca = certificate_pem([town.ca]).decode()
    write_join(
        Join(version=VERSION, federation="tiny", server="" if peers else "server", ca=ca, experiment=text,
             experiment_hash=hash_of(text), members=members), folder / "join.toml",
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
