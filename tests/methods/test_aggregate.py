"""`method.aggregate` in every method that has it, against rules written out and applied by hand to what was sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from fedkin.engines import LocalEngine, RecordingObserver
from fedkin.federation import Federation
from fedkin.flow import Message, Params, PeerMethod, ServerMethod
from fedkin.learning import weighted_mean
from methods.flt_world import raw
from robust_rules import RULES, Array, by_hand
from support import Losing, Watched, flat, named, same, small_federation, small_setup, with_settings

Method = ServerMethod | PeerMethod

# One model (or a part of one) for all, a model for each group, and peers.
GLOBAL: dict[str, Method] = {name: named(name) for name in (
    "fedavg", "fedsr", "pfedme", "fedavg-ft", "ditto", "apfl", "per-fedavg", "fedbn", "fedper", "fedrep", "fedala",
    "fednova", "fedsim",
)} | {
    "fedprox": named("fedprox", weights="equal"),
    "pfedsim": named("pfedsim", warmup=9),
    "scaffold": named("scaffold", weights="samples"),
    "lg-fedavg": named("lg-fedavg", warmup=9),
    "fedclassavg": named("fedclassavg", augment={"noise": 0.1}),
}  # fmt: skip
GROUPED: dict[str, Method] = {
    "flt": raw(2, k=2),
    "flt-same": named("flt-same", alpha=0.9),
    "kin": named("kin", alpha=0.9, least=0.0, degrees="groups"),
    "ifca": named("ifca", clusters=2, weights="equal"),
    "fedsem": named("fedsem", clusters=2),
    "pacfl": named("pacfl", threshold=60.0),
    "fedcollab": named("fedcollab", c=4.0, exchanges=1, restarts=10),
    "pca-km-hc": named("pca-km-hc", clusters=2, centres=2, components=3),
    "cfl": named("cfl", eps1=2.0, eps2=0.0),
}
PEERS: dict[str, Method] = {
    "dfedavgm": named("dfedavgm"),
    "mapl-plus": named("mapl-plus", warmup=100, hidden=9, augment={"noise": 0.1}),
    "mapl-plus-learned": named("mapl-plus", warmup=1, hidden=9, augment={"noise": 0.1}, graph={"probe": 0.3}),
}
EVERY = {**GLOBAL, **GROUPED, **PEERS}


def expected(rule: str, sent: Mapping[str, Params], weights: Mapping[str, float], start: Params) -> Array:
    ids = sorted(sent)
    return by_hand(rule, [flat(sent[id]) for id in ids], [float(weights[id]) for id in ids], flat(start))


def assert_is(found: Params, wanted: Array) -> None:
    np.testing.assert_allclose(flat(found), wanted, rtol=2e-5, atol=2e-6)


# -- what was sent in a round, and what was made of it -----------------------------------------------------------------


def having(name: str, rule: str) -> Any:
    return EVERY[name].model_copy(update={"aggregate": rule})


def weights_of(method: Any, replies: Mapping[str, Message]) -> dict[str, float]:
    equal = getattr(method, "weights", "samples") == "equal"
    return {id: 1.0 if equal else float(reply["n"]) for id, reply in replies.items()}


def groups_of(name: str, state: Any, replies: Mapping[str, Message]) -> dict[str, str]:
    """The group of each client that answered, after the round."""
    kind = name.partition("-")[0]
    if kind == "ifca":  # which has the models of this round's start
        return {id: str(reply["cluster"]) for id, reply in replies.items()}
    field = {"fedsem": "cluster", "pacfl": "cluster", "fedcollab": "cluster", "kin": "group", "cfl": "node"}.get(
        kind, "model"
    )
    return {id: state[field][id] for id in replies}


def check_server_round(name: str, method: Any, watched: Watched, rule: str, before: Any) -> int:
    """Compare the round's new models with the rule by hand; how many clients the largest mean was of."""
    asked, replies = next((sent, got) for phase, sent, got in reversed(watched.asks) if phase == "train")
    state, weights = watched.server.state, weights_of(method, replies)
    if name in GLOBAL:
        assert_is(
            state["params"], expected(rule, {id: r.params for id, r in replies.items()}, weights, before["params"])
        )
        return len(replies)
    replies = {id: reply for id, reply in replies.items() if "params" in reply}
    group, sizes = groups_of(name, state, replies), []
    for number in sorted(set(group.values())):
        members = {id: replies[id].params for id in replies if group[id] == number}
        one = min(members)
        start = before["models"][number] if name == "ifca" else asked[one].params
        models = state["models"]["groups"] if name == "kin" else state["models"]
        assert_is(models[number], expected(rule, members, weights, start))
        sizes.append(len(members))
    return max(sizes, default=0)


