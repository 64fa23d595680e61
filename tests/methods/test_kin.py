"""Kin: what signatures find, what each verdict does, and that no client is harmed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedkin
from fedkin.data import federate
from fedkin.engines import LocalEngine
from fedkin.engines.transport import Envelope, Transport
from fedkin.errors import ConfigError
from fedkin.federation import Change, Client, Federation, Samples, Task
from fedkin.flow import Message
from fedkin.graph import Plan, Spread, sign
from fedkin.learning.net import Net
from fedkin.methods import METHODS
from fedkin.methods.blocks.personal import first_layer, has_place, log_shares, own_view, shared_view
from fedkin.methods.blocks.signatures import read_signature
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.flt import Flt
from fedkin.methods.kin import Kin, level
from fedkin.settings import parse
from fedkin.views import ClientView
from support import small_setup

CENTRES = np.random.default_rng(7).normal(size=(4, 5)) * 2
Draw = Callable[[np.random.Generator, int], tuple[Any, Any]]


def common_draw(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    y = rng.integers(0, 4, n)
    return CENTRES[y] + rng.normal(size=(n, 5)), y


def far(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    x, y = common_draw(rng, n)
    return x + 3, y


def swapped(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    x, y = common_draw(rng, n)
    return x, 3 - y


def skewed(client: int) -> Draw:
    """Class shares of its own, classes that look as everywhere."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
        shares = np.random.default_rng(100 + client).dirichlet(np.full(4, 1.0))
        y = rng.choice(4, n, p=shares)
        return CENTRES[y] + rng.normal(size=(n, 5)), y

    return draw


