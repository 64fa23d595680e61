"""Parameters keep the net's order wherever they go, so that a method may lay them out as one vector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

import fedkin
from fedkin.codec import Params
from fedkin.flow import Ask, ClientFlow, Fit, Message, ServerFlow, ServerMethod, phase
from fedkin.views import ClientView, ServerView
from support import small_federation
from tiny import CutAt

TRAINING = {"rounds": 5, "lr": 0.1, "batch_size": 8, "local_steps": 3}


def vector(params: Params) -> Tensor:
    """As many write it: whatever order there is."""
    return torch.cat([tensor.flatten() for tensor in params.values()])


def shaped(flat: Tensor, like: Params) -> dict[str, Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in like.values()])
    return {name: part.reshape(t.shape).clone() for part, (name, t) in zip(parts, like.items(), strict=True)}


class Flattening(ServerMethod):
    """A step of the server along clients' updates, all as vectors; clients remember what they learned."""

    name: ClassVar[str] = "flattening"
    title: ClassVar[str] = "Flattening"
    paper: ClassVar[str] = "none"
    kind: ClassVar[Literal["global"]] = "global"
    travels: ClassVar[str] = "the whole model"

    def start(self, server: ServerView) -> None:
        server.state["params"] = server.initial

    @phase
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        last = client.state.get("last", client.initial)
        start = shaped(0.75 * vector(message.params) + 0.25 * vector(last), message.params)
        fitted = yield from Fit(start)
        client.state["last"] = fitted.params
        return Message(n=client.size, update=vector(fitted.params) - vector(message.params), params=fitted.params)

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        old = server.state["params"]
        replies = yield from Ask("train", {id: Message(params=old) for id in sampled})
        step = torch.stack([replies[id]["update"] for id in sorted(replies)]).mean(0)
        mean = torch.stack([vector(replies[id].params) for id in sorted(replies)]).mean(0)
        server.state["params"] = shaped((vector(old) + step + mean) / 2, old)

    def offer(self, server: ServerView, id: str) -> Message:
        return Message(params=server.state["params"])

    def use(self, client: ClientView, message: Message) -> Params:
        return shaped(vector(message.params), client.initial)


def net() -> tuple[nn.Module, nn.Module]:
    """Its names are in alphabetical order neither among the layers nor inside one; with counters and statistics."""
    torch.manual_seed(5)
    body = nn.Sequential()
    for name, layer in {"z": nn.Linear(5, 6), "a": nn.BatchNorm1d(6), "m": nn.Linear(6, 7)}.items():
        body.add_module(name, layer)
    return body, nn.Linear(7, 4)


def plain() -> tuple[nn.Module, nn.Module]:
    """Without statistics."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(5, 6), nn.ReLU()), nn.Linear(6, 4)


def run(make: Any = net, out: Path | None = None, watcher: Any = None, **settings: Any) -> fedkin.Result:
    return fedkin.run(
        Flattening(), small_federation(), model=make(), training=TRAINING, out=out, watcher=watcher,
        settings={"checkpoint_every": 1, "mode": "one-by-one", **settings},
    )  # fmt: skip


def assert_same(one: fedkin.Result, other: fedkin.Result) -> None:
    assert one.models.keys() == other.models.keys()
    for id, params in one.models.items():
        assert list(params) == list(other.models[id])
        for name, tensor in params.items():
            assert torch.equal(tensor, other.models[id][name]), f"{id}: {name}"
    assert one.scores == other.scores


@pytest.fixture(scope="module")
def whole() -> fedkin.Result:
    return run()


@pytest.mark.parametrize(
    "how", [{"engine": "loopback"}, pytest.param({"mode": "workers", "workers": 1}, marks=pytest.mark.slow)]
)
def test_a_method_that_flattens_gives_the_same_bits_in_every_engine(whole: fedkin.Result, how: dict[str, Any]) -> None:
    assert_same(whole, run(**how))


@pytest.mark.parametrize("make", [net, plain])
def test_stacked_clients_hand_on_the_net_s_order(make: Any) -> None:
    alone, stacked = run(make), run(make, mode="fast")
    for id, params in alone.models.items():
        assert list(params) == list(stacked.models[id])
        for name, tensor in params.items():
            torch.testing.assert_close(stacked.models[id][name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("round", [1, 2, 3, 4])
@pytest.mark.parametrize("engine", ["local", "loopback"])
def test_a_method_that_flattens_resumes_as_if_it_had_not_been_cut(
    whole: fedkin.Result, tmp_path: Path, engine: str, round: int
) -> None:
    with pytest.raises(RuntimeError, match="cut"):
        run(out=tmp_path / "run", watcher=CutAt(round), engine=engine)
    assert_same(whole, run(out=tmp_path / "run", engine=engine))
