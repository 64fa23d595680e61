"""Many participants in one process over TLS: time, memory, and bytes on the wire against bytes counted.

    unshare -rn sh -c 'ip link set lo up; python benchmarks/crowd.py [--count 50] [--peers] [--rounds 10] [--no-sync]'

Each participant has its own key, certificate, link and samples (digits, rotated in groups that no participant knows),
and runs in a thread. Without --peers a server asks clients (FedAvg); with it each peer exchanges with four others
(DFedAvgM).
In a network namespace of its own (`unshare -rn`) the counters of the loopback interface have this federation alone;
without one, bytes on the wire are not printed. At the end the same experiment runs as a simulation. A participant
answers only after its state is on the disk; --no-sync does not wait for the disk, to show what this wait costs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from fedkin.federation import Federation
from fedkin.network.client import NetworkClient
from fedkin.network.identity import Identity, make_ca, make_key, make_request, sign_request
from fedkin.network.join_file import Member
from fedkin.network.zenoh_link import ZenohLink
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment
from fedkin.running.loop import execute
from fedkin.running.networked import exchange, serve, setup_of


def experiment(count: int, rounds: int, peers: bool) -> Experiment:
    return Experiment.of({
        "name": "crowd",
        "data": {"source": "digits"},
        "scenario": {"name": "rotated-masked", "clients": count, "mask_rate": 0.0},
        "model": {"name": "mlp", "hidden": [64]},
        "training": {"rounds": rounds, "local_steps": 5, "batch_size": 32, "lr": 0.1},
        "method": {"name": "dfedavgm" if peers else "fedavg"},
        "run": {"checkpoint_every": 1, "mode": "one-by-one", **({"network": "regular:4"} if peers else {})},
        "network": {"clients": count, "classes": 10, "deadline": 300.0, "grace": 60.0},
    })  # fmt: skip


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in held]


def identities(names: list[str]) -> dict[str, Identity]:
    key, ca = make_ca("crowd-ca", 2)
    made = {}
    for name in names:
        own = make_key()
        chain = (sign_request(make_request(own, name, ["127.0.0.1"]), key, ca, 2),)
        made[name] = Identity(name, own, chain, (ca,))
    return made


def resident() -> float:
    """Memory of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def wire() -> int | None:
    """Bytes on the loopback interface; None if others use it too."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    if any(line.split(":")[0].strip() != "lo" for line in lines):
        return None
    return int(lines[0].split(":")[1].split()[0])


def count_syncs(skip: bool) -> list[float]:
    """Make each call of os.fsync add its seconds to the returned list; skip: whether to leave out the call itself."""
    whole, seconds = os.fsync, list[float]()

    def fsync(number: int) -> None:
        begun = time.perf_counter()
        if not skip:
            whole(number)
        seconds.append(time.perf_counter() - begun)

    os.fsync = fsync
    return seconds


def client(link: ZenohLink, federation: Federation, name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    NetworkClient(link, (federation[name], federation.task), setup_of, folder / name).run()


def peer(
    link: ZenohLink, plan: Experiment, federation: Federation, name: str, folder: Path, done: list[Result]
) -> None:
    torch.set_num_threads(1)
    done.append(exchange(plan, link, (federation[name], federation.task), sorted(federation), folder / name))


def seconds_of(folder: Path) -> float:
    """The median time from one round to the next."""
    totals = [json.loads(line)["total"] for line in (folder / "timing.jsonl").read_text().splitlines()]
    return statistics.median(after - before for before, after in pairwise(totals))


def told(count: int, links: list[ZenohLink], results: list[Result], here: Result, before: Any, folder: Path) -> None:
    counted = sum(row[4] for row in here.messages)
    pulled = sum(sum(link.bytes_in.values()) for link in links)
    there, once = (seconds_of(folder / name) for name in (results[0].folder or folder, "simulation"))
    memory, passed = before
    print(f"rounds a minute: {60 / there:.1f} over the network, {60 / once:.1f} in one process without it")
    more = 1e3 * (there - once)
    print(f"the network costs {more:.0f} ms a round, {more / count:.1f} ms a participant")
    print(f"memory: {(resident() - memory) / count:.1f} MB a participant, beside {memory:.0f} MB of the process")
    print(f"bytes: {counted:,} counted in messages, {pulled:,} in offers ({pulled / counted:.2f} times)")
    now = wire()
    if passed is None or now is None:
        print("bytes on the wire: not told, since others use this interface too")
    else:
        print(f"       {now - passed:,} on the wire with TLS, TCP and IP ({(now - passed) / counted:.2f} times)")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-sync", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="fedkin-crowd-"))
    plan = experiment(args.count, args.rounds, args.peers)
    federation = plan.federation(Path("data"))
    names = sorted(federation)
    here = execute(plan.setup(federation), plan.run, name="crowd", folder=folder / "simulation")
    who = identities(names if args.peers else ["server", *names])
    ports = dict(zip(who, free_ports(len(who)), strict=True))
    listening = names if args.peers else ["server"]
    book = {name: Member(locator=f"tls/127.0.0.1:{ports[name]}" if name in listening else "") for name in who}
    before, syncs = (resident(), wire()), count_syncs(args.no_sync)
    results: list[Result] = []
    with ExitStack() as stack:
        links = []
        for name in who:
            dial = [other for other in listening if (other < name if args.peers else name != "server")]
            listen = [book[name].locator] if name in listening else []
            links.append(stack.enter_context(ZenohLink(who[name], book, listen=listen, dial=dial)))
        own = links if args.peers else links[1:]
        threads = [
            threading.Thread(target=peer, args=(link, plan, federation, link.me, folder, results)) if args.peers
            else threading.Thread(target=client, args=(link, federation, link.me, folder)) for link in own
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        if not args.peers:
            results.append(serve(plan, links[0], folder / "run", data_root=folder))
        for thread in threads:
            thread.join()
        kind = "peers" if args.peers else "clients and a server"
        print(f"{args.count} {kind}, {args.rounds} rounds; others on this machine: load {os.getloadavg()[0]:.0f}")
        if not args.peers:
            equal = results[0].rounds == here.rounds
            print(f"the rounds are {'equal to those of' if equal else 'NOT those of'} a simulation")
        waits = (
            "did not wait" if args.no_sync else f"{1e3 * statistics.median(syncs):.1f} ms each (median), side by side"
        )
        print(f"fsyncs: {len(syncs) / args.rounds:.0f} a round, {waits}")
        told(args.count, links, results, here, before, folder)


if __name__ == "__main__":
    main()
