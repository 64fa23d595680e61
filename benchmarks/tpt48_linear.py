"""Ordinary least squares on TPT-48 with all training states pooled, as a baseline for networks.

    python benchmarks/tpt48_linear.py --data-root ROOT

July to December of a state's year are predicted from its January to June (with an intercept). The model is fitted on
the training years of the training states, and scored as in `presets/tfl-tpt48-*.toml`: the squared error is summed over
the six months, and averaged over the years of a state, then over states. "In federation" is on held-out years, "out of
federation" on all years. The last lines hold out two years of each state drawn at random instead of the last two.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedkin.data.scenarios.natural import Natural
from fedkin.data.sources.tpt48 import Tpt48
from fedkin.federation import Federation, Samples


def arrays(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    x = samples.inputs(slice(None)).double().numpy()
    return np.c_[x, np.ones(len(x))], samples.labels().double().numpy()


def errors(federation: Federation) -> tuple[float, float]:
    """Return the errors (in federation, out of federation)."""
    x, y = (
        np.concatenate(part) for part in zip(*[arrays(federation[id].train) for id in federation.seen], strict=True)
    )
    weights = np.linalg.lstsq(x, y, rcond=None)[0]

    def error(ids: tuple[str, ...]) -> float:
        tested = [arrays(federation[id].test) for id in ids]
        return float(np.mean([((x @ weights - y) ** 2).sum(1).mean() for x, y in tested]))

    return error(federation.seen), error(federation.unseen)


def random_error(federation: Federation, draw: np.random.Generator) -> float:
    """Return the error in federation with two years of each state, drawn at random, held out."""
    train, test = [], []
    for id in federation.seen:
        own = [arrays(samples) for samples in (federation[id].train, federation[id].test)]
        x, y = (np.concatenate(part) for part in zip(*own, strict=True))
        held = draw.permutation(len(x)) < 2
        train.append((x[~held], y[~held]))
        test.append((x[held], y[held]))
    x, y = (np.concatenate(part) for part in zip(*train, strict=True))
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    return float(np.mean([((x @ weights - y) ** 2).sum(1).mean() for x, y in test]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    root = parser.parse_args().data_root
    print(f"{'split':12} {'test years':>10} {'in federation':>14} {'out of federation':>18}")
    for split in ("east-west", "north-south"):
        for years in (2, 1):
            data = Tpt48(split=split, test_years=years).load(root)
            seen, unseen = errors(Natural(unseen_test="all").federation(data, 0))
            print(f"{split:12} {years:10} {seen:14.3f} {unseen:18.3f}")
        federation = Natural(unseen_test="all").federation(Tpt48(split=split).load(root), 0)
        found = [random_error(federation, np.random.default_rng(seed)) for seed in range(20)]
        print(f"{split:12} {'random':>10} {np.mean(found):14.3f} +- {np.std(found, ddof=1):.3f} over 20 draws")


if __name__ == "__main__":
    main()
