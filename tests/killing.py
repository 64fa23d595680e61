"""A harness that kills fedkin's commands at file operations and at random moments, and compares what they end with.

One process imports everything and never computes; each command runs in a child that is forked from it. In a child all
clocks of the records stand still, so that two folders are equal byte for byte, times and reports included.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

TABLE: dict[str, Any] = {
    "name": "tiny",
    "data": {"source": "digits"},
    "scenario": {"name": "rotated-masked", "clients": 6},
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"rounds": 3, "clients_per_round": 4, "local_steps": 2, "lr": 0.1},
    "method": {"name": "fedavg"},
    "run": {"checkpoint_every": 1, "mode": "one-by-one", "embeddings_every": 2},
}
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Case:
    """A command to kill: `run`, `compare`, `leave-out` (of a comparison) or `tune` of some methods in a mode."""

    command: str
    methods: tuple[str, ...]
    mode: str = "one-by-one"

    @property
    def name(self) -> str:
        return f"{self.command} {','.join(self.methods)} {self.mode}"

    def words(self, folder: Path) -> list[str]:
        """Write the experiment file beside the folder, and return the command's words."""
        run = {**TABLE["run"], "mode": self.mode, **({"workers": 1} if self.mode == "workers" else {})}
        file = folder.parent / "tiny.toml"
        file.write_text(tomli_w.dumps({**TABLE, "method": {"name": self.methods[0]}, "run": run}))
        more = ["--methods", ",".join(self.methods)] if self.command != "run" else []
        more += ["--try", "training.lr=0.05,0.1"] if self.command == "tune" else []
        more += ["--leave-out", "rot0,rot90"] if self.command == "leave-out" else []
        return [self._said, str(file), *more, "--out", str(folder)]

    def again(self, folder: Path) -> list[str]:
        """Return the words that go on with a folder, or begin it where nothing was begun."""
        return [self._said, "--resume", str(folder)] if (folder / "experiment.toml").exists() else self.words(folder)

    @property
    def _said(self) -> str:
        return "compare" if self.command == "leave-out" else self.command


