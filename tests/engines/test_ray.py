"""The Ray engine: the local engine's bits, from actors that hold the clients' samples."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedkin import Fit, Message, phase
from fedkin.engines import LocalEngine
from fedkin.engines.simulation import RayEngine
from fedkin.errors import ConfigError, MethodError
from fedkin.flow import ClientFlow
from fedkin.forms import COUNT, NET
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.views import ClientView
from support import ON_RAY, local_site, small_setup

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedkin[ray]'")
pytestmark = ON_RAY


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.mark.parametrize("name", ["fedavg", "sfmtl-graph"])
def test_the_bits_of_the_local_engine(name: str) -> None:
    setup = small_setup(METHODS[name](), clients_per_round=5).having(workers=2)
    local, cluster = LocalEngine(setup), RayEngine(setup)
    try:
        for number in (1, 2, 3):
            assert local.round(number).traffic == cluster.round(number).traffic
        assert local.evaluate() == cluster.evaluate()
        for id in setup.federation:
            assert all(torch.equal(t, cluster.model(id)[k]) for k, t in local.model(id).items())
    finally:
        cluster.close()


class Stepwise(FedAvg):
    """Each client goes on with the dict that it has, whose values it replaces or changes in place."""

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        params = dict(message.params)
        for step in range(4):
            fitted = yield from Fit(params)
            if step % 2:
                for name, tensor in fitted.params.items():
                    params[name].data.copy_(tensor)
            else:
                params.update(fitted.params)
        return Message(params=params, n=client.size)


def test_parameters_that_a_client_changes_between_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.engines.executors.ray._HEAVY", 0)
    setup = small_setup(Stepwise()).having(workers=2)  # more clients than models that are kept
    local, cluster = LocalEngine(setup), RayEngine(setup)
    try:
        for number in (1, 2):
            local.round(number)
            cluster.round(number)
        assert local.evaluate() == cluster.evaluate()
        for id in setup.federation:
            assert all(torch.equal(t, cluster.model(id)[k]) for k, t in local.model(id).items())
    finally:
        cluster.close()


def test_a_lost_actor_is_made_again() -> None:
    import ray

    setup = small_setup(FedAvg()).having(workers=2)
    local, cluster = LocalEngine(setup), RayEngine(setup)
    try:
        local.round(1)
        cluster.round(1)
        executor: Any = local_site(cluster).executor
        ray.kill(executor.places[0].actor, no_restart=False)
        local.round(2)
        cluster.round(2)
        id = next(iter(setup.federation))
        assert all(torch.equal(t, cluster.model(id)[k]) for k, t in local.model(id).items())
    finally:
        cluster.close()


def test_errors_name_the_client() -> None:
    cluster = RayEngine(small_setup(Local(), lr=1e30).having(workers=2))
    try:
        with pytest.raises(MethodError, match=r"client 'site-.', phase 'train': the training loss became"):
            _rounds(cluster, 3)
    finally:
        cluster.close()


def _rounds(engine: RayEngine, count: int) -> None:
    for number in range(1, count + 1):
        engine.round(number)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedkin\[ray\]'"):
        RayEngine(small_setup(Local()))