def shifted(client: int) -> Draw:
    """A shift of all inputs of its own."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
        x, y = common_draw(rng, n)
        return x + np.random.default_rng(200 + client).normal(size=5), y

    return draw


def made(draw: Draw, n: int, seed: int) -> Samples:
    x, y = draw(np.random.default_rng(seed), n)
    return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))


def client(name: str, draw: Draw, n: int, seed: int, **more: Any) -> Client:
    return Client(name, made(draw, n, 2 * seed), made(draw, 30, 2 * seed + 1), **more)


def federation(draws: list[Draw], n: int = 60, seed: int = 0) -> Federation:
    clients = [client(f"c{k}", draw, n + 3 * k, 1000 * seed + k) for k, draw in enumerate(draws)]
    return Federation(clients, Task(4, (5,)), "kin")


def engine_of(fed: Federation, method: Any = None, **more: Any) -> LocalEngine:
    return LocalEngine(small_setup(Kin(trials=0) if method is None else method, fed, **more))


def state(engine: LocalEngine) -> Any:
    return engine.server.state


def members(engine: LocalEngine) -> set[frozenset[str]]:
    group = state(engine)["group"]
    return {frozenset(id for id in group if group[id] == number) for number in group.values()}


def assert_equal(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


class Changing(Transport):
    """Hands messages on changed: `change(envelope)` gives another message, or None to lose it."""

    def __init__(self, change: Callable[[Envelope], Message | None]) -> None:
        self.change = change

    def carry(self, envelope: Envelope) -> Envelope | None:
        message = self.change(envelope)
        return None if message is None else envelope._replace(message=message)


# -- what travels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fed", [federation([common_draw] * 5), federate("digits", "iid", clients=6, seed=0)])
def test_one_signature_of_at_most_4_kb_once(fed: Federation) -> None:
    engine = engine_of(fed)
    first, second = engine.round(1), engine.round(2)
    up = [message for message in first.traffic if message.phase == "sign_moments" and message.receiver == "server"]
    assert sorted(message.sender for message in up) == sorted(fed)
    assert max(message.bytes for message in up) <= 4096
    assert {message.phase for message in second.traffic} == {"train"}


# -- what is found --------------------------------------------------------------------------------------------


def test_clients_of_one_distribution_are_fedavg() -> None:
    fed = federation([common_draw] * 6)
    kin, plain = engine_of(fed, per_round=4), engine_of(fed, FedAvg(), per_round=4)
    for number in (1, 2, 3):
        kin.round(number)
        plain.round(number)
    assert state(kin)["verdict"] == {"0": "same"}
    for id in fed:
        assert_equal(dict(kin.model(id)), dict(plain.model(id)))


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_rotations_are_found_with_nothing_told(seed: int) -> None:
    fed = federate("digits", "rotated-masked", clients=24, mask_rate=0.0, seed=seed)
    result = fedkin.run("kin", fed, rounds=1, seed=seed, model="linear")
    assert result.summary["groups"]["ari"] == 1


def test_groups_are_averaged_apart() -> None:
    """Each group's model is FedAvg's of its members alone."""
    fed = federation([common_draw, swapped] * 4)
    engine = engine_of(fed)
    engine.round(1)
    assert members(engine) == {frozenset(f"c{k}" for k in range(start, 8, 2)) for start in (0, 1)}
    for start in (0, 1):
        part = fed.reorder([f"c{k}" for k in range(start, 8, 2)])
        plain = engine_of(part, FedAvg())
        plain.round(1)
        assert_equal(dict(engine.model(f"c{start}")), dict(plain.model(f"c{start}")))


def test_a_client_like_nobody_else_trains_alone() -> None:
    fed = federation([common_draw] * 6 + [far])
    kin, local = engine_of(fed), engine_of(fed, METHODS["local"]())
    for number in (1, 2):
        outcome = kin.round(number)
        local.round(number)
    assert state(kin)["verdict"] == {"0": "same", "1": "alone"}
    assert state(kin)["group"]["c6"] == "1"
    assert_equal(dict(kin.model("c6")), dict(local.model("c6")))
    assert "1" not in state(kin)["models"]
    assert all(m.floats == 0 for m in outcome.traffic if "c6" in (m.sender, m.receiver))


def test_records_say_which_tests_made_the_groups() -> None:
    engine = engine_of(federation([common_draw, swapped] * 4))
    graph = engine.round(1).graph
    assert graph is not None
    assert list(graph.values["verdict"]) == ["same"] * 8
    evidence = graph.evidence
    assert evidence is not None
    assert evidence.alpha == level(0.001, 1)
    root, *parts = evidence.nodes
    assert set(root.rejected) >= {"concept", "xy"}
    assert root.p["concept"] < 1e-6
    assert [(node.parent, node.rejected, node.verdict) for node in parts] == [(0, (), "same")] * 2
    assert evidence.sizes == (8, 4, 4)
    assert {frozenset(id for id in graph.ids if evidence.leaf[id] == number) for number in (1, 2)} == members(engine)
    assert engine.server.info["groups"] == 2
    smallest = engine.server.info["smallest_p"]
    assert smallest is not None
    assert smallest < 1e-6
    assert engine.round(2).graph is None


def test_small_differences_are_merged_again() -> None:
    def near(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
        x, y = common_draw(rng, n)
        return x + 0.3, y

    fed = federation([common_draw, near] * 4, n=600)
    fine, coarse = engine_of(fed, Kin(least=0.0)), engine_of(fed, Kin(least=0.03))
    fine.round(1)
    coarse.round(1)
    assert len(members(fine)) == 2
    assert len(members(coarse)) == 1


# -- shares ---------------------------------------------------------------------------------------------------


def test_shares_are_the_identity_where_classes_are_as_frequent() -> None:
    fed = federation([common_draw] * 2)
    even = replace(fed["c0"], train=replace(fed["c0"].train, y=torch.arange(60) % 4))
    view = view_of(even, fed)
    assert_equal(dict(own_view(view, view.initial, "shares")), dict(view.initial))
    uneven = view_of(fed["c1"], fed)
    there = own_view(uneven, uneven.initial, "shares")
    assert not torch.equal(there["head.bias"], uneven.initial["head.bias"])
    torch.testing.assert_close(dict(shared_view(uneven, there, "shares")), dict(uneven.initial))


def test_shares_are_a_logit_adjusted_loss() -> None:
    """One round against a plain loop: cross-entropy of logits plus log shares, the mean over clients, no bias moved."""
    fed = federation([skewed(k) for k in range(14)])
    engine = engine_of(fed, batch_size="all", local_steps=3)
    engine.round(1)
    assert state(engine)["verdict"] == {"0": "shares"}
    total = sum(fed.sizes.values())
    mean: dict[str, Tensor] = {}
    for id in sorted(fed):
        x, y = fed[id].train.x, fed[id].train.y
        counts = torch.bincount(y, minlength=4)
        adjust = ((counts + 0.5) / (len(y) + 2)).log()
        module = engine.setup.net.scratch()
        for _ in range(3):
            module.zero_grad()
            F.cross_entropy(module(x) + adjust, y).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for p in module.parameters():
                    assert p.grad is not None
                    p.sub_(0.1 * p.grad)
        for name, p in module.named_parameters():
            mean[name] = mean.get(name, torch.zeros(())) + p.detach() * len(y) / total
        if id == "c3":
            mine = adjust
    torch.testing.assert_close(dict(state(engine)["models"]["0"]), mean, rtol=1e-4, atol=1e-6)
    gap = engine.model("c3")["head.bias"] - state(engine)["models"]["0"]["head.bias"]
    torch.testing.assert_close(gap, mine - mine.mean(), rtol=1e-4, atol=1e-6)


def test_shares_pay() -> None:
    fed = federation([skewed(k) for k in range(14)])
    plan = {"lr": 0.1, "local_steps": 5}
    ours, plain = (fedkin.run(m, fed, rounds=30, training=plan, model="mlp") for m in (Kin(trials=0), "fedavg"))
    assert ours.accuracy > plain.accuracy + 0.02


def test_nobody_is_alone_for_its_class_shares() -> None:
    """The tests cut these clients apart, three of them from all others; but their classes look as everybody's."""
    engine = engine_of(federation([skewed(k) for k in range(14)]))
    engine.round(1)
    leaves = [node["verdict"] for node in state(engine)["tests"]["tree"].values()]
    assert leaves.count("alone") == 3
    assert state(engine)["verdict"] == {"0": "shares"}
    assert not {"offset", "concept"} & set(state(engine)["tests"]["tree"]["0"]["rejected"])


