"""Scenarios of classes and sizes: each keeps what its page promises; and how samples are dealt."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from data_sets import labelled
from fedkin.data.scenarios.base import Scenario
from fedkin.data.scenarios.dealing import apportion, dirichlet, raised_to_least, tests_like
from fedkin.data.scenarios.label_skew import (
    ClassesPerClient,
    Dirichlet,
    Iid,
    Mapl,
    QuantitySkew,
    Shards,
    Structured,
    skewed_sizes,
)
from fedkin.data.scenarios.shifts import LabelSwap
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Samples
from fedkin.settings import parse
from support import present

# -- Equal random parts --------------------------------------------------------------------------------------------


def rows_of(federation: Federation, split: str = "train") -> list[int]:
    return [row for client in federation.values() for row in getattr(client, split).rows.tolist()]


def distinct(federation: Federation, split: str) -> bool:
    rows = rows_of(federation, split)
    return len(set(rows)) == len(rows)


def members(federation: Federation) -> Counter[str]:
    """How many clients each planted group has."""
    return Counter(present(federation.planted).values())


def test_parts() -> None:
    federation = Iid(clients=7).build(labelled(20, 10), 0)
    assert sorted(federation.sizes.values()) == [28, 28, 28, 29, 29, 29, 29]
    assert sorted(len(client.test) for client in federation.values()) == [14] * 5 + [15] * 2
    assert set(members(federation)) == {"all"}
    labels = torch.cat([client.train.labels() for client in federation.values()])
    assert torch.bincount(labels).tolist() == [20] * 10


# -- Clients of unlike sizes ---------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    clients=st.integers(1, 100),
    law=st.sampled_from(["dirichlet", "power"]),
    alpha=st.sampled_from([1e-3, 0.5, 2, 500]),
    least=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_any(clients: int, law: Any, alpha: float, least: int, seed: int) -> None:
    assume(clients * least <= 300)
    federation = QuantitySkew(clients=clients, law=law, alpha=alpha, min_size=least).build(labelled(30, 10), seed)
    assert sorted(rows_of(federation)) == list(range(300)), "every sample exactly once"
    assert min(federation.sizes.values()) >= least
    tests = [len(client.test) for client in federation.values()]
    assert sum(tests) == 100
    assert max(tests) - min(tests) <= 1
    assert set(members(federation)) == {"all"}


def test_power_law() -> None:
    sizes = list(QuantitySkew(clients=50, law="power", alpha=1.2).build(labelled(5000, 10), 0).sizes.values())
    ranked = np.sort(sizes)[::-1]
    fit = stats.linregress(np.log(1 + np.arange(50)), np.log(ranked))
    assert fit.slope == pytest.approx(-1.2, abs=0.01)
    assert sizes != sorted(sizes, reverse=True), "the order of clients does not tell the size"


def test_dirichlet_law() -> None:
    """The variance of a share is (1/n) (1 - 1/n) / (n alpha + 1)."""
    made, scenario = labelled(1000, 10), QuantitySkew(clients=10, alpha=0.7)
    shares = [np.array(list(scenario.build(made, seed).sizes.values())) / 10000 for seed in range(100)]
    assert np.var(shares) == pytest.approx(0.1 * 0.9 / 8, rel=0.1)


# -- Label skew by Dirichlet draws ---------------------------------------------------------------------------------


def table(federation: Federation, split: str = "train", classes: int = 10) -> np.ndarray:
    """[clients, classes] how many samples of each class."""
    own = [getattr(client, split).labels().numpy() for client in federation.values()]
    return np.stack([np.bincount(labels, minlength=classes) for labels in own])


@pytest.mark.slow
@given(
    clients=st.integers(1, 60),
    alpha=st.sampled_from([1e-4, 0.05, 0.5, 5, 1e6]),
    least=st.integers(1, 8),
    sizes=st.sampled_from(["drawn", "equal"]),
    seed=st.integers(0, 1000),
)
def test_any_of_dirichlet(clients: int, alpha: float, least: int, sizes: Any, seed: int) -> None:
    assume(clients * least <= 200)
    federation = Dirichlet(clients=clients, alpha=alpha, min_size=least, sizes=sizes).build(labelled(20, 10), seed)
    assert distinct(federation, "train")
    assert len(federation) == clients
    assert min(federation.sizes.values()) >= least
    if sizes == "drawn":
        assert sum(federation.sizes.values()) == 200, "all samples are dealt out"
    else:
        assert set(federation.sizes.values()) == {200 // clients}
    owned, tested = table(federation), table(federation, "test")
    assert (tested[owned == 0] == 0).all()
    assert tested.sum(axis=0).tolist() == [10 if count else 0 for count in owned.sum(axis=0)]


@pytest.mark.slow
def test_shares_are_those_of_the_distribution() -> None:
    """Two clients: the first's share of a class is Beta(alpha, alpha), of variance 1 / (4 (2 alpha + 1))."""
    made, scenario = labelled(1000, 1, classes=20), Dirichlet(clients=2, alpha=0.8)
    shares = [table(scenario.build(made, seed), classes=20)[0] / 1000 for seed in range(40)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)
    assert np.var(shares) == pytest.approx(1 / (4 * 2.6), rel=0.1)


