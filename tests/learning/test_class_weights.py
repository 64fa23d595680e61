"""Class weights: the values of torch's CrossEntropyLoss(weight=...), in every way to train, and no effect if equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

import fedkin
from fedkin.engines import LocalEngine
from fedkin.errors import ConfigError, FedkinError
from fedkin.federation import Federation
from fedkin.flow import Fit, Message
from fedkin.learning import Training
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from support import (
    NET_METHODS,
    PATTERNS,
    by_pattern,
    default_method,
    plain_fedavg,
    play,
    same,
    small_federation,
    small_setup,
    trained_models,
    with_settings,
)

WEIGHTS = (0.2, 3.0, 1.0, 0.7)
SILENT = ["fedclassavg", "fedem", "mapl", "mapl-plus"]
HONOURING = [name for name in NET_METHODS if name not in SILENT]


@pytest.mark.parametrize("batch", ["all", 5])
def test_it_is_the_weighted_mean_of_torch(batch: Any) -> None:
    """Sum of w_y l over sum of w_y, in each batch."""
    federation = small_federation().reorder([min(small_federation())])
    setup = small_setup(FedAvg(), federation, torch.float64, batch_size=batch, lr=0.3, class_weights=WEIGHTS)
    (got,) = trained_models(LocalEngine(setup)).values()
    module = setup.net.scratch()
    oracle = torch.nn.CrossEntropyLoss(weight=torch.tensor(WEIGHTS, dtype=torch.float64))
    plain = plain_fedavg(module.body, module.head, federation, setup.training, loss=oracle)
    for name, tensor in plain.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-10, atol=1e-12)


def test_balanced_is_what_scikit_learn_calls_balanced() -> None:
    y = np.array([0, 0, 0, 0, 2, 2, 3])
    made = Training(class_weights="balanced").weights(torch.from_numpy(y), 4)
    assert made is not None
    want = compute_class_weight("balanced", classes=np.array([0, 2, 3]), y=y)
    np.testing.assert_allclose([made[0], made[2], made[3]], want, rtol=1e-12)


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [1, 1]])
def test_a_client_with_equal_classes_or_one_has_no_weights(labels: list[int]) -> None:
    assert Training(class_weights="balanced").weights(torch.tensor(labels), 3) is None
    assert Training(class_weights=(2.0, 2.0, 2.0)).weights(torch.tensor([0, 0, 1]), 3) is None


def models(name: str, mode: str = "one-by-one", **training: Any) -> dict[str, dict[str, Tensor]]:
    setup = with_settings(small_setup(default_method(name), small_federation(), **training), mode=mode, workers=2)
    engine = LocalEngine(setup)
    try:
        play(engine, 1, 2)
        return {id: dict(params) for id, params in engine.models().items()}
    finally:
        engine.close()


@pytest.mark.parametrize("name", by_pattern(HONOURING))
def test_every_method_honours_them_or_refuses(name: str) -> None:
    plain = models(name)
    if name in PATTERNS:  # equal weights are no weights before a method sees them
        assert same(plain, models(name, class_weights=(0.5,) * 4))
    assert not same(plain, models(name, class_weights=WEIGHTS))


@pytest.mark.parametrize("name", SILENT)
def test_a_loss_that_compares_samples_refuses_them(name: str) -> None:
    with pytest.raises(ConfigError, match=f"training.class_weights: the loss of method '{name}'"):
        small_setup(METHODS[name](), small_federation(), class_weights="balanced")


@pytest.mark.parametrize("mode", [pytest.param("workers", marks=pytest.mark.slow), "fast"])
def test_every_mode_gives_the_same_models(mode: str, workers_here: None) -> None:
    want, got = (models("fedprox", one, class_weights="balanced") for one in ("one-by-one", mode))
    for id, params in want.items():
        for name, tensor in params.items():
            torch.testing.assert_close(got[id][name], tensor, rtol=1e-4, atol=1e-5)
    assert mode == "fast" or same(want, got)


@dataclass(frozen=True)
class Own:
    """A loss that says nothing of weights."""

    def __call__(self, model: Any, batch: Any, extras: Any, carry: Any, /) -> Tensor:
        return torch.nn.functional.cross_entropy(model(batch.x), batch.y)


class OwnLoss(FedAvg):
    """FedAvg with a loss that says nothing of weights."""

    name = "own-loss"

    def train(self, client: Any, message: Message) -> Any:
        fitted = yield from Fit(message.params, Own())
        return Message(params=fitted.params, n=client.size)

    train.is_phase = True  # type: ignore[attr-defined]


def test_a_loss_that_says_nothing_is_refused() -> None:
    engine = LocalEngine(small_setup(OwnLoss(), small_federation(), class_weights="balanced"))
    with pytest.raises(FedkinError, match="the loss Own does not say that it weighs samples"):
        engine.round(1)


def test_what_cannot_be_weighed_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 numbers, and the task has 4 classes"):
        small_setup(FedAvg(), small_federation(), class_weights=(1, 2, 3))
    for wrong in ((1.0, 0.0), (), "equal"):
        with pytest.raises(ValueError, match="class_weights"):
            Training.model_validate({"class_weights": wrong})
    numbers = Federation.from_arrays(
        np.zeros((8, 2), np.float32), np.arange(8.0), ["a"] * 4 + ["b"] * 4, kind="regression"
    )
    with pytest.raises(ConfigError, match="a weight of classes needs a class label"):
        fedkin.run("fedavg", numbers, rounds=1, training={"class_weights": "balanced"}, model="linear")
