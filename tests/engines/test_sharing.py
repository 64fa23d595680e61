"""Parameters that are stored once for all nodes are always those that the job has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.engines.executors.sharing import Sharing
from fedkin.flow import Params


class Store:
    """Stores copies, as a cluster does."""

    def __init__(self) -> None:
        self.stored: list[Params] = []

    def put(self, params: Params) -> int:
        self.stored.append(copied(params))
        return len(self.stored) - 1

    def got(self, sent: Any) -> Params:
        return self.stored[sent] if isinstance(sent, int) else copied(sent)


def copied(params: Params) -> Params:
    return {name: tensor.clone() for name, tensor in params.items()}


def large(value: float = 1.0) -> dict[str, Tensor]:
    return {"w": torch.full((200, 200), value), "b": torch.zeros(3)}


def through_numpy(tensor: Tensor) -> None:
    tensor.numpy()[0] = 5


CHANGES: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "another tensor": lambda params: params.update(b=torch.ones(3)),
    "in place": lambda params: params["b"].add_(1),
    "past the counter": lambda params: params["b"].data.add_(1),
    "through numpy": lambda params: through_numpy(params["b"]),
    "only the sign of zero": lambda params: params["b"].neg_(),
    "another name": lambda params: params.update(c=params.pop("b")),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("before", [1, 2, 3])
def test_parameters_that_change_between_jobs_are_sent_as_they_are(change: str, before: int) -> None:
    store = Store()
    sharing, params = Sharing(store.put), large()
    for _ in range(before):
        assert_equal(store.got(sharing(params)), params)
    CHANGES[change](params)
    for _ in range(3):
        assert_equal(store.got(sharing(params)), params)


def test_the_same_parameters_are_stored_once_also_in_a_copy_of_the_dict() -> None:
    store = Store()
    sharing, params = Sharing(store.put), large(float("nan"))
    assert [sharing(params) is params, *(sharing(dict(params)) for _ in range(3))] == [True, 0, 0, 0]


def test_small_parameters_are_sent_with_every_job() -> None:
    store, params = Store(), {"w": torch.ones(5)}
    sharing = Sharing(store.put)
    assert all(sharing(params) is params for _ in range(3))
    assert not store.stored


def test_only_the_last_ones_are_kept() -> None:
    store = Store()
    sharing, models = Sharing(store.put), [large(k) for k in range(6)]
    for model in [*models, *models[::-1]]:
        assert_equal(store.got(sharing(model)), model)
    assert len(sharing.seen) == 4
    assert [float(stored["w"][0, 0]) for stored in store.stored] == [5, 4, 3, 2]
    assert sharing(models[2]) == 3


def assert_equal(one: Params, other: Params) -> None:
    assert list(one) == list(other)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert all(torch.equal(tensor.signbit(), other[name].signbit()) for name, tensor in one.items())
