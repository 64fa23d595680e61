"""`[privacy]` in runs: what is released, how often, what stays equal, and what a spent budget does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedkin
from fedkin.engines import Envelope, LocalEngine, LoopbackEngine, Privacy, RecordingObserver, Setup
from fedkin.engines.ledger import KEY
from fedkin.engines.privacy import keyed, system_noise
from fedkin.engines.results import SERVER, Missing
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Change, Federation
from fedkin.flow import Fitted, Message, PeerFlow
from fedkin.methods.dfedavgm import DFedAvgM
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.flt import Flt
from fedkin.methods.given import Given
from fedkin.methods.mapl import Mapl
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.testing import Losing, small_federation, small_setup
from fedkin.views import PeerView
from support import NET_METHODS, PATTERNS, begun, by_pattern, changed, finite, goes_on, same, site_of, trained_models

NAMES = sorted(small_federation())
# What [privacy] refuses, and why.
SUMS = "sums or moments"
REFUSED = {"kin": SUMS, "flt": "sums", "flt-same": SUMS, "ifca": "a choice that a client makes"}
CASES: dict[str, Any] = {name: method() for name, method in NET_METHODS.items()}
CASES["given"] = Given(groups={"all": tuple(small_federation())})
CASES["sfmtl-mean"] = SfmtlGraph(anchors="mean")
RUNNING = sorted(set(CASES) - set(REFUSED))


def private(method: Any, clip: Any = 1.0, noise: float = 0.3, budget: float | None = None, **settings: Any) -> Setup:
    return replace(small_setup(method, **settings), privacy=Privacy(clip=clip, noise=noise, budget=budget))


def paid(engine: LocalEngine) -> dict[str, int]:
    """How many releases each client counts."""
    return {id: one["releases"] for id, one in engine.releases().items()}


def moved(params: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> Tensor:
    """How far parameters are from others, as one vector."""
    return torch.cat([(params[name] - start[name]).flatten() for name in params])


def uploads(engine: LocalEngine) -> Counter[str]:
    """How many messages each client has sent in this round, however often."""
    return Counter(row.sender for row in engine.log.traffic if row.sender != SERVER and row.bytes)


class Keeping(Losing):
    """Keeps what clients send, also what is lost."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[Envelope] = []

    def carry(self, envelope: Envelope) -> Envelope | Missing:
        if envelope.sender != SERVER:
            self.seen.append(envelope)
        return super().carry(envelope)


# -- every method -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", by_pattern(RUNNING))
def test_every_method_ends_finite(name: str) -> None:
    engine = LocalEngine(private(CASES[name]))
    assert finite(trained_models(engine))
    assert not [row for row in engine.log.traffic if row.missing]
    assert {count > 0 for count in paid(engine).values()} == {name != "local"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_or_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(RunError, match=REFUSED[name]) as refused:
        LocalEngine(private(CASES[name])).round(1)
    assert "\n" not in str(refused.value)


def test_flt_with_centres_of_images() -> None:
    """Its centres are one release; the sums with which it would standardise a table are refused."""
    flt = Flt.model_validate({"k": 2, "graph": {"groups": 2, "embedding": "none", "gamma": "groups"}})
    images = fedkin.federate("digits", "rotated-masked", clients=4, seed=0)
    engine = LocalEngine(private(flt, clip={"centres": 3.0, "params": 1.0}, federation=images))
    assert finite(trained_models(engine))
    assert all(one == {"releases": 4, "signed": 0.0, "open": {"train": ["n"]}} for one in engine.releases().values())
    with pytest.raises(RunError, match=r"phase 'measure': 'total' holds sums"):
        LocalEngine(private(flt)).round(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*PATTERNS} & {*RUNNING}))
def test_off_and_out_of_reach_are_the_same_bits(name: str) -> None:
    off = trained_models(LocalEngine(small_setup(CASES[name])))
    assert same(off, trained_models(LocalEngine(private(CASES[name], clip=1e12, noise=0.0))))
    if name != "local":
        assert not same(off, trained_models(LocalEngine(private(CASES[name]))))


def test_off_leaves_no_trace_in_states() -> None:
    engine = begun(small_setup(SfmtlGraph()))
    assert not [id for id in engine.states if KEY in engine.states[id]]
    assert engine.releases() == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*PATTERNS} & {*RUNNING}))
def test_neither_bytes_nor_the_order_of_clients_nor_a_restart_matter(name: str) -> None:
    turned = small_federation().reorder(list(small_federation())[::-1])
    local, loopback = LocalEngine(private(CASES[name])), LoopbackEngine(private(CASES[name]))
    one = trained_models(local)
    assert same(one, trained_models(LocalEngine(private(CASES[name], federation=turned))))
    torch.testing.assert_close(trained_models(loopback), one, rtol=1e-5, atol=1e-5)
    assert local.releases() == loopback.releases()
    assert goes_on(local, 4)


