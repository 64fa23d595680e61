"""A federation of processes on this machine over TLS, from keys to the report, and the same experiment in one process.

    OMP_NUM_THREADS=1 python benchmarks/network.py [--clients 4] [--rounds 30] [--method NAME] [--folder DIR] [--all]

It uses the commands of docs/network.md as several sites would: a CA, a key and a certificate for each, a join file;
then a server and one client for each site, each a process with its own samples (digits, rotated in groups that no
participant knows). At the end it runs the same experiment as a simulation, and says whether the records are equal, how
many rounds a minute each made (the median of all rounds except the first), and what the network costs for each client
and round; and the memory of the processes: private pages (USS), and these with a share of shared pages (PSS), each the
largest of four samples a second. --all: all figures of docs/network.md, with those of exchange.py and of crowd.py for
50 clients and for 50 peers (in a network namespace of their own, where `unshare` is allowed one).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w

from fedkin.data.own import own_client
from fedkin.federation import Federation
from fedkin.running.experiment import Experiment
from fedkin.running.loop import execute

sys.path[0] = str(Path(__file__).resolve().parents[1] / "tests")  # not this folder, whose network.py would be found
from certificates import free_port  # noqa: E402
from network.federations import write_samples  # noqa: E402

FEDKIN = [sys.executable, "-c", "from fedkin.cli import main; main()"]


def fedkin(folder: Path, *words: str) -> None:
    """Run a command to its end, quietly."""
    done = subprocess.run([*FEDKIN, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"fedkin {' '.join(words)}: {done.stderr}")


def table(clients: int, rounds: int, method: str) -> dict[str, Any]:
    return {
        "name": "demo-network",
        "data": {"source": "digits"},
        "scenario": {"name": "rotated-masked", "clients": clients, "rotations": [0, 90], "mask_rate": 0.0},
        "model": {"name": "mlp", "hidden": [64]},
        "training": {"rounds": rounds, "local_steps": 5, "batch_size": 32, "lr": 0.3},
        "method": {"name": method},
        "run": {"checkpoint_every": 1, "mode": "one-by-one"},
        "network": {"classes": 10, "deadline": 120.0},
    }


def prepared(folder: Path, written: dict[str, Any]) -> list[str]:
    """Write the experiment, keys, certificates, the join file and each site's samples; returns the sites' names."""
    (folder / "experiment.toml").write_text(tomli_w.dumps(written))
    plan = Experiment.of(written)
    federation = plan.federation(Path("data"))
    names = sorted(federation)
    fedkin(folder, "net", "ca", "ca")
    for name in ("server", *names):
        fedkin(folder, "net", "init", ".", "--name", name, "--host", "127.0.0.1")
    signs = [word for name in ("server", *names) for word in ("--sign", f"{name}.csr")]
    fedkin(folder, "net", "ca", "ca", *signs)
    members = [word for name in names for word in ("--member", name)]
    fedkin(folder, "net", "invite", "experiment.toml", "--out", "join.toml", "--ca", "ca/ca.crt",
           "--server", f"server=tls/127.0.0.1:{free_port()}", *members)  # fmt: skip
    for name, client in federation.items():
        write_samples(folder, name, client)
    return names


def held(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """The memory of a process now, in MB: USS and PSS; 0 if it has ended."""
    try:
        rows = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0.0, 0.0
    sizes = {row.split(":")[0]: int(row.split()[1]) * 1024 / 1e6 for row in rows}
    return sizes.get("Private_Clean", 0.0) + sizes.get("Private_Dirty", 0.0), sizes.get("Pss", 0.0)


def joined(folder: Path, names: list[str]) -> list[tuple[float, float]]:
    """Run the server and all clients as processes to their end, and return their memory; the server prints."""
    keys = ["--key", "{0}.key", "--certificate", "ca/{0}.crt"]
    serve = ["net", "serve", "experiment.toml", "--join", "join.toml", "--out", "run"]
    started = [subprocess.Popen([*FEDKIN, *serve, *(word.format("server") for word in keys)], cwd=folder)]
    for name in names:
        words = ["net", "join", "join.toml", "--data", f"{name}.npz", "--group", group_of(name), "--yes"]
        with (folder / f"{name}.log").open("wb") as log:
            started.append(
                subprocess.Popen([*FEDKIN, *words, *(word.format(name) for word in keys)], cwd=folder, stderr=log)
            )
    most = [(0.0, 0.0)] * len(started)
    while running := [process for process in started if process.poll() is None]:
        most = [max(before, held(process)) for before, process in zip(most, started, strict=True)]
        with suppress(subprocess.TimeoutExpired):
            running[0].wait(0.25)
    ended = [process.returncode for process in started]
    if any(ended):
        raise SystemExit(f"exit statuses of the server and the clients: {ended}; see {folder}/*.log")
    return most


def others() -> None:
    """Run the other benchmarks of docs/network.md, one after another."""
    here = Path(__file__).parent
    subprocess.run([sys.executable, str(here / "exchange.py")], check=True)
    alone = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        alone = []
    for words in ([], ["--peers"]):
        crowd = [sys.executable, str(here / "crowd.py"), "--count", "50", "--rounds", "4", *words]
        subprocess.run([*alone, *crowd], check=True)


GROUPS: dict[str, str] = {}


def group_of(name: str) -> str:
    return GROUPS[name]


def seconds_of(rows: list[dict[str, Any]]) -> float:
    """The median time from one round to the next."""
    totals = [row["total"] for row in rows]
    return statistics.median(after - before for before, after in pairwise(totals))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--method", default="flt-same")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = args.folder or Path(tempfile.mkdtemp(prefix="fedkin-network-"))
    folder.mkdir(parents=True, exist_ok=True)
    written = table(args.clients, args.rounds, args.method)
    for name, client in Experiment.of(written).federation(Path("data")).items():
        GROUPS[name] = client.group or ""
    names = prepared(folder, written)
    print(f"a server and {len(names)} clients, each a process, over TLS on this machine: {folder}", flush=True)
    server, *clients = joined(folder, names)
    plan = Experiment.of(written)
    own = [own_client(name, str(folder / f"{name}.npz"), classes=10, group=GROUPS[name]) for name in names]
    federation = Federation([client for client, _ in own], own[0][1], plan.name)
    execute(plan.setup(federation), plan.run, name=plan.name, folder=folder / "simulation")
    equal = lines(folder / "run" / "rounds.jsonl") == lines(folder / "simulation" / "rounds.jsonl")
    there, here = (seconds_of(lines(folder / name / "timing.jsonl")) for name in ("run", "simulation"))
    print(f"rounds.jsonl is {'equal to that of' if equal else 'NOT that of'} a simulation of the same experiment")
    print(f"rounds a minute: {60 / there:.0f} over the network, {60 / here:.0f} in one process")
    print(
        f"the network costs {1e3 * (there - here):.0f} ms a round, {1e3 * (there - here) / len(names):.1f} ms a client"
    )
    print(f"memory, USS and PSS: {server[0]:.0f} and {server[1]:.0f} MB the server, "
          f"{statistics.median(each[0] for each in clients):.0f} and "
          f"{statistics.median(each[1] for each in clients):.0f} MB a client (median)")  # fmt: skip
    print(f"on this machine: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"learned groups and more: {folder / 'run' / 'report.html'}")
    if args.all:
        others()


if __name__ == "__main__":
    main()
