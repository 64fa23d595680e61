"""Fuzz every reader with thousands of hostile inputs: no crash, no hang, bounded memory, nothing executed.

python benchmarks/hostile.py [--inputs 100000] [--seed 0] [--only NAME,NAME] [--found DIR]
python benchmarks/hostile.py --guided ...    with atheris, which is guided by code coverage (pip install atheris)

Inputs are changed copies of valid inputs and of those in `tests/fuzz/corpus`. Each is read in this process with
10 seconds of processor time and 4 GiB of address space beyond what Python takes at the start. An input must be accepted
or end in a FedkinError. Other inputs are stored in DIR; the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402

from fuzz.mutate import mutated  # noqa: E402

if "--one" in sys.argv:
    import atheris

    # atheris records every branch that an input takes in the modules that are imported here.
    with atheris.instrument_imports(include=["fedkin"], enable_loader_override=False):
        from fuzz.targets import TARGETS, Target, accepts
else:
    from fuzz.targets import TARGETS, Target, accepts

SECONDS = 10
MEMORY = 4 << 30
# Outcomes of an input that are no fault, and further figures.
KNOWN = ("accepted", "refused", "guided", "longest ms", "most MiB")
# Events that Python reports before it starts a program, opens a connection, or loads anything that may run code.
EXECUTED = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "pickle.find_class",
    "socket.connect",
)


class Hung(BaseException):
    """An input took longer than it may."""


class Executed(BaseException):
    """An input made Python start or load something."""


@contextmanager
def guarded() -> Iterator[None]:
    """Limit this context to SECONDS of processor time, and to 12 times as many seconds of the clock."""

    def stop(number: int, frame: object) -> None:
        raise Hung(f"more than {SECONDS} seconds of processor time, or {12 * SECONDS} of the clock")

    # Processor time counts, since a busy machine is not a hang; code that only waits is stopped by the clock.
    timers = {signal.ITIMER_PROF: (signal.SIGPROF, SECONDS), signal.ITIMER_REAL: (signal.SIGALRM, 12 * SECONDS)}
    before = {number: signal.signal(number, stop) for number, _ in timers.values()}
    for timer, (_, seconds) in timers.items():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def watch() -> None:
    """Limit memory, and raise Executed if the process starts or loads something."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def heard(event: str, about: Any) -> None:
        if event in EXECUTED:
            raise Executed(f"{event} {about}")

    sys.addaudithook(heard)


def begun(name: str) -> tuple[Target, list[bytes], Path]:
    """(a target, its seeds and those of the corpus, a folder for it)."""
    target = TARGETS[name]
    kept = sorted((ROOT / "tests/fuzz/corpus" / name.replace("/", "-")).glob("*"))
    folder = Path(tempfile.mkdtemp(prefix="fedkin-fuzz-"))
    (folder / target.name).parent.mkdir(exist_ok=True)
    seeds = target.seeds()
    for seed in seeds:
        accepts(target, seed, folder)  # so that late imports happen before the limits apply
    return target, [*seeds, *(path.read_bytes() for path in kept)], folder


def mutate(name: str, count: int, seed: int, found: Path) -> Counter[str]:
    """Try `count` changed inputs of one target; returns how they ended."""
    target, seeds, folder = begun(name)
    rng = np.random.default_rng([seed, *name.encode()])
    ends: Counter[str] = Counter()
    longest = 0.0
    for number in range(count):
        data = mutated(seeds[int(rng.integers(len(seeds)))], seeds, rng)
        start = time.perf_counter()
        try:
            with guarded(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ends["accepted" if accepts(target, data, folder) else "refused"] += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            what = type(error).__name__
            ends[what] += 1
            if ends[what] <= 20:
                found.mkdir(parents=True, exist_ok=True)
                path = found / f"{name.replace('/', '-')}-{number}"
                path.write_bytes(data)
                path.with_suffix(".txt").write_text("".join(traceback.format_exception(error))[-6000:])
        longest = max(longest, time.perf_counter() - start)
    shutil.rmtree(folder)
    ends["longest ms"] = round(1e3 * longest)
    ends["most MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return ends


def guide(name: str, count: int, seed: int, found: Path) -> None:
    """Let atheris try `count` inputs of one target in this process; atheris ends the process."""
    target, seeds, folder = begun(name)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds):
        (corpus / str(number)).write_bytes(data)
    found.mkdir(parents=True, exist_ok=True)

    def once(data: bytes) -> None:
        with guarded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            accepts(target, data, folder)

    def change(data: bytes, most: int, number: int) -> bytes:
        rng = np.random.default_rng(number)
        return atheris.Mutate(data, most) if rng.random() < 0.5 else mutated(data, seeds, rng)[:most]

    options = [
        f"-runs={count}",
        f"-seed={seed + 1}",
        "-max_len=65536",
        f"-artifact_prefix={found}/{name.replace('/', '-')}-",
    ]
    atheris.Setup([sys.argv[0], *options, "-rss_limit_mb=6000", str(corpus)], once, custom_mutator=change)
    atheris.Fuzz()


def forked(name: str, arguments: argparse.Namespace) -> Counter[str]:
    """The outcomes of one target's inputs, from a process of its own: a crash of a library ends only this process."""
    there, here = os.pipe()
    child = os.fork()
    if not child:
        try:
            watch()
            told = mutate(name, share(name, arguments), arguments.seed, arguments.found)
            os.write(here, json.dumps(told).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(here)
    with open(there) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return Counter(json.loads(text)) if text else Counter({f"crashed with {status}": 1})


def guided(name: str, arguments: argparse.Namespace) -> Counter[str]:
    """The outcomes of one target's inputs that atheris chose, in a process of its own, which atheris ends."""
    words = [sys.executable, __file__, "--one", name, "--inputs", str(share(name, arguments))]
    words += ["--seed", str(arguments.seed), "--found", str(arguments.found)]
    ended = subprocess.run(words, capture_output=True, text=True)
    done = [int(line.split()[1]) for line in ended.stderr.splitlines() if line.startswith("Done ")]
    if done and not ended.returncode:
        return Counter({"guided": done[0]})
    arguments.found.mkdir(parents=True, exist_ok=True)
    (arguments.found / f"{name.replace('/', '-')}-guided.txt").write_text(ended.stderr[-8000:])
    return Counter({f"crashed with {ended.returncode}": 1})


def share(name: str, arguments: argparse.Namespace) -> int:
    """How many inputs a target gets: a target that reads a complete run gets a quarter of the others' number."""
    weights = {one: 1 if one.startswith("run-") else 4 for one in TARGETS}
    named = arguments.only.split(",")
    return (
        -(-arguments.inputs * weights[name] // sum(weights[one] for one in named))
        if name in named
        else arguments.inputs
    )


def main() -> None:
    """Try all targets, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(TARGETS))
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"))
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        guide(arguments.one, arguments.inputs, arguments.seed, arguments.found)
    bad = total = 0
    for name in arguments.only.split(","):
        start = time.monotonic()
        ends = (guided if arguments.guided else forked)(name, arguments)
        good = ends["accepted"] + ends["refused"] + ends["guided"]
        wrong = {what: count for what, count in ends.items() if what not in KNOWN}
        spent = f"longest {ends['longest ms']} ms, {ends['most MiB']} MiB, {time.monotonic() - start:.0f} s"
        print(f"{name:40} {good:7} inputs, {ends['accepted']:6} read; {wrong or 'no other end'}; {spent}", flush=True)
        total, bad = total + good + sum(wrong.values()), bad + sum(wrong.values())
    print(f"{total} inputs, {bad} with another end")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