# -- what is sent -------------------------------------------------------------------------------------------------


def test_the_accountant_is_told_the_noise_that_is_there() -> None:
    """Sensitivity 2 C, the noise multiplier times that in every number, and one release for a message."""
    clip, noise = 0.01, 3.0
    clipped, noised = Keeping(), Keeping()
    LocalEngine(private(FedAvg(), clip=clip, noise=0.0), transport=clipped).round(1)
    engine = begun(private(FedAvg(), clip=clip, noise=noise), transport=noised)
    initial = engine.setup.net.initial
    added, lengths = [], []
    for one, other in zip(clipped.seen, noised.seen, strict=True):
        assert one.sender == other.sender
        added.append(moved(other.message.params, one.message.params))
        lengths.append(float(moved(one.message.params, initial).norm()))
    assert max(lengths) <= clip * (1 + 1e-4)
    assert min(lengths) > clip * (1 - 1e-4)  # every client is clipped, so that two may differ by 2 C
    measured = torch.cat(added)
    spread = float(measured.std()) / (2 * clip)
    assert abs(spread / noise - 1) < 5 / math.sqrt(2 * len(measured))
    assert {*paid(engine).values()} == {1}
    assert engine.setup.privacy.epsilon(1) == Privacy(clip=99.0, noise=noise).epsilon(1)


def test_only_those_that_send_pay() -> None:
    engine, sent = LocalEngine(private(FedAvg(), clients_per_round=2)), Counter[str]()
    for number in (1, 2, 3):
        engine.round(number)
        sent += uploads(engine)
    assert paid(engine) == {id: sent[id] for id in NAMES}
    assert sum(sent.values()) == 6


def test_a_message_that_is_lost_was_released() -> None:
    engine = begun(private(FedAvg()), transport=Losing(lambda envelope: envelope.sender == NAMES[0]))
    assert paid(engine)[NAMES[0]] == 1


def test_a_skipped_round_stays_paid() -> None:
    losing = Losing(lambda envelope: envelope.receiver == SERVER and envelope.sender != NAMES[0])
    setup = private(SfmtlGraph())
    patient = setup.engine.model_copy(update={"min_replies": 3, "on_missing": "skip"})
    engine = LocalEngine(replace(setup, engine=patient), transport=losing)
    before = engine.models()
    for number in (1, 2):
        assert engine.round(number).skipped
    assert {*paid(engine).values()} == {2}
    assert same(before, engine.models())


def test_fields_that_are_noised_apart_are_releases_of_their_own() -> None:
    engine = begun(private(SfmtlGraph(), clip={"head": 1.0, "anchors": 5.0}))
    assert {*paid(engine).values()} == {2}
    assert engine.releases()[NAMES[0]]["open"] == {"train": ["classes", "n"]}


def test_heads_are_measured_from_those_that_the_server_sent_last() -> None:
    keeping = Keeping()
    engine = LocalEngine(private(SfmtlGraph(), clip={"head": 1e-3, "anchors": 1.0}, noise=0.0), transport=keeping)
    known: dict[str, Mapping[str, Tensor]] = dict.fromkeys(NAMES, engine.setup.net.initial)
    for number in (1, 2):
        keeping.seen.clear()
        engine.round(number)
        for envelope in [one for one in keeping.seen if one.phase == "train"]:
            length = float(moved(envelope.message["head"], known[envelope.sender]).norm())
            assert length == pytest.approx(1e-3, rel=1e-2)
        known = {id: engine.states[id][KEY]["known"]["head"] for id in NAMES}
        assert not any(moved(known[id], engine.states[id]["params"]).any() for id in NAMES)


def test_a_snapshot_is_measured_from_the_model_that_was_sent() -> None:
    setup, witness = private(CASES["drfa"], {"params": 1e-3, "snapshot": 1e-3, "loss": 1.0}, 0.0), RecordingObserver()
    trained_models(LocalEngine(setup, observers=[witness]), 2)
    _, ask, replies = [asked for asked in witness.asks if asked[1].phase == "train"][-1]
    for id, reply in replies.items():
        assert float(moved(reply["snapshot"], ask.messages[id].params).norm()) <= 1.1e-3


def test_what_a_peer_shares_with_many_is_one_release() -> None:
    keeping = Keeping()
    engine = begun(private(DFedAvgM(), clip=0.1), transport=keeping)
    for id in NAMES:
        one, *others = [envelope.message.params for envelope in keeping.seen if envelope.sender == id]
        assert len(others) == 4
        assert all(same(one, other) for other in others)
        # The next message is measured from this one, which all neighbours have.
        assert same(one, engine.states[id][KEY]["known"]["params"])
    assert {*paid(engine).values()} == {1}


