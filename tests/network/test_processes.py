"""Participants as processes over Zenoh with mutual TLS: what a simulation computes, and who is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from certificates import Town, new_town, save
from fedkin.network.join_file import read_join, write_join
from fedkin.network.status import FILE, read_status
from network.federations import state_in
from network.processes import Follow, Place, ended, equal, place_for, rows, simulated
from support import same

pytestmark = pytest.mark.slow

UNLIKE = {"name": "mixed", "bodies": ["small-plain", "small-residual", "mlp"], "width": 32}
# Two clusters by classes, and what tells them apart where bodies differ.
CLASSES: dict[str, dict[str, Any]] = {
    "scenario": {"name": "mapl", "clients": 8, "clusters": 2, "per_class": 20, "test_per_class": 6},
    "training": {"lr": 0.1, "local_steps": 10}, "run": {"network": "full"},
}  # fmt: skip
# Two groups, in which clients have the digits upright or on their side, and training that tells them apart at once.
PLANTED: dict[str, Any] = {
    "scenario": {"rotations": [0, 90], "mask_rate": 0.0}, "model": {"name": "mlp", "hidden": [32]},
    "training": {"lr": 0.3, "local_steps": 10},
}  # fmt: skip


def test_peers_are_the_simulation_bit_for_bit(tmp_path: Path, town: Town) -> None:
    sections: dict[str, Any] = {"method": {"warmup": 2}, "model": UNLIKE, **CLASSES}
    with place_for(tmp_path, town, "mapl", peers=True, **{**PLANTED, **sections}) as place:
        here = simulated(place, tmp_path / "here")
        place.whole(None)
    known = state_in(tmp_path / "here")["clients"]
    learned: Any = networkx.Graph()
    for name in place.names:
        folder = tmp_path / f"{name}-state"
        weights = read_status(folder / FILE).weights
        learned.add_weighted_edges_from((name, other, weights[other]) for other in weights.keys() - {name})
        assert same(state_in(folder)["clients"][name], known[name]), name
        assert sorted(rows(folder)) == sorted(row for row in here.messages if name in row), name
        assert (folder / "report.html").exists()
    kinds = {name: client.group for name, client in place.plan.federation(Path()).items()}
    # Small unlike nets find these edges or those by the bits of a processor (5 to 7 of 12 over 8 seeds), and none
    # that leads out of a group; 4 edges drawn by chance would lie within groups once in 30 times.
    assert learned.number_of_edges() >= 4
    assert all(kinds[one] == kinds[other] for one, other in learned.edges), learned.edges


# -- strangers ------------------------------------------------------------------------------------------------


def strangers(place: Place, town: Town) -> Iterable[tuple[str, str, dict[str, str], str]]:
    """(whose log, what it says, what it is started with, what the server says) of participants that are refused."""
    alone, other = new_town("c07"), new_town("other-ca")
    for name, identity, why in (
        ("self-signed", replace(town["c07"], key=alone.key, chain=(alone.ca,)), "not signed by the CA"),
        ("expired", town.expired("c07"), "the certificate of CN=c07 expired on"),
        ("other-ca", other.signed("c07"), "not signed by the CA of this federation: signed by CN=other-ca"),
        ("stranger", town["stranger"], "'stranger' is not a member of this federation"),
    ):
        save(identity, place.folder / name)
        yield name, why, {"key": name}, ""
    join = read_join(place.folder / "join.toml")
    text = join.experiment.replace("lr = 0.3", "lr = 0.2")
    write_join(join.model_copy(update={"experiment": text}), place.folder / "changed.toml")
    differ = "training.lr is {} here and {} there"
    yield "experiment", differ.format(0.2, 0.3), {"file": "changed.toml"}, differ.format(0.3, 0.2)
    samples = dict(np.load(place.folder / "c07.npz"))
    np.savez(place.folder / "narrow.npz", **{**samples, "x": samples["x"][..., :7]})
    differ = "inputs have shape (1, 8, 8) here and (1, 8, 7) there"
    yield "shape", differ, {"data": "narrow"}, differ


def test_who_is_refused_is_told_in_one_line_and_harms_nobody(tmp_path: Path, town: Town) -> None:
    with place_for(tmp_path, town, "fedavg", **PLANTED) as place:
        here, said = simulated(place, tmp_path / "here"), Follow(place, "server")
        processes = {"server": place.serve("--out", str(tmp_path / "there"))}
        processes |= {name: place.join(name) for name in place.names[:-1]}
        said.until("7 of 8 clients are ready")
        for name, words, given, server_says in strangers(place, town):
            process = place.join(name, **{"key": "c07", "data": "c07", **given})
            process.join(120)
            log = place.log(name)
            assert process.exitcode == 2, log
            assert words in log.splitlines()[-1], log
            assert "Traceback" not in log, log
            if server_says:
                said.until(f"c07 is refused: {server_says}")
        ended(place, {**processes, "c07": place.join("c07")})
    equal(tmp_path / "there", here)
    assert same(*(state_in(tmp_path / name)["server"] for name in ("there", "here")))
    assert (tmp_path / "there" / "report.html").exists()
