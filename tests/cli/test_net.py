"""`fedkin net`: from keys to a join file that a link is opened with, and one line for whatever is wrong."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from certificates import free_port
from cli.invoked import Terminal
from fedkin.network.identity import load
from fedkin.network.join_file import read_join
from fedkin.network.zenoh_link import ZenohLink
from tiny import TABLE

OWN_STAGE = """
from fedkin.graph import stage


@stage("groups")
def halves(a):
    return [at % 2 for at in range(len(a))]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> Terminal:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(tomli_w.dumps(TABLE))
    return terminal


def prepared(run: Terminal) -> str:
    """Keys and certificates of a server and a hospital; returns the server's place."""
    run.did("net", "init", "s", "--name", "server", "--host", "127.0.0.1")
    run.did("net", "init", "h", "--name", "hospital-a")
    run.did("net", "ca", "ca")
    run.did("net", "ca", "ca", "--sign", "s/server.csr", "--sign", "h/hospital-a.csr")
    return f"tls/127.0.0.1:{free_port()}"


def test_from_keys_to_a_link(run: Terminal) -> None:
    place = prepared(run)
    assert [stat.S_IMODE(Path(key).stat().st_mode) for key in ("s/server.key", "ca/ca.key")] == [0o600] * 2
    told = run.did(
        "net", "invite", "small.toml", "--ca", "ca/ca.crt", "--server", f"server={place}", "--member", "hospital-a",
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
def test_an_invitation_to_parts_from_files_is_refused(run: Terminal) -> None:
    place = prepared(run)
    more = ["--ca", "ca/ca.crt", "--server", f"server={place}", "--member", "hospital-a", "--out", "join.toml"]
    graph = {"name": "sfmtl-graph", "graph": {"groups": "own_stage.py:halves"}}
    Path("own_stage.py").write_text(OWN_STAGE)
    Path("stage.toml").write_text(tomli_w.dumps({**TABLE, "method": graph}))
    words = run.refused("net", "invite", "stage.toml", *more)
    assert words.startswith(f"own: {Path('own_stage.py').resolve()}: over a network files stay where they are")
    assert not Path("join.toml").exists()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"network": {"clients": ["hospital-a", "west"]}},
            "network.clients: 'west' is not invited: give --member west",
        ),
        ({"network": {"clients": ["hospital-a"]}}, "--member hospital-b: network.clients does not name it"),
        ({"network": {"clients": 3}}, "network.clients: 3, and 2 are invited (hospital-a, hospital-b)"),
        ({"method": {"name": "given", "groups": {"one": ["hospital-a", "west"]}}}, "method.groups: no client 'west'"),
    ],
)
def test_clients_of_the_experiment_that_are_not_invited_are_named(
    table: dict[str, Any], words: str, run: Terminal
) -> None:
    place = prepared(run)
    Path("asked.toml").write_text(tomli_w.dumps({**TABLE, **table}))
    more = ["--ca", "ca/ca.crt", "--server", f"server={place}", "--member", "hospital-a", "--member", "hospital-b"]
    assert run.refused("net", "invite", "asked.toml", *more, "--out", "join.toml").startswith(words)
    assert not Path("join.toml").exists()


def test_show(run: Terminal) -> None:
    place = prepared(run)
    shown = run.did("net", "show", "h/hospital-a.csr")
    assert shown.splitlines()[:2] == ["request of:   CN=hospital-a", "hosts:        hospital-a"]
    shown = run.did("net", "show", "ca/server.crt")
    assert "hosts:        127.0.0.1, server\n" in shown
    assert "signed by:    CN=fedkin-ca\n" in shown
    Path("peers.toml").write_text(tomli_w.dumps({**TABLE, "method": {"name": "dfedavgm"}}))
    run.did(
        *("net", "invite", "peers.toml", "--ca", "ca/ca.crt", "--member", f"north={place}", "--out", "join.toml"),
        *("--name", "heart"),
    )
    shown = run.did("net", "show", "join.toml")
    assert shown.startswith(f"federation:  heart\nserver:      none: peers\nmember:      north at {place}\n")
    join = json.loads(run.did("net", "show", "join.toml", "--json"))
    assert (join["federation"], join["server"], join["members"]["north"]["locator"]) == ("heart", "", place)
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


def test_certificates_are_renewed_on_request_alone(run: Terminal) -> None:
    prepared(run)
    before = Path("ca/server.crt").read_bytes()
    again = ["net", "ca", "ca", "--sign", "s/server.csr", "--days", "30"]
    assert run.refused(*again) == "ca/server.crt: exists; --replace replaces it"
    run.did(*again, "--replace")
    assert Path("ca/server.crt").read_bytes() != before


@pytest.mark.slow
def test_what_cannot_be_is_refused_in_one_line(run: Terminal) -> None:
    place = prepared(run)
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
        ("--server", f"server={place}", "--member", "a", "--router", "r"): "--router r: expected its address too",
        ("--server", f"server={place}"): "nobody takes part but the server: give --member NAME for each client",
        ("--member", f"a={place}", "--member", "b"): "method.name: 'sfmtl-graph' has a server: give --server NAME=",
        ("--server", f"server={place}", "--member", "server"): "--member server: there already",
        ("--member", "a b"): "join.members: 'a b' cannot be a name",
        ("--member", "bob", "--certificate", "ca/server.crt"): "--certificate ca/server.crt: it is of 'server'",
        ("--member", "bob", "--certificate", "none"): "none: No such file",
    }.items():
        refused[*invite, *words] = why
    refused["invite", "small.toml", "--ca", "ca/server.crt", "--member", "a", "--out", "j.toml"] = (
        "--ca ca/server.crt: this certificate is not that of a CA"
    )
    refused["invite", "small.toml", "--ca", "ca/ca.key", "--member", "a", "--out", "j.toml"] = (
        "ca/ca.key: not a certificate in PEM: it is a private key"
    )
    peers = ["invite", "peers.toml", "--ca", "ca/ca.crt", "--member", "a", "--out", "j.toml"]
    refused[*peers, "--server", f"server={place}"] = "--server: method 'dfedavgm' has none, all members are peers"
    Path("peers.toml").write_text(tomli_w.dumps({**TABLE, "method": {"name": "dfedavgm"}}))
    refused["invite", "none.toml", "--ca", "ca/ca.crt", "--member", "a", "--out", "j.toml"] = "none.toml: "
    refused["invite", "small.toml", "--ca", "none", "--member", "a", "--out", "j.toml"] = "none: No such file"
    peers[-1] = "small.toml"
    refused[*peers] = "small.toml: exists"
    for words, why in refused.items():
        assert run.refused("net", *words).startswith(why), (words, why)
    assert not Path("j.toml").exists()
    Path("ca/ca.key").chmod(0o644)
    told = run.refused("net", "ca", "ca", "--sign", "s/server.csr", "--replace")
    assert told.startswith("ca/ca.key: others may read this private key (mode 0644)")


@pytest.mark.parametrize(
    ("package", "module"),
    [("cryptography", "identity"), pytest.param("zenoh", "zenoh_link", marks=pytest.mark.slow)],
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
