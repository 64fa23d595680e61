"""Settings refuse what they do not know, and say what would have been right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from fedkin.errors import ConfigError, nearest
from fedkin.keys import key, rng
from fedkin.learning.training import Training
from fedkin.methods import METHODS
from fedkin.settings import Settings, choose, parse


class Inner(Settings):
    resolution: float = 1.0


class Outer(Settings):
    graph: Inner = Inner()
    count: int = 1


def test_typo_in_an_inner_section_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^method\.graph\.resolutoin: no such setting; did you mean 'resolution'\?$"):
        parse(Outer, {"graph": {"resolutoin": 2.0}}, "method")


def test_every_bad_field_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"training\.lr: .*; got -1.*training\.batch_sise: no such setting"):
        parse(Training, {"lr": -1, "batch_sise": 3}, "training")


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.lr: .*finite"):
        parse(Training, {"lr": float("nan")}, "training")


def test_steps_and_epochs_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="give local_steps or local_epochs, not both"):
        parse(Training, {"local_steps": 1, "local_epochs": 1}, "training")


@pytest.mark.parametrize("per_round", [0, -0.5, 1.5, "some"])
def test_per_round_is_a_count_a_fraction_or_all(per_round: object) -> None:
    with pytest.raises(ConfigError, match=r"training.*per_round"):
        parse(Training, {"per_round": per_round}, "training")


def test_choose_lists_all_when_nothing_is_near() -> None:
    with pytest.raises(ConfigError, match=r"method\.name: no 'zzz'; known: fedavg, local"):
        choose({"local": 1, "fedavg": 2}, "zzz", "method.name")


def test_nearest() -> None:
    assert nearest("fedagv", ["fedavg", "local"]) == "did you mean 'fedavg'?"


def test_keys_depend_on_every_part_and_nothing_else() -> None:
    base = key(0, "a", 1, "batches")
    assert base == key(0, "a", 1, "batches")
    others = [key(1, "a", 1, "batches"), key(0, "b", 1, "batches"), key(0, "a", 2, "batches"), key(0, "a", 1, "x"),
              key(0, "a", "1", "batches")]  # fmt: skip
    assert len({base, *others}) == 6
    assert 0 <= base < 2**63
    assert rng(0, "a").integers(1 << 30) == rng(0, "a").integers(1 << 30)


class Renewed(Settings):
    renamed: ClassVar[Mapping[str, str]] = {"graph_learning": "graph", "number": "count"}

    graph: Inner = Inner()
    count: int = 1


class Holder(Settings):
    part: Renewed = Renewed()


def test_an_old_name_is_refused_and_the_new_one_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^method\.graph_learning: renamed; write method\.graph$"):
        parse(Renewed, {"graph_learning": {"resolution": 2.0}}, "method")
    with pytest.raises(ConfigError, match=r"^method\.part\.number: renamed; write method\.part\.count$"):
        parse(Holder, {"part": {"number": 2}}, "method")
    with pytest.raises(ConfigError, match=r"^number: renamed; write count$"):
        parse(Renewed, {"number": 2, "count": 3}, "")
    with pytest.raises(ValueError, match=r"graph_learning: renamed; write graph"):
        Renewed.model_validate({"graph_learning": {}})
    assert parse(Renewed, {"count": 2}, "method").count == 2


def test_old_names_lead_to_names_that_there_are() -> None:
    for method in METHODS.values():
        assert set(method.renamed.values()) <= set(method.model_fields)
        assert not method.renamed.keys() & method.model_fields.keys()


def test_a_class_inherits_what_was_renamed() -> None:
    class Later(Renewed):
        pass

    with pytest.raises(ConfigError, match=r"number: renamed; write method\.count"):
        parse(Later, {"number": 2}, "method")
