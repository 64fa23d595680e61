"""What the driver of a Ray cluster pays for each job, and what it ships; a round of 1,000 nodes is computed from that.

    OMP_NUM_THREADS=1 python benchmarks/ray_cluster.py DATA_ROOT [--jobs 400] [--hidden 16,200,2000]

It starts a head without cores and two nodes with one core each on this machine (`ray start`), and takes them down in
the end. Data: FashionMNIST in 600 parts. A job is one step of 4 samples, so that the driver's work is what is measured:
CPU seconds of its process, and bytes of what it pickles for a job and gets back. `wait`: one call with so many open
jobs.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin.data import federate
from fedkin.engines.executors.jobs import FitJob
from fedkin.engines.executors.ray import Shards
from fedkin.federation import Federation
from fedkin.federation.samples import hashes
from fedkin.learning.losses import CrossEntropy
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.learning.training import Training

# Ray reads these when it is imported, and a cluster that `ray start` makes asks for a token: one for this run alone.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
import ray

PORT, CLIENTS, REPEATS = 6399, 600, 5
dumps = ray.cloudpickle.dumps


def started(made: list[subprocess.Popen[bytes]]) -> None:
    """A head and two nodes, each a `ray start` of its own."""
    base = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats"]
    head = [*base, "--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false"]
    node = [*base, f"--address=127.0.0.1:{PORT}", "--num-cpus=1"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    made.append(subprocess.Popen(head, **quiet))
    os.environ["RAY_ADDRESS"] = f"127.0.0.1:{PORT}"
    for _ in range(60):
        if not subprocess.run([base[0], "status"], check=False, capture_output=True).returncode:
            break
        time.sleep(1)  # noqa: TID251
    made += [subprocess.Popen([*node, f"--node-name=node-{n}"], **quiet) for n in (1, 2)]
    ray.init(log_to_driver=False, logging_level="ERROR")
    while ray.cluster_resources().get("CPU", 0) < 2:
        time.sleep(1)  # noqa: TID251


def shipped(federation: Federation) -> None:
    assert federation.origin is not None
    told = len(dumps((federation.origin.read, hashes(federation.values()))))
    x = next(iter(federation.values())).train.x
    assert isinstance(x, torch.Tensor)
    held = sum((len(c.train) + len(c.test)) * x[0].nbytes for c in federation.values())
    print(f"{len(federation)} clients: what tells a node which samples to read is {told:,} bytes "
          f"({told / len(federation):.0f} a client); the samples are {held:,} bytes", flush=True)  # fmt: skip


def jobs_of(federation: Federation, hidden: int, count: int, repeats: int) -> tuple[float, float]:
    """(CPU ms of the driver for a job, MB of the model), printed with the bytes."""
    net = Net.build(lambda: Mlp(hidden=(hidden,)).build(federation.task), 1)
    training = Training(batch_size=4, local_steps=1, lr=0.01)
    begun = time.perf_counter()
    executor = Shards(net, federation, 0)
    start = time.perf_counter() - begun
    ids = sorted(federation)
    spent, walls, result = [], [], None
    for repeat in range(repeats + 1):
        params = {name: tensor.clone() for name, tensor in net.initial.items()}
        some = [FitJob(ids[n % len(ids)], params, CrossEntropy(), training, {}, {}, n) for n in range(count)]
        wall, cpu = time.perf_counter(), time.process_time()
        for _, result in executor.run(some):
            assert not isinstance(result, Exception), result
        if repeat:
            spent.append(1e3 * (time.process_time() - cpu) / count)
            walls.append(1e3 * (time.perf_counter() - wall) / count)
    size = sum(tensor.nbytes for tensor in net.initial.values())
    shared = executor.seen.get(id(params), (None, None))[1]
    down = len(
        dumps((FitJob(ids[0], {}, CrossEntropy(), training, {}, {}, 1), params if shared is None else 0, 0, None))
    )
    up = len(dumps(result))
    executor.close()
    low, middle, high = statistics.quantiles(spent, n=4)
    print(f"784-{hidden}-10, {size / 1e6:.2f} MB: {middle:.2f} CPU ms of the driver a job ({low:.2f}-{high:.2f}), "
          f"{statistics.median(walls):.2f} ms between jobs; {down:,} bytes to the actor"
          f"{' and the model once to each node' if shared is not None else ''}, {up:,} back; "
          f"start with reading {start:.1f} s", flush=True)  # fmt: skip
    return middle, size / 1e6


def waiting(counts: list[int]) -> None:
    @ray.remote(num_cpus=0)
    class Late:
        def stay(self, seconds: float) -> None:
            time.sleep(seconds)  # noqa: TID251

        def done(self) -> None:
            pass

    late = Late.remote()
    for count in counts:
        first = late.stay.remote(8)
        references = [late.done.remote() for _ in range(count)]
        spent = []
        for _ in range(REPEATS):
            cpu = time.process_time()
            ray.wait(references, num_returns=count, timeout=0)
            spent.append(1e3 * (time.process_time() - cpu))
        print(f"wait: {count:,} open jobs, {statistics.median(spent):.1f} CPU ms a call", flush=True)
        ray.get(first)


def on_paper(each: float, per_mb: float, bandwidth: float) -> None:
    """Rounds of 1,000 nodes with 16 cores: what limits them. each, per_mb: CPU ms of the driver."""
    print(f"\ndriver: {each:.2f} ms a job and {per_mb:.2f} ms a MB; network of the driver {bandwidth:.0f} MB/s")
    print("model MB, s a client on a core | cores the driver keeps busy | 100,000 clients: compute, driver, network s")
    cores = 16_000
    for size, seconds in ((0.1, 0.1), (0.6, 0.5), (0.6, 10.0), (6.4, 10.0), (26.0, 60.0)):
        job = (each + per_mb * size) / 1e3
        net = (100_000 * size + 1000 * size) / bandwidth
        most = min(seconds / job, seconds * bandwidth / size)
        print(f"{size}, {seconds} | {most:,.0f} | {1e5 * seconds / cores:.1f}, {1e5 * job:.0f}, {net:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", type=Path)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--hidden", default="16,200,2000")
    parser.add_argument("--open", default="100,1000,10000")
    parser.add_argument("--bandwidth", type=float, default=1000, help="MB/s of the driver's network, for the table")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    begun: list[subprocess.Popen[bytes]] = []
    try:
        started(begun)
        options: dict[str, Any] = {"clients": CLIENTS, "train_per_client": 80, "test_per_client": 10}
        federation = federate("fashion-mnist", "iid", seed=0, data_root=asked.data_root, **options)
        shipped(federation)
        points = [jobs_of(federation, int(hidden), asked.jobs, REPEATS) for hidden in asked.hidden.split(",")]
        waiting([int(count) for count in asked.open.split(",")])
        cpu, sizes = np.array([point[0] for point in points]), np.array([point[1] for point in points])
        per_mb, each = np.polyfit(sizes, cpu, 1)
        on_paper(max(each, cpu.min()), per_mb, asked.bandwidth)
    finally:
        ray.shutdown()
        for process in reversed(begun):
            process.terminate()
        for process in begun:
            process.wait()


if __name__ == "__main__":
    main()
