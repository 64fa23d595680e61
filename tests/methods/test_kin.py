"""Kin: what signatures find, what each verdict does, and that no client is harmed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import fedkin
from fedkin.data import federate
from fedkin.engines import LocalEngine
from fedkin.engines.results import Missing
from fedkin.engines.transport import Envelope, Transport
from fedkin.federation import Change, Client, Federation, Samples, Task
from fedkin.flow import Message
from fedkin.graph import Plan, Spread, sign
from fedkin.learning.net import body_of, head_of
from fedkin.learning.training import Training
from fedkin.methods import METHODS
from fedkin.methods.blocks.pulled_head import Strength, in_proportion, pulled_heads, with_head
from fedkin.methods.blocks.signatures import read_signature
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.kin import Kin, alone, alpha_of_search, best_candidate, clearly_better, held_out, leads_of
from fedkin.running.suites import SUITES
from fedkin.testing import PROMISES, Checked
from support import finish, play, present, same, samples_of, small_setup

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


def by_degrees(client: int) -> Draw:
    """Classes with small shifts of its own; odd clients have other labels."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
        x, y = (swapped if client % 2 else common_draw)(rng, n)
        return x + np.random.default_rng(50 + client).normal(size=(4, 5))[y] * 0.7, y

    return draw


def made(draw: Draw, n: int, seed: int) -> Samples:
    return samples_of(*draw(np.random.default_rng(seed), n))


def client(name: str, draw: Draw, n: int, seed: int, **more: Any) -> Client:
    return Client(name, made(draw, n, 2 * seed), made(draw, 30, 2 * seed + 1), **more)


def federation(draws: list[Draw], n: int = 60, seed: int = 0) -> Federation:
    clients = [client(f"c{k}", draw, n + 3 * k, 1000 * seed + k) for k, draw in enumerate(draws)]
    return Federation(clients, Task(4, (5,)), "kin")


TWO_GROUPS = federation([common_draw, swapped] * 4)


def with_more(*clients: Client, fed: Federation = TWO_GROUPS) -> Federation:
    return Federation([*fed.values(), *clients], fed.task)


def engine_of(fed: Federation, method: Any = None, **more: Any) -> LocalEngine:
    return LocalEngine(small_setup(Kin(degrees="groups") if method is None else method, fed, **more))


def state(engine: LocalEngine) -> Any:
    return engine.server.state


def members(engine: LocalEngine) -> set[frozenset[str]]:
    group = state(engine)["group"]
    return {frozenset(id for id in group if group[id] == number) for number in group.values()}


class Changing(Transport):
    """Hands messages on changed: `change(envelope)` gives another message, or None to lose it."""

    def __init__(self, change: Callable[[Envelope], Message | None]) -> None:
        self.change = change

    def carry(self, envelope: Envelope) -> Envelope | Missing:
        message = self.change(envelope)
        return Missing.LOST if message is None else envelope._replace(message=message)


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
    kin, plain = engine_of(fed, clients_per_round=4), engine_of(fed, FedAvg(), clients_per_round=4)
    for engine in (kin, plain):
        play(engine, 1, 2, 3)
    assert state(kin)["verdict"] == {"0": "same"}
    assert same(kin.models(), plain.models())


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_rotations_are_found_with_nothing_told(seed: int) -> None:
    fed = federate("digits", "rotated-masked", clients=24, mask_rate=0.0, seed=seed)
    result = fedkin.run("kin", fed, rounds=1, seed=seed, model="linear")
    assert result.summary["groups"]["ari"] == 1


def test_a_client_like_nobody_else_trains_alone() -> None:
    fed = federation([common_draw] * 6 + [far])
    kin, local = engine_of(fed), engine_of(fed, METHODS["local"]())
    outcome, _ = (play(engine, 1, 2) for engine in (kin, local))
    assert state(kin)["verdict"] == {"0": "same", "1": "alone"}
    assert state(kin)["group"]["c6"] == "1"
    assert same(kin.model("c6"), local.model("c6"))
    assert "1" not in state(kin)["models"]["groups"]
    assert all(m.floats == 0 for m in outcome.traffic if "c6" in (m.sender, m.receiver))


