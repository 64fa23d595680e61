"""Local training: batches, optimisers, clipping, inference, views, and weights of classes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

import fedkin
from fedkin.engines import LocalEngine
from fedkin.errors import ConfigError, FedkinError, MethodError
from fedkin.federation import Federation, Task
from fedkin.flow import Fit, Message
from fedkin.learning import Batch, Net, Training, class_means, masked_mean
from fedkin.learning.augment import Augment
from fedkin.learning.models import MODELS, Mlp
from fedkin.learning.sgd import infer, load
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from support import (
    NET_METHODS,
    PATTERNS,
    by_pattern,
    default_method,
    fitted,
    plain_fedavg,
    same,
    small_federation,
    small_setup,
    trained_models,
)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 30))
def test_steps_walk_through_permutations(samples: int, batch: int, steps: int) -> None:
    training = Training(batch_size=batch, local_steps=steps)
    batches = list(training.batches(samples, np.random.default_rng(0)))
    assert len(batches) == steps == training.steps(samples)
    per_pass = math.ceil(samples / batch)
    for start in range(0, steps - per_pass + 1, per_pass):
        rows = np.concatenate(batches[start : start + per_pass])
        assert sorted(rows) == list(range(samples))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4))
def test_epochs_are_so_many_steps(samples: int, batch: int, epochs: int) -> None:
    by_epochs = Training(batch_size=batch, local_epochs=epochs)
    by_steps = Training(batch_size=batch, local_steps=epochs * math.ceil(samples / batch))
    one = list(by_epochs.batches(samples, np.random.default_rng(1)))
    other = list(by_steps.batches(samples, np.random.default_rng(1)))
    assert len(one) == len(other)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [1, 1, 1, 1]),
        ({"schedule": "step", "step_every": 3, "step_factor": 0.5}, [1, 1, 1, 0.5]),
        ({"schedule": "cosine"}, [(1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)]),
    ],
)
@pytest.mark.parametrize("layer", [nn.ReLU, nn.Softplus], ids=["stacked", "one by one"])
def test_the_learning_rate_follows_the_schedule_over_rounds(
    layer: type[nn.Module], settings: Any, rates: list[float], tmp_path: Path
) -> None:
    """A run of four rounds is that of a client which takes one step of each of these rates."""
    model, federation = (nn.Sequential(nn.Linear(3, 4), layer()), nn.Linear(4, 2)), one_client()
    plan = {"lr": 1.0, "local_steps": 1, "batch_size": "all", **settings}
    fedkin.run("fedavg", federation, model=model, rounds=4, training=plan, out=tmp_path / "run")
    net, samples = Net(*model), federation["a"].train
    params = net.initial
    for rate in rates:
        step = Training(lr=rate, local_steps=1, batch_size="all")
        params = fitted(net, samples, step, params=params).params
    end = fedkin.load(tmp_path / "run", model=model).model("a").state_dict()
    torch.testing.assert_close(end, params, rtol=1e-5, atol=1e-6)


def test_a_step_schedule_needs_its_rounds() -> None:
    for wrong in ({"schedule": "step"}, {"step_every": 3}):
        with pytest.raises(ValueError, match=r"give step_every"):
            Training(**wrong)


def test_a_batch_of_one_sample_names_the_setting() -> None:
    net = Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2))
    samples = one_client(10)["a"].train
    size = len(samples) - 1
    with pytest.raises(MethodError, match=rf"batches of {size} leave one of {size + 1} .* set another .*batch_size"):
        fitted(net, samples, Training(batch_size=size))


def test_values_that_the_nets_type_does_not_hold_are_refused() -> None:
    exact, fine = nn.Linear(2, 2, dtype=torch.float64), nn.Linear(2, 2).half()
    with pytest.raises(ConfigError, match=r"'body.weight' holds values of torch.float64 that torch.float32 does not"):
        Net(exact, nn.Linear(2, 2))
    assert Net(exact, nn.Linear(2, 2), torch.float64).initial["body.weight"].equal(exact.weight)
    assert Net(fine, nn.Linear(2, 2)).initial["body.weight"].equal(fine.weight.float())
    fine.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ConfigError, match=r"'body.turn' is complex"):
        Net(fine, nn.Linear(2, 2))


def one_client(rows: int = 12) -> fedkin.Federation:
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("f4")
    return fedkin.Federation.from_arrays(x, (x[:, 0] > 0).astype(int), client=["a"] * rows)


def test_whole_batches() -> None:
    (rows,) = Training(batch_size="all").batches(7, np.random.default_rng(0))
    assert sorted(rows) == list(range(7))


def test_counts_of_clients() -> None:
    assert Training(clients_per_round="all").count(7) == 7
    assert Training(clients_per_round=0.5).count(7) == 4
    assert Training(clients_per_round=0.01).count(7) == 1
    assert Training(clients_per_round=3).count(7) == 3
    with pytest.raises(ValueError, match="a whole number"):  # one client, or all of them?
        Training(clients_per_round=1.0)
    with pytest.raises(ConfigError, match=r"training\.clients_per_round: 8 clients a round, but the federation has 7"):
        Training(clients_per_round=8).count(7)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_fit_equals_a_plain_loop(optimiser: str) -> None:
    setup = small_setup(METHODS["local"](), optimiser=optimiser, local_epochs=2, local_steps=None, lr=0.01)
    samples = next(iter(setup.federation.values())).train
    found = fitted(setup.net, samples, setup.training, seed=5)
    model = setup.net.scratch()
    draw = np.random.default_rng(5)
    draw.integers(2**63)
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimiser](model.parameters(), 0.01)
    losses = []
    for rows in setup.training.batches(len(samples), draw):
        loss = nn.functional.cross_entropy(model(samples.x[rows]), samples.y[rows])
        made.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        made.step()
        losses.append(float(loss.detach()))
    torch.testing.assert_close(found.params, model.state_dict(), rtol=1e-6, atol=1e-7)
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert (found.steps, found.samples) == (len(losses), 2 * len(samples))


def test_fit_leaves_what_it_was_given() -> None:
    setup = small_setup(METHODS["local"]())
    given_params = {name: tensor.clone() for name, tensor in setup.net.initial.items()}
    samples = next(iter(setup.federation.values())).train
    module = setup.net.scratch()
    first = fitted(setup.net, samples, setup.training, module=module)
    kept = {name: tensor.clone() for name, tensor in first.params.items()}
    fitted(setup.net, samples, setup.training, seed=1, module=module, params=first.params)
    assert same(setup.net.initial, given_params)
    assert same(first.params, kept)


def test_dropout_is_keyed_and_batch_norm_keeps_its_statistics() -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
    net = Net(body, nn.Linear(6, 4))
    samples = next(iter(small_federation().values())).train
    training = Training(local_steps=3, batch_size=8)

    def run(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)  # the global state must not matter
        return dict(fitted(net, samples, training, seed=4).params)

    one, other = run(1), run(2)
    assert same(one, other)
    assert int(one["body.2.num_batches_tracked"]) == 3
    assert not torch.equal(one["body.2.running_mean"], net.initial["body.2.running_mean"])


def test_inference_gives_outputs_features_and_what_a_function_returns() -> None:
    setup = small_setup(METHODS["local"]())
    samples = next(iter(setup.federation.values())).test
    module = setup.net.scratch()
    logits = infer(setup.net, module, setup.net.initial, "logits", samples)
    features = infer(setup.net, module, setup.net.initial, "features", samples)
    assert logits.shape == (len(samples), 4)
    assert features.shape == (len(samples), 7)
    torch.testing.assert_close(module.head(features), logits)
    own = infer(setup.net, module, setup.net.initial, lambda model, batch: batch.y, samples)
    assert torch.equal(own, samples.labels())


def test_parameters_that_do_not_fit_are_named() -> None:
    setup = small_setup(METHODS["local"]())
    module = setup.net.scratch()
    with pytest.raises(MethodError, match=r"missing \['head.bias'\], not in it \['tail'\]"):
        load(module, {**{k: v for k, v in setup.net.initial.items() if k != "head.bias"}, "tail": torch.zeros(1)})
    with pytest.raises(MethodError, match=r"head.bias: shape \(9,\), the net's is \(4,\)"):
        load(module, {**setup.net.initial, "head.bias": torch.zeros(9)})


@given(st.lists(st.booleans(), min_size=2, max_size=12).filter(any), st.integers(0, 99))
def test_padding_changes_no_mean(real: list[bool], seed: int) -> None:
    draw = np.random.default_rng(seed)
    keep = torch.tensor(real)
    z, y = torch.from_numpy(draw.normal(size=(len(real), 3))), torch.from_numpy(draw.integers(0, 4, len(real)))
    batch = Batch(z, y, keep.double())
    torch.testing.assert_close(masked_mean(z[:, 0], batch), z[keep, 0].mean())
    mean, count = class_means(z, y, batch.mask, 4)
    for label in range(4):
        rows = keep & (y == label)
        assert int(count[label]) == int(rows.sum())
        torch.testing.assert_close(mean[label], z[rows].mean(0) if rows.any() else torch.zeros(3, dtype=z.dtype))


# Features that are images, inputs that are token ids, and nets of other packages have tests of their own.
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"unet", "text-mean"}))
def test_named_models_make_features_and_outputs(name: str) -> None:
    task = Task(10, (3, 32, 32))
    net = Net.build(lambda: MODELS[name].model_validate({}).build(task), 3)
    module = net.scratch()
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert net.width(task) == module.features(torch.zeros(1, 3, 32, 32)).shape[1]
    again = Net.build(lambda: MODELS[name].model_validate({}).build(task), 3)
    assert same(net.initial, again.initial)


def test_the_papers_head_has_5130_parameters() -> None:
    net = Net.build(lambda: MODELS["cnn-cifar"].model_validate({}).build(Task(10, (3, 32, 32))), 0)
    assert sum(t.numel() for n, t in net.initial.items() if n.startswith("head.")) == 5130
    assert net.width(Task(10, (3, 32, 32))) == 512


# -- `training.augment` and `training.class_weights`: heeded in every method's local training, or refused --------------


GENTLE = {"crop": 0.8, "flip": 0.5, "jitter": 0, "grey": 0, "blur": 0}
# Of classes of `small_federation`, and of digits.
WEIGHTS = (0.2, 3.0, 1.0, 0.7)
TEN = (*WEIGHTS, *WEIGHTS, 1.0, 0.5)
# The settings, the same without an effect, and the methods that refuse them, with their words.
OWN = ["fedclassavg", "mapl", "mapl-plus"]
HEEDED: dict[str, tuple[Any, Any, list[str], str]] = {
    "augment": (GENTLE, {"on": False}, OWN, r"makes views of its own; set method\.augment"),
    "class_weights": (TEN, (0.5,) * 10, [*OWN, "fedem"], r"training\.class_weights: the loss of method '{}'"),
}


@pytest.fixture(scope="module")
def digits() -> Federation:
    whole = fedkin.federate("digits", "rotated-masked", clients=4, seed=0)
    few = [replace(c, train=c.train.take(range(40)), test=c.test.take(range(10))) for c in whole.values()]
    return Federation(few, whole.task, whole.name)


def ran(method: str, digits: Federation, mode: str = "one-by-one", **training: Any) -> Any:
    return fedkin.run(
        default_method(method), digits, rounds=2, seed=1, model=Mlp(hidden=(8,)),
        training={"local_steps": 3, "lr": 0.1, **training}, settings={"mode": mode},
    ).models  # fmt: skip


@pytest.mark.parametrize("setting", HEEDED)
@pytest.mark.parametrize("method", by_pattern(NET_METHODS))
def test_every_method_heeds_it_or_refuses(method: str, setting: str, digits: Federation) -> None:
    value, off, refused, words = HEEDED[setting]
    if method in refused:
        with pytest.raises(ConfigError, match=words.format(method)):
            ran(method, digits, **{setting: value})
        return
    plain, heeded = ran(method, digits), ran(method, digits, **{setting: value})
    assert not same(plain, heeded)
    if method in PATTERNS:
        assert same(plain, ran(method, digits, **{setting: off}))
        assert same(heeded, ran(method, digits, **{setting: value}))


@pytest.mark.parametrize("setting", HEEDED)
@pytest.mark.parametrize("mode", ["fast", pytest.param("workers", marks=pytest.mark.slow)])
def test_all_modes_train_alike(mode: str, setting: str, digits: Federation, workers_here: None) -> None:
    one, other = (ran("fedavg", digits, how, **{setting: HEEDED[setting][0]}) for how in ("one-by-one", mode))
    assert same(one, other) or (mode, setting) == ("fast", "class_weights")
    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_it_is_a_plain_loop_over_views(digits: Federation) -> None:
    views, alone = Augment(**GENTLE), digits.reorder([min(digits)])
    setup = small_setup(METHODS["fedavg"](), alone, torch.float64, local_steps=4, augment=views)
    (got,) = trained_models(LocalEngine(setup)).values()
    module = setup.net.scratch()

    def outputs(samples: Any, rows: Tensor) -> Any:
        return module(views(samples.inputs(rows, torch.float64)))

    plain = plain_fedavg(module.body, module.head, alone, setup.training, outputs)
    torch.testing.assert_close(got, plain, rtol=1e-9, atol=1e-9)


def test_inputs_without_views_are_refused() -> None:
    tokens = np.random.default_rng(0).integers(0, 9, (40, 6))
    federation = Federation.from_arrays(tokens, np.arange(40) % 2, client=np.repeat(["a", "b"], 20))
    with pytest.raises(ConfigError, match=r"training\.augment"):
        fedkin.run("local", federation, model=(nn.EmbeddingBag(9, 4), nn.Linear(4, 2)), training={"augment": GENTLE})


@pytest.mark.parametrize("batch", ["all", 5])
def test_it_is_the_weighted_mean_of_torch(batch: Any) -> None:
    """Sum of w_y l over sum of w_y, in each batch."""
    federation = small_federation().reorder([min(small_federation())])
    setup = small_setup(FedAvg(), federation, torch.float64, batch_size=batch, lr=0.3, class_weights=WEIGHTS)
    (got,) = trained_models(LocalEngine(setup)).values()
    module = setup.net.scratch()
    oracle = torch.nn.CrossEntropyLoss(weight=torch.tensor(WEIGHTS, dtype=torch.float64))
    plain = plain_fedavg(module.body, module.head, federation, setup.training, loss=oracle)
    torch.testing.assert_close(got, plain, rtol=1e-10, atol=1e-12)


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