def test_filling_up_leaves_the_others_alone() -> None:
    """Clients between the least and the level of the largest keep exactly what they have."""
    dataset = labelled(100, 10)
    before = Dirichlet(clients=50, alpha=0.5, min_size=1).build(dataset, 3)
    after = Dirichlet(clients=50, alpha=0.5, min_size=10).build(dataset, 3)
    assert min(before.sizes.values()) > 1, "nobody is filled up yet"
    level = max(after.sizes.values())
    kept = 0
    for id, client in before.items():
        rows, now = (set(present(each.train.rows).tolist()) for each in (client, after[id]))
        if client.size < 10:
            assert rows <= now
            assert len(now) == 10
        elif client.size < level - 1:
            assert rows == now
            kept += 1
        else:
            assert now <= rows
            assert len(now) in (level - 1, level)
    assert kept > 5


@pytest.mark.parametrize("scenario", [Dirichlet(clients=40, test_per_client=8), Shards(clients=40, test_per_client=8)])
def test_own_draws_of_test_samples(scenario: Scenario) -> None:
    federation = scenario.build(labelled(100, 30), 0)
    assert {len(client.test) for client in federation.values()} == {8}
    assert not distinct(federation, "test")
    owned, tested = table(federation), table(federation, "test")
    assert np.abs(tested / 8 - owned / owned.sum(axis=1, keepdims=True)).max() < 1 / 8


# -- Shards of sorted labels ---------------------------------------------------------------------------------------


def test_mcmahans_mnist() -> None:
    """100 clients, two shards of 300: two classes at most when shards do not cross labels."""
    federation = Shards().build(labelled(6000, 1000), 0)
    assert set(federation.sizes.values()) == {600}
    assert Counter(len(client.about["classes"]) for client in federation.values()).keys() == {1, 2}
    for client in federation.values():
        assert {count % 300 for count in Counter(client.train.labels().tolist()).values()} == {0}
    assert federation.planted is None


