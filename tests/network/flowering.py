"""A Flower deployment of processes on this machine, with TLS and keys, and `fedkin flower node` at each SuperNode."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedkin.data.own import own_client
from fedkin.federation import Federation
from fedkin.network.identity import certificate_pem
from fedkin.running.experiment import Experiment
from fedkin.running.loop import execute
from network.federations import write_samples
from town import Town, free_port

PROGRAMS = Path(sys.executable).parent


@dataclass
class Deployment:
    """Processes in a folder, each with a log there; `ports` of the SuperLink and of each SuperNode."""

    folder: Path
    plan: Experiment
    clients: Federation
    ports: dict[str, int]
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Flower's settings: a home of its own, and nothing told to anybody outside."""
        return {
            **os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }  # fmt: skip

    def start(self, name: str, *words: str) -> None:
        """Start a program, which starts others."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def done(self, *words: str, within: float = 120) -> subprocess.CompletedProcess[str]:
        """What a program did."""
        return subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=within, check=False
        )

    def kill(self, name: str) -> None:
        """SIGKILL to a program and all that it started."""
        process = self.started.pop(name)
        for number in (process.pid, *_below(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        """What a program has said."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, name: str, words: str, within: float = 1500) -> None:
        """Wait until a program has said this; fails if it has ended before."""
        end, process = time.monotonic() + within, self.started[name]
        while words not in self.log(name):
            assert time.monotonic() < end, f"{name}: no {words!r}\n{self.tails()}"
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            assert words in self.log(name), f"{name} has ended: no {words!r}\n{self.tails()}"

    def ended(self, name: str, within: float = 1500) -> None:
        """Wait until a program has ended well."""
        try:
            code = self.started[name].wait(within)
        except subprocess.TimeoutExpired:
            code = -1
        assert code == 0, f"{name}: {code}\n{self.tails()}"

    def tails(self) -> str:
        """The end of each log."""
        return "\n".join(
            f"--- {path.stem}\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log")
        )

    def superlink(self) -> None:
        """Start the SuperLink, with TLS and keys of nodes; it keeps its state in a file."""
        self.start(
            "superlink", "flower-superlink", "--ssl-certfile", "superlink.crt", "--ssl-keyfile", "superlink.key",
            "--ssl-ca-certfile", "ca.crt", "--enable-supernode-auth", "--disable-runtime-dependency-installation",
            "--host", "127.0.0.1", "--port", str(self.ports["superlink"]), "--database", "state.db",
        )  # fmt: skip
        self.until("superlink", "Application startup complete")

    def register(self, name: str) -> None:
        """Register a node's key under its name."""
        done = self.done("flwr", "supernode", "register", f"{name}.pub", "here", "--name", name)
        assert done.returncode == 0, done.stdout + done.stderr

    def supernode(self, name: str) -> None:
        """Start a node's SuperNode."""
        self.start(
            f"supernode-{name}", "flower-supernode", "--superlink", f"127.0.0.1:{self.ports['superlink']}",
            "--root-certificates", "ca.crt", "--auth-supernode-private-key", name, "--host", "127.0.0.1",
            "--port", str(self.ports[name]), "--node-config", f'fedkin-socket="{self.folder / name}.socket"',
        )  # fmt: skip

    def node(self, name: str) -> None:
        """Start the process that holds a node's samples."""
        self.start(
            f"node-{name}", "fedkin", "flower", "node", "experiment.toml", "--name", name, "--data", f"{name}.npz",
            "--socket", f"{name}.socket", "--state", f"{name}-state", "--yes",
        )  # fmt: skip

    def all_up(self) -> None:
        """Start everything but the run."""
        self.superlink()
        for name in sorted(self.clients):
            self.register(name)
            self.supernode(name)
            self.node(name)

    def app(self, out: str = "run") -> None:
        """Write the app."""
        done = self.done("fedkin", "flower", "new", "app", "--experiment", "experiment.toml", "--out", out)
        assert done.returncode == 0, done.stderr

    def run(self, name: str = "flwr") -> None:
        """Start `flwr run`, which shows the server's log until it ends."""
        self.start(name, "flwr", "run", "app", "here", "--stream")

    def kill_app(self) -> None:
        """SIGKILL to the server's part of the run, which the SuperLink has started."""
        below = _below(self.started["superlink"].pid)
        (app,) = [number for number in below if b"flwr-serverapp" in _command(number)]
        os.kill(app, signal.SIGKILL)

    def simulated(self) -> Path:
        """Run the same experiment in this process; returns its folder."""
        folder = self.folder / "simulated"
        execute(self.plan.setup(self.clients), self.plan.run, name=self.plan.name, folder=folder)
        return folder


def _below(process: int) -> list[int]:
    """The processes that this one has started, and those that they have; Flower gives some a group of their own."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [process]
    for number in found:
        found += [child for child, parent in parents.items() if parent == number]
    return found[1:]


def _command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


@contextmanager
def deployed(folder: Path, table: Mapping[str, Any], town: Town, federation: Federation) -> Iterator[Deployment]:
    """Write certificates, keys, data of each client and the experiment; end all processes at last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(certificate_pem([town.ca]))
    (folder / "superlink.crt").write_bytes(certificate_pem(town["superlink"].chain))
    (folder / "superlink.key").write_bytes(town["superlink"].key_pem)
    names = sorted(federation)
    for name in names:
        write_samples(folder, name, federation[name])
    for name in (*names, "mallory"):
        _write_key(folder, name)
    (folder / "experiment.toml").write_text(tomli_w.dumps(table))
    plan = Experiment.of(table)
    own = [own_client(name, str(folder / f"{name}.npz"), classes=10, seed=plan.run.seed) for name in names]
    made = Deployment(
        folder, plan, Federation([client for client, _ in own], own[0][1], plan.name),
        {name: free_port() for name in ("superlink", "mallory", *names)},
    )  # fmt: skip
    (folder / "flwr").mkdir()
    address = f"127.0.0.1:{made.ports['superlink']}"
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\n'
        f'root-certificates = "{folder / "ca.crt"}"\n'
    )
    try:
        yield made
    finally:
        for name in list(made.started):
            made.kill(name)


def _write_key(folder: Path, name: str) -> None:
    """Write a node's key as OpenSSH does."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / name).write_bytes(private)
    (folder / f"{name}.pub").write_bytes(public)
