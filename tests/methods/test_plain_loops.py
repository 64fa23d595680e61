"""A few rounds of methods, against loops that a person would write from the papers.

Each loop takes a setup and gives every client's model after ROUNDS (or CHOICES) rounds; none of the methods' code is
used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from fedkin.engines import LocalEngine, Setup
from fedkin.federation import Change, Client, Federation, Samples, Task
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.graph.network import network
from fedkin.keys import rng
from fedkin.learning.net import Net
from fedkin.methods.pfedgraph import collaboration
from methods.plain_loops import (
    BODY,
    HEAD,
    Plain,
    assert_params,
    combined,
    contrast,
    cosine,
    cross_entropy,
    entropy,
    features,
    initial,
    logits,
    plain_training,
    sample_shares,
)
from support import after, named, play, samples_of, small_federation, small_setup, with_settings

ROUNDS = (1, 2)
Models = dict[str, Plain]


def gradient(params: Plain, x: Tensor, y: Tensor) -> Plain:
    leaves = {name: tensor.clone().requires_grad_(True) for name, tensor in params.items()}
    return dict(zip(leaves, torch.autograd.grad(cross_entropy(leaves, x, y), list(leaves.values())), strict=True))


def squared(one: Plain, other: Plain, names: tuple[str, ...] = (*BODY, *HEAD)) -> Tensor:
    """The squared distance of two models."""
    return torch.stack([((one[name] - other[name]) ** 2).sum() for name in names]).sum()


def flat(params: Plain) -> Any:
    return torch.cat([params[name].flatten() for name in sorted(params)]).double().numpy()


def pulled(centre: Plain, strength: float) -> Any:
    """The loss with half of the squared distance from this centre, times the strength."""

    def loss(params: Plain, x: Tensor, y: Tensor) -> Tensor:
        pull: Tensor = strength / 2 * squared(params, centre)
        return cross_entropy(params, x, y) + pull

    return loss


def averaged(setup: Setup, loss: Any, weights: str = "samples") -> tuple[dict[str, float], Plain]:
    """Each client's share, and the common model after these rounds; loss: of the model that a round starts from."""
    shares, common = shares_of(setup, weights), initial(setup)
    for number in ROUNDS:
        common = combined({id: plain_training(setup, id, number, common, loss(common)) for id in shares}, shares)
    return shares, common


def shares_of(setup: Setup, weights: str = "samples") -> dict[str, float]:
    if weights == "samples":
        return sample_shares(setup.federation)
    return dict.fromkeys(sorted(setup.federation), 1 / len(setup.federation))


# -- one model for all ------------------------------------------------------------------------------------------------


def fedprox(setup: Setup) -> Models:
    method: Any = setup.method
    return dict.fromkeys(*averaged(setup, lambda common: pulled(common, method.mu), method.weights))


def fedavg_ft(setup: Setup) -> Models:
    """One pass over all samples at once after each round."""
    shares, common = averaged(setup, lambda common: cross_entropy)
    return {id: stepped(setup, id, common, setup.training.lr) for id in shares}


def stepped(setup: Setup, id: str, params: Plain, rate: float) -> Plain:
    """One step over all of a client's samples."""
    samples: Any = setup.federation[id].train
    slope = gradient(params, samples.x, samples.y)
    return {name: params[name] - rate * slope[name] for name in params}


def fednova(setup: Setup) -> Models:
    shares, common = shares_of(setup), initial(setup)
    steps = {id: setup.training.steps(setup.federation[id].size) for id in shares}
    assert len(set(steps.values())) > 1
    effective = sum(shares[id] * steps[id] for id in shares)
    for number in ROUNDS:
        trained = {id: plain_training(setup, id, number, common, cross_entropy) for id in shares}
        move = {
            name: sum(shares[id] * (common[name] - trained[id][name]) / steps[id] for id in shares) for name in common
        }
        common = {name: common[name] - effective * move[name] for name in common}
    return dict.fromkeys(shares, common)


def per_fedavg(setup: Setup) -> Models:
    method: Any = setup.method

    def adapted(params: Plain, x: Tensor, y: Tensor) -> Tensor:
        inner = torch.autograd.grad(
            cross_entropy(params, x[0::2], y[0::2]), list(params.values()), create_graph=method.order == "second"
        )
        moved = {name: p - method.alpha * g for (name, p), g in zip(params.items(), inner, strict=True)}
        return cross_entropy(moved, x[1::2], y[1::2])

    shares, common = averaged(setup, lambda common: adapted)
    return {id: stepped(setup, id, common, method.alpha) for id in shares}


