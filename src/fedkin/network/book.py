"""The address book of a federation: who takes part, where each can be dialled, and which certificate is expected."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import field_validator

from fedkin.errors import ConfigError
from fedkin.network.identity import certificates_of, common_name, fingerprint
from fedkin.network.link import is_name
from fedkin.settings import Settings
from fedkin.untrusted import shown

__all__ = ["Book", "Member", "host_and_port", "locator"]

# No `#` and no `?`: Zenoh takes settings from what follows them, those of TLS too.
_LOCATOR = re.compile(r"tls/([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


def locator(text: str) -> str:
    """The text, if it is tls/HOST:PORT; raises ValueError."""
    found = _LOCATOR.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise ValueError(f"expected tls/HOST:PORT, got {shown(text, 80)!r}")
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """The host, without brackets, and the port of a locator.

    >>> host_and_port("tls/[::1]:7447")
    ('::1', 7447)
    """
    host, _, port = locator(text).removeprefix("tls/").rpartition(":")
    return host.strip("[]"), int(port)


class Member(Settings):
    """A participant as the others know it.

    locator: tls/HOST:PORT, empty for who only dials out. certificate: the certificate in PEM that is expected of it, or
    fingerprint: its SHA-256; with neither, any certificate of its name that the federation's CA signed.
    """

    locator: str = ""
    certificate: str = ""
    fingerprint: str = ""

    @field_validator("locator")
    @classmethod
    def _is_locator(cls, value: str) -> str:
        return locator(value) if value else value

    @field_validator("fingerprint")
    @classmethod
    def _is_fingerprint(cls, value: str) -> str:
        plain = "sha256:" + value.lower().removeprefix("sha256:").replace(":", "")
        if value and not _FINGERPRINT.fullmatch(plain):
            raise ValueError("expected sha256: and 64 hexadecimal digits")
        return plain if value else value

    @property
    def pin(self) -> str:
        """The fingerprint of the certificate that is expected; empty if any of the CA will do."""
        if self.certificate:
            return fingerprint(certificates_of(self.certificate.encode(), "certificate")[0])
        return self.fingerprint

    def check(self, name: str, where: str) -> None:
        """Raise ConfigError unless the certificate, if there is one, can be read and is of this name."""
        if not is_name(name):
            raise ConfigError(f"{where}: not a name of a participant: 1 to 64 of A-Z a-z 0-9 . _ -")
        if self.certificate and self.fingerprint:
            raise ConfigError(f"{where}: a certificate and a fingerprint; expected one of them")
        if self.certificate:
            first = certificates_of(self.certificate.encode(), f"{where}.certificate")[0]
            if (got := common_name(first.subject, f"{where}.certificate")) != name:
                raise ConfigError(f"{where}.certificate: it is of {got!r}; expected {name!r}")


# Participants by name, with oneself or without.
Book = Mapping[str, Member]
