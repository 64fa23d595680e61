"""kNN-Per: without a vote it is FedAvg, and what a client stores stays there."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedkin.federation import Federation
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.knnper import KnnPer, squared_distances, vote
from support import after, small_federation


def test_without_a_vote_it_is_fedavg() -> None:
    one, other = (after(method, 3)[0] for method in (KnnPer(share=0.0), FedAvg()))
    for id in one.setup.federation:
        mine, common = one.model(id), other.model(id)
        assert all(torch.equal(mine[name.replace("head.", "head.part.")], common[name]) for name in common)
    scores = [{id: score.outcomes for id, score in engine.evaluate().items()} for engine in (one, other)]
    assert scores[0] == scores[1]


def test_a_client_with_a_single_sample_uses_the_common_model() -> None:
    federation = small_federation()
    few = min(federation)
    clients = [replace(c, train=c.train.take([0])) if id == few else c for id, c in federation.items()]
    engine = after(KnnPer(), 1, Federation(clients, federation.task))[0]
    assert float(engine.model(few)["head.memory.share"]) == 0
    labels = engine.model(few)["head.memory.labels"]
    assert (int((labels >= 0).sum()), len(labels)) == (1, 1000)


def test_nothing_of_a_memory_is_sent() -> None:
    method = KnnPer()
    engine = after(method, 1)[0]
    sent = {name for id in engine.setup.federation for name in method.offer(engine.server, id)["params"]}
    assert {name for name in engine.setup.net.initial if name not in sent} == {
        "head.memory.features", "head.memory.labels", "head.memory.share",
    }  # fmt: skip


def test_probabilities_sum_to_one_also_far_from_every_sample() -> None:
    stored = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    votes = vote(squared_distances(stored[:3] + 1e6, stored), torch.arange(20) % 4, 5, 4)
    torch.testing.assert_close(votes.sum(1), torch.ones(3, dtype=torch.float64))