def scaffold(setup: Setup) -> Models:
    method: Any = setup.method
    shares, common, rate, steps = shares_of(setup, "equal"), initial(setup), setup.training.lr, 2
    zero = {name: torch.zeros_like(tensor) for name, tensor in common.items()}
    control, own = dict(zero), dict.fromkeys(shares, zero)
    for number in ROUNDS:
        trained, changes = {}, {}
        for id in shares:
            shift = {name: control[name] - own[id][name] for name in control}

            def corrected(params: Plain, x: Tensor, y: Tensor, shift: Plain = shift) -> Tensor:
                linear = torch.stack([(shift[name] * params[name]).sum() for name in params]).sum()
                return cross_entropy(params, x, y) + linear

            trained[id] = plain_training(setup, id, number, common, corrected)
            changes[id] = {n: (common[n] - trained[id][n]) / (steps * rate) - control[n] for n in common}
            own[id] = {name: own[id][name] + changes[id][name] for name in common}
        mean, change = combined(trained, shares), combined(changes, shares)
        common = {name: common[name] + method.rate * (mean[name] - common[name]) for name in common}
        control = {name: control[name] + change[name] for name in control}
    return dict.fromkeys(shares, common)


def feddyn(setup: Setup) -> Models:
    """With h as the mean of the clients' gradients."""
    method: Any = setup.method
    shares, common = shares_of(setup, "equal"), initial(setup)
    zero = {name: torch.zeros_like(tensor) for name, tensor in common.items()}
    own = dict.fromkeys(shares, zero)
    for number in ROUNDS:
        trained = {}
        for id in shares:

            def dynamic(params: Plain, x: Tensor, y: Tensor, g: Plain = own[id], start: Plain = common) -> Any:
                along = torch.stack([(g[name] * params[name]).sum() for name in params]).sum()
                return pulled(start, method.alpha)(params, x, y) - along

            trained[id] = plain_training(setup, id, number, common, dynamic)
            own[id] = {n: own[id][n] - method.alpha * (trained[id][n] - common[n]) for n in common}
        mean, h = combined(trained, shares), combined(own, shares)
        common = {name: mean[name] - h[name] / method.alpha for name in common}
    return dict.fromkeys(shares, common)


# -- models of clients beside a common one ----------------------------------------------------------------------------


def ditto(setup: Setup) -> Models:
    method: Any = setup.method
    shares, common = shares_of(setup), initial(setup)
    own = dict.fromkeys(shares, common)
    for number in ROUNDS:
        own = {id: plain_training(setup, id, number, own[id], pulled(common, method.lam), fit=1) for id in shares}
        common = combined({id: plain_training(setup, id, number, common, cross_entropy) for id in shares}, shares)
    return own


def apfl(setup: Setup) -> Models:
    shares, common, rate = shares_of(setup), initial(setup), setup.training.lr
    own, alphas = dict.fromkeys(shares, common), dict.fromkeys(shares, 0.3)
    for number in ROUNDS:
        trained = {}
        for id in shares:
            w, v, alpha = dict(common), own[id], alphas[id]
            client = setup.federation[id]
            for step, rows in enumerate(setup.training.batches(client.size, rng(setup.seed, id, number, "batches"))):
                x, y = client.train.x[rows], client.train.y[rows]
                mixed = {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}
                slope, plain = gradient(mixed, x, y), gradient(w, x, y)
                inner = sum(float(((v[name] - w[name]) * slope[name]).sum()) for name in w)
                v = {name: v[name] - rate * alpha * slope[name] for name in v}
                w = {name: w[name] - rate * plain[name] for name in w}
                alpha = min(max(alpha - rate * inner, 0.0), 1.0) if step == 0 else alpha
            trained[id], own[id], alphas[id] = w, v, alpha
        common = combined(trained, shares)
    assert len({round(alpha, 6) for alpha in alphas.values()}) > 1
    return {id: combined({"v": own[id], "w": common}, {"v": alphas[id], "w": 1 - alphas[id]}) for id in shares}


