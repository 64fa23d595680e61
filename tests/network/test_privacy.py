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
from fedkin.engines.ledger import Ledger
from fedkin.engines.privacy import BudgetSpent, Privacy
from fedkin.engines.setup import Setup
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Client, Federation
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
from network.federations import NOWHERE, Ending, Killed, clients, experiment, served, simulated, state_in
from network.peers import peers
from network.test_client import Server, by_hand
from support import NEEDS_ACCOUNTANT, same

NOISE = {"clip": 1.0, "noise": 2.0}
PLAN = experiment(clients=2, privacy=NOISE)
PRIVATE = Privacy(**NOISE)
FIELDS = {"params": {"head.bias": torch.arange(3.0)}, "loss": 0.25}


# -- the ledger -----------------------------------------------------------------------------------------------------


def test_a_release_is_kept_counted_and_never_taken_back(tmp_path: Path) -> None:
    page = Ledger(tmp_path).page("run1", PRIVATE)
    page.keep("3 train - 0", 3, 1, FIELDS)
    page.keep("3 train - 1", 3, 2, {"loss": 1.0})
    for ledger in (page.ledger, Ledger(tmp_path)):
        again = ledger.page("run1", PRIVATE)
        found = again.find("3 train - 0")
        assert found is not None
        assert same(found, FIELDS)
        assert (again.count, again.spent) == (3, PRIVATE.epsilon(3))
        assert (again.known("3 train "), again.known("4 train ")) == (True, False)
    other = Ledger(tmp_path).page("run2", PRIVATE)
    assert (other.count, other.find("3 train - 0")) == (0, None)
    assert other.ledger.epsilon(1e-5) == pytest.approx(PRIVATE.epsilon(3))


def test_numbers_of_the_last_rounds_are_kept_and_the_count_of_all(tmp_path: Path) -> None:
    page = Ledger(tmp_path).page("run1", PRIVATE)
    for round in range(1, 7):
        page.keep(f"{round} train - 0", round, 1, FIELDS)
    assert [page.find(f"{round} train - 0") is not None for round in range(1, 7)] == [False] * 3 + [True] * 3
    assert page.count == 6
    assert len(list((tmp_path / "run1").glob("*.release"))) == 3
    assert len((tmp_path / "releases.jsonl").read_text().splitlines()) == 6


def test_a_line_that_a_kill_left_half_written_is_cut_off(tmp_path: Path) -> None:
    page = Ledger(tmp_path).page("run1", PRIVATE)
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
        "{}",
        "nonsense",
        '{"run":"a","at":"1","count":-5,"noise":2.0,"share":0}',
        '{"run":"a","at":"0","count":1,"noise":2.0,"share":2}',
        '{"run":"a","at":"0","count":1,"noise":0.0,"share":0,"rate":0.5}',
        '{"run":"a","at":"0","count":1,"noise":2.0,"share":0,"rate":-1}',
        "[1]",
        "\xff",
    ],
)
def test_a_damaged_ledger_is_refused_as_nobody_knows_what_was_released(tmp_path: Path, line: str) -> None:
    Ledger(tmp_path).page("run1", PRIVATE).keep("1 train - 0", 1, 1, FIELDS)
    path = tmp_path / "releases.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n" + path.read_bytes())
    with pytest.raises(RunError, match=r"releases\.jsonl: line 1 is damaged"):
        Ledger(tmp_path)


def test_released_numbers_that_are_damaged_or_were_not_counted_are_not_sent_again(tmp_path: Path) -> None:
    page = Ledger(tmp_path).page("run1", PRIVATE)
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
    with pytest.raises(BudgetSpent, match="above its owner's limit"):
        Ledger(tmp_path, limit).page("run3", PRIVATE).check(1)
    with pytest.raises(BudgetSpent):
        Ledger(tmp_path, limit).page("run3", PRIVATE).check(2)
    Ledger(tmp_path).page("run3", PRIVATE).check(1)


@pytest.mark.parametrize("privacy", [Privacy(), Privacy(clip=1.0, noise=0.0)])
def test_a_limit_without_noise_is_refused_before_anything_leaves(privacy: Privacy) -> None:
    with pytest.raises(ConfigError, match="--max-epsilon 4: this federation adds no noise"):
        Ledger(limit=4.0).page("run1", privacy)


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
    federation = PLAN.federation(NOWHERE)
    with by_hand(federation, tmp_path, PLAN, ledger=Ledger(tmp_path / "ledger")) as server:
        about = server.join()["about"]
        client = federation["c00"]
        assert about["n_train"] == client.size
        assert about["digest"] != about_of(client, federation.task).digest  # others have samples to compare it with
        first = server.train()
        assert first["spent"]["releases"] == 1
        rejoin(server, Ledger(tmp_path / "ledger"), "e2")  # a server that has lost round 1
        again = server.train()
        assert same(first["reply"], again["reply"])
        assert again["spent"]["releases"] == 1
        rejoin(server, Ledger(tmp_path / "ledger"), "e3", lost=tmp_path / "c00" / "r1")
        moved = {name: tensor + 1 for name, tensor in server.setup.net.initial.items()}
        other = server.train(message={"params": moved})
        assert other["spent"]["releases"] == 2
        assert not same(first["reply"], other["reply"])


