"""`[privacy]` over a network: noise of the client's own, releases that nothing takes back, and limits of its owner."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.engines.epsilon import total_epsilon
from fedkin.engines.ledger import Ledger, Page
from fedkin.engines.privacy import BudgetSpent, Privacy
from fedkin.errors import RunError
from fedkin.flow import Message
from fedkin.graph import Plan
from fedkin.methods.blocks.signatures import tensors
from fedkin.network import agreement
from fedkin.network.consent import disclosure
from fedkin.network.hello import about_of
from fedkin.network.peer_exchange import PeerOutbox
from fedkin.network.status import FILE, read_status
from fedkin.running.experiment import Experiment
from fedkin.running.networked import settings_of, setup_of
from network.federations import NOWHERE, Clients, Killed, experiment, simulated, state_in
from network.peers import Peers
from network.test_client import Server, by_hand
from support import NEEDS_ACCOUNTANT, flat, same

NOISE = {"clip": 1.0, "noise": 2.0}
PLAN = experiment(clients=2, privacy=NOISE)
PRIVATE = Privacy(**NOISE)
FIELDS = {"params": {"head.bias": torch.arange(3.0)}, "loss": 0.25}


# -- the ledger -----------------------------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Ledger(tmp_path).page("run1", PRIVATE)


def test_a_release_is_kept_counted_and_never_taken_back(page: Page, tmp_path: Path) -> None:
    page.keep("3 train - 0", 3, 1, FIELDS)
    page.keep("3 train - 1", 3, 2, {"loss": 1.0})
    for ledger in (page.ledger, Ledger(tmp_path)):
        again = ledger.page("run1", PRIVATE)
        assert same(again.find("3 train - 0"), FIELDS)
        assert (again.count, again.spent) == (3, PRIVATE.epsilon(3))
        assert (again.known("3 train "), again.known("4 train ")) == (True, False)
    other = Ledger(tmp_path).page("run2", PRIVATE)
    assert (other.count, other.find("3 train - 0")) == (0, None)
    assert other.ledger.epsilon(1e-5) == pytest.approx(PRIVATE.epsilon(3))


def test_numbers_of_the_last_rounds_are_kept_and_the_count_of_all(page: Page, tmp_path: Path) -> None:
    for round in range(1, 7):
        page.keep(f"{round} train - 0", round, 1, FIELDS)
    assert [page.find(f"{round} train - 0") is not None for round in range(1, 7)] == [False] * 3 + [True] * 3
    assert page.count == 6
    assert len(list((tmp_path / "run1").glob("*.release"))) == 3
    assert len((tmp_path / "releases.jsonl").read_text().splitlines()) == 6


def test_a_line_that_a_kill_left_half_written_is_cut_off(page: Page, tmp_path: Path) -> None:
    page.keep("1 train - 0", 1, 1, FIELDS)
    path = tmp_path / "releases.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    again = Ledger(tmp_path).page("run1", PRIVATE)
    assert (again.count, path.read_bytes()) == (1, whole)
    again.keep("2 train - 0", 2, 1, FIELDS)
    assert Ledger(tmp_path).page("run1", PRIVATE).count == 2


@pytest.mark.parametrize(
    "line",
    [
        "{}", "nonsense", "[1]", "\xff",
        '{"run":"a","at":"1","count":-5,"noise":2.0,"share":0}',
        '{"run":"a","at":"0","count":1,"noise":2.0,"share":2}',
        '{"run":"a","at":"0","count":1,"noise":0.0,"share":0,"rate":0.5}',
        '{"run":"a","at":"0","count":1,"noise":2.0,"share":0,"rate":-1}',
    ],
)  # fmt: skip
def test_a_damaged_ledger_is_refused_as_nobody_knows_what_was_released(page: Page, tmp_path: Path, line: str) -> None:
    page.keep("1 train - 0", 1, 1, FIELDS)
    path = tmp_path / "releases.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n" + path.read_bytes())
    with pytest.raises(RunError, match=r"releases\.jsonl: line 1 is damaged"):
        Ledger(tmp_path)


def test_released_numbers_that_are_damaged_or_were_not_counted_are_not_sent_again(page: Page, tmp_path: Path) -> None:
    page.keep("1 train - 0", 1, 1, FIELDS)
    (file,) = (tmp_path / "run1").glob("*.release")
    data = file.read_bytes()
    file.write_bytes(data[:-9])
    assert page.find("1 train - 0") is None
    file.write_bytes(data)
    (tmp_path / "releases.jsonl").unlink()  # as if killed before the line was written
    assert Ledger(tmp_path).page("run1", PRIVATE).find("1 train - 0") is None


def test_a_salted_digest_is_the_same_again_and_other_elsewhere(tmp_path: Path) -> None:
    told = Ledger(tmp_path / "a").salted("digest")
    assert told == Ledger(tmp_path / "a").salted("digest")
    assert len({told, "digest", Ledger(tmp_path / "b").salted("digest"), Ledger(tmp_path / "a").salted("other")}) == 4
    assert len(told) == 32


def test_releases_with_unlike_noise_compose() -> None:
    def together(*noises: float) -> float:
        ledger = Ledger()
        for noise in noises:
            ledger.page("run", Privacy(clip=1, noise=noise)).keep("1 train - 0", 1, 1, FIELDS)
        return ledger.epsilon(1e-5)

    assert together(*[3.0] * 7) == pytest.approx(Privacy(clip=1, noise=3).epsilon(7))
    # Two releases with noise s sqrt(2) tell as much as one with noise s.
    assert together(2.0, 2**1.5, 2**1.5) == pytest.approx(Privacy(clip=1, noise=2).epsilon(2))
    assert together(2.0, 5.0) > together(2.0)
    assert together(2.0, 0.0) == math.inf


def test_the_owners_limit_holds_over_all_runs(tmp_path: Path) -> None:
    limit = PRIVATE.epsilon(3) + 1e-6
    for run, count in (("run1", 2), ("run2", 1)):
        page = Ledger(tmp_path, limit).page(run, PRIVATE)
        for number in range(count):
            page.check(1)
            page.keep(f"1 train - {number}", 1, 1, FIELDS)
    for number in (1, 2):
        with pytest.raises(BudgetSpent, match="above its owner's limit"):
            Ledger(tmp_path, limit).page("run3", PRIVATE).check(number)
    Ledger(tmp_path).page("run3", PRIVATE).check(1)


# -- a client ---------------------------------------------------------------------------------------------------------


def rejoin(server: Server, ledger: Ledger, epoch: str, lost: Path | None = None) -> None:
    """Stop the client c00, let it lose the files in the folder `lost`, and start it with this ledger; it joins."""
    server.there.stop("c00")
    for path in [] if lost is None else list(lost.glob("*")):
        path.unlink()
    server.there.start("c00", ledger=ledger)
    server.join(epoch)


def test_a_server_that_goes_back_and_asks_again_gets_the_same_bytes(tmp_path: Path) -> None:
    """Another question is another release, and a lost state takes no release back."""
    with by_hand(tmp_path, PLAN, ledger=Ledger(tmp_path / "ledger")) as server:
        about, client = server.hello["about"], server.there.federation["c00"]
        assert about["n_train"] == client.size
        assert about["digest"] != about_of(client, server.task).digest  # others have samples to compare it with
        first = server.train()
        assert first["spent"]["releases"] == 1
        rejoin(server, Ledger(tmp_path / "ledger"), "e2")  # a server that has lost round 1
        again = server.train()
        assert same(first["reply"], again["reply"])
        assert again["spent"]["releases"] == 1
        rejoin(server, Ledger(tmp_path / "ledger"), "e3", lost=server.there.root / "c00" / "r1")
        other = server.train(moved=1)
        assert other["spent"]["releases"] == 2
        assert not same(first["reply"], other["reply"])


def test_a_client_releases_nothing_beyond_its_owners_limit(tmp_path: Path) -> None:
    """But sends again what it has released."""
    limit = PRIVATE.epsilon(1) + 1e-6
    with by_hand(tmp_path, PLAN, ledger=Ledger(tmp_path / "ledger", limit)) as server:
        first = server.train()
        assert set(first["reply"]) == {"params", "n"}
        told = server.train(round=2, last=1)
        assert "reply" not in told
        assert told["failed"]["kind"] == "spent"
        assert "above its owner's limit" in told["failed"]["words"]
        assert told["spent"]["releases"] == 1
        rejoin(server, Ledger(tmp_path / "ledger", limit), "e2")
        assert same(first["reply"], server.train()["reply"])


def disclosed(plan: Experiment, ledger: Ledger) -> list[str]:
    """What the client c00 is told that leaves."""
    federation = plan.federation(NOWHERE)
    setup = setup_of(settings_of(plan), federation.task).equipped()
    return disclosure(setup, federation["c00"], page=ledger.page("", setup.privacy))


def test_what_leaves_is_told_with_what_it_costs() -> None:
    ledger = Ledger(limit=9.0)
    lines = disclosed(PLAN, ledger)
    assert "n (a whole number; as it is)" in lines[0]
    assert "; with noise)" in lines[0]
    assert lines[1] == (
        "noise: fields 'with noise' are clipped to the norm (all together 1), and get normal noise of 4 times that, "
        "drawn from this machine's own randomness"
    )
    costs = f"epsilon: {PRIVATE.epsilon(3):.3g} at delta 1e-05 after 3 rounds with one message of each kind; no more"
    assert lines[2] == costs
    assert lines[3] == "nothing more is sent above epsilon 9 (set by this participant, over all runs)"
    assert lines[-1].endswith("without noise")
    ledger.page("run1", PRIVATE).keep("1 train - 0", 1, 4, FIELDS)
    assert f"epsilon so far: {PRIVATE.epsilon(4):.3g}, with all runs on this machine" in disclosed(PLAN, ledger)


def test_a_server_that_asks_for_more_than_was_consented_gets_no_more(tmp_path: Path) -> None:
    """Three rounds of one release each: whatever is asked in them, there are three releases."""
    ledger = Ledger(tmp_path / "ledger")
    with by_hand(tmp_path, PLAN, ledger=ledger) as server:
        said = [server.train(round=1 + asked // 4, last=asked // 4, moved=asked) for asked in range(8)]
        assert ["reply" in each for each in said] == [True] * 3 + [False] * 5
        assert said[-1]["spent"]["releases"] == 3
        assert "its owner consented to 3" in said[-1]["failed"]["words"]
    assert ledger.epsilon(PRIVATE.delta) == pytest.approx(PRIVATE.epsilon(3))


@pytest.mark.parametrize("privacy", [{}, {"clip": 1.0, "noise": 0.0}])
def test_a_client_with_a_limit_leaves_a_federation_without_noise(privacy: dict[str, float], tmp_path: Path) -> None:
    with by_hand(tmp_path, experiment(clients=1, privacy=privacy), joins=False, ledger=Ledger(limit=3.0)) as server:
        server.there.join("c00")
        assert server.there.errors["c00"].startswith("--max-epsilon 3: this federation adds no noise")
        assert server.link.bytes_in == {}


# -- peers ------------------------------------------------------------------------------------------------------------


def sent(root: Path) -> dict[str, Any]:
    """What a peer offered in its last rounds."""
    return {f"{round}/{turn}/{to}": data for round, turn, to, data in PeerOutbox(root / "sent").read()}


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [NOISE, pytest.param({"sample_epsilon": 2.0}, marks=NEEDS_ACCOUNTANT)])
def test_a_peer_that_is_killed_in_a_round_sends_what_it_released_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privacy: dict[str, float]
) -> None:
    from fedkin.network.peer import PeerEngine

    first, inbox = "c00", PeerEngine._inbox
    killed: list[int] = []

    def stop_there(engine: PeerEngine, number: int, *rest: Any) -> dict[str, Message]:
        if engine.client.id == first and number == 2 and not killed:
            killed.append(number)
            raise Killed
        return inbox(engine, number, *rest)

    monkeypatch.setattr(PeerEngine, "_inbox", stop_there)
    plan = experiment("dfedavgm", clients=3, rounds=3, privacy=privacy, network={"grace": 30.0})
    here, ledger = simulated(plan, tmp_path / "here").summary["privacy"], tmp_path / "ledger"
    with Peers(plan, tmp_path) as there:
        names = sorted(there.federation)
        there.start(first, ledger=Ledger(ledger))
        there.start(*names[1:])
        there.join(first)
        assert killed == [2]
        before = sent(there.root / first)
        there.start(first, ledger=Ledger(ledger))
        there.ended()
    after = sent(there.root / first)
    common = before.keys() & after.keys()
    assert any(at.startswith("2/0") for at in common)
    assert all(before[at] == after[at] for at in common)
    lines = [json.loads(line) for line in (ledger / "releases.jsonl").read_text().splitlines()]
    assert len(lines) == len({line["at"] for line in lines})
    if privacy == NOISE:
        assert len(lines) == here["releases"][first]
    for name, result in there.results.items():
        told, epsilon = result.summary["privacy"], here["epsilon"]["clients"][name]
        assert told["releases"] == {name: here["releases"][name]}
        assert told["epsilon"]["clients"][name] == pytest.approx(epsilon, rel=1e-4)
        assert read_status(there.root / name / FILE).epsilon == pytest.approx(epsilon, abs=1e-3)


# -- private training -------------------------------------------------------------------------------------------------

TRAINED = experiment(clients=2, rounds=3, privacy={"sample_epsilon": 2.0})
SIZE = TRAINED.federation(NOWHERE)["c00"].size


@pytest.mark.slow
@NEEDS_ACCOUNTANT
def test_the_same_request_gets_the_same_model_at_no_cost_and_another_one_new_draws(tmp_path: Path) -> None:
    """Also after a kill; and never more than was consented to, whatever a server asks."""
    ledger = Ledger(tmp_path / "ledger")
    with by_hand(tmp_path, TRAINED, ledger=ledger) as server:
        first = server.train()
        assert first["spent"]["trained"]["fits"] == 1
        rejoin(server, Ledger(tmp_path / "ledger"), "e2", lost=server.there.root / "c00" / "r1")
        again = server.train()
        assert same(first["reply"], again["reply"])
        assert again["spent"] == first["spent"]
        # Parameters that differ by a constant would be learned with equal noise, which a server could subtract.
        for moved in (1, 2):
            assert server.train(moved=moved)["spent"]["trained"]["fits"] == moved + 1
        last = server.train(round=2, last=1)
        assert "reply" not in last
        assert (last["failed"]["kind"], last["spent"]["trained"]["fits"]) == ("spent", 3)
        assert "all that privacy.sample_epsilon allows" in last["failed"]["words"]
    kept = Ledger(tmp_path / "ledger")
    assert len(kept.lines) == 3
    assert kept.epsilon(1e-5) == pytest.approx(2.0, rel=1e-4)


@NEEDS_ACCOUNTANT
def test_draws_depend_on_the_participants_secret_and_on_its_samples(tmp_path: Path) -> None:
    client, replies = TRAINED.federation(NOWHERE)["c00"], []
    changed = replace(client, train=client.train.take([1, *range(1, client.size)]))
    for name, secret, own in (("one", "one", client), ("other", "other", client), ("replaced", "one", changed)):
        ledger = Ledger(tmp_path / f"{secret}-ledger")
        with by_hand(tmp_path / name, TRAINED, ledger=ledger, client=own) as server:
            replies.append(flat(server.train()["reply"]["params"]))
    one, *others = replies
    for unlike in others:  # with equal noise, one sample would move it by 3 x .1 x 2 / 16 at most
        assert np.linalg.norm(one - unlike) > max(0.1, float(np.linalg.norm(one - flat(server.setup.net.initial))))


@NEEDS_ACCOUNTANT
def test_the_owners_limit_holds_for_training(tmp_path: Path) -> None:
    """It lies between the epsilon of two fits and that of three."""
    how = TRAINED.privacy.training(SIZE, TRAINED.training, 1)
    limit = total_epsilon(0.0, {(how.rate, how.noise): 8}, 1e-5)
    with by_hand(tmp_path, TRAINED, ledger=Ledger(limit=limit)) as server:
        said = [server.train(round=number, last=number - 1) for number in (1, 2, 3)]
    assert ["reply" in each for each in said] == [True, True, False]
    assert f"above its owner's limit of {limit:g}" in said[-1]["failed"]["words"]


@NEEDS_ACCOUNTANT
def test_what_training_costs_is_told_before_anything_leaves() -> None:
    lines = disclosed(TRAINED, Ledger(limit=9.0))
    how = TRAINED.privacy.training(SIZE, TRAINED.training, 1)
    assert "; from private training), n (a whole number; as it is)" in lines[0]
    assert lines[1] == (
        f"training: a step draws each sample with the probability {16 / SIZE:.3g}, clips its gradient to the "
        f"norm 1, and adds normal noise of {how.noise:.3g} times that, from a secret of this machine's own: epsilon 2 "
        "at delta 1e-05 for one sample; no more fits after that"
    )
    assert lines[2] == "epsilon: 2 at delta 1e-05 after 3 rounds with one message of each kind; no more"


def test_without_the_accountant_a_participant_cannot_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setup is agreed upon before the owner is asked to consent to it."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    setup, here = agreement.setup_and_agreement(settings_of(TRAINED), TRAINED.federation(NOWHERE).task, setup_of)
    assert setup is None
    assert "privacy.sample_epsilon" in here.cannot
    assert "pip install 'fedkin[privacy]'" in here.cannot


# -- signatures -------------------------------------------------------------------------------------------------------

SIGNED = experiment("kin", clients=2, rounds=6, privacy={"signature_epsilon": 3.0})


def asked_for_signature(server: Any, round: int = 1, moved: int = 0) -> dict[str, Any]:
    """The answer to a request for a signature, by a plan that differs where `moved` does."""
    dim = math.prod(server.task.shape)
    plan = tensors(Plan(dim, np.array([20.0]), server.task.classes, None, 32, seed=moved).to_arrays())
    answer: dict[str, Any] = server.train(phase="sign_moments", message=plan, round=round, last=round - 1)
    return answer


def test_a_signature_leaves_once_and_then_as_it_was(tmp_path: Path) -> None:
    """Also after a kill, in later rounds, and if the server has lost its state."""
    ledger = Ledger(tmp_path / "ledger")
    with by_hand(tmp_path, SIGNED, ledger=ledger) as server:
        assert set(server.train(phase="spread", message={})["reply"]) == {"votes", "n"}
        first = asked_for_signature(server)
        assert first["spent"]["signed"] == pytest.approx(1)
        for round in range(2, 6):  # numbers of other rounds would be forgotten by now
            assert same(first["reply"], asked_for_signature(server, round)["reply"])
        rejoin(server, Ledger(tmp_path / "ledger"), "e2")
        assert same(first["reply"], asked_for_signature(server)["reply"])
        other = asked_for_signature(server, moved=1)
        assert "reply" not in other
        assert other["failed"]["kind"] == "spent"
        assert other["spent"]["signed"] == pytest.approx(1)
    again = Ledger(tmp_path / "ledger")
    assert len(again.lines) == 2
    assert again.epsilon(1e-5) == pytest.approx(3.0, rel=1e-6)


def test_noise_is_the_clients_own(tmp_path: Path) -> None:
    for plan, field in ((SIGNED, "sums"), (PLAN, "params")):
        replies = []
        for name in ("one", "other"):
            with by_hand(tmp_path / field / name, plan) as server:
                replies.append((asked_for_signature(server) if plan is SIGNED else server.train())["reply"])
        one, other = (reply[field] if plan is SIGNED else reply[field]["head.bias"] for reply in replies)
        assert not torch.isclose(one, other).any()
        assert replies[0]["n"] == replies[1]["n"]


def test_what_a_signature_costs_is_told_before_it_leaves() -> None:
    lines = disclosed(SIGNED, Ledger())
    told = "\n".join(lines)
    assert "spread: votes (numbers [32]; with noise, once), n (a whole number; as it is) or an empty" in told
    assert "sums (numbers [77]; with noise, once), n (a whole number; as it is)" in told
    assert (
        "signature: fields 'with noise, once' leave once in this run, with normal noise from this machine's own "
        "randomness: epsilon 3 at delta 1e-05 for one sample"
    ) in lines
    assert "epsilon: 3 at delta 1e-05 after 6 rounds with one message of each kind; no more" in lines
    assert "clipped" not in told
    assert "signature (about" not in told
    assert any("params" in line and "as it is" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "epsilon", "phase"),
    [
        (PLAN, PRIVATE.epsilon(3), "train"), (SIGNED, 3.0, "sign_moments"),
        pytest.param(TRAINED, 2.0, "train", marks=NEEDS_ACCOUNTANT),
    ],
)  # fmt: skip
def test_a_network_costs_what_a_simulation_does_and_has_noise_of_its_own(
    plan: Experiment, epsilon: float, phase: str, tmp_path: Path
) -> None:
    """Also when the server stops, loses a round, and goes on: what is asked again is sent again."""
    here = simulated(plan, tmp_path / "here")
    ledgers = {name: Ledger(tmp_path / "ledgers" / name) for name in ("c00", "c01")}
    with Clients(plan, tmp_path) as there:
        for name, ledger in ledgers.items():
            there.start(name, ledger=ledger)
        there.stopped(2)
        newest = max((tmp_path / "there" / "checkpoint").glob("round-*.safetensors"))
        for path in (newest, newest.with_suffix(".json")):
            path.unlink()
        result = there.serve()
        there.ended()
    told, like = result.summary["privacy"], here.summary["privacy"]
    assert (told["releases"], told["epsilon"]) == (like["releases"], like["epsilon"])
    assert told["epsilon"]["max"] == pytest.approx(epsilon, rel=1e-4)
    assert told["open"][phase] == like["open"][phase] == ["n"]
    assert told["open"]["evaluate"] == ["scores"]
    assert told["open"]["join"] == ["group", "n_test", "n_train"]
    status = [read_status(tmp_path / name / FILE) for name in ("there", "nodes/c00")]
    assert status[0].others["c00"].epsilon == status[1].epsilon == pytest.approx(epsilon, rel=1e-4)
    assert not same(state_in(tmp_path / "there")["server"], state_in(tmp_path / "here")["server"])
    for name, ledger in ledgers.items():
        assert ledger.epsilon(1e-5) == pytest.approx(told["epsilon"]["clients"][name], rel=1e-9)
