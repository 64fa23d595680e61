"""Why those who dial are refused in the handshake: Zenoh alone knows, and writes it to standard output.

For a process of its own: its standard output is read while this lasts, and all but Zenoh's lines passes on unchanged.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Thread

__all__ = ["reason_of", "refusals"]

_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_THEIRS = re.compile(r" WARN .*zenoh_link_tls\S*: (.*)")
_END = b"\0fedkin: the end\n"
_REASONS = {
    "certificate expired": "the certificate of who dials has expired",
    "not valid yet": "the certificate of who dials is not valid yet",
    "CaUsedAsEndEntity": "the certificate of who dials is signed by itself, not by the CA of this federation",
    "UnknownIssuer": "the certificate of who dials is from another CA",
    "BadSignature": "the certificate of who dials is from another CA of the same name",
    "invalid peer certificate": "the certificate of who dials is not valid",
    "sent no certificates": "who dials has no certificate",
    "InvalidContentType": "who dials speaks no TLS",
    "UnknownCA": "who dials does not take our certificate: it expects another CA",
    "received fatal alert": "who dials does not take our certificate",
}


@contextmanager
def refusals(say: Callable[[str], None], note: Callable[[str, str, str], None]) -> Iterator[None]:
    """Say, and note as a refusal of nobody in particular, why a handshake with who dialled failed.

    say: gets a line, the 1st, 10th, 100th... time that there is this reason. note: `Refusals.add`.
    """
    _logged()
    sys.stdout.flush()
    kept = os.dup(1)
    read, write = os.pipe()
    os.dup2(write, 1)
    os.close(write)
    mine = sys.stdout is sys.__stdout__
    if mine:  # what Python writes goes where it went, and keeps its terminal
        sys.stdout = open(os.dup(kept), "w", buffering=1, encoding=sys.stdout.encoding)  # noqa: SIM115
    reader = Thread(target=_read, args=(read, kept, say, note), daemon=True)
    reader.start()
    try:
        yield
    finally:
        os.write(1, _END)
        reader.join()
        os.dup2(kept, 1)
        if mine:
            sys.stdout.close()
            sys.stdout = sys.__stdout__
        os.close(kept)


@cache
def _logged() -> None:
    """Have Zenoh write what it warns of in handshakes; it takes this once in a process."""
    import zenoh  # whoever has a link has it

    zenoh.init_log_from_env_or("zenoh_link_tls=warn")


def _read(source: int, target: int, say: Callable[[str], None], note: Callable[[str, str, str], None]) -> None:
    counts = Counter[str]()
    with open(source, "rb") as lines:
        for line in _until_the_end(lines):
            reason = reason_of(line)
            if reason is None:
                with suppress(OSError):
                    os.write(target, line)
            elif reason:
                counts[reason] += 1
                note("", "handshake", reason)
                if re.fullmatch("10*", str(counts[reason])):
                    say(f"refused: {reason}{f' ({counts[reason]} times)' if counts[reason] > 1 else ''}")


def _until_the_end(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield line.removesuffix(_END)
        if line.endswith(_END):
            return


def reason_of(line: bytes) -> str | None:
    """Return why a handshake failed, by a line of Zenoh; empty if it says nothing of that, None if it is another line.

    >>> reason_of(b"2026-01-01T00:00:00Z  WARN acc-0 ThreadId(04) zenoh_link_tls::unicast: peer sent no certificates")
    'who dials has no certificate'
    """
    told = _THEIRS.search(_COLOUR.sub(b"", line).decode(errors="replace"))
    if told is None:
        return None
    # A connection that ends in between is no refusal: a port is looked at, or who dials was killed.
    return next((why for part, why in _REASONS.items() if part in told[1]), "")
