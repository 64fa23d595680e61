"""`fedkin net`: from keys to a join file that a link is opened with, and one line for whatever is wrong."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tomli_w

import stays
from certificates import Town, free_port, new_town
from cli.invoked import Terminal
from fedkin.cli.participant import read_samples
from fedkin.data.own import OwnTable
from fedkin.engines.ledger import Ledger
from fedkin.errors import ConfigError, DataError
from fedkin.network.client import NetworkClient
from fedkin.network.identity import certificate_pem, load, write_private
from fedkin.network.join_file import VERSION, Join, Member, read_join, write_join
from fedkin.network.link import Left
from fedkin.network.status import FILE, Other, Status
from fedkin.network.zenoh_link import ZenohLink
from fedkin.running.experiment import Experiment
from fedkin.running.networked import exchange, settings_of, setup_of
from image_folders import wards
from network.memory import MemoryNetwork
from tiny import TABLE, written

OWN_STAGE = """
from fedkin.graph import stage

@stage("groups")
def halves(a):
    return [at % 2 for at in range(len(a))]
"""


@pytest.fixture
def run(here: Path, terminal: Terminal) -> Terminal:
    written(here / "small.toml")
    written(here / "peers.toml", method={"name": "dfedavgm"})
    return terminal


@pytest.fixture
def address(run: Terminal) -> str:
    """Keys and certificates of a server and a hospital; returns the server's place."""
    run.did("net", "init", "s", "--name", "server", "--host", "127.0.0.1")
    run.did("net", "init", "h", "--name", "hospital-a")
    run.did("net", "ca", "ca")
    run.did("net", "ca", "ca", "--sign", "s/server.csr", "--sign", "h/hospital-a.csr")
    return f"tls/127.0.0.1:{free_port()}"


def test_from_keys_to_a_link(run: Terminal, address: str) -> None:
    assert [stat.S_IMODE(Path(key).stat().st_mode) for key in ("s/server.key", "ca/ca.key")] == [0o600] * 2
    told = run.did(
        "net", "invite", "small.toml", "--ca", "ca/ca.crt", "--server", f"server={address}", "--member", "hospital-a",
        "--certificate", "ca/hospital-a.crt", "--out", "join.toml",
    )  # fmt: skip
    assert told.startswith("join file:  join.toml (no secret;")
    assert "PRIVATE" not in Path("join.toml").read_text()
    join = read_join(Path("join.toml"))
    assert (join.server, join.experiment) == ("server", Path("small.toml").read_text())
    server = load(Path("s/server.key"), Path("ca/server.crt"), join.roots)
    hospital = load(Path("h/hospital-a.key"), Path("ca/hospital-a.crt"), join.roots)
    with (
        ZenohLink(server, join.members, listen=[join.members["server"].locator]) as one,
        ZenohLink(hospital, join.members, dial=["server"]) as other,
    ):
        other.offer("server", "r/0", b"hello")
        assert one.pull("hospital-a", "r/0", 30) == b"hello"


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"network": {"clients": ["hospital-a", "west"]}}, "network.clients: 'west' is not invited: give --member"),
        ({"network": {"clients": ["hospital-a"]}}, "--member hospital-b: network.clients does not name it"),
        ({"network": {"clients": 3}}, "network.clients: 3, and 2 are invited (hospital-a, hospital-b)"),
        ({"method": {"name": "given", "groups": {"one": ["hospital-a", "west"]}}}, "method.groups: no client 'west'"),
        ({"method": {"name": "sfmtl-graph", "graph": {"groups": "own_stage.py:halves"}}},
         "own_stage.py: over a network files stay where they are"),
    ],
)  # fmt: skip
def test_an_experiment_that_nobody_can_be_invited_to(table: Any, words: str, run: Terminal, address: str) -> None:
    more = ["--ca", "ca/ca.crt", "--server", f"server={address}", "--member", "hospital-a", "--member", "hospital-b"]
    Path("own_stage.py").write_text(OWN_STAGE)
    assert words in run.refused("net", "invite", written(Path("asked.toml"), **table), *more, "--out", "join.toml")
    assert not Path("join.toml").exists()


