"""Which runs belong together: what a method is called, and the Local and FedAvg that a run is measured against."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.report.collect import collect
from fedkin.report.runs import labels_of
from report.fake_runs import make_run, run_in

_PATHS = st.lists(st.sampled_from(["a", "b", "main"]), min_size=2, max_size=4).map(lambda parts: Path("/", *parts))


def last(folder: Path) -> dict[str, float]:
    rows = pq.read_table(folder / "clients.parquet").to_pylist()
    final = max(row["round"] for row in rows)
    return {row["client"]: row["accuracy"] for row in rows if row["round"] == final}


def expected(run: Path, local: Path) -> Any:
    own, alone = last(run), last(local)
    return pytest.approx([own[id] - alone[id] for id in sorted(own)], abs=1e-6)


def change(folder: Path, section: str) -> Path:
    """A setting of this section that no other run has."""
    with (folder / "experiment.toml").open("a") as file:
        file.write(f"[{section}]\nother = 1\n")
    return folder


# -- what methods are called ----------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        _PATHS,
        st.tuples(st.sampled_from(["local", "mapl"]), st.integers(0, 1), st.sampled_from(["", "mine", "mine@self"])),
        min_size=1,
    )
)
def test_no_two_runs_have_one_label_and_seed(kinds: dict[Path, tuple[str, int, str]]) -> None:
    runs = [
        SimpleNamespace(folder=folder, method=method, seed=seed, label=label)
        for folder, (method, seed, label) in kinds.items()
    ]
    labels = labels_of(cast(Any, runs))
    assert len({(label, run.seed) for label, run in zip(labels, runs, strict=True)}) == len(runs)
    for label, run in zip(labels, runs, strict=True):
        name = run.label or run.method
        mine = [other.seed for other in runs if (other.label or other.method) == name]
        assert (label == name) == (len(set(mine)) == len(mine))
        assert label.startswith(name)


def test_folders_of_one_name_are_told_apart_by_more_of_their_paths(tmp_path: Path) -> None:
    places = [make_run(tmp_path / name / "main" / "local-seed0", "local") for name in ("a", "b")]
    data = collect(places)
    assert [method["label"] for method in data["methods"]] == ["local (a/main)", "local (b/main)"]
    assert [method["method"] for method in data["methods"]] == ["local", "local"]
    assert [row["seeds"] for row in data["table"]] == [1, 1]
    assert "seeds" not in data["sentence"]


def test_a_folder_named_twice_is_one_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "main" / "local-seed0", "local")
    (tmp_path / "link").symlink_to(folder.parent, target_is_directory=True)
    data = collect([folder, folder.parent, tmp_path / "link"])
    assert [run["label"] for run in data["runs"]] == ["local"]


# -- what a run is measured against ---------------------------------------------------------------------------------


def test_gain_is_against_the_local_beside_a_run(tmp_path: Path) -> None:
    for name, skill in (("a", 0.4), ("b", 0.8)):
        make_run(tmp_path / name / "local-seed0", "local", skill=skill)
        make_run(tmp_path / name / "fedavg-seed0", "fedavg")
    data = collect([tmp_path / "a", tmp_path / "b"])
    for name in ("a", "b"):
        runs = (tmp_path / name / f"{method}-seed0" for method in ("fedavg", "local"))
        assert run_in(data, f"fedavg ({name})")["gain"] == expected(*runs)
    hurt = {row["label"]: row["hurt"] and row["hurt"][0] for row in data["table"]}
    assert hurt["fedavg (a)"] == 0
    assert hurt["fedavg (b)"] == 1


@pytest.mark.parametrize("differs", ["", "rounds", "training", "model", "scenario"])
def test_a_local_elsewhere_counts_with_the_same_settings(tmp_path: Path, differs: str) -> None:
    local = make_run(tmp_path / "a" / "local-seed0", "local", rounds=5 if differs == "rounds" else 4)
    run = make_run(tmp_path / "b" / "fedavg-seed0", "fedavg")
    if differs not in ("", "rounds"):
        change(local, differs)
    data = collect([local, run])
    told = "without a comparable run of Local"
    if differs:
        assert run_in(data, "fedavg")["gain"] is None
        assert told in data["sentence"]
    else:
        assert run_in(data, "fedavg")["gain"] == expected(run, local)
        assert told not in data["sentence"]


def test_beside_a_run_its_settings_decide_between_two_locals(tmp_path: Path) -> None:
    run = make_run(tmp_path / "fedavg", "fedavg")
    tuned = change(make_run(tmp_path / "local-1", "local", skill=0.8), "training")
    # A comparison may train every method in its own way.
    assert run_in(collect([tmp_path]), "fedavg")["gain"] == expected(run, tuned)
    plain = make_run(tmp_path / "local-2", "local", skill=0.5)
    assert run_in(collect([tmp_path]), "fedavg")["gain"] == expected(run, plain)
    change(plain, "model")
    assert run_in(collect([tmp_path]), "fedavg")["gain"] is None
