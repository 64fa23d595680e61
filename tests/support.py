"""Small federations and settings that many tests share."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from fedkin import codec
from fedkin.engines import Engine, Faults, LocalEngine, Outcome, RecordingObserver, Setup
from fedkin.engines.executors import workers as crossed
from fedkin.engines.executors.jobs import OneByOne
from fedkin.engines.results import SERVER
from fedkin.engines.site import LocalSite
from fedkin.federation import Federation, Samples
from fedkin.flow import Fitted, Message, Params, PeerMethod, ServerMethod
from fedkin.keys import rng
from fedkin.learning import BodyHead, CrossEntropy, Loss, Net, Training
from fedkin.learning.sgd import fit
from fedkin.methods import METHODS
from fedkin.settings import parse
from fedkin.testing import Losing as Losing
from fedkin.testing import small_federation as small_federation
from fedkin.testing import small_setup as small_setup
from fedkin.views import ServerView

T = TypeVar("T")

# Ray's own threads and sockets warn when a cluster is taken down; that is not ours to fail on.
ON_RAY = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NEEDS_ACCOUNTANT = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="dp-accounting is not installed: pip install 'fedkin[privacy]'"
)


# Every way to do local work.
WAYS: list[dict[str, Any]] = [
    {"mode": "one-by-one"}, {"mode": "fast"}, {"mode": "workers", "workers": 1}, {"engine": "loopback"},
]  # fmt: skip


# Methods that train any net: all but those that fit a linear model.
NET_METHODS = {name: kind for name, kind in METHODS.items() if not kind.linear}


# Settings whose defaults cost more and reach no other code.
QUICK: Mapping[str, Mapping[str, Any]] = {
    "flt": {"graph": {"embedding": "pca"}},  # UMAP compiles its code for seconds; test_flt.py has it
    "fedcollab": {"exchanges": 2, "restarts": 10},  # the second exchange goes on from what the first one trained
    "fedem": {"unseen_steps": 5},
    "pfedme": {"inner_steps": 2},
    "fedala": {"first_passes": 2},
    "fedavg-ft": {"passes": 2},
}


def default_method(name: str) -> ServerMethod | PeerMethod:
    """A method with its defaults, except for those that only cost time."""
    return METHODS[name].model_validate(QUICK.get(name, {}))


# One method for each pattern of traffic: none, one mean, several phases, a server's graph, models that clients choose
# from, class prototypes, peers, peers that drop edges.
PATTERNS = ("local", "fedavg", "tfl", "sfmtl-graph", "ifca", "fedproto", "dfedavgm", "mapl")


def with_settings(setup: Setup, faults: Mapping[str, Any] | None = None, **settings: Any) -> Setup:
    """Return the setup with other engine settings and faults; raises ConfigError for an invalid setting."""
    engine = {**setup.engine.model_dump(exclude_unset=True), **settings}
    new_faults = setup.faults if faults is None else parse(Faults, faults, "faults")
    return replace(setup, engine=parse(type(setup.engine), engine, "run"), faults=new_faults)


def by_pattern(names: Iterable[str]) -> list[Any]:
    """Parameters of a test that loops over methods and variants: all but one per pattern of traffic are slow."""
    return [pytest.param(name, marks=() if name in PATTERNS else pytest.mark.slow) for name in names]


def module_at(path: Path) -> Any:
    """The module of a file that is in no folder of modules."""
    spec = spec_from_file_location(f"at_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)  # pydantic looks there for names in annotations
    spec.loader.exec_module(module)
    return module


def site_of(setup: Setup, **settings: Any) -> LocalSite:
    """The clients of a setup without an engine."""
    return LocalSite(setup, setup.federation, OneByOne(setup.net, setup.federation), **settings)


def begun(setup: Setup, rounds: int = 1, **options: Any) -> LocalEngine:
    """An engine that ran so many rounds of a setup."""
    engine = LocalEngine(setup, **options)
    play(engine, *range(1, rounds + 1))
    return engine


def after(
    method: ServerMethod | PeerMethod, rounds: int, federation: Federation | None = None, **settings: Any
) -> tuple[LocalEngine, Any]:
    """An engine that ran so many rounds of a small setup, and the last one's outcome (None after none)."""
    engine = LocalEngine(small_setup(method, federation, **settings))
    return engine, play(engine, *range(1, rounds + 1))


def restarted(engine: LocalEngine) -> LocalEngine:
    """Another engine that goes on from the bytes of this one's state."""
    again = LocalEngine(engine.setup)
    again.restore(codec.decode(codec.encode(engine.state())))
    return again


def goes_on(engine: LocalEngine, *rounds: int) -> bool:
    """Whether an engine and one that goes on from its state have the same models and releases after these rounds."""
    again = restarted(engine)
    for each in (engine, again):
        play(each, *rounds)
    return same(engine.models(), again.models()) and engine.releases() == again.releases()