def test_who_is_alone_for_another_reason_stays_alone() -> None:
    engine = engine_of(federation([skewed(k) for k in range(14)] + [far]))
    engine.round(1)
    assert "offset" in state(engine)["tests"]["tree"]["0"]["rejected"]
    assert state(engine)["verdict"][state(engine)["group"]["c14"]] == "alone"


def test_a_head_without_bias_has_one_model_for_all() -> None:
    fed = federation([skewed(k) for k in range(14)])
    body = nn.Sequential(nn.Flatten(), nn.Linear(5, 6), nn.ReLU())
    nets = (body, nn.Linear(6, 4, bias=False))
    ours, plain = (fedkin.run(m, fed, rounds=2, model=nets) for m in (Kin(trials=0), "fedavg"))
    assert ours.scores == plain.scores
    assert ours.rounds[-1]["figures"]["unserved"] == 1


# -- offsets --------------------------------------------------------------------------------------------------


def view_of(one: Client, fed: Federation, net: Net | None = None) -> ClientView[Any]:
    setup = small_setup(Kin(), fed)
    return ClientView(0, 1, net or setup.net, fed.task, setup.training, {}, one.id, one.train)


def test_shifts_of_their_own_are_offsets() -> None:
    engine = engine_of(federation([shifted(k) for k in range(16)], n=100))
    engine.round(1)
    assert set(state(engine)["verdict"].values()) == {"offsets"}


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_offsets_are_inputs_less_the_clients_mean(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(20, 2, 4, 4)).astype(np.float32) + 3)
    # A convolution takes off one number of each channel.
    m = x.mean(0) if kind == "linear" else x.mean((0, 2, 3))[:, None, None]
    fed = Federation(
        [Client("a", Samples(x, torch.arange(20) % 3), Samples(x, torch.arange(20) % 3))], Task(3, (2, 4, 4))
    )
    layers = [nn.Flatten(), nn.Linear(32, 6)] if kind == "linear" else [nn.Conv2d(2, 5, 3), nn.Flatten()]
    net = Net(nn.Sequential(*layers, nn.ReLU()), nn.Linear(6 if kind == "linear" else 20, 3))
    view = view_of(fed["a"], fed, net)
    there = own_view(view, net.initial, "offsets")

    def outputs(params: Any, x: Tensor) -> Tensor:
        module = net.scratch()
        module.load_state_dict(dict(params))
        return module(x)  # type: ignore[no-any-return]

    torch.testing.assert_close(outputs(there, x), outputs(net.initial, x - m), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(shared_view(view, there, "offsets")), dict(net.initial), rtol=1e-5, atol=1e-5)


