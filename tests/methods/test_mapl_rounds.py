"""Full rounds of MAPL and MAPL+, before and after the warm-up, against plain loops that share no code with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from fedkin.engines import LocalEngine, Setup
from fedkin.learning.net import Net
from methods.mapl_toys import KINDS, PROTOTYPES, setup_of, two_groups
from methods.plain_loops import Plain, assert_params, combined, entropy, plain_training

Array = np.ndarray[Any, np.dtype[np.float64]]

TAU, SPREAD, CLASSES, WARMUP = 0.5, 3.0, 6, 2


# -- Algorithm 1: the local loss ------------------------------------------------------------------------------


def features(params: Plain, x: Tensor) -> Tensor:
    """z of a body with one or two hidden layers."""
    for layer in ("body.1", "body.3"):
        if f"{layer}.weight" in params:
            x = torch.relu(x @ params[f"{layer}.weight"].T + params[f"{layer}.bias"])
    return x


def projected(params: Plain, z: Tensor) -> Tensor:
    """p: a layer, normalised over the batch, ReLU, a layer."""
    h = z @ params["projection.into.weight"].T + params["projection.into.bias"]
    h = (h - h.mean(0)) / torch.sqrt(((h - h.mean(0)) ** 2).mean(0) + 1e-5)
    h = torch.relu(h * params["projection.scale"] + params["projection.shift"])
    return h @ params["projection.out.weight"].T + params["projection.out.bias"]


def cos(a: Tensor, b: Tensor) -> Tensor:
    cosine: Tensor = a.dot(b) / (a.norm() * b.norm())
    return cosine


def contrast(p: Tensor, y: Tensor, released: bool) -> Tensor:
    """l_cont over all views, anchor after anchor."""
    unit, terms = p / p.norm(dim=1, keepdim=True), []
    for q in range(len(p)):
        others = [r for r in range(len(p)) if r != q]
        scores = torch.exp(unit[others] @ unit[q] / TAU)
        shares = (scores / scores.sum())[y[others] == y[q]]
        terms.append(-shares.sum().log() if released else -shares.log().mean())
    return torch.stack(terms).mean()


def to_prototypes(p: Tensor, y: Tensor, xi: Tensor, released: bool) -> Tensor:
    """l_proto, sample after sample."""
    towards, terms = xi if released else xi / xi.norm(dim=1, keepdim=True) / TAU, []
    for q in range(len(p)):
        scores = towards @ p[q] / p[q].norm()
        terms.append(-torch.log(scores[y[q]].exp() / scores.exp().sum()))
    return torch.stack(terms).mean()


def apart(xi: Tensor, released: bool) -> Tensor:
    """l_uni, pair after pair."""
    pairs = [(k, r) for k in range(CLASSES) for r in range(k)]
    terms = [torch.exp(xi[k] @ xi[r] / SPREAD) if released else cos(xi[k], xi[r]) for k, r in pairs]
    return 2 * torch.stack(terms).sum() / CLASSES


# -- Algorithm 2: a row of weights ------------------------------------------------------------------------------


def onto_simplex(v: Array) -> Array:
    """The nearest point of the simplex: the shift is found by halving."""
    low, high = v.min() - 1.0, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    nearest: Array = np.maximum(v - high, 0)
    return nearest


def solved(s: Array, own: int, n: Array) -> Array:
    """What minimises the objective of step "solve", by SLSQP."""
    best = np.delete(s, own).max()
    if best >= 0.45:
        s = np.maximum(s / best, -1.0)
        s[own] = 1.0
    trust = n / n.mean()
    count = (trust * np.maximum(s, 0) ** 2).sum()

    def objective(w: Any) -> float:
        norm = math.sqrt((w**2 / trust).sum())
        return float(-0.5 * s @ w + 0.01 * (20 * math.sqrt(count) * norm - math.log(1 - w[own] + 1e-6)))

    ones: Any = {"type": "eq", "fun": lambda w: w.sum() - 1}
    found = minimize(
        objective, np.full(len(s), 1 / len(s)), method="SLSQP", bounds=[(0, 1)] * len(s),
        constraints=ones, options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    return np.where(found.x < 1e-7, 0.0, found.x)


def stepped(s: Array, own: int, n: Array, w: Array, released: bool) -> Array:
    """One step of Algorithm 2 from w, with the paper's mu1 .5, mu2 .1, beta .5 and eta .1."""
    if released:
        s = s / np.delete(s, own).max()
        s[own] = 1.0
    slope = np.array([
        -0.5 * n[j] / n.sum() * s[j] + 0.1 * 0.5 * w[j] / math.sqrt((w**2).sum())
        - (0.0 if released or j == own else 0.1 / (w.sum() - w[own] + 1e-6))
        for j in range(len(w))
    ])  # fmt: skip
    return onto_simplex(w - 0.1 * (np.sign(slope) if released else slope))


# -- Algorithm 3 ------------------------------------------------------------------------------------------------


