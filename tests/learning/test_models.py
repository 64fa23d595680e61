"""The four small nets: shapes, sizes, and that clients with one of them can be stacked."""

from __future__ import annotations

import copy
import sys
import warnings
from collections import Counter
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedkin
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Samples, Task
from fedkin.learning import Net, Training
from fedkin.learning.models import MODELS, CnnFedAvg, CnnMnist, Mixed, Mlp, Mlp8, TextMean, UNet
from fedkin.learning.models.nets import _MeanOfWords, _Pool
from fedkin.learning.models.vision import BatchNormOfOne, _with_batch_norms, torchvision_models
from fedkin.settings import parse
from support import fitted, same

SMALL = ("small-plain", "small-residual", "small-separable", "small-wide")
USUAL = [(1, 28, 28), (3, 32, 32)]


def build(name: str, shape: tuple[int, ...] = (1, 28, 28), width: int = 16) -> Net:
    return Net.build(lambda: MODELS[name].model_validate({"width": width}).build(Task(4, shape)), 1)


@pytest.mark.parametrize(("name", "shape"), [
    *product(SMALL, [*USUAL, (1, 8, 8), (2, 9, 13)]),
    *product(["shufflenet-v2", "resnet18", "googlenet", "resnet50"], USUAL),
    *(pytest.param("alexnet", shape, marks=pytest.mark.slow) for shape in USUAL),
])  # fmt: skip
def test_features_have_the_width_and_are_at_least_zero(name: str, shape: tuple[int, ...]) -> None:
    task, net = Task(4, shape), build(name, shape)
    net.check(task)
    assert net.width(task) == 16
    # In training mode: GoogLeNet's small first weights need a batch's own statistics to show any difference.
    module = net.scratch().train()
    z = module.features(torch.randn(4, *shape))
    assert z.shape == (4, 16)
    assert (z >= 0).all()
    assert not torch.equal(z[0], z[1])
    assert module.head(z).shape == (4, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@given(height=st.integers(8, 40), width=st.integers(8, 40), channels=st.integers(1, 3))
def test_images_of_any_size_are_taken(name: str, height: int, width: int, channels: int) -> None:
    task = Task(2, (channels, height, width))
    Net.build(lambda: MODELS[name].model_validate({}).build(task), 0).check(task)


@pytest.mark.parametrize(("name", "least"), [*((name, 8) for name in (*SMALL, "resnet18")), ("googlenet", 15)])
def test_too_small_images_are_refused(name: str, least: int) -> None:
    for shape in ((1, least - 1, 40), (64,)):
        with pytest.raises(ConfigError, match=f"'{name}' needs images .* at least {least} pixels"):
            MODELS[name].model_validate({}).build(Task(3, shape))
    MODELS[name].model_validate({"width": 3}).build(Task(3, (1, least, least)))


@given(st.integers(1, 40), st.integers(1, 40))
def test_pooling_takes_every_place_into_account(height: int, width: int) -> None:
    x = torch.rand(1, 1, height, width, requires_grad=True)
    pooled = _Pool()(x)
    assert max(pooled.shape[-2:]) <= 4
    assert min(pooled.shape[-2:]) == min(4, *pooled.shape[-2:]) >= 1
    pooled.sum().backward()
    assert x.grad is not None
    assert (x.grad > 0).all()
    torch.testing.assert_close(_Pool()(torch.full((1, 1, height, width), 3.0)), torch.full(pooled.shape, 3.0))


# -- nets for other tasks: shapes, initialisation, and that they learn what they are for -----------------------------


def test_eight_layers_by_he() -> None:
    task = Task.regression(6, (6,))
    net = Net.build(lambda: Mlp8().build(task), 0)
    linear = [module for module in net.module.modules() if isinstance(module, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(6, 512), *[(512, 512)] * 6, (512, 6)]
    for layer in linear[:-1]:
        assert float(layer.weight.detach().std()) == pytest.approx((2 / layer.in_features) ** 0.5, rel=0.05)
        assert not layer.bias.any()
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    plain = Net.build(lambda: Mlp8(init="torch").build(task), 0)
    with torch.no_grad():
        spread = [float(one.module.features(x).std(0).mean()) for one in (net, plain)]
    assert spread[0] > 100 * spread[1]


def test_the_head_follows_the_task() -> None:
    for name in ("mlp", "mlp-3", "mlp-8", "linear"):
        body, head = MODELS[name](name=name).build(Task.regression(3, (5,)))
        assert head(body(torch.zeros(2, 5))).shape == (2, 3)


def test_the_cnn_of_fedavg() -> None:
    task = Task(10, (1, 28, 28))
    sizes = [
        [tuple(p.shape) for part in model.build(task) for p in part.parameters()] for model in (CnnFedAvg(), CnnMnist())
    ]
    assert sizes[0] == sizes[1]
    assert sum(np.prod(size) for size in sizes[0]) == 1_663_370  # as in McMahan et al., 2017


@pytest.mark.parametrize(("depth", "sides"), [(1, (6, 10)), (2, (8, 12)), (3, (16, 8))])
def test_the_unet_keeps_the_size(depth: int, sides: tuple[int, int]) -> None:
    task = Task(4, (2, *sides), "segmentation")
    net = Net.build(lambda: UNet(width=3, depth=depth).build(task), 0)
    net.check(task)
    module = net.scratch()
    assert module(torch.zeros(2, 2, *sides)).shape == (2, 4, *sides)
    assert module.features(torch.zeros(2, 2, *sides)).shape == (2, 3, *sides)
    assert not list(module.buffers())


def test_the_unet_uses_both_its_paths() -> None:
    task = Task(2, (1, 8, 8), "segmentation")
    net = Net.build(lambda: UNet(width=4, depth=2).build(task), 0)
    module = net.scratch()
    module(torch.randn(1, 1, 8, 8)).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for n, p in module.named_parameters() if "weight" in n)


def test_the_unet_refuses_what_it_cannot_take() -> None:
    with pytest.raises(ConfigError, match=r"model\.depth: 3 halvings need sides that 8 divides, the images are 8 x 12"):
        UNet().build(Task(2, (1, 8, 12), "segmentation"))
    with pytest.raises(ConfigError, match="labels every pixel, and this task is classification"):
        UNet().build(Task(2, (1, 8, 8)))


# -- the net for texts as padded token ids: what counts, what does not, and whole runs on ids ------------------------


TOKENS = Task(2, (6,), codes=("x",))


def test_the_mean_is_over_words_and_not_over_padding() -> None:
    body = _MeanOfWords(10, 3, padding=0)
    ids = torch.tensor([[4, 7, 0, 0], [0, 0, 0, 0], [4, 14, 4, 0]])
    table = body.vectors.weight
    expected = torch.stack([(table[4] + table[7]) / 2, torch.zeros(3), table[4]])
    torch.testing.assert_close(body(ids), expected)
    torch.testing.assert_close(body(ids[:, [3, 2, 1, 0]]), expected)
    mask = torch.tensor([[1, 0, 0, 0]] * 3)
    told = body({"input_ids": ids, "attention_mask": mask})
    torch.testing.assert_close(told, table[[4, 0, 4]])
    assert torch.isfinite(body(torch.tensor([[-100, 2**40]]))).all()


@pytest.mark.slow
def test_a_federation_of_token_ids_learns() -> None:
    """Texts are of class 1 if one of the words 1 to 5 is in them; words are of 3,000."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(6, 3000, (600, 6)), rng.integers(0, 2, 600)
    x[y == 1, 2] = rng.integers(1, 6, int(y.sum()))
    federation = Federation.from_arrays(x, y, ["a", "b", "c"] * 200)
    training = {"local_steps": 25, "batch_size": 32, "lr": 1.0}
    assert fedkin.run("fedavg", federation, rounds=16, model=TextMean(words=4096), training=training).accuracy > 0.8


def test_inputs_of_a_tokenizer_fit() -> None:
    rng = np.random.default_rng(0)
    each = {name: [({"input_ids": rng.integers(0, 90, 8), "attention_mask": np.ones(8, np.int64)}, i % 2)
                   for i in range(20)] for name in ("a", "b")}  # fmt: skip
    fed = Federation.from_datasets(each)
    Net.build(lambda: TextMean(words=100).build(fed.task), 0).check(fed.task)


@pytest.mark.parametrize(
    "task", [Task(2, (6,)), Task(2, (3, 8, 8), codes=("x",)), Task(2, {"ids": (4,)}, codes=("ids",))]
)
def test_what_is_no_text_is_refused(task: Task) -> None:
    with pytest.raises(ConfigError, match=r"'text-mean' needs token ids \[length\] as whole numbers"):
        TextMean().build(task)


def test_a_net_for_numbers_names_the_one_for_texts() -> None:
    with pytest.raises(ConfigError, match=r"for token ids: model\.name = 'text-mean'"):
        Mlp().build(TOKENS)


# -- which client gets which body ------------------------------------------------------------------------------------


IDS = [f"client-{k:02d}" for k in range(20)]


def names(mixed: Mixed, ids: list[str] = IDS) -> dict[str, str]:
    return {id: model.name for id, model in mixed.deal_bodies(ids).items()}


def test_round_robin_goes_over_the_sorted_ids_whatever_the_order_they_come_in() -> None:
    mixed = Mixed(bodies=("small-plain", "small-wide", "small-residual"))
    dealt = names(mixed)
    assert [dealt[id] for id in IDS[:4]] == ["small-plain", "small-wide", "small-residual", "small-plain"]
    assert names(mixed, list(reversed(IDS))) == dealt
    assert sorted(Counter(dealt.values()).values()) == [6, 7, 7]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"bodies": ["small-plane"]}, r"no net 'small-plane' .*did you mean 'small-plain'"),
        ({"bodies": ["linear"]}, r"no net 'linear' with a width that can be set"),
        ({"bodies": ["mixed"]}, r"no net 'mixed' with a width that can be set"),
        ({"bodies": []}, r"expected a list of length 1 or more; got \[\]"),
        ({"width": 0}, r"model.width"),
        (
            {"bodies": ["small"], "nets": {"small": {"name": "mlp", "hidden": [32, 16]}}},
            r"nets\.small\.hidden: mixed sets it to `width` \(64\); leave it out",
        ),
        (
            {"bodies": ["t"], "nets": {"t": {"name": "small-wide", "width": 7}}, "width": 9},
            r"nets\.t\.width: mixed sets it to `width` \(9\); leave it out",
        ),
        ({"nets": {"small-plaine": {"name": "mlp"}}}, r"nets: 'small-plaine' is in no bodies; did you mean 'small-pl"),
        (
            {"bodies": ["bert"], "nets": {"bert": {"name": "mlp"}, "bertt": {"name": "mlp"}}},
            r"nets: 'bertt' is in no bodies; did you mean 'bert'",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Mixed, table, "model")


def test_every_body_gets_the_common_width() -> None:
    mixed = Mixed(bodies=("small-plain", "cnn-mnist", "mlp"), width=10)
    task = Task(3, (1, 8, 8))
    for model in mixed.deal_bodies(IDS[:3]).values():
        net = Net.build(partial(model.build, task), 0)
        assert net.width(task) == 10
        assert repr(net.module.head) == "Linear(in_features=10, out_features=3, bias=True)"
    assert mixed.deal_bodies(IDS[:3])[IDS[2]] == Mlp(hidden=(10,))


def test_settings_survive_a_table() -> None:
    own = parse(MODELS["mixed"], {"bodies": ["m"], "nets": {"m": {"name": "mlp"}}, "width": 5}, "model")
    assert parse(MODELS["mixed"], own.model_dump(mode="json"), "model") == own


# -- torchvision's nets: sizes, running statistics, single samples, and what is said when torchvision is  ------------


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    pytest.importorskip("PIL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torchvision_models()
        except ConfigError:
            pytest.skip("torchvision is not installed")


@pytest.mark.slow
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
    assert same(bearing.state_dict(), before)
    assert torch.equal(out, bearing.eval()(x))


@pytest.mark.slow
def test_a_last_batch_of_one_sample_is_trained_on_and_counters_count_the_others() -> None:
    net = build("shufflenet-v2")
    draw = torch.Generator().manual_seed(0)
    samples = Samples(torch.randn(9, 1, 28, 28, generator=draw), torch.randint(4, (9,), generator=draw))
    training = Training(lr=0.01, batch_size=4, local_epochs=2)
    found = fitted(net, samples, training)
    assert found.steps == 6
    counted = {int(t) for name, t in found.params.items() if name.endswith("num_batches_tracked")}
    # Of the last batches of one sample those layers miss two whose feature maps are one pixel.
    assert counted == {4, 6}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found.params.values())


def test_googlenet_has_no_auxiliary_heads_and_gives_plain_features_in_training() -> None:
    net = build("googlenet")
    assert not [name for name in net.initial if ".aux" in name]
    assert isinstance(net.scratch().train().features(torch.randn(2, 1, 28, 28)), torch.Tensor)


def test_without_torchvision_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_models.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedkin\[torchvision\]', or choose one of small-plain"):
        MODELS["resnet18"].model_validate({}).build(Task(3, (3, 32, 32)))
    torchvision_models.cache_clear()
