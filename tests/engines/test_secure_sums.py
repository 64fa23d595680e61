"""Secure sums: the mean of a group, equal to the plain one, of which the server sees nothing but the sum."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedkin.engines import LocalEngine, LoopbackEngine, Privacy, RecordingObserver, Setup, secure_sums
from fedkin.engines.masks import BOUND, FixedPoint, joined, mask, shares_of
from fedkin.engines.results import SERVER, Missing
from fedkin.engines.secure_sums import KEYS, MASKED, SHARES, STEPS, SURVIVORS, UNMASK, GroupSum, neighbours
from fedkin.errors import ConfigError, MethodError
from fedkin.flow import Mean, Message
from fedkin.methods import METHODS
from support import QUICK, Losing, begun, play, same, small_federation, small_setup, trained_models, with_settings

Change = Callable[[str, dict[str, Message]], Mapping[str, Message]]
SECURE = Privacy(secure_sums=True)


# -- one sum, without an engine ---------------------------------------------------------------------------------------


class Town:
    """Members with a vector and a weight each, and a server that asks them step by step."""

    def __init__(self, count: int, length: int = 7, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.ids = [f"c{number:03}" for number in range(count)]
        self.weights = {id: int(draw.integers(1, 100)) for id in self.ids}
        self.vectors = {id: {"w": torch.from_numpy(draw.normal(size=length))} for id in self.ids}
        signatures = secure_sums.MemoryKeys()
        self.members = {id: secure_sums.SumMember(id, self.weights[id], signatures, 3) for id in self.ids}
        self.errors: dict[tuple[str, str], str] = {}
        self.seen: list[Message] = []

    def run(
        self, absent: Callable[[str, str], bool] = lambda step, id: False,
        requests: Change = lambda step, messages: messages, replies: Change = lambda step, messages: messages,
    ) -> GroupSum:  # fmt: skip
        """A sum; absent(step, id): whether a member's reply is lost; what somebody changes on the way."""
        one = GroupSum(Mean(), "train", dict.fromkeys(self.ids, Message(params={})), 3)
        for step in STEPS:
            answers = {}
            for id, message in requests(step, one.requests).items():
                reply = Message(params=self.vectors[id], n=self.weights[id]) if step == MASKED else None
                try:
                    answer = self.members[id].answer(step, message, reply)
                except MethodError as error:
                    self.errors[step, id] = str(error)
                    continue
                self.seen.append(answer)
                if not absent(step, id):
                    answers[id] = answer
            one.take(replies(step, answers))
        return one

    def exact(self, one: GroupSum) -> bool:
        """Whether the sum is the mean of those that are in it, but for the rounding of fixed-point numbers."""
        found = one.params({"w": torch.zeros_like(self.vectors[self.ids[0]]["w"], dtype=torch.float64)})["w"]
        vectors, weights = zip(*((self.vectors[id]["w"].numpy(), self.weights[id]) for id in one.replies), strict=True)
        mean = np.average(vectors, axis=0, weights=weights)
        total = sum(self.weights.values())
        bound = len(self.ids) * 2.0 ** -(FixedPoint(total).bits + 1) / min(self.weights.values())
        return bool(np.abs(found.numpy() - mean).max() <= bound + 1e-15 * (1 + np.abs(mean).max()))