def test_records_say_which_tests_made_the_groups() -> None:
    engine = engine_of(TWO_GROUPS)
    graph = present(engine.round(1).graph)
    assert list(graph.values["verdict"]) == ["same"] * 8
    evidence = present(graph.evidence)
    assert evidence.alpha == alpha_of_search(0.001, 1)
    root, *parts = evidence.nodes
    assert set(root.rejected) >= {"concept", "xy"}
    assert root.p["concept"] < 1e-6
    assert [(node.parent, node.rejected, node.verdict) for node in parts] == [(0, (), "same")] * 2
    assert evidence.sizes == (8, 4, 4)
    assert {frozenset(id for id in graph.ids if evidence.leaf[id] == number) for number in (1, 2)} == members(engine)
    assert engine.server.info["groups"] == 2
    smallest = present(engine.server.info["smallest_p"])
    assert smallest < 1e-6
    assert engine.round(2).graph is None


# -- who is alone ---------------------------------------------------------------------------------------------------


def test_nobody_is_alone_for_its_class_shares() -> None:
    """The tests cut these clients apart, three of them from all others; but their classes look as everybody's."""
    engine = engine_of(federation([skewed(k) for k in range(14)]))
    engine.round(1)
    leaves = [node["verdict"] for node in state(engine)["tests"]["tree"].values()]
    assert leaves.count("alone") == 3
    assert state(engine)["verdict"] == {"0": "shares"}
    assert not {"offset", "concept"} & set(state(engine)["tests"]["tree"]["0"]["rejected"])


@pytest.mark.slow
def test_who_is_alone_for_another_reason_stays_alone() -> None:
    engine = engine_of(federation([skewed(k) for k in range(14)] + [far]))
    engine.round(1)
    assert "offset" in state(engine)["tests"]["tree"]["0"]["rejected"]
    assert state(engine)["verdict"][state(engine)["group"]["c14"]] == "alone"


# -- degrees --------------------------------------------------------------------------------------------------


