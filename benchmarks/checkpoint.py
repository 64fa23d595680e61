"""Memory for writing a checkpoint, one tensor after another, or with the whole file built first.

    python benchmarks/checkpoint.py [--states 60] [--mb 26]

States are mapped files, as they are above `run.state_limit_mb`. The output has the peak of the process's own memory
(RssAnon) above the memory before, and the peak of all resident memory, which includes mapped pages; the system takes
these back when it needs memory.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path

import torch

from fedkin import codec


def resident() -> dict[str, float]:
    """Return the process's own memory and all its resident memory, in MB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--states", type=int, default=60)
    parser.add_argument("--mb", type=int, default=26)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        states = {}
        for k in range(asked.states):
            path = Path(name, f"state-{k}")
            with path.open("wb") as file:
                file.truncate(asked.mb << 20)
            states[f"c{k}"] = torch.from_file(str(path), shared=True, size=asked.mb << 18)
        for way in ("one after another", "the whole file first"):
            before, peak, over = resident(), resident(), threading.Event()

            def watch(peak: dict[str, float] = peak, over: threading.Event = over) -> None:
                while not over.wait(0.02):
                    peak.update({field: max(peak[field], value) for field, value in resident().items()})

            watcher = threading.Thread(target=watch)
            watcher.start()
            with Path(name, "checkpoint").open("wb") as file:
                codec.write(states, file) if way == "one after another" else file.write(codec.encode(states))
            over.set()
            watcher.join()
            print(f"{way:22} own +{peak['RssAnon'] - before['RssAnon']:.0f} MB, resident {peak['VmRSS']:.0f} MB")


if __name__ == "__main__":
    main()
