"""FedFomo: what a client takes of others, and what travels."""

from __future__ import annotations

import numpy as np
import torch

from fedkin.engines import LocalEngine, RecordingObserver
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.methods.fedfomo import FedFomo, taken
from fedkin.methods.local import Local
from methods.plain_loops import assert_params
from support import present, server_view, small_federation, small_setup


def test_weights_are_gains_over_distances() -> None:
    assert taken({"a": 1.0, "b": 2.0, "c": -5.0}, {"a": 0.5, "b": 2.0, "c": 1.0}) == {"a": 2 / 3, "b": 1 / 3, "c": 0.0}
    assert taken({"a": -1.0}, {"a": 1.0}) == {"a": 0.0}
    assert taken({"a": 1.0}, {"a": 0.0}) == {"a": 0.0}


def test_a_client_to_whom_nobody_is_better_keeps_its_model() -> None:
    """Alone there is nobody: its model is what local training on the kept rows gives."""
    one = sorted(small_federation())[0]
    federation = small_federation().reorder([one])
    client = federation[one]
    rows = np.arange(client.size)
    kept = Federation([Client(one, client.train.take(rows[rows % 5 != 4]), client.test)], federation.task)
    mine = LocalEngine(small_setup(FedFomo(), federation, batch_size="all"))
    alone = LocalEngine(small_setup(Local(), kept, batch_size="all"))
    for number in (1, 2):
        mine.round(number)
        alone.round(number)
    assert_params(mine.model(one), dict(alone.model(one)), 1e-6)


def two_kinds() -> Federation:
    """Six clients; those of the second half have reversed labels."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(3, 6)) * 3
    clients = []
    for number in range(6):
        y = draw.integers(0, 3, 90)
        x = torch.from_numpy((centres[y] + draw.normal(size=(90, 6))).astype(np.float32))
        labels = torch.from_numpy(2 - y if number > 2 else y)
        clients.append(Client(f"c{number}", Samples(x[:60], labels[:60]), Samples(x[60:], labels[60:])))
    return Federation(clients, Task(3, (6,)))


def test_clients_take_from_their_own_kind() -> None:
    engine = LocalEngine(small_setup(FedFomo(models=5, explore=1.0), two_kinds()))
    inside = across = 0.0
    for number in range(1, 6):
        engine.round(number)
        if number == 1:
            continue
        graph = present(engine.server.graph)
        weights = np.asarray(graph.weights)
        inside += weights[:3, :3].sum() + weights[3:, 3:].sum()
        across += weights[:3, 3:].sum() + weights[3:, :3].sum()
    assert inside > 5 * across


def test_a_client_downloads_at_most_so_many_models() -> None:
    witness = RecordingObserver()
    engine = LocalEngine(small_setup(FedFomo(models=2), small_federation()), observers=[witness])
    engine.round(1)
    engine.round(2)
    sent = [len(each.message["models"]) for each in witness.envelopes if each.sender == "server"]
    assert max(sent) == 2


def test_a_download_is_random_as_often_as_explore_says() -> None:
    method, others = FedFomo(models=1, explore=0.3), tuple(f"c{number:02}" for number in range(20))
    server = server_view(method, ("me", *others))
    server.state["models"] = {id: {} for id in ("me", *others)}
    server.state["affinity"] = {"me": {other: float(place) for place, other in enumerate(others)}}
    chosen = []
    for number in range(1, 2001):
        server.round = number
        chosen += method.chosen(server, "me")
    # The one with the most affinity is also among those that are drawn.
    assert abs(chosen.count("c19") / 2000 - (0.7 + 0.3 / 20)) < 0.03
    assert set(chosen) == set(others)