def pfedme(setup: Setup) -> Models:
    method: Any = setup.method
    shares, common, lr = shares_of(setup, method.weights), initial(setup), setup.training.lr
    theta: Models = {}
    for number in ROUNDS:
        trained = {}
        for id in shares:
            client = setup.federation[id]
            w, theta[id] = common, common
            for rows in setup.training.batches(client.size, rng(setup.seed, id, number, "batches")):
                for _ in range(method.inner_steps):
                    now = theta[id]
                    slope = gradient(now, client.train.x[rows], client.train.y[rows])
                    theta[id] = {n: now[n] - lr * (slope[n] + method.lam * (now[n] - w[n])) for n in now}
                w = {name: w[name] - method.eta * method.lam * (w[name] - theta[id][name]) for name in w}
            trained[id] = w
        mean = combined(trained, shares)
        common = {name: (1 - method.beta) * common[name] + method.beta * mean[name] for name in common}
    return theta


def fedala(setup: Setup) -> Models:
    shares, common = shares_of(setup), initial(setup)
    batch, moved = setup.training.batch_size, 0.0
    assert isinstance(batch, int)
    own: Models = {}
    for number in ROUNDS:
        trained = {}
        for id in shares:
            start, fits, client = dict(common), 0, setup.federation[id]
            if id in own:
                mix = {name: torch.ones_like(common[name]) for name in HEAD}
                passes = setup.training.model_copy(update={"local_steps": None, "local_epochs": 2})
                fits = 2 * -(-client.size // batch)
                for rows in passes.batches(client.size, rng(setup.seed, id, number, "mix")):
                    start |= {n: own[id][n] + (common[n] - own[id][n]) * mix[n] for n in HEAD}
                    slopes = gradient(start, client.train.x[rows], client.train.y[rows])
                    mix = {n: (mix[n] - 20 * slopes[n] * (common[n] - own[id][n])).clamp(0, 1) for n in HEAD}
                start |= {n: own[id][n] + (common[n] - own[id][n]) * mix[n] for n in HEAD}
                moved = max(moved, float((1 - mix["head.weight"]).max()))
            trained[id] = plain_training(setup, id, number, start, cross_entropy, fit=fits)
        own, common = trained, combined(trained, shares)
    assert moved > 0.01
    return own


def fedamp(setup: Setup) -> Models:
    method: Any = setup.method
    own = dict.fromkeys(shares_of(setup), initial(setup))
    for number in ROUNDS:
        clouds = dict(own)
        for i in own if number > 1 else ():
            row = {
                j: method.alpha / method.sigma * math.exp(-float(squared(own[i], own[j])) / method.sigma)
                for j in own if j != i
            }  # fmt: skip
            whole = max(sum(row.values()), 1.0)
            row = {j: weight / whole for j, weight in row.items()}
            clouds[i] = combined(own, {**row, i: 1 - sum(row.values())})
        strength = method.lam / method.alpha
        own = {id: plain_training(setup, id, number, own[id], pulled(clouds[id], strength)) for id in own}
    return own


def pfedgraph(setup: Setup) -> Models:
    """Its rows are another test's."""
    start = initial(setup)
    starts = dict.fromkeys(shares_of(setup), start)
    sizes = [setup.federation[id].size for id in starts]
    own: Models = {}
    for number in ROUNDS:
        for id in starts:

            def along(params: Plain, x: Tensor, y: Tensor, centre: Plain = starts[id]) -> Tensor:
                one, other = (torch.cat([each[name].flatten() for name in params]) for each in (params, centre))
                return cross_entropy(params, x, y) - 0.2 * torch.cosine_similarity(one, other, dim=0)

            own[id] = plain_training(setup, id, number, starts[id], along)
        updates = np.stack([flat(own[id]) - flat(start) for id in starts])
        unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        rows = collaboration(unit @ unit.T, sizes, 0.3)
        starts = {id: combined(own, dict(zip(starts, rows[k].tolist(), strict=True))) for k, id in enumerate(starts)}
    return own


# -- a body or a head in common ---------------------------------------------------------------------------------------


def fixed(names: tuple[str, ...]) -> Any:
    """The loss as a function of the other parameters."""

    def loss(params: Plain, x: Tensor, y: Tensor) -> Tensor:
        rest = 0 * sum((params[name] ** 2).sum() for name in names)
        return cross_entropy({n: p.detach() if n in names else p for n, p in params.items()}, x, y) + rest

    return loss


def fedper(setup: Setup) -> Models:
    shares = shares_of(setup)
    own = dict.fromkeys(shares, initial(setup))
    for number in ROUNDS:
        own = {id: plain_training(setup, id, number, own[id], cross_entropy) for id in shares}
        body = combined(own, shares, BODY)
        own = {id: {**own[id], **body} for id in shares}
    return own


def fedrep(setup: Setup) -> Models:
    """The head for four of five steps, then the body."""
    shares = shares_of(setup)
    head_steps, body_steps = (setup.training.model_copy(update={"local_steps": steps}) for steps in (4, 1))
    own = dict.fromkeys(shares, initial(setup))
    for number in ROUNDS:
        for id in shares:
            params = plain_training(setup, id, number, own[id], fixed(BODY), training=head_steps)
            own[id] = plain_training(setup, id, number, params, fixed(HEAD), fit=1, training=body_steps)
        body = combined(own, shares, BODY)
        own = {id: {**own[id], **body} for id in shares}
    return own


def fedsim(setup: Setup) -> Models:
    method: Any = setup.method
    shares = shares_of(setup, method.weights)
    own = dict.fromkeys(shares, initial(setup))
    head = {name: initial(setup)[name] for name in HEAD}
    for number in ROUNDS:
        own = {id: plain_training(setup, id, number, {**own[id], **head}, cross_entropy) for id in shares}
        head = combined(own, shares, HEAD)
    return {id: {**own[id], **head} if method.predict == "shared" else own[id] for id in shares}


def lg_fedavg(setup: Setup) -> Models:
    """One round of FedAvg, then FedSim."""
    shares = shares_of(setup)
    first = {id: plain_training(setup, id, 1, initial(setup), cross_entropy) for id in shares}
    common = combined(first, shares)
    own = {id: plain_training(setup, id, 2, common, cross_entropy, "train_own_body") for id in shares}
    head = combined(own, shares, HEAD)
    return {id: {**own[id], **head} for id in shares}


def fedclassavg(setup: Setup) -> Models:
    shares = shares_of(setup)
    own = dict.fromkeys(shares, initial(setup))
    head = {name: initial(setup)[name] for name in HEAD}
    for number in ROUNDS:

        def loss(params: Plain, x: Tensor, y: Tensor, start: Plain = head) -> Tensor:
            pull = squared(params, start, HEAD)
            z = features(params, x)  # of two equal views
            return cross_entropy(params, x, y) + contrast(torch.cat([z, z]), torch.cat([y, y]), 0.7) + 0.5 / 2 * pull

        own = {id: plain_training(setup, id, number, {**own[id], **head}, loss) for id in shares}
        head = combined(own, shares, HEAD)
    return own


# -- several models ---------------------------------------------------------------------------------------------------


def ifca(setup: Setup) -> Models:
    """From the models that the method starts with."""
    method: Any = setup.method
    shares = shares_of(setup, method.weights)
    models = {k: dict(params) for k, params in LocalEngine(setup).server.state["models"].items()}
    chosen: dict[str, str] = {}
    for number in ROUNDS:
        for id in shares:
            train: Any = setup.federation[id].train
            losses = {k: loss_on(train, params) for k, params in models.items()}
            chosen[id] = min(losses, key=losses.__getitem__)
        tried = len(models)  # before a client trains, one request after another
        trained = {id: plain_training(setup, id, number, models[chosen[id]], cross_entropy, fit=tried) for id in shares}
        for k in set(chosen.values()):
            members = {id: shares[id] for id in shares if chosen[id] == k}
            models[k] = combined(trained, {id: share / sum(members.values()) for id, share in members.items()})
        if method.share == "body":
            body = combined(trained, shares, BODY)
            models = {k: {**params, **body} for k, params in models.items()}
    assert len(set(chosen.values())) > 1
    return {id: models[k] for id, k in chosen.items()}


def cobo(setup: Setup) -> Models:
    """With weights of 1 that stay: all models of the round before pull."""
    method: Any = setup.method
    own = dict.fromkeys(shares_of(setup), initial(setup))
    for number in ROUNDS:
        before = own
        own = {}
        for id in before:
            others = [before[other] for other in before if other != id] if number > 1 else []

            def drawn(params: Plain, x: Tensor, y: Tensor, others: list[Plain] = others) -> Any:
                return cross_entropy(params, x, y) + method.rho / 2 * sum(squared(params, other) for other in others)

            own[id] = plain_training(setup, id, number, before[id], drawn)
    return own


# -- peers ------------------------------------------------------------------------------------------------------------


def dfedavgm(setup: Setup) -> Models:
    """Rows of Metropolis-Hastings in a full network and in a ring."""
    models = dict.fromkeys(shares_of(setup), initial(setup))
    ids = list(models)
    near = network(setup.engine.network, ids, setup.seed, 1)
    for number in ROUNDS:
        trained = {id: plain_training(setup, id, number, models[id], cross_entropy, "round", 0.6) for id in ids}
        for i in ids:
            row = {j: 1 / (1 + max(len(near[i]), len(near[j]))) for j in near[i]}
            models[i] = combined(trained, {**row, i: 1 - sum(row.values())})
    return models


LOOPS: list[tuple[Callable[[Setup], Models], ServerMethod | PeerMethod, dict[str, Any]]] = [
    (fedprox, named("fedprox", mu=0.7), {}),
    (fedprox, named("fedprox", mu=0.7, weights="equal"), {}),
    (fedavg_ft, named("fedavg-ft", passes=1), {"batch_size": "all"}),
    (fednova, named("fednova"), {"local_steps": None, "local_epochs": 2}),
    (per_fedavg, named("per-fedavg", alpha=0.2, order="first"), {}),
    (per_fedavg, named("per-fedavg", alpha=0.2, order="second"), {}),
    (scaffold, named("scaffold", rate=0.8), {}),
    (feddyn, named("feddyn", alpha=0.3), {}),
    (ditto, named("ditto", lam=0.7), {}),
    (apfl, named("apfl", alpha=0.3), {}),
    (pfedme, named("pfedme", lam=4.0, eta=0.05, beta=0.6, inner_steps=3), {}),
    (pfedme, named("pfedme", lam=4.0, eta=0.05, beta=0.6, inner_steps=3, weights="samples"), {}),
    (fedala, named("fedala", eta=20.0, first_passes=2), {}),
    (fedamp, named("fedamp", lam=0.6, alpha=0.3, sigma=2.0), {}),
    (pfedgraph, named("pfedgraph", alpha=0.3, lam=0.2), {}),
    (fedper, named("fedper"), {}),
    (fedrep, named("fedrep"), {"local_steps": 5}),
    (fedsim, named("fedsim"), {}),
    (fedsim, named("fedsim", weights="equal", predict="own"), {}),
    (lg_fedavg, named("lg-fedavg", warmup=1), {}),
    (fedclassavg, named("fedclassavg", rho=0.5, temperature=0.7), {"lr": 0.05}),
    (ifca, named("ifca", clusters=3), {}),
    (ifca, named("ifca", clusters=2, share="body", weights="equal"), {}),
    (cobo, named("cobo", rho=0.4, gamma=0.0), {}),
    (dfedavgm, named("dfedavgm", momentum=0.6), {"lr": 0.05, "network": "full"}),
    (dfedavgm, named("dfedavgm", momentum=0.6), {"lr": 0.05, "network": "ring"}),
]


NAMES = [f"{method.name}-{number}" for number, (_, method, _) in enumerate(LOOPS)]


@pytest.mark.parametrize(("loop", "method", "options"), LOOPS, ids=NAMES)
def test_two_rounds_are_those_of_a_plain_loop(loop: Any, method: Any, options: dict[str, Any]) -> None:
    plan = {name: value for name, value in options.items() if name != "network"}
    setup = small_setup(method, small_federation(), **plan)
    if "network" in options:
        setup = with_settings(setup, network=options["network"])
    engine = LocalEngine(setup)
    play(engine, *ROUNDS)
    for id, params in loop(setup).items():
        assert_params(engine.model(id), params, 1e-4 if loop in (fedala, fedclassavg, cobo) else 1e-5)


# -- methods whose clients judge models on samples of their own -------------------------------------------------------

CHOICES = (1, 2, 3, 4, 5, 6)


def parts(setup: Setup, id: str) -> tuple[Samples, Samples]:
    """A client's samples without every fifth one, and every fifth one."""
    train: Any = setup.federation[id].train
    held = torch.tensor([row % 5 == 4 for row in range(len(train))])
    return Samples(train.x[~held], train.y[~held]), Samples(train.x[held], train.y[held])


def loss_on(samples: Any, params: Plain) -> float:
    return float(cross_entropy(params, samples.x, samples.y))


def fedfomo(setup: Setup) -> Models:
    method: Any = setup.method
    own, known = dict.fromkeys(shares_of(setup), initial(setup)), Models()
    affinity, counts = {id: dict.fromkeys(own, 0.0) for id in own}, set()
    for number in CHOICES:
        trained = {}
        for i in own:
            (kept, held), gains = parts(setup, i), {}
            draw, left = rng(setup.seed, "", number, f"download {i}"), sorted(known.keys() - {i})
            for _ in range(min(method.models, len(left))):
                explores, most = draw.random() < method.explore, max(affinity[i][n] for n in left)
                among = left if explores else [n for n in left if affinity[i][n] == most]
                n = among[int(draw.integers(len(among)))]
                left.remove(n)
                gains[n] = (loss_on(held, own[i]) - loss_on(held, known[n])) / math.sqrt(squared(known[n], own[i]))
            good = {n: gain for n, gain in gains.items() if gain > 0}
            start = dict(own[i])
            for n, gain in good.items():
                share = gain / sum(good.values())
                start = {name: start[name] + share * (known[n][name] - own[i][name]) for name in start}
                affinity[i][n] += share
            fits = 1 + len(gains)
            trained[i] = plain_training(setup, i, number, start, cross_entropy, fit=fits, samples=kept)
            counts.add(len(good))
        own = known = trained
    assert {0, 1, 2} <= counts
    return own


def dpfl(setup: Setup) -> Models:
    method: Any = setup.method
    sizes = setup.federation.sizes
    own = dict.fromkeys(shares_of(setup), initial(setup))
    groups, counts = {id: [id] for id in own}, set()

    def mean(models: Models, ids: list[str]) -> Plain:
        return combined(models, {j: sizes[j] / sum(sizes[k] for k in ids) for j in ids})

    for number in CHOICES:
        trained = {}
        for i in own:
            (kept, held), fits = parts(setup, i), 0
            if number == 2 or (number > 2 and number % method.every == 0):
                groups[i], fits, least = [i], 1, loss_on(held, own[i])
                while len(groups[i]) <= method.budget:
                    tried = {loss_on(held, mean(own, [*groups[i], j])): j for j in own if j not in groups[i]}
                    fits += len(tried)
                    if min(tried) >= least:
                        break
                    least = min(tried)
                    groups[i].append(tried[least])
                counts.add(len(groups[i]) - 1)
            start = mean(own, groups[i])
            trained[i] = plain_training(setup, i, number, start, cross_entropy, fit=fits, samples=kept)
        own = trained
    assert len(counts) > 1
    assert max(counts) == method.budget
    return own


def pfedsim(setup: Setup) -> Models:
    """A round of FedAvg, one in which all train its model, and then bodies mixed by the likeness of heads."""
    shares = shares_of(setup)
    own = {id: plain_training(setup, id, 1, initial(setup), cross_entropy) for id in shares}
    starts = dict.fromkeys(shares, combined(own, shares))
    for number in CHOICES[1:]:
        own = {id: plain_training(setup, id, number, starts[id], cross_entropy) for id in shares}
        heads = {id: own[id]["head.weight"] for id in shares}
        for i in shares:
            weight = {}
            for j in shares:
                rows = [float(cosine(one, other)) for one, other in zip(heads[i], heads[j], strict=True)]
                weight[j] = -math.log(1 - (0.9999 if i == j else min(max(sum(rows) / len(rows), 0.0), 0.9999)))
            whole = sum(weight.values())
            starts[i] = {**own[i], **combined(own, {j: weight[j] / whole for j in weight}, BODY)}
    return own


def accuracy_on(samples: Any, params: Plain) -> float:
    return float((logits(params, samples.x).argmax(1) == samples.y).double().mean())


def complete_linkage(items: list[int], distance: Callable[[int, int], float], most: float) -> list[list[int]]:
    """The two groups whose farthest members are nearest merge, as long as these are at most so far."""
    groups = [[item] for item in items]
    while len(groups) > 1:
        apart = {
            max(distance(i, j) for i in groups[a] for j in groups[b]): (a, b)
            for a, b in reversed(list(combinations(range(len(groups)), 2)))
        }
        if min(apart) > most:
            break
        a, b = apart[min(apart)]
        groups[a] += groups.pop(b)
    return groups


def feddrift(setup: Setup) -> Models:
    method: Any = setup.method
    ids, models = sorted(setup.federation), {0: initial(setup)}
    of, before = dict.fromkeys(ids, 0), dict.fromkeys(ids, 0.0)
    alone, merged = [], []
    for number in CHOICES:
        train: Any = {id: setup.federation[id].at(number).train for id in ids}
        if (number - 1) % method.every == 0:
            right = {id: {k: accuracy_on(train[id], params) for k, params in models.items()} for id in ids}
            of = {id: max(models, key=right[id].__getitem__) for id in ids}
            old = sorted(models)
            for id in ids:
                if right[id][of[id]] < before[id] - method.delta:
                    alone.append(id)
                    of[id] = len(alone)
                    models[of[id]] = initial(setup)
            members = {k: [id for id in ids if of[id] == k] for k in models}

            def accuracy(i: int, j: int, right: Any = right, members: Any = members, train: Any = train) -> float:
                """Of model i on the samples of cluster j."""
                hits = [right[id][i] * len(train[id]) for id in members[j]]
                return float(sum(hits) / sum(len(train[id]) for id in members[j]))

            def distance(i: int, j: int, a: Callable[[int, int], float] = accuracy) -> float:
                return max(a(i, i) - a(i, j), a(j, j) - a(j, i), 0)

            for group in complete_linkage([k for k in old if members[k]], distance, method.delta):
                counts = [len(members[k]) for k in group]
                models[group[0]] = {
                    name: torch.stack([models[k][name] for k in group for _ in members[k]]).mean(0)
                    for name in initial(setup)
                }
                of |= {id: group[0] for k in group for id in members[k]}
                merged += [counts] if len(group) > 1 else []
            models = {k: params for k, params in models.items() if k in {0, *of.values()}}
        trained = {id: plain_training(setup, id, number, models[of[id]], cross_entropy) for id in ids}
        for k in set(of.values()):
            shares = {id: len(train[id]) for id in ids if of[id] == k}
            models[k] = combined(trained, {id: n / sum(shares.values()) for id, n in shares.items()})
        before = {id: accuracy_on(train[id], models[of[id]]) for id in ids}
    assert alone
    assert any(len(set(counts)) > 1 for counts in merged)
    return {id: models[of[id]] for id in ids}


def drifting() -> Federation:
    """Two clients that stay as they are; four with reversed labels from round 3, one of them until round 5."""
    draw, clients = np.random.default_rng(19), []
    places = draw.normal(size=(4, 5)) * 2

    def part(count: int, reverse: bool) -> Samples:
        y = draw.integers(0, 4, count)
        return samples_of(places[y] + draw.normal(size=(count, 5)), 3 - y if reverse else y)

    for place in range(6):
        first, *later = (
            part(15 + 5 * place, reverse) for reverse in (False, True, False)[: 1 + (place > 1) + (place > 4)]
        )
        changes = tuple(Change(3 + 2 * k, samples, samples) for k, samples in enumerate(later))
        clients.append(Client(f"c{place}", first, first, changes=changes))
    return Federation(clients, Task(4, (5,)))


def alike() -> Federation:
    """Six clients with the same labels, whose models help each other."""
    whole = small_federation(clients=12)
    return whole.reorder([id for id, client in whole.items() if client.group == "g0"])


CHOOSING: list[tuple[Callable[[Setup], Models], ServerMethod, Federation, dict[str, Any]]] = [
    (fedfomo, named("fedfomo"), alike(), {}),
    (fedfomo, named("fedfomo", models=2, explore=0.4), alike(), {}),
    (dpfl, named("dpfl", budget=2), small_federation(), {}),
    (dpfl, named("dpfl", budget=1, every=3), small_federation(), {}),
    (pfedsim, named("pfedsim", warmup=1), small_federation(), {}),
    (feddrift, named("feddrift", delta=0.13, every=2), drifting(), {"lr": 0.3, "local_steps": 6}),
]


@pytest.mark.parametrize(
    ("loop", "method", "federation", "options"), CHOOSING, ids=[f"{of[1].name}-{k}" for k, of in enumerate(CHOOSING)]
)
def test_rounds_in_which_clients_choose_are_those_of_a_plain_loop(
    loop: Any, method: Any, federation: Federation, options: dict[str, Any]
) -> None:
    engine, _ = after(method, len(CHOICES), federation, **options)
    for id, params in loop(engine.setup).items():
        assert_params(engine.model(id), params, 1e-4 if loop is pfedsim else 1e-5)


# -- models with more than weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_two_rounds_of_fedbn_with_batch_normalisation_are_those_of_a_plain_loop(weights: Any) -> None:
    net = Net.build(
        lambda: (nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU()), nn.Linear(7, 4)), 3
    )
    setup = replace(
        small_setup(named("fedbn", weights=weights), local_steps=None, local_epochs=1, batch_size=7), net=net
    )
    engine = LocalEngine(setup)
    play(engine, *ROUNDS)

    shares = shares_of(setup, weights)
    norm = ("body.2.weight", "body.2.bias")
    own = {id: {**initial(setup), norm[0]: torch.ones(7), norm[1]: torch.zeros(7)} for id in shares}
    statistics = {id: (torch.zeros(7), torch.ones(7), 0) for id in shares}
    for number in ROUNDS:
        for id in shares:

            def loss(params: Plain, x: Tensor, y: Tensor, id: str = id) -> Tensor:
                hidden = x @ params["body.1.weight"].T + params["body.1.bias"]
                mean, centred = hidden.mean(0), hidden - hidden.mean(0)
                variance = (centred**2).mean(0)
                scaled = params[norm[0]] * centred / (variance + 1e-5).sqrt() + params[norm[1]]
                before, n = statistics[id], len(x)
                statistics[id] = (
                    0.9 * before[0] + 0.1 * mean.detach(), 0.9 * before[1] + 0.1 * variance.detach() * n / (n - 1),
                    before[2] + 1,
                )  # fmt: skip
                return entropy(torch.relu(scaled) @ params["head.weight"].T + params["head.bias"], y)

            own[id] = plain_training(setup, id, number, own[id], loss)
        common = combined(own, shares, (*BODY, *HEAD))
        own = {id: {**own[id], **common} for id in shares}
    assert len({steps for _, _, steps in statistics.values()}) > 1
    for id, (mean, variance, steps) in statistics.items():
        kept = {
            "body.2.running_mean": mean, "body.2.running_var": variance,
            "body.2.num_batches_tracked": torch.tensor(steps),
        }  # fmt: skip
        assert_params(engine.model(id), {**own[id], **kept})


