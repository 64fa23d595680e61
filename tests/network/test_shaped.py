"""A federation in network namespaces, over a link that is slow and goes down: no bit changes, and nobody hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest

from certificates import SHAPED, Line, Net, SlowWire, Town
from fedkin.network.link import Missed
from fedkin.network.status import FILE, read_status
from network.processes import Follow, ended, equal, place_for, simulated

pytestmark = pytest.mark.slow


@pytest.fixture
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    """A line of 20 Mbit/s with 50 ms each way, which loses the share of packets that the test names."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root, and ip of iproute2")
    try:
        made = Line(2.5e6, 0.05, getattr(request, "param", 0.0))
    except OSError as error:
        pytest.skip(f"this machine allows no network namespaces ({error})")
    with closing(made):
        yield made


def test_a_slow_link_that_goes_down_changes_no_bit(tmp_path: Path, town: Town, line: Line) -> None:
    run = tmp_path / "there"
    with place_for(tmp_path, town, "fedavg", clients=4, rounds=16, grace=60.0, host=SHAPED[0]) as place:
        here = simulated(place, tmp_path / "here")
        processes = {"server": place.serve("--out", str(run), space=line.server), **place.join_all(space=line.clients)}
        said = Follow(place, "c00")
        said.until("round 5:")
        line.up(False)
        said.until("the server is not reached")  # by Zenoh's lease of 10 s, as no packet says so
        line.up(True)
        Follow(place, "c03").until("round 8:")
        ended(place, processes)
    equal(run, here)


_PLAIN = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor

who, address, port, clients, size, turns = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])

def exchange(end):
    for turn in range(turns):
        if (turn % 3 == 1) == (who == "server"):
            end.recv(size, socket.MSG_WAITALL)
        else:
            end.sendall(bytes(size))

if who == "server":
    with socket.create_server((address, port)) as door:
        print("listens", flush=True)
        ends = [door.accept()[0] for _ in range(clients)]
else:
    ends = [socket.create_connection((address, port)) for _ in range(clients)]
with ThreadPoolExecutor(clients) as pool:
    list(pool.map(exchange, ends))
"""


def plain(line: Line, clients: int, size: int, turns: int) -> float:
    """Seconds that so many plain TCP connections need, each to be sent so many bytes, to send as many, and so on."""
    words = [SHAPED[0], "7", *map(str, (clients, size, turns))]
    server, client = (
        ["ip", "netns", "exec", space, sys.executable, "-c", _PLAIN, who, *words]
        for space, who in ((line.server, "server"), (line.clients, "client"))
    )
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        begun = monotonic()
        subprocess.run(client, check=True)
        assert process.wait(600) == 0
    return monotonic() - begun


# Where packets are lost, plain TCP takes a tenth of the link: there the model is of .7 MB.
@pytest.mark.parametrize(("line", "hidden"), [(0.0, [1024, 1400]), (0.01, [512, 256])], indirect=["line"])
def test_a_federation_with_a_large_model_is_the_simulation(
    tmp_path: Path, town: Town, line: Line, hidden: list[int]
) -> None:
    """Four processes: each transfer takes longer than one look of those who wait for it; without loss and with 1 %."""
    model, run = {"name": "mlp", "hidden": hidden}, tmp_path / "there"
    with place_for(tmp_path, town, "fedavg", clients=3, rounds=1, grace=60.0, host=SHAPED[0], model=model) as place:
        here = simulated(place, tmp_path / "here")
        begun = monotonic()
        server = place.serve("--out", str(run), space=line.server)
        ended(place, {"server": server, **place.join_all(space=line.clients)})
        took = monotonic() - begun
        status = [read_status(tmp_path / f"{name}-state" / FILE).others["server"] for name in place.names]
    equal(run, here)
    # Each round every client is sent the model twice, to train and to evaluate, and sends it once.
    size = 4 * sum((each + 1) * after for each, after in pairwise([64, *hidden, 10]))
    down, up = (sum(getattr(one, way) for one in status) for way in ("bytes_in", "bytes_out"))
    least = plain(line, 3, size, 3)
    print(
        f"{size / 1e6:.1f} MB a model, {100 * line.loss:g} % loss: {down / 1e6:.1f} MB down, {up / 1e6:.1f} MB up in "
        f"{took:.0f} s, from the start of the processes; plain TCP {least:.0f} s"
    )
    assert down < 1.1 * 3 * 2 * size
    assert up < 1.1 * 3 * size


@pytest.mark.parametrize(
    ("megabits", "size"), [(2, 100_000), (2, 2_000_000), (20, 6_000_000), (100, 100_000), (100, 100_000_000)]
)
def test_a_pull_in_short_slices_sends_the_offer_once(net: Net, megabits: int, size: int) -> None:
    """50 ms each way: at most 1.1 times the bytes of the offer are sent; -s shows the time beside the link's."""
    rate, delay = megabits * 125_000, 0.05
    server, wire = net.server(), net.wired(partial(SlowWire, rate=rate, delay=delay))
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
