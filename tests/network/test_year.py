"""A year of a federation in processes over Zenoh: equal to the simulation of the same events.

One joins, one leaves, one comes back with other data, one drifts away, two are killed, and the server moves.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from certificates import Town
from fedkin.data.own import own_client
from fedkin.federation import Change, Client, Federation, Samples
from fedkin.records.events import replayed
from fedkin.records.run import read_run
from fedkin.running.loop import execute
from network.federations import experiment, write_samples
from network.processes import Follow, ended, kill, made

ROUNDS = 200


def both(one: Client, other: Client) -> Client:
    """A client with the samples of two."""

    def joined(*parts: Samples) -> Samples:
        x = torch.cat([part.inputs(slice(None)) for part in parts])
        return Samples(x, torch.cat([part.labels() for part in parts]))

    return replace(one, train=joined(one.train, other.train), test=joined(one.test, other.test))


@pytest.mark.slow
def test_a_year_is_the_simulation_of_its_events(tmp_path: Path, town: Town) -> None:
    plan = experiment("flt-same", clients=10, rounds=ROUNDS)
    whole = plan.federation(Path())
    names = sorted(whole)
    # The spare one's samples are those with which one comes back, and the last one's those that one drifts to.
    six, new, spare, other = names[:6], names[6], names[7], names[9]
    network = {"clients": six, "newcomers": True, "reread": True, "classes": 10, "deadline": 300.0, "grace": 120.0}
    with made(tmp_path, {**plan.table, "network": network}, town, whole) as place:
        run = tmp_path / "run"
        server = place.serve("--out", str(run))
        running = {name: place.join(name) for name in six}
        Follow(place, six[0]).until("round 5:")
        running[new] = place.join(new)
        kill(running[six[1]])
        running[six[1]] = place.join(six[1])
        Follow(place, new).until("round ")
        for name in (six[2], six[3]):
            ended(place, {name: place.leave(name)})
            ended(place, {name: running.pop(name)})
        write_samples(tmp_path, six[3], replace(whole[spare], id=six[3]))
        running[six[3]] = place.join(six[3])
        Follow(place, "server").until(f"{six[3]} takes part from the next round on")
        grown = both(whole[six[0]], whole[other])
        write_samples(tmp_path, six[0], grown)
        os.utime(tmp_path / f"{six[0]}.npz", (0, 0))  # as if it had been there for long: nobody is writing it
        Follow(place, "server").until(f"{six[0]} has other samples")
        kill(server, running[six[4]])
        moved = tmp_path / "elsewhere"
        shutil.move(run, moved)
        server = place.serve("--resume", str(moved))
        running[six[4]] = place.join(six[4])
        Follow(place, six[0]).until("a test says that new samples here are unlike those of this client's group")
        ended(place, {"server": server, **running})
        result = read_run(moved)
        clients = replayed(place.clients, result.federation)
        back, _ = own_client(six[3], str(tmp_path / f"{six[3]}.npz"), classes=10, seed=plan.run.seed)
        again = clients[six[3]].away[0][1]
        assert again is not None
        drifted, _ = own_client(six[0], str(tmp_path / f"{six[0]}.npz"), classes=10, seed=plan.run.seed)
        ((since, *_),) = result.federation["clients"][six[0]]["renewed"]
        changes = {
            six[3]: (Change(again + 1, back.train, back.test),), six[0]: (Change(since, drifted.train, drifted.test),)
        }  # fmt: skip
        clients = Federation(
            [replace(c, changes=changes.get(id, ())) for id, c in clients.items()], clients.task, clients.name
        )
        here = execute(place.plan.setup(clients), place.plan.run, name="tiny", folder=tmp_path / "here")
    assert result.rounds == here.rounds
    assert result.messages == here.messages
    assert sorted(result.clients) == sorted(here.clients)
    what = [kind for row in result.rounds for kind in row.get("events", {})]
    assert sorted(what) == ["drifted", "joined", "joined", "left", "left"], result.summary.get("events")
    print(*result.summary["events"], sep="\n")
