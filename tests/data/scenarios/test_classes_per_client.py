"""The slot recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios.label_skew import ClassesPerClient
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Samples, Task
from fedkin.settings import parse

Toy = Callable[..., Dataset]


def labels_only(per_class: int, tests: int, classes: int = 10) -> Dataset:
    """A data set of the size of CIFAR-10, without its images."""

    def part(count: int) -> Part:
        y = torch.from_numpy(np.random.default_rng(count).permutation(np.repeat(np.arange(classes), count)))
        return Part(torch.zeros(len(y), 1, dtype=torch.uint8), y)

    return Dataset("labels", part(per_class), part(tests), Task(classes, (1,)))


def counts(samples: Samples) -> dict[int, int]:
    return dict(Counter(samples.labels().tolist()))


def taken(federation: Federation) -> Counter[int]:
    return Counter(label for client in federation.values() for label in client.about["classes"])


def test_the_papers_federation() -> None:
    """30 clients, 2 of 10 classes: seven slots a class, about 571 images a class, 1,140 and 286 a client."""
    means = []
    for seed in range(5):
        federation = ClassesPerClient().build(labels_only(5000, 1000), seed)
        assert len(federation) == 30
        assert taken(federation) == dict.fromkeys(range(10), 6)
        train = [count for client in federation.values() for count in counts(client.train).values()]
        assert len(train) == 60
        # The least and the most that a share of U(0.4, 0.6) among seven can be.
        assert min(train) >= 4000 * 0.4 / (0.4 + 6 * 0.6) - 1
        assert max(train) <= 4000 * 0.6 / (0.6 + 6 * 0.4) + 1
        means.append([np.mean(list(federation.sizes.values())), np.mean([len(c.test) for c in federation.values()])])
    assert np.mean(means, axis=0) == pytest.approx([1142.9, 285.7], rel=0.02)


@given(
    clients=st.integers(1, 40),
    classes=st.integers(1, 10),
    spare=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_slots(clients: int, classes: int, spare: int, seed: int) -> None:
    total = 10
    assume(classes <= total)
    scenario = ClassesPerClient(clients=clients, classes=classes, spare_slots=spare)
    federation = scenario.build(labels_only(200, 60), seed)
    slots = -(-clients * classes // total) + spare
    used = taken(federation)
    assert sum(used.values()) == clients * classes
    assert max(used.values()) - min(used[label] for label in range(total)) <= 1, "spread evenly"
    for client in federation.values():
        own = client.about["classes"]
        assert own == sorted(set(own))
        assert len(own) == classes, "no class twice"
        assert client.group == "+".join(map(str, own))
        assert sorted(counts(client.train)) == sorted(counts(client.test)) == own
    dealt = Counter(dict.fromkeys(range(total), 0))
    for client in federation.values():
        dealt.update(counts(client.train))
    for label, count in used.items():
        if spare == 0 and count == slots:
            assert dealt[label] == 160, "all of the class is dealt out when nothing is spare"
        else:
            assert dealt[label] < 160


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"classes": 11}, "scenario.classes: 11 per client, but labels has 10 classes; at most 10"),
        (
            {"clients": 100},
            "scenario.clients: 100 clients with 2 classes each cut every class into 21 slots; .* at most 20",
        ),
        ({"clients": 100, "train_fraction": 0.1}, "labels has 10 train samples of class 0"),
        ({"clients": 10**12}, "scenario.clients: 1000000000000 clients with"),
    ],
)
def test_impossible(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ClassesPerClient(**settings).build(labels_only(100, 20), 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"share": [0.6, 0.4]}, r"scenario\.share: expected a range \[low, high\] with 0 < low <= high"),
        ({"share": [0, 1]}, r"scenario\.share: "),
        ({"train_fraction": 0}, r"scenario\.train_fraction: "),
        ({"train_fraction": 1.1}, r"scenario\.train_fraction: "),
        ({"spare_slots": -1}, r"scenario\.spare_slots: "),
        ({"classes": 0}, r"scenario\.classes: "),
    ],
)
def test_bad_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(ClassesPerClient, settings, "scenario")
