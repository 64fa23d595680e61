"""Seconds of a pull over TLS on this machine, with and without signatures, from another process.

    OMP_NUM_THREADS=1 python benchmarks/exchange.py [--small 20] [--large 5]

Owners in processes of their own offer 20 KB and 25 MB; a pull of each is timed `--small` and `--large` times, with and
without signatures in turn, after one pull that is not timed. Printed are the median, the smallest and the largest.
Without signatures only the hash of the bytes is checked. No federation runs like this; it shows what signing costs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedkin.network import identity as keys
from fedkin.network.identity import (
    Identity,
    certificate_pem,
    certificates_of,
    load,
    make_ca,
    make_request,
    sign_request,
)
from fedkin.network.join_file import Member
from fedkin.network.offers import Offer
from fedkin.network.signing import Head, Signer
from fedkin.network.zenoh_link import ZenohLink

SIZES = {"20 KB": 20_000, "25 MB": 25_000_000}


class Unsigned(Signer):
    """Heads with a size and a hash, and without a proof of the owner."""

    def write(self, to: str, subject: str, data: bytes) -> Offer:
        digest = hashlib.sha256(data)
        head = Head(kind="unsigned", size=len(data), sha256=digest.hexdigest())
        return Offer(data, digest.digest(), head.model_dump_json().encode())

    def read(self, owner: str, subject: str, data: bytes) -> Head:
        return Head.model_validate_json(data)


def opened(folder: Path, name: str, port: int, signed: bool, **more: Any) -> ZenohLink:
    """The link of this process."""
    roots = certificates_of((folder / "ca.crt").read_bytes(), "ca.crt")
    identity = load(folder / f"{name}.key", folder / f"{name}.crt", roots)
    book = {"owner": Member(locator=f"tls/127.0.0.1:{port}"), "asker": Member()}
    link = ZenohLink(identity, book, **more)
    if not signed:
        link._signer = Unsigned(identity, book)
    return link


def own(folder: Path, port: int, signed: bool) -> None:
    """Offer until the standard input ends."""
    with opened(folder, "owner", port, signed, listen=[f"tls/127.0.0.1:{port}"]) as link:
        for number, size in enumerate(SIZES.values()):
            link.offer("asker", f"run/{number}", os.urandom(size))
        print("ready", flush=True)
        sys.stdin.read()


def prepare(folder: Path) -> None:
    """Write the files of keys and certificates."""
    ca_key, ca = make_ca("benchmark-ca", 1)
    (folder / "ca.crt").write_bytes(certificate_pem([ca]))
    for name in ("owner", "asker"):
        key = keys.make_key()
        certificate = sign_request(make_request(key, name, ["127.0.0.1"]), ca_key, ca, 1)
        made = Identity(name, key, (certificate,), (ca,))
        keys.write_private(folder / f"{name}.key", made.key_pem)
        (folder / f"{name}.crt").write_bytes(certificate_pem(made.chain))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def asking(folder: Path, signed: bool) -> Iterator[ZenohLink]:
    """A link to an owner in another process."""
    port = free_port()
    words = [sys.executable, __file__, "--own", str(folder), str(port), str(int(signed))]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdout.readline()
        with opened(folder, "asker", port, signed, dial=["owner"]) as link:
            yield link
    finally:
        child.stdin.close()
        child.wait()


def timed(link: ZenohLink, subject: str, size: int) -> float:
    start = time.perf_counter()
    assert len(link.pull("owner", subject, 120)) == size
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", type=int, default=20)
    parser.add_argument("--large", type=int, default=5)
    parser.add_argument("--own", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.own:
        folder, port, signed = options.own
        own(Path(folder), int(port), signed == "1")
        return
    repeats = {"20 KB": options.small, "25 MB": options.large}
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        with asking(Path(place), False) as plain, asking(Path(place), True) as signed_link:
            links = {"no": plain, "yes": signed_link}
            found: dict[tuple[str, str], list[float]] = {}
            for number, (name, size) in enumerate(SIZES.items()):
                for _ in range(repeats[name] + 1):
                    for kind, link in links.items():
                        found.setdefault((name, kind), []).append(timed(link, f"run/{number}", size))
    print("size   signed  pulls  median s  smallest  largest")
    for (name, kind), (_, *row) in found.items():
        about = f"{statistics.median(row):8.4f}  {min(row):8.4f}  {max(row):7.4f}"
        print(f"{name}  {kind:6}  {len(row):5}  {about}")


if __name__ == "__main__":
    main()