@dataclass
class Tally:
    """What became of the kills of one case."""

    case: str
    operations: int = 0
    at_operations: int = 0
    at_random: int = 0
    twice: int = 0
    not_begun: int = 0
    from_round_0: int = 0
    finished_before: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit status, or minus the signal; its file operations; what it printed."""

    status: int
    operations: int
    said: str


class Bench:
    """A place in which commands run and are killed; `place` is emptied for each of them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder, self.temporary, self.kept = place / "out", place / "tmp", place / "whole"
        prepare()

    def fresh(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)

    def run(self, words: Sequence[str], *, at: int | None = None, after: float | None = None) -> Ended:
        """Run a command in a child, which is killed before its operation number `at`, or after so many seconds."""
        said, count = self.place / "said.txt", self.place / "count.txt"
        count.write_text("0")
        child = os.fork()
        if child == 0:
            _act(words, said, count, at, self.temporary)
        if after is not None and signal.sigtimedwait({signal.SIGCHLD}, after) is None:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        while signal.sigtimedwait({signal.SIGCHLD}, 0):
            pass
        return Ended(status, int(count.read_text() or 0), said.read_text())

    def whole(self, case: Case) -> tuple[int, float]:
        """Run a case to its end and keep its folder; returns (its file operations, its seconds)."""
        self.fresh()
        begun = time.monotonic()
        ended = self.run(case.words(self.folder))
        if ended.status:
            raise RuntimeError(f"{case.name}: an uninterrupted run ends with {ended.status}: {ended.said}")
        spent = time.monotonic() - begun
        shutil.rmtree(self.kept, ignore_errors=True)
        self.folder.rename(self.kept)
        return ended.operations, spent

    def killed(self, case: Case, tally: Tally, kills: Sequence[dict[str, Any]]) -> None:
        """Kill a case and what goes on with it, one kill after another; then let it end, and compare with the whole."""
        self.fresh()
        words = case.words(self.folder)
        for kill in kills:
            ended = self.run(words, **kill)
            if ended.status not in (0, -signal.SIGKILL):
                tally.failures.append(f"{kills}: {words[:1]} ended with {ended.status}: {ended.said}")
                return
            tally.finished_before += ended.status == 0
            words = case.again(self.folder)
        begun = (self.folder / "experiment.toml").exists()
        tally.not_begun += not begun
        tally.from_round_0 += begun and not list(self.folder.glob("**/round-*.safetensors"))
        if self.folder.exists() and any(self.folder.iterdir()):
            ended = self.run(["runs", "check", str(self.folder)])
            if ended.status:
                tally.failures.append(f"{kills}: check: {ended.said}")
        ended = self.run(words)
        if ended.status:
            tally.failures.append(f"{kills}: {' '.join(words[:2])} ended with {ended.status}: {ended.said}")
        elif unlike := differences(self.kept, self.folder):
            tally.failures.append(f"{kills}: {unlike}")
        elif left := sorted(path.name for path in self.temporary.iterdir() if path.name.startswith("fedkin-")):
            tally.failures.append(f"{kills}: left in the folder for temporary files: {left}")


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of files that are in one folder only, or whose bytes differ."""
    names = [{str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} for place in (one, other)]
    both = sorted(names[0] & names[1])
    return sorted(names[0] ^ names[1]) + [n for n in both if (one / n).read_bytes() != (other / n).read_bytes()]


def tallied(bench: Bench, case: Case, every: int, random: int, seed: int) -> Tally:
    """Kill a case before each `every`-th file operation, and `random` times at random moments, half of them twice."""
    operations, spent = bench.whole(case)
    rng = np.random.default_rng([seed, *case.name.encode()])
    tally = Tally(case.name, operations)
    for at in range(1 + int(rng.integers(every)), operations + 1, every):
        bench.killed(case, tally, [{"at": at}])
        tally.at_operations += 1
    for number in range(random):
        kills: list[dict[str, Any]] = [{"after": float(rng.uniform(0, spent))}]
        if number % 2:
            kills.append({"at": 1 + int(rng.integers(operations))})
            tally.twice += 1
        bench.killed(case, tally, kills)
        tally.at_random += 1
    return tally


def prepare() -> None:
    """Import what the commands import, so that a forked child has it; nothing is computed, no thread is begun."""
    import filelock
    import pyarrow.acero
    import pyarrow.dataset
    import pyarrow.parquet
    import rustworkx
    import sklearn.decomposition
    import sknetwork
    from sklearn.datasets import load_digits

    import fedkin.cli.commands
    import fedkin.cli.output
    import fedkin.records.checking
    import fedkin.report.collect
    import fedkin.report.page
    import fedkin.report.tables
    import fedkin.running.grid
    import fedkin.running.tune

    assert all((filelock, pyarrow, rustworkx, sklearn, sknetwork, load_digits, fedkin))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})


def _act(words: Sequence[str], said: Path, count: Path, at: int | None, temporary: Path) -> None:
    """Be the child: run the command, and end without a return."""
    status = 70
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        with said.open("wb") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        os.environ["TMPDIR"] = str(temporary)
        time.perf_counter = lambda: 0.0
        counter = _Counter(at)
        sys.addaudithook(counter)
        os.fsync = counter.step  # type: ignore[assignment]  # what was written outlives a process that is killed
        sys.argv = ["fedkin", *words]
        from fedkin.cli import main

        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        counter.at = None
        count.write_text(str(counter.count))
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


class _Counter:
    """Counts operations that change files, and kills this process before the one with the number `at`."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count, self.process = at, 0, os.getpid()

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & _WRITES):
            self.step()

    def step(self, number: int | None = None) -> None:
        """Count one operation; with a file's number, the kill leaves the half of what was written to it."""
        if os.getpid() != self.process:
            return
        self.count += 1
        if self.count == self.at:
            if number is not None and os.path.isfile(f"/proc/self/fd/{number}"):
                os.ftruncate(number, os.fstat(number).st_size // 2)
            os.kill(self.process, signal.SIGKILL)
