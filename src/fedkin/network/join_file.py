"""The join file: all that a participant needs to take part besides its own key and certificate. It holds no secret.

TOML. Its author decides what runs and who takes part, so send the file over a channel that both sides trust.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from cryptography import x509
from pydantic import AfterValidator, Field, field_validator, model_validator

from fedkin.errors import ConfigError, WrongSetting
from fedkin.folders import write_new
from fedkin.network.identity import certificates_of, common_name, fingerprint
from fedkin.settings import Settings, parse
from fedkin.untrusted import error_text, escaped, plain_word, printable, text_in, toml_of

VERSION = 1
_LARGEST = 1 << 24
_MOST_MEMBERS = 10_000
# No `#` and no `?`: Zenoh reads settings, also of TLS, from the text after them.
_LOCATOR = re.compile(r"tls/([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


def locator(text: str, where: str = "") -> str:
    """Return the text if it is tls/HOST:PORT; raises WrongSetting."""
    match = _LOCATOR.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise WrongSetting(f"{where}expected tls/HOST:PORT, got {escaped(text, 80)!r}")
    return text


def _pem(text: str) -> str:
    """Return the text if it is empty or holds certificates; raises ValueError."""
    try:
        if text:
            certificates_of(text.encode(), "")
    except ConfigError as error:
        raise ValueError(str(error).removeprefix(": ")) from None
    return text


def _check_holder(certificate: str, name: str) -> None:
    """Raise ValueError if a certificate in PEM is not that of the member with this name."""
    try:
        holder = common_name(certificates_of(certificate.encode(), "")[0].subject, "")
    except ConfigError as error:
        raise ValueError(f"members.{name}.certificate{error}") from None
    if holder != name:
        raise ValueError(f"members.{name}.certificate: it is of {holder!r}; expected {name!r}")


class Member(Settings):
    """A participant as the others know it.

    locator: tls/HOST:PORT; empty if the participant only dials out. certificate: its expected certificate, in PEM;
    empty: any certificate of its name that the federation's CA signed.
    """

    locator: Annotated[str, AfterValidator(lambda text: text and locator(text))] = ""
    certificate: Annotated[str, AfterValidator(_pem)] = ""

    @property
    def pin(self) -> str:
        """The fingerprint of the expected certificate; empty if any certificate of the CA is accepted."""
        if not self.certificate:
            return ""
        return fingerprint(certificates_of(self.certificate.encode(), "certificate")[0])


# Participants by name, with oneself or without.
AddressBook = Mapping[str, Member]


class Join(Settings):
    """The content of a join file.

    version: version of this format. federation: its name. server: name of the aggregating server; empty for peers.
    router: name of the router, which passes sealed messages between all, and which all then dial; it is no participant.
    ca: certificates of the trusted CA, in PEM. experiment: the text of the experiment file. members: the address book.
    """

    version: int
    federation: str
    server: str = ""
    router: str = ""
    ca: Annotated[str, Field(min_length=1), AfterValidator(_pem)]
    experiment: str
    members: dict[str, Member]

    @field_validator("version")
    @classmethod
    def _is_supported(cls, value: int) -> int:
        if value != VERSION:
            how = "ask for a new file, or install the version of fedkin that made it"
            raise ValueError(f"this fedkin reads version {VERSION}; {how}")
        return value

    @field_validator("federation")
    @classmethod
    def _is_printable(cls, value: str) -> str:
        if not printable(value) or len(value) > 100:
            raise ValueError("expected a name of 1 to 100 printable characters")
        return value

    @field_validator("experiment")
    @classmethod
    def _is_toml(cls, value: str) -> str:
        try:
            toml_of(value)
        except ValueError as error:
            raise ValueError(f"not TOML ({error_text(error)})") from None
        return value

    @field_validator("members", mode="before")
    @classmethod
    def _have_names(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not 1 <= len(value) <= _MOST_MEMBERS:
            raise ValueError(f"expected 1 to {_MOST_MEMBERS} tables, one for each participant")
        for name in value:
            if not plain_word(name):
                raise ValueError(f"{escaped(str(name), 64)!r} cannot be a name: 1 to 64 of A-Z a-z 0-9 . _ -")
        return value

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        for name, member in self.members.items():
            if member.certificate:
                _check_holder(member.certificate, name)
        if self.server and self.server not in self.members:
            raise ValueError(f"server: {escaped(self.server, 64)!r} is not one of the members")
        listening = [name for name, member in self.members.items() if member.locator]
        if self.router and (self.router == self.server or self.router not in listening):
            raise ValueError("router: expected a member with a locator that is not the server")
        if self.server and not self.router and self.server not in listening:
            raise ValueError(f"members.{self.server}.locator: missing; a server is dialled by the others")
        return self

    @property
    def roots(self) -> list[x509.Certificate]:
        """The certificates of the CA."""
        return certificates_of(self.ca.encode(), "ca")

    @property
    def experiment_hash(self) -> str:
        """SHA-256 of the experiment's text, by which people can compare their files."""
        return f"sha256:{hashlib.sha256(self.experiment.encode()).hexdigest()}"

    @property
    def participants(self) -> list[str]:
        """The names of all participants: the members without the router."""
        return sorted(set(self.members) - {self.router})

    def dialled_by(self, name: str) -> list[str]:
        """Return the names that this participant dials: the server or peers; none if there is a router, which all dial.

        Of two peers with addresses, the peer with the higher name dials the other.
        """
        if self.router or name == self.server:
            return []
        if self.server:
            return [self.server]
        listens = bool(self.members[name].locator)
        peers = [other for other, member in self.members.items() if member.locator and other != name]
        return [other for other in peers if other < name or not listens]


def read_join(path: Path) -> Join:
    """Return the join file at `path`; raises ConfigError, in one line, if anything is wrong with it."""
    try:
        table = toml_of(text_in(path, _LARGEST))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not a join file ({error_text(error)})") from None
    if "version" not in table:
        raise ConfigError(f"{path}: not a join file (it has no version); fedkin net invite makes one")
    if isinstance(members := table.get("members"), dict):
        where = f"{path}: join.members"
        table["members"] = {name: parse(Member, each, f"{where}.{escaped(name, 64)}") for name, each in members.items()}
    return parse(Join, table, f"{path}: join")


def write_join(join: Join, path: Path) -> None:
    """Write a new join file; raises ConfigError if it cannot be written."""
    table = join.model_dump()
    for name, member in table["members"].items():
        table["members"][name] = {key: value for key, value in member.items() if value}
    text = tomli_w.dumps(table, multiline_strings=True)
    if toml_of(text) != table:  # text has line ends other than a line feed
        text = tomli_w.dumps(table)
    write_new(path, text.encode(), "name another file")
