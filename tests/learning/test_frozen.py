"""What training does not change stays in the net: it neither travels nor is it stored for a client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedkin
from fedkin import codec
from fedkin.engines import LocalEngine, Setup
from fedkin.engines.accounting import Operations
from fedkin.engines.executors.jobs import InferJob, Modules, carry_out
from fedkin.engines.setup import EngineSettings
from fedkin.errors import ConfigError, MethodError
from fedkin.federation import Federation, Samples, Task
from fedkin.learning import Net, Training, frozen
from fedkin.learning.frozen import Frozen, cached_features, trunk_of
from fedkin.learning.models import backbone
from fedkin.learning.sgd import infer
from fedkin.methods.fedavg import FedAvg
from fedkin.network.agreement import Agreement, difference, setup_and_agreement
from support import (
    NET_METHODS,
    WAYS,
    by_pattern,
    default_method,
    fitted,
    plain_fedavg,
    present,
    same,
    small_federation,
)  # fmt: skip

WIDTH, INNER, RANK, CLASSES = 5, 24, 2, 4
TRAINED = 2 * RANK * INNER + INNER * CLASSES + CLASSES
PLAN = {"rounds": 2, "lr": 0.1, "batch_size": 8, "local_steps": 2}


class Adapted(nn.Module):
    """act(W_0 x + B A x): W_0 is frozen, or (as the oracle) a constant that the net knows nothing of."""

    base: Tensor

    def __init__(self, inside: int, outside: int, rank: int, hidden: bool) -> None:
        super().__init__()
        weight = torch.randn(outside, inside) / inside**0.5
        if hidden:
            self.register_buffer("base", weight, persistent=False)
        else:
            self.base = nn.Parameter(weight, requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, inside) / inside**0.5) if rank else None
        self.up = nn.Parameter(0.1 * torch.randn(outside, rank)) if rank else None

    def forward(self, x: Tensor) -> Tensor:
        made = F.linear(x, self.base)
        if self.down is not None and self.up is not None:
            made = made + F.linear(F.linear(x, self.down), self.up)
        return torch.tanh(made)


def adapted(hidden: bool = False, adapters: bool = True) -> tuple[nn.Sequential, nn.Module]:
    torch.manual_seed(3)
    body = nn.Sequential(
        nn.Flatten(), Adapted(WIDTH, INNER, 0, hidden), Adapted(INNER, INNER, RANK if adapters else 0, hidden)
    )
    return body, nn.Linear(INNER, CLASSES)


def norms() -> tuple[nn.Sequential, nn.Module]:
    """A frozen body with batch normalisation, a trained part with another, and constants of all kinds."""
    torch.manual_seed(3)
    frozen = nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6, affine=False), nn.ReLU())
    frozen.requires_grad_(False)
    frozen[1].get_buffer("running_mean").add_(0.3)
    frozen[0].register_buffer("note", torch.arange(3))
    trained = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7))
    trained.register_buffer("mine", torch.ones(2))
    trained.register_buffer("passing", torch.ones(2), persistent=False)
    return nn.Sequential(frozen, trained), nn.Linear(7, CLASSES)


def names_in(tree: Mapping[str, Any]) -> Iterator[str]:
    """The keys of all tensors."""
    for name in codec.tensors_of(tree):
        yield name.rpartition("/")[2]


def test_a_net_starts_from_what_is_trained_and_keeps_the_rest() -> None:
    net = Net(*adapted())
    assert list(net.initial) == list(net.trainable)
    assert sum(t.numel() for t in net.initial.values()) == net.parameters() == TRAINED
    assert set(net.frozen) == {"body.1.base", "body.2.base"}
    assert net.scratch().body.get_parameter("1.base") is net.module.body.get_parameter("1.base")


def test_which_buffers_travel() -> None:
    net = Net(*norms())
    assert list(net.initial) == [
        "body.1.0.weight", "body.1.0.bias", "body.1.1.weight", "body.1.1.bias", "head.weight", "head.bias",
        "body.1.mine", "body.1.1.running_mean", "body.1.1.running_var", "body.1.1.num_batches_tracked",
    ]  # fmt: skip
    assert "body.0.0.note" in net.frozen
    assert "body.0.2.running_var" in net.frozen
    assert "body.1.passing" not in net.frozen


def test_statistics_of_a_frozen_body_stay_and_those_of_a_trained_one_move() -> None:
    net, samples = Net(*norms()), small_federation()["site-i"].train
    module = net.scratch()
    found = fitted(net, samples, Training(local_epochs=1, batch_size=8), module=module).params
    assert list(found) == list(net.initial)
    assert not torch.equal(found["body.1.1.running_mean"], net.initial["body.1.1.running_mean"])
    assert same({name: module.tensors[name] for name in net.frozen}, net.frozen)
    # Features of the frozen part are those of evaluation mode, in training too.
    x = samples.inputs(slice(None))
    assert torch.equal(module.train().body.get_submodule("0")(x), module.eval().body.get_submodule("0")(x))


class Counting(nn.Module):
    """A frozen module that counts its calls in training."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return x * self.scale