def present(value: T | None) -> T:
    """A value that the test expects to be there."""
    assert value is not None
    return value


def play(engine: Engine | Watched, *rounds: int) -> Any:
    """Run these rounds; returns the last one's outcome."""
    outcomes = [engine.round(number) for number in rounds]
    return outcomes[-1] if outcomes else None


def same(one: Any, other: Any) -> bool:
    """Whether two trees have the same entries, bit for bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return set(one) == set(other) and all(same(part, other[name]) for name, part in one.items())
    return bool(one == other) or (isinstance(one, (list, tuple)) and list(one) == list(other))


def finite(*trees: Any) -> bool:
    """Whether all numbers of these trees' tensors are."""
    tensors = [tensor for tree in trees for tensor in codec.tensors_of(tree).values()]
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor.is_floating_point())


def changed(federation: Federation, id: str, **fields: Any) -> Federation:
    """The federation with these fields of one client set anew."""
    clients = [replace(client, **fields) if client.id == id else client for client in federation.values()]
    return Federation(clients, federation.task, federation.name)


def newcomers(federation: Federation, unseen: Iterable[str] = (), late: Mapping[str, int] | None = None) -> Federation:
    """The same federation with clients that are never asked, and others that join in a later round."""
    hidden, joins = set(unseen), late or {}
    clients = [replace(c, seen=id not in hidden, joins=joins.get(id, 1)) for id, c in federation.items()]
    return Federation(clients, federation.task, federation.name)


def server_view(method: ServerMethod, ids: tuple[str, ...], number: int = 1) -> ServerView[Any]:
    """A server before its first round, or before another one."""
    setup = small_setup(method)
    view: ServerView[Any] = ServerView(
        seed=0, round=number, net=setup.net, task=setup.federation.task, training=setup.training, state={}, clients=ids
    )
    method.start(view)
    return view


class Ending:
    """Stops a run after a round, or when something is so, as Ctrl-C does; `then`: what happens after which round."""

    def __init__(
        self, after: int = -1, then: Mapping[int, Callable[[], object]] = {}, until: Callable[[], bool] = lambda: False
    ) -> None:
        self.after, self.then, self.until = after, then, until
        self.round = 0

    def started(self, rounds: int, done: int) -> None:
        """Nothing to show."""

    def round_done(self, row: Mapping[str, Any]) -> None:
        """Do what the test wants after this round."""
        self.round = row["round"]
        self.then.get(self.round, int)()

    def stopping(self) -> bool:
        """Whether the round was that one, or it is so."""
        return self.round == self.after or self.until()


class Watched:
    """A local run of a server's method: what the server asks, what it is answered, its state.

    lose(phase, id): whether this client's reply is lost; may be set at any time.
    """

    def __init__(self, setup: Setup) -> None:
        self.lose: Callable[[str, str], bool] = lambda phase, id: False
        self.witness = RecordingObserver()
        losing = Losing(lambda envelope: envelope.receiver == SERVER and self.lose(envelope.phase, envelope.sender))
        self.engine = LocalEngine(setup, transport=losing, observers=[self.witness])
        self.federation = setup.federation
        self.initial: Params = self.server.initial
        self.trainable = self.server.net.trainable

    @property
    def server(self) -> ServerView[Any]:
        """The server's view."""
        return self.engine.server

    @property
    def asks(self) -> list[tuple[str, Mapping[str, Message], Mapping[str, Message]]]:
        """(phase, messages by client id, replies by client id) of every Ask so far."""
        return [(ask.phase, ask.messages, replies) for _, ask, replies in self.witness.asks]

    def round(self, number: int) -> Outcome:
        """Run one round, numbered from 1."""
        return self.engine.round(number)

    def rounds(self, count: int) -> Watched:
        """Run rounds 1 to `count`."""
        play(self, *range(1, count + 1))
        return self

    def model(self, id: str) -> Params:
        """The parameters that this client would use now."""
        return self.engine.model(id)

    def replies(self, phase: str) -> Mapping[str, Message]:
        """What the clients answered when this phase was last asked for."""
        return next(replies for asked, _, replies in reversed(self.asks) if asked == phase)


def planted_similarities(
    m: int, clusters: int, within: float, across: float, noise: float, seed: int = 0
) -> tuple[Any, Any, Any]:
    """(similarities [m, m], labels, sample counts from 100 to 300)."""
    rng = np.random.default_rng(seed)
    labels = np.arange(m) % clusters
    s = np.where(labels[:, None] == labels, within, across) + noise * rng.normal(size=(m, m))
    s = (s + s.T) / 2
    np.fill_diagonal(s, 1.0)
    return s, labels, rng.integers(100, 301, m).astype(float)


def stored(samples: Samples) -> Tensor:
    """The inputs of samples that are one array, as they are stored."""
    assert isinstance(samples.x, Tensor)
    return samples.x


