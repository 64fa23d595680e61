"""All data in one place: the same samples, and one client."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedkin.data import federate
from fedkin.data.scenarios.base import POOLED, pooled
from fedkin.data.scenarios.label_skew import Iid
from fedkin.errors import ConfigError
from fedkin.federation import Change, Federation
from support import small_federation


def test_every_sample_is_there_once_and_unseen_clients_stay() -> None:
    apart = federate("digits", Iid(clients=6, unseen=0.3), seed=1)
    joined = pooled(apart)
    assert joined.seen == federate("digits", Iid(clients=6, unseen=0.3, pooled=True), seed=1).seen
    assert joined.unseen == apart.unseen
    assert joined.seen == (POOLED,)
    for part in ("train", "test"):
        rows = torch.cat([getattr(apart[id], part).rows for id in apart.seen])
        assert torch.equal(getattr(joined[POOLED], part).rows, rows)
        assert getattr(joined[POOLED], part).x is (getattr(apart[apart.seen[0]], part).x)


def test_samples_of_different_arrays_are_joined_in_the_order_of_ids() -> None:
    federation = small_federation()
    joined = pooled(federation)[POOLED]
    ids = sorted(federation)
    x = torch.cat([federation[i].train.inputs(slice(None)) for i in ids])
    assert torch.equal(joined.train.inputs(slice(None)), x)
    assert torch.equal(joined.test.labels(), torch.cat([federation[i].test.labels() for i in ids]))
    turned = pooled(federation.reorder(list(reversed(list(federation)))))[POOLED]
    assert torch.equal(turned.train.inputs(slice(None)), joined.train.inputs(slice(None)))


def test_what_does_not_stand_still_is_refused() -> None:
    federation = small_federation(3)
    first = federation[sorted(federation)[0]]
    for moving in (replace(first, joins=2), replace(first, changes=(Change(2, first.train, first.test),))):
        clients = [moving if client.id == first.id else client for client in federation.values()]
        with pytest.raises(ConfigError, match=f"scenario.pooled: client '{first.id}' joins later or leaves, or its da"):
            pooled(Federation(clients, federation.task))
