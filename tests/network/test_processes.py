"""Participants as processes over Zenoh with mutual TLS: what a simulation computes, and who is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from certificates import Town, new_town
from fedkin.network.identity import certificate_pem, write_private
from fedkin.network.join_file import read_join, write_join
from fedkin.network.status import FILE, read_status
from fedkin.records.run import Result
from network.federations import state_in
from network.processes import Place, ended, place_for, rounds, rows, simulated
from support import same

pytestmark = pytest.mark.slow

NAMES = [f"c0{number}" for number in range(8)]
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


def planted(place: Place) -> set[frozenset[str]]:
    """The clients whose samples are of one kind."""
    kinds = {name: client.group for name, client in place.plan.federation(Path()).items()}
    return {frozenset(name for name in NAMES if kinds[name] == kind) for kind in kinds.values()}


def equal(folder: Path, here: Result, kept: Path) -> None:
    """Whether the records of a server are those of a simulation."""
    assert rounds(folder) == here.rounds
    assert sorted(rows(folder, "clients")) == sorted(here.clients)
    assert sorted(rows(folder)) == sorted(here.messages)
    assert same(state_in(folder)["server"], state_in(kept)["server"])
    assert (folder / "report.html").exists()


def test_it_is_the_simulation_bit_for_bit(tmp_path: Path, town: Town) -> None:
    run = tmp_path / "there"
    with place_for(tmp_path, town, "flt-same", **PLANTED) as place:
        here = simulated(place, tmp_path / "here")
        ended(place, {"server": place.serve("--out", str(run)), **{name: place.join(name) for name in NAMES}})
    equal(run, here, tmp_path / "here")
    groups = {name: who.group for name, who in read_status(run / FILE).others.items()}
    assert {frozenset(name for name in NAMES if groups[name] == each) for each in groups.values()} == planted(place)


def test_peers_are_the_simulation_bit_for_bit(tmp_path: Path, town: Town) -> None:
    sections: dict[str, Any] = {"method": {"warmup": 2}, "model": UNLIKE, **CLASSES}
    with place_for(tmp_path, town, "mapl", peers=True, **{**PLANTED, **sections}) as place:
        here = simulated(place, tmp_path / "here")
        ended(place, {name: place.join(name) for name in NAMES})
    known = state_in(tmp_path / "here")["clients"]
    learned: Any = networkx.Graph()
    for name in NAMES:
        folder = tmp_path / f"{name}-state"
        weights = read_status(folder / FILE).weights
        learned.add_weighted_edges_from((name, other, weights[other]) for other in weights.keys() - {name})
        assert same(state_in(folder)["clients"][name], known[name]), name
        assert sorted(rows(folder)) == sorted(row for row in here.messages if name in row), name
        assert (folder / "report.html").exists()
    # Small unlike nets find these edges or those by the bits of a processor (5 to 7 of 12 over 8 seeds), and none
    # that leads out of a group; 4 edges drawn by chance would lie within groups once in 30 times.
    assert learned.number_of_edges() >= 4
    assert all(any(group.issuperset(edge) for group in planted(place)) for edge in learned.edges), learned.edges


# -- strangers ------------------------------------------------------------------------------------------------


def strangers(place: Place, town: Town) -> Iterable[tuple[str, str, list[str], str]]:
    """(whose log, what it says, what is started, what the server says) of participants that are refused."""
    alone, other = new_town("c07"), new_town("other-ca")
    for name, identity, why in (
        ("self-signed", replace(town["c07"], key=alone.key, chain=(alone.ca,)), "not signed by the CA"),
        ("expired", town.expired("c07"), "the certificate of CN=c07 expired on"),
        ("other-ca", other.signed("c07"), "not signed by the CA of this federation: signed by CN=other-ca"),
        ("stranger", town["stranger"], "'stranger' is not a member of this federation"),
    ):
        write_private(place.folder / f"{name}.key", identity.key_pem)
        (place.folder / f"{name}.crt").write_bytes(certificate_pem(identity.chain))
        yield name, why, [name, "c07", "join.toml"], ""
    join = read_join(place.folder / "join.toml")
    text = join.experiment.replace("lr = 0.3", "lr = 0.2")
    changed = join.model_copy(update={"experiment": text})
    write_join(changed, place.folder / "changed.toml")
    yield (
        "experiment",
        "training.lr is 0.2 here and 0.3 there",
        ["c07", "c07", "changed.toml"],
        ("c07 is refused: training.lr is 0.3 here and 0.2 there"),
    )
    samples = dict(np.load(place.folder / "c07.npz"))
    np.savez(place.folder / "narrow.npz", **{**samples, "x": samples["x"][..., :7]})
    yield (
        "shape",
        "inputs have shape (1, 8, 8) here and (1, 8, 7) there",
        ["c07", "narrow", "join.toml"],
        ("c07 is refused: inputs have shape (1, 8, 8) here and (1, 8, 7) there"),
    )


def test_who_is_refused_is_told_in_one_line_and_harms_nobody(tmp_path: Path, town: Town) -> None:
    run = tmp_path / "there"
    with place_for(tmp_path, town, "fedavg", **PLANTED) as place:
        here = simulated(place, tmp_path / "here")
        server = place.serve("--out", str(run))
        nodes = {name: place.join(name) for name in NAMES[:-1]}
        with place.follow("server") as said:
            said.until("7 of 8 clients are ready")
            for name, words, (key, data, file), server_says in strangers(place, town):
                process = place.start_as(name, "join", key, data, file)
                process.join(120)
                log = place.log(name)
                assert process.exitcode == 2, log
                assert words in log.splitlines()[-1], log
                assert "Traceback" not in log, log
                if server_says:
                    said.until(server_says)
        ended(place, {"server": server, **nodes, "c07": place.join("c07")})
    equal(run, here, tmp_path / "here")
