"""A server with clients over a network: what a simulation of the same experiment computes, bit for bit."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fedkin import methods
from fedkin.engines import LocalEngine, Score
from fedkin.errors import MethodError
from fedkin.flow import ClientFlow, Message, phase
from fedkin.forms import COUNT, NET
from fedkin.methods.fedavg import FedAvg
from fedkin.network.messages import Scored
from fedkin.network.server import score_of
from fedkin.network.status import FILE, read_status
from fedkin.report.collect import collect
from fedkin.tasks import Task
from fedkin.views import ClientView
from network.called import CalledNetwork
from network.federations import Clients, Killed, equal, experiment, kill, own_metric, own_models, simulated, state_in
from network.memory import MemoryNetwork
from support import Losing, same

# The clients of fedavg-ft train a model of their own whenever they use one.
OTHERS = ("fedprox", "sfmtl-graph", "flt-same", "tfl", "cfl", "ifca", "fedproto", "fedrep", "fedavg-ft")
CALLED = ("local", "fedavg", "tfl", "sfmtl-graph", "ifca", "fedproto")  # one for each pattern of traffic with a server
METHODS = [
    ("fedavg", MemoryNetwork),
    *(pytest.param(name, MemoryNetwork, marks=pytest.mark.slow) for name in OTHERS),
    *(pytest.param(name, CalledNetwork, marks=pytest.mark.slow) for name in CALLED),
]
UNLIKE = {"name": "mixed", "bodies": ["small-plain", "mlp"], "width": 8}


@pytest.mark.parametrize(("method", "network"), METHODS)
def test_it_is_the_simulation_bit_for_bit(method: str, network: type[Any], tmp_path: Path) -> None:
    sections: dict[str, Any] = {"model": UNLIKE, "network": {"clients": [f"c0{number}" for number in range(8)]}}
    plan = experiment(method, **(sections if method == "fedproto" else {}))
    here, there = simulated(plan, tmp_path / "here"), Clients(plan, tmp_path, network())
    result = there.whole()
    equal(result, here)
    assert not result.outcomes
    assert result.intervals() == here.intervals() != {}
    sure = [collect([tmp_path / name])["runs"][0]["sure"] for name in ("here", "there")]
    assert sure[0]["own"] == sure[1]["own"]
    kept = [state_in(tmp_path / name) for name in ("here", "there")]
    assert same(kept[0]["server"], kept[1]["server"])
    assert same(kept[0]["clients"], there.states())
    assert kept[1]["clients"] == {}
    server, client = (read_status(folder / FILE) for folder in (tmp_path / "there", there.root / "c00"))
    for status, role in ((server, "server"), (client, "client")):
        assert (status.role, status.state, status.round, status.federation) == (role, "ended", 3, "tiny")
    hashes, others = own_models(there.root, here), server.others
    assert {name: other.model for name, other in others.items()} == hashes
    assert all(other.round == 3 and other.bytes_in and other.bytes_out for other in others.values())
    assert server.rounds == client.others["server"].round == 3
    assert client.others["server"].bytes_out > 0
    if method == "ifca":
        assert len({(other.group, other.model) for other in others.values()}) == len({*hashes.values()}) > 1


@pytest.mark.slow
@pytest.mark.usefixtures("forgotten")
def test_further_metrics_are_those_of_the_simulation_bit_for_bit(tmp_path: Path) -> None:
    plan = own_metric(clients=4)
    here = simulated(plan, tmp_path / "here")
    assert len({*here.metrics["wrong-share"].values()}) > 1
    result = Clients(plan, tmp_path).whole()
    equal(result, here)
    assert result.metrics == here.metrics
    assert result.summary["metrics"] == here.summary["metrics"]
    assert list(result.metrics) == ["balanced-accuracy", "wrong-share"]


CLASSES, NUMBERS, MASKS = Task(3, (4,)), Task.regression(1, (4,)), Task(3, (1, 6, 5), "segmentation")


@pytest.mark.parametrize(
    ("task", "score", "right"),
    [
        (CLASSES, Score(5, float("nan"), 5, further=(0.5,)), True),  # the loss of a model that has diverged
        (CLASSES, Score(5, 0.5, 5, (0.5,) * 1000), False),
        (CLASSES, Score(2**30, 0.5, 2**30), False),
        (CLASSES, Score(5, 0.5, 5, further=(1.7e308,)), False),
        (CLASSES, Score(5, 1.7e308, 5), False),
        (CLASSES, Score(5, 0.5, 5, digest=((0.5,) * 1000,)), False),
        (NUMBERS, Score(5, 0.5, 0, (0.5,)), True),
        (NUMBERS, Score(0, float("nan"), 0), True),
        (NUMBERS, Score(5, 0.5, 0, (float("nan"),)), False),
        (NUMBERS, Score(5, 0.5, 0, (1e200,)), False),
        (NUMBERS, Score(5, 0.5, 0, ()), False),
        (NUMBERS, Score(6, 0.5, 0, (0.5,)), False),
        (MASKS, Score(5, 0.5, 0, (0.5,), ((3, 4), (6, 8))), True),
        (MASKS, Score(5, 0.5, 0, (None,), ()), True),
        (MASKS, Score(5, 0.5, 0, (2.0,), ((3, 4), (6, 8))), False),
        (MASKS, Score(5, 0.5, 0, (0.5,), ((3, 4), (6, 8, 9))), False),
        (MASKS, Score(5, 0.5, 0, (0.5,), ((3, 4),)), False),
        (MASKS, Score(5, 0.5, 0, (0.5,), ((3, None), (6, 8))), False),  # type: ignore[arg-type]
        (MASKS, Score(5, 0.5, 0, (0.5,), ((3, float("nan")), (6, 8))), False),
    ],
)
def test_scores_are_those_of_the_task(task: Task, score: Score, right: bool) -> None:
    lists = {"figures": list(score.figures), "digest": list(map(list, score.digest)), "further": list(score.further)}
    told = Scored.model_validate({"n": score.n, "loss": score.loss, "right": score.right, **lists})
    with nullcontext() if right else pytest.raises(MethodError, match="not a score"):
        assert repr(score_of(told, task, len(score.further), most=5)) == repr(score)


def without(rows: list[Any], client: str) -> list[Any]:
    return sorted(row for row in rows if client not in row)


@pytest.mark.slow
def test_a_client_that_is_gone_is_missing_and_the_others_are_as_with_that_dropout(tmp_path: Path) -> None:
    """And when it comes back, it takes part again."""
    plan = experiment("sfmtl-graph", clients=6, rounds=4)
    lose = Losing(lambda envelope: envelope.receiver == "c03" and envelope.round in (2, 3))
    here = simulated(plan, tmp_path / "here", make=lambda setup: LocalEngine(setup, transport=lose))

    def back() -> None:
        there.start("c03")
        there.network.opened("c03")

    with Clients(plan, tmp_path) as there:
        result = there.whole(then={1: lambda: there.stop("c03"), 3: back})
    assert "c03 is here again" in there.said["server"]
    assert without(result.clients, "c03") == without(here.clients, "c03")
    assert without(result.messages, "c03") == without(here.messages, "c03")
    assert same(*(state_in(tmp_path / name)["server"] for name in ("here", "there")))
    assert [row[0] for row in result.clients if row[1] == "c03"] == [1, 4]
    reasons = [f"{row[6]}: {row[7]}" for row in result.messages if row[1] == "c03" and row[6]]
    assert reasons[0] == "gone: the connection is lost"
    assert set(reasons[1:]) == {"gone: not connected"}
    assert result.summary["missing"]["kinds"] == {"gone": len(reasons)}


class TalksToo(FedAvg):
    """A user's FedAvg in which one client sends a field that is not declared."""

    name = "talks-too"

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        reply = yield from super().train(client, message)
        return Message(**reply, more=1) if client.id == "c01" else reply


