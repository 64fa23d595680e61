"""A page stays small enough to send, whatever the number of clients and runs."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedkin.records.files import json_bytes, read_json
from fedkin.records.run import read_run
from fedkin.report import collect as collecting
from fedkin.report import graphs, write_report
from fedkin.report.features import FeatureBudget
from report.fake_runs import data_in, make_run


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("size") / "run", clients=1000, rounds=2, groups=12)


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients stand at random: their places take as many bytes as those that springs find, and less time."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(graphs, "places", lambda links, seed: rng.uniform(-1, 1, (links.shape[0], 2)))


@pytest.mark.slow
def test_many_runs_of_a_thousand_clients_stay_below_15_mb(
    thousand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """19 graph methods and 3 seeds, each with clients of its own; all runs have the records of one."""
    for seed in range(3):
        # Values of a thousand clients are made into text once for a seed.
        federation = read_json(thousand / "federation.json") | {"name": f"made {seed}"}
        for facts in federation["clients"].values():
            facts["n_train"] += seed
        summary = json_bytes(read_json(thousand / "summary.json") | {"method": "its name", "seed": seed})
        clients = json_bytes(federation)
        for method in range(19):
            folder = tmp_path / "many" / f"m{method}-seed{seed}"
            shutil.copytree(thousand, folder, copy_function=os.link)
            changed = summary.replace(b'"its name"', f'"m{method}"'.encode())
            for name, data in (("summary.json", changed), ("federation.json", clients)):
                (folder / name).unlink()
                (folder / name).write_bytes(data)
    # The same records give the same graphs: once is enough.
    for name in ("graph_of", "sharing_of"):
        real = getattr(collecting, name)
        once = cache(lambda *more, real=real: real(read_run(thousand), sorted(read_run(thousand).client_facts), *more))
        monkeypatch.setattr(collecting, name, lambda run, ids, *more, once=once: once(*more))
    out = write_report([tmp_path / "many"], tmp_path / "report.html")
    data = data_in(out.read_text(encoding="utf-8"))
    assert len(data["runs"]) == 57
    assert len(data["federations"]) == 3
    assert all(run["graph"]["frames"][-1]["round"] == 2 for run in data["runs"])
    # Half a megabyte for the heads and as much for the points in feature space, which these runs do not have.
    assert out.stat().st_size < 14_000_000


@pytest.mark.parametrize("count", [1, 5, 15, 57, 200])
def test_all_runs_share_the_page(count: int) -> None:
    side, rounds = graphs.matrix_side(count), graphs.rounds_kept(1000, count)
    assert count * rounds * side**2 <= 40 * 200 * 200
    assert count * rounds * 1000 <= 100_000 or rounds == 1
    runs: Any = [SimpleNamespace(seed=0, features=dict.fromkeys(range(8)))] * count
    features = FeatureBudget.shared(runs)
    assert count * features.rounds * features.heads**2 <= 400_000
    if count == 1:
        assert (rounds, side, features.rounds, features.heads) == (40, 200, 6, 100)


@pytest.mark.slow
def test_graphs_of_too_many_clients_are_not_read_into_matrices_and_the_page_says_where_they_are(
    thousand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LARGEST", 999)
    monkeypatch.setattr(graphs, "dense", lambda matrix: pytest.fail("a matrix of all pairs"))
    text = write_report([thousand], tmp_path / "report.html").read_text(encoding="utf-8")
    run = data_in(text)["runs"][0]
    assert run["graph"] is None
    assert run["sharing"] is None
    assert "The graphs of so many clients are not drawn here" in text
