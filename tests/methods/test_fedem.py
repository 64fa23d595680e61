"""FedEM: one component is FedAvg, rounds of two are those of a plain loop, and a planted mixture is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fedkin
from fedkin.engines import LocalEngine
from fedkin.federation import Client, Federation, Task
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedem import FedEM
from methods.plain_loops import logits
from support import after, samples_of, small_setup

Parts = list[dict[str, Tensor]]


def parts_of(params: Any, components: int) -> Parts:
    """The parameters of each component under the names of the net's own."""
    return [
        {f"{side}.{name.removeprefix(f'{side}.parts.{m}.')}": tensor for side in ("body", "head")
         for name, tensor in params.items() if name.startswith(f"{side}.parts.{m}.")}
        for m in range(components)
    ]  # fmt: skip


def test_one_component_is_fedavg() -> None:
    one, other = (after(method, 3, batch_size="all")[0] for method in (FedEM(components=1), FedAvg()))
    for id in one.setup.federation:
        (part,) = parts_of(one.model(id), 1)
        torch.testing.assert_close(part, dict(other.model(id)), rtol=1e-5, atol=1e-6)


def test_two_rounds_of_two_components_are_those_of_a_plain_loop() -> None:
    engine = LocalEngine(small_setup(FedEM(components=2), batch_size="all", local_steps=3))
    setup = engine.setup
    common = parts_of(setup.net.initial, 2)
    assert not torch.equal(common[0]["head.weight"], common[1]["head.weight"])
    proportions = {id: torch.full((2,), 0.5) for id in setup.federation}
    total = sum(client.size for client in setup.federation.values())
    for number in (1, 2):
        engine.round(number)
        mean = [{name: torch.zeros_like(tensor) for name, tensor in part.items()} for part in common]
        for id, client in setup.federation.items():
            x, y = client.train.inputs(slice(None)), client.train.labels()
            loss = torch.stack([F.cross_entropy(logits(part, x), y, reduction="none") for part in common], 1)
            q = proportions[id] * torch.exp(-loss)
            q = q / q.sum(1, keepdim=True)
            proportions[id] = q.mean(0)
            for m, part in enumerate(common):
                now = {name: tensor.clone() for name, tensor in part.items()}
                for _ in range(3):
                    leaves = {name: tensor.clone().requires_grad_() for name, tensor in now.items()}
                    value = (q[:, m] * F.cross_entropy(logits(leaves, x), y, reduction="none")).mean()
                    gradient = torch.autograd.grad(value, list(leaves.values()))
                    now = {n: t.detach() - 0.1 * g for (n, t), g in zip(leaves.items(), gradient, strict=True)}
                for name, tensor in now.items():
                    mean[m][name] += client.size / total * tensor
        common = mean
    for id in setup.federation:
        model = engine.model(id)
        torch.testing.assert_close(model["head.log_proportions"].exp(), proportions[id], rtol=1e-4, atol=1e-5)
        for part, expected in zip(parts_of(model, 2), common, strict=True):
            for name, tensor in expected.items():
                torch.testing.assert_close(part[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_planted_mixture_is_found_also_at_a_client_that_never_took_part() -> None:
    rng = np.random.default_rng(0)
    models = rng.normal(size=(2, 6)) * 3

    def client(name: str, share: float, seen: bool = True) -> Client:
        x = rng.uniform(-1, 1, size=(200, 6))
        source = (rng.random(200) > share).astype(int)
        y = ((x * models[source]).sum(1) + 0.2 * rng.normal(size=200) > 0).astype(np.int64)
        samples = samples_of(x, y)
        return Client(name, samples, samples, seen=seen)

    shares = {"a": 0.9, "b": 0.9, "c": 0.9, "d": 0.1, "e": 0.1, "f": 0.5}
    fed = Federation([*(client(id, share) for id, share in shares.items()), client("new", 0.9, False)], Task(2, (6,)))
    result = fedkin.run("fedem", fed, rounds=40, model="linear", training={"lr": 3.0, "local_steps": 5}, components=2)
    found = {id: float(params["head.log_proportions"].exp()[0]) for id, params in result.models.items()}
    if found["a"] < found["d"]:
        found = {id: 1 - share for id, share in found.items()}
    for id, share in {**shares, "new": 0.9}.items():
        assert abs(found[id] - share) < 0.2, (id, found)
