"""Join files: written and read back, and refused in one line for whatever is wrong with them."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from certificates import Town
from fedkin.errors import ConfigError
from fedkin.network.identity import certificate_pem, fingerprint
from fedkin.network.join_file import VERSION, Join, locator, read_join, write_join

EXPERIMENT = 'name = "x"\n# "quotes", \\ and """\n[data]\nsource = "digits"\n'


def table(town: Town) -> dict[str, Any]:
    """A join file's table."""
    return {
        "version": VERSION,
        "federation": "heart",
        "server": "server",
        "ca": certificate_pem([town.ca]).decode(),
        "experiment": EXPERIMENT,
        "members": {
            "server": {"locator": "tls/fed.example.org:7447"},
            "ann": {},
            "bob": {"certificate": certificate_pem(town["bob"].chain).decode(), "locator": "tls/[::1]:80"},
        },
    }


def test_what_is_written_is_read(tmp_path: Path, town: Town) -> None:
    for number, text in enumerate([EXPERIMENT, EXPERIMENT.replace("\n", "\r\n"), "\n\n", "a = '''\r\n'''\n"]):
        join = Join.model_validate({**table(town), "experiment": text})
        write_join(join, tmp_path / f"{number}.toml")
        again = read_join(tmp_path / f"{number}.toml")
        assert again == join
        assert again.experiment == text
    assert again.roots == [town.ca]
    assert again.members["bob"].pin == fingerprint(town["bob"].chain[0])
    assert again.members["server"].pin == ""
    with pytest.raises(ConfigError, match=r"exists; name another file$"):
        write_join(again, tmp_path / "0.toml")


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (["versoin"], 1, r"join.versoin: no such setting; did you mean 'version'\?"),
        (["members", "ann", "locatr"], "", r"members.ann.locatr: no such setting; did you mean 'locator'\?"),
        (["router"], "tls/h:1", "router: expected a member with a locator that is not the server"),
        (["version"], 2, r"join.version: this fedkin reads version 1; .*; got 2"),
        (["version"], True, r"join: version: expected no true or false, got True"),
        (["federation"], "a\x1b[2J", "join.federation: expected a name of 1 to 100 printable characters"),
        (["federation"], None, "join.federation: missing"),
        (["server"], "zoe", "server: 'zoe' is not one of the members"),
        (["server"], "ann", "members.ann.locator: missing; a server is dialled by the others"),
        (["ca"], "-----BEGIN CERTIFICATE-----", "ca: not a certificate in PEM"),
        (["experiment"], "name = ", r"experiment: not TOML \("),
        (["members"], {}, "members: expected 1 to 10000 tables"),
        (["members"], [1], "members: expected 1 to 10000 tables"),
        (["members", "ann"], 3, "members.ann: expected a Member or its fields as a dict"),
        (["members", "a b"], {}, "members: 'a b' cannot be a name"),
        (["members", "zoe"], {"certificate": "x"}, "members.zoe.certificate: not a certificate"),
        (["members", "server", "locator"], "tcp/h:1", "members.server.locator: expected tls/HOST:PORT"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, town: Town, path: list[str], value: object, why: str
) -> None:
    whole, (*ways, last) = table(town), path
    place = reduce(getitem, ways, whole)
    place[last] = value
    if value is None:
        del place[last]
    file = tmp_path / "join.toml"
    file.write_text(tomli_w.dumps(whole))
    with pytest.raises(ConfigError, match=rf"^{file}: .*{why}") as raised:
        read_join(file)
    assert "\n" not in str(raised.value).strip()


def test_a_certificate_of_another(tmp_path: Path, town: Town) -> None:
    whole = table(town)
    whole["members"]["zoe"] = {"certificate": whole["members"]["bob"]["certificate"]}
    (tmp_path / "join.toml").write_text(tomli_w.dumps(whole))
    with pytest.raises(ConfigError, match=r"members.zoe.certificate: it is of 'bob'; expected 'zoe'"):
        read_join(tmp_path / "join.toml")


def test_files_that_are_no_join_files(tmp_path: Path) -> None:
    path = tmp_path / "join.toml"
    bad = (b"", b"\xff\xfe", b"= 3", b"a = " + b"[" * 10_000, b"x" * ((1 << 24) + 1), b"members = 9" + b"9" * 5000)
    for content in bad:
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"^{path}: "):
            read_join(path)
    for place, why in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=why):
            read_join(place)


def test_locators() -> None:
    for good in ("tls/a:1", "tls/10.0.0.1:7447", "tls/[2001:db8::1]:7447", "tls/fed.example.org:65535"):
        assert locator(good) == good
    odd = ("tls/a:1\n", "tls/a b:1", "tls/a:1;x", "tls/a:1#root_ca_certificate=x", "tls/a:1?prio=1", "tls/a:70000")
    for bad in ("", "a:1", "tls/a", "tls/:1", "TLS/a:1", "tls/a:", *odd):
        with pytest.raises(ValueError, match="expected tls/HOST:PORT"):
            locator(bad)