@pytest.mark.parametrize("errors", ["missing", "stop"])
def test_what_is_not_declared_is_refused_as_in_the_simulation(
    errors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods.METHODS, TalksToo.name, TalksToo)
    plan = experiment(TalksToo.name, clients=3, rounds=2, run={"errors": errors})
    results = simulated(plan, tmp_path / "here"), Clients(plan, tmp_path).whole()
    for result in results:
        missing = [(*row[:4], *row[6:]) for row in result.messages if row[6]]
        assert missing == [(r, "c01", "server", "train", "refused", "more is not declared") for r in (1, 2)]
    # Over a network the message is not sent, and costs no bytes.
    sent = {"bytes": 0, "floats": 0, "messages": 0}
    here, there = ([row | sent for row in result.rounds] for result in results)
    assert here == there


def test_after_a_deadline_it_begins_with_those_who_came(tmp_path: Path) -> None:
    network = {"clients": ["c00", "c01", "c02"], "begin_after": 1.0}
    with Clients(experiment(clients=3, rounds=1, network=network), tmp_path) as there:
        there.start("c00", "c01")
        result = there.serve()
        there.ended()
    assert {row[1] for row in result.clients} == {"c00", "c01"}
    assert "2 of 3 clients are ready: c00, c01; missing: c02" in there.said["server"]
    assert "1 clients have not come in time, and are left out" in there.said["server"]


@pytest.mark.parametrize(
    ("method", "network"),
    [
        ("tfl", MemoryNetwork), pytest.param("ifca", MemoryNetwork, marks=pytest.mark.slow),
        pytest.param("sfmtl-graph", CalledNetwork, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_server_and_a_client_that_begin_anew_go_on_and_end_equal(
    method: str, network: type[Any], tmp_path: Path
) -> None:
    """The server is killed, and stopped, and a client with it."""
    plan = experiment(method, clients=4, rounds=4, network={"grace": 60.0})
    whole = simulated(plan, tmp_path / "whole")
    with Clients(plan, tmp_path, network()) as there:
        there.start()
        with pytest.raises(Killed):
            there.serve(then={3: kill})
        there.stopped(3)
        there.stop("c01")
        there.start("c01")
        result = there.serve()
        there.ended()
        assert same(state_in(tmp_path / "whole")["clients"], there.states())
        assert there.serve().summary == result.summary  # what is finished is read
    equal(result, whole)
    # The clients had the state of round 3, and the server had not.
    assert "going back to the state before round 3, as the server has" in there.said["c00"]


def test_a_round_with_too_few_replies_is_undone_at_the_clients(tmp_path: Path) -> None:
    with Clients(experiment("sfmtl-graph", clients=3, run={"min_replies": 3}), tmp_path) as there:
        there.start()
        result = there.serve(then={1: lambda: there.stop("c01")})
        there.join("c00", "c02")
        assert [bool(row.get("skipped")) for row in result.rounds] == [False, True, True]
        # The states of the rounds that were undone are not kept.
        files = {name: [path.stem for path in (there.root / name).glob("*/round-*")] for name in ("c00", "c02")}
        assert files == {"c00": ["round-000001"], "c02": ["round-000001"]}
    # A model that nobody has changed: the same scores again.
    scores = [sorted(row[2:] for row in result.clients if row[0] == round and row[1] != "c01") for round in (1, 2, 3)]
    assert scores[0] == scores[1] == scores[2]
