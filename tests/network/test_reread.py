"""Tables that change while a federation runs: new rows count from the next round on, as in a simulation of the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkin.errors import ConfigError
from fedkin.federation import Change, Federation
from fedkin.running.experiment import Experiment
from fedkin.running.loop import execute
from fedkin.running.networked import read_shared, settings_of
from network.federations import NOWHERE, Owner
from network.test_tables import Hospitals, plan_for
from stays import HOSPITALS
from support import changed, present


def rows(count: int, seed: int, shift: float = 0.0, begin: str = "2026-01-01") -> pd.DataFrame:
    """Rows of one hospital; all hospitals are alike but for the shift."""
    rng = np.random.default_rng(seed)
    died = rng.random(count) < 0.4
    return pd.DataFrame({
        "age": rng.normal(60, 9, count) + 6 * died + shift, "dose": rng.normal(2, 1, count) - died - shift / 9,
        "admitted": pd.date_range(begin, periods=count, freq="h").strftime("%Y-%m-%d %H:%M"),
        "died": np.where(died, "yes", "no"),
    })  # fmt: skip


def plan_of_rows(folder: Path, method: str = "fedavg", **settings: Any) -> Experiment:
    plan = plan_for(folder, method, data={"kind": "classification", "time": "admitted"})
    changes = {"training.rounds": 6, "network.reread": True}
    return plan.with_changes(**changes, **{f"method.{name}": value for name, value in settings.items()})


def write(folder: Path, name: str, table: pd.DataFrame) -> None:
    """Write a file that has not been changed for a minute."""
    path = folder / f"{name}.csv"
    aside = path.with_suffix(".new")
    table.to_csv(aside, index=False)
    before = path.stat().st_mtime if path.exists() else aside.stat().st_mtime - 3600
    os.utime(aside, (before + 60, before + 60))
    aside.replace(path)


def begun(folder: Path, method: str = "fedavg", **settings: Any) -> Hospitals:
    """Hospitals of 150 rows each."""
    (folder / "stays").mkdir()
    for seed, name in enumerate(HOSPITALS):
        write(folder / "stays", name, rows(150, seed))
    return Hospitals(plan_of_rows(folder / "stays", method, **settings), folder)


def grow(there: Hospitals, count: int = 90, shift: float = 0.0) -> None:
    """Give the north new rows."""
    old = pd.read_csv(there.stays / "north.csv")
    write(there.stays, "north", pd.concat([old, rows(count, 100 + len(old), shift, "2026-03-01")]))


def replayed(there: Hospitals, first: Federation, round: int) -> Any:
    """The simulation in which the north has its other samples from this round on."""
    kept, new = present(read_shared(there.folder / "there")), there.table("north")
    new.keep(kept.columns)
    after, _ = new.client(kept.agreed)
    federation = changed(first, "north", changes=(Change(round, after.train, after.test),))
    plan = there.plan.with_changes(**{"run.mode": "one-by-one"})
    return execute(plan.setup(federation), plan.run, name=plan.name, folder=there.folder / "here")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "settings"), [("fedavg", {}), ("flt-same", {"regroup_every": 1})])
def test_new_rows_count_as_in_a_simulation(method: str, settings: Any, tmp_path: Path) -> None:
    """Also when the server stops after the round in which they came, and goes on."""
    there = begun(tmp_path, method, **settings)
    first = there.plan.federation(NOWHERE)

    def more() -> None:
        grow(there)
        there.heard("server", "north has other samples")

    there.start()
    there.stopped(3, then={2: more})
    result = there.serve()
    there.ended()
    ((round, train, test),) = result.federation["clients"]["north"]["renewed"]
    assert (round, train, test) == (3, 192, 48)
    assert f"north: 192 training samples from round {round} on (120 before)" in there.said["server"]
    here = replayed(there, first, round)
    assert result.rounds == here.rounds
    assert result.messages == here.messages


@pytest.mark.slow
def test_a_site_is_told_that_its_new_rows_are_unlike_its_group(tmp_path: Path) -> None:
    there = begun(tmp_path, "flt-same", regroup_every=1)

    def more() -> None:
        grow(there, 600, shift=40.0)
        there.heard("server", "north has other samples")

    result = there.whole(then={2: more})
    assert next(row["events"] for row in result.rounds if "events" in row) == {"drifted": ["north"]}
    warned = [sum(line.startswith("a test says") for line in there.said[name]) for name in HOSPITALS]
    assert warned == [1, 0, 0]


@pytest.mark.slow
def test_a_file_that_is_no_table_any_more_changes_nothing(tmp_path: Path) -> None:
    there, owner = begun(tmp_path), Owner("yes")
    there.start(consent=owner)
    result = there.serve(then={2: lambda: write(there.stays, "north", rows(60, 0).drop(columns="dose"))})
    there.ended()
    assert "renewed" not in result.federation["clients"]["north"]
    assert sum("has changed: the same facts about its new samples" in line for line in owner.told) == len(HOSPITALS)
    assert "the earlier samples count until the file is correct" in "".join(there.said["north"])


def test_one_that_is_started_again_with_new_rows_counts_them_from_the_next_round_on(tmp_path: Path) -> None:
    there = begun(tmp_path)

    def back() -> None:
        there.stop("north")
        grow(there)
        there.start("north")
        there.heard("server", "north has other samples")

    result = there.whole(then={2: back})
    assert result.federation["clients"]["north"]["renewed"] == [[3, 192, 48]]
    assert sum(row["missing"] for row in result.rounds if "missing" in row) == 0


def test_what_cannot_be_read_again_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stays").mkdir()
    write(tmp_path / "stays", "north", rows(20, 0))
    plan = plan_of_rows(tmp_path / "stays")
    with pytest.raises(ConfigError, match=r"reread: it needs a table with data\.time or data\.split"):
        settings_of(plan.with_changes(**{"data.time": None}))
    with pytest.raises(ConfigError, match=r"reread: \[privacy\] counts for samples that stay"):
        settings_of(plan.with_changes(**{"privacy.clip": 1.0, "privacy.noise": 1.0}))
