"""A Flower deployment of processes on this machine, with TLS and keys, and federations that run on it one by one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certificates import Town, free_port
from fedkin.data.own import own_client
from fedkin.federation import Federation
from fedkin.network.identity import certificate_pem
from fedkin.running.experiment import Experiment
from fedkin.running.loop import execute
from network.federations import write_samples
from support import started_by

NAMES = ("c00", "c01", "c02")
PROGRAMS = Path(sys.executable).parent
_UP = "Application startup complete"
_LET_IN = "[Fleet.ActivateNode] Activated"
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass
class Deployment:
    """Processes in a folder, each with a log there; `ports` of the SuperLink and of each SuperNode."""

    folder: Path
    ports: dict[str, int]
    federation: Federation
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

    def done(self, *words: str, within: float = 900) -> subprocess.CompletedProcess[str]:
        """What a program did."""
        return subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=within, check=False
        )

    def kill(self, name: str) -> None:
        """SIGKILL to a program, and to all that it started; Flower gives some a group of their own."""
        process = self.started.pop(name)
        for number in (process.pid, *started_by(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()

    def stop(self, name: str, within: float = 300) -> None:
        """Ask a program to end, and wait until it has."""
        process = self.started.pop(name)
        process.terminate()
        process.wait(within)

    def log(self, name: str) -> str:
        """What a program has said."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, name: str, words: str, within: float = 1500, times: int = 1) -> None:
        """Wait until a program has said this so many times; fails if it has ended before."""
        end, process = time.monotonic() + within, self.started[name]
        while self.log(name).count(words) < times:
            assert time.monotonic() < end, f"{name}: no {words!r}\n{self.tails()}"
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            assert self.log(name).count(words) >= times, f"{name} has ended: no {words!r}\n{self.tails()}"

    def ended(self, name: str, within: float = 1500) -> None:
        """Wait until a program has ended well."""
        try:
            code = self.started[name].wait(within)
        except subprocess.TimeoutExpired:
            code = -1
        assert code == 0, f"{name}: {code}\n{self.tails()}"

    def tails(self) -> str:
        """The end of each log."""
        return "\n".join(f"--- {path.stem}\n{self.log(path.stem)[-3000:]}" for path in self.folder.glob("*.log"))

    def superlink(self) -> None:
        """Start the SuperLink, with TLS and keys of nodes; it keeps its state in a file."""
        self.start(
            "superlink", "flower-superlink", "--ssl-certfile", "superlink.crt", "--ssl-keyfile", "superlink.key",
            "--ssl-ca-certfile", "ca.crt", "--enable-supernode-auth", "--disable-runtime-dependency-installation",
            "--host", "127.0.0.1", "--port", str(self.ports["superlink"]), "--database", "state.db",
        )  # fmt: skip
        self.until("superlink", _UP, times=self.log("superlink").count(_UP) + 1)

    def register(self, name: str) -> None:
        """Register a node's key under its name."""
        done = self.done("flwr", "supernode", "register", f"{name}.pub", "here", "--name", name)
        assert done.returncode == 0, done.stdout + done.stderr

    def supernode(self, name: str, *, door: str = "superlink", configuration: str = "") -> None:
        """Start a node's SuperNode, which tells its app of a socket or of another `configuration`."""
        self.start(
            f"supernode-{name}", "flower-supernode", "--superlink", f"127.0.0.1:{self.ports[door]}",
            "--root-certificates", "ca.crt", "--auth-supernode-private-key", name, "--host", "127.0.0.1", "--port",
            str(self.ports[name]), "--node-config", configuration or f'fedkin-socket="{self.folder / name}.socket"',
        )  # fmt: skip

    def supernode_again(self, name: str, within: float = 600) -> None:
        """Start a killed SuperNode until the SuperLink lets it in; one ends while the old one is taken for alive."""
        end, before = time.monotonic() + within, self.log("superlink").count(_LET_IN)
        while self.log("superlink").count(_LET_IN) == before:
            assert time.monotonic() < end, f"supernode-{name} is not let in\n{self.tails()}"
            process = self.started.get(f"supernode-{name}")
            if process is None or process.poll() is not None:
                self.supernode(name)
            with suppress(subprocess.TimeoutExpired):
                self.started[f"supernode-{name}"].wait(0.1)

    def proxy(self, program: str, server: str) -> None:
        """Start nginx with a section `server`, for this machine's ports."""
        own = server.replace("listen 443", f"listen 127.0.0.1:{self.ports['proxy']}")
        places = "".join(f"{what}_temp_path nginx-{what}; " for what in _TEMPORARY)
        (self.folder / "nginx.conf").write_text(
            f"{'user root; ' if os.geteuid() == 0 else ''}daemon off; pid nginx.pid;\nevents {{}}\nhttp {{\n"
            f"access_log nginx-access.log; {places}\n{own.replace(':18000', ':' + str(self.ports['superlink']))}\n}}\n"
        )
        self.start("nginx", program, "-p", str(self.folder), "-e", "nginx-error.log", "-c", "nginx.conf")

    def app_of_the_server(self) -> int:
        """The process of the server's part of a run, which the SuperLink has started."""
        below = started_by(self.started["superlink"].pid)
        (app,) = [number for number in below if b"flwr-serverapp" in _command(number)]
        return app

    def trial(self, name: str, table: Mapping[str, Any]) -> Trial:
        """A federation on this deployment."""
        (self.folder / name).mkdir()
        (self.folder / name / "experiment.toml").write_text(tomli_w.dumps(table))
        return Trial(self, name, Experiment.of(table))