def with_a_swapped_pair_each(clients: int) -> Federation:
    """Digits dealt at random; each client has one pair of labels swapped, another one than its neighbours."""
    fed = federate("digits", "iid", clients=clients, seed=0)
    swapped_clients = []
    for number, one in enumerate(fed.values()):
        a, b = number % 10, (number + 1 + number // 10) % 10
        named = torch.arange(10)
        named[[a, b]] = torch.tensor([b, a])
        parts = [Samples(own.inputs(slice(None)), named[own.labels()]) for own in (one.train, one.test)]
        swapped_clients.append(replace(one, train=parts[0], test=parts[1]))
    return Federation(swapped_clients, fed.task, "pairs")


def run_of(fed: Federation, method: Any, rounds: int = 12, model: Any = "linear", lr: float = 0.2) -> fedkin.Result:
    training = {"lr": lr, "local_steps": 5, "batch_size": 32}
    return fedkin.run(
        method, fed, rounds=rounds, training=training, model=model, settings={"evaluate_every": max(rounds, 1)}
    )


@pytest.mark.slow
def test_clients_that_differ_by_degrees_share_a_model_and_have_heads_of_their_own() -> None:
    fed = with_a_swapped_pair_each(14)
    ours, plain, alone = (run_of(fed, m, 16, "mlp", 0.3) for m in (Kin(), "fedavg", "local"))
    assert ours.rounds[-1]["figures"]["pull_weights"] is not None
    assert ours.accuracy > max(plain.accuracy, alone.accuracy) + 0.03


@pytest.mark.slow
def test_a_net_with_convolutions_has_its_head_pulled() -> None:
    fed = with_a_swapped_pair_each(8)
    result = run_of(fed, Kin(), 8, "small-plain", 0.1)
    assert result.rounds[-1]["figures"]["pull_weights"] is not None
    assert result.accuracy > run_of(fed, Kin(degrees="groups"), 8, "small-plain", 0.1).accuracy + 0.05


@pytest.mark.slow
def test_clients_of_one_distribution_keep_one_model() -> None:
    """A pull that is no surer than chance is not taken: the model is FedAvg's, but for the samples held out."""
    result = run_of(federation([common_draw] * 10, n=60), Kin())
    figures = result.rounds[-1]["figures"]
    assert (figures["level"], figures["pull_weights"]) == (0, None)
    assert len(set(result.groups.values())) == 1


@pytest.mark.slow
def test_all_levels_train_in_the_first_half_and_one_in_the_second() -> None:
    engine, plain = (engine_of(TWO_GROUPS, m, rounds=6) for m in (Kin(), FedAvg()))
    kept = {id: len(held_out(c.train)[0]) for id, c in TWO_GROUPS.items()}
    for number in range(1, 7):
        ours, theirs = engine.round(number), plain.round(number)
        phases = {row.phase for row in ours.traffic}
        assert ("judge" in phases) == (number == 4)
        assert set(state(engine)["models"]) == ({"all", "groups"} if number <= 3 else {"groups"})
        steps = sum(ours.samples.values()) / sum(theirs.samples.values())
        if number != 4:  # then bodies of clients' own are tried too
            assert steps <= (2 if number <= 3 else 1)
    assert all(0 < kept[id] < len(c.train) for id, c in TWO_GROUPS.items())


def test_clients_that_differ_by_degrees_inside_clean_groups_share_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do newcomers and unseen clients that differ from the others as these do from each other."""
    founders = list(federation([by_degrees(place) for place in range(16)], n=80).values())
    late = [client(f"late{place}", by_degrees(place), 80, 91 + place, joins=2 + place % 2) for place in (30, 31)]
    unseen = [replace(client(f"new{place}", by_degrees(place), 80, 91 + place), seen=False) for place in (32, 33)]
    others = [client("far-late", far, 80, 95, joins=3), replace(client("far", far, 80, 96), seen=False)]
    engine = engine_of(Federation([*founders, *late, *unseen, *others], Task(4, (5,)), "kin"), Kin(), rounds=6)
    play(engine, 1)
    assert list(state(engine)["models"]) == ["all", "branches", "groups"]
    assert len(members(engine)) > 4
    monkeypatch.setattr("fedkin.methods.kin.best_candidate", lambda costs, sizes, levels: ("branches", 1))
    monkeypatch.setattr("fedkin.methods.kin.clearly_better", lambda costs, others, sizes: None)
    play(engine, *range(2, 7))
    even, odd = (engine.model(id) for id in ("c0", "c1"))
    assert not same(even, odd)
    for one in (*founders, *late, *unseen):
        assert same(engine.model(one.id), odd if int(one.id[-1]) % 2 else even)
    assert alone(state(engine), "branches", "far-late")
    assert same(engine.model("far"), even)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_short_runs_end_with_a_model_for_everybody(rounds: int) -> None:
    result = run_of(TWO_GROUPS, Kin(), rounds)
    assert result.accuracy > 0.2


def samples_of_zeros(n: int) -> Samples:
    return Samples(torch.zeros(n, 1), torch.zeros(n))


def test_held_out_samples_follow_time() -> None:
    when = np.random.default_rng(0).permutation(50)
    by_time = held_out(replace(samples_of_zeros(50), time=torch.from_numpy(when.astype(float))))[1]
    assert sorted(when[by_time]) == held_out(samples_of_zeros(50))[1]


def test_held_out_samples_are_at_the_same_places_for_all() -> None:
    for n in (0, 1, 4, 5, 24, 25, 60, 1000):
        kept, held = held_out(samples_of_zeros(n))
        assert sorted([*kept, *held]) == list(range(n))
        assert abs(len(held) - n / 5) <= 1 + n / 20


@pytest.mark.parametrize("people", [None, 20])
def test_held_out_samples_and_all_others_of_their_persons_train_nothing(people: int | None) -> None:
    def changed(client: Client, held: list[int]) -> Client:
        person = None if people is None else torch.arange(len(client.train)) % people
        y = client.train.y.index_fill(0, torch.tensor(held, dtype=torch.int64), 0)
        return replace(client, train=replace(client.train, y=y, person=person))

    def held(client: Client) -> list[int]:
        rows = np.arange(len(client.train))
        places = rows if people is None else rows % people  # blocks of 1 person, of which one in 5 is held out
        return held_out(client.train)[1] if people is None else np.flatnonzero(places % 5 == 2).tolist()

    first, second = (
        Federation([changed(c, held(c) if alter else []) for c in TWO_GROUPS.values()], TWO_GROUPS.task, "kin")
        for alter in (False, True)
    )  # fmt: skip
    one, two = engine_of(first, Kin(), rounds=8), engine_of(second, Kin(), rounds=8)
    for engine in (one, two):
        engine.round(1)
    # Groups rest on all samples, so that only the model of all clients is compared.
    assert same(state(one)["models"]["all"]["all"], state(two)["models"]["all"]["all"])


@pytest.mark.parametrize("name", ["kin", "flt-same"])
def test_persons_and_not_their_rows_count_in_the_tests(name: str) -> None:
    """Each client has 30 persons with ten similar rows each, in random order; all clients are alike."""

    def client_of(place: int, known: bool) -> Client:
        rng = np.random.default_rng(place)
        (x, y), person = common_draw(rng, 30), rng.permutation(300) % 30
        rows = samples_of(x[person] + 0.1 * rng.normal(size=(300, 5)), y[person])
        train = replace(rows, person=torch.from_numpy(person)) if known else rows
        return Client(f"c{place}", train, made(common_draw, 30, 100 + place))

    def groups(known: bool) -> int:
        fed = Federation([client_of(place, known) for place in range(8)], Task(4, (5,)), "visits")
        return len(set(run_of(fed, METHODS[name](), 1).groups.values()))

    assert (groups(known=True), groups(known=False)) == (1, 8)


def table_of_costs(rows: list[list[float]], clients: int = 10) -> tuple[dict[str, Any], dict[str, int]]:
    return {f"c{k}": np.array(rows) for k in range(clients)}, dict.fromkeys((f"c{k}" for k in range(clients)), 20)


def test_the_smallest_pooled_cost_is_chosen() -> None:
    costs, sizes = table_of_costs([[0.5, 0.4, 0.6], [0.45, 0.3, 0.5]])
    assert best_candidate(costs, sizes, ["all", "groups"]) == ("groups", 1)


def test_in_doubt_the_earlier_candidate_is_chosen() -> None:
    rng = np.random.default_rng(0)
    costs = {f"c{k}": np.array([[0.5, 0.499, 0.7]]) + rng.normal(size=(1, 3)) * 0.05 for k in range(10)}
    assert best_candidate(costs, dict.fromkeys(costs, 20), ["all"]) == ("all", 0)


def test_the_mean_head_is_the_weighted_mean_of_what_each_client_solves() -> None:
    engine = engine_of(TWO_GROUPS, Kin(), rounds=6)
    play(engine, 1, 2, 3)
    models = dict(state(engine)["models"]["all"]["all"])
    weight, bias = (tensor for name, tensor in models.items() if "head" not in name)
    asking: Any = Kin().mean_heads(engine.server, "all", list(TWO_GROUPS))
    request = next(asking)
    assert list(request.messages) == list(TWO_GROUPS)
    heads, sizes, replies = [], [], {}
    for id, client in TWO_GROUPS.items():
        rows = held_out(client.train)[0]
        kept = client.train.take(rows)
        features = (client.train.x[rows].flatten(1) @ weight.T + bias).relu()
        (head,) = pulled_heads(models, features, kept.labels(), [Strength(1.0, 1.0)], TWO_GROUPS.task)
        heads.append(head)
        sizes.append(len(rows))
        replies[id] = Message(n=len(rows), params=head_of(with_head(models, head)))
    new = finish(asking, replies)["all"]
    weighted = torch.stack([n * head for n, head in zip(sizes, heads, strict=True)])
    expected = weighted.sum(0) / sum(sizes)
    assert torch.allclose(new["head.weight"].double(), expected[:-1].T, atol=1e-6)


def test_too_few_held_out_samples_choose_nothing() -> None:
    engine = engine_of(federation([common_draw, swapped] * 2, n=30), Kin(), rounds=6)
    play(engine, *range(1, 7))
    assert state(engine)["choice"] == {
        "level": next(iter(state(engine)["models"])),
        "weights": math.inf,
        "bias": math.inf,
        "own_body": False,
        "leads": {},
    }


def test_own_bodies_are_trained_from_the_shared_model_and_keep_the_shared_head() -> None:
    engine = engine_of(federation([common_draw] * 4), Kin(), rounds=6)
    play(engine, *range(1, 7))
    assert not state(engine)["choice"]["own_body"]  # clients are alike
    shared = state(engine)["models"]["all"]["all"]
    state(engine)["choice"] |= {"weights": math.inf, "bias": math.inf, "own_body": True}
    one, other = (engine.model(id) for id in ("c0", "c1"))
    assert same(head_of(one), head_of(shared))
    assert not same(body_of(one), body_of(shared))
    assert not same(body_of(one), body_of(other))


REGRESSION = Task.regression(1, (2,))


def judged(costs: Any) -> dict[str, Any]:
    """Judgements by losses alone."""
    return {id: np.stack([values, values], axis=-1) for id, values in costs.items()}


def test_leads_in_loss_have_the_intervals_of_clipped_means() -> None:
    """41 clients, so that the quartiles at which differences are clipped are clients' own."""
    rng, shift = np.random.default_rng(3), np.array([[0.0, 1.0, 1.0], [2.0, 0.3, 2.0]])
    costs = {f"c{k:02d}": rng.gamma(2.0, size=(2, 3)) + shift for k in range(41)}
    leads = leads_of(judged(costs), dict.fromkeys(costs, 20), ["all", "groups"], ("all", 0), REGRESSION)
    assert set(leads) == {"lead_groups"}
    differences = np.array([one[1, 1] - one[0, 0] for one in costs.values()])
    lead, low, high = leads["lead_groups"]
    assert lead == pytest.approx(float(np.mean(stats.mstats.winsorize(differences, (0.25, 0.25)))))
    error = float(stats.mstats.trimmed_stde(differences, (0.25, 0.25)))
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 20) * error)
    assert (high + low) / 2 == pytest.approx(lead)


