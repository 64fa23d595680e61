"""kNN-Per: without a vote it is FedAvg; votes and shares are scikit-learn's; what a client stores stays there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

import fedkin
from fedkin.federation import Client, Federation
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.knnper import KnnPer, best_share, squared_distances, vote
from support import after, small_federation

CLASSES = 4


def samples(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features [n, 3], labels that follow them, and log probabilities of a model that knows less."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    labels = (features[:, 0] > 0).long() * 2 + (features[:, 1] > 0)
    logs = torch.randn(n, CLASSES, generator=generator, dtype=torch.float64).log_softmax(1)
    return features, labels, logs


def voted(stored: Tensor, labels: Tensor, z: Tensor, neighbours: int) -> np.ndarray[Any, Any]:
    """p_knn [n, classes] by scikit-learn."""
    width = stored.shape[1]
    oracle = KNeighborsClassifier(neighbours, weights=lambda distances: np.exp(-(distances**2) / width))
    oracle.fit(stored.numpy(), labels.numpy())
    chances = np.zeros((len(z), CLASSES))
    chances[:, oracle.classes_] = oracle.predict_proba(z.numpy())
    return chances


@pytest.mark.parametrize("neighbours", [1, 5, 40])
def test_votes_are_those_of_scikit_learn(neighbours: int) -> None:
    stored, labels, _ = samples(40)
    z, _, _ = samples(9, seed=1)
    votes = vote(squared_distances(z, stored), labels, neighbours, CLASSES)
    np.testing.assert_allclose(votes.numpy(), voted(stored, labels, z, neighbours), atol=1e-12)


def test_the_share_is_the_best_one_when_each_sample_is_judged_by_the_others() -> None:
    features, labels, logs = samples(30)
    shares = np.arange(10) / 10
    losses = np.zeros(len(shares))
    for i in range(30):
        others = np.arange(30) != i
        votes = voted(features[others], labels[others], features[i : i + 1], 5)[0, labels[i]]
        with np.errstate(divide="ignore"):
            losses -= np.log(shares * votes + (1 - shares) * np.exp(float(logs[i, labels[i]])))
    chosen = float(best_share(features, labels, logs, 5))
    assert 0 < chosen < 1
    assert chosen == pytest.approx(shares[np.argmin(losses)])


def test_without_a_vote_it_is_fedavg() -> None:
    one, other = (after(method, 3)[0] for method in (KnnPer(share=0.0), FedAvg()))
    for id, client in one.setup.federation.items():
        mine, common = one.model(id), other.model(id)
        assert all(torch.equal(mine[name.replace("head.", "head.part.")], common[name]) for name in common)
        module = one.setup.net.scratch().eval()
        x = client.test.inputs(slice(None))
        with torch.no_grad():
            outputs = torch.func.functional_call(module, dict(mine), x)
            logits = torch.func.functional_call(other.setup.net.scratch().eval(), dict(common), x)
        assert torch.equal(outputs, logits.log_softmax(1))
    scores = [{id: score.outcomes for id, score in engine.evaluate().items()} for engine in (one, other)]
    assert scores[0] == scores[1]


def test_a_client_predicts_with_the_mixture_of_its_memory() -> None:
    engine = after(KnnPer(neighbours=3, share=0.4), 2)[0]
    for id, client in engine.setup.federation.items():
        module, params = engine.setup.net.scratch().eval(), dict(engine.model(id))
        module.load_state_dict(params)
        with torch.no_grad():
            stored, z = (module.features(part.inputs(slice(None))) for part in (client.train, client.test))
            head: Any = module.head
            votes = vote(squared_distances(z, stored), client.train.labels(), 3, CLASSES)
            torch.testing.assert_close(head(z).exp(), 0.4 * votes + 0.6 * head.part(z).softmax(1))


def test_a_small_memory_has_samples_of_the_whole_stored_order() -> None:
    engine = after(KnnPer(memory=5), 1)[0]
    for id, client in engine.setup.federation.items():
        places = [round(k * (client.size - 1) / 4) for k in range(5)]
        assert engine.model(id)["head.memory.labels"].tolist() == client.train.labels()[places].tolist()


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


@pytest.mark.slow
def test_votes_help_clients_with_labels_of_their_own() -> None:
    federation = small_federation(clients=8)

    def turned(client: Client, by: int) -> Client:
        def part(own: Any) -> Any:
            return replace(own.own(), y=(own.labels() + by) % CLASSES)

        return replace(client, train=part(client.train), test=part(client.test))

    clients = [turned(client, number % CLASSES) for number, client in enumerate(federation.values())]
    results = fedkin.compare(
        Federation(clients, federation.task), ["fedavg", "knn-per"], rounds=10, training={"lr": 0.1, "local_steps": 5}
    )
    means = results.table.set_index("method")["mean.mean"]
    assert means["knn-per"] > means["fedavg"] + 0.2


def test_probabilities_sum_to_one_also_far_from_every_sample() -> None:
    stored, labels, _ = samples(20)
    votes = vote(squared_distances(stored[:3] + 1e6, stored), labels, 5, CLASSES)
    torch.testing.assert_close(votes.sum(1), torch.ones(3, dtype=torch.float64))
