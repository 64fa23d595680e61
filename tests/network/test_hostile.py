"""One valid participant that sends whatever it likes: the run goes on, and what it sent counts as missing, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import codec
from fedkin.errors import FedkinError, MethodError, RunError
from fedkin.federation import Federation
from fedkin.network.calls import Letter
from fedkin.network.hello import Hello
from fedkin.network.link import Link
from fedkin.network.messages import Answer, read
from fedkin.network.registration import Registration
from fedkin.network.settings import NetworkSettings
from fedkin.running.networked import settings_of, setup_of
from network.federations import NOWHERE, clients, experiment, served
from network.memory import MemoryLink, MemoryNetwork

PLAN = experiment(clients=3, rounds=2, network={"clients": ["c00", "c01", "c02"], "deadline": 60.0})

Change = Callable[[dict[str, Any]], Any]
ANSWERS: dict[str, Change] = {
    "a tensor for the number": lambda tree: {**tree, "number": torch.tensor([1, 2])},
    "a number of 400 digits": lambda tree: {**tree, "number": 10**400},
    "work of 400 digits": lambda tree: {**tree, "work": {"samples": 1, "inferred": 0, "flops": 10**400}},
    "nothing": lambda tree: {},
    "an empty reply": lambda tree: {**tree, "reply": {}},
    "a reply that is text": lambda tree: {**tree, "reply": "params"},
    "a tensor for the samples": lambda tree: {**tree, "reply": {**tree.get("reply", {}), "n": torch.tensor(3)}},
    "more samples than were told": lambda tree: {**tree, "reply": {**tree.get("reply", {}), "n": 10**6}},
    "scores that are text": lambda tree: {**tree, "score": {"n": "5", "loss": "a", "right": []}},
    "scores that are tensors": lambda tree: {
        **tree, "score": {"n": torch.tensor(5), "loss": torch.tensor(0.5), "right": 3, "figures": torch.ones(1)}
    },
    "a score of too many samples": lambda tree: {
        **tree, "score": tree.get("score") and {**tree["score"], "n": 2**30}
    },
    "a model that is no hash": lambda tree: {**tree, "score": {**(tree.get("score") or {}), "model": "north"}},
    "failures that are none": lambda tree: {**tree, "failed": [1, 2]},
    "an error that is a tensor": lambda tree: {**tree, "error": torch.ones(3)},
    "no tree": lambda tree: b"\x00\xff garbage",
    "a header without an end": lambda tree: (1 << 60).to_bytes(8, "little") + b"{}",
}  # fmt: skip


def lying(link: Link, change: Change) -> None:
    """Have a link offer changed answers."""
    offer = link.offer

    def changed(to: str, subject: str, data: bytes) -> None:
        if subject.endswith("/answer"):
            made = change(codec.decode(data))
            data = made if isinstance(made, bytes) else codec.encode(made)
        offer(to, subject, data)

    link.offer = changed  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def federation() -> Federation:
    return PLAN.federation(NOWHERE)


FAST = ("a tensor for the number", "an empty reply", "more samples than were told", "a score of too many samples")


@pytest.mark.parametrize(
    "change",
    [pytest.param(change, id=name, marks=[] if name in FAST else pytest.mark.slow) for name, change in ANSWERS.items()],
)
def test_one_malformed_answer_never_ends_a_run(
    change: Change, federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MemoryLink.__init__

    def init(link: MemoryLink, network: Any, me: str) -> None:
        made(link, network, me)
        if me == "c01":
            lying(link, change)

    monkeypatch.setattr(MemoryLink, "__init__", init)
    with clients(federation, tmp_path / "nodes") as there:
        there.start()
        result = served(PLAN, there.network, tmp_path / "there")
        there.stop()
    assert result is not None
    assert len(result.rounds) == 2
    missing = [row for row in result.messages if row[6]]
    assert missing
    assert {row[1] for row in missing} == {"c01"}
    assert all(row[6] == "refused" for row in missing)


HELLOS: list[Any] = [
    b"garbage", {}, {"nonce": 3}, {"nonce": "x" * 8}, {"nonce": "0" * 8, "life": "0", "about": 3, "agreement": 3},
    {"nonce": "0" * 8, "life": "0", "about": {"n_train": torch.ones(2)}, "agreement": {"settings": ""}},
    {"nonce": "0" * 8, "life": "0", "about": {"n_train": 1, "n_test": 1, "digest": "0" * 32},
     "agreement": {"settings": "", "task": {"shape": [10**9, 10**9], "classes": 10, "kind": "classification"}}},
    {"nonce": "0" * 8, "life": "0", "about": {"n_train": 1, "n_test": 1, "digest": "0" * 32},
     "agreement": {"settings": "", "task": {
         "shape": [4], "classes": 10**11, "kind": "classification", "targets": 0, "codes": []}}},
]  # fmt: skip


@pytest.mark.parametrize("hello", HELLOS)
def test_hellos_that_are_none_are_not_read(hello: Any) -> None:
    with pytest.raises(MethodError, match=r"^hello is not readable \("):
        read(Hello, hello if isinstance(hello, bytes) else codec.encode(hello))


def test_who_says_nonsense_is_refused_once_and_others_are_let_in(federation: Federation, tmp_path: Path) -> None:
    heard: list[str] = []
    with clients(federation, tmp_path / "nodes") as there, there.network.link("eve") as eve:
        eve.offer("server", "hello", b"garbage")
        there.start()
        served(PLAN, there.network, tmp_path / "there", say=heard.append)
        there.join()
        assert there.errors == {}
    (refused,) = [line for line in heard if line.startswith("eve is refused: ")]
    assert "hello is not readable (" in refused


def test_who_does_not_say_its_task_is_never_a_member(federation: Federation) -> None:
    network, heard = MemoryNetwork(), list[str]()
    with network.link("server") as link, network.link("c00") as eve:
        registration = Registration(link, settings_of(PLAN), setup_of, NetworkSettings(clients=1), say=heard.append)
        # As after the clients have agreed on the encoding of their tables.
        registration.gathering.set_task(federation.task)
        hello = {"nonce": "0" * 8, "life": "a", "agreement": {"settings": settings_of(PLAN)},
                 "about": {"n_train": 9, "n_test": 1, "digest": "0" * 32}}  # fmt: skip
        eve.offer("server", "hello", codec.encode(hello))
        with pytest.raises(RunError, match="stopped"):
            registration.wait(lambda: any("is refused" in line for line in heard))
        registration.close()
    (refused,) = [line for line in heard if line.startswith("c00 is refused: ")]
    assert "it does not say what it has learned to predict" in refused


def test_whatever_is_read_is_read_or_refused(federation: Federation) -> None:
    """Answers, hellos and letters with parts replaced by anything: read, or refused in one line."""
    draw = np.random.default_rng(0)
    odd: list[Any] = [
        None, True, -1, 10**400, 1e308, float("nan"), "", "x" * 5000, [], [[]], [None], {}, {"a": {}}, torch.ones(2),
        torch.tensor(3), torch.tensor([float("inf")]),
    ]  # fmt: skip
    about = {"n_train": 1, "n_test": 1, "digest": "0" * 32, "group": None}
    agreement: dict[str, Any] = {"settings": "", "task": None, "columns": [], "metrics": []}
    good: dict[Any, dict[str, Any]] = {
        Answer: {
            "number": 1, "reply": {"params": {"w": torch.ones(2)}, "n": 3}, "failed": None,
            "work": {"samples": 1, "inferred": 0, "flops": 1.0},
            "score": {
                "n": 3, "loss": 0.5, "right": 2, "figures": [0.5], "digest": [], "further": [], "model": "0" * 32
            },
        },
        Hello: {"nonce": "0" * 8, "life": "0", "about": about, "agreement": agreement},
        Letter: {
            "me": "ann", "to": "server", "life": "0", "version": 1, "other": "", "received": 0, "since": 0,
            "subjects": ["r"], "new": {"r": torch.zeros(3, dtype=torch.uint8)},
        },
    }  # fmt: skip
    for form, tree in good.items():
        read(form, codec.encode(tree))
    refused = 0
    for _ in range(1000):
        for form, tree in good.items():
            try:
                read(form, _changed(draw, tree, odd))
            except MethodError as error:
                refused += "\n" not in str(error) and len(str(error)) < 400
    assert refused > 500


def _changed(draw: np.random.Generator, tree: dict[str, Any], odd: list[Any]) -> bytes:
    copy = {name: dict(value) if isinstance(value, dict) else value for name, value in tree.items()}
    inner = [value for value in copy.values() if isinstance(value, dict)]
    place = inner[draw.integers(len(inner))] if draw.random() < 0.6 else copy
    names = [*place, "more"]
    place[names[draw.integers(len(names))]] = odd[draw.integers(len(odd))]
    try:
        data = bytearray(codec.encode(copy))
    except (FedkinError, TypeError, ValueError):
        data = bytearray(codec.encode(tree))
    if draw.random() < 0.2:
        data[draw.integers(len(data))] = draw.integers(256)
    return bytes(data)
