"""Whole rounds of TFL and DRFA with a few clients a round, against plain loops: who is drawn, and what each counts."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import softmax
from torch import Tensor, nn
from torch.nn import functional as F

import fedkin
from fedkin.engines.client_list import Entry, Roster
from fedkin.engines.server_side import ServerSide
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.flow import Message, ServerMethod
from fedkin.keys import rng
from fedkin.learning import Training
from fedkin.methods.drfa import Drfa
from fedkin.methods.tfl import Tfl
from methods.plain_loops import combined
from support import small_setup

SEED, DRAWN, CLASSES = 2, 4, 3
TRAINING = Training(rounds=3, clients_per_round=DRAWN, local_steps=3, batch_size=5, lr=0.1)
SIZES = {"ash": 40, "birch": 4, "cedar": 6, "date": 25, "elm": 5, "fir": 9}
NAMES = ("body.weight", "body.bias", "head.weight", "head.bias")

Array = Any
Plain = dict[str, Tensor]


def unequal() -> Federation:
    """Clients with 4 to 40 samples, each with its own shift of the classes' places."""
    draw = np.random.default_rng(2)
    places = draw.normal(size=(CLASSES, 3)) * 2
    clients = []
    for id, n in SIZES.items():
        y = draw.integers(0, CLASSES, n)
        x = (places[y] + draw.normal(size=3) + draw.normal(size=(n, 3))).astype(np.float32)
        samples = Samples(torch.from_numpy(x), torch.from_numpy(y))
        clients.append(Client(id, samples, samples))
    return Federation(clients, Task(CLASSES, (3,)), "unequal")


