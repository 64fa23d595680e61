"""Checks of what every method promises: `check_method(Mine)` says which promises are broken, and what to do.

fedkin's own methods pass the same checks. They use a federation of six small clients in two groups.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from fedkin import codec
from fedkin.engines import Envelope, Faults, LocalEngine, LoopbackEngine, Missing, RecordingObserver, Setup, Transport
from fedkin.engines.results import SERVER
from fedkin.engines.setup import EngineSettings
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.flow import AnyMethod, Ask, Message, ServerMethod
from fedkin.learning.models import Mlp
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.views import ServerView

__all__ = ["PROMISES", "Checked", "Losing", "Promise", "check_method", "small_federation", "small_setup"]


def check_method(method: AnyMethod | type[AnyMethod]) -> None:
    """Check all promises that methods make; raises AssertionError with the broken ones, and what to do.

    method: a method, or a class whose settings all have defaults. Takes seconds; use it in a test of your own.

    >>> from fedkin.methods import FedAvg
    >>> check_method(FedAvg)
    """
    checked = Checked(method() if isinstance(method, type) else method)
    broken = []
    for promise in PROMISES:
        if promise.server_only and not isinstance(checked.method, ServerMethod):
            continue
        try:
            promise.check(checked)
        except AssertionError as error:
            broken.append(f"- {promise.words}: {' '.join(str(error).split())[:300]}\n  {promise.remedy}")
        except Exception as error:  # an error in the method itself
            broken.append(f"- it fails: {_error_text(error)}")
    broken = list(dict.fromkeys(broken))
    if broken:
        head = f"{type(checked.method).__name__} does not keep what methods promise:"
        raise AssertionError("\n".join([head, *broken]))


def _error_text(error: Exception) -> str:
    """Describe an error in the method, with its file and line."""
    frames = traceback.extract_tb(error.__traceback__)
    # fedkin may raise in its own code, such as for a missing field: the method's line helps more.
    outside = [frame for frame in frames if not Path(frame.filename).is_relative_to(Path(__file__).parent)]
    last = (outside or frames)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({last.filename}, line {last.lineno})"


# -- a small federation ----------------------------------------------------------------------------------------------


def small_federation(clients: int = 6, seed: int = 0, classes: int = 4, width: int = 5) -> Federation:
    """Return clients of different sizes in two planted groups: the second group has reversed labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, width)) * 2
    names = [f"site-{letter}" for letter in rng.permutation(list("qwertyuiopasdfghjklzxcvbnm"))[:clients]]
    members = []
    for number, name in enumerate(names):
        group = number % 2

        def draw(count: int, group: int = group) -> Samples:
            y = rng.integers(0, classes, count)
            x = centres[y] + rng.normal(size=(count, width))
            y = classes - 1 - y if group else y
            return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))

        members.append(Client(name, draw(18 + 3 * number), draw(12), group=f"g{group}"))
    return Federation(members, Task(classes, (width,)), "small")


def small_setup(
    method: AnyMethod, federation: Federation | None = None, dtype: torch.dtype = torch.float32,
    dropout: float = 0.0, seed: int = 0, **training: object,
) -> Setup:  # fmt: skip
    """Return a setup with a small MLP: few steps per round, clients train one by one; training: fields of Training."""
    federation = federation if federation is not None else small_federation()
    plan = {"rounds": 3, "lr": 0.1, "batch_size": 8, "local_steps": 2, **training}
    net = Net.build(lambda: Mlp(hidden=(7,)).build(federation.task), 11, dtype)
    # Other engines give the same bits as this mode.
    engine = EngineSettings(mode="one-by-one")
    return Setup(method, federation, net, Training.model_validate(plan), seed, engine, faults=Faults(dropout=dropout))


class Losing(Transport):
    """A transport that loses every message for which `lose(envelope)` is true; `lose` may be set at any time."""

    def __init__(self, lose: Callable[[Envelope], bool] = lambda envelope: False) -> None:
        self.lose = lose

    def carry(self, envelope: Envelope) -> Envelope | Missing:
        return Missing.LOST if self.lose(envelope) else envelope


