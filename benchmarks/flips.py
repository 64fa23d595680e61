"""Flip single bits in the files of an unfinished run, a finished one and a comparison: which are found, and by what?

    python benchmarks/flips.py [--flips 400] [--seed 0]

Files are drawn with equal probability, and then a bit in the file. A flip is found if `fedkin runs check` names the
file. A flip that is not found must not matter: the run then continues to the bytes of the undamaged run, or is refused.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fedkin.errors import FedkinError  # noqa: E402
from fedkin.records.checking import check  # noqa: E402
from fedkin.running.experiment import Experiment, load  # noqa: E402
from fedkin.running.grid import Runs, compare  # noqa: E402
from fedkin.running.loop import run_experiment  # noqa: E402
from tiny import TABLE, CutAt, assert_equal_runs  # noqa: E402

EXPERIMENT = Experiment.of({**TABLE, "run": {**TABLE["run"], "embeddings_every": 2}})


def found(folder: Path, path: Path) -> bool:
    """Return whether the check of this folder names the file."""
    try:
        return any(str(path) in line for each in check(folder) for line in each.problems)
    except FedkinError as error:
        return str(path) in str(error)


def harmless(folder: Path, whole: Path) -> str:
    """Return the outcome of a run that continues with a flip that the check did not find."""
    try:
        run_experiment(load(folder / "experiment.toml"), Path(), folder)
    except FedkinError:
        return "refused"
    assert_equal_runs(whole, folder)
    return "the same bytes"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.getLogger("fedkin").setLevel(logging.ERROR)
    rng = np.random.default_rng(asked.seed)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        with suppress(RuntimeError):
            run_experiment(EXPERIMENT, Path(), place / "unfinished", watcher=CutAt(5))
        run_experiment(EXPERIMENT, Path(), place / "finished")
        compare(Runs(EXPERIMENT, Path()), ["local", "fedavg"], [0], place / "comparison")
        for kind in ("unfinished", "finished", "comparison"):
            kept = {path: path.read_bytes() for path in (place / kind).rglob("*") if path.is_file()}
            files = sorted(kept)
            seen: Counter[str] = Counter()
            for _ in range(asked.flips):
                path = files[int(rng.integers(len(files)))]
                data = bytearray(kept[path])
                data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
                path.write_bytes(data)
                if found(place / kind, path):
                    seen["found"] += 1
                else:
                    what = harmless(place / kind, place / "finished") if kind == "unfinished" else "not found"
                    seen[f"{path.name}: {what}"] += 1
                for other in (place / kind).rglob("*"):
                    if other.is_file() and other not in kept:
                        other.unlink()
                for other, content in kept.items():
                    other.parent.mkdir(exist_ok=True)
                    other.write_bytes(content)
            print(f"{kind}: {asked.flips} flips in {len(files)} files: {dict(seen)}")


if __name__ == "__main__":
    main()
