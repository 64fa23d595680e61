"""SCAFFOLD: its exact special case, and the optimiser that it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.scaffold import Scaffold
from methods.plain_loops import assert_params
from support import after, small_federation


def test_scaffold_with_equal_data_and_whole_batches_is_fedavg() -> None:
    federation = small_federation()
    first = federation[sorted(federation)[0]]
    clients = [replace(federation[id], train=first.train, test=first.test) for id in federation]
    equal = Federation(clients, federation.task)
    one, other = (after(method, 3, equal, batch_size="all")[0] for method in (Scaffold(), FedAvg()))
    for id in federation:
        assert_params(one.model(id), dict(other.model(id)), 1e-5)


def test_scaffold_refuses_momentum_by_name() -> None:
    with pytest.raises(FedkinError, match=r"training\.momentum"):
        after(Scaffold(), 1, momentum=0.9)
