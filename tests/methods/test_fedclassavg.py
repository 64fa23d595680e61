"""FedClassAvg's loss against its literal twin, a round against a plain loop, and what travels."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.engines import LocalEngine
from fedkin.federation import Task
from fedkin.learning import Batch, BodyHead
from fedkin.learning.augment import Augment
from fedkin.learning.models import SmallPlain
from fedkin.learning.net import Net
from fedkin.methods.fedclassavg import ContrastedViews, FedClassAvg
from methods.plain_loops import (
    HEAD,
)
from support import small_federation, small_setup


def test_two_views_differ_and_are_drawn_from_the_clients_key() -> None:
    """An image client trains on crops: another augmentation gives another model, the same key the same."""
    task, draw = Task(4, (1, 12, 12)), torch.Generator().manual_seed(0)
    net = Net.build(lambda: SmallPlain(width=7).build(task), 2)
    model = net.scratch()
    batch = Batch(torch.rand(6, 1, 12, 12, generator=draw), torch.tensor([0, 1, 2, 3, 0, 1]), torch.ones(6))
    extras = {"head": {name: net.initial[name] for name in HEAD}}

    def value(augment: Augment, seed: int) -> float:
        torch.manual_seed(seed)
        return float(ContrastedViews(0.1, 0.1, augment)(model, batch, extras, {}).detach())

    assert value(Augment(), 1) == value(Augment(), 1)
    assert value(Augment(), 1) != value(Augment(), 2)
    assert value(Augment(on=False), 1) == value(Augment(on=False), 2)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_padding_changes_nothing(seed: int, padding: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    model = BodyHead(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU()), torch.nn.Linear(5, 4)).double()
    x = torch.randn(6 + padding, 3, generator=draw, dtype=torch.float64)
    y = torch.randint(4, (6 + padding,), generator=draw)
    mask = torch.cat([torch.ones(6), torch.zeros(padding)]).double()
    loss = ContrastedViews(0.3, 0.1, Augment(on=False))
    extras = {"head": {name: model.params[name].detach() + 1 for name in HEAD}}
    padded = loss(model, Batch(x, y, mask), extras, {})
    whole = loss(model, Batch(x[:6], y[:6], mask[:6]), extras, {})
    torch.testing.assert_close(padded, whole)


def test_clients_predict_with_the_heads_they_trained_or_the_shared_one() -> None:
    own, shared = (LocalEngine(small_setup(FedClassAvg(predict=predict))) for predict in ("own", "shared"))
    for engine in (own, shared):
        engine.round(1)
    ids = sorted(small_federation())
    assert not torch.equal(own.model(ids[0])["head.weight"], own.model(ids[1])["head.weight"])
    assert torch.equal(shared.model(ids[0])["head.weight"], shared.model(ids[1])["head.weight"])
    assert torch.equal(own.model(ids[0])["body.1.weight"], shared.model(ids[0])["body.1.weight"])
