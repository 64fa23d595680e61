"""What each participant has after a federation: its own model, in its own folder, to use without the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.invoked import refused, said
from fedkin.data.sources.tables import Csv
from fedkin.engines import Setup
from fedkin.errors import RunError
from fedkin.federation import Client
from fedkin.network.status import FILE, read_status
from fedkin.records.models import digest_of
from fedkin.running.experiment import Experiment
from fedkin.running.export import csv_format_of
from fedkin.running.model_loader import load
from fedkin.running.networked import settings_of, setup_of, take_home, taking_home
from network.federations import NOWHERE, Clients, experiment, simulated
from support import same


@pytest.mark.slow
def test_one_that_is_away_at_the_end_has_the_newest_model_that_it_had(tmp_path: Path) -> None:
    """It was written before the round's score was told, so that a kill costs nothing."""
    plan = experiment(clients=3, rounds=3)
    after_one = simulated(plan.with_changes(**{"training.rounds": 1}), tmp_path / "here")

    def leave() -> None:
        assert same(load(there.root / "c01").stored["c01"], after_one.models["c01"])
        there.stop("c01")

    with Clients(plan, tmp_path) as there:
        there.start()
        there.serve(then={1: leave})
        there.join()
    assert f"its model after round 1 of 3 is kept: fedkin export {tmp_path}" in "".join(there.said["c01"])
    assert "the model of c01 after round 1" in said("export", tmp_path / "nodes" / "c01", "--out", tmp_path / "c01.pt2")
    assert same(load(tmp_path / "nodes" / "c01").stored["c01"], after_one.models["c01"])
    assert not same(load(tmp_path / "nodes" / "c00").stored["c00"], after_one.models["c00"])
    for folder in ("there", "nodes/c00"):
        model = read_status(tmp_path / "nodes" / "c00" / FILE).model
        assert model[:12] in said("net", "status", tmp_path / folder, columns=200)
    with pytest.raises(RunError, match="each has its own: fedkin export NAME-state"):
        load(tmp_path / "there")


def agreed(plan: Experiment) -> tuple[str, Setup, None, Client]:
    """The settings, the setup, no encoding, and the client c00."""
    federation, settings = plan.federation(NOWHERE), settings_of(plan)
    return settings, setup_of(settings, federation.task).equipped(), None, federation["c00"]


def test_how_a_table_is_read_goes_home_with_the_model(tmp_path: Path) -> None:
    plan = experiment(clients=2, rounds=2)
    settings, setup, *others = agreed(plan)
    for name, data, decimal in (("a", plan.data, None), ("b", Csv(path=Path("x"), target="y", decimal=","), ",")):
        taking_home(replace(plan, data=data))(tmp_path / name, settings, setup, *others, dict(setup.net.initial), 1)
        assert csv_format_of(load(tmp_path / name))["decimal"] == decimal


@pytest.mark.slow
def test_a_model_counts_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first evaluation there is none, nor after a kill while one is written; the next one is whole."""
    plan, home = experiment(clients=2, rounds=2), tmp_path / "nodes" / "c00"
    home.mkdir(parents=True)  # the command does it
    with Clients(plan, tmp_path) as there:
        there.start()
        there.heard("c00", "waiting for")
        assert "no model yet: a participant of a federation keeps its own" in refused("export", home)
        there.serve()
        there.join()
    params = load(home).stored["c00"]
    given = (home, *agreed(plan), {name: -tensor for name, tensor in params.items()}, 2)
    with monkeypatch.context() as patch:
        patch.setattr("fedkin.running.networked.write_seal", _killed)
        with pytest.raises(KeyboardInterrupt):
            take_home(*given)
    assert "no model yet" in refused("export", home)
    assert take_home(*given) != digest_of(params)
    assert same(load(home).stored["c00"], given[-2])


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt
