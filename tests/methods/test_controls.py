"""Control graphs: they replace the learned graph and its groups, and nothing that comes before."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedkin.engines import LocalEngine, RecordingObserver
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.graph import ari, oracle
from fedkin.methods.blocks.stage_settings import ControlledGraph
from fedkin.methods.fedu import FedU
from fedkin.methods.flt_same import FltSame
from fedkin.methods.sfmtl_graph import SfmtlGraph
from fedkin.methods.tfl import Tfl
from fedkin.settings import parse
from methods.flt_world import grouped, raw
from support import small_setup

METHODS: dict[str, Any] = {
    "flt": raw(k=2),
    "flt-neighbours": raw(k=2, average="neighbours"),
    "flt-same": FltSame(),
    "tfl": Tfl(eta_lambda=0.2),
    "sfmtl-graph": SfmtlGraph(lam=0.4, anchor_weight=0.01),
    "fedu": FedU(lam=0.3, graph={"source": "cosine", "sparsify": "knn:3"}),
}


def first_round(method: Any) -> tuple[Any, dict[str, bytes]]:
    """The graph of the first round, and what clients answered before the server had one."""
    witness = RecordingObserver()
    engine = LocalEngine(small_setup(method, grouped(), clients_per_round="all"), observers=[witness])
    graph = engine.round(1).graph
    replies = next(replies for _, ask, replies in witness.asks if ask.phase == "train")
    return graph, {id: reply.to_bytes() for id, reply in replies.items()}


@pytest.mark.parametrize("control", ["random", "uniform", "oracle", "shuffled", "self"])
@pytest.mark.parametrize("name", METHODS)
def test_a_control_replaces_the_graph_and_nothing_before_it(name: str, control: str) -> None:
    method, federation = METHODS[name], grouped()
    changed = method.model_copy(update={"graph": method.graph.model_copy(update={"control": control})})
    (one, before), (two, answered) = first_round(method), first_round(changed)
    assert before == answered
    assert one.ids == two.ids
    learned, drawn = np.asarray(one.weights), np.asarray(two.weights)
    planted = [federation[id].group for id in two.ids]
    apart = ~np.eye(len(planted), dtype=bool)
    if control in ("random", "shuffled"):
        assert not np.array_equal(learned, drawn)
        np.testing.assert_allclose(np.sort(drawn.ravel()), np.sort(learned.ravel()), atol=1e-12)
    elif control == "uniform":
        np.testing.assert_allclose(drawn[apart], learned[apart].mean())
    else:
        np.testing.assert_array_equal(drawn, oracle(planted) if control == "oracle" else 0 * learned)
    if two.groups is not None:
        found = [two.groups[id] for id in two.ids]
        if control == "oracle":
            assert ari(planted, found) == 1
        elif control in ("uniform", "self"):
            assert len(set(found)) == (1 if control == "uniform" else 12)
        elif name.startswith("flt"):
            # The groups go with the graph: as large as before, and none of the planted ones.
            assert sorted(np.bincount(found).tolist()) == [4, 4, 4]
            assert ari(planted, found) < 0.5


@pytest.mark.parametrize("name", METHODS)
def test_the_oracle_needs_planted_groups_and_other_names_are_refused(name: str) -> None:
    method, federation = METHODS[name], grouped()
    unplanted = Federation([replace(one, group=None) for one in federation.values()], federation.task)
    with pytest.raises(ConfigError, match=r"method\.graph\.control: 'oracle' needs planted groups"):
        type(method)(graph={"control": "oracle"}).check(unplanted)
    with pytest.raises(ConfigError, match=r"method\.graph\.control: .*did you mean 'random'"):
        parse(type(method), {"graph": {"control": "randm"}}, "method")


@pytest.mark.parametrize("control", ["none", "self", "random", "uniform", "oracle"])
def test_a_sparse_affinity_is_that_of_the_array(control: str) -> None:
    affinity, ids = np.array([[0.0, 0.5, 0.2], [0.5, 0.0, 0.0], [0.2, 0.0, 0.0]]), ("a", "b", "c")
    server: Any = SimpleNamespace(planted=dict(zip(ids, "xxy", strict=True)), key=lambda what: 3)
    graph = ControlledGraph(control=control)
    want = graph.controlled(server, ids, affinity)
    got = graph.controlled(server, ids, csr_array(affinity))
    assert got.dtype == want.dtype == np.float64
    if control != "random":  # its draws follow the form
        np.testing.assert_array_equal(got, want)
    assert got.shape == (3, 3)
