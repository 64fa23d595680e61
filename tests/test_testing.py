"""What `check_method` says of methods that break a promise."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from fedkin.flow import Message
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.testing import check_method


class Global(FedAvg):
    """It draws from a generator that all runs share."""

    name: ClassVar[str] = "global"
    shared: ClassVar[np.random.Generator]

    def sample(self, server: Any) -> list[str]:
        return sorted(server.clients)[int(self.shared.integers(3)) :]


@pytest.fixture(autouse=True)
def _begun() -> None:
    Global.shared = np.random.default_rng(0)


class Careless(FedAvg):
    """It makes a mistake in its own code."""

    name: ClassVar[str] = "careless"

    def sample(self, server: Any) -> list[str]:
        return [{"site-a": 1}["site-z"]]  # type: ignore[list-item]


@pytest.mark.slow
def test_a_method_that_keeps_all_is_let_through() -> None:
    check_method(Local())


@pytest.mark.slow
def test_a_broken_promise_is_named_with_what_to_do() -> None:
    with pytest.raises(AssertionError) as caught:
        check_method(Global)
    first, *lines = str(caught.value).splitlines()
    assert first == "Global does not keep what methods promise:"
    told = "\n".join(lines)
    assert "- the same seed gives the same bits: " in told
    assert "Draw from what `server.rng(...)` and `client.rng(...)` return, never from a global generator." in told


class Misread(Global):
    def round(self, server: Any, sampled: Any) -> Any:
        yield from ()
        Message(params={})["n"]


def test_a_field_that_is_missing_is_told_with_the_line_of_the_method() -> None:
    with pytest.raises(AssertionError) as caught:
        check_method(Misread)
    line = Misread.round.__code__.co_firstlineno + 2
    assert f"the message has no field 'n'; known: params ({__file__}, line {line})" in str(caught.value)


def test_a_mistake_is_told_once_with_its_line() -> None:
    with pytest.raises(AssertionError) as caught:
        check_method(Careless)
    line = Careless.sample.__code__.co_firstlineno + 1
    assert str(caught.value).splitlines()[1:] == [f"- it fails: KeyError: 'site-z' ({__file__}, line {line})"]