def test_a_buffer_that_changes_at_home_is_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 3), Counting()), nn.Linear(3, 4)
    with pytest.raises(MethodError, match=r"changed the buffer 'body.1.calls', which belongs to a frozen module"):
        fedkin.run("fedavg", small_federation(), model=model, training=PLAN)


@pytest.mark.parametrize("how", WAYS)
def test_frozen_values_are_the_net_s_in_every_mode(how: dict[str, Any], workers_here: None) -> None:
    """Equal to a plain loop whose frozen part is in evaluation mode."""
    body, head = (part.double() for part in norms())
    want = plain_fedavg(body, head, small_federation(), Training.model_validate(PLAN), still=[body.get_submodule("0")])
    got = fedkin.run("fedavg", small_federation(), model=norms(), training=PLAN, settings={"dtype": "float64", **how})
    for params in got.models.values():
        assert list(params) == list(Net(*norms()).initial)
        torch.testing.assert_close(params, {name: want[name] for name in params}, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("adapters", [True, False], ids=["adapters", "head-only"])
@pytest.mark.parametrize("name", by_pattern(NET_METHODS))
def test_frozen_weights_are_constants_to_every_method(name: str, adapters: bool) -> None:
    """Messages, states and models are those of a net that hides its frozen weights from the library."""
    method, federation = default_method(name), small_federation()
    seen, hidden = (
        fedkin.run(method, federation, model=adapted(hide, adapters), training=PLAN) for hide in (False, True)
    )
    assert seen.messages == hidden.messages
    assert same(seen.models, hidden.models)
    net = Net(*adapted(adapters=adapters))
    engine = LocalEngine(Setup(method, federation, net, Training.model_validate(PLAN)))
    engine.round(1)
    assert not any(name.endswith("base") for name in names_in(engine.state()))
    engine.close()


def test_what_is_frozen_is_used_when_outputs_are_found() -> None:
    net, samples = Net(*adapted()), small_federation()["site-i"].train
    module = nn.Sequential(*adapted())
    want = module(samples.x)
    torch.testing.assert_close(infer(net, net.scratch(), net.initial, "logits", samples), want.detach())
    net.check(Task(CLASSES, (WIDTH,)))


def test_other_frozen_values_are_refused_before_the_first_round() -> None:
    task = small_federation().task

    def agreement(shift: float) -> Agreement:
        body, head = adapted()
        body.get_parameter("1.base").data += shift
        plan = Setup(FedAvg(), task, Net(body, head), Training(), 0, EngineSettings())
        return setup_and_agreement("", task, lambda text, task: plan)[1]

    assert difference(agreement(0.0), agreement(0.0)) == ""
    assert "the first values of the net differ" in difference(agreement(0.0), agreement(1.0))


# -- features of a frozen body are computed once for each sample, with the bits of computing them in ever ------------


ONE_PASS = {"rounds": 2, "lr": 0.1, "batch_size": 4, "local_steps": 2}


def images(clients: int = 3, each: int = 15) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * each, 1, 8, 8)).astype(np.float32)
    y = (x.mean((1, 2, 3)) > 0).astype(int)
    return Federation.from_arrays(x, y, client=[f"site-{row % clients}" for row in range(len(x))])


class Counted(nn.Module):
    """A frozen net that counts its samples."""

    rows = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 7)

    def forward(self, x: Tensor) -> Tensor:
        Counted.rows += len(x)
        return torch.tanh(self.linear(x.flatten(1)))


def counted(task: Task | None = None) -> tuple[nn.Module, nn.Module]:
    return backbone(Counted(), nn.Linear(7, 2), frozen=True)


def counted_net() -> Net:
    return Net.build(counted, 0)


@pytest.mark.parametrize("method", ["fedavg", "mapl", "fedsr", "sfmtl-graph"])
def test_kept_features_have_the_bits_of_computed_ones(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"augment": {"on": False}} if method == "mapl" else {}

    def models(kept: bool) -> Any:
        with monkeypatch.context() as patch:
            if not kept:
                patch.setattr("fedkin.learning.frozen.FeatureCache.of", lambda *_: None)
            return fedkin.run(method, images(), model=counted, training=ONE_PASS, seed=1, **options).models

    assert same(models(True), models(False))


