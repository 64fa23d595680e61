"""Poisoned samples, colluders, forgers and sybils."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.engines import LocalEngine, LoopbackEngine, RecordingObserver, Setup
from fedkin.engines.attacks import ATTACKS, FORGERS, Attack, Attacks
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.flow import Fitted, Message
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.ifca import Ifca
from support import begun, flat, present, same, small_federation, small_setup, trained_models, with_settings

SHARE = 0.5  # three adversaries of six clients


def engine_of(method: Any, spec: str, kind: type[LocalEngine] = LocalEngine, **more: Any) -> LocalEngine:
    return kind(with_settings(small_setup(method), adversaries=spec), **more)


def letters(method: Any, spec: str) -> tuple[LocalEngine, dict[tuple[str, str], Message]]:
    """What arrived in the first round, by (phase, sender)."""
    heard = RecordingObserver()
    engine = engine_of(method, spec, observers=[heard])
    engine.round(1)
    return engine, {(envelope.phase, envelope.sender): envelope.message for envelope in heard.envelopes}


# -- samples -----------------------------------------------------------------------------------------------------------


def test_flipped_labels_are_the_adversaries_own_training_labels_only() -> None:
    engine = engine_of(FedAvg(), f"label-flip:{SHARE}")
    given = small_federation()
    for id, client in engine.setup.federation.items():
        own = given[id].train.labels()
        assert torch.equal(client.train.labels(), 3 - own if id in engine.adversaries else own)
        assert torch.equal(client.train.inputs(slice(None)), given[id].train.inputs(slice(None)))
        assert torch.equal(client.test.labels(), given[id].test.labels())


def test_a_share_of_the_labels_is_flipped() -> None:
    engine = engine_of(FedAvg(), f"label-flip:{SHARE}:0.5")
    given = small_federation()
    labels = [(engine.setup.federation[id].train.labels(), given[id].train.labels()) for id in engine.adversaries]
    changed = [float((now != before).float().mean()) for now, before in labels]
    assert 0.2 < np.mean(changed) < 0.8


def test_flipping_labels_needs_labels() -> None:
    samples = Samples(torch.zeros(9, 5), torch.zeros(9, 1))
    numbers = Federation([Client(id, samples, samples) for id in "abcdef"], Task.regression(1, (5,)))
    with pytest.raises(ConfigError, match=r"run\.adversaries: 'label-flip' needs a class label"):
        with_settings(small_setup(FedAvg(), numbers), adversaries="label-flip:0.2")


def test_sybils_have_the_samples_of_one_of_them() -> None:
    engine = engine_of(FedAvg(), f"sybil:{SHARE}")
    given, (first, *others) = small_federation(), sorted(engine.adversaries)
    assert others
    for id in engine.adversaries:
        assert torch.equal(engine.setup.federation[id].train.labels(), given[first].train.labels())
    honest = min(set(given) - engine.adversaries)
    assert torch.equal(engine.setup.federation[honest].train.labels(), given[honest].train.labels())


# -- updates -----------------------------------------------------------------------------------------------------------


def test_replacement_makes_the_average_the_attackers_model() -> None:
    """Bagdasaryan et al.: where honest updates cancel out, the mean of all is the attacker's model."""
    attack = Attack.parse("model-replacement:0.25")
    start, wanted = {"w": torch.zeros(3)}, torch.tensor([1.0, -2.0, 3.0])
    sent = attack(Fitted({"w": wanted}, {}, 0.0, 1, 1), start, np.random.default_rng(0)).params["w"]
    honest = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, -1.0]])
    torch.testing.assert_close(torch.cat([honest, sent[None]]).mean(0), wanted)


# ByzFL 0.0.11, in NumPy; its ALIE adds deviations with m - 1 in the denominator, the paper's code subtracts with m:
#     x = np.random.default_rng(0).normal(size=(7, 3)); from byzfl import *
#     ALittleIsEnough(-1.5 * (6 / 7) ** 0.5)(x); InnerProductManipulation(2.0)(x)
BYZFL = {
    "alie": [-2.005309469594279, -0.9944884792608739, -1.0796902500058392],
    "ipm": [0.6789881944678958, 0.01843000377362885, 0.3860392336209246],
}