def test_show(run: Terminal, address: str) -> None:
    shown = run.did("net", "show", "h/hospital-a.csr")
    assert shown.splitlines()[:2] == ["request of:   CN=hospital-a", "hosts:        hospital-a"]
    shown = run.did("net", "show", "ca/server.crt")
    assert "hosts:        127.0.0.1, server\n" in shown
    assert "signed by:    CN=fedkin-ca\n" in shown
    run.did(
        "net", "invite", "peers.toml", "--ca", "ca/ca.crt", "--member", f"north={address}",
        "--out", "join.toml", "--name", "heart",
    )  # fmt: skip
    shown = run.did("net", "show", "join.toml")
    assert shown.startswith(f"federation:  heart\nserver:      none: peers\nmember:      north at {address}\n")
    join = json.loads(run.did("net", "show", "join.toml", "--json"))
    assert (join["federation"], join["server"], join["members"]["north"]["locator"]) == ("heart", "", address)
    assert f"experiment:  {join['experiment_hash']}\n" in shown
    assert join["ca"] == json.loads(run.did("net", "show", "ca/ca.crt", "--json"))
    (certificate,) = json.loads(run.did("net", "show", "ca/server.crt", "--json"))
    assert (certificate["subject"], certificate["signed by"]) == ("CN=server", "CN=fedkin-ca")
    assert certificate["valid"][0] < certificate["valid"][1]
    request = json.loads(run.did("net", "show", "h/hospital-a.csr", "--json"))
    assert (request["subject"], request["hosts"]) == ("CN=hospital-a", ["hospital-a"])
    assert request["fingerprint"] in run.did("net", "show", "h/hospital-a.csr")
    assert run.refused("net", "show", "s/server.key") == "s/server.key: holds a private key, which is shown to nobody"
    assert run.refused("net", "show", "none") == "none: No such file or directory"
    assert run.refused("net", "show", "small.toml").startswith("small.toml: not a join file (")


@pytest.mark.usefixtures("address")
def test_certificates_are_renewed_on_request_alone(run: Terminal) -> None:
    before = Path("ca/server.crt").read_bytes()
    again = ["net", "ca", "ca", "--sign", "s/server.csr", "--days", "30"]
    assert run.refused(*again) == "ca/server.crt: exists; --replace replaces it"
    run.did(*again, "--replace")
    assert Path("ca/server.crt").read_bytes() != before


@pytest.mark.slow
def test_what_cannot_be_is_refused_in_one_line(run: Terminal, address: str) -> None:
    refused = {
        ("init", "s", "--name", "server"): "s/server.key: exists; a private key is never replaced",
        ("init", "x", "--name", "a b"): "--name: expected one common name",
        ("init", "x", "--name", "a" * 65): "--name: ",
        ("init", "small.toml", "--name", "a"): "small.toml: File exists",
        ("ca", "ca"): "ca/ca.key: exists",
        ("ca", "none", "--sign", "s/server.csr"): "none: no CA here (ca.key); make one: fedkin net ca none",
        ("ca", "ca", "--sign", "ca/ca.crt"): "ca/ca.crt: not a certificate request in PEM: it is a certificate",
        ("ca", "ca", "--sign", "s/server.csr", "--sign", "s/server.csr"): "--sign: 'server' is there twice",
    }
    invite = ["invite", "small.toml", "--ca", "ca/ca.crt", "--out", "j.toml"]
    for words, why in {
        (): "nobody takes part",
        ("--server", "server"): "--server server: expected its address too",
        ("--server", "server=tcp/h:1"): "--server server: expected tls/HOST:PORT, got 'tcp/h:1'",
        ("--member", "a", "--router", "r=h:1"): "--router r: expected tls/HOST:PORT, got 'h:1'",
        ("--server", f"server={address}", "--member", "a", "--router", "r"): "--router r: expected its address too",
        ("--server", f"server={address}"): "nobody takes part but the server: give --member NAME for each client",
        ("--member", f"a={address}", "--member", "b"): "method.name: 'sfmtl-graph' has a server: give --server NAME=",
        ("--server", f"server={address}", "--member", "server"): "--member server: there already",
        ("--member", "a b"): "join.members: 'a b' cannot be a name",
        ("--member", "bob", "--certificate", "ca/server.crt"): "--certificate ca/server.crt: it is of 'server'",
        ("--member", "bob", "--certificate", "none"): "none: No such file",
    }.items():
        refused[*invite, *words] = why
    peers = ["--ca", "ca/ca.crt", "--member", "a", "--out"]
    both = "peers.toml", *peers, "j.toml", "--server", f"server={address}"
    refused["invite", *both] = "--server: method 'dfedavgm' has none, all members are peers"
    refused["invite", "none.toml", *peers, "j.toml"] = "none.toml: "
    refused["invite", "peers.toml", *peers, "small.toml"] = "small.toml: exists"
    for file, why in {
        "ca/server.crt": "--ca ca/server.crt: this certificate is not that of a CA",
        "ca/ca.key": "ca/ca.key: not a certificate in PEM: it is a private key", "none": "none: No such file",
    }.items():  # fmt: skip
        refused["invite", "small.toml", "--ca", file, "--member", "a", "--out", "j.toml"] = why
    for words, why in refused.items():
        assert run.refused("net", *words).startswith(why), (words, why)
    assert not Path("j.toml").exists()
    Path("ca/ca.key").chmod(0o644)
    told = run.refused("net", "ca", "ca", "--sign", "s/server.csr", "--replace")
    assert told.startswith("ca/ca.key: others may read this private key (mode 0644)")


