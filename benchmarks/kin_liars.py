"""How good kin's choice is when clients lie about their held-out costs.

    OMP_NUM_THREADS=1 FEDKIN_DATA=DATA python benchmarks/kin_liars.py

A liar reports a cost of 0 for one candidate, 10^9 for all others, and 10^9 held-out samples; all liars aim at the same
candidate. They train honestly. One line for each federation, number of liars and aim: mean accuracy of the honest
clients over three seeds (the liars' places are the same without lies), and the levels that were chosen.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
from full_suite import SUITE

import fedkin
from fedkin.methods import kin

RATE = 0.12
FEDERATIONS = ("writers 40", "MNIST swap4 40x100", "MNIST Dirichlet .3 40x100", "MNIST iid 40x100")
# (level, strength): one model, groups, and the weakest pull at either; None: own bodies.
AIMS = {
    "one shared model": (0, 0), "groups": (-1, 0), "own heads": (0, 7), "own heads in groups": (-1, 7),
    "own bodies": None,
}  # fmt: skip
LIARS = (0, 4, 8)
honest_costs = kin.Kin.judged


def main() -> None:
    for name in FEDERATIONS:
        for liars in LIARS:
            for aim, place in AIMS.items() if liars else [("-", None)]:
                outcomes = [outcome(name, seed, liars, place) for seed in (0, 1, 2)]
                means, levels = zip(*outcomes, strict=True)
                print(f"{name:27s} liars {liars:2d} aim {aim:20s} {np.mean(means):.1f}±{np.std(means, ddof=1):.1f}  "
                      f"levels {' '.join(levels)}", flush=True)  # fmt: skip


def outcome(name: str, seed: int, liars: int, aim: tuple[int, int] | None) -> tuple[float, str]:
    """Mean accuracy of clients that never lie, in per cent, and the level with its pull."""
    federation = SUITE.federations[name].make(seed)
    ids = sorted(federation)
    lying = set(ids[:: len(ids) // liars][:liars]) if liars else set()

    def with_lies(self: kin.Kin, server: Any, ids: Any, models: Any, *, own_body: bool = False) -> Any:
        """Costs of the trained models, of the same with solved heads, or of own bodies; liars want one candidate."""
        costs, sizes = yield from honest_costs(self, server, ids, models, own_body=own_body)
        lie = np.full(next(iter(costs.values())).shape, 1e9)
        if own_body and aim is None:
            lie[:] = 0.0
        elif not own_body and aim is not None and models is server.state["models"]:
            lie[aim] = 0.0
        return {**costs, **dict.fromkeys(lying, lie)}, {**sizes, **dict.fromkeys(lying, 10**9)}

    with patch.object(kin.Kin, "judged", with_lies):
        result = fedkin.run(
            "kin", federation, rounds=20, seed=seed, model=SUITE.federations[name].model,
            training={"lr": RATE, "local_steps": 5, "batch_size": 32},
        )  # fmt: skip
    never = set(ids) - set(ids[:: len(ids) // max(LIARS)]) - set(ids[::10]) - set(ids[::5])
    right = [100 * result.scores[id].right / result.scores[id].n for id in sorted(never)]
    figures: dict[str, Any] = result.rounds[-1].get("figures") or {}
    pull, body = figures.get("pull_weights"), "/own bodies" if figures["own_body"] else ""
    return (
        float(np.mean(right)),
        f"{kin.LEVELS[int(figures['level'])]}/{'shared' if pull is None else f'{pull:g}'}{body}",
    )


if __name__ == "__main__":
    main()