def test_leads_in_points_compare_the_candidates_with_the_smallest_losses() -> None:
    """Student's interval of the differences, though the other level's second candidate has fewer errors."""
    rng = np.random.default_rng(3)
    errors = {f"c{k:02d}": rng.integers(0, 20, (2, 2)) / 20 for k in range(30)}
    loss = np.array([[0.1, 0.5], [0.4, 0.6]])
    judgements = {id: np.stack([loss, [one[0], [one[1, 0], 0.0]]], axis=-1) for id, one in errors.items()}
    leads = leads_of(judgements, dict.fromkeys(errors, 20), ["all", "groups"], ("all", 0), Task(3, (2,)))
    differences = np.array([100 * (one[1, 0] - one[0, 0]) for one in errors.values()])
    interval = stats.ttest_1samp(differences, 0).confidence_interval()
    assert leads == {"points_groups": pytest.approx([differences.mean(), interval.low, interval.high])}


@pytest.mark.parametrize("clients", [6, 20, 80])
def test_intervals_of_leads_cover(clients: int) -> None:
    rng, inside = np.random.default_rng(clients), 0
    for _ in range(400):
        costs = judged({f"c{k:02d}": np.array([[0.0], [0.3 + rng.standard_t(4)]]) for k in range(clients)})
        leads = leads_of(costs, dict.fromkeys(costs, 20), ["all", "groups"], ("all", 0), REGRESSION)
        _, low, high = leads["lead_groups"]
        inside += low <= 0.3 <= high
    assert 0.91 < inside / 400 < 0.985