def test_a_first_layer_without_bias_has_no_place_for_offsets() -> None:
    task = Task(3, (5,))
    net = Net(nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU()), nn.Linear(6, 3))
    assert first_layer(net, task) is None
    assert not has_place(net, task, "offsets")
    assert has_place(net, task, "shares")
    assert not has_place(net, Task.regression(3, (5,)), "shares")


# -- do no harm -----------------------------------------------------------------------------------------------


def test_who_is_harmed_keeps_its_own_model() -> None:
    """Clients of another relation that are merged by force; with nothing held out they would have the group's."""
    fed = federation([common_draw] * 6 + [swapped] * 2, n=120)
    forced = {"least": 1e9, "margin_se": 1.0}
    safe, bare, local = (
        fedkin.run(m, fed, rounds=12, training={"lr": 0.2}, model="linear")
        for m in (Kin(trials=5, **forced), Kin(trials=0, **forced), "local")
    )
    assert safe.rounds[-1]["figures"]["groups"] == 1
    assert safe.rounds[-1]["figures"]["keep_own"] == 2
    for id in ("c6", "c7"):
        assert safe.scores[id].right >= local.scores[id].right - 1
        assert safe.scores[id].right > bare.scores[id].right + 5


def test_trials_end_and_cost_at_most_twice() -> None:
    fed = federation([common_draw] * 6, n=120)
    kin, plain = engine_of(fed, Kin(trials=3, margin_se=50.0)), engine_of(fed, FedAvg())
    for number in range(1, 6):
        ours, theirs = kin.round(number), plain.round(number)
        assert ours.samples == {id: n * (2 if number <= 3 else 1) for id, n in theirs.samples.items()}
    assert set(state(kin)["keeps"].values()) == {"group"}


def test_trials_end_once_the_groups_model_is_better() -> None:
    """Where own models lose by the margin, all samples train the group's from then on, long before `trials` rounds."""
    fed = federation([common_draw] * 10, n=40)
    kin, plain = (engine_of(fed, m, lr=0.2) for m in (Kin(trials=100, margin_se=1.0, min_holdout=5), FedAvg()))
    first = (kin.round(1).samples, plain.round(1).samples)
    assert first[0] == {id: 2 * n for id, n in first[1].items()}
    for number in range(2, 12):
        ours, theirs = kin.round(number).samples, plain.round(number).samples
    assert sum(ours[id] == n for id, n in theirs.items()) >= 7


def test_clients_with_few_samples_have_no_trial() -> None:
    kin, plain = (engine_of(federation([common_draw] * 5, n=30), m) for m in (Kin(min_holdout=10), FedAvg()))
    assert kin.round(1).samples == plain.round(1).samples