@pytest.mark.slow
@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 1000))
def test_any_of_shards(clients: int, shards: int, seed: int) -> None:
    dataset = labelled(17, 10)
    assume(clients * shards <= 170)
    federation = Shards(clients=clients, shards=shards).build(dataset, seed)
    assert sorted(rows_of(federation)) == list(range(170))
    low, high = 170 // (clients * shards), -(-170 // (clients * shards))
    assert {c.size for c in federation.values()} <= set(range(shards * low, shards * high + 1))
    most_in_a_shard = 1 + -(-(high - 1) // 17)
    for client in federation.values():
        classes = sorted(set(client.train.labels().tolist()))
        assert client.about["classes"] == classes
        assert len(classes) <= shards * most_in_a_shard
        assert set(client.test.labels().tolist()) <= set(classes)
    assert sorted(rows_of(federation, "test")) == list(range(100))


# -- The slot recipe -----------------------------------------------------------------------------------------------


def counts(samples: Samples) -> Counter[int]:
    return Counter(samples.labels().tolist())


def taken(federation: Federation) -> Counter[int]:
    return Counter(label for client in federation.values() for label in client.about["classes"])


def test_the_papers_federation() -> None:
    """30 clients, 2 of 10 classes: seven slots a class, about 571 images a class, 1,140 and 286 a client."""
    means = []
    for seed in range(5):
        federation = ClassesPerClient().build(labelled(5000, 1000), seed)
        assert len(federation) == 30
        assert taken(federation) == dict.fromkeys(range(10), 6)
        train = [count for client in federation.values() for count in counts(client.train).values()]
        assert len(train) == 60
        # The least and the most that a share of U(0.4, 0.6) among seven can be.
        assert min(train) >= 4000 * 0.4 / (0.4 + 6 * 0.6) - 1
        assert max(train) <= 4000 * 0.6 / (0.6 + 6 * 0.4) + 1
        means.append([np.mean(list(federation.sizes.values())), np.mean([len(c.test) for c in federation.values()])])
    assert np.mean(means, axis=0) == pytest.approx([1142.9, 285.7], rel=0.02)


@pytest.mark.slow
@given(clients=st.integers(1, 40), classes=st.integers(1, 10), spare=st.integers(0, 3), seed=st.integers(0, 1000))
def test_slots(clients: int, classes: int, spare: int, seed: int) -> None:
    scenario = ClassesPerClient(clients=clients, classes=classes, spare_slots=spare)
    federation = scenario.build(labelled(200, 60), seed)
    slots = -(-clients * classes // 10) + spare
    used = taken(federation)
    assert sum(used.values()) == clients * classes
    assert max(used.values()) - min(used[label] for label in range(10)) <= 1, "spread evenly"
    for client in federation.values():
        own = client.about["classes"]
        assert own == sorted(set(own))
        assert len(own) == classes, "no class twice"
        assert client.group == "+".join(map(str, own))
        assert sorted(counts(client.train)) == sorted(counts(client.test)) == own
    dealt = table(federation).sum(axis=0)
    for label, count in used.items():
        # All of the class is dealt out when nothing is spare.
        assert dealt[label] == 160 if spare == 0 and count == slots else dealt[label] < 160


# -- FLT's scenario 4 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "count"), [(12000, 240), (4800, 240), (12000, 480), (6000, 60)])
def test_sizes_solve_the_equation(total: int, count: int) -> None:
    half, squares = total / 2 / count, np.arange(count, dtype=float) ** 2
    x = brentq(lambda x: (half + np.exp(x * squares)).sum() - total, -1e-3, np.log(total) / squares[-1], xtol=1e-15)
    exact = half + np.exp(x * squares)
    sizes = skewed_sizes(total, count)
    # Rounding down loses half a sample a client, which a slightly larger x makes good.
    assert np.abs(sizes - exact).max() < 1 + 0.05 * exact.max()
    assert np.abs(sizes - exact).mean() < 1


@pytest.mark.slow
def test_the_papers_federation_of_structured() -> None:
    """EMNIST balanced: 47 classes of 2,400, ten clusters of five classes, the last of two, 240 clients each."""
    federation = Structured(clients=2400, clusters=10).build(labelled(2400, 400, classes=47), 0)
    assert len(federation) == 2400
    groups = members(federation)
    assert set(groups.values()) == {240}
    assert sorted(len(group.split("+")) for group in groups) == [2] + [5] * 9
    assert sum(federation.sizes.values()) == 47 * 2400
    of = {group: sum(c.size for c in federation.values() if c.group == group) for group in groups}
    assert Counter(of.values()) == {12000: 9, 4800: 1}
    assert min(federation.sizes.values()) == 11
    for client in federation.values():
        assert set(client.train.labels().tolist()) <= set(client.about["classes"])
        assert len(client.test) == 400 * len(client.about["classes"])
    assert len({id(client.test) for client in federation.values()}) == 10, "one test set for each cluster"


@pytest.mark.slow
@given(
    clients=st.integers(2, 60),
    seed=st.integers(0, 1000),
    clusters=st.one_of(st.sampled_from([1, 2, 4, 5]), st.just(((3, 1), (8,)))),
    per_class=st.one_of(st.none(), st.integers(40, 300)),
)
def test_any_of_structured(clients: int, seed: int, clusters: Any, per_class: int | None) -> None:
    scenario = Structured(clients=max(clients, 5), clusters=clusters, per_class=per_class)
    federation = scenario.build(labelled(200, 10), seed)
    assert distinct(federation, "train")
    owned = range(10) if isinstance(clusters, int) else (1, 3, 8)
    assert table(federation).sum(axis=0).tolist() == [min(200, per_class or 200) * (y in owned) for y in range(10)]
    groups = members(federation)
    assert max(groups.values()) - min(groups.values()) <= 1
    for group, count in groups.items():
        sizes = sorted(c.size for c in federation.values() if c.group == group)
        assert sizes == skewed_sizes(sum(sizes), count).tolist()


# -- MAPL's scenarios 1 to 4 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "settings", "sets"),
    [
        (1, {}, [range(5), range(5, 10)]),
        (2, {"shared": 4}, [range(7), range(3, 10)]),
        (3, {"per_class": [100, 300]}, [range(5), range(5, 10)]),
        (4, {"per_class": [100, 300], "shared": 4}, [range(7), range(3, 10)]),
        (0, {"shared": 2}, [range(6), range(4, 10)]),
    ],
)
def test_the_papers_scenarios(number: int, settings: dict[str, Any], sets: list[range]) -> None:
    """20 clients on a data set with Fashion-MNIST's 6,000 and 1,000 samples a class."""
    federation = parse(Mapl, settings, "scenario").build(labelled(6000, 1000), 0)
    assert members(federation) == {f"{own.start}-{own.stop - 1}": 10 for own in sets}
    assert distinct(federation, "train")
    assert distinct(federation, "test")
    drawn = set()
    for client in federation.values():
        own = next(own for own in sets if client.group == f"{own.start}-{own.stop - 1}")
        assert client.about["classes"] == list(own)
        assert counts(client.test) == dict.fromkeys(own, 15)
        train = counts(client.train)
        assert set(train) == set(own)
        drawn |= set(train.values())
    if number in (3, 4):
        assert min(drawn) in range(100, 110)
        assert max(drawn) in range(291, 301)
        assert len(drawn) > 50
    else:
        assert drawn == {300}


@given(
    clients=st.integers(3, 12),
    clusters=st.one_of(st.integers(1, 3), st.just(((0, 2, 4), (4, 1)))),
    low=st.integers(1, 5),
    more=st.integers(0, 5),
    tests=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_any_of_mapl(clients: int, clusters: Any, low: int, more: int, tests: int, seed: int) -> None:
    scenario = Mapl(clients=clients, clusters=clusters, per_class=(low, low + more), test_per_class=tests)
    federation = scenario.build(labelled(120, 36), seed)
    assert distinct(federation, "train")
    assert distinct(federation, "test")
    groups = members(federation)
    assert max(groups.values()) - min(groups.values()) <= 1
    if not isinstance(clusters, int):
        assert set(groups) == {"0+2+4", "1+4"}
    for client in federation.values():
        assert set(counts(client.train)) == set(client.about["classes"])
        assert set(counts(client.train).values()) <= set(range(low, low + more + 1))
        assert counts(client.test) == (dict.fromkeys(client.about["classes"], tests) if tests else {})


# -- What is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "size", "settings", "said"), [
    (Iid, (20, 10), {"clients": 201}, "clients: 201 clients cannot share the 200 train samples of labels; at most 200"),
    (Iid, (20, 10), {"clients": 101}, "clients: 101 clients cannot share the 100 test samples of labels; at most 100"),
    (Iid, (20, 10), {"clients": 10**12}, "scenario.clients: 1000000000000 clients cannot share"),
    (Iid, (20, 10), {"clients": 4, "train_per_client": 51}, "4 clients x 51 are more than the 200 .* 50"),
    (Iid, (20, 10), {"clients": 4, "test_per_client": 26}, "test_per_client: 4 clients x 26 are more .* 100 .* 25"),
    (QuantitySkew, (30, 10), {"clients": 31, "min_size": 10}, "31 clients with at least 10 .* at most 30 clients"),
    (QuantitySkew, (30, 10), {"clients": 101}, "101 clients cannot share the 100 test samples"),
    (QuantitySkew, (30, 10), {"clients": 30, "test_per_client": 4}, "30 clients x 4 are more than the 100"),
    (Dirichlet, (20, 10), {"clients": 201}, "201 clients with at least 1 training samples each are more than the 200"),
    (Dirichlet, (20, 10), {"clients": 21, "min_size": 10}, "at most 20 clients, or a smaller min_size"),
    (Dirichlet, (20, 10), {"clients": 10**12}, "scenario.clients: 1000000000000 clients"),
    (Dirichlet, (20, 10), {"alpha": 1e-4, "clients": 5, "test_per_client": 11}, "test_per_client: .* 10; take fewer"),
    (Shards, (20, 10), {"clients": 101}, "101 clients with 2 shards each are more than the 200 .* at most 100"),
    (ClassesPerClient, (100, 20), {"classes": 11}, "classes: 11 per client, but labels has 10 classes; at most 10"),
    (ClassesPerClient, (100, 20), {"clients": 100}, "100 clients .* cut every class into 21 slots; .* at most 20"),
    (ClassesPerClient, (100, 20), {"clients": 100, "train_fraction": 0.1}, "labels has 10 train samples of class 0"),
    (ClassesPerClient, (100, 20), {"clients": 10**12}, "scenario.clients: 1000000000000 clients with"),
    (ClassesPerClient, (100, 20), {"share": [0.6, 0.4]}, r"share: expected a range \[low, high\] with 0 < low <= high"),
    (ClassesPerClient, (100, 20), {"share": [0, 1]}, "scenario.share: "),
    (ClassesPerClient, (100, 20), {"train_fraction": 0}, "scenario.train_fraction: "),
    (ClassesPerClient, (100, 20), {"train_fraction": 1.1}, "scenario.train_fraction: "),
    (ClassesPerClient, (100, 20), {"spare_slots": -1}, "scenario.spare_slots: "),
    (ClassesPerClient, (100, 20), {"classes": 0}, "scenario.classes: "),
    (LabelSwap, (20, 10), {"clients": 3}, "scenario.clients: 3 clients for 4 groups; at least 4"),
    (LabelSwap, (20, 10), {"groups": 7}, 'groups: 7, but with how = "pairs" the 10 classes of labels give at most 6'),
    (LabelSwap, (20, 10), {"groups": 11, "how": "shift"}, "at most 10"),
    (Structured, (20, 5), {"clusters": 7}, "clusters: 7 clusters of 2 classes need more than the 10 of labels"),
    (Structured, (20, 5), {"clusters": 11}, "scenario.clusters: 11 clusters"),
    (Structured, (20, 5), {"clusters": [[0], [10]]}, "scenario.clusters: labels has no class 10"),
    (Structured, (20, 5), {"clients": 4}, "scenario.clients: 4 clients for 5 clusters; at least 5"),
    (Structured, (20, 5), {"clients": 250}, "50 clients share the 40 .* classes 0.1, and the smallest would get 0"),
    (Structured, (20, 5), {"clients": 50, "min_size": 4}, "would get 3; expected at least 4 .min_size.: take fewer"),
    (Structured, (20, 5), {"per_class": 2, "clients": 30}, "6 clients share the 4 training samples"),
    (Mapl, (5421, 800), {"shared": 4}, "20 clients take 6000 train .* class 3, 300 at most each, but .* 5421; 271"),
    (Mapl, (5421, 800), {"clients": 40}, "scenario.per_class: 20 clients take 6000 train samples of class 0"),
    (Mapl, (5421, 800), {"test_per_class": 100}, "test_per_class: 10 clients take 1000 test .* class 0, .* has 800"),
    (Mapl, (5421, 800), {"clients": 1}, "scenario.clients: 1 clients for 2 clusters; at least 2"),
    (Mapl, (5421, 800), {"clusters": 11, "clients": 11}, "11 clusters of 10 classes of labels; at most 10"),
    (Mapl, (5421, 800), {"clusters": [[0], [1, 10]]}, "scenario.clusters: labels has no class 10"),
    (Mapl, (5421, 800), {"clusters": [[0], [1]], "shared": 1}, "scenario.shared: a list of clusters already says"),
    (Mapl, (5421, 800), {"shared": 10}, "shared: 2 clusters of 10 classes would lie within one another"),
])  # fmt: skip
def test_impossible(scenario: type[Scenario], size: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(scenario, settings, "scenario").build(labelled(*size), 0)


# -- how samples are dealt: sizes that add up, and rows by owner ---------------------------------------------------


tests_like.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.slow
@given(st.integers(0, 500), st.lists(st.floats(0, 10), min_size=1, max_size=20))
def test_apportion(total: int, shares: list[float]) -> None:
    assume(sum(shares) > 1e-3)
    sizes = apportion(total, np.array(shares))
    assert sizes.sum() == total
    assert np.abs(sizes - np.array(shares) / sum(shares) * total).max() < 1


def lifted_one_by_one(sizes: list[int], least: list[int]) -> list[int]:
    """The same, a sample at a time: whoever has most above its least gives, the last of those to have most."""
    sizes = list(sizes)
    for place, wanted in enumerate(least):
        while sizes[place] < wanted:
            giver = max((k for k in range(len(sizes)) if sizes[k] > least[k]), key=lambda k: sizes[k])
            sizes[giver] -= 1
            sizes[place] += 1
    return sizes


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), min_size=1, max_size=12))
def test_lifted(pairs: list[tuple[int, int]]) -> None:
    sizes, least = (np.array(column) for column in zip(*pairs, strict=True))
    assume(least.sum() <= sizes.sum())
    found = raised_to_least(sizes, least)
    assert found.sum() == sizes.sum()
    assert (found >= least).all()
    assert sorted(found.tolist()) == sorted(lifted_one_by_one(sizes.tolist(), least.tolist()))
    assert found.tolist() == sizes.tolist() or (sizes < least).any(), "nothing is moved without need"
    assert (found <= np.maximum(sizes, least)).all(), "only those below their least get any"


