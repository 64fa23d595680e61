"""One valid participant that sends whatever it likes: the run goes on, and what it sent counts as missing, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin import codec
from fedkin.errors import MethodError, RunError
from fedkin.network.hello import Hello
from fedkin.network.messages import read
from fedkin.network.registration import Registration
from fedkin.network.settings import NetworkSettings
from fedkin.running.networked import settings_of, setup_of
from network.federations import NOWHERE, Clients, experiment
from network.memory import MemoryLink, MemoryNetwork

PLAN = experiment(clients=3, rounds=2, network={"clients": ["c00", "c01", "c02"], "deadline": 60.0})

ONE = {"n": torch.tensor(5), "loss": torch.tensor(0.5), "right": 3, "figures": torch.ones(1)}
# Fields of an answer that are replaced, or within a reply or score where there is one; or bytes instead of it.
ANSWERS: dict[str, Any] = {
    "a tensor for the number": {"number": torch.tensor([1, 2])},
    "a number of 400 digits": {"number": 10**400},
    "work of 400 digits": {"work": {"samples": 1, "inferred": 0, "flops": 10**400}},
    "nothing": codec.encode({}),
    "an empty reply": {"reply": {}},
    "a reply that is text": {"reply": "params"},
    "a tensor for the samples": {"reply/n": torch.tensor(3)},
    "more samples than were told": {"reply/n": 10**6},
    "scores that are text": {"score": {"n": "5", "loss": "a", "right": []}},
    "scores that are tensors": {"score": ONE},
    "a score of too many samples": {"score/n": 2**30},
    "a model that is no hash": {"score/model": "north"},
    "failures that are none": {"failed": [1, 2]},
    "an error that is a tensor": {"error": torch.ones(3)},
    "no tree": b"\x00\xff garbage",
    "a header without an end": (1 << 60).to_bytes(8, "little") + b"{}",
}


def changed_answer(data: bytes, change: Any) -> bytes:
    if isinstance(change, bytes):
        return change
    tree = codec.decode(data)
    for path, value in change.items():
        name, _, inner = path.partition("/")
        if not inner:
            tree[name] = value
        elif tree.get(name):
            tree[name][inner] = value
    return codec.encode(tree)


FAST = ("a tensor for the number", "an empty reply", "more samples than were told", "a score of too many samples")


@pytest.mark.parametrize(
    "change",
    [pytest.param(change, id=name, marks=[] if name in FAST else pytest.mark.slow) for name, change in ANSWERS.items()],
)
def test_one_malformed_answer_never_ends_a_run(change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = MemoryLink.offer

    def lying(link: MemoryLink, to: str, subject: str, data: bytes) -> None:
        lies = link.me == "c01" and subject.endswith("/answer")
        offer(link, to, subject, changed_answer(data, change) if lies else data)

    monkeypatch.setattr(MemoryLink, "offer", lying)
    with Clients(PLAN, tmp_path) as there:
        there.start()
        result = there.serve()
    assert len(result.rounds) == 2
    assert {(row[1], row[6]) for row in result.messages if row[6]} == {("c01", "refused")}


TASK = {"shape": [4], "classes": 10, "kind": "classification", "targets": 0, "codes": []}
HELLO: dict[str, Any] = {
    "nonce": "0" * 8, "life": "0", "about": {"n_train": 1, "n_test": 1, "digest": "0" * 32},
    "agreement": {"settings": ""},
}  # fmt: skip


@pytest.mark.parametrize(
    "hello",
    [
        b"garbage", {}, {"nonce": 3}, {**HELLO, "nonce": "x" * 8}, {**HELLO, "about": 3}, {**HELLO, "agreement": 3},
        {**HELLO, "about": {"n_train": torch.ones(2)}},
        {**HELLO, "agreement": {"settings": "", "task": {**TASK, "shape": [10**9, 10**9]}}},
        {**HELLO, "agreement": {"settings": "", "task": {**TASK, "classes": 10**11}}},
    ],
)  # fmt: skip
def test_hellos_that_are_none_are_not_read(hello: Any) -> None:
    with pytest.raises(MethodError, match=r"^hello is not readable \("):
        read(Hello, hello if isinstance(hello, bytes) else codec.encode(hello))


def test_who_says_nonsense_is_refused_once_and_others_are_let_in(tmp_path: Path) -> None:
    with Clients(PLAN, tmp_path) as there, there.network.link("eve") as eve:
        eve.offer("server", "hello", b"garbage")
        there.whole()
    (refused,) = [line for line in there.said["server"] if line.startswith("eve is refused: ")]
    assert "hello is not readable (" in refused


def test_who_does_not_say_its_task_is_never_a_member(network: MemoryNetwork) -> None:
    heard = list[str]()
    with network.link("server") as link, network.link("c00") as eve:
        registration = Registration(link, settings_of(PLAN), setup_of, NetworkSettings(clients=1), say=heard.append)
        # As after the clients have agreed on the encoding of their tables.
        registration.gathering.set_task(PLAN.federation(NOWHERE).task)
        eve.offer("server", "hello", codec.encode({**HELLO, "agreement": {"settings": settings_of(PLAN)}}))
        with pytest.raises(RunError, match="stopped"):
            registration.wait(lambda: any("is refused" in line for line in heard))
        registration.close()
    (refused,) = [line for line in heard if line.startswith("c00 is refused: ")]
    assert "it does not say what it has learned to predict" in refused