@pytest.mark.parametrize(
    ("package", "module"), [("cryptography", "identity"), pytest.param("zenoh", "zenoh_link", marks=pytest.mark.slow)]
)
def test_a_package_that_is_not_installed_is_named(package: str, module: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; import fedkin.cli.net\n"
        f"from fedkin.errors import ConfigError\n"
        f"try:\n    import fedkin.network.{module}\n"
        f"except ConfigError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("a federation over a network needs ")
    assert done.stdout.endswith(": pip install 'fedkin[network]'\n")


# -- `serve`, `join` and `peer`: one line for whatever is wrong, before anything is opened or sent -----------------


Refused = Callable[..., str]


@pytest.fixture(scope="module")
def town() -> Town:
    return new_town()


@pytest.fixture
def place(here: Path, town: Town) -> Path:
    """A folder with a join file, keys, and a client's data."""
    for name in ("server", "ann", "bob", "eve"):
        write_private(here / f"{name}.key", town[name].key_pem)
        (here / f"{name}.crt").write_bytes(certificate_pem(town[name].chain))
    server = Member(locator=f"tls/127.0.0.1:{free_port()}")
    invite(here / "join.toml", town, TABLE, server=server, ann=Member(), bob=Member())
    written(here / "tiny.toml")
    np.savez(here / "ann.npz", x=np.zeros((8, 1, 8, 8), np.float32), y=np.arange(8))
    return here


def invite(path: Path, town: Town, table: dict[str, Any], **book: Member) -> None:
    """A join file for these members; one of the name "server" is that."""
    ca, text = certificate_pem([town.ca]).decode(), tomli_w.dumps(table)
    server = "server" if "server" in book else ""
    write_join(Join(version=VERSION, federation="tiny", server=server, ca=ca, experiment=text, members=book), path)


@pytest.fixture
def refused(place: Path, terminal: Terminal) -> Refused:
    return terminal.refused


def test_a_server_with_the_wrong_key_or_experiment(place: Path, refused: Refused) -> None:
    serve = ["net", "serve", "tiny.toml", "--join", "join.toml", "--out", "out", "--key"]
    assert refused(*serve, "ann.key") == "--key ann.key: it is of 'ann', and the server is 'server'"
    assert refused(*serve, "eve.key") == "--key eve.key: 'eve' is not a member of this federation"
    assert refused(*serve, "none.key").startswith("none.crt: ")
    written(place / "tiny.toml", training={**TABLE["training"], "lr": 0.3})
    apart = "training.lr is 0.3 here and 0.1 there (there: in the join file)"
    assert refused(*serve, "server.key") == f"the join file is of another experiment: {apart}"
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"run": {"adversaries": "noise:0.2"}}, "^run.adversaries: these are simulated"),
        ({"model": {"name": "mixed"}, "method": {"name": "local"}},
         "^network.clients: 'mixed' deals bodies out by name: expected the names"),
        ({"privacy": {"clip": 1.0, "noise": 1.0}}, "privacy.clip is 1.0 here and not set there"),
        ({"network": {"deadlin": 5}}, "^tiny.toml: network.deadlin: no such setting; did you mean 'deadline'[?]$"),
    ],
    ids=["a fault of a simulation", "bodies by name", "noise is agreed like any other setting", "a typo"],
)  # fmt: skip
def test_an_experiment_that_cannot_be_served(sections: Any, said: str, place: Path, refused: Refused) -> None:
    written(place / "tiny.toml", **sections)
    assert re.search(said, refused("net", "serve", "tiny.toml", "--join", "join.toml", "--key", "server.key"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["net", "join", "join.toml", "--data", "ann.npz", "--key", "server.key"], "which does not join"),
        (["net", "join", "join.toml", "--data", "bob.npz", "--key", "ann.key"], "bob.npz: no such file"),
        (["net", "join", "join.toml", "--data", "ann.csv", "--key", "ann.key"], "reads none"),
        (["net", "join", "join.toml", "--data", "ann.npz", "--key", "ann.key", "--max-epsilon", "3"], "adds no noise"),
        (["net", "join", "none.toml", "--data", "ann.npz", "--key", "ann.key"], "none.toml: No such file"),
    ],
)
def test_what_a_participant_gives_wrongly(words: list[str], said: str, refused: Refused) -> None:
    assert said in refused(*words)


