"""Which client gets which body."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch

from fedkin.engines import LocalEngine, Setup
from fedkin.errors import ConfigError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning import Net, Training
from fedkin.learning.models import MODELS, Mixed, Mlp
from fedkin.methods import METHODS
from fedkin.running.experiment import nets_for
from fedkin.settings import parse

IDS = [f"client-{k:02d}" for k in range(20)]


def names(mixed: Mixed, ids: list[str] = IDS, seed: int = 0) -> dict[str, str]:
    return {id: model.name for id, model in mixed.deal_bodies(ids, seed).items()}


def test_round_robin_goes_over_the_sorted_ids_whatever_the_order_they_come_in() -> None:
    mixed = Mixed(bodies=("small-plain", "small-wide", "small-residual"))
    dealt = names(mixed)
    assert [dealt[id] for id in IDS[:4]] == ["small-plain", "small-wide", "small-residual", "small-plain"]
    assert names(mixed, list(reversed(IDS))) == dealt
    assert sorted(Counter(dealt.values()).values()) == [6, 7, 7]


def test_random_bodies_depend_on_seed_and_id_alone() -> None:
    mixed = Mixed(deal="random")
    dealt = names(mixed)
    assert set(dealt.values()) == set(mixed.bodies)
    few = names(mixed, IDS[3:7])
    assert few == {id: dealt[id] for id in few}
    assert names(mixed, seed=1) != dealt


def test_a_given_deal_is_followed() -> None:
    deal = {id: "small-wide" if id < "client-05" else "small-plain" for id in IDS}
    assert names(Mixed(bodies=("small-plain", "small-wide"), deal=deal)) == deal


def test_a_given_deal_must_name_every_client_and_no_other() -> None:
    mixed = Mixed(bodies=("small-plain",), deal={"a": "small-plain", "b": "small-plain"})
    with pytest.raises(ConfigError, match=r"model.deal: client 'c' has no body"):
        mixed.deal_bodies(["a", "b", "c"], 0)
    with pytest.raises(ConfigError, match=r"model.deal: client 'b' is not in the federation"):
        mixed.deal_bodies(["a"], 0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"bodies": ["small-plane"]}, r"no net 'small-plane' .*did you mean 'small-plain'"),
        ({"bodies": ["linear"]}, r"no net 'linear' with a width that can be set"),
        ({"bodies": ["mixed"]}, r"no net 'mixed' with a width that can be set"),
        ({"bodies": []}, r"at least 1"),
        ({"bodies": ["small-plain"], "deal": {"a": "small-wide"}}, r"client 'a' is given 'small-wide'"),
        ({"deal": "alphabetical"}, r"model.deal"),
        ({"width": 0}, r"model.width"),
        (
            {"bodies": ["small"], "nets": {"small": {"name": "mlp", "hidden": [32, 16]}}},
            r"nets\.small\.hidden: mixed sets it to `width` \(64\); leave it out",
        ),
        (
            {"bodies": ["t"], "nets": {"t": {"name": "timm", "net": "resnet18", "width": 7}}, "width": 9},
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
    for model in mixed.deal_bodies(IDS[:3], 0).values():
        net = Net.build(partial(model.build, task), 0)
        assert net.width(task) == 10
        assert repr(net.module.head) == "Linear(in_features=10, out_features=3, bias=True)"
    assert mixed.deal_bodies(IDS[:3], 0)[IDS[2]] == Mlp(hidden=(10,))


def test_settings_survive_a_table() -> None:
    own = parse(MODELS["mixed"], {"bodies": ["m"], "nets": {"m": {"name": "mlp"}}, "width": 5}, "model")
    assert parse(MODELS["mixed"], own.model_dump(mode="json"), "model") == own
    for deal in ("random", {"a": "small-wide"}):
        mixed = parse(MODELS["mixed"], {"bodies": ["small-wide"], "deal": deal, "width": 5}, "model")
        assert parse(MODELS["mixed"], mixed.model_dump(mode="json"), "model") == mixed


@pytest.mark.parametrize(
    ("method", "settings"),
    # Views are off: a mirror turns one class of this task into the other.
    [("fedsim", {}), ("fedclassavg", {"augment": {"on": False}}), ("fedproto", {})],
)
def test_a_federation_of_four_bodies_learns_together(method: str, settings: dict[str, object]) -> None:
    draw = torch.Generator().manual_seed(1)
    clients = []
    for k in range(4):
        y = torch.arange(20) % 2
        x = 0.3 * torch.randn(20, 1, 8, 8, generator=draw)
        x[y == 0, :, :, :4] += 1.0
        x[y == 1, :, :, 4:] += 1.0
        clients.append(Client(f"c{k}", Samples(x, y), Samples(x, y)))
    federation = Federation(clients, Task(2, (1, 8, 8)))
    net, nets = nets_for(Mixed(width=16), federation, 0, torch.float32)
    training = Training(lr=0.01, optimiser="adam", local_steps=5, batch_size=10)
    engine = LocalEngine(Setup(METHODS[method](**settings), federation, net, training, nets=nets))
    for number in range(1, 6):
        engine.round(number)
    scores = engine.evaluate()
    assert sum(score.right for score in scores.values()) > 0.9 * sum(score.n for score in scores.values())
    assert len({len(engine.model(id)) for id in federation}) > 1