def started_by(process: int) -> list[int]:
    """The processes that this one has started, and those that they have."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [process]
    for number in found:
        found += [child for child, parent in parents.items() if parent == number]
    return found[1:]


class Here:
    """Stands for the pool of worker processes: it does their work in this one, from the same bytes."""

    def __init__(self, workers: int, initializer: object, initargs: tuple[Path]) -> None:
        crossed._CLIENTS.update(torch.load(initargs[0], mmap=True, weights_only=False))

    def submit(self, work: Any, *given: Any) -> Future[bytes]:
        done: Future[bytes] = Future()
        done.set_result(work(*given))
        return done

    def shutdown(self, **_: Any) -> None:
        crossed._CLIENTS.clear()


def plain_fedavg(
    body: nn.Module, head: nn.Module, federation: Federation, training: Training,
    outputs: Callable[[Samples, Tensor], Tensor] | None = None, still: Iterable[nn.Module] = (),
    loss: Any = F.cross_entropy,
) -> dict[str, Tensor]:  # fmt: skip
    """FedAvg as people write it, with batches in the order of the library's keys.

    outputs: of these rows of samples; None: those of body and head. still: modules in evaluation mode.
    """
    dtype = next(head.parameters()).dtype
    outputs = outputs or (lambda samples, rows: head(body(samples.inputs(rows, dtype))))
    model = nn.ModuleDict({"body": body, "head": head})
    new = {name: t.clone() for name, t in model.state_dict().items()}
    total = sum(federation.sizes.values())
    for number in range(1, training.rounds + 1):
        sums = {name: torch.zeros_like(t) for name, t in new.items()}
        for id in sorted(federation):
            model.load_state_dict(new)
            model.train()
            for module in still:
                module.eval()
            samples, draw = federation[id].train, rng(0, id, number, "train.fit0")
            torch.manual_seed(int(draw.integers(2**63)))
            trained = [p for p in model.parameters() if p.requires_grad]
            optimiser = torch.optim.SGD(trained, training.lr, training.momentum, weight_decay=training.weight_decay)
            for rows in map(torch.from_numpy, training.batches(len(samples), draw)):
                optimiser.zero_grad()
                torch.autograd.backward(loss(outputs(samples, rows), samples.labels(rows)))
                if training.clip is not None:
                    nn.utils.clip_grad_norm_(trained, training.clip)
                optimiser.step()
            for name, t in model.state_dict().items():
                if t.is_floating_point():
                    sums[name] += t * (len(samples) / total)
                else:
                    sums[name] = torch.maximum(sums[name], t)
        new = sums
    return new


def idx_bytes(array: Any, code: int = 8) -> bytes:
    """An idx file, written by its description: unsigned bytes (code 8), or whole numbers of four bytes (code 12)."""
    array = np.asarray(array)
    values = array.astype(np.uint8 if code == 8 else ">i4")
    head = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return head + bytes(values.tobytes())


def trained_models(engine: LocalEngine, rounds: int = 3) -> dict[str, dict[str, Tensor]]:
    """Each client's model after these rounds."""
    play(engine, *range(1, rounds + 1))
    return {id: dict(engine.model(id)) for id in sorted(engine.setup.federation)}


def flat(params: Params) -> Any:
    """All parameters as one vector, in the order of their names."""
    return np.concatenate([params[name].double().numpy().ravel() for name in sorted(params)])


def printed(shown: Any, width: int) -> str:
    """What a terminal of this width shows of tables and texts."""
    text = io.StringIO()
    Console(file=text, width=width).print(shown)
    return text.getvalue()


def named(name: str, **settings: Any) -> Any:
    """The method of this name with these settings."""
    return METHODS[name].model_validate(settings)


def samples_of(x: Any, y: Any) -> Samples:
    """Samples of NumPy arrays, with inputs as float32."""
    return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))


def finish(flow: Any, answer: Any) -> Any:
    """Give a flow its last answer; returns what the flow returns."""
    try:
        flow.send(answer)
    except StopIteration as end:
        return end.value
    raise AssertionError("the flow goes on")


def one_ask(method: Any, server: ServerView[Any], replies: Mapping[str, Message]) -> dict[str, Message]:
    """Run a server's round that asks once, with these replies; returns what was asked."""
    flow = method.round(server, sorted(replies))
    asked = next(flow).messages
    finish(flow, replies)
    return dict(asked)


def fitted(
    net: Net, samples: Samples, training: Training, seed: int = 0, module: BodyHead | None = None,
    params: Params | None = None, loss: Loss | None = None,
) -> Fitted:  # fmt: skip
    """Local training with draws of this seed, from the net's first values or from others."""
    module, start = module or net.scratch(), net.initial if params is None else params
    return fit(net, module, start, loss or CrossEntropy(), samples, training, {}, {}, np.random.default_rng(seed))