def test_held_out_samples_train_neither_model() -> None:
    """A class that only held-out samples have leaves the models as they would be without it."""
    from fedkin.methods.kin import on_trial

    fed = federation([common_draw], n=100)
    view = view_of(fed["c0"], fed)
    kept, held = on_trial(view, 1, 5, 0.2, 10) or pytest.fail("no trial")
    again = on_trial(view, 1, 5, 0.2, 10) or pytest.fail("no trial")
    rows = [set(each.rows.tolist()) for each in (kept, held) if each.rows is not None]
    assert len(rows[1]) == 20
    assert rows[0] | rows[1] == set(range(100))
    assert not rows[0] & rows[1]
    assert torch.equal(held.x[held.rows], again[1].x[again[1].rows])


# -- over time ------------------------------------------------------------------------------------------------


def test_newcomers_join_the_group_they_belong_to() -> None:
    fed = federation([common_draw, swapped] * 4)
    late = [client("d", swapped, 80, 91, joins=2), client("e", far, 80, 92, joins=2)]
    engine = engine_of(Federation([*fed.values(), *late], fed.task))
    engine.round(1)
    before = dict(state(engine)["group"])
    graph = engine.round(2).graph
    group = state(engine)["group"]
    assert graph is not None
    assert graph.evidence is not None
    assert set(graph.evidence.leaf) == set(fed)  # nobody who came later is in the tree of tests
    assert dict(zip(graph.ids, graph.values["verdict"].tolist(), strict=True))["e"] == "alone"
    assert {id: group[id] for id in before} == before
    assert group["d"] == group["c1"]
    assert state(engine)["verdict"][group["e"]] == "alone"
    assert state(engine)["looks"] == 1
    assert sorted(state(engine)["placed"]) == ["d", "e"]


def test_groups_are_found_anew_once_newcomers_are_the_majority() -> None:
    fed = federation([common_draw] * 3)
    late = [client(f"d{k}", swapped, 80, 90 + k, joins=2) for k in range(4)]
    engine = engine_of(Federation([*fed.values(), *late], fed.task))
    engine.round(1)
    engine.round(2)
    assert state(engine)["looks"] == 2
    assert members(engine) == {frozenset(fed), frozenset(c.id for c in late)}


def test_unseen_clients_get_their_groups_model_with_their_own_shares() -> None:
    fed = federation([skewed(k) for k in range(14)])
    new = replace(client("new", skewed(50), 80, 95), seen=False)
    engine = engine_of(Federation([*fed.values(), new], fed.task))
    engine.round(1)
    shared = state(engine)["models"]["0"]
    expected = shared["head.bias"].double() + log_shares(new.train.y, 4)
    torch.testing.assert_close(engine.model("new")["head.bias"], expected.float())
    assert "new" not in state(engine)["group"]


def test_unseen_clients_of_no_group_get_the_mean_of_all() -> None:
    fed = federation([common_draw, swapped] * 4)
    new = replace(client("new", far, 80, 95), seen=False)
    engine = engine_of(Federation([*fed.values(), new], fed.task))
    engine.round(1)
    models = state(engine)["models"]
    mean = {name: (models["0"][name] + models["1"][name]) / 2 for name in models["0"]}
    torch.testing.assert_close(dict(engine.model("new")), mean)


def moving(fed: Federation, draw: Draw, number: int) -> Federation:
    """c0 has other samples from this round on."""
    moved = client("c0", draw, 80, 96)
    changed = replace(fed["c0"], changes=(Change(number, moved.train, moved.test),))
    return Federation([changed, *(c for id, c in fed.items() if id != "c0")], fed.task)