class Failing(DFedAvgM):
    """A peer fails after it has shared its model."""

    def round(self, peer: PeerView[Any]) -> PeerFlow[None]:
        yield from super().round(peer)
        if peer.id == NAMES[0]:
            raise ValueError("after sharing")


def test_a_peer_that_fails_after_sharing_has_paid() -> None:
    engine = LocalEngine(private(Failing()))
    for number in (1, 2):
        engine.round(number)
        assert [row.sender for row in engine.log.traffic if row.missing] == [NAMES[0]]
    assert {*paid(engine).values()} == {2}


def test_requests_beside_a_shared_message_cost_nothing() -> None:
    """MAPL's peers add a flag for some of their neighbours: what they have in common is noised once."""
    keeping = Keeping()
    engine = LocalEngine(private(Mapl(warmup=0)), transport=keeping)
    trained_models(engine, rounds=2)
    phases = Counter((e.sender, e.round, e.phase) for e in keeping.seen)
    assert paid(engine) == Counter(sender for sender, _, _ in phases)
    for at in phases:
        sent = [e.message for e in keeping.seen if (e.sender, e.round, e.phase) == at]
        for field in ("prototypes", "head"):
            values = {str(message[field]) for message in sent if field in message}
            assert len(values) <= 1


# -- a budget -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FedAvg(), SfmtlGraph(), DFedAvgM()])
def test_a_spent_budget_ends_the_sending_and_not_the_run(method: Any) -> None:
    privacy = Privacy(clip=1.0, noise=1.0)
    budget = (privacy.epsilon(2) + privacy.epsilon(3)) / 2
    engine = LocalEngine(private(method, noise=1.0, budget=budget))
    for number in (1, 2):
        engine.round(number)
        assert not [row for row in engine.log.traffic if row.missing]
    before = engine.models()
    engine.round(3)
    reasons = {row.sender: row.reason for row in engine.log.traffic if row.missing}
    assert sorted(reasons) == NAMES
    assert all(text.startswith("epsilon after 2 releases") for text in reasons.values())
    assert not uploads(engine)
    assert {*paid(engine).values()} == {2}
    # Without a server a peer goes on by itself; with one, nobody has anything new.
    assert same(before, engine.models()) != isinstance(method, DFedAvgM)


def test_others_go_on_when_some_are_spent() -> None:
    privacy = Privacy(clip=1.0, noise=1.0)
    engine = begun(private(FedAvg(), noise=1.0, budget=privacy.epsilon(1) * 1.01, clients_per_round=3))
    first = set(uploads(engine))
    engine.round(2)
    second = set(uploads(engine))
    assert second
    assert not first & second
    assert {row.sender for row in engine.log.traffic if row.missing == "spent"} <= first


# -- a deployment -------------------------------------------------------------------------------------------------


def replies(noise: Any) -> list[Message]:
    """What one client sends for the same request in two runs with one seed, each with draws from this source."""
    sent = []
    for _ in range(2):
        setup = private(FedAvg()).equipped()
        side = site_of(setup, noise=noise)
        side.turn_to(1)
        running = side.flow(NAMES[0], "train", Message(params=setup.net.initial))
        running.resume(None)
        running.resume(Fitted({name: tensor + 0.01 for name, tensor in setup.net.initial.items()}, {}, 0.5, 1, 10))
        sent.append(side.finish_reply(running))
    return sent


def test_a_node_draws_from_the_operating_system() -> None:
    one, other = replies(system_noise)
    assert not any(torch.equal(one.params[name], other.params[name]) for name in one.params)
    one, other = replies(keyed(0))
    assert same(one.params, other.params)


@pytest.mark.parametrize("privacy", [Privacy(clip=1.0, noise=0.3), Privacy(signature_epsilon=4.0)], ids=str)
def test_whoever_forgets_to_say_where_noise_comes_from_gets_none(privacy: Privacy) -> None:
    """A node that is given no source must not fall back on noise that its server can compute."""
    setup = replace(small_setup(CASES["kin"]), privacy=privacy).equipped()
    with pytest.raises(ConfigError, match="no source of noise was given"):
        site_of(setup)
    site_of(setup, noise=keyed(0))
    site_of(private(FedAvg(), noise=0.0).equipped())


@pytest.mark.parametrize("privacy", [Privacy(signature_epsilon=4.0), Privacy(sample_epsilon=4.0)], ids=str)
def test_what_counts_for_samples_that_stay_refuses_drift(privacy: Privacy, federation: Federation) -> None:
    first = federation[NAMES[0]]
    drifting = changed(federation, first.id, changes=(Change(2, first.test, first.test, None),))
    with pytest.raises(ConfigError, match="samples change over time"):
        LocalEngine(replace(small_setup(CASES["kin"], drifting, batch_size="all"), privacy=privacy))