@given(count=st.integers(3, 9), length=st.integers(1, 20), seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_sum_is_of_those_whose_numbers_came(count: int, length: int, seed: int, data: st.DataObject) -> None:
    town = Town(count, length, seed)
    lost = data.draw(st.dictionaries(st.sampled_from(town.ids), st.sampled_from(STEPS), max_size=count // 3))
    one = town.run(absent=lambda step, id: lost.get(id) == step)
    if one.failed:
        assert lost
        assert not one.replies
        return
    there = [id for id in town.ids if lost.get(id) not in (KEYS, SHARES, MASKED)]
    assert list(one.replies) == there
    assert town.exact(one)


def test_too_few_members_give_no_sum() -> None:
    one = Town(6).run(absent=lambda step, id: step == MASKED and id in ("c001", "c002"))
    assert "4 of 6 members answered secure.masked, fewer than 5" in one.failed
    assert not one.replies
    assert "fewer than privacy.min_members = 3" in Town(2).run().failed


def test_many_members_mask_with_some_on_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_sums, "NEIGHBOURS", 6)
    near = [neighbours(20, place, b"transcript") for place in range(20)]
    assert all(len(row) == 6 and all(place in near[other] for other in row) for place, row in enumerate(near))
    assert near != [neighbours(20, place, b"another") for place in range(20)]
    town = Town(20)
    one = town.run(absent=lambda step, id: (step, id) in ((MASKED, "c003"), (UNMASK, "c011")))
    assert not one.failed
    assert len(one.replies) == 19
    assert town.exact(one)


@given(st.lists(st.floats(-BOUND, BOUND), min_size=1, max_size=30), st.integers(1, 10**6))
def test_fixed_point_is_as_exact_as_it_says(numbers: list[float], weight: int) -> None:
    fixed = FixedPoint(weight)
    decoded = fixed.decode(fixed.encode(np.array(numbers), weight)) / weight
    assert np.abs(decoded - numbers).max() <= 2.0 ** -(fixed.bits + 1) / weight + 2e-13


@pytest.mark.parametrize("number", [BOUND * 1.01, np.inf, np.nan])
def test_an_overflow_is_refused_before_anything_leaves(number: float) -> None:
    town = Town(4)
    town.vectors["c002"] = {"w": torch.full((7,), number)}
    one = town.run()
    assert "above 1024 or not finite" in town.errors[MASKED, "c002"]
    assert "c002" not in one.replies
    assert town.exact(one)


def test_the_largest_sums_do_not_overflow() -> None:
    town = Town(9)
    town.vectors = {id: {"w": torch.full((7,), BOUND if id < "c005" else -BOUND).double()} for id in town.ids}
    assert town.exact(town.run())


@given(st.binary(min_size=32, max_size=32), st.integers(2, 6), st.integers(0, 4), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_enough_shares_give_the_secret(secret: bytes, enough: int, more: int, random: Any) -> None:
    points = random.sample(range(1, 100), enough + more)
    shares = shares_of(secret, points, enough)
    some = random.sample(points, enough)
    assert joined({point: shares[point] for point in some}) == secret
    if more:
        # Fewer shares fit to every other secret too: the share of one more point decides.
        fewer = {point: shares[point] for point in some[1:]}
        assert all(shares_of(bytes(32), points, enough)[point] != shares[point] for point in fewer)


# -- what the server sees, and a server or a member that lies ---------------------------------------------------------


def at(step: str, fields: Callable[[str, Message], Mapping[str, Any]]) -> Change:
    """What replaces fields of all messages of this step: fields(id, message)."""

    def changed(now: str, messages: dict[str, Message]) -> Mapping[str, Message]:
        if now != step:
            return messages
        return {id: Message(**{**message, **fields(id, message)}) for id, message in messages.items()}

    return changed


def test_a_spy_at_the_server_sees_uniform_numbers_only() -> None:
    town = Town(5, length=4000)
    town.vectors = {id: {"w": torch.zeros(4000)} for id in town.ids}
    town.run()
    masked = [reply["masked"].numpy().view(np.uint64) for reply in town.seen if "masked" in reply]
    assert len(masked) == 5
    # Masks are drawn from the system's randomness, so that some honest draw fails any test: one of 10^9 fails these.
    for words in masked:
        assert stats.kstest(words / 2.0**64, "uniform").pvalue > 1e-9
        assert stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-9
    for one, other in pairwise(masked):
        assert abs(stats.spearmanr(one, other).statistic) < 6.5 / np.sqrt(4000)
    fields = {name for reply in town.seen for name in reply}
    assert fields == {
        "cipher", "mask", "size", "signature", "commitment", "shares", "masked", "n", "seeds", "keys",
    }  # fmt: skip
    for reply in town.seen:
        for share in reply["shares"].values() if "shares" in reply else ():
            assert share.shape == (94,)  # encrypted: two shares, a nonce and a tag


def test_two_lists_of_survivors_unmask_nobody() -> None:
    """The attack on a protocol without consistency: one half of the members are told that c004 has dropped out."""
    town = Town(6)
    honest, forged = [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 5]
    lists = at(SURVIVORS, lambda id, _: {"survivors": honest if id < "c003" or id == "c004" else forged})
    assert town.run(requests=lists).failed
    assert all("signed this list of survivors; 5 are needed" in town.errors[UNMASK, id] for id in town.ids)


def test_a_list_with_strangers_or_without_oneself_is_not_signed() -> None:
    for survivors in ([0, 1, 2, 3, 4, 9], [1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4], [0, 1]):
        town = Town(6)
        town.run(requests=at(SURVIVORS, lambda id, message, there=survivors: {"survivors": there}))  # type: ignore[misc]
        assert town.errors[SURVIVORS, "c000"]


def test_a_key_of_the_server_s_own_is_refused() -> None:
    town = Town(5)
    foreign = Town(5).members["c001"].answer(KEYS, Message(session="x", members=town.ids), None)["mask"]
    exchanged = at(SHARES, lambda _, own: {"mask": torch.cat([own["mask"][:32], foreign, own["mask"][64:]])})
    assert town.run(requests=exchanged).failed
    assert all("of 'c001' without its signature" in town.errors[SHARES, id] for id in town.ids if id != "c001")
    assert "other keys than those that this member sent" in town.errors[SHARES, "c001"]


def test_shares_of_another_sum_are_refused() -> None:
    town, before = Town(5), dict[str, Any]()
    replayed = at(MASKED, lambda id, message: {"shares": before.setdefault(id, message["shares"])})
    assert not town.run(requests=replayed).failed
    assert town.run(requests=replayed).failed
    assert "sealed by another key, or for another sum" in town.errors[MASKED, "c000"]


def test_a_step_is_answered_once_and_in_order() -> None:
    town = Town(4)
    town.run()
    member = town.members["c000"]
    for step in STEPS[1:]:
        with pytest.raises(MethodError, match=r"is not the next step|cannot be read"):
            member.answer(step, Message(session=member.session), Message())
    for nonsense in (Message(), Message(session=1, members=3), Message(session="a", members=["c000"])):
        with pytest.raises(MethodError):
            member.answer(KEYS, nonsense, None)
    member.answer(KEYS, Message(session="a", members=town.ids))
    with pytest.raises(MethodError, match="a sum of 1 members"):
        member.answer(KEYS, Message(session="b", members=["c000"]))
    with pytest.raises(MethodError, match="is not the next step"):
        member.answer(SHARES, Message(session="b"))


def test_no_field_of_a_reply_is_lost_to_the_counters() -> None:
    town = Town(4)
    answer, params = town.members["c000"].answer, {**town.vectors["c000"], "seen": torch.tensor(2)}

    def counting(step: str, message: Message, reply: Message | None = None) -> Message:
        return answer(step, message, reply and Message(**{**reply, "params": params}, counters=5))

    town.members["c000"].answer = counting  # type: ignore[method-assign]
    town.run()
    assert "cannot be read (TypeError)" in town.errors[MASKED, "c000"]


@pytest.mark.parametrize(("liars", "recovered"), [(1, True), (5, False)])
@pytest.mark.parametrize("which", ["seeds", "keys"])
def test_a_forged_share_never_gives_a_wrong_sum(which: str, liars: int, recovered: bool) -> None:
    town = Town(9)

    def lie(id: str, reply: Message) -> dict[str, Any]:
        return {which: {place: share ^ (id in town.ids[:liars]) for place, share in reply[which].items()}}

    one = town.run(absent=lambda step, id: step == MASKED and id == "c008", replies=at(UNMASK, lie))
    assert (not one.failed) == recovered
    assert not recovered or town.exact(one)
    assert recovered or "do not fit together" in one.failed


def test_the_threshold_is_above_two_thirds() -> None:
    assert [secure_sums.threshold(count - 1) for count in (3, 4, 5, 6, 9, 51)] == [3, 3, 4, 5, 7, 35]


def test_masks_of_different_seeds_have_nothing_in_common() -> None:
    one, other = mask(bytes(32), 1000), mask(b"\1" + bytes(31), 1000)
    assert not (one == other).any()
    assert (mask(bytes(32), 10) == one[:10]).all()


# -- in an engine -----------------------------------------------------------------------------------------------------


def secure(method: str, privacy: Privacy = SECURE, **how: Any) -> Setup:
    return replace(small_setup(METHODS[method](**how)), privacy=privacy)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "kin", "flt-same", "pacfl"])
def test_secure_sums_are_plain_means(method: str) -> None:
    summed, plain = (trained_models(LocalEngine(secure(method, privacy))) for privacy in (SECURE, Privacy()))
    torch.testing.assert_close(summed, plain, rtol=0, atol=2e-6)
    assert same(summed, trained_models(LoopbackEngine(secure(method))))


@pytest.mark.parametrize("step", STEPS)
def test_a_lost_message_of_any_step_is_counted_and_leaves_the_others(step: str) -> None:
    setup = secure("fedavg")
    lost = sorted(setup.federation)[0]
    losing = Losing(lambda envelope: envelope.phase == step and envelope.sender == lost and envelope.receiver == SERVER)
    engine = LocalEngine(setup, transport=losing)
    outcome = engine.round(1)
    assert [row.missing for row in outcome.traffic if row.sender == lost and row.phase == step] == [Missing.LOST]
    moved = engine.server.state["params"]["head.bias"] - setup.net.initial["head.bias"]
    assert float(moved.abs().max()) > 0


def test_the_server_sees_no_parameters() -> None:
    witness = RecordingObserver()
    begun(secure("kin"), observers=[witness], rounds=3)
    sent = [envelope.message for envelope in witness.envelopes if envelope.receiver == SERVER]
    assert any("masked" in message for message in sent)
    assert not any("params" in message for message in sent)


def test_a_server_that_asks_for_a_model_itself_gets_none() -> None:
    setup = secure("fedavg")
    engine = LocalEngine(setup)
    site = engine.site
    id = min(setup.federation)
    assert list(site.replies("train", {id: Message(params=setup.net.initial)})) == []
    assert "leaves a client only in secure sums" in site.failed()[0].cause.reason


@pytest.mark.parametrize(
    ("method", "how", "words"),
    [
        ("sfmtl-graph", {}, "needs .* of each client by itself"),
        ("fedavg", {"aggregate": "median"}, "needs params of each client by itself in phase 'train'"),
        ("mapl", {}, "has no server that could sum"),
    ],
)
def test_methods_that_need_single_models_are_refused(method: str, how: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LocalEngine(secure(method, **how)).round(1)


def test_adversaries_are_refused_beside_them() -> None:
    with pytest.raises(ConfigError, match=r"run\.adversaries"):
        with_settings(secure("fedavg"), adversaries="sign-flip:0.2")


def test_without_cryptography_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedkin\[network\]'"):
        secure("fedavg")


def test_members_of_a_small_group_are_missing_and_named() -> None:
    outcome = LocalEngine(secure("fedavg", Privacy(secure_sums=True, min_members=99))).round(1)
    reasons = {row.reason for row in outcome.traffic}
    assert reasons == {"no secure sum: a group of 6, fewer than privacy.min_members = 99"}


def of_the_page() -> dict[str, set[str]]:
    """{method: fields that are sent as they are}, from the last table of the page on privacy."""
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    head = "| method | fields of each client, besides `n`, that the server sees unmasked |"
    table = page.split(head)[1].split("\n\n")[0]
    listed: dict[str, set[str]] = {}
    for line in table.splitlines()[2:]:
        names, told = line.strip("|").split("|")
        names, _, private = names.partition(" with ")
        fields, kind = set(re.findall(r"`([^`]+)`", told.split(";")[0])), private and f" with {private.strip('` ')}"
        listed |= {f"{name}{kind}": fields for name in re.findall(r"`([^`]+)`", names)}
    return listed


@pytest.mark.slow
def test_the_page_says_which_methods_run_and_what_is_still_seen() -> None:
    federation = small_federation()
    groups = {kind: tuple(id for id in federation if federation[id].group == kind) for kind in ("g0", "g1")}
    seen: dict[str, set[str]] = {}
    cases = [(name, name, SECURE) for name in sorted(set(METHODS) - {"local", "mixed"})]
    signing = Privacy(secure_sums=True, signature_epsilon=4.0)
    cases += [(f"{name} with signature_epsilon", name, signing) for name in ("kin", "flt-same")]
    for case, name, privacy in cases:
        how = {**QUICK.get(name, {}), **({"groups": groups} if name == "given" else {})}
        witness = RecordingObserver()
        with suppress(ConfigError):
            # Long enough for kin's choice.
            setup = small_setup(METHODS[name].model_validate(how), rounds=12, local_steps=1)
            engine = LocalEngine(replace(setup, privacy=privacy), observers=[witness])
            play(engine, *range(1, 9 if name == "kin" else 3))
            sent = [each for each in witness.envelopes if each.receiver == SERVER]
            assert any(each.phase == MASKED for each in sent), name
            fields = {field for each in sent if each.phase not in (set(STEPS) - {MASKED}) for field in each.message}
            seen[case] = fields - {"masked", "n"}
    assert seen == of_the_page()