def test_drift_is_seen_when_clients_sign_again() -> None:
    fed = federation([common_draw, swapped] * 4)
    engine = engine_of(moving(fed, swapped, 2), Kin(regroup_every=2))
    engine.round(1)
    before = dict(state(engine)["group"])
    engine.round(2)
    assert state(engine)["group"] == before
    engine.round(3)
    after = state(engine)["group"]
    assert after["c0"] == before["c1"]
    assert {id: after[id] for id in after if id != "c0"} == {id: before[id] for id in before if id != "c0"}
    assert state(engine)["looks"] == 2


def test_who_becomes_alone_goes_on_from_its_groups_model() -> None:
    fed = federation([common_draw] * 6)
    moved = client("c0", far, 80, 96)
    changed = replace(fed["c0"], changes=(Change(3, moved.train, moved.test),))
    engine = engine_of(
        Federation([changed, *(c for id, c in fed.items() if id != "c0")], fed.task),
        Kin(regroup_every=2, trials=0),
        lr=0.0,
    )
    engine.round(1)
    # With no rate, whatever it starts from is what it has.
    state(engine)["models"] = {"0": {name: tensor + 1 for name, tensor in state(engine)["models"]["0"].items()}}
    for number in (2, 3, 4):
        engine.round(number)
    assert state(engine)["verdict"][state(engine)["group"]["c0"]] == "alone"
    torch.testing.assert_close(engine.model("c0")["head.weight"], engine.setup.net.initial["head.weight"] + 1)


def test_all_looks_together_spend_at_most_alpha() -> None:
    spent = [level(0.01, look) for look in range(1, 2000)]
    assert sum(spent) <= 0.01
    assert spent == sorted(spent, reverse=True)


# -- lost and forged ------------------------------------------------------------------------------------------


def test_a_client_whose_signature_is_lost_waits_with_the_common_model() -> None:
    fed = federation([common_draw, swapped] * 4)
    engine = engine_of(fed)
    engine.post.transport = Changing(lambda e: None if e.phase == "sign_moments" and e.sender == "c1" else e.message)
    engine.round(1)
    models = state(engine)["models"]
    mean = {name: (4 * models["0"][name] + 3 * models["1"][name]) / 7 for name in models["0"]}
    torch.testing.assert_close(dict(engine.model("c1")), mean)
    engine.post.transport = Transport()
    engine.round(2)
    assert state(engine)["group"]["c1"] == state(engine)["group"]["c3"]


def test_without_any_spread_nothing_happens() -> None:
    engine = engine_of(federation([common_draw] * 3))
    engine.post.transport = Changing(lambda e: None if e.phase == "spread" else e.message)
    engine.round(1)
    assert_equal(dict(engine.model("c0")), dict(engine.setup.net.initial))
    engine.post.transport = Transport()
    engine.round(2)
    assert members(engine) == {frozenset(["c0", "c1", "c2"])}