def test_each_sample_is_computed_once() -> None:
    def computed(rounds: int) -> int:
        Counted.rows = 0
        fedkin.run("fedavg", images(), model=counted, training={**ONE_PASS, "rounds": rounds})
        return Counted.rows

    # A few more than the 45 samples: the check of the net, and one whose operations are counted.
    assert computed(1) == computed(4) <= 45 + 8


def test_random_views_compute_features_anew_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    fedkin.run("fedavg", images(), model=counted, training={**ONE_PASS, "augment": {"noise": 0.1}})
    assert [r.message for r in caplog.records].count(
        "features of the frozen body are computed in every step, not once: the inputs change (random views)"
    ) == 1


def test_memory_goes_with_the_samples() -> None:
    net, federation = counted_net(), images()
    module = Modules()(net)
    trunk = present(trunk_of(module.body))
    with cached_features(module.body, federation["site-0"].train, net.dtype):
        assert trunk.cache.nbytes == 45 * 7 * 4
    del federation
    assert trunk.cache.nbytes == 0


def test_copies_of_a_batch_are_found_and_changed_ones_are_not() -> None:
    trunk = present(trunk_of(Modules()(counted_net()).body))
    x = torch.randn(3, 1, 8, 8)
    z = trunk(x)
    Counted.rows = 0
    trunk.set_batch(x, z)
    assert torch.equal(trunk(torch.cat([x, x])), torch.cat([z, z]))
    assert Counted.rows == 0
    other = torch.cat([x, x.flip(0)])
    assert torch.equal(trunk(other), torch.cat([z, z.flip(0)]))
    assert Counted.rows == 6
    # A batch that was changed in place is another one.
    x.add_(1)
    assert not torch.equal(trunk(x), z)


def test_layers_that_write_into_their_input_leave_kept_features_as_they_are() -> None:
    federation = images()
    body = nn.Sequential(Frozen(Counted()), nn.LeakyReLU(0.1, inplace=True), nn.LeakyReLU(0.1, inplace=True))
    net = Net(body, nn.Linear(7, 2))
    for samples in (federation["site-0"].train, Samples(torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 0, 1, 0]))):
        want = net.module.eval()(samples.inputs(slice(None), net.dtype)).detach()
        for _ in range(3):
            torch.testing.assert_close(infer(net, net.scratch(), net.initial, "logits", samples), want)
    trunk, x = Frozen(nn.Linear(4, 3)), torch.randn(2, 4)
    z = trunk(x)
    trunk.set_batch(x, z.clone())
    trunk(x).zero_()
    trunk(x.clone()).zero_()
    assert torch.equal(trunk(x), z)


def test_the_limit_is_that_of_all_modules_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    federation = images()
    one, two = (Modules()(counted_net()) for _ in range(2))
    others = sum(cache.nbytes for cache in list(frozen._ALL))
    monkeypatch.setattr("fedkin.learning.frozen._LIMIT", others + 45 * 7 * 4)
    for module in (one, two):
        with cached_features(module.body, federation["site-0"].train, torch.float32):
            pass
    assert [present(trunk_of(module.body)).cache.nbytes for module in (one, two)] == [45 * 7 * 4, 0]
    assert "features are not kept, but computed in every step" in caplog.text


def test_operations_do_not_depend_on_what_is_known() -> None:
    federation, net = images(), counted_net()
    job = InferJob("site-0", net.initial, "logits")
    first = Operations(net, federation).per_sample(job)
    carry_out(job, net, Modules(), federation)
    assert Operations(net, federation).per_sample(job) == first == 2 * (64 * 7 + 7 * 2)


def test_adapters_in_a_frozen_body_are_refused() -> None:
    with pytest.raises(ConfigError, match="adapters in a frozen body would not be trained"):
        backbone(Counted(), nn.Linear(7, 2), adapters=True, frozen=True)


def test_a_misspelt_name_of_a_layer_for_adapters_is_refused_also_beside_a_right_one() -> None:
    net = nn.Sequential()
    net.add_module("query", nn.Linear(4, 4))
    net.add_module("value", nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"model\.adapters\.on: no layer 'vallue'; did you mean 'value'"):
        backbone(net, nn.Linear(4, 2), adapters={"on": ["query", "vallue"]})
    # Nothing is changed before all names are known.
    assert all(p.requires_grad for p in net.parameters())
