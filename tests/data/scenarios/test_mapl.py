"""MAPL's scenarios 1 to 4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data.dataset import Dataset
from fedkin.data.scenarios.label_skew import Mapl
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Samples
from fedkin.settings import parse

Make = Callable[..., Dataset]


def counts(samples: Samples) -> Counter[int]:
    return Counter(samples.labels().tolist())


def distinct(federation: Federation, split: str) -> bool:
    rows = [row for client in federation.values() for row in getattr(client, split).rows.tolist()]
    return len(set(rows)) == len(rows)


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
def test_the_papers_scenarios(labelled: Make, number: int, settings: dict[str, Any], sets: list[range]) -> None:
    """20 clients on a data set with Fashion-MNIST's 6,000 and 1,000 samples a class."""
    federation = parse(Mapl, settings, "scenario").build(labelled(6000, 1000), 0)
    planted = Counter((federation.planted or {}).values())
    assert planted == {f"{own.start}-{own.stop - 1}": 10 for own in sets}
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
def test_any(labelled: Make, clients: int, clusters: Any, low: int, more: int, tests: int, seed: int) -> None:
    scenario = Mapl(clients=clients, clusters=clusters, per_class=(low, low + more), test_per_class=tests)
    federation = scenario.build(labelled(120, 36), seed)
    assert distinct(federation, "train")
    assert distinct(federation, "test")
    members = Counter((federation.planted or {}).values())
    assert max(members.values()) - min(members.values()) <= 1
    if not isinstance(clusters, int):
        assert set(members) == {"0+2+4", "1+4"}
    for client in federation.values():
        assert set(counts(client.train)) == set(client.about["classes"])
        assert set(counts(client.train).values()) <= set(range(low, low + more + 1))
        assert counts(client.test) == (dict.fromkeys(client.about["classes"], tests) if tests else {})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"shared": 4},
            r"per_class: 20 clients take 6000 train samples of class 3, 300 at most each, but .* has 5421; 271",
        ),
        ({"clients": 40}, r"scenario\.per_class: 20 clients take 6000 train samples of class 0"),
        (
            {"test_per_class": 100},
            r"scenario\.test_per_class: 10 clients take 1000 test samples of class 0, .* has 800",
        ),
        ({"clients": 1}, r"scenario\.clients: 1 clients for 2 clusters; at least 2"),
        ({"clusters": 11, "clients": 11}, r"scenario\.clusters: 11, but labels has 10 classes; at most 10"),
        ({"clusters": [[0], [1, 10]]}, r"scenario\.clusters: labels has no class 10"),
        ({"clusters": [[0], [1]], "shared": 1}, r"scenario\.shared: a list of clusters already says"),
        ({"shared": 10}, r"scenario\.shared: 2 clusters of 10 classes would lie within one another"),
    ],
)
def test_impossible(labelled: Make, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(Mapl, settings, "scenario").build(labelled(5421, 800), 0)
