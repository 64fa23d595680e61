"""A federation in network namespaces, over a link that is slow and goes down: no bit changes, and nobody hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from fedkin.network.link import Missed
from fedkin.network.status import FILE, read_status
from network.processes import ended, place_for, rounds, rows, simulated
from town import SHAPED, Net, SlowWire, Town

pytestmark = pytest.mark.slow

NAMES = ["c00", "c01", "c02", "c03"]


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Link:
    """Two namespaces with one link between them, shaped at both ends."""

    server: str
    clients: str
    device: str

    def up(self, up: bool) -> None:
        """Take the link down, so that packets are lost and nobody is told, or up again."""
        ip("-n", self.clients, "link", "set", self.device, "up" if up else "down")


def shaped(space: str, device: str) -> None:
    """A link of 20 Mbit/s, with 20 ms where the kernel has netem."""
    tc = ["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root"]
    netem = [*tc, "netem", "delay", "20ms", "rate", "20mbit"]
    if subprocess.run(netem, capture_output=True, check=False).returncode:
        subprocess.run([*tc, "tbf", "rate", "20mbit", "burst", "64kb", "latency", "400ms"], check=True)


@pytest.fixture
def link() -> Iterator[Link]:
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("network namespaces need root, and ip and tc of iproute2")
    number = os.getpid()
    made = Link(f"fedkin-s{number}", f"fedkin-c{number}", f"fkc{number}"[:15])
    ends = {made.server: f"fks{number}"[:15], made.clients: made.device}
    try:
        try:
            for space in ends:
                ip("netns", "add", space)
            one, other = ends
            peer = ["peer", "name", ends[other], "netns", other]
            ip("link", "add", "name", ends[one], "netns", one, "type", "veth", *peer)
        except OSError as error:
            pytest.skip(f"this machine allows no network namespaces ({error})")
        for (space, end), address in zip(ends.items(), SHAPED, strict=True):
            ip("-n", space, "address", "add", f"{address}/24", "dev", end)
            for device in ("lo", end):
                ip("-n", space, "link", "set", device, "up")
            shaped(space, end)
        yield made
    finally:
        for space in ends:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


def test_a_slow_link_that_goes_down_changes_no_bit(tmp_path: Path, town: Town, link: Link) -> None:
    run = tmp_path / "there"
    with place_for(tmp_path, town, "fedavg", clients=4, rounds=16, grace=60.0, host=SHAPED[0]) as place:
        here = simulated(place, tmp_path / "here")
        server = place.serve("--out", str(run), space=link.server)
        nodes = {name: place.join(name, space=link.clients) for name in NAMES}
        with place.follow("c00") as said, place.follow("c03") as away:
            said.until("round 5:")
            link.up(False)
            said.until("the server is not reached")  # by Zenoh's lease of 10 s, as no packet says so
            link.up(True)
            away.until("round 8:")
        ended(place, {"server": server, **nodes})
    assert rounds(run) == here.rounds
    assert sorted(rows(run)) == sorted(here.messages)


def test_a_federation_with_a_model_of_6_mb_is_the_simulation(tmp_path: Path, town: Town, link: Link) -> None:
    """Four processes over 20 Mbit/s: each transfer takes longer than one look of those who wait for it."""
    names = NAMES[:3]
    model = {"name": "mlp", "hidden": [1024, 1400]}
    run = tmp_path / "there"
    with place_for(tmp_path, town, "fedavg", clients=3, rounds=2, grace=60.0, host=SHAPED[0], model=model) as place:
        here = simulated(place, tmp_path / "here")
        begun = monotonic()
        server = place.serve("--out", str(run), space=link.server)
        ended(place, {"server": server, **{name: place.join(name, space=link.clients) for name in names}})
        took = monotonic() - begun
        status = {name: read_status(tmp_path / f"{name}-state" / FILE).others["server"] for name in names}
    assert rounds(run) == here.rounds
    assert sorted(rows(run)) == sorted(here.messages)
    # Each round every client is sent the model twice, to train and to evaluate, and sends it once.
    size = 4 * (64 * 1024 + 1024 + 1024 * 1400 + 1400 + 1400 * 10 + 10)
    down, up = (sum(getattr(one, way) for one in status.values()) for way in ("bytes_in", "bytes_out"))
    print(f"{size / 1e6:.1f} MB a model: {down / 1e6:.1f} MB down, {up / 1e6:.1f} MB up in {took:.0f} s")
    assert down < 1.1 * 3 * 2 * 2 * size
    assert up < 1.1 * 3 * 2 * size
    assert took < 30 + 1.5 * (down + up) / 2.5e6


@pytest.mark.parametrize(
    ("megabits", "size"), [(2, 100_000), (2, 2_000_000), (20, 6_000_000), (100, 100_000), (100, 50_000_000)]
)
def test_a_pull_in_short_slices_takes_what_the_link_takes(net: Net, megabits: int, size: int) -> None:
    """50 ms each way: bytes sent at most 1.1 times the offer, and 1.5 times the time that the link needs."""
    rate, delay = megabits * 125_000, 0.05
    server = net.server()
    wire = SlowWire(net, rate, delay)
    ann, data = net.member("ann"), os.urandom(size)
    server.offer("ann", "r/now", b"")
    assert ann.pull("server", "r/now", 60) == b""  # connected
    before, begun, got = wire.passed, monotonic(), None
    server.offer("ann", "r", data)
    while got is None:
        assert monotonic() - begun < 600
        with suppress(Missed):
            got = ann.pull("server", "r", 0.5)
    took, sent = monotonic() - begun, wire.passed - before
    ideal = size / rate + 4 * delay
    print(f"{megabits} Mbit/s, {size:,} bytes: {sent / size:.3f} times the offer, {took / ideal:.2f} times the link")
    assert got == data
    assert sent < 1.1 * size + 10_000
    assert took < 1.5 * ideal + 0.3