@pytest.mark.parametrize("kind", ["damaged", "absurd", "elsewhere", "copied"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_forged_signature_moves_no_honest_client(kind: str, seed: int) -> None:
    fed = federation([common_draw, swapped] * 4 + [common_draw], seed=seed)
    liar, rng = "c8", np.random.default_rng(seed)
    seen: dict[str, Message] = {}

    def forge(envelope: Envelope) -> Message | None:
        if envelope.phase != "sign_moments":
            return envelope.message
        if envelope.sender == "server":
            seen["plan"] = envelope.message
            return envelope.message
        if envelope.sender != liar:
            return envelope.message
        plan = Plan.from_arrays({name: tensor.numpy() for name, tensor in seen["plan"].items()})
        one = sign(plan, rng.normal(size=(90, 5)) * 20 - 30, rng.integers(0, 4, 90))
        data = one.to_bytes()
        if kind == "damaged":
            data = data[:50]
        elif kind == "absurd":
            block = one.blocks["x"]
            wild = {**one.blocks, "x": replace(block, mean=block.mean * 1e3, traces=block.traces * 1e6)}
            data = replace(one, blocks=wild).to_bytes()
        elif kind == "copied":
            victim = fed["c1"].train
            data = sign(plan, victim.inputs(slice(None)).numpy(), victim.y.numpy()).to_bytes()
        return Message(signature=torch.frombuffer(bytearray(data), dtype=torch.uint8))

    honest = {frozenset(f"c{k}" for k in range(start, 8, 2)) for start in (0, 1)}
    engine = engine_of(fed)
    engine.post.transport = Changing(forge)
    engine.round(1)
    assert {group - {liar} for group in members(engine)} - {frozenset()} == honest
    refused = kind in ("damaged", "absurd")
    assert (liar not in state(engine)["group"]) == refused


def test_one_forged_spread_does_not_set_the_scale() -> None:
    fed = federation([common_draw, swapped] * 4)
    huge = {"counts": torch.tensor([60, 5, 4]), "squares": torch.full((5,), 1e12).double(), "target": torch.zeros(3)}
    engine = engine_of(fed)
    engine.post.transport = Changing(
        lambda e: Message(**huge) if e.phase == "spread" and e.sender == "c0" else e.message
    )  # fmt: skip
    engine.round(1)
    assert len(members(engine)) == 2
    assert float(state(engine)["plan"]["var"].max()) < 100


def test_what_no_samples_have_is_refused() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 5)), rng.integers(0, 4, 50)
    plan, other = (Plan.of([Spread.of(x, y)], classes=4, seed=seed) for seed in (0, 1))
    good = sign(plan, x, y)

    def told(one: Any) -> Tensor:
        return torch.frombuffer(bytearray(one.to_bytes()), dtype=torch.uint8)

    assert read_signature(told(good), plan) is not None
    assert read_signature(told(good), other) is None
    for name, block in good.blocks.items():
        for bad in (replace(block, mean=block.mean * np.nan), replace(block, effect=0.5), replace(block, n=10**6)):
            assert read_signature(told(replace(good, blocks={**good.blocks, name: bad})), plan) is None
    assert read_signature(told(replace(good, blocks={"x": good.blocks["x"]})), plan) is None
    assert read_signature(told(replace(good, cells=None)), plan) is None


# -- tasks ----------------------------------------------------------------------------------------------------


def of_task(kind: str, clients: int = 8) -> Federation:
    task = {
        "regression": Task.regression(2, (5,)), "segmentation": Task(3, (1, 8, 8), "segmentation"),
        "risk": Task(2, (5,), "risk"),
    }[kind]  # fmt: skip
    made = []
    for k in range(clients):
        rng = np.random.default_rng(k)
        x = torch.from_numpy((rng.normal(size=(80, *task.shape)) + 3 * (k % 2)).astype(np.float32))
        if kind == "regression":
            y: Tensor = x[:, :2] * 2
        elif kind == "segmentation":
            y = (x[:, 0] > 3 * (k % 2)).long()
        else:
            y = (x[:, 0] > x[:, 0].mean()).long()
        made.append(Client(f"c{k}", Samples(x, y), Samples(x, y)))
    return Federation(made, task)


@pytest.mark.parametrize("kind", ["regression", "segmentation", "risk"])
def test_other_tasks_find_their_groups_too(kind: str) -> None:
    fed = of_task(kind)
    model: Any = "unet" if kind == "segmentation" else "linear"
    result = fedkin.run("kin", fed, rounds=2, model=model, training={"lr": 0.01})
    assert np.isfinite(result.value)
    assert result.rounds[-1]["figures"]["groups"] == 2


@pytest.mark.parametrize(
    ("method", "old", "new"),
    [(Kin, "held", "holdout"), (Kin, "margin", "margin_se"), (Flt, "flags", "regroup_changed"),
     (Flt, "every", "regroup_every")],
)  # fmt: skip
def test_old_names_of_settings_are_refused_with_the_new_one(method: Any, old: str, new: str) -> None:
    with pytest.raises(ConfigError, match=rf"{old}: renamed; write \S*{new}"):
        parse(method, {old: 1}, "method")