def _models(engine: LocalEngine, rounds: int = 3) -> dict[str, dict[str, Tensor]]:
    """Every client's model after some rounds."""
    for number in range(1, rounds + 1):
        engine.round(number)
    return {id: dict(engine.model(id)) for id in sorted(engine.setup.federation)}


class Run:
    """Three rounds of a method: every client's model, all envelopes, requests and counted bytes."""

    def __init__(self, setup: Setup, engine: type[LocalEngine] = LocalEngine) -> None:
        self.witness = RecordingObserver()
        self.engine = engine(setup, observers=[self.witness])
        self.traffic = [sorted(self.engine.round(1).traffic)]
        self.asks = list(self.witness.asks)  # of round 1
        self.server_state = deepcopy(self.engine.server.state) if isinstance(setup.method, ServerMethod) else None
        self.state = codec.encode(self.engine.state())
        self.traffic += [sorted(self.engine.round(number).traffic) for number in (2, 3)]
        self.models = {id: dict(self.engine.model(id)) for id in sorted(setup.federation)}


class Checked:
    """A method, and the runs that several checks share; each run is computed once."""

    def __init__(self, method: AnyMethod) -> None:
        self.method = method

    @cached_property
    def full(self) -> Run:
        """A run in which all clients take part."""
        return Run(small_setup(self.method).equipped())

    @cached_property
    def sampled(self) -> Run:
        """A run with four of six clients in each round."""
        return Run(small_setup(self.method, clients_per_round=4))


def _require(condition: bool, words: str) -> None:
    if not condition:
        raise AssertionError(words)


def _require_close(what: str, one: Tensor, other: Tensor, relative: float) -> None:
    torch.testing.assert_close(one, other, rtol=relative, atol=1e-6, msg=lambda text: f"{what}: {text}")


def _require_finite(id: str, params: Mapping[str, Tensor]) -> None:
    _require(all(bool(torch.isfinite(tensor).all()) for tensor in params.values()), f"the model of {id} is not finite")


