"""A year of a federation in processes over Zenoh: equal to the simulation of the same events.

One joins, one leaves, one comes back with other data, two are killed, and the server moves.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedkin.data.own import own_client
from fedkin.federation import Change, Federation
from fedkin.records.events import replayed
from fedkin.records.run import read_run
from fedkin.running.loop import execute
from network.federations import experiment, write_samples
from network.processes import Place, ended, kill, made
from town import Town

ROUNDS = 200


def _until(place: Place, name: str, words: str) -> None:
    with place.follow(name) as log:
        log.until(words)


@pytest.mark.slow
def test_a_year_is_the_simulation_of_its_events(tmp_path: Path, town: Town) -> None:
    plan = experiment("flt-same", clients=8, rounds=ROUNDS)
    whole = plan.federation(Path())
    names = sorted(whole)
    six, new, spare = names[:6], names[6], names[7]  # the spare one's samples are those with which one comes back
    network = {"clients": six, "newcomers": True, "classes": 10, "deadline": 300.0, "grace": 120.0}
    with made(tmp_path, {**plan.table, "network": network}, town, whole) as place:
        run = tmp_path / "run"
        server = place.serve("--out", str(run))
        running = {name: place.join(name) for name in six}
        _until(place, six[0], "round 5:")
        running[new] = place.join(new)
        kill(running[six[1]])
        running[six[1]] = place.join(six[1])
        _until(place, new, "round ")
        for name in (six[2], six[3]):
            ended(place, {name: place.leave(name)})
            ended(place, {name: running.pop(name)})
        write_samples(tmp_path, six[3], replace(whole[spare], id=six[3]))
        running[six[3]] = place.join(six[3])
        _until(place, "server", f"{six[3]} takes part from the next round on")
        kill(server, running[six[4]])
        moved = tmp_path / "elsewhere"
        shutil.move(run, moved)
        server = place.serve("--resume", str(moved))
        running[six[4]] = place.join(six[4])
        ended(place, {"server": server, **running})
        result = read_run(moved)
        clients = replayed(place.clients, result.federation)
        back, _ = own_client(six[3], str(tmp_path / f"{six[3]}.npz"), classes=10, seed=plan.run.seed)
        again = clients[six[3]].away[0][1]
        assert again is not None
        change = Change(again + 1, back.train, back.test)
        clients = Federation(
            [replace(c, changes=(change,)) if id == six[3] else c for id, c in clients.items()],
            clients.task, clients.name,
        )  # fmt: skip
        here = execute(place.plan.setup(clients), place.plan.run, name="tiny", folder=tmp_path / "here")
    assert result.rounds == here.rounds
    assert result.messages == here.messages
    assert sorted(result.clients) == sorted(here.clients)
    what = [kind for row in result.rounds for kind in row.get("events", {})]
    assert sorted(what) == ["joined", "joined", "left", "left"], result.summary.get("events")
    print(*result.summary["events"], sep="\n")