def run_server(name: str, rule: str, federation: Federation, lost: str | None = None) -> list[int]:
    method = having(name, rule)
    watched = Watched(small_setup(method, federation))
    sizes = []
    for number in (1, 2, 3):
        watched.lose = lambda phase, id, number=number: id == lost and phase == "train" and number > 1  # type: ignore[misc]
        before = dict(watched.server.state)
        watched.round(number)
        sizes.append(check_server_round(name, method, watched, rule, before))
    return sizes


def run_peers(name: str, rule: str, federation: Federation, lost: str | None = None) -> list[int]:
    """The same for peers: each one's mean is over its own message and those that it heard."""
    method, witness = having(name, rule), RecordingObserver()
    losing = Losing(lambda envelope: envelope.sender == lost and envelope.round > 1)
    setup = with_settings(small_setup(method, federation), network="ring" if len(federation) > 4 else "full")
    engine, sizes = LocalEngine(setup, transport=losing, observers=[witness]), []
    phase, field, weights = ("share", "params", "row") if name == "dfedavgm" else ("prototypes", "body", "weights")
    for number in (1, 2, 3):
        witness.envelopes.clear()
        engine.round(number)
        sent = {e.sender: e.message[field] for e in witness.envelopes if e.phase == phase and field in e.message}
        for id in federation:
            state: Any = engine.site.states[id]
            row = {other: weight for other, weight in state[weights].items() if weight}
            # What a peer trained is known from what it sent; a peer whose messages were lost is left out.
            if id not in sent or not set(row) <= set(sent):
                continue
            made = {key: state["params"][key] for key in sent[id]}
            assert_is(made, expected(rule, {other: sent[other] for other in row}, row, sent[id]))
            sizes.append(len(row))
    return sizes


# -- tests -------------------------------------------------------------------------------------------------------------


def grid(names: Iterable[str]) -> list[Any]:
    """The first method with every rule, and the others with some.

    A method says to all rules alike what they get: some need weights, some the model that the clients started from.
    """
    return [
        pytest.param(name, rule, marks=[] if place == 0 or (place + number) % 5 == 0 else [pytest.mark.slow])
        for place, name in enumerate(names) for number, rule in enumerate(RULES)
        if place == 0 or (place + number) % 5 == 0 or rule in ("mean", "centred-clipping:0.05")
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "rule"), [*grid(GLOBAL), *grid(GROUPED)])
def test_a_server_applies_the_rule_to_the_replies_that_came(name: str, rule: str) -> None:
    federation = small_federation()
    sizes = run_server(name, rule, federation, lost=sorted(federation)[1])
    assert max(sizes) >= 3


@pytest.mark.parametrize(("name", "rule"), grid(PEERS))
def test_a_peer_applies_the_rule_to_what_it_heard(name: str, rule: str) -> None:
    federation = small_federation()
    sizes = run_peers(name, rule, federation, lost=sorted(federation)[1])
    assert max(sizes) == (2 if name == "mapl-plus-learned" else 3)  # of a ring; edges that it unlearns are gone
    assert len(sizes) > 6


@pytest.mark.parametrize("name", sorted(set(GLOBAL) - {"scaffold"}))
def test_the_mean_has_the_bits_of_the_weighted_mean(name: str) -> None:
    assert EVERY[name].aggregate == "mean"  # type: ignore[union-attr]
    watched = Watched(small_setup(EVERY[name])).rounds(2)
    replies = watched.replies("train")
    wanted = weighted_mean({id: reply.params for id, reply in replies.items()}, weights_of(EVERY[name], replies))
    assert same(watched.server.state["params"], wanted)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "mean"])
def test_a_robust_rule_holds_against_a_scaled_update_where_the_mean_does_not(rule: str) -> None:
    """Through settings as a user gives them, with one adversary of six."""
    ends = {}
    for name in ("mean", rule):
        method = named("fedavg", weights="equal", aggregate=name)
        engine = LocalEngine(with_settings(small_setup(method), adversaries="scale:0.17:1000"))
        start = flat(engine.server.initial)
        engine.round(1)
        ends[name] = float(np.linalg.norm(flat(engine.server.state["params"]) - start))
    assert ends[rule] < ends["mean"] / 20
