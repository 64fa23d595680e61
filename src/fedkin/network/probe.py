"""Why a participant cannot be reached: a TLS handshake of our own, for Zenoh does not say what became of its own.

Only the handshake is made; the connection is then closed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import tempfile

from fedkin.network.book import host_and_port
from fedkin.network.identity import Identity, certificate_pem
from fedkin.untrusted import said, shown

__all__ = ["Answered", "NotReached", "probe"]

_TIMEOUT = 3.0
# A side that takes our certificate says nothing or sends a ticket for a next time; one that does not says so at once.
_ALERT = 3.0
_THEIRS = {
    9: "its certificate is not valid yet; is the clock right?",
    10: "its certificate has expired",
    18: "its certificate is signed by itself, not by the CA of this federation",
    19: "its certificate is from another CA",
    20: "its certificate is from another CA",
    7: "its certificate is from another CA of the same name",
    62: "its certificate is not for this host name; dial the name that it was made for, or make it with --host",
    64: "its certificate is not for this address; dial the name that it was made for, or make it with --host",
}  # fmt: skip
_OURS = {
    "EXPIRED": "our certificate has expired",
    "UNKNOWN_CA": "our certificate is from another CA than theirs",
    "CERTIFICATE_REQUIRED": "it wants a certificate, and got none",
    "BAD_CERTIFICATE": "it does not take our certificate",
    "CERTIFICATE_UNKNOWN": "it does not take our certificate",
    "DECRYPT_ERROR": "our certificate is from another CA of the same name as theirs",
    "ACCESS_DENIED": "it does not let us in",
}


class NotReached(Exception):
    """Nobody answers there yet; it may be tried again."""


class Answered(Exception):
    """Somebody answers there, and it cannot be who is looked for; the text says why."""


def probe(identity: Identity, name: str, locator: str) -> None:
    """Return if `name` answers at this locator; raises NotReached or Answered."""
    host, port = host_and_port(locator)
    try:
        raw = socket.create_connection((host, port), _TIMEOUT)
    except OSError as error:
        raise NotReached(f"{name} at {locator}: {error.strerror or error}") from None
    with raw:
        try:
            got = _handshake(identity, raw, host)
        except ssl.SSLCertVerificationError as error:
            why = _THEIRS.get(error.verify_code, f"its certificate is refused ({shown(error.verify_message, 100)})")
            raise Answered(f"{name} at {locator}: {why}") from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            # What forwards a port takes a connection, and ends it, while nobody listens behind it.
            why = "the connection was closed before the handshake had ended"
            raise NotReached(f"{name} at {locator}: {why}") from None
        except ssl.SSLError as error:
            raise Answered(f"{name} at {locator}: {_of_ours(error)}") from None
        except OSError as error:
            raise NotReached(f"{name} at {locator}: {error.strerror or error}") from None
    if got != name:
        raise Answered(f"{name} at {locator}: there is {shown(got, 64)!r}; expected {name!r}")


def _of_ours(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    for part, why in _OURS.items():
        if part in reason:
            return why
    if "ALERT" in reason:
        return f"it refused the handshake ({shown(reason.lower().replace('_', ' '), 100)})"
    return f"whoever answers there speaks no TLS, or is no node of a federation ({said(error)})"


def _handshake(identity: Identity, raw: socket.socket, host: str) -> str:
    """The common name of who answers; raises ssl.SSLError and OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=certificate_pem(identity.roots).decode())
    _load(context, identity)
    with context.wrap_socket(raw, server_hostname=host) as secure:
        secure.setblocking(False)
        with selectors.DefaultSelector() as ready:  # `select` refuses the numbers of a process with many connections
            ready.register(secure, selectors.EVENT_READ)
            if ready.select(_ALERT):
                with contextlib.suppress(ssl.SSLWantReadError):  # it was a ticket
                    secure.recv(1)
        subject: tuple[tuple[tuple[str, str], ...], ...] = (secure.getpeercert() or {}).get("subject", ())  # type: ignore[assignment]
    return next((value for parts in subject for key, value in parts if key == "commonName"), "")


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    """Python reads a key from a file only: one that its owner alone may read, for this moment."""
    number, path = tempfile.mkstemp(prefix="fedkin-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(identity.key_pem + certificate_pem(identity.chain))
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