def voted(stored: Any, labels: Any, z: Any, neighbours: int, classes: int = 4) -> Any:
    """p_knn [n, classes] of samples with these features, by scikit-learn."""
    width = stored.shape[1]
    oracle = KNeighborsClassifier(neighbours, weights=lambda distances: np.exp(-(distances**2) / width))
    oracle.fit(stored, labels)
    chances = np.zeros((len(z), classes))
    chances[:, oracle.classes_] = oracle.predict_proba(z)
    return chances


@pytest.mark.parametrize(
    ("method", "places"),
    [
        (named("knn-per", neighbours=3), None),
        (named("knn-per", neighbours=5, share=0.4, weights="equal"), None),
        (named("knn-per", neighbours=8, memory=9), 9),
    ],
    ids=["chosen-share", "given-share", "small-memory"],
)
def test_two_rounds_of_knn_per_are_those_of_a_plain_loop(method: Any, places: int | None) -> None:
    setup, chosen = small_setup(method, local_steps=6), set()
    engine = LocalEngine(setup)
    play(engine, *ROUNDS)

    _, common = averaged(setup, lambda common: cross_entropy, method.weights)
    for id, client in setup.federation.items():
        train: Any = client.train
        rows = np.linspace(0, len(train) - 1, places).round().astype(int) if places else np.arange(len(train))
        labels = train.y[rows].numpy()
        stored, z = (features(common, x).double().numpy() for x in (train.x[rows], client.test.inputs(slice(None))))
        own, model = (
            logits(common, x).double().softmax(1).numpy() for x in (train.x[rows], client.test.inputs(slice(None)))
        )
        share = method.share
        if share is None:
            others = [np.arange(len(rows)) != k for k in range(len(rows))]
            votes = [
                voted(stored[but], labels[but], stored[[k]], method.neighbours)[0, labels[k]]
                for k, but in enumerate(others)
            ]
            losses = {
                step / 10: -sum(
                    math.log(step / 10 * vote + (1 - step / 10) * own[k, labels[k]]) for k, vote in enumerate(votes)
                )
                for step in range(10)
            }  # fmt: skip
            share = min(losses, key=lambda share: losses[share])
        chosen.add(share)
        expected = share * voted(stored, labels, z, method.neighbours) + (1 - share) * model
        module = engine.setup.net.scratch().eval()
        module.load_state_dict(dict(engine.model(id)))
        with torch.no_grad():
            found = module(client.test.inputs(slice(None))).exp()
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert max(chosen) > 0
    assert len(chosen) > (method.share is None)
