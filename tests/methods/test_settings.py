"""Settings of methods that cannot be: refused when they are read, with their path."""

from __future__ import annotations

from typing import Any

import pytest

from fedkin.errors import ConfigError
from fedkin.methods import METHODS
from fedkin.settings import parse


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("flt", {"graph": {"gamma": -1.0}}, r"method\.graph\.gamma.*at least 0"),
        ("flt", {"graph": {"groups": 0}}, r"method\.graph\.groups.*at least 1"),
        ("flt", {"k": 0}, r"method\.k"),
        ("flt", {"encoder": {"kind": "none", "pretrain": "mnist"}}, "pretrain: kind 'none' has nothing to train"),
        ("flt", {"encoder": {"limit": 10}}, "name it in pretrain"),
        ("flt-same", {"k": 3}, r"method\.k: no such setting"),
        ("flt-same", {"alpha": 1.0}, r"method\.alpha"),
        ("tfl", {"graph": {"similarity": "dott"}}, r"method\.graph\.similarity: .*did you mean 'dot'"),
        ("tfl", {"graph": {"layers": 0}}, r"method\.graph\.layers: .*at least 1"),
        ("tfl", {"graph": {"epsilon": -0.1}}, r"method\.graph\.epsilon"),
        ("tfl", {"graph": {"centrality": "pagerank"}}, r"method\.graph\.centrality"),
        ("sfmtl-graph", {"graph": {"groups": "louvian"}}, r"method\.graph\.groups: .*louvian.*did you mean 'louvain'"),
        ("sfmtl-graph", {"graph": {"similarity": "hands"}}, r"graph\.similarity: .*hands.*, or both, heads, anchors"),
        ("fedu", {"graph": {"source": "unform"}}, r"method\.graph\.source: .*unform.*, or uniform, planted"),
        ("fedu", {"graph": {"layers": 0}}, r"method\.graph\.layers: .*at least 1"),
        ("given", {"groups": {"a": ["x", "y"], "b": ["y"]}}, "'y' is there twice"),
        ("given", {"near": {"x": ["y"]}, "groups": {"a": ["x", "z"]}}, "'x' is there twice"),
        ("given", {"own_lr": 0.0}, "own_lr"),
        ("given", {"pull_bias": 0.0}, "pull_bias"),
    ],
)
def test_what_cannot_be_is_refused_when_read(name: str, table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(METHODS[name], table, "method")


@pytest.mark.parametrize("name", ["ifca", "fedsem", "pca-km-hc"])
@pytest.mark.parametrize(("clusters", "said"), [("sme", "same:ALPHA"), ("same:2", "below 1"), (0, "clusters")])
def test_a_wrong_number_of_groups_is_refused(name: str, clusters: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(METHODS[name], {"clusters": clusters}, "method")
