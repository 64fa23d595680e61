"""Settings refuse what they do not know, and say what would have been right."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
from pydantic import Field, field_validator

from fedkin.errors import ConfigError, nearest
from fedkin.keys import key, rng
from fedkin.learning.training import Training
from fedkin.settings import Settings, choose, parse


class Inner(Settings):
    resolution: float = 1.0


class Outer(Settings):
    graph: Inner = Inner()
    count: int = 1


def test_typo_in_an_inner_section_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^method\.graph\.resolutoin: no such setting; did you mean 'resolution'\?$"):
        parse(Outer, {"graph": {"resolutoin": 2.0}}, "method")


class Bounded(Settings):
    near: int = Field(3, ge=1)
    some: tuple[Annotated[int, Field(gt=0)], ...] = Field((1,), min_length=1)
    graph: Inner = Inner()


class Bad(Bounded):
    far: int = "x"  # type: ignore[assignment]


class OutOfRange(Settings):
    inner: Bounded = Field(default_factory=lambda: Bounded(near=2))
    share: float = Field(2.0, le=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"near": "x"}, r"Bounded\.near: input should be a valid integer.*; got 'x'"),
        ({"near": 0}, r"Bounded\.near: input should be greater than or equal to 1; got 0"),
        ({"some": "a"}, r"Bounded\.some: expected a list, such as \['a'\]; got 'a'"),
        ({"some": []}, r"Bounded\.some: expected a list of length 1 or more; got \[\]"),
        ({"some": [0]}, r"Bounded\.some\.0: input should be greater than 0; got 0"),
        ({"naer": 2}, r"Bounded\.naer: no such setting; did you mean 'near'\?"),
        ({"graph": {"resolutoin": 2}}, r"Bounded\.graph\.resolutoin: no such setting; did you mean 'resolution'\?"),
        ({"near": True}, r"Bounded: near: expected no true or false, got True"),
    ],
)
def test_settings_made_in_python_are_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}$") as caught:
        Bounded(**given)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_what_is_made_within_a_check_is_blamed_on_the_setting() -> None:
    class Outside(Settings):
        graph: Inner = Inner()

        @field_validator("graph", mode="before")
        @classmethod
        def _made(cls, value: Any) -> Any:
            return Inner(resolution=value) if isinstance(value, str) else value

    with pytest.raises(ConfigError, match=r"^method\.graph: Inner\.resolution: .* valid number.*; got 'high'$"):
        parse(Outside, {"graph": "high"}, "method")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Bad(), "class Bad: the default of 'far': input should be a valid integer.*; got 'x'"),
        (lambda: parse(Bad, {"near": 2}, "method"), "class Bad: the default of 'far': input should be .*; got 'x'"),
        (lambda: parse(OutOfRange, {"inner": {"near": 4}}, "method"),
         "class OutOfRange: the default of 'share': .*less than or equal to 1; got 2.0"),
    ],
)  # fmt: skip
def test_a_bad_default_is_blamed_on_its_class(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(__file__)}: {said}$"):
        make()


def test_every_bad_field_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"training\.lr: .*; got -1.*training\.batch_sise: no such setting"):
        parse(Training, {"lr": -1, "batch_sise": 3}, "training")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": float("nan")}, r"training\.lr: .*finite"),
        ({"local_steps": 1, "local_epochs": 1}, "give local_steps or local_epochs, not both"),
        *(({"clients_per_round": wrong}, "training.*clients_per_round") for wrong in (0, -0.5, 1.5, "some")),
    ],
)
def test_training_that_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(Training, given, "training")


def test_choose_lists_all_when_nothing_is_near() -> None:
    with pytest.raises(ConfigError, match=r"method\.name: no 'zzz'; known: fedavg, local"):
        choose({"local": 1, "fedavg": 2}, "zzz", "method.name")


def test_nearest() -> None:
    assert nearest("a", []) == "there are none"
    assert nearest("fedagv", ["fedavg", "local"]) == "did you mean 'fedavg'?"


def test_keys_depend_on_every_part_and_nothing_else() -> None:
    base = key(0, "a", 1, "batches")
    assert base == key(0, "a", 1, "batches")
    others = [key(1, "a", 1, "batches"), key(0, "b", 1, "batches"), key(0, "a", 2, "batches"), key(0, "a", 1, "x"),
              key(0, "a", "1", "batches")]  # fmt: skip
    assert len({base, *others}) == 6
    assert 0 <= base < 2**63
    assert rng(0, "a").integers(1 << 30) == rng(0, "a").integers(1 << 30)
