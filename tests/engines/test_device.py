"""Local work on another device: the same numbers, samples there once, no waiting between the steps of a fit."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import fedkin
from fedkin.engines import LocalEngine, RayEngine, Setup
from fedkin.engines.executors.jobs import Modules
from fedkin.engines.executors.stacked import Fast
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Scale, Task
from fedkin.flow import Params
from fedkin.learning import sgd
from fedkin.learning.devices import Resident
from fedkin.learning.models import Mixed
from fedkin.learning.stacked import fit_stacked
from fedkin.learning.training import Training
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.mapl import Mapl
from fedkin.running.experiment import Experiment, nets_for
from fedkin.running.loop import run_experiment
from fedkin.testing import small_federation, small_setup
from gpu import NAME, OnGpu, gpu
from support import NET_METHODS, PATTERNS, begun, by_pattern, default_method, stored
from tiny import TABLE

TASK = Task(4, (3, 16, 16))
# Heads of their own, and losses that draw views or noise, or keep snapshots, are done one by one.
ALONE = {
    "drfa", "fedclassavg", "feddyn", "fedem", "fedrep", "fedsr", "knn-per", "mapl", "mapl-plus", "pfedgraph",
    "scaffold",
}  # fmt: skip
OWN_LOSS = ["fedavg", "fedprox", "drfa", "fedclassavg", "fedproto", "fedsr", "mapl", "sfmtl-graph"]


def on_device(setup: Setup, device: str, mode: str = "one-by-one") -> Setup:
    """The same there; nobody could set a device that torch has no kernels for."""
    return replace(setup, engine=setup.engine.model_copy(update={"device": device, "mode": mode}))


def after(setup: Setup, mode: str = "one-by-one", device: str = "cpu") -> tuple[dict[str, Params], Any]:
    """Every client's model after two rounds, and the scores."""
    engine = begun(on_device(setup, device, mode), rounds=2)
    assert not any(isinstance(leaf, OnGpu) for leaf in pytree.tree_leaves(engine.state()))
    return engine.models(), engine.evaluate()


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all stacks; one that fails is not done one by one instead."""
    sizes: list[int] = []
    together = fit_stacked

    def heard(net: Any, loss: Any, training: Any, members: Sequence[Any], device: Any) -> Any:
        sizes.append(len(members))
        try:
            return together(net, loss, training, members, device)
        except Exception as error:
            raise SystemExit("a stack failed") from error

    monkeypatch.setattr("fedkin.engines.executors.stacked.fit_stacked", heard)
    return sizes


def agree(one: tuple[Any, Any], other: tuple[Any, Any], tolerance: float = 1e-9) -> None:
    """Both have the same numbers up to rounding, and neither left anything on the GPU."""
    assert not any(isinstance(leaf, OnGpu) for leaf in pytree.tree_leaves(other[0]))
    torch.testing.assert_close(other[0], one[0], rtol=tolerance, atol=tolerance)
    assert {id: score.right for id, score in other[1].items()} == {id: score.right for id, score in one[1].items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
def test_every_method_has_the_same_numbers_on_another_device(name: str, stacks: list[int]) -> None:
    setup = small_setup(default_method(name), small_federation(4), dtype=torch.float64, clients_per_round=3)
    reference = after(setup)
    # "fast" does one by one what it cannot stack.
    with gpu():
        for mode in ("one-by-one", "fast") if name in PATTERNS else ("fast",):
            agree(reference, after(setup, mode, NAME))
    assert (max(stacks, default=0) > 1) == (name not in ALONE)


def images(clients: int = 4) -> Federation:
    """Small colour images as bytes, of two classes at each client, in one array that all share."""
    draw = np.random.default_rng(3)
    y = np.concatenate([draw.permutation(np.array([0, 1] * 6) + 2 * (k % 2)) for k in range(clients)])
    x = draw.integers(0, 200, (len(y), 3, 16, 16)).astype(np.uint8)
    x[..., :8, :] += (13 * y[:, None, None, None]).astype(np.uint8)
    arrays = torch.from_numpy(x), torch.from_numpy(y)
    scale = Scale((0.4, 0.5, 0.6), (0.2, 0.2, 0.3))

    def samples(first: int, count: int) -> Samples:
        return Samples(*arrays, torch.arange(first, first + count), scale)

    made = [Client(f"c{k}", samples(12 * k, 9), samples(12 * k + 9, 3)) for k in range(clients)]
    return Federation(made, TASK)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mapl", "fedproto", "local"])
def test_unlike_nets_with_batch_normalisation_views_and_blur(name: str) -> None:
    federation = images()
    net, nets = nets_for(Mixed(), federation, 0, torch.float64)
    training = Training(rounds=2, lr=0.01, batch_size=4, local_steps=2, optimiser="adam")
    setup = Setup(METHODS[name](), federation, net, training, nets=nets)
    reference = after(setup)
    with gpu():
        agree(reference, after(setup, "fast", NAME), 1e-6)  # Adam's first steps divide rounding by itself


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("name", sorted(NET_METHODS))
def test_every_method_has_the_same_numbers_on_a_gpu_and_the_same_bits_again(name: str) -> None:
    setup = small_setup(default_method(name), dtype=torch.float64, clients_per_round=5)
    reference = after(setup)
    for mode in ("one-by-one", "fast"):
        there, again = after(setup, mode, "cuda"), after(setup, mode, "cuda")
        agree(there, again, 0)
        if name != "fedsr":  # its noise comes from the GPU's generator
            agree(reference, there)


def transfers(name: str, steps: int, mode: str) -> Counter[str]:
    """What crosses in a round."""
    setup = small_setup(default_method(name), small_federation(3), local_steps=steps)
    engine = LocalEngine(on_device(setup, NAME, mode))
    engine.round(1)  # takes the samples there
    with gpu() as counted:
        engine.round(2)
        return Counter(counted)


@pytest.mark.parametrize("mode", [pytest.param("one-by-one", marks=pytest.mark.slow), "fast"])
@pytest.mark.parametrize("name", by_pattern(OWN_LOSS))
def test_nothing_goes_to_the_gpu_or_back_between_the_steps_of_a_fit(name: str, mode: str, stacks: list[int]) -> None:
    with gpu():
        few, many = transfers(name, 1, mode), transfers(name, 2, mode)
    assert few == many
    assert min(few["up"], few["down"]) > 0


def test_views_ask_nothing_of_the_gpu() -> None:
    augment = Mapl().augment
    with gpu() as counted:
        x = torch.rand(6, 3, 12, 12).to(NAME)
        augment(x)  # constants go there once
        before = Counter(counted)
        augment(x)
        assert counted == before


def test_an_array_goes_to_the_device_once_and_leaves_with_its_last_user() -> None:
    resident = Resident(torch.device(NAME))
    with gpu() as counted:
        there = [resident(client.train) for client in images().values()]
        assert len({id(samples.x) for samples in there}) == len({id(samples.y) for samples in there}) == 1
        assert counted["up"] == 2 + len(there)  # x, y, and each client's rows
        assert resident.bytes == [sum(array.nbytes for array in resident.copies)]
        gc.collect()
        assert len(resident.copies) == 0  # the federation is gone
        assert resident.bytes == [0]


def test_samples_beyond_the_limit_come_for_one_job_only() -> None:
    federation = images()
    first = next(iter(federation.values())).train
    resident = Resident(torch.device(NAME), limit=stored(first).nbytes)  # without room for the labels
    with gpu():
        there = resident(first)
        assert len(there.x) == len(first)
        assert not resident.copies
        assert torch.equal(there.inputs(slice(None)).cpu(), first.inputs(slice(None)))
        assert torch.equal(there.labels().cpu(), first.labels())


def test_a_stack_too_large_for_the_gpu_is_cut_into_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(FedAvg(), dtype=torch.float64)
    reference = after(setup)
    tried: list[int] = []
    fit = fit_stacked

    def small_memory(net: Any, loss: Any, training: Any, members: Sequence[Any], device: Any) -> Any:
        tried.append(len(members))
        if len(members) > 2:
            raise torch.OutOfMemoryError("GPU full")
        return fit(net, loss, training, members, device)

    monkeypatch.setattr("fedkin.engines.executors.stacked.fit_stacked", small_memory)
    agree(reference, after(setup, "fast"))
    assert tried[:4] == [6, 3, 1, 2]


def test_stacks_on_a_gpu_are_as_wide_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(FedAvg())
    size = sum(tensor.nbytes for tensor in setup.net.initial.values())
    for room, width in ((4 << 30, 1024), (3 * size, 3), (1, 1)):
        monkeypatch.setattr("fedkin.engines.executors.stacked._BYTES_ON_A_GPU", room)
        assert Fast(setup.net, setup.federation, Modules(torch.device(NAME))).width == width
    assert Fast(setup.net, setup.federation).width == 64


def test_passes_that_a_gpu_has_no_memory_for_are_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup(FedAvg())
    samples = next(iter(setup.federation.values())).train
    module = setup.net.scratch()
    expected = sgd.infer(setup.net, module, setup.net.initial, "logits", samples)
    tried: list[int] = []
    passes = sgd._passes

    def small_memory(net: Any, module: Any, what: Any, samples: Any, many: int) -> Any:
        tried.append(many)
        if many > 40:
            raise torch.OutOfMemoryError("GPU full")
        return passes(net, module, what, samples, many)

    monkeypatch.setattr(sgd, "_passes", small_memory)
    assert torch.equal(sgd.infer(setup.net, module, setup.net.initial, "logits", samples), expected)
    assert tried == [128, 64, 32]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "gpu"}, "settings.device: no 'gpu'; expected 'cpu', 'cuda', or 'cuda:1'"),
        ({"device": "cuda", "mode": "workers"}, "mode = 'workers' is for processors; leave it out with"),
        ({"device": "cuda", "engine": "ray"}, "engine = 'ray' is for processors; leave it out with"),
        ({"device": "cuda:77"}, "device: 'cuda:77', but torch .* sees .* here.*; choose 'cpu'"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_there_is_a_folder(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        fedkin.run("fedavg", small_federation(), rounds=1, settings=settings, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=said.replace("settings.", "run.")):
        run_experiment(Experiment.of(TABLE | {"run": settings}), Path(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_processes_and_ray_are_for_processors() -> None:
    with pytest.raises(ConfigError, match=r"run.device: 'lazy', but the tasks of run.engine = 'ray'"):
        RayEngine(on_device(small_setup(FedAvg()), NAME))