def test_a_client_releases_nothing_beyond_its_owners_limit(tmp_path: Path) -> None:
    """But sends again what it has released."""
    limit = PRIVATE.epsilon(1) + 1e-6
    with by_hand(PLAN.federation(NOWHERE), tmp_path, PLAN, ledger=Ledger(tmp_path / "ledger", limit)) as server:
        server.join()
        first = server.train()
        assert set(first["reply"]) == {"params", "n"}
        told = server.train(round=2, last=1)
        assert "reply" not in told
        assert told["failed"]["kind"] == "spent"
        assert "above its owner's limit" in told["failed"]["words"]
        assert told["spent"]["releases"] == 1
        server.there.stop("c00")
        server.there.start("c00", ledger=Ledger(tmp_path / "ledger", limit))
        server.join("e2")
        assert same(first["reply"], server.train()["reply"])


def disclosed(plan: Experiment, ledger: Ledger) -> tuple[Setup, Client, list[str]]:
    """The setup, the client c00, and what it is told that leaves."""
    federation = plan.federation(NOWHERE)
    setup, _ = agreement.setup_and_agreement(settings_of(plan), federation.task, setup_of)
    assert setup is not None
    client = federation["c00"]
    return setup, client, disclosure(setup, client, page=ledger.page("", setup.privacy))


def test_what_leaves_is_told_with_what_it_costs() -> None:
    ledger = Ledger(limit=9.0)
    _, _, lines = disclosed(PLAN, ledger)
    assert "n (a whole number; as it is)" in lines[0]
    assert "; with noise)" in lines[0]
    assert lines[1] == (
        "noise: fields 'with noise' are clipped to the norm (all together 1), and get normal noise of 4 times that, "
        "drawn from this machine's own randomness"
    )
    assert (
        lines[2]
        == f"epsilon: {PRIVATE.epsilon(3):.3g} at delta 1e-05 after 3 rounds with one message of each kind; no more"
    )
    assert lines[3] == "nothing more is sent above epsilon 9 (set by this participant, over all runs)"
    assert lines[-1].endswith("without noise")
    ledger.page("run1", PRIVATE).keep("1 train - 0", 1, 4, FIELDS)
    assert f"epsilon so far: {PRIVATE.epsilon(4):.3g}, with all runs on this machine" in disclosed(PLAN, ledger)[2]


