"""torchvision's nets: sizes, running statistics, single samples, and what is said when torchvision is missing."""

from __future__ import annotations

import copy
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fedkin import codec
from fedkin.errors import ConfigError
from fedkin.federation import Samples, Task
from fedkin.flow import Message
from fedkin.learning import CrossEntropy, Net, Training, sgd, weighted_mean
from fedkin.learning.models import MODELS
from fedkin.learning.models.vision import BatchNormOfOne, _with_batch_norms, torchvision_models

NORMED = ("shufflenet-v2", "resnet18", "googlenet")


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    pytest.importorskip("PIL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torchvision_models()
        except ConfigError:
            pytest.skip("torchvision is not installed")


def build(name: str, shape: tuple[int, ...] = (1, 28, 28), width: int = 16) -> Net:
    return Net.build(lambda: MODELS[name].model_validate({"width": width}).build(Task(4, shape)), 1)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", [*NORMED, "alexnet", "resnet50"])
def test_images_are_taken_at_their_own_size(name: str, shape: tuple[int, ...]) -> None:
    net = build(name, shape)
    net.check(Task(4, shape))
    assert net.width(Task(4, shape)) == 16
    # In training mode: GoogLeNet's small first weights need a batch's own statistics to show any difference.
    z = net.scratch().train().features(torch.randn(4, *shape))
    assert (z >= 0).all()
    assert not torch.equal(z[0], z[1])


@pytest.mark.parametrize(
    ("name", "inside", "parameters"),
    # As published for ImageNet, less the first convolution and the last Linear, which are the task's.
    [
        ("resnet18", "conv1", 11_689_512),
        ("resnet50", "conv1", 25_557_032),
        ("shufflenet-v2", "conv1.0", 2_278_604),
        ("googlenet", "conv1.conv", 6_624_904),
    ],
)
def test_but_for_first_and_last_layer_a_net_is_the_published_one(name: str, inside: str, parameters: int) -> None:
    net = build(name, width=1000).module.body.get_submodule("0")
    first = net.get_submodule(inside)
    assert isinstance(first, nn.Conv2d)
    outputs, side = first.out_channels, first.kernel_size[0]
    assert first.in_channels == 1
    assert sum(p.numel() for p in net.parameters()) == parameters - 2 * outputs * side * side


def test_bearing_normalisation_is_torchs_but_for_a_single_value() -> None:
    plain = nn.Sequential(nn.BatchNorm2d(3, eps=0.01, momentum=0.3))
    with torch.no_grad():
        plain.get_parameter("0.weight").uniform_()
    bearing = _with_batch_norms(copy.deepcopy(plain))
    assert type(bearing.get_submodule("0")) is BatchNormOfOne
    for shape in ((4, 3, 2, 2), (1, 3, 2, 2), (5, 3, 1, 1)):
        x = torch.randn(*shape)
        assert torch.equal(plain(x), bearing(x))
    before = {name: tensor.clone() for name, tensor in bearing.state_dict().items()}
    x = torch.randn(1, 3, 1, 1)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        plain(x)
    out = bearing(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in bearing.state_dict().items())
    assert torch.equal(out, bearing.eval()(x))


def test_a_last_batch_of_one_sample_is_trained_on_and_counters_count_the_others() -> None:
    net = build("shufflenet-v2")
    draw = torch.Generator().manual_seed(0)
    samples = Samples(torch.randn(9, 1, 28, 28, generator=draw), torch.randint(4, (9,), generator=draw))
    training = Training(lr=0.01, batch_size=4, local_epochs=2)
    fitted = sgd.fit(
        net, net.scratch(), net.initial, CrossEntropy(), samples, training, {}, {}, np.random.default_rng(0)
    )
    assert fitted.steps == 6
    counted = {int(t) for name, t in fitted.params.items() if name.endswith("num_batches_tracked")}
    # Of the last batches of one sample those layers miss two whose feature maps are one pixel.
    assert counted == {4, 6}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in fitted.params.values())


def test_counters_and_running_statistics_survive_messages_and_means() -> None:
    net = build("shufflenet-v2")
    one = dict(net.initial)
    counters = [name for name in one if name.endswith("num_batches_tracked")]
    assert counters
    assert all(one[name].dtype == torch.int64 for name in counters)
    other = {name: tensor + 3 for name, tensor in one.items()}
    arrived = Message.from_bytes(Message(params=other).to_bytes())["params"]
    assert arrived.keys() == other.keys()
    assert all(torch.equal(arrived[name], other[name]) and arrived[name].dtype == other[name].dtype for name in other)
    mean = weighted_mean({"a": one, "b": arrived}, {"a": 1, "b": 3})
    for name in one:
        if name in counters:
            assert mean[name].dtype == torch.int64
            assert mean[name].item() == 3
        else:
            torch.testing.assert_close(mean[name], one[name] + 3 * 3 / 4, rtol=1e-5, atol=1e-6)
    module = net.scratch()
    sgd.load(module, mean)
    assert all(torch.equal(tensor, mean[name]) for name, tensor in module.named_buffers())
    assert codec.size({"params": mean})[1] == sum(t.numel() for t in mean.values() if t.is_floating_point())


def test_googlenet_has_no_auxiliary_heads_and_gives_plain_features_in_training() -> None:
    net = build("googlenet")
    assert not [name for name in net.initial if ".aux" in name]
    assert isinstance(net.scratch().train().features(torch.randn(2, 1, 28, 28)), torch.Tensor)


@pytest.mark.parametrize(("name", "least"), [("resnet18", 8), ("googlenet", 15)])
def test_too_small_images_are_refused(name: str, least: int) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' needs images .* at least {least} pixels"):
        MODELS[name].model_validate({}).build(Task(3, (1, least - 1, 40)))
    MODELS[name].model_validate({"width": 3}).build(Task(3, (1, least, least)))


def test_without_torchvision_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_models.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedkin\[torchvision\]', or choose one of small-plain"):
        MODELS["resnet18"].model_validate({}).build(Task(3, (3, 32, 32)))
    torchvision_models.cache_clear()
