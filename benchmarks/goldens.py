"""Check that a change of the code changed no number: run every method in every mode, and compare bit for bit.

    python benchmarks/goldens.py record before.json       # on the commit before
    python benchmarks/goldens.py compare before.json      # on the commit after: lists what differs, exit status 1

Methods and variants are those of tests/methods/cases.py. They run on two small federations: one that does not change,
and one with dropout, partial participation, drift, a newcomer and an unseen client. The comparison is over final
parameters, the rows of rounds, clients and messages (with their bytes), and the last graph. Bits depend on the machine
and the version of torch, so record and compare on one machine. Final parameters are kept beside the hashes
(before.npz), so that a run whose bits differ is printed with its largest difference, relative to its largest value.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402

import fedkin  # noqa: E402
from fedkin.federation import Change, Federation  # noqa: E402
from methods.cases import CASES  # noqa: E402
from support import NET_METHODS, small_federation  # noqa: E402

MODES = {
    "one-by-one": {"mode": "one-by-one"},
    "stacked": {"mode": "fast"},
    "workers": {"mode": "workers", "workers": 1},
    "loopback": {"engine": "loopback", "mode": "one-by-one"},
}


def moving() -> Federation:
    """Return eight clients: one drifts in round 2, one joins in round 2, and one is unseen."""
    still = small_federation(clients=8, seed=3)
    first, second, third, *_ = sorted(still)
    drift = Change(2, still[second].train, still[second].test, still[second].group)
    clients = [
        replace(client, changes=(drift,)) if id == first
        else replace(client, joins=2) if id == second
        else replace(client, seen=False) if id == third
        else client
        for id, client in still.items()
    ]  # fmt: skip
    return Federation(clients, still.task, "moving")


def federations() -> dict[str, tuple[Federation, dict[str, Any], dict[str, Any]]]:
    """Return clients, training and faults of the run, by name."""
    plan = {"rounds": 3, "lr": 0.1, "batch_size": 8, "local_steps": 4}
    return {
        "still": (small_federation(), plan, {}),
        "moving": (moving(), {**plan, "clients_per_round": 4}, {"dropout": 0.2}),
    }


def methods() -> dict[str, Any]:
    """Return all methods with their defaults, and the variants of the tests."""
    return {**{name: kind() for name, kind in NET_METHODS.items()}, **CASES}


def digest(value: Any) -> str:
    """Return a short hash of the `repr` of a value."""
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a row without an entry that older versions did not write."""
    return {key: value for key, value in row.items() if key != name}


def looked_at(result: fedkin.Result) -> dict[str, str]:
    """Return a hash of each part of a result."""
    models = [
        (id, name, hashlib.blake2b(tensor.detach().contiguous().numpy().tobytes()).hexdigest())
        for id, params in sorted(result.models.items())
        for name, tensor in sorted(params.items())
    ]
    graph = result.outcome.graph if result.outcome is not None else None
    return {
        "models": digest(models),
        "rounds": digest([json.dumps(without(row, "missing"), sort_keys=True) for row in result.rounds]),
        "clients": digest([tuple(row) for row in result.clients]),
        # Without the reason why a message is missing, and without those that were never sent.
        "messages": digest([tuple(row[:6]) for row in result.messages if row[4]]),
        "graph": "" if graph is None else graph.digest(),
    }


def final_values(result: fedkin.Result) -> np.ndarray[Any, Any]:
    """Return the final parameters of all clients as one vector."""
    models = [
        tensor.numpy().ravel() for _, params in sorted(result.models.items()) for _, tensor in sorted(params.items())
    ]
    return np.concatenate([np.asarray(each, np.float64) for each in models])


def largest_difference(now: np.ndarray[Any, Any], before: np.ndarray[Any, Any]) -> str:
    """Return the largest difference of parameters, relative to the largest value before."""
    if now.shape != before.shape:
        return f"{now.size} values, before {before.size}"
    return f"{np.abs(now - before).max() / np.abs(before).max():.1e}"


def everything(
    only: str, modes: list[str], values: dict[str, Any], before: tuple[dict[str, Any], Any] | None = None
) -> dict[str, Any]:
    """Return the hashes of every run, or the error with which it ended; what differs from `before` is printed.

    values: final parameters by run, filled here. before: hashes and parameters of the recorded runs.
    """
    found: dict[str, Any] = {}
    for name, (federation, training, faults) in federations().items():
        for case, method in methods().items():
            if only not in case:
                continue
            for mode in modes:
                at = f"{case} / {name} / {mode}"
                try:
                    result = fedkin.run(method, federation, training=training, settings=MODES[mode], faults=faults)
                    found[at] = looked_at(result)
                    values[at] = final_values(result)
                except fedkin.FedkinError as error:
                    found[at] = {"error": type(error).__name__}
                if before is None or found[at] == before[0].get(at):
                    print(at, flush=True)
                else:
                    there = at in before[1] and at in values
                    print(f"{at}: DIFFERS", largest_difference(values[at], before[1][at]) if there else "", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="methods and variants with this in their name")
    parser.add_argument("--modes", default=",".join(MODES))
    asked = parser.parse_args()
    arrays = asked.file.with_suffix(".npz")
    values: dict[str, Any] = {}
    if asked.what == "record":
        found = everything(asked.only, asked.modes.split(","), values)
        asked.file.write_text(json.dumps(found, indent=1), encoding="utf-8")
        np.savez_compressed(arrays, allow_pickle=False, **values)
        return 0
    before = json.loads(asked.file.read_text(encoding="utf-8"))
    with np.load(arrays, allow_pickle=False) as kept:
        found = everything(asked.only, asked.modes.split(","), values, (before, kept))
    differ = [
        f"{at}: {', '.join(part for part in now if now[part] != before.get(at, {}).get(part))}"
        for at, now in found.items()
        if now != before.get(at)
    ]
    print(f"\n{len(found)} runs compared, {len(differ)} differ", *differ, sep="\n")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