def modules() -> tuple[nn.Module, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Linear(3, 5), nn.Linear(5, CLASSES)


def initial() -> Plain:
    body, head = modules()
    parts = [*body.parameters(), *head.parameters()]
    return {name: part.detach().double() for name, part in zip(NAMES, parts, strict=True)}


def loss_of(w: Plain, samples: Samples, rows: Any = slice(None)) -> Tensor:
    z = F.linear(samples.x[rows].double(), w["body.weight"], w["body.bias"])
    return F.cross_entropy(F.linear(z, w["head.weight"], w["head.bias"]), samples.y[rows])


def path(w: Plain, client: Client, number: int) -> list[Plain]:
    """The parameters after 0, 1, ... local steps."""
    draw = rng(SEED, client.id, number, "train.fit0")
    draw.integers(2**63)
    steps = [w]
    for rows in TRAINING.batches(client.size, draw):
        leaf = {name: tensor.clone().requires_grad_() for name, tensor in steps[-1].items()}
        slopes = torch.autograd.grad(loss_of(leaf, client.train, rows), list(leaf.values()))
        steps.append({name: t.detach() - TRAINING.lr * g for (name, t), g in zip(leaf.items(), slopes, strict=True)})
    return steps


def draw_of(lam: Array, number: int) -> Counter[str]:
    """Who trains in this round and how often each was drawn: by lambda, with replacement."""
    rows = rng(SEED, "", number, "sample").choice(len(lam), size=DRAWN, p=lam)
    return Counter(sorted(SIZES)[row] for row in rows)


def mean(models: dict[str, Plain], times: Counter[str]) -> Plain:
    return combined(models, {id: n / times.total() for id, n in times.items()})


def projected(v: Array, floor: float) -> Array:
    """The nearest point of the simplex with entries of at least `floor`: max(v - t, floor) for the t that sums to 1."""
    t = brentq(lambda t: np.maximum(v - t, floor).sum() - 1, v.min() - 2, v.max() + 1, xtol=1e-15, rtol=1e-15)
    return np.maximum(v - t, floor)


def first_lambda(start: str) -> Array:
    n = np.array([float(SIZES[id]) for id in sorted(SIZES)])
    return n / n.sum() if start == "samples" else np.full(len(n), 1 / len(n))


def plain_tfl(federation: Federation, rounds: int, start: str, eta: float, q: float) -> tuple[Plain, Array]:
    """TFL's Algorithm 1, graph of the last known models renewed every round."""
    ids, w, lam = sorted(SIZES), initial(), first_lambda(start)
    known: dict[str, Plain] = {}
    for number in range(1, rounds + 1):
        times = draw_of(lam, number)
        models = {id: path(w, federation[id], number)[-1] for id in times}
        w = mean(models, times)
        known |= models
        met = [id for id in ids if id in known]
        rows = [np.concatenate([known[id][name].flatten().numpy() for name in NAMES]) for id in met]
        assert len(met) > 2  # two clients are one pair, which has no scale
        inner = np.array([[float(a @ b) for b in rows] for a in rows])
        pairs = inner[np.triu_indices(len(met), 1)]
        scaled = (inner - pairs.min()) / (pairs.max() - pairs.min())
        linked = (scaled >= 0.4) & ~np.eye(len(met), dtype=bool)
        central = nx.betweenness_centrality(nx.from_numpy_array(linked), normalized=False)
        among = dict(zip(met, softmax([central[k] for k in range(len(met))]), strict=True))
        # One that was never met has 1 / K, and the others share the rest.
        prior = np.array([among[id] * len(met) / len(ids) if id in among else 1 / len(ids) for id in ids])
        losses = np.array([float(loss_of(w, federation[id].train)) for id in ids])
        lam = projected(lam + eta * (losses - q * (lam - prior)), 0.0)
    return w, lam


def plain_drfa(federation: Federation, rounds: int, start: str, gamma: float, floor: float) -> tuple[Plain, Array]:
    """DRFA's Algorithm 1."""
    ids, w, lam = sorted(SIZES), initial(), first_lambda(start)
    for number in range(1, rounds + 1):
        times = draw_of(lam, number)
        at = math.ceil((1 - rng(SEED, "", number, "snapshot").random()) * 3)
        paths = {id: path(w, federation[id], number) for id in times}
        w = mean({id: steps[-1] for id, steps in paths.items()}, times)
        judged = mean({id: steps[at] for id, steps in paths.items()}, times)
        v = np.zeros(len(ids))
        for row in rng(SEED, "", number, "losses").permutation(len(ids))[:DRAWN]:
            v[row] = len(ids) / DRAWN * float(loss_of(judged, federation[ids[row]].train))
        lam = projected(lam + gamma * 3 * v, floor)
    return w, lam


@pytest.mark.parametrize("start", ["samples", "uniform"])
@pytest.mark.parametrize("name", ["tfl", "drfa"])
def test_three_rounds_of_a_few_unequal_clients_are_the_plain_loops(name: str, start: str) -> None:
    federation = unequal()
    method: ServerMethod
    if name == "tfl":
        method = Tfl(eta_lambda=0.1, q=0.3, lambda_start=start, graph={"every": 1})
    else:
        method = Drfa(gamma=0.04, floor=0.01, lambda_start=start)
    twice = 0
    for rounds in (1, 2, 3):
        if name == "tfl":
            w, lam = plain_tfl(federation, rounds, start, 0.1, 0.3)
        else:
            w, lam = plain_drfa(federation, rounds, start, 0.04, 0.01)
        result = fedkin.run(
            method, federation, rounds=rounds, seed=SEED, model=modules(), training=TRAINING,
            settings={"dtype": "float64"},
        )  # fmt: skip
        for id in federation:
            for key, tensor in w.items():
                torch.testing.assert_close(result.models[id][key], tensor, rtol=1e-6, atol=1e-6)
        figures = result.rounds[-1]["figures"]
        assert figures["lambda_largest"] == pytest.approx(lam.max(), abs=1e-6)
        assert figures["lambda_entropy"] == pytest.approx(-(lam[lam > 0] * np.log(lam[lam > 0])).sum(), abs=1e-6)
        trained = {sender for number, sender, _, phase, *_ in result.messages if (number, phase) == (rounds, "train")}
        assert trained - {"server"} <= set(result.rounds[-1]["sampled"])
        twice += DRAWN - len(trained - {"server"})
    assert twice > 0  # else a client drawn twice was never seen to count twice


# -- one round by hand -----------------------------------------------------------------------------------------------


def by_hand(method: ServerMethod, lost: str | None = None) -> tuple[list[str], set[str], Array]:
    """(`sample`'s answer, who was asked to train, how much each client's model counts) in a first round.

    Client k answers with the k-th unit vector as its head's bias, so that the mean shows what each counts.
    """
    ids = sorted(SIZES)
    setup = small_setup(method, clients_per_round=DRAWN, seed=SEED)
    roster = Roster({id: Entry(True, 1, n, None) for id, n in SIZES.items()}, setup.federation.task)
    side = ServerSide(setup, roster)
    side.turn_to(1)
    flow, answer, trained = side.round(), None, set[str]()
    while True:
        try:
            request = flow.send(answer)
        except StopIteration as stop:
            sampled: list[str] = stop.value
            break
        replies = {}
        for id in request.messages:
            if request.phase == "size":
                replies[id] = Message(n=SIZES[id])
            elif request.phase == "losses":
                replies[id] = Message(loss=torch.tensor(1.0))
            else:
                unit = torch.eye(len(ids))[ids.index(id)]
                params = {**setup.net.initial, "head.bias": unit}
                replies[id] = Message(params=params, snapshot=params, steps=3)
        if request.phase == "train":
            trained = set(replies)
            replies = {id: reply for id, reply in replies.items() if id != lost}
        answer = replies
    return sampled, trained, side.view.state["params"]["head.bias"].numpy()


@pytest.mark.parametrize("start", ["samples", "uniform"])
@pytest.mark.parametrize("kind", [Tfl, Drfa])
def test_the_clients_that_train_are_those_that_count(kind: Any, start: str) -> None:
    times = draw_of(first_lambda(start), 1)
    sampled, trained, counted = by_hand(kind(lambda_start=start))
    assert trained == set(times) <= set(sampled)
    np.testing.assert_allclose(counted, [times[id] / DRAWN for id in sorted(SIZES)], atol=1e-7)


@pytest.mark.parametrize("start", ["samples", "uniform"])
@pytest.mark.parametrize("kind", [Tfl, Drfa])
def test_a_lost_model_leaves_the_others_counting_as_often_as_drawn(kind: Any, start: str) -> None:
    times = draw_of(first_lambda(start), 1)
    for lost in times:
        _, _, counted = by_hand(kind(lambda_start=start), lost)
        rest = {id: n for id, n in times.items() if id != lost}
        want = [rest.get(id, 0) / sum(rest.values()) for id in sorted(SIZES)]
        np.testing.assert_allclose(counted, want, atol=1e-7)