@pytest.mark.parametrize("alpha", [0.3, 1.0, 20.0])
def test_dirichlet_is_the_distribution(alpha: float) -> None:
    shares = dirichlet(np.random.default_rng(1), alpha, (4000, 5))
    assert shares.sum(axis=1) == pytest.approx(1)
    # The first share of a symmetric Dirichlet in five dimensions is Beta(alpha, 4 alpha).
    assert stats.kstest(shares[:, 0], stats.beta(alpha, 4 * alpha).cdf).pvalue > 0.01


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-6, 1e8, 1e300])
def test_dirichlet_at_its_ends(alpha: float) -> None:
    shares = dirichlet(np.random.default_rng(0), alpha, (50, 30))
    assert np.isfinite(shares).all()
    assert shares.sum(axis=1) == pytest.approx(1)
    if alpha < 1:
        assert shares.max(axis=1) == pytest.approx(1, abs=1e-3)
    else:
        assert shares == pytest.approx(1 / 30, rel=0.01)


@given(st.integers(0, 1000), st.integers(1, 30))
def test_tests_in_proportion(seed: int, clients: int) -> None:
    dataset = labelled(30, 40, classes=4)
    counts = np.random.default_rng(seed).integers(0, 9, (clients, 4)) + np.eye(4, dtype=np.int64)[seed % 4]
    pools = dataset.train.by_class(4)
    train = [np.concatenate([rows[:n] for rows, n in zip(pools, own, strict=True)]) for own in counts]
    parts = tests_like(dataset, train, None, seed, "t")
    everyone = np.concatenate(parts)
    assert len(np.unique(everyone)) == len(everyone)
    for label in range(4):
        got = np.array([(dataset.test.y.numpy()[own] == label).sum() for own in parts])
        if counts[:, label].sum():
            assert got.sum() == 40, "a class is dealt out in full"
        assert (got[counts[:, label] == 0] == 0).all(), "only classes that a client trains on"
    assert min(map(len, parts)) >= 1
    drawn = tests_like(dataset, train, 7, seed, "t")
    for own, part in zip(counts, drawn, strict=True):
        assert len(set(part.tolist())) == 7
        got = np.bincount(dataset.test.y.numpy()[part], minlength=4)
        assert np.abs(got - own / own.sum() * 7).max() < 1
