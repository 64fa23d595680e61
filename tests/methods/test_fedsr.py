"""FedSR: its loss against a slow twin, what stays local, and the net that it trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from fedkin.learning import Batch, Net
from fedkin.methods.fedsr import ClassReference, FedSr, GaussianBody, SimpleRepresentation
from support import Watched, small_federation, small_setup, stored


def equipped(dtype: torch.dtype = torch.float64) -> Net:
    setup = small_setup(FedSr(), dtype=dtype)
    return setup.equipped().net


@pytest.mark.parametrize("norm", ["squared", "plain"])
def test_the_loss_against_a_slow_twin(norm: str) -> None:
    net = equipped()
    model: Any = net.scratch()
    federation = small_federation()
    client = next(iter(federation.values()))
    with torch.no_grad():
        for tensor in model.reference.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    x, y = stored(client.train).double()[:7], client.train.y[:7]
    torch.manual_seed(5)
    value = SimpleRepresentation(0.3, 0.2, norm)(model, Batch(x, y, torch.ones(7)), {}, {})
    torch.manual_seed(5)
    noise = torch.randn(7, 7, dtype=torch.float64)
    total = 0.0
    with torch.no_grad():
        h = F.relu(F.linear(x, model.body.get_submodule("1").weight, model.body.get_submodule("1").bias))
        out = F.linear(h, model.body.gaussian.weight, model.body.gaussian.bias)
        for i in range(7):
            mean, sd = out[i, :7], F.softplus(out[i, 7:]) + 1e-6
            z = mean + sd * noise[i]
            size = (z @ z) if norm == "squared" else (z @ z).sqrt()
            reference = Normal(model.reference.mean[y[i]], F.softplus(model.reference.raw[y[i]]) + 1e-6)
            total += float(F.cross_entropy(model.head(z)[None], y[i : i + 1]) + 0.3 * size
                           + 0.2 * kl_divergence(Normal(mean, sd), reference).sum())  # fmt: skip
    assert float(value.detach()) == pytest.approx(total / 7, rel=1e-9)


def test_the_net_keeps_body_and_head_and_predicts_from_the_mean() -> None:
    setup = small_setup(FedSr(), dtype=torch.float64)
    net = setup.equipped().net
    for name, tensor in setup.net.initial.items():
        assert torch.equal(net.initial[name], tensor)
    more = {"body.gaussian.weight", "body.gaussian.bias", "reference.mean", "reference.raw"}
    assert set(net.initial) - set(setup.net.initial) == more
    model: Any = net.scratch().eval()
    x = torch.randn(3, 5, dtype=torch.float64)
    mean, sd = model.body.moments(x)
    assert (sd > 0).all()
    assert mean.shape == sd.shape == (3, 7)
    assert torch.equal(model(x), model.head(mean))
    assert torch.equal(model.features(x), mean)
    assert torch.equal(setup.equipped().net.initial["body.gaussian.weight"], net.initial["body.gaussian.weight"])
    assert setup.equipped().equipped().net.initial.keys() == net.initial.keys()


def test_a_body_that_is_no_sequence_is_wrapped_whole() -> None:
    body: Any = GaussianBody(nn.Linear(5, 6), 6)
    x = torch.randn(2, 5)
    want = body.gaussian(body.net(x))
    torch.testing.assert_close(body(x), want[:, :6])
    assert "net.weight" in dict(body.named_parameters())


def test_class_references_start_as_the_codes_and_never_travel() -> None:
    mean, sd = ClassReference(3, 2)(torch.tensor([0, 2]))
    assert not mean.any()
    torch.testing.assert_close(sd, torch.full((2, 2), F.softplus(torch.ones(1)).item() + 1e-6))
    engine = Watched(small_setup(FedSr(cmi=0.1))).rounds(1)
    seen = [message for _, asked, replies in engine.asks for message in [*asked.values(), *replies.values()]]
    assert len(seen) == 12
    for message in seen:
        assert not [name for name in message["params"] if name.startswith("reference")]
        assert "body.gaussian.weight" in message["params"]
    ids = sorted(engine.federation)
    references = [engine.model(id)["reference.mean"] for id in ids]
    assert all(not torch.equal(references[0], reference) for reference in references[1:])
    models = [engine.model(id) for id in ids]
    assert all(torch.equal(models[0][n], m[n]) for m in models for n in m if not n.startswith("reference"))


def test_references_of_clients_not_sampled_stay() -> None:
    engine = Watched(small_setup(FedSr(cmi=0.1), clients_per_round=2)).rounds(1)
    before = {id: engine.model(id)["reference.mean"] for id in engine.federation}
    sampled = engine.round(2).sampled
    for id in engine.federation:
        assert torch.equal(engine.model(id)["reference.mean"], before[id]) == (id not in sampled)
