"""The clients of a site alone: no engine, no transport."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin import codec
from fedkin.engines.site import LocalSite
from fedkin.engines.states import copy_for_flow
from fedkin.errors import MethodError
from fedkin.flow import Fit, Fitted, Message, phase
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedprox import FedProx
from fedkin.views import ClientView
from support import same, site_of, small_setup


class Counting(FedAvg):
    """FedAvg whose clients count their rounds."""

    def join(self, client: ClientView) -> None:
        client.state["rounds"] = 0

    @phase
    def hello(self, client: ClientView, message: Message) -> Message:
        client.state["rounds"] = client.state["rounds"] + 1
        return Message(n=client.size)


def clients_of(method: Any | None = None) -> tuple[LocalSite, str]:
    setup = small_setup(method or Counting()).equipped()
    return site_of(setup), sorted(setup.federation)[0]


def answered(clients: LocalSite, id: str) -> Message:
    """This client's reply to `hello`."""
    running = clients.flow(id, "hello", Message())
    running.resume(None)
    return clients.finish_reply(running)


def test_a_phase_is_driven_by_hand() -> None:
    clients, id = clients_of()
    clients.turn_to(1)
    offer = Message(params=clients.setup.net.initial)
    running = clients.flow(id, "train", offer)
    request = running.resume(None)
    assert isinstance(request, Fit)
    trained = {name: tensor + 1 for name, tensor in request.params.items()}
    assert running.resume(Fitted(trained, {}, 0.5, 1, 10)) is None
    reply = clients.finish_reply(running)
    assert same(trained, reply.params)
    assert reply["n"] == clients.clients[id].size


def test_what_is_no_phase_is_refused() -> None:
    clients, id = clients_of()
    for name in ("offer", "start", "model_dump", "no-such", "__init__"):
        with pytest.raises(MethodError, match="declares no phase"):
            clients.flow(id, name, Message())


def test_a_loss_whose_operations_cannot_be_counted_is_a_failure_of_that_client(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, id = clients_of()
    clients.turn_to(1)
    counted = clients.operations.per_sample

    def refused(job: Any) -> float:
        if job.id == id:
            raise ValueError("this loss takes no made-up batch")
        return counted(job)

    monkeypatch.setattr(clients.operations, "per_sample", refused)
    offer = Message(params=clients.setup.net.initial)
    replies = dict(clients.replies("train", dict.fromkeys(sorted(clients.clients), offer)))
    assert sorted(replies) == sorted(set(clients.clients) - {id})
    assert [(failure.id, failure.phase) for failure in clients.failed()] == [(id, "train")]


def test_one_client_is_checkpointed_and_restored_alone() -> None:
    clients, id = clients_of()
    other = sorted(clients.clients)[1]
    clients.turn_to(3)
    for name in (id, other):
        answered(clients, name)
    assert [clients.next_request_number(id, "train"), clients.next_request_number(id, "train")] == [0, 1]
    part = codec.decode(codec.encode(clients.checkpoint(id)))
    fresh, _ = clients_of()
    fresh.restore_client(id, part)
    assert fresh.number == 3
    assert fresh.states[id] == {"rounds": 1}
    assert other not in fresh.states
    # The next request of the round has the key that it would have had.
    assert fresh.next_request_number(id, "train") == clients.next_request_number(id, "train") == 2


def test_an_unmet_client_has_a_checkpoint_too() -> None:
    clients, id = clients_of()
    fresh, _ = clients_of()
    fresh.restore_client(id, codec.decode(codec.encode(clients.checkpoint(id))))
    assert id not in fresh.states
    assert fresh.view(id).state == {"rounds": 0}


def test_own_methods_are_copies() -> None:
    setup = small_setup(FedProx(mu=0.7)).equipped()
    held = site_of(setup, own_method=True).method()
    assert held is not setup.method
    assert held == setup.method


def test_a_reply_must_be_a_message() -> None:
    class Silent(FedAvg):
        @phase
        def hello(self, client: ClientView, message: Message) -> Any:
            return {"n": 1}

    clients, id = clients_of(Silent())
    with pytest.raises(MethodError, match=f"phase 'hello' at client '{id}' must return a Message, got dict"):
        answered(clients, id)


# -- states that a flow may change while those before the round stay -------------------------------------------------


def test_what_a_flow_puts_into_its_copy_is_not_in_the_state() -> None:
    weight = torch.ones(2)

    def made() -> dict[str, Any]:
        return {
            "group": {"a": 1}, "models": {"0": {"w": weight}}, "empty": {}, "mixed": {"inner": {"a": 1}, "n": 3},
            "rounds": [1, 2], "deep": {"w": weight, "listed": [[1], {"a": [2]}]}, "beside": {"w": weight, "n": 3},
            "none": [],
        }  # fmt: skip

    state = made()
    copy = copy_for_flow(state)
    assert copy == state
    for place in (copy["group"], copy["mixed"]["inner"], copy["models"], copy["empty"], copy["beside"], copy):
        place["a"] = 9
    for place in (copy["rounds"], copy["deep"]["listed"][0], copy["deep"]["listed"][1]["a"], copy["none"]):
        place.append(9)
    assert state == made()
    # Parameters are one object before and after: no flow changes them in place.
    assert copy["models"]["0"] is state["models"]["0"]
    assert copy["deep"]["w"] is weight
