"""Small federations whose best collaboration is known, and how they are advised on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedkin.advice import Advice, Bench, Plan, advise
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning.models import Mlp
from fedkin.learning.training import Training
from fedkin.running.experiment import RunSettings

WIDTH = 12
A, B = (1.0, 0.5, 0.0, -0.5), (-0.5, 0.0, 1.0, 0.5)
LONER = (-1.0, -0.5, -1.0, 0.0)

BENCH = Bench(Mlp(hidden=(8,)), Training(rounds=4, local_steps=15, batch_size=16, lr=0.3), RunSettings(mode="fast"), 0)
QUICK = Plan(folds=3, rates=(1.0,))


def drawn(slopes: Sequence[float], count: int, rng: np.random.Generator, kind: str, width: int = WIDTH) -> Samples:
    """Samples of a linear model: an event, one of three classes, or a number."""
    x = rng.normal(size=(count, width))
    score = x[:, : len(slopes)] @ np.array(slopes)
    if kind == "regression":
        y = torch.from_numpy((score + 0.5 * rng.normal(size=count)).astype(np.float32))[:, None]
    elif kind == "classification":
        y = torch.from_numpy(np.digitize(score + 0.3 * rng.normal(size=count), [-0.6, 0.6]).astype(np.int64))
    else:
        y = torch.from_numpy((rng.random(count) < 1 / (1 + np.exp(-2.5 * score))).astype(np.int64))
    return Samples(torch.from_numpy(x.astype(np.float32)), y)


def federation(
    who: Mapping[str, tuple[Sequence[float], int]], kind: str = "risk", seed: int = 0, width: int = WIDTH,
    few: Sequence[str] = (),
) -> Federation:  # fmt: skip
    """Clients by id: (slopes, training samples). few: those that have two events only."""
    rng = np.random.default_rng(seed)
    clients = []
    for id, (slopes, count) in who.items():
        train, test = drawn(slopes, count, rng, kind, width), drawn(slopes, 40, rng, kind, width)
        if id in few:
            events = np.flatnonzero(train.y.numpy() == 1)[:2]
            train = train.take(np.sort(np.concatenate([events, np.flatnonzero(train.y.numpy() == 0)]))).own()
        clients.append(Client(id, train, test))
    task = Task.regression(1, (width,)) if kind == "regression" else (
        Task(3, (width,)) if kind == "classification" else Task(2, (width,), "risk")
    )  # fmt: skip
    return Federation(clients, task, "town")


def hospitals(seed: int = 0) -> Federation:
    """Two groups of three, one that is like nobody, one with two events."""
    who = {"ann": A, "bob": B, "cleo": A, "dan": B, "eve": A, "fay": B}
    told = {name: (slopes, 100) for name, slopes in who.items()}
    return federation({**told, "gus": (LONER, 300), "hal": (A, 60)}, seed=seed, few=["hal"])


def advised(made: Federation, plan: Plan = QUICK, bench: Bench = BENCH) -> Advice:
    return advise(made, bench, plan)
