"""MAPL: the local objective, how prototypes are mixed, the limits that it must have, a peer's row of weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedkin.errors import ConfigError
from fedkin.federation import Federation, Task
from fedkin.learning.augment import Augment
from fedkin.learning.losses import Batch
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.methods.mapl import TwoViews
from methods.mapl_toys import MAPL, PLUS, PROTOTYPES, ran, same_bits, setup_of, two_groups
from support import small_federation

# -- the local objective ---------------------------------------------------------------------------------------


def objective(**weights: Any) -> TwoViews:
    plain: dict[str, Any] = {
        "ce": 0.0,
        "cont": 0.0,
        "proto": 0.0,
        "uni": 0.0,
        "temperature": 0.5,
        "spread": 0.5,
        "form": "paper",
    }
    return TwoViews(augment=Augment(on=False), **(plain | weights))


def extended(dtype: torch.dtype = torch.float64) -> tuple[Net, Batch]:
    net = Net.build(lambda: Mlp(hidden=(4,)).build(Task(3, (5,))), 1, dtype)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, generator=draw, dtype=dtype)
    return MAPL(hidden=7).equip(net, Task(3, (5,)), 2), Batch(x, torch.tensor([0, 1, 2, 0, 1, 1]), torch.ones(6), True)


def test_equip_adds_projection_and_prototypes_and_keeps_body_and_head() -> None:
    net = Net.build(lambda: Mlp(hidden=(4,)).build(Task(3, (5,))), 1)
    made = MAPL(hidden=7).equip(net, Task(3, (5,)), 2)
    for name, tensor in net.initial.items():
        assert torch.equal(made.initial[name], tensor)
    assert made.initial[PROTOTYPES].shape == (3, 4)
    assert made.initial["projection.into.weight"].shape == (7, 4)
    assert MAPL().equip(net, Task(3, (5,)), 2).initial["projection.into.weight"].shape == (32, 4)
    again = MAPL(hidden=7).equip(net, Task(3, (5,)), 2)
    assert torch.equal(again.initial[PROTOTYPES], made.initial[PROTOTYPES])


def test_the_objective_is_the_sum_of_its_terms_over_two_views() -> None:
    from fedkin.learning.contrastive import prototype_loss, supervised_contrastive, uniformity_loss

    net, batch = extended()
    model: Any = net.scratch().train()
    whole = objective(ce=0.5, cont=2.0, proto=3.0, uni=0.7)(model, batch, {}, {})
    x, y, mask = (torch.cat([part, part]) for part in batch[:3])
    z = model.features(x)
    p, xi = model.projection(z), model.prototypes.weight
    terms = [
        0.5 * F.cross_entropy(model.head(z), y), 2.0 * supervised_contrastive(p, y, mask, 0.5),
        3.0 * prototype_loss(p, y, mask, xi, 0.5), 0.7 * uniformity_loss(xi),
    ]  # fmt: skip
    torch.testing.assert_close(whole, sum(terms, torch.zeros((), dtype=whole.dtype)))
    plain = objective(ce=1.0)(model, batch, {}, {})
    torch.testing.assert_close(plain, F.cross_entropy(model(batch.x), batch.y))


def test_padding_changes_no_term() -> None:
    net, batch = extended()
    model = net.scratch().train()
    loss = objective(ce=1.0, cont=1.0, proto=1.0, uni=1.0)
    padded = Batch(
        torch.cat([batch.x, torch.full((3, 5), 9.0, dtype=batch.x.dtype)]),
        torch.cat([batch.y, torch.tensor([0, 1, 2])]), torch.tensor([1.0] * 6 + [0.0] * 3),
    )  # fmt: skip
    torch.testing.assert_close(loss(model, padded, {}, {}), loss(model, batch, {}, {}))


# -- limits -------------------------------------------------------------------------------------------------------


def test_before_the_warmup_ends_weights_are_equal_and_so_are_they_without_learning_them() -> None:
    federation = two_groups(6)
    never = ran(setup_of(MAPL(warmup=1000), federation), 3)
    assert same_bits(never, ran(setup_of(MAPL(warmup=0, graph={"on": False}), federation), 3))
    for row in never.rows.values():
        assert row == dict.fromkeys(sorted(federation), pytest.approx(1 / 6))
    # All that own a class hold one prototype of it after the exchange.
    labels = {id: set(client.train.labels().tolist()) for id, client in federation.items()}
    held = {id: never.model(id)[PROTOTYPES] for id in federation}
    for k in range(6):
        rows = [held[id][k] for id in federation if k in labels[id]]
        assert all(torch.equal(rows[0], row) for row in rows)
    # Before the warm-up ends no head travels: prototypes only.
    assert {message.floats for message in never.traffic} == {6 * 12}


def test_a_warmup_below_one_is_a_fraction_of_the_rounds_and_the_default_learns_weights_in_every_run() -> None:
    federation = two_groups(6)
    part = ran(setup_of(MAPL(warmup=0.5), federation, rounds=4), 4)
    assert same_bits(part, ran(setup_of(MAPL(warmup=2), federation, rounds=4), 4))
    assert not same_bits(part, ran(setup_of(MAPL(warmup=3), federation, rounds=4), 4))
    default = ran(setup_of(MAPL(), federation, rounds=4), 4)
    assert same_bits(default, ran(setup_of(MAPL(warmup=1), federation, rounds=4), 4))
    assert len({weight for row in default.rows.values() for weight in row.values()}) > 1


@pytest.mark.parametrize("method", [MAPL(warmup=0), PLUS(warmup=0)])
def test_without_neighbours_it_is_local_training(method: Any) -> None:
    federation = two_groups(4)
    engine = ran(setup_of(method, federation, network="none"), 3)
    assert engine.traffic == []
    for id, client in federation.items():
        only = ran(setup_of(method, Federation([client], federation.task, "one")), 3)
        for name, tensor in only.model(id).items():
            assert torch.equal(engine.model(id)[name], tensor)
        assert engine.rows[id] == {id: 1.0}


def test_relabelling_relabels() -> None:
    """With whole batches and no views nothing is drawn for a client, and names are all that differs."""
    federation = two_groups(6)
    ids = sorted(federation)
    names = {id: f"z-{len(ids) - k}" for k, id in enumerate(ids)}
    plan: dict[str, Any] = {"batch_size": "all", "local_steps": 3}
    method = MAPL(warmup=2, augment={"on": False}, graph={"probe": 0.0})
    one = ran(setup_of(method, federation, **plan), 4)
    other = ran(setup_of(method, federation.relabel(names), **plan), 4)
    for id in ids:
        for name, tensor in one.model(id).items():
            torch.testing.assert_close(other.model(names[id])[name], tensor, rtol=1e-4, atol=1e-5)
        renamed = {names[other_id]: w for other_id, w in one.rows[id].items()}
        assert renamed == pytest.approx(other.rows[names[id]], abs=1e-6)


# -- settings -----------------------------------------------------------------------------------------------------


def test_tasks_without_classes_are_refused() -> None:
    from types import SimpleNamespace

    federation: Any = SimpleNamespace(task=SimpleNamespace(kind="regression"), name="prices")
    with pytest.raises(ConfigError, match=r"'mapl' contrasts classes.*prices is a task of regression"):
        MAPL().check(federation)
    MAPL().check(small_federation())
