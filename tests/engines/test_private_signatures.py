"""`privacy.signature_epsilon` in runs: what leaves of samples, with which noise, how often, and what it counts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engines.faulty import Spoiling
from engines.test_releases import Keeping
from fedkin.engines import LocalEngine, LoopbackEngine, Privacy, Setup
from fedkin.engines.epsilon import epsilon, noise_for, total_epsilon
from fedkin.engines.results import SERVER
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples
from fedkin.flow import Message
from fedkin.graph import Plan, ari, private_signatures
from fedkin.methods.blocks.numeric_rows import arrays_of
from fedkin.methods.blocks.signatures import arrays
from fedkin.methods.cfl import Cfl
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.flt import Flt
from fedkin.methods.flt_same import FltSame
from fedkin.methods.kin import Kin
from fedkin.records.metrics import privacy_sentence, privacy_spent
from fedkin.tasks import Task
from support import begun, goes_on, same, small_setup, trained_models

EPSILON = 4.0
SIGNED = Privacy(signature_epsilon=EPSILON)


def two_groups(n: int = 400, clients: int = 6) -> Federation:
    """Clients of five inputs, of which every other is shifted; three classes."""

    def drawn(seed: int, count: int) -> Samples:
        draw = np.random.default_rng(seed)
        y = draw.integers(3, size=count)
        x = draw.normal(size=(count, 5)) + np.eye(5)[y] + 1.5 * (seed % 2)
        return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))

    each = [Client(f"c{k}", drawn(k, n), drawn(100 + k, 20)) for k in range(clients)]
    return Federation(each, Task(3, (5,)), "two groups")


def setup(method: Any = None, privacy: Privacy = SIGNED, federation: Federation | None = None) -> Setup:
    made = small_setup(Kin(degrees="groups") if method is None else method, federation or two_groups())
    return replace(made, privacy=privacy)


@pytest.mark.parametrize("method", [Kin(degrees="groups"), FltSame(), Cfl(split="same")])
def test_groups_are_found_from_what_leaves_with_noise(method: Any) -> None:
    keeping = Keeping()
    engine = begun(setup(method), transport=keeping)
    sent = {(e.phase, name) for e in keeping.seen for name in e.message if e.phase in ("spread", "sign_moments")}
    assert sent == {("spread", "votes"), ("spread", "n"), ("sign_moments", "sums"), ("sign_moments", "n")}
    for one in engine.releases().values():
        assert (one["releases"], one["signed"]) == (0, 1.0)
        assert one["open"]["sign_moments"] == one["open"]["spread"] == ["n"]
        assert "params" in one["open"]["train"]
    state = engine.server.state
    group = state["group"] if "group" in state else state["same"]["group"]
    found = np.unique([str(each) for each in group.values()], return_inverse=True)[1]
    assert ari([int(id[1:]) % 2 for id in group], found) == 1


def test_noise_has_the_deviation_that_the_epsilon_needs() -> None:
    keeping = Keeping()
    engine = begun(setup(), transport=keeping)
    plan = Plan.from_arrays(arrays(engine.server.state["plan"]))
    added: dict[str, list[Any]] = {"votes": [], "sums": []}
    for envelope in keeping.seen:
        client = engine.site.view(envelope.sender)
        x, y = arrays_of(client.train, client.task)
        exact = {"votes": private_signatures.votes(x), "sums": private_signatures.sums(plan, x, y)}
        for name in exact.keys() & envelope.message.keys():
            added[name].append(envelope.message[name].numpy() - exact[name])
    noise = noise_for(EPSILON, 1e-5)
    for name, share in (("votes", 0.1), ("sums", 0.9)):
        draws = np.concatenate(added[name])
        assert abs(draws.std() * math.sqrt(share) / noise - 1) < 5 / math.sqrt(2 * len(draws))
        assert abs(draws.mean()) < 5 * draws.std() / math.sqrt(len(draws))
    # Both are one release of the whole epsilon.
    assert total_epsilon(0.1 / noise**2 + 0.9 / noise**2, {}, 1e-5) == pytest.approx(EPSILON, rel=1e-6)


def test_epsilon_of_a_signature_and_of_updates_add_up_exactly() -> None:
    both = Privacy(clip=1.0, noise=3.0, signature_epsilon=EPSILON)
    assert both.epsilon(0, 1.0) == pytest.approx(EPSILON, rel=1e-6)
    assert both.epsilon(7) == Privacy(clip=1.0, noise=3.0).epsilon(7)
    mu = math.sqrt(7 / 9 + noise_for(EPSILON, 1e-5) ** -2)
    assert both.epsilon(7, 1.0) == pytest.approx(epsilon(mu, 1e-5), rel=1e-9)
    engine = LocalEngine(setup(privacy=both))
    trained_models(engine, rounds=2)
    told = privacy_spent(both, engine.releases())
    assert told["epsilon"]["max"] == both.epsilon(2, 1.0)
    words = privacy_sentence(told)
    assert "signatures (4, of one sample) included" in words
    assert f"; one row costs epsilon {both.epsilon(2, 1.0):.2f}: which of two values it has can be guessed" in words
    # Noise on models without the setting is refused, as before.
    assert told["open"] == {"sign_moments": ["n"], "spread": ["n"], "train": ["n"]}


@pytest.mark.parametrize("target", [1e-3, 0.5, 1.0, 4.0, 30.0, 1e4])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_noise_for_an_epsilon_is_the_least(target: float, delta: float) -> None:
    noise = noise_for(target, delta)
    assert epsilon(1 / noise, delta) <= target * (1 + 1e-6)
    assert epsilon(1 / (noise * 0.999), delta) > target


def test_off_and_without_a_signature_nothing_changes() -> None:
    off = trained_models(LocalEngine(setup(privacy=Privacy())))
    on = trained_models(LocalEngine(setup(privacy=Privacy(signature_epsilon=1e6))))
    # With hardly any noise, groups are the same, and so are all models.
    assert same(off, on)


@pytest.mark.parametrize("method", [Kin(), FltSame()])
def test_bytes_and_a_resume_change_no_bit(method: Any) -> None:
    local, loopback = LocalEngine(setup(method)), LoopbackEngine(setup(method))
    one, other = trained_models(local, rounds=2), trained_models(loopback, rounds=2)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert local.releases() == loopback.releases()
    assert goes_on(local, 3)


def test_a_signature_that_was_lost_is_sent_again_and_counts_once() -> None:
    keeping = Keeping(lambda e: e.phase == "sign_moments" and e.sender == "c0" and e.round == 1)
    engine = begun(setup(), transport=keeping, rounds=2)
    first, again = [e.message for e in keeping.seen if e.phase == "sign_moments" and e.sender == "c0"]
    assert torch.equal(first["sums"], again["sums"])
    assert {one["signed"] for one in engine.releases().values()} == {1.0}
    assert "c0" in engine.server.state["group"]


def test_another_plan_gets_no_second_signature() -> None:
    engine = begun(setup())
    side, plan = engine.site, engine.server.state["plan"]
    side.turn_to(2)

    def signature(plan: Any) -> Message:
        running = side.flow("c0", "sign_moments", Message(**plan))
        assert running.resume(None) is None
        return side.finish_reply(running)

    assert signature(plan)["n"] == 400
    with pytest.raises(Exception, match="answers no other request for a signature"):
        signature({**plan, "sizes": plan["sizes"] + torch.tensor([0, 0, 0, 0, 0, 1])})
    assert engine.releases()["c0"]["signed"] == 1.0


def test_a_budget_counts_the_signature() -> None:
    privacy = Privacy(clip=1.0, noise=3.0, signature_epsilon=EPSILON)
    engine = LocalEngine(setup(privacy=privacy.model_copy(update={"budget": privacy.epsilon(1, 1.0) * 1.01})))
    trained_models(engine, rounds=2)
    assert {(one["releases"], one["signed"]) for one in engine.releases().values()} == {(1, 1.0)}
    assert {row.missing for row in engine.log.traffic if row.sender != SERVER} == {"spent"}


def test_numbers_that_no_honest_client_sends_enter_no_test() -> None:
    def huge(message: Message) -> Message:
        name = "votes" if "votes" in message else "sums"
        return Message(**{**message, name: torch.full_like(message[name], 1e15)})

    lying = Spoiling(lambda e: e.sender == "c0" and e.phase in ("spread", "sign_moments"), huge)
    engine = begun(setup(), transport=lying)
    assert sorted(engine.server.state["group"]) == ["c1", "c2", "c3", "c4", "c5"]
    assert float(engine.server.state["plan"]["var"][0]) < 100


def test_secure_sums_and_private_signatures_leave_nothing_of_samples_but_n() -> None:
    pytest.importorskip("cryptography")
    privacy = Privacy(secure_sums=True, signature_epsilon=EPSILON)
    engine = begun(setup(privacy=privacy), rounds=2)
    for one in engine.releases().values():
        assert one["open"]["sign_moments"] == one["open"]["spread"] == ["n"]


@pytest.mark.parametrize("method", [FedAvg(), Flt()])  # FLT's centres and sums are not signatures of `fedkin.graph`
def test_methods_that_never_sign_are_refused(method: Any) -> None:
    with pytest.raises(ConfigError, match=f"clients of method '{method.name}' send no signature"):
        setup(method)
