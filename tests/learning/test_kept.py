"""Features of a frozen body are computed once for each sample, with the bits of computing them in every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkin
from fedkin.engines.accounting import Operations
from fedkin.engines.executors.jobs import InferJob, Modules, carry_out
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Samples
from fedkin.learning import Net, frozen
from fedkin.learning.frozen import Frozen, recalled, trunk_of
from fedkin.learning.models import backbone
from fedkin.learning.sgd import infer

PLAN = {"rounds": 2, "lr": 0.1, "batch_size": 4, "local_steps": 2}


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


@pytest.mark.parametrize("method", ["fedavg", "mapl", "fedsr", "sfmtl-graph"])
def test_kept_features_have_the_bits_of_computed_ones(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"augment": {"on": False}} if method == "mapl" else {}

    def models(kept: bool) -> Any:
        with monkeypatch.context() as patch:
            if not kept:
                patch.setattr("fedkin.learning.frozen.Kept.of", lambda *_: None)
            made = fedkin.run(method, images(), model=lambda task: backbone(Counted(), nn.Linear(7, 2), frozen=True),
                              training=PLAN, seed=1, **options)  # fmt: skip
        return made.models

    with_them, without = models(True), models(False)
    for id, params in with_them.items():
        assert all(torch.equal(tensor, without[id][name]) for name, tensor in params.items())


def test_each_sample_is_computed_once() -> None:
    def computed(rounds: int) -> int:
        Counted.rows = 0
        fedkin.run("fedavg", images(), model=lambda task: backbone(Counted(), nn.Linear(7, 2), frozen=True),
                   training={**PLAN, "rounds": rounds})  # fmt: skip
        return Counted.rows

    # A few more than the 45 samples: the check of the net, and one whose operations are counted.
    assert computed(1) == computed(4) <= 45 + 8


def test_random_views_compute_features_anew_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    net = Net.build(lambda: backbone(Counted(), nn.Linear(7, 2), frozen=True), 0)
    views = {**PLAN, "augment": {"noise": 0.1}}
    fedkin.run("fedavg", images(), model=(net.module.body, net.module.head), training=views)
    assert [r.message for r in caplog.records].count(
        "features of the frozen body are computed in every step, not once: the inputs change (random views)"
    ) == 1


def test_memory_goes_with_the_samples() -> None:
    net = Net.build(lambda: backbone(Counted(), nn.Linear(7, 2), frozen=True), 0)
    federation = images()
    module = Modules()(net)
    trunk = trunk_of(module.body)
    assert trunk is not None
    with recalled(module.body, federation["site-0"].train, net.dtype):
        assert trunk.kept.nbytes == 45 * 7 * 4
    del federation
    assert trunk.kept.nbytes == 0


def test_copies_of_a_batch_are_found_and_changed_ones_are_not() -> None:
    net = Net.build(lambda: backbone(Counted(), nn.Linear(7, 2), frozen=True), 0)
    trunk = trunk_of(Modules()(net).body)
    assert trunk is not None
    x = torch.randn(3, 1, 8, 8)
    z = trunk(x)
    Counted.rows = 0
    trunk.tell(x, z)
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
    trunk.tell(x, z.clone())
    trunk(x).zero_()
    trunk(x.clone()).zero_()
    assert torch.equal(trunk(x), z)


def test_the_limit_is_that_of_all_modules_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    federation = images()
    one, two = (Modules()(Net.build(lambda: backbone(Counted(), nn.Linear(7, 2), frozen=True), 0)) for _ in range(2))
    others = sum(kept.nbytes for kept in list(frozen._ALL))
    monkeypatch.setattr("fedkin.learning.frozen._LIMIT", others + 45 * 7 * 4)
    for module in (one, two):
        with recalled(module.body, federation["site-0"].train, torch.float32):
            pass
    first, second = (trunk_of(module.body) for module in (one, two))
    assert first is not None
    assert second is not None
    assert first.kept.nbytes == 45 * 7 * 4
    assert second.kept.nbytes == 0
    assert "features are not kept, but computed in every step" in caplog.text


def test_operations_do_not_depend_on_what_is_known() -> None:
    federation, net = images(), Net.build(lambda: backbone(Counted(), nn.Linear(7, 2), frozen=True), 0)
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
