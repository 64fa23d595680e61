"""FedProx against a plain loop, and its limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedkin.keys import rng
from fedkin.methods.fedprox import FedProx
from support import Watched, small_federation, small_setup


def moved(mu: float, **training: Any) -> float:
    """How far the clients' models of a round lie from the global one, on average."""
    engine = Watched(small_setup(FedProx(mu=mu), lr=0.05, **training))
    engine.round(1)
    sent = [reply.params for reply in engine.replies("train").values()]
    initial = engine.initial
    apart = [sum(float((t - initial[name]).square().sum()) for name, t in params.items()) for params in sent]
    return sum(math.sqrt(square) for square in apart) / len(sent)


def test_a_larger_mu_keeps_clients_nearer() -> None:
    distances = [moved(mu, local_steps=20) for mu in (0.0, 1.0, 10.0)]
    assert distances[0] > 1.1 * distances[1] > 1.1**2 * distances[2] > 0


@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_a_round_against_a_plain_loop(weights: str) -> None:
    mu, federation = 0.7, small_federation()
    setup = small_setup(FedProx(mu=mu, weights=weights), federation, dtype=torch.float64)
    engine = Watched(setup)
    engine.round(1)
    total = {name: torch.zeros_like(tensor) for name, tensor in setup.net.initial.items()}
    share = 0.0
    for id, client in federation.items():
        w = {name: tensor.clone() for name, tensor in setup.net.initial.items()}
        draw = rng(setup.seed, id, 1, "train.fit0")
        draw.integers(2**63)
        for rows in setup.training.batches(client.size, draw):
            leaf = {name: tensor.clone().requires_grad_() for name, tensor in w.items()}
            z = F.relu(F.linear(client.train.x[rows].double(), leaf["body.1.weight"], leaf["body.1.bias"]))
            out = F.linear(z, leaf["head.weight"], leaf["head.bias"])
            torch.autograd.backward(F.cross_entropy(out, client.train.y[rows]))
            for name, tensor in leaf.items():
                assert tensor.grad is not None
                pull = mu * (w[name] - setup.net.initial[name])
                w[name] = w[name] - setup.training.lr * (tensor.grad + pull)
        n = client.size if weights == "samples" else 1
        share += n
        total = {name: total[name] + n * w[name] for name in total}
    for name, tensor in total.items():
        torch.testing.assert_close(engine.server.state["params"][name], tensor / share, rtol=1e-10, atol=1e-12)