@dataclass
class Trial:
    """One federation; its files are in a folder of the deployment's, its programs have its name before theirs."""

    made: Deployment
    name: str
    plan: Experiment

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.made.folder / self.name

    def nodes(self, *names: str) -> None:
        """Start the processes that hold the samples of these nodes (none named: all)."""
        for name in names or NAMES:
            self.made.start(
                f"{self.name}-{name}", "fedkin", "flower", "node", f"{self.name}/experiment.toml", "--name", name,
                "--data", f"{name}.npz", "--socket", f"{name}.socket", "--state", f"{self.name}/{name}-state", "--yes",
            )  # fmt: skip

    def app(self, *more: str) -> None:
        """Write the app."""
        done = self.made.done(
            "fedkin", "flower", "new", f"{self.name}/app", "--experiment", f"{self.name}/experiment.toml",
            "--out", f"{self.name}/run", *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, log: str = "flwr", *more: str) -> None:
        """Start `flwr run`, which shows the server's log until it ends."""
        self.made.start(f"{self.name}-{log}", "flwr", "run", f"{self.name}/app", *(more or ("here",)), "--stream")

    def begin(self, *nodes: str) -> None:
        """Start these nodes (none named: all), write the app and run it."""
        self.nodes(*nodes)
        self.app()
        self.run()

    def until(self, who: str, words: str, within: float = 1500) -> None:
        """Wait until a program of this federation has said this."""
        self.made.until(f"{self.name}-{who}", words, within)

    def kill(self, who: str) -> None:
        """SIGKILL to a program of this federation, and to all that it started."""
        self.made.kill(f"{self.name}-{who}")

    def ended(self, log: str = "flwr", nodes: Sequence[str] = NAMES) -> None:
        """Wait until the run has ended, and the processes that hold the samples of these nodes."""
        self.until(log, "fedkin: the run has ended")
        for name in nodes:
            self.made.ended(f"{self.name}-{name}")

    def simulated(self) -> Path:
        """Run the same experiment in this process; returns its folder."""
        folder = self.folder / "simulated"
        files = {name: str(self.made.folder / f"{name}.npz") for name in NAMES}
        each = [own_client(name, data, classes=10, seed=self.plan.run.seed) for name, data in files.items()]
        federation = Federation([client for client, _ in each], each[0][1], self.plan.name)
        execute(self.plan.setup(federation), self.plan.run, name=self.plan.name, folder=folder)
        return folder


def _command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


@contextmanager
def deployed(folder: Path, town: Town, federation: Federation) -> Iterator[Deployment]:
    """Write certificates, keys and the data of each client; end all processes at last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(certificate_pem([town.ca]))
    town.save("superlink", folder)
    names = sorted(federation)
    for name in names:
        write_samples(folder, name, federation[name])
    for name in (*names, "mallory"):
        _write_key(folder, name)
    ports = {name: free_port() for name in ("superlink", "proxy", "mallory", *names)}
    made = Deployment(folder, ports, federation)
    (folder / "flwr").mkdir()
    doors: dict[str, Any] = {
        name: {"address": f"127.0.0.1:{ports[door]}", "root-certificates": str(folder / "ca.crt")}
        for name, door in (("here", "superlink"), ("proxied", "proxy"))
    }
    (folder / "flwr" / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "here", **doors}}))
    try:
        yield made
    finally:
        for name in list(made.started):
            made.kill(name)


def _write_key(folder: Path, name: str) -> None:
    """Write a node's key as OpenSSH does."""
    key, unlocked = ec.generate_private_key(ec.SECP384R1()), serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, unlocked)
    (folder / name).write_bytes(private)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public)
