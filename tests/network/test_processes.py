"""Participants as processes over Zenoh with mutual TLS: what a simulation computes, and who is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from certificates import Town, new_town, save
from network.federations import state_in
from network.processes import Follow, ended, equal, place_for, simulated
from support import same


@pytest.mark.slow
def test_who_is_refused_is_told_in_one_line_and_harms_nobody(tmp_path: Path, town: Town) -> None:
    alone, other = new_town("c07"), new_town("other-ca")
    with place_for(tmp_path, town, "fedavg") as place:
        here, said = simulated(place, tmp_path / "here"), Follow(place, "server")
        processes = {"server": place.serve("--out", str(tmp_path / "there"))}
        processes |= {name: place.join(name) for name in place.names[:-1]}
        said.until("7 of 8 clients are ready")
        for name, identity, why in (
            ("self-signed", replace(town["c07"], key=alone.key, chain=(alone.ca,)), "not signed by the CA"),
            ("expired", town.expired("c07"), "the certificate of CN=c07 expired on"),
            ("other-ca", other.signed("c07"), "not signed by the CA of this federation: signed by CN=other-ca"),
            ("stranger", town["stranger"], "'stranger' is not a member of this federation"),
        ):
            save(identity, tmp_path / name)
            process = place.join(name, data="c07")
            process.join(120)
            log = place.log(name)
            assert process.exitcode == 2, log
            assert why in log.splitlines()[-1], log
            assert "Traceback" not in log, log
        ended(place, {**processes, "c07": place.join("c07")})
    equal(tmp_path / "there", here)
    assert same(*(state_in(tmp_path / name)["server"] for name in ("there", "here")))
    assert (tmp_path / "there" / "report.html").exists()