@pytest.mark.parametrize("kind", sorted(BYZFL))
def test_colluders_agree_on_what_byzfl_computes(kind: str) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 3)))
    federation = small_federation(clients=8)
    setup = with_settings(small_setup(FedAvg(), federation, dtype=torch.float64), adversaries=f"{kind}:0.9")
    engine = LocalEngine(setup)
    forgery, attacks = present(engine.exchange.forgery), sorted(engine.adversaries)
    start = setup.net.initial
    sent = {}
    for id, row in zip(attacks, x, strict=True):
        own = {name: tensor.clone() for name, tensor in start.items()}
        own["head.bias"][:3] += row
        sent[id] = Message(params=own, n=1)
    asked = dict.fromkeys(sent, Message(params=start))
    for message in forgery.replies("train", asked, sent, 1).values():
        found = (message.params["head.bias"] - start["head.bias"])[:3]
        np.testing.assert_allclose(found.numpy(), BYZFL[kind], atol=1e-12)


def test_colluders_of_several_clusters_start_from_their_own_model() -> None:
    """IFCA sends all models: the start is the one nearest to what was trained."""
    method = Ifca(clusters=2)
    _, before = letters(method, f"scale:{SHARE}:1")
    honest, after = letters(method, f"ipm:{SHARE}:1")
    fresh = LocalEngine(small_setup(method)).server.state["models"]
    own = {id: flat(fresh[str(before["train", id]["cluster"])]) for id in honest.adversaries}
    mean = np.mean([flat(before["train", id].params) - own[id] for id in own], axis=0)
    for id in own:
        np.testing.assert_allclose(flat(after["train", id].params), own[id] - mean, atol=1e-6)


# -- forged fields -----------------------------------------------------------------------------------------------------


def test_a_copy_is_the_victims_field_and_nothing_else() -> None:
    method = METHODS["kin"]()
    _, before = letters(method, f"scale:{SHARE}:1")
    engine, after = letters(method, f"copy:{SHARE}:signature")
    first = present(engine.exchange.forgery).victims[0]
    victim = after["sign_moments", first]["signature"]
    assert first not in engine.adversaries
    for id in engine.adversaries:
        assert torch.equal(after["sign_moments", id]["signature"], victim)
        assert not torch.equal(before["sign_moments", id]["signature"], victim)
        assert after["train", id]["n"] == before["train", id]["n"]


def test_the_mean_of_a_group_and_mimicry() -> None:
    engine, after = letters(FedAvg(), f"group-mean:{SHARE}:params")
    victims = present(engine.exchange.forgery).victims
    group = np.stack([flat(after["train", id].params) for id in victims])
    assert len({engine.setup.federation[id].group for id in victims}) == 1
    near, mimics = letters(FedAvg(), f"mimic:{SHARE}:params:0.01")
    sent = {id: flat(mimics["train", id].params) for id in near.adversaries}
    for id in engine.adversaries:
        np.testing.assert_allclose(flat(after["train", id].params), group.mean(0), atol=1e-6)
        gap = np.linalg.norm(sent[id] - group[0]) / np.linalg.norm(group[0])
        assert gap == pytest.approx(0.01, rel=0.5)
    assert len({each.tobytes() for each in sent.values()}) == len(sent)


def test_peers_forge_what_they_share() -> None:
    engine, after = letters(METHODS["dfedavgm"](), f"copy:{SHARE}:params")
    victim = after["share", present(engine.exchange.forgery).victims[0]]
    for id in engine.adversaries:
        assert same(after["share", id].params, victim.params)
    honest, before = letters(METHODS["dfedavgm"](), f"scale:{SHARE}:1")
    _, colluded = letters(METHODS["dfedavgm"](), f"alie:{SHARE}:1")
    own = np.stack([flat(before["share", id].params) for id in sorted(honest.adversaries)])
    for id in honest.adversaries:
        np.testing.assert_allclose(flat(colluded["share", id].params), own.mean(0) - own.std(0), atol=1e-6)


# -- equal everywhere, and settings ------------------------------------------------------------------------------------

SPECS = [
    "label-flip:0.34", "model-replacement:0.34", "sybil:0.34", "alie:0.34", "ipm:0.34", "copy:0.34:params",
    "label-flip:0.34, group-mean:0.34:params", "mimic:0.34:params",
]  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", "dfedavgm"])
@pytest.mark.parametrize("spec", SPECS)
def test_every_engine_gives_the_same_bits(method: str, spec: str) -> None:
    assert same(
        *(trained_models(engine_of(METHODS[method](), spec, kind), 2) for kind in (LocalEngine, LoopbackEngine))
    )