def _same_bits(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    _require(one.keys() == other.keys(), "other clients have models")
    for id in one:
        for name in one[id]:
            _require(torch.equal(one[id][name], other[id][name]), f"{name} of {id} differs")


# -- the promises ----------------------------------------------------------------------------------------------------


def _trains(checked: Checked) -> None:
    initial = checked.full.engine.setup.net.initial
    for id, params in checked.full.models.items():
        changed = any(not torch.equal(params[name], initial[name]) for name in initial if name.startswith("body."))
        _require(changed, f"the model of {id} is what it was after 3 rounds")


def _travels(checked: Checked) -> None:
    local, loopback = checked.sampled, Run(small_setup(checked.method, clients_per_round=4), LoopbackEngine)
    _same_bits(local.models, loopback.models)
    _require(local.traffic == loopback.traffic, "other messages are counted")


def _repeats(checked: Checked) -> None:
    _same_bits(checked.sampled.models, _models(LocalEngine(small_setup(checked.method, clients_per_round=4))))


def _draws(checked: Checked) -> None:
    one, other = checked.sampled.models, _models(LocalEngine(small_setup(checked.method, clients_per_round=4, seed=1)))
    bodies = [name for name in next(iter(one.values())) if name.startswith("body.")]
    same = all(torch.equal(one[id][name], other[id][name]) for id in one for name in bodies)
    _require(not same, "all models are equal with seeds 0 and 1")


def _unordered(checked: Checked) -> None:
    federation = small_federation()
    turned = federation.reorder(list(reversed(list(federation))))
    _same_bits(checked.sampled.models, _models(LocalEngine(small_setup(checked.method, turned, clients_per_round=4))))


def _rests(checked: Checked, settled: int = 0, but: str = "\0") -> None:
    """settled: rounds to run before models are compared. but: prefix of the names of parameters that may change."""
    engine = LocalEngine(small_setup(checked.method, lr=0.0))
    for number in range(1, settled + 1):
        engine.round(number)
    before = {id: dict(engine.model(id)) for id in engine.setup.federation}
    for id, params in _models(engine).items():
        for name, tensor in params.items():
            if not name.startswith(but):
                _require_close(f"{name} of {id}", tensor, before[id][name], 0.0)


def _survives(checked: Checked) -> None:
    for id, params in _models(LocalEngine(small_setup(checked.method, dropout=0.5, seed=3)), rounds=6).items():
        _require_finite(id, params)


def _waits(checked: Checked) -> None:
    losing = Losing()
    engine = LocalEngine(small_setup(checked.method), transport=losing)
    engine.round(1)
    before = {pointer: tensor.clone() for pointer, tensor in codec.tensors_of(engine.state()).items()}
    losing.lose = lambda envelope: envelope.sender == SERVER
    engine.round(2)
    after = codec.tensors_of(engine.state())
    _require(before.keys() == after.keys(), f"the state has other entries: {sorted(before.keys() ^ after.keys())[:3]}")
    for pointer, tensor in before.items():
        _require(torch.equal(tensor, after[pointer]), f"{pointer} of the state has changed")


def _ignores(checked: Checked) -> None:
    method = checked.method
    federation = small_federation()
    dropped = sorted(federation)[2]
    losing = Losing(lambda envelope: envelope.receiver == dropped)
    one = _models(LocalEngine(small_setup(method, federation), transport=losing), rounds=2)
    with mock.patch.object(type(method), "sample", lambda self, server: [id for id in server.clients if id != dropped]):
        _same_bits(one, _models(LocalEngine(small_setup(method, federation)), rounds=2))


def _relabels(checked: Checked) -> None:
    run = checked.full
    ids = sorted(run.models)
    names = {id: f"new-{len(ids) - index:02d}" for index, id in enumerate(ids)}
    sent, server = _replayed(checked.method, [replies for _, _, replies in run.asks], names)
    _require(len(sent) == len(run.asks) > 0, f"it asks {len(sent)} times, and {len(run.asks)} times before")
    for (_, ask, _), renamed in zip(run.asks, sent, strict=True):
        _require({names[id] for id in ask.messages} == set(renamed), "it asks other clients")
        for id, message in ask.messages.items():
            _close_trees(message, renamed[names[id]], names)
    _close_trees(run.server_state, server.state, names)


def _replayed(
    method: AnyMethod, replies: Sequence[Mapping[str, Message]], names: Mapping[str, str]
) -> tuple[list[dict[str, Message]], ServerView[Any]]:
    """Run a server's round with renamed clients, and give it the renamed replies in reversed order."""
    setup = small_setup(method, small_federation().relabel(names)).equipped()
    engine, sent = LocalEngine(setup), list[dict[str, Message]]()

    def answers(ask: Ask, round: int, turn: int) -> dict[str, Message]:
        sent.append(dict(ask.messages))
        _require(turn < len(replies), f"it asks more than {len(replies)} times, as often as before")
        renamed = [(names[id], Message(**_renamed(message, names))) for id, message in replies[turn].items()]
        return dict(reversed(renamed))

    with mock.patch.object(engine.exchange, "ask", answers):
        engine.round(1)
    return sent, engine.server


def _renamed(tree: Any, names: Mapping[str, str]) -> Any:
    """The same tree, in which keys that are client ids are renamed."""
    if not isinstance(tree, Mapping):
        return tree
    return {names.get(key, key): _renamed(value, names) for key, value in tree.items()}


def _close_trees(one: Any, other: Any, names: Mapping[str, str]) -> None:
    """Check that trees are equal up to rounding; keys of `one` that are client ids are renamed by `names`."""
    if isinstance(one, Tensor):
        _require_close("an array", one, other, 1e-5)
    elif isinstance(one, Mapping):
        _require({names.get(key, key) for key in one} == set(other), f"other entries: {sorted(map(str, other))[:5]}")
        for key in one:
            _close_trees(one[key], other[names.get(key, key)], names)
    else:
        _require(bool(one == other), f"{one!r} is {other!r}")


def _resumes(checked: Checked) -> None:
    fresh = LocalEngine(small_setup(checked.method, clients_per_round=4))
    fresh.restore(codec.decode(checked.sampled.state))
    for number in (2, 3):
        fresh.round(number)
    _same_bits(checked.sampled.models, {id: dict(fresh.model(id)) for id in checked.sampled.models})


def _forgets(checked: Checked) -> None:
    federation = small_federation()
    gone = sorted(federation)[2]
    clients = [replace(client, away=((3, 4),)) if id == gone else client for id, client in federation.items()]
    engine = LocalEngine(small_setup(checked.method, Federation(clients, federation.task), rounds=5))
    for number in (1, 2, 3):
        engine.round(number)
    _require(not _has(engine.server.state, gone), f"the server's state still has {gone}, which left before")
    engine.round(4)
    _require(gone in engine.round(5).sampled, f"{gone} is back, and takes no part")
    for id in sorted(federation):
        _require_finite(id, engine.model(id))


def _has(tree: Any, name: str) -> bool:
    """Whether a key or a value in a tree is this name."""
    if isinstance(tree, Mapping):
        return name in tree or any(_has(value, name) for value in tree.values())
    if isinstance(tree, list | tuple):
        return any(_has(value, name) for value in tree)
    return isinstance(tree, str) and tree == name


def _counts(checked: Checked) -> None:
    run = checked.full
    counted = [message.bytes for traffic in run.traffic for message in traffic]
    sent = [len(envelope.message.to_bytes()) for envelope in run.witness.envelopes]
    _require(sorted(counted) == sorted(size for size in sent if size), "bytes counted are not those of the messages")


@dataclass(frozen=True)
class Promise:
    """A promise: its name, what it says, what to do if it is broken, and its check."""

    name: str
    words: str
    remedy: str
    check: Callable[[Checked], None]
    server_only: bool = False


_STATE = "Keep all that a later round needs in `state`, as tensors, numbers, texts, lists and dicts."
_SORTED = "Go through clients in the order of sorted ids, and take what comes from each by its id, never by its place."
_RANDOM = "Draw from what `server.rng(...)` and `client.rng(...)` return, never from a global generator."

PROMISES = (
    Promise("trains", "training changes every client's model", "Yield a Fit, and keep what it returns.", _trains),
    Promise("travels", "messages and states through bytes give the same run", _STATE, _travels),
    Promise("repeats", "the same seed gives the same bits", _RANDOM, _repeats),
    Promise("draws", "another seed gives other bits", _RANDOM, _draws),
    Promise("unordered", "the order of clients changes no bit", _SORTED, _unordered),
    Promise("rests", "with a learning rate of 0 models stay what they are",
            "Mix models with weights that sum to 1, and start all clients from the same one.", _rests),
    Promise("survives", "half of all messages lost leave models finite",
            "Divide by the sum of the weights of those who answered, and do nothing where nobody did.", _survives),
    Promise("waits", "a round in which nobody answers leaves the server's state as it was",
            "Return from the round where there are no replies, before the state is changed.", _waits, server_only=True),
    Promise("ignores", "a client that is lost is a client that was not drawn",
            "Use the replies alone, not the list of those who were asked.", _ignores, server_only=True),
    Promise("forgets", "a client that leaves is in no table of the server's state, and may come back",
            "Name tables by client in `by_client`, or override `leave`.", _forgets),
    Promise("relabels", "other names of clients give the same under these names", _SORTED, _relabels, server_only=True),
    Promise("resumes", "a run restored from its state goes on bit for bit", _STATE, _resumes),
    Promise("counts", "bytes counted are those of the messages", "Do not change a Message that was sent.", _counts),
)  # fmt: skip
