"""`privacy.sample_epsilon` in runs: which methods train privately, what it costs, and what stays equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from engines.test_private_signatures import two_groups
from engines.test_releases import uploads
from fedkin.engines import LocalEngine, LoopbackEngine, Privacy, Setup
from fedkin.engines.epsilon import noise_for, total_epsilon
from fedkin.errors import ConfigError, RunError
from fedkin.federation import Federation
from fedkin.flow import ClientFlow, Fit, Message, phase
from fedkin.forms import COUNT, NET
from fedkin.learning import Net
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.flt_same import FltSame
from fedkin.methods.given import Given
from fedkin.methods.kin import Kin
from fedkin.methods.local import Local
from fedkin.records.metrics import privacy_sentence, privacy_spent
from fedkin.testing import small_federation, small_setup
from fedkin.views import ClientView
from support import NET_METHODS, begun, by_pattern, finite, goes_on, same, trained_models, with_settings

pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'fedkin[privacy]'")
PRIVATE = Privacy(sample_epsilon=4.0)
CASES: dict[str, Any] = {name: method() for name, method in NET_METHODS.items()}
CASES["given"] = Given(groups={"all": tuple(small_federation())})
# What is refused, and what it would send or read of samples.
REFUSED = {
    "apfl": "reads samples outside", "cobo": "'gradients'", "dpfl": "'partners'", "drfa": "chosen samples",
    "fedala": "reads samples outside", "fedclassavg": "depends on other samples", "fedcollab": "'right'",
    "feddrift": "'accuracy'", "fedem": "depends on other samples", "fedfomo": "'taken'", "fedproto": "'prototypes'",
    "fedrep": "steps of its own", "flt": "'total'", "flt-same": "'target'", "ifca": "'cluster'", "kin": "'target'",
    "knn-per": "head.memory", "mapl": "depends on other samples", "mapl-plus": "depends on other samples",
    "pacfl": "'basis'", "pca-km-hc": "'mean'", "pfedme": "reads samples outside", "sfmtl-graph": "'anchors'",
    "tfl": "'loss'",
}  # fmt: skip
RUNNING = sorted(set(CASES) - set(REFUSED))


def of_two_sizes() -> Federation:
    """Each size needs its own search for the noise."""
    federation = small_federation()
    clients = [replace(c, train=c.train.take(range(18 - 4 * (k % 2)))) for k, c in enumerate(federation.values())]
    return Federation(clients, federation.task, federation.name)


def spends_four(engine: LocalEngine, fits: int) -> None:
    """Three rounds of so many fits of each client cost the stated epsilon, and nobody is missing."""
    assert finite(trained_models(engine))
    assert not [row for row in engine.log.traffic if row.missing]
    for one in engine.releases().values():
        assert one["trained"]["fits"] == fits
        assert PRIVATE.spent(one) == pytest.approx(4.0, rel=1e-4)


def private(method: Any, privacy: Privacy = PRIVATE, **settings: Any) -> Setup:
    return replace(small_setup(method, **{"federation": of_two_sizes(), **settings}), privacy=privacy)


@pytest.mark.slow
@pytest.mark.parametrize("name", by_pattern(RUNNING))
def test_methods_that_send_models_alone_spend_the_stated_epsilon(name: str) -> None:
    engine = LocalEngine(private(CASES[name]))
    spends_four(engine, 3 * CASES[name].fits)
    for one in engine.releases().values():
        assert {field for fields in one["open"].values() for field in fields} <= {"n", "steps", "degree"}


@pytest.mark.parametrize("unit", ["local_steps", "local_epochs"])
def test_fedrep_with_one_step_for_each_part_spends_the_stated_epsilon(unit: str) -> None:
    local: dict[str, Any] = {"local_steps": None, "local_epochs": None, unit: 1}
    spends_four(LocalEngine(private(CASES["fedrep"], **local)), 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", by_pattern(sorted(REFUSED)))
def test_others_are_refused_with_what_would_leak(name: str) -> None:
    with pytest.raises((RunError, ConfigError), match=REFUSED[name]) as refused:
        trained_models(LocalEngine(private(CASES[name])))
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("method", [CASES[name] for name in ("fedavg", "ditto", "dfedavgm")])
def test_bytes_stacks_and_a_resume_change_no_bit(method: Any) -> None:
    local, loopback = LocalEngine(private(method)), LoopbackEngine(private(method))
    one = trained_models(local, rounds=2)
    assert same(one, trained_models(loopback, rounds=2))
    assert local.releases() == loopback.releases()
    assert same(one, trained_models(LocalEngine(with_settings(private(method), mode="fast")), rounds=2))
    assert not same(one, trained_models(LocalEngine(replace(private(method), seed=1)), rounds=2))
    assert goes_on(local, 3)


def test_each_client_has_the_noise_that_its_own_samples_need() -> None:
    setup = private(FedAvg())
    engine = begun(setup)
    for id, one in engine.releases().items():
        how, n = one["trained"], setup.federation[id].size
        assert (how["rate"], how["steps"], how["fits"]) == (8 / n, 2, 1)
        assert total_epsilon(0.0, {(8 / n, how["noise"]): 6}, 1e-5) == pytest.approx(4.0, rel=1e-4)
    whole = begun(private(FedAvg(), batch_size="all"))
    for one in whole.releases().values():  # without random batches the value is exact
        assert one["trained"]["noise"] == pytest.approx(noise_for(4.0, 1e-5) * 6**0.5)


def test_no_client_trains_beyond_its_budget() -> None:
    engine = LocalEngine(private(FedAvg()))
    trained_models(engine, rounds=3)
    before, spent = engine.models(), engine.releases()
    engine.round(4)
    assert not uploads(engine)
    assert {row.missing for row in engine.log.traffic if row.missing} == {"spent"}
    assert engine.releases() == spent
    assert same(before, engine.models())


@pytest.mark.slow
def test_a_signature_beside_it_is_counted_with_it() -> None:
    both = Privacy(sample_epsilon=4.0, signature_epsilon=4.0)
    for method in (Kin(degrees="groups"), FltSame(regroup_changed=None)):
        engine = LocalEngine(private(method, both, federation=two_groups()))
        trained_models(engine)
        told = privacy_spent(both, engine.releases())
        one = engine.releases()["c0"]
        steps = {(one["trained"]["rate"], one["trained"]["noise"]): one["trained"]["steps"]}
        assert told["epsilon"]["max"] == total_epsilon(noise_for(4.0, 1e-5) ** -2, steps, 1e-5)
        assert 4.0 < told["epsilon"]["max"] < 8.0
        assert set(told["open"]) == {"spread", "sign_moments", "train"}
        assert {field for fields in told["open"].values() for field in fields} == {"n"}
        assert "of one sample, in private training" in privacy_sentence(told)


def test_secure_sums_beside_it() -> None:
    pytest.importorskip("cryptography")
    plain = trained_models(LocalEngine(private(FedAvg())), rounds=1)
    summed = trained_models(LocalEngine(private(FedAvg(), Privacy(sample_epsilon=4.0, secure_sums=True))), rounds=1)
    torch.testing.assert_close(summed, plain, rtol=1e-4, atol=1e-5)


# -- a method that would send more than it declares -------------------------------------------------------------------


class Reading(FedAvg):
    """Hides the mean of its samples in the model that it sends."""

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView[Any], message: Message) -> ClientFlow[Message]:
        fitted = yield from Fit(message.params)
        hidden = client.train.inputs(slice(None)).mean()
        return Message(params={name: tensor + hidden for name, tensor in fitted.params.items()}, n=client.size)


class Remembering(Local):
    """Keeps its samples in its state, from the beginning."""

    def join(self, client: ClientView[Any]) -> None:
        client.state["mean"] = client.train.inputs(slice(None)).mean()


@pytest.mark.parametrize("method", [Reading(), Remembering()])
def test_flows_do_not_see_samples(method: Any) -> None:
    with pytest.raises(RunError, match="reads samples outside of training"):
        LocalEngine(private(method)).round(1)


# -- settings and nets ------------------------------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="leave out clip and noise"):
        Privacy(sample_epsilon=1.0, clip=1.0, noise=1.0)
    with pytest.raises(ConfigError, match=r"with training\.class_weights a sample's loss depends on other"):
        private(FedAvg(), class_weights="balanced")
    with pytest.raises(ConfigError, match="with method 'fedclassavg'"):
        private(CASES["fedclassavg"])
    setup = small_setup(FedAvg())
    width = setup.task.shapes["x"][0]
    normalised = Net(nn.Sequential(nn.Linear(width, 6), nn.BatchNorm1d(6)), nn.Linear(6, 4))
    with pytest.raises(ConfigError, match=r"body\.1 of the model mixes samples"):
        replace(setup, net=normalised, privacy=PRIVATE)