@dataclass
class Loops:
    """All peers of a run: models, rows of weights, and edges (sender, receiver) along which nothing is sent."""

    setup: Setup
    start: dict[str, Plain]
    step: str
    similarity: str
    plus: bool
    absent: float
    models: dict[str, Plain] = field(default_factory=dict)
    rows: dict[str, dict[str, float]] = field(default_factory=dict)
    stopped: set[tuple[str, str]] = field(default_factory=set)

    def loss(self, params: Plain, x: Tensor, y: Tensor) -> Tensor:
        released = self.step == "released"
        x, y = torch.cat([x, x]).to(torch.float64), torch.cat([y, y])
        z = features(params, x)
        p, xi = projected(params, z), params[PROTOTYPES]
        logits = z @ params["head.weight"].T + params["head.bias"]
        terms = contrast(p, y, released), to_prototypes(p, y, xi, released), apart(xi, released)
        return entropy(logits, y) + sum(terms)

    def round(self, number: int) -> set[tuple[str, str]]:
        """One round; the edges along which prototypes went."""
        federation, ids = self.setup.federation, sorted(self.start)
        trained = {
            id: plain_training(self.setup, id, number, self.models.get(id, self.start[id]), self.loss, "round")
            for id in ids
        }
        sent = {(j, i) for j in ids for i in ids if j != i and (j, i) not in self.stopped}
        for i in ids:
            heard = [j for j in ids if j == i or (j, i) in sent]
            row = dict.fromkeys(heard, 1 / len(heard))
            if number >= WARMUP and len(heard) > 1:
                row = self.learned(i, heard, trained)
                self.stopped |= {(j, i) for j in heard if j not in row}
            self.rows[i] = row
        for i in ids:
            row, model = self.rows[i], dict(trained[i])
            xi = model[PROTOTYPES].clone()
            for k in range(CLASSES):
                owners = [j for j in row if k in federation[j].train.y.tolist()]
                trust = {j: row[j] * (1.0 if j in owners else self.absent) for j in row}
                if any(row[j] > 0 for j in owners):
                    xi[k] = sum(trust[j] * trained[j][PROTOTYPES][k] for j in row) / sum(trust.values())
            model[PROTOTYPES] = xi
            for name in model:
                if self.plus and name.startswith("body."):
                    model |= combined(trained, row, [name])
            self.models[i] = model
        return sent

    def learned(self, i: str, heard: list[str], trained: dict[str, Plain]) -> dict[str, float]:
        """w_i over those heard, without the edges that are too light."""
        head, own = {j: trained[j]["head.weight"] for j in heard}, heard.index(i)
        if self.similarity == "change":
            begun = self.start[i]["head.weight"]
            s = [float(cos((head[i] - begun).flatten(), (head[j] - begun).flatten())) for j in heard]
        elif self.similarity == "weights":
            s = [float(cos(head[i].flatten(), head[j].flatten())) for j in heard]
        else:
            s = [float(sum(cos(head[i][k], head[j][k]) for k in range(CLASSES)) / CLASSES) for j in heard]
        s[own] = 1.0
        n = np.array([float(self.setup.federation[j].size) for j in heard])
        last = np.array([self.rows[i].get(j, 0.0) for j in heard])
        if self.step == "solve":
            w = solved(np.array(s), own, n)
        else:
            w = stepped(np.array(s), own, n, last / last.sum(), self.step == "released")
        least = 0.1 / len(self.start) if self.step == "solve" else 0.0
        row = {
            j: w[k] for k, j in enumerate(heard) if j == i or self.step == "released" or (w[k] > 0 and w[k] >= least)
        }
        return {j: weight / sum(row.values()) for j, weight in row.items()}


class Deep(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 12), nn.ReLU())


def three_peers(method: Any, unlike: bool) -> Setup:
    """Three peers of unequal sizes in two groups of classes; the last one's body is deeper than the others'."""
    setup = setup_of(method, two_groups(3), batch_size=6, local_steps=2, lr=0.2)
    head = setup.net.module.head
    shallow = Net(setup.net.module.body, head, torch.float64)
    torch.manual_seed(0)
    deep = Net(Deep(), head, torch.float64)
    nets = {id: deep if k == 2 else shallow for k, id in enumerate(sorted(setup.federation))}
    return replace(setup, net=shallow, nets=nets if unlike else None)


@pytest.mark.parametrize(
    ("name", "step", "similarity", "absent"),
    [
        ("mapl", "solve", "change", 0.0),
        ("mapl", "paper", "weights", 1.0),
        ("mapl", "released", "change", 0.3),
        ("mapl-plus", "solve", "change", 0.0),
        ("mapl-plus", "paper", "rows", 0.0),
    ],
)
def test_rounds_are_those_of_plain_loops(name: str, step: str, similarity: str, absent: float) -> None:
    method = KINDS[name](
        warmup=WARMUP, absent=absent, temperature=TAU, spread=SPREAD, hidden=7, augment={"on": False},
        variant="released" if step == "released" else "paper",
        graph={"step": step, "similarity": similarity, "probe": 0.0},
    )  # fmt: skip
    setup = three_peers(method, unlike=name == "mapl")
    engine = LocalEngine(setup)
    ids = sorted(setup.federation)
    start = {id: dict(engine.model(id)) for id in ids}
    loops = Loops(setup, start, step, similarity, name == "mapl-plus", absent)
    for number in range(1, WARMUP + 3):
        outcome, sent = engine.round(number), loops.round(number)
        floats = {(m.sender, m.receiver) for m in outcome.traffic if m.phase == "prototypes" and m.floats}
        heads = {(m.sender, m.receiver) for m in outcome.traffic if m.phase == "head"}
        assert (floats, heads) == (sent, sent if number >= WARMUP else set())
        mixing = np.array([[loops.rows[i].get(j, 0.0) for j in ids] for i in ids])
        assert outcome.graph is not None
        np.testing.assert_allclose(np.asarray(outcome.graph.mixing), mixing, atol=1e-5)
        assert (np.ptp(mixing) < 1e-9) == (number < WARMUP)
        for id in ids:
            assert_params(dict(engine.model(id)), loops.models[id], 1e-5)
    # Edges across the two groups are gone where the step drops any.
    group = {id: setup.federation[id].group for id in ids}
    assert len(set(setup.federation.sizes.values())) == 3
    assert loops.stopped == {(a, b) for a in ids for b in ids if step == "solve" and group[a] != group[b]}