def test_who_is_dialled_needs_a_certificate_for_that_host(place: Path, town: Town, refused: Refused) -> None:
    north, bob = Member(locator="tls/north.example.org:7447"), Member(locator="tls/127.0.0.1:7448")
    invite(place / "hosts.toml", town, {**TABLE, "method": {"name": "dfedavgm"}}, ann=north, bob=bob)
    said = refused("net", "join", "hosts.toml", "--data", "ann.npz", "--key", "ann.key", "--yes")
    assert said.startswith("--key: the certificate of 'ann' is for ")
    assert "the others dial it at tls/north.example.org:7447: make new ones with" in said
    assert "fedkin net init DIR --name ann --host north.example.org, and have DIR/ann.csr signed" in said


# -- `status`: a table from a participant's file, without a network ------------------------------------------------


Said = Callable[..., str]
State = Literal["running", "ended", "left"]


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of the lines of a table, by their first word."""
    return {line.split()[0]: re.split("  +", line.strip()) for line in text.splitlines()}


def write(folder: Path, state: State = "running", age: float = 0.0, name: str = "server") -> None:
    folder.mkdir()
    now = time.time() - age
    north = Other(here=True, round=4, seen=now, bytes_in=24616, bytes_out=1000, group=0)
    west = Other(here=False, round=2, seen=now - 300, refused=3, why="its signature \x1b[31m")
    status = Status(
        name=name, role="server", federation="three-hospitals", state=state, written=now, round=4, rounds=20,
        others={"north": north, "west": west, "south": Other(here=False)}, nameless=2,
    )  # fmt: skip
    (folder / FILE).write_text(status.model_dump_json())


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> Said:
    """What the command prints, and what it says of an error."""

    monkeypatch.setenv("COLUMNS", "160")
    return lambda *words: "".join(terminal("net", "status", *words)[1:])


def test_a_table_of_who_is_there(tmp_path: Path, said: Said) -> None:
    write(tmp_path / "run")
    text = said(str(tmp_path / "run"))
    assert "three-hospitals: server (server), round 4 of 20, running" in text
    rows = rows_of(text)
    assert rows["north"] == ["north", "yes", "4", "now", "24.6 kB", "1.0 kB", "0"]
    assert "5 minutes ago" in rows["west"]
    assert "never" in rows["south"]
    assert "refused of west, the last: its signature \\x1b[31m" in text
    assert "nobody knows whose: 2" in text
    assert "\x1b" not in text


def test_a_folder_of_folders_a_join_file_and_json(tmp_path: Path, said: Said) -> None:
    write(tmp_path / "a-state", name="a")
    write(tmp_path / "b-state", "ended", name="b")
    text = said(str(tmp_path / "join.toml"))
    assert "a (server), round 4 of 20, running" in text
    assert "b (server), round 4 of 20, ended" in text
    assert [each["name"] for each in json.loads(said(str(tmp_path), "--json")).values()] == ["a", "b"]


def test_one_that_was_killed_is_said_to_be_silent(tmp_path: Path, said: Said) -> None:
    write(tmp_path / "run", age=600)
    text = said(str(tmp_path / "run"))
    assert "silent" in text
    assert "has written nothing for 10 minutes" in text


@pytest.mark.parametrize("state", ["ended", "left", "running"])
def test_of_one_that_has_ended_nobody_is_said_to_be_here(state: State, tmp_path: Path, said: Said) -> None:
    write(tmp_path / "run", state, age=600)
    assert rows_of(said(str(tmp_path / "run")))["north"][:4] == ["north", "no", "4", "10 minutes ago"]


def test_watching_ends_with_the_run(tmp_path: Path, said: Said) -> None:
    write(tmp_path / "run", "left")
    assert "left; the same command comes back" in said(str(tmp_path / "run"), "--watch")


def test_a_folder_without_one_is_refused(tmp_path: Path, said: Said) -> None:
    assert "no status.json here" in said(str(tmp_path))


# -- how `join` comes to its samples, and what it asks before anything of a table leaves ---------------------------


def plan_for(folder: Path) -> Experiment:
    return Experiment.of({
        "name": "stays", "data": {"source": "csv", "path": str(folder), "target": "died"},
        "scenario": {"name": "natural"},
        "model": {"name": "mlp", "hidden": [4]}, "training": {"rounds": 1, "local_steps": 1, "lr": 0.1},
        "method": {"name": "dfedavgm"}, "network": {"clients": ["north"]},
    })  # fmt: skip


@pytest.mark.parametrize("server", [True, False])
def test_without_consent_nothing_of_a_table_leaves(server: bool, tmp_path: Path) -> None:
    plan, shown = plan_for(folder := stays.written(tmp_path / "stays")), list[str]()
    read = read_samples(plan, "north", str(folder / "north.csv"), 0.2, "west")
    assert isinstance(read, OwnTable)
    assert read.group == "west"

    def no(lines: list[str]) -> bool:
        shown.extend(lines)
        return False

    network, ledger, state = MemoryNetwork(), Ledger(), tmp_path / "state"
    state.mkdir()
    link = network.link("north")
    with network.link("server"), link:
        client = NetworkClient(link, read, setup_of, state, settings=settings_of(plan), consent=no, ledger=ledger)
        with pytest.raises(Left):
            client.run() if server else exchange(plan, link, read, ["north", "south"], state, consent=no, ledger=ledger)
        assert not [data for data in link.offers.values() if data]
    assert any("rare ones may identify people" in line for line in shown)
    assert any("params (of the net: body.1.weight [4, " in line for line in shown)
    assert ledger.sent_unprotected == []


def test_options_that_the_experiment_decides(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    with pytest.raises(ConfigError, match=r"--test-fraction 0.5: the experiment holds out 0.2"):
        read_samples(plan, "north", "north.csv", 0.5)


def test_a_folder_of_images_is_read_as_the_experiment_says(tmp_path: Path) -> None:
    place = wards(tmp_path)
    plan = Experiment.of({
        "name": "wards", "data": {"source": "folder", "path": "elsewhere", "size": 4, "test_fraction": 0.4},
        "scenario": {"name": "domains"}, "model": {"name": "mlp"}, "training": {"rounds": 1, "lr": 0.1},
        "method": {"name": "fedavg"}, "network": {"classes": 3},
    })  # fmt: skip
    read = read_samples(plan, "north", str(place / "north"), 0.4, "west")
    assert isinstance(read, tuple)
    client, task = read
    assert (client.id, client.group, task.shape, len(client.test)) == ("north", "west", (3, 4, 4), 6)
    with pytest.raises(ConfigError, match=r"--test-fraction 0.5: the experiment holds out 0.4"):
        read_samples(plan, "north", str(place / "north"), 0.5)
    with pytest.raises(DataError, match="no such folder"):
        read_samples(plan, "north", str(place / "nobody"), None)