@pytest.mark.parametrize(("clients", "place"), [(4, 0), (3, None)])
def test_of_three_clients_nothing_is_clearly_better(clients: int, place: int | None) -> None:
    mine, sizes = table_of_costs([[0.1, 0.2]], clients)
    others, _ = table_of_costs([[0.5]], clients)
    assert clearly_better(mine, others, sizes) == place
    assert clearly_better(others, mine, sizes) is None


def test_three_clients_are_too_few_for_leads() -> None:
    costs, sizes = table_of_costs([[0.5], [0.6], [0.7]])
    levels = ["all", "branches", "groups"]
    assert leads_of(judged(costs), sizes, levels, ("all", 0), REGRESSION) == {
        "lead_branches": pytest.approx([0.1, 0.1, 0.1]),
        "lead_groups": pytest.approx([0.2, 0.2, 0.2]),
    }
    few = judged({id: costs[id] for id in list(costs)[:3]})
    assert leads_of(few, sizes, levels, ("all", 0), REGRESSION) == {}


@pytest.mark.slow
def test_records_say_by_how_much_the_choice_was_better() -> None:
    rounds = run_of(TWO_GROUPS, Kin(), rounds=6).rounds
    leads = [{name for name in line["figures"] if name.startswith("points_")} for line in rounds]
    assert leads == [set()] * 3 + [{"points_all", "points_all_low", "points_all_high"}] * 3
    figures = rounds[-1]["figures"]
    assert figures["level"] == 2
    assert figures["points_all_low"] < figures["points_all"] < figures["points_all_high"]
    assert figures["points_all_high"] > 0