def test_every_attack_changes_what_is_sent() -> None:
    clean, before = letters(FedAvg(), f"scale:{SHARE}:1")
    for kind in ATTACKS:
        spec = f"{kind}:{SHARE}" + (":params" if kind in FORGERS else "")
        engine, after = letters(FedAvg(), spec)
        assert engine.adversaries == clean.adversaries
        changed = [id for _, id in before if not np.allclose(*(flat(at["train", id].params) for at in (before, after)))]
        wanted = set(engine.adversaries) - ({min(engine.adversaries)} if kind == "sybil" else set())
        assert set(changed) == wanted, kind


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("copy:0.2", "expected KIND:SHARE:FIELD"), ("copy:0.2:", "expected KIND:SHARE:FIELD"),
        ("copy:0.2:params:3", "expected"),
        ("sybil:0.2:3", "expected KIND:SHARE"), ("label-flip:0.2:2", "at most 1"), ("aile:0.2", "alie"),
        ("noise", "expected KIND:SHARE"), ("noise:x", "expected KIND:SHARE"), ("noise:.1:2:3", "expected KIND:SHARE"),
        ("noise:0", "above 0 and below 1"), ("noise:1", "above 0 and below 1"), ("noise:.1:0", "above 0 and finite"),
        ("alie:0.2, ipm:0.3", "one SHARE"), ("copy:0.2:parms", "'params'"), ("alie:0.2, none", "stands alone"),
    ],
)  # fmt: skip
def test_wrong_specs_are_refused(spec: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_settings(small_setup(FedAvg()), adversaries=spec)


def test_a_groups_mean_needs_known_groups() -> None:
    clients = [replace(client, group=None) for client in small_federation().values()]
    setup = small_setup(FedAvg(), Federation(clients, small_federation().task))
    with pytest.raises(ConfigError, match="needs known groups"):
        with_settings(setup, adversaries="group-mean:0.2:params")


# -- adversarial clients ---------------------------------------------------------------------------------------------


START = {"w": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(3)}
UPDATE = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 4.0]])
FITTED = Fitted({"w": START["w"] + UPDATE, "count": torch.tensor(4)}, {}, 0.1, 5, 40)


def handed_on(spec: str, seed: int = 0) -> torch.Tensor:
    made = Attack.parse(spec)(FITTED, START, np.random.default_rng(seed))
    assert made.params["count"] == 4
    assert (made.steps, made.samples) == (FITTED.steps, FITTED.samples)
    return made.params["w"] - START["w"]


def test_what_each_attack_makes_of_an_update() -> None:
    torch.testing.assert_close(handed_on("sign-flip:0.2"), -UPDATE)
    torch.testing.assert_close(handed_on("scale:0.2:3"), 3 * UPDATE)
    shuffled = handed_on("shuffle:0.2")
    torch.testing.assert_close(shuffled.flatten().sort()[0], UPDATE.flatten().sort()[0])
    assert not torch.equal(shuffled, UPDATE)
    noise = handed_on("noise:0.2:2") - UPDATE
    torch.testing.assert_close(noise.norm(), 2 * UPDATE.norm())
    torch.testing.assert_close(FITTED.params["w"], START["w"] + UPDATE)


@pytest.mark.parametrize(("share", "count"), [(0.1, 2), (0.2, 4), (0.3, 6), (0.001, 1), (0.999, 19)])
def test_how_many_there_are(share: float, count: int) -> None:
    attack = Attacks.parse(f"noise:{share}, label-flip:{share}")
    assert Attacks.parse("none").clients(["a"], 0) == frozenset()
    ids = [f"c{k}" for k in range(20)]
    assert len(attack.clients(ids, 0)) == count
    assert attack.clients(ids, 0) == attack.clients(list(reversed(ids)), 0)
    assert attack.clients(ids, 0) != attack.clients(ids, 1) or count in (1, 19)


def head_of(setup: Setup) -> torch.Tensor:
    """The head's weight at the server after a round."""
    engine = begun(setup)
    weight: torch.Tensor = engine.server.state["params"]["head.weight"]
    return weight


def heads_alone(setup: Setup) -> dict[str, torch.Tensor]:
    """The same for each client in a federation of its own."""
    return {id: head_of(replace(setup, clients=setup.federation.reorder([id]))) for id in setup.federation}


def test_a_sign_flipping_client_enters_fedavg_with_its_opposite() -> None:
    setup = small_setup(FedAvg(weights="equal"))
    engine = begun(with_settings(setup, adversaries="sign-flip:0.34"))
    assert len(engine.adversaries) == 2
    start = setup.net.initial["head.weight"]
    sent = [2 * start - w if id in engine.adversaries else w for id, w in heads_alone(setup).items()]
    torch.testing.assert_close(engine.server.state["params"]["head.weight"], torch.stack(sent).mean(0))
    assert set(engine.evaluate()) == set(setup.federation) - engine.adversaries


def test_median_of_each_parameter() -> None:
    setup = small_setup(METHODS["median"]())
    each = np.stack([head.numpy() for head in heads_alone(setup).values()])
    np.testing.assert_allclose(head_of(setup).numpy(), np.median(each, axis=0), atol=1e-6)
