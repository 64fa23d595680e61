"""A method's mistakes are one line with the file and line of the user's method."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

import fedkin
from fedkin.errors import MethodError, NoField
from fedkin.flow import Ask, Fit, Message, PeerMethod, phase
from fedkin.forms import COUNT, NET
from fedkin.methods.fedavg import FedAvg
from support import Ending, small_federation


class Field(FedAvg):
    @phase(params=NET, n=COUNT)
    def train(self, client: Any, message: Message) -> Any:
        yield from Fit(message["parms"])  # here


class Never(FedAvg):
    @phase(params=NET, n=COUNT)  # here
    def train(self, client: Any, message: Message) -> Any:
        fitted: Any = Fit(message.params)
        return fitted.params


class Bare(FedAvg):
    @phase(params=NET, n=COUNT)
    def train(self, client: Any, message: Message) -> Any:
        yield  # here


class Unknown(FedAvg):
    @phase(params=NET, n=COUNT)
    def train(self, client: Any, message: Message) -> Any:
        yield 3  # here


class Shape(FedAvg):
    @phase(params=NET, n=COUNT)  # here
    def train(self, client: Any, message: Message) -> Any:
        return Message(params={name: value[:1] for name, value in message.params.items()}, n=client.size)


class Returns(FedAvg):
    @phase(params=NET, n=COUNT)  # here
    def train(self, client: Any, message: Message) -> Any:
        return dict(message.params)


class Silent(FedAvg):
    def round(self, server: Any, sampled: Any) -> Any:  # here
        server.state["done"] = True


class Typo(FedAvg):
    def round(self, server: Any, sampled: Any) -> Any:
        yield from Ask("trian", {id: Message(params=server.initial) for id in sampled})  # here


class Loss(FedAvg):
    @phase(params=NET, n=COUNT)
    def train(self, client: Any, message: Message) -> Any:
        yield from Fit(message.params, broken)


class Uses(FedAvg):
    def use(self, client: Any) -> Any:  # type: ignore[override]  # here
        return client.initial


class Checks(FedAvg):
    def check(self) -> None:  # type: ignore[override]  # here
        return None


class Trains(FedAvg):
    @phase(params=NET, n=COUNT)  # here
    def train(self, client: Any, message: Message, more: Any) -> Any:  # type: ignore[override]
        return message


WRONG: Any = int


class Forgets(FedAvg):
    def round(self, server: Any, sampled: Any) -> Any:
        replies = Ask("train", {id: Message(params=server.initial) for id in sampled})
        return list(replies.items())  # type: ignore[attr-defined]  # here


class Counts(FedAvg):
    def start(self, server: Any) -> None:
        self.rounds = 0  # here


class Equips(FedAvg):
    def equip(self, net: Any, task: Any, seed: Any) -> Any:
        raise KeyError("projection")  # here


class Refuses(FedAvg):
    def check(self, federation: Any) -> None:
        raise KeyError("groups")  # here


class Declares(FedAvg):
    @phase(params=NET, n=WRONG)  # here
    def train(self, client: Any, message: Message) -> Any:
        return message


class Alone(PeerMethod):
    name: ClassVar[str] = "alone"

    def round(self, peer: Any) -> Any:
        yield from Fit(peer.initial)

    def use(self, peer: Any, message: Any) -> Any:  # type: ignore[override]  # here
        return peer.initial


def broken(model: Any, batch: Any, extras: Mapping[str, Any], carry: Any) -> Any:
    return extras["start"]  # here: the line of Loss


def line_of(part: Any) -> str:
    lines, first = inspect.getsourcelines(part)
    return f"{__file__}, line {first + next(at for at, line in enumerate(lines) if '# here' in line)}: "


@pytest.mark.parametrize(
    ("method", "words", "cause"),
    [
        (Field, "the message has no field 'parms'; did you mean 'params'?", NoField),
        (Never, "'train' makes Fit and never yields it: write `answer = yield from Fit(...)`", None),
        (Bare, "a flow yields Fit or Infer, got None: a bare yield", None),
        (Unknown, "a client's flow yields Fit or Infer, got int", None),
        (Shape, "every message was refused, the first, of 'site-e', because params: body.1.weight: expected", None),
        (Forgets, "object has no attribute 'items': write `answer = yield from Ask(...)`", AttributeError),
        (Counts, "fields are settings, which do not change: keep values in `client.state`", None),
        (Equips, "KeyError: 'projection'", KeyError),
        (Refuses, "KeyError: 'groups'", KeyError),
        (Declares, "phase 'train' declares n as <class 'int'>; expected forms of fedkin.forms", None),
        (Returns, "must return a Message, got dict", None),
        (Silent, "a server's round yields Ask, and this one never yields", None),
        (Typo, "no phase 'trian': declare the method of that name with @phase; did you mean 'train'?", None),
        (Uses, "'use' takes (self, client); expected use(self, client, message), as it is called", None),
        (Checks, "'check' takes (self); expected check(self, federation), as it is called", None),
        (Trains, "'train' takes (self, client, message, more); expected train(self, client, message), as", None),
        (Alone, "'use' takes (self, peer, message); expected use(self, peer), as it is called", None),
        (Loss, "KeyError in the net or the loss: 'start'", KeyError),
    ],
)
def test_a_mistake_is_one_line_with_the_place(method: type[Any], words: str, cause: type[Exception] | None) -> None:
    with pytest.raises(MethodError) as caught:
        fedkin.run(method(), small_federation(), rounds=1)
    said = str(caught.value)
    assert words in said
    assert line_of(broken if method is Loss else method) in said
    assert "\n" not in said
    assert cause is None or isinstance(caught.value.__cause__, cause)


def test_functions_may_take_more_than_they_are_given() -> None:
    class Wide(FedAvg):
        def use(self, client: Any, *more: Any, **others: Any) -> Any:
            return super().use(client, *more, **others)

        def offer(self, server: Any, id: str, extra: int = 3) -> Message:
            return super().offer(server, id)

        @staticmethod
        def sample(server: Any) -> list[str]:
            return sorted(server.clients)

    assert fedkin.run(Wide(), small_federation(), rounds=1).rounds


def test_what_others_raise_and_faults_of_fedkins_own_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Same(FedAvg):
        def offer(self, server: Any, id: str) -> Message:
            return super().offer(server, id)

    def failing(*_: Any) -> Message:
        raise KeyError("fault")

    with pytest.raises(KeyError, match="fault"):  # of a watcher in the same file
        fedkin.run(Same(), small_federation(), rounds=1, watcher=Ending(then={1: failing}))
    monkeypatch.setattr("fedkin.methods.blocks.averaging.OneModel.offer", failing)
    with pytest.raises(KeyError, match="fault"):
        fedkin.run("fedavg", small_federation(), rounds=1)


def test_a_package_whose_name_begins_with_fedkin_is_not_fedkins_own(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(fedkin.__file__).parent
    place, there = f"{home}_extra{os.sep}m.py", ModuleType("fedkin_extra")
    text = "class Extra(FedAvg):\n    name = 'extra'\n\n    def offer(self, server, id):\n        return server.nothing"
    there.__dict__.update(FedAvg=FedAvg, __file__=place)
    monkeypatch.setitem(sys.modules, "fedkin_extra", there)
    exec(compile(text, place, "exec"), there.__dict__)
    with pytest.raises(MethodError, match=re.escape(f"{place}, line 5: AttributeError")):
        fedkin.run(there.Extra(), small_federation(), rounds=1)


def test_a_message_says_which_fields_it_has() -> None:
    message = Message(params={}, n=3)
    assert message.get("m") is None
    with pytest.raises(KeyError, match=r"the message has no field 'param'; did you mean 'params'"):
        _ = message["param"]
    with pytest.raises(KeyError, match="the message has no field 'params'; it is empty"):
        _ = Message().params
