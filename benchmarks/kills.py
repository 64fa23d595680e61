"""Kill commands at file operations and at random moments, continue them, and compare with uninterrupted ones.

    python benchmarks/kills.py --out kills.json                        # every method and mode: about an hour
    python benchmarks/kills.py --only "run fedavg" --every 1 --random 20

A kill is a SIGKILL, before an operation on files (opening to write, fsync, renaming, removing, making a folder) or at
a random moment. After a kill `fedkin runs check` must find nothing wrong, the command must continue (or begin again, if
nothing was begun), and the folder must equal that of an uninterrupted run byte for byte: clocks stand still, so times
and reports are compared too. Exit status 1 if a kill failed this test.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fedkin.methods import METHODS  # noqa: E402
from killing import Bench, Case, tallied  # noqa: E402

# For each kind of case: (operations between two kills, number of kills at random moments).
PLAN = {"run": (32, 2), "fast": (70, 2), "workers": (70, 2), "compare": (24, 6)}
# A run of this method is killed before every single operation.
ALL = "sfmtl-graph"


def cases() -> list[tuple[Case, int, int]]:
    """Return (case, operations between two kills, number of kills at random moments) for each case."""
    found = [(Case("run", (name,)), 1 if name == ALL else PLAN["run"][0], PLAN["run"][1]) for name in sorted(METHODS)]
    found += [(Case("run", (name,), "fast"), *PLAN["fast"]) for name in sorted(METHODS)]
    found += [(Case("run", (name,), "workers"), *PLAN["workers"]) for name in ("fedavg", "mapl")]
    return [
        *found, (Case("compare", ("local", "fedavg")), *PLAN["compare"]),
        (Case("leave-out", ("fedavg",)), *PLAN["compare"]), (Case("tune", ("fedavg",)), *PLAN["compare"]),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="cases whose name has this text")
    parser.add_argument("--every", type=int, help="kill before every so many operations")
    parser.add_argument("--random", type=int, help="kills at random moments of each case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the counts")
    asked = parser.parse_args()
    begun, tallies = time.monotonic(), []
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place))
        for case, every, random in cases():
            if asked.only is not None and asked.only not in case.name:
                continue
            tally = tallied(
                bench, case, asked.every or every, random if asked.random is None else asked.random, asked.seed
            )
            tallies.append(tally)
            kills = tally.at_operations + tally.at_random + tally.twice
            print(f"{tally.case:40} {tally.operations:5} operations {kills:5} kills, {len(tally.failures)} failed")
            for failure in tally.failures[:3]:
                print(f"    {failure}")
            sys.stdout.flush()
    total = {
        name: sum(getattr(tally, name) for tally in tallies)
        for name in ("at_operations", "at_random", "twice", "not_begun", "from_round_0", "finished_before")
    }
    total["kills"] = total["at_operations"] + total["at_random"] + total["twice"]
    total["failures"] = sum(len(tally.failures) for tally in tallies)
    print(json.dumps(total))
    if asked.out is not None:
        table = {"seed": asked.seed, "seconds": round(time.monotonic() - begun), "total": total}
        lines = [dataclasses.asdict(tally) for tally in tallies]
        asked.out.write_text(json.dumps({**table, "cases": lines}, indent=1) + "\n")
    sys.exit(bool(total["failures"]))


if __name__ == "__main__":
    main()