def test_a_server_that_asks_for_more_than_was_consented_gets_no_more(tmp_path: Path) -> None:
    """Three rounds of one release each: whatever is asked in them, there are three releases."""
    ledger = Ledger(tmp_path / "ledger")
    with by_hand(PLAN.federation(NOWHERE), tmp_path, PLAN, ledger=ledger) as server:
        server.join()
        said = []
        for asked in range(8):
            params = {name: tensor + asked for name, tensor in server.setup.net.initial.items()}
            said.append(server.train(round=1 + asked // 4, last=asked // 4, message={"params": params}))
        assert ["reply" in each for each in said] == [True] * 3 + [False] * 5
        assert said[-1]["spent"]["releases"] == 3
        assert "its owner consented to 3" in said[-1]["failed"]["words"]
    assert ledger.epsilon(PRIVATE.delta) == pytest.approx(PRIVATE.epsilon(3))


# -- whole runs -------------------------------------------------------------------------------------------------------


def test_a_client_with_a_limit_leaves_a_federation_without_noise(tmp_path: Path) -> None:
    plan = experiment(clients=1)
    with by_hand(plan.federation(NOWHERE), tmp_path, plan, ledger=Ledger(limit=3.0)) as server:
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
    with peers(plan, tmp_path) as there:
        names = sorted(there.federation)
        there.start(first, ledger=Ledger(ledger))
        there.start(*names[1:])
        there.join(first)
        assert killed == [2]
        before = sent(tmp_path / first)
        there.start(first, ledger=Ledger(ledger))
        there.join()
    assert there.errors == {}
    after = sent(tmp_path / first)
    common = [at for at in before if at in after]
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
        assert read_status(tmp_path / name / FILE).epsilon == pytest.approx(epsilon, abs=1e-3)


# -- private training -------------------------------------------------------------------------------------------------

TRAINED = experiment(clients=2, rounds=3, privacy={"sample_epsilon": 2.0})


@pytest.mark.slow
@NEEDS_ACCOUNTANT
def test_the_same_request_gets_the_same_model_at_no_cost_and_another_one_new_draws(tmp_path: Path) -> None:
    """Also after a kill; and never more than was consented to, whatever a server asks."""
    ledger = Ledger(tmp_path / "ledger")
    with by_hand(TRAINED.federation(NOWHERE), tmp_path, TRAINED, ledger=ledger) as server:
        server.join()
        first = server.train()
        assert first["spent"]["trained"]["fits"] == 1
        rejoin(server, Ledger(tmp_path / "ledger"), "e2", lost=tmp_path / "c00" / "r1")
        again = server.train()
        assert same(first["reply"], again["reply"])
        assert again["spent"] == first["spent"]
        # Parameters that differ by a constant would be learned with equal noise, which a server could subtract.
        for shift, fits in ((1.0, 2), (2.0, 3)):
            moved = {name: tensor + shift for name, tensor in server.setup.net.initial.items()}
            other = server.train(message={"params": moved})
            assert other["spent"]["trained"]["fits"] == fits
        last = server.train(round=2, last=1)
        assert "reply" not in last
        assert (last["failed"]["kind"], last["spent"]["trained"]["fits"]) == ("spent", 3)
        assert "all that privacy.sample_epsilon allows" in last["failed"]["words"]
    kept = Ledger(tmp_path / "ledger")
    assert len(kept.lines) == 3
    assert kept.epsilon(1e-5) == pytest.approx(2.0, rel=1e-4)


@NEEDS_ACCOUNTANT
def test_draws_depend_on_the_participants_secret_and_on_its_samples(tmp_path: Path) -> None:
    federation, replies = TRAINED.federation(NOWHERE), []
    for name, secret in (("one", "one"), ("other", "other"), ("replaced", "one")):
        client = federation["c00"]
        if name == "replaced":
            client = replace(client, train=client.train.take([1, *range(1, client.size)]))
        there = Federation([client, federation["c01"]], federation.task)
        with by_hand(there, tmp_path / name, TRAINED, ledger=Ledger(tmp_path / f"{secret}-ledger")) as server:
            server.join()
            replies.append(server.train()["reply"]["params"])
    one, other, replaced = (torch.cat([tensor.flatten() for tensor in each.values()]) for each in replies)
    start = torch.cat([tensor.flatten() for tensor in server.setup.net.initial.values()])
    for unlike in (other, replaced):  # with equal noise, one sample would move it by 3 x .1 x 2 / 16 at most
        assert float((one - unlike).norm()) > max(0.1, float((one - start).norm()))


@NEEDS_ACCOUNTANT
def test_the_owners_limit_holds_for_training(tmp_path: Path) -> None:
    """It lies between the epsilon of two fits and that of three."""
    federation = TRAINED.federation(NOWHERE)
    how = TRAINED.privacy.training(federation["c00"].size, TRAINED.training, 1)
    limit = total_epsilon(0.0, {(how.rate, how.noise): 8}, 1e-5)
    with by_hand(federation, tmp_path, TRAINED, ledger=Ledger(limit=limit)) as server:
        server.join()
        said = [server.train(round=number, last=number - 1) for number in (1, 2, 3)]
    assert ["reply" in each for each in said] == [True, True, False]
    assert f"above its owner's limit of {limit:g}" in said[-1]["failed"]["words"]


@NEEDS_ACCOUNTANT
def test_what_training_costs_is_told_before_anything_leaves() -> None:
    setup, client, lines = disclosed(TRAINED, Ledger(limit=9.0))
    how = setup.privacy.training(client.size, setup.training, 1)
    assert "; from private training), n (a whole number; as it is)" in lines[0]
    assert lines[1] == (
        f"training: a step draws each sample with the probability {16 / client.size:.3g}, clips its gradient to the "
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
    with by_hand(SIGNED.federation(NOWHERE), tmp_path, SIGNED, ledger=ledger) as server:
        server.join()
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
            with by_hand(plan.federation(NOWHERE), tmp_path / field / name, plan) as server:
                server.join()
                replies.append((asked_for_signature(server) if plan is SIGNED else server.train())["reply"])
        one, other = (reply[field] if plan is SIGNED else reply[field]["head.bias"] for reply in replies)
        assert not torch.isclose(one, other).any()
        assert replies[0]["n"] == replies[1]["n"]


def test_what_a_signature_costs_is_told_before_it_leaves() -> None:
    _, _, lines = disclosed(SIGNED, Ledger())
    (spread,) = [line for line in lines if line.startswith("spread: ")]
    (moments,) = [line for line in lines if line.startswith("sign_moments: ")]
    assert spread.startswith("spread: votes (numbers [32]; with noise, once), n (a whole number; as it is) or an empty")
    assert "sums (numbers [77]; with noise, once), n (a whole number; as it is)" in moments
    assert "signature (about" not in moments
    assert (
        "signature: fields 'with noise, once' leave once in this run, with normal noise from this machine's own "
        "randomness: epsilon 3 at delta 1e-05 for one sample"
    ) in lines
    assert "epsilon: 3 at delta 1e-05 after 6 rounds with one message of each kind; no more" in lines
    assert not any("clipped" in line for line in lines)
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
    with clients(plan.federation(NOWHERE), tmp_path / "nodes") as there:
        for name, ledger in ledgers.items():
            there.start(name, ledger=ledger)
        assert served(plan, there.network, tmp_path / "there", watcher=Ending(2)) is None
        newest = max((tmp_path / "there" / "checkpoint").glob("round-*.safetensors"))
        for path in (newest, newest.with_suffix(".json")):
            path.unlink()
        result = served(plan, there.network, tmp_path / "there")
        there.join()
        assert there.errors == {}
    assert result is not None
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
