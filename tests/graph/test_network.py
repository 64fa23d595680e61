"""Physical networks."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.errors import ConfigError
from fedkin.graph.network import check_network, network

IDS = [f"p{i}" for i in range(12)]


@given(
    st.sampled_from(["full", "ring", "regular:3", "regular:4", "erdos-renyi:0.4", "none", "ring, changing"]),
    st.integers(0, 5),
    st.integers(1, 4),
)
def test_networks_are_undirected_without_self_loops(spec: str, seed: int, round: int) -> None:
    near = network(spec, IDS, seed, round)
    assert set(near) == set(IDS)
    for id, others in near.items():
        assert id not in others
        assert list(others) == sorted(set(others))
        assert all(id in near[other] for other in others)


@pytest.mark.parametrize(("spec", "degree"), [("full", 11), ("ring", 2), ("regular:5", 5), ("none", 0)])
def test_degrees(spec: str, degree: int) -> None:
    assert {len(others) for others in network(spec, IDS, 3).values()} == {degree}


def test_a_ring_is_one_cycle() -> None:
    assert nx.is_connected(nx.Graph([(a, b) for a, near in network("ring", IDS).items() for b in near]))


def test_planted_links_all_inside_a_group_and_nobody_across() -> None:
    groups = {id: "ab"[k % 2] if k < 11 else "c" for k, id in enumerate(IDS)}
    near = network("planted", IDS, planted=groups)
    assert near["p11"] == ()
    for id, others in near.items():
        assert set(others) == {other for other in IDS if groups[other] == groups[id]} - {id}
    with pytest.raises(ConfigError, match=r"run\.network: 'planted' needs planted groups"):
        network("planted", IDS)


def test_only_changing_networks_change() -> None:
    assert network("regular:4", IDS, 1, 1) == network("regular:4", IDS, 1, 2)
    assert network("regular:4, changing", IDS, 1, 1) != network("regular:4, changing", IDS, 1, 2)
    assert network("regular:4", IDS, 1) != network("regular:4", IDS, 2)


@pytest.mark.parametrize(
    "spec", ["rign", "regular", "regular:0", "regular:2.5", "regular:x", "erdos-renyi:1.5", "ring:3", "ring, chaning"]
)
def test_bad_specs_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.network"):
        check_network(spec)


def test_too_many_neighbours_are_refused() -> None:
    with pytest.raises(ConfigError, match="below the number of peers"):
        network("regular:12", IDS)