@pytest.mark.parametrize("liars", [1, 2, 3, 4])
def test_few_liars_do_not_choose_for_all(liars: int) -> None:
    """They report no cost for one candidate and an enormous one for all others."""
    costs, sizes = table_of_costs([[0.5, 0.4, 0.6], [0.9, 0.8, 0.9]], clients=20)
    for k in range(liars):
        costs[f"c{k}"] = np.array([[1e9, 1e9, 1e9], [1e9, 1e9, 0.0]])
        sizes[f"c{k}"] = 10**9
    assert best_candidate(costs, sizes, ["all", "groups"]) == ("all", 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", [Kin(), Kin(alpha=0.9, least=0.0, regroup_every=2)], ids=["once", "again"])
def test_the_trial_and_the_choice_keep_what_methods_promise(method: Kin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The promises are checked on three rounds, which are too short for a trial otherwise."""
    monkeypatch.setattr("fedkin.methods.kin.MIN_TRIAL", 1)
    checked = Checked(method)
    for promise in PROMISES:
        # A head of one's own solves a problem that has no rate, so that it moves at rate 0 too. That a run repeats,
        # `travels` and `unordered` show too.
        if promise.name not in ("rests", "repeats"):
            promise.check(checked)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "risk"])
def test_trial_choice_and_pulled_heads_pass_through_bytes(kind: str) -> None:
    plan = {"rounds": 6, "lr": 0.05, "batch_size": 16, "local_steps": 3}
    here, through_bytes = (
        fedkin.run(
            Kin(), of_task(kind), training=plan, model="linear", settings={"engine": engine, "mode": "one-by-one"}
        )
        for engine in ("local", "loopback")
    )
    assert here.rounds[-1]["figures"]["level"] is not None
    assert here.scores == through_bytes.scores
    assert same(here.models, through_bytes.models)


@pytest.mark.slow
def test_who_becomes_alone_after_one_model_for_all_goes_on_from_that_model() -> None:
    """Its own model has stood still since the trial, or was never trained."""
    fed = federation([common_draw] * 6)
    engine = engine_of(moving(fed, far, 9), Kin(regroup_every=8), lr=0.0, rounds=16)
    play(engine, *range(1, 9))
    assert state(engine)["choice"]["level"] == "all"
    # With no rate, whatever it starts from is what it has.
    shared = {name: tensor + 1 for name, tensor in state(engine)["models"]["all"]["all"].items()}
    state(engine)["models"] = {"all": {"all": shared}}
    engine.round(9)
    assert state(engine)["verdict"][state(engine)["group"]["c0"]] == "alone"
    torch.testing.assert_close(dict(engine.model("c0")), shared)


@pytest.mark.slow
def test_a_client_alone_that_had_one_model_for_all_goes_on_from_it_again() -> None:
    """At the level of all it did not train by itself, although its verdict was alone before."""
    fed = federation([common_draw] * 6 + [far])
    engine = engine_of(fed, Kin(regroup_every=8), lr=0.0, rounds=16)
    play(engine, *range(1, 9))
    shared = {name: tensor + 1 for name, tensor in engine.setup.net.initial.items()}
    state(engine)["models"] = {"all": {"all": shared}}
    state(engine)["choice"] = {"level": "all", "weights": math.inf, "bias": math.inf, "own_body": False}
    engine.round(9)
    assert state(engine)["verdict"][state(engine)["group"]["c6"]] == "alone"
    torch.testing.assert_close(dict(engine.model("c6")), shared)


# -- over time ------------------------------------------------------------------------------------------------


def test_newcomers_join_the_group_they_belong_to() -> None:
    late = [client("d", swapped, 80, 91, joins=2), client("e", far, 80, 92, joins=2)]
    engine = engine_of(with_more(*late))
    engine.round(1)
    before = dict(state(engine)["group"])
    graph = present(engine.round(2).graph)
    group = state(engine)["group"]
    assert set(present(graph.evidence).leaf) == set(TWO_GROUPS)  # nobody who came later is in the tree of tests
    assert dict(zip(graph.ids, graph.values["verdict"].tolist(), strict=True))["e"] == "alone"
    assert {id: group[id] for id in before} == before
    assert group["d"] == group["c1"]
    assert state(engine)["verdict"][group["e"]] == "alone"
    assert state(engine)["looks"] == 1
    assert sorted(state(engine)["placed"]) == ["d", "e"]


def test_groups_are_found_anew_once_newcomers_are_the_majority() -> None:
    fed = federation([common_draw] * 3)
    late = [client(f"d{k}", swapped, 80, 90 + k, joins=2) for k in range(4)]
    engine = engine_of(with_more(*late, fed=fed))
    engine.round(1)
    engine.round(2)
    assert state(engine)["looks"] == 2
    assert members(engine) == {frozenset(fed), frozenset(c.id for c in late)}


def near_swapped(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    x, y = swapped(rng, n)
    return x + 1, y


@pytest.mark.parametrize("draw", [swapped, near_swapped])
def test_unseen_clients_get_the_model_of_their_group_or_of_the_nearest_client(draw: Draw) -> None:
    new = client("new", draw, 80, 95, seen=False)
    engine = engine_of(with_more(new))
    engine.round(1)
    assert same(engine.model("new"), engine.model("c1"))
    assert "new" not in state(engine)["group"]


def test_after_the_choice_newcomers_and_unseen_clients_have_heads_pulled_to_the_chosen_level_s() -> None:
    """A newcomer, and an unseen client like it, with the one strength that all have."""
    others = [client("late", swapped, 80, 91, joins=6), replace(client("new", swapped, 80, 95), seen=False)]
    whole = with_more(*others)
    engine = engine_of(whole, Kin(), rounds=8)
    play(engine, *range(1, 6))
    chosen = state(engine)["choice"]
    assert chosen["level"] == "groups"
    chosen |= {"weights": 3.0, "bias": 0.3, "own_body": False}
    engine.round(6)
    shared = state(engine)["models"]["groups"][state(engine)["group"]["c1"]]
    weight, bias = (tensor for name, tensor in shared.items() if "head" not in name)
    for id in ("late", "new", "c1"):
        train = whole[id].train
        features = (train.inputs(slice(None)).flatten(1) @ weight.T + bias).relu()
        (head,) = pulled_heads(shared, features, train.labels(), [Strength(3.0, 0.3)], whole.task)
        own = engine.model(id)
        assert same(body_of(own), body_of(shared))
        assert not same(head_of(own), head_of(shared))
        torch.testing.assert_close(head_of(own), head_of(with_head(shared, head)), rtol=0, atol=1e-6)


def test_a_newcomer_of_no_group_is_alone_and_starts_from_the_model_of_the_nearest_client() -> None:
    sent: dict[int, Any] = {}

    def noted(envelope: Envelope) -> Message:
        if (envelope.receiver, envelope.phase) == ("late", "train"):
            sent[envelope.round] = envelope.message.params
        return envelope.message

    late = client("late", near_swapped, 80, 95, joins=2)
    setup = small_setup(Kin(degrees="groups"), with_more(late))
    engine = LocalEngine(setup, transport=Changing(noted))
    engine.round(1)
    shared = engine.model("c1")
    engine.round(2)
    assert same(sent[2], shared)
    assert alone(state(engine), "groups", "late")


def moving(fed: Federation, draw: Draw, number: int) -> Federation:
    """c0 has other samples from this round on."""
    moved = client("c0", draw, 80, 96)
    changed = replace(fed["c0"], changes=(Change(number, moved.train, moved.test),))
    return Federation([changed, *(c for id, c in fed.items() if id != "c0")], fed.task)


def test_drift_is_seen_when_clients_sign_again() -> None:
    engine = engine_of(moving(TWO_GROUPS, swapped, 2), Kin(regroup_every=2, degrees="groups"))
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
    engine = engine_of(moving(fed, far, 3), Kin(regroup_every=2, degrees="groups"), lr=0.0)
    engine.round(1)
    # With no rate, whatever it starts from is what it has.
    start = state(engine)["models"]["groups"]["0"]
    state(engine)["models"] = {"groups": {"0": {name: tensor + 1 for name, tensor in start.items()}}}
    play(engine, 2, 3, 4)
    assert state(engine)["verdict"][state(engine)["group"]["c0"]] == "alone"
    torch.testing.assert_close(engine.model("c0")["head.weight"], engine.setup.net.initial["head.weight"] + 1)


def test_all_looks_together_spend_at_most_alpha() -> None:
    spent = [alpha_of_search(0.01, look) for look in range(1, 2000)]
    assert sum(spent) <= 0.01
    assert spent == sorted(spent, reverse=True)


# -- lost and forged ------------------------------------------------------------------------------------------


def test_a_client_whose_signature_is_lost_waits_with_the_common_model() -> None:
    engine = engine_of(TWO_GROUPS)
    engine.log.transport = Changing(lambda e: None if e.phase == "sign_moments" and e.sender == "c1" else e.message)
    engine.round(1)
    models = state(engine)["models"]["groups"]
    mean = {name: (4 * models["0"][name] + 3 * models["1"][name]) / 7 for name in models["0"]}
    torch.testing.assert_close(dict(engine.model("c1")), mean)
    engine.log.transport = Transport()
    engine.round(2)
    assert state(engine)["group"]["c1"] == state(engine)["group"]["c3"]


def test_without_any_spread_nothing_happens() -> None:
    engine = engine_of(federation([common_draw] * 3))
    engine.log.transport = Changing(lambda e: None if e.phase == "spread" else e.message)
    engine.round(1)
    assert same(engine.model("c0"), engine.setup.net.initial)
    engine.log.transport = Transport()
    engine.round(2)
    assert members(engine) == {frozenset(["c0", "c1", "c2"])}


@pytest.mark.parametrize("kind", ["damaged", "absurd", "elsewhere", "copied"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_forged_signature_moves_no_honest_client(kind: str, seed: int) -> None:
    fed = federation([common_draw, swapped] * 4 + [common_draw], seed=seed)
    liar, rng = "c8", np.random.default_rng(seed)
    seen: dict[str, Message] = {}

    def forge(envelope: Envelope) -> Message | None:
        if envelope.phase == "sign_moments" and envelope.sender == "server":
            seen["plan"] = envelope.message
        if envelope.phase != "sign_moments" or envelope.sender != liar:
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
    engine.log.transport = Changing(forge)
    engine.round(1)
    assert {group - {liar} for group in members(engine)} - {frozenset()} == honest
    refused = kind in ("damaged", "absurd")
    assert (liar not in state(engine)["group"]) == refused


def test_one_forged_spread_does_not_set_the_scale() -> None:
    huge = {"counts": torch.tensor([60, 5, 4]), "squares": torch.full((5,), 1e12).double(), "target": torch.zeros(3)}
    engine = engine_of(TWO_GROUPS)
    engine.log.transport = Changing(
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "segmentation", "risk"])
def test_other_tasks_find_their_groups_too(kind: str) -> None:
    fed = of_task(kind)
    model: Any = "unet" if kind == "segmentation" else "linear"
    result = fedkin.run("kin", fed, rounds=2, model=model, training={"lr": 0.01})
    assert np.isfinite(result.value)
    assert result.rounds[-1]["figures"]["groups"] == 2


def test_a_trial_on_fewer_samples_adds_no_step_on_the_rest() -> None:
    """65 of 80 samples in batches of 32 ended each pass with one sample, which spoiled training at a high rate."""
    training = Training(batch_size=32, local_epochs=1)
    assert in_proportion(training, 65, 80).batch_size == 26
    for n in range(5, 200):
        kept = len(held_out(samples_of_zeros(n))[0])
        assert training.steps(n) - 1 <= in_proportion(training, kept, n).steps(kept) <= training.steps(n)
    assert in_proportion(training.model_copy(update={"batch_size": "all"}), 65, 80).batch_size == "all"


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.3, 1.0])
def test_clients_that_are_alike_share_the_head_also_at_a_low_rate(lr: float) -> None:
    """A shared head that is not trained out yet must not lose to heads that each client solves for itself."""
    federation = SUITES["quick"].federations["digits, iid"].make(0)
    result = fedkin.run("kin", federation, rounds=20, training={"lr": lr, "local_steps": 5, "batch_size": 32})
    figures = result.rounds[-1]["figures"]
    assert (figures["level"], figures["pull_weights"]) == (0, None)
