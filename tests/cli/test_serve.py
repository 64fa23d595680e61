"""`fedkin net serve`, `join` and `peer`: one line for whatever is wrong, before anything is opened or sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from certificates import Town, free_port, new_town
from cli.invoked import Terminal
from fedkin.network.identity import certificate_pem, write_private
from fedkin.network.join_file import VERSION, Join, Member, write_join
from tiny import TABLE

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def town() -> Town:
    return new_town()


@pytest.fixture
def place(tmp_path: Path, town: Town, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a join file of a server and of peers, keys, and a client's data."""
    monkeypatch.chdir(tmp_path)
    for name in ("server", "ann", "bob", "eve"):
        write_private(tmp_path / f"{name}.key", town[name].key_pem)
        (tmp_path / f"{name}.crt").write_bytes(certificate_pem(town[name].chain))
    invite(tmp_path / "join.toml", town, TABLE, "server", ["ann", "bob"])
    invite(tmp_path / "peers.toml", town, {**TABLE, "method": {"name": "dfedavgm"}}, "", ["ann", "bob"])
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(TABLE))
    np.savez(tmp_path / "ann.npz", x=np.zeros((8, 1, 8, 8), np.float32), y=np.arange(8))
    return tmp_path


def invite(path: Path, town: Town, table: dict[str, Any], server: str, members: list[str]) -> None:
    text = tomli_w.dumps(table)
    book = {name: Member() for name in members}
    if server:
        book[server] = Member(locator=f"tls/127.0.0.1:{free_port()}")
    ca = certificate_pem([town.ca]).decode()
    join = Join(version=VERSION, federation="tiny", server=server, ca=ca, experiment=text,
                members=book)  # fmt: skip
    write_join(join, path)


@pytest.fixture
def refused(place: Path, terminal: Terminal) -> Refused:
    return terminal.refused


def test_a_server_with_the_wrong_key_or_experiment(place: Path, refused: Refused) -> None:
    serve = ["net", "serve", "tiny.toml", "--join", "join.toml", "--out", "out", "--key"]
    assert refused(*serve, "ann.key") == "--key ann.key: it is of 'ann', and the server is 'server'"
    assert refused(*serve, "eve.key") == "--key eve.key: 'eve' is not a member of this federation"
    assert refused(*serve, "none.key").startswith("none.crt: ")
    changed = {**TABLE, "training": {**TABLE["training"], "lr": 0.3}}
    (place / "tiny.toml").write_text(tomli_w.dumps(changed))
    said = refused(*serve, "server.key")
    assert said == (
        "the join file is of another experiment: training.lr is 0.3 here and 0.1 there (there: in the join file)"
    )
    assert not (place / "out").exists()


def test_what_only_a_simulation_can_do(place: Path, refused: Refused) -> None:
    serve = ["net", "serve", "tiny.toml", "--join", "join.toml", "--key", "server.key"]
    (place / "tiny.toml").write_text(tomli_w.dumps({**TABLE, "run": {"adversaries": "noise:0.2"}}))
    assert refused(*serve).startswith("run.adversaries: these are simulated")
    (place / "tiny.toml").write_text(tomli_w.dumps({**TABLE, "model": {"name": "mixed"}, "method": {"name": "local"}}))
    assert refused(*serve).startswith("network.clients: 'mixed' deals bodies out by name: expected the names")


def test_noise_is_agreed_like_any_other_setting(place: Path, refused: Refused) -> None:
    (place / "tiny.toml").write_text(tomli_w.dumps({**TABLE, "privacy": {"clip": 1.0, "noise": 1.0}}))
    said = refused("net", "serve", "tiny.toml", "--join", "join.toml", "--key", "server.key")
    assert "privacy.clip is 1.0 here and not set there" in said


def test_a_setting_of_the_network_with_a_typo(place: Path, refused: Refused) -> None:
    (place / "tiny.toml").write_text(tomli_w.dumps({**TABLE, "network": {"deadlin": 5}}))
    said = refused("net", "serve", "tiny.toml", "--join", "join.toml", "--key", "server.key")
    assert said == "tiny.toml: network.deadlin: no such setting; did you mean 'deadline'?"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["net", "join", "join.toml", "--data", "ann.npz", "--key", "server.key"], "which does not join"),
        (["net", "join", "join.toml", "--data", "bob.npz", "--key", "ann.key"], "bob.npz: no such file"),
        (["net", "join", "join.toml", "--data", "ann.csv", "--key", "ann.key"], "reads none"),
        (
            ["net", "join", "join.toml", "--data", "ann.npz", "--key", "ann.key", "--max-epsilon", "3"],
            "adds no noise to what",
        ),
        (["net", "join", "none.toml", "--data", "ann.npz", "--key", "ann.key"], "none.toml: No such file"),
    ],
)
def test_what_a_participant_gives_wrongly(words: list[str], said: str, refused: Refused) -> None:
    assert said in refused(*words)


def test_who_is_dialled_needs_a_certificate_for_that_host(place: Path, town: Town, refused: Refused) -> None:
    text = tomli_w.dumps({**TABLE, "method": {"name": "dfedavgm"}})
    book = {"ann": Member(locator="tls/north.example.org:7447"), "bob": Member(locator="tls/127.0.0.1:7448")}
    join = Join(version=VERSION, federation="tiny", server="", ca=certificate_pem([town.ca]).decode(),
                experiment=text, members=book)  # fmt: skip
    write_join(join, place / "hosts.toml")
    said = refused("net", "join", "hosts.toml", "--data", "ann.npz", "--key", "ann.key", "--yes")
    assert said.startswith("--key: the certificate of 'ann' is for ")
    assert "the others dial it at tls/north.example.org:7447: make both anew with" in said
    assert "fedkin net init DIR --name ann --host north.example.org, and have DIR/ann.csr signed" in said
