"""Data sets fetched from a server on this machine: checked, resumed, and refused politely."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedkin.data import fetching
from fedkin.data.fetching import ORIGINS, File, Origin, fetch
from fedkin.data.sources import SOURCES
from fedkin.errors import ConfigError, DataError
from fedkin.settings import parse

BODY = bytes(range(256)) * 40


class Handler(BaseHTTPRequestHandler):
    """Serves files, or what is left of them; cuts the next answer after `cut` bytes."""

    files: ClassVar[dict[str, bytes]] = {}
    ranges: ClassVar[list[str | None]] = []
    cut: ClassVar[int | None] = None
    takes_ranges: ClassVar[bool] = True

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.ranges.append(asked)
        body = self.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.takes_ranges else 0
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start:][: Handler.cut])
        Handler.cut = None

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    """The address of a server, and what it serves."""

    Handler.files, Handler.ranges, Handler.takes_ranges = {"/one.bin": BODY}, [], True
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_address[1]}", Handler
        finally:
            serving.shutdown()
            thread.join()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, server: Any) -> dict[str, Origin]:
    """A table of data sets of the test's own: one file of the server."""
    table = {"one": one(f"{server[0]}/one.bin")}
    monkeypatch.setattr(fetching, "ORIGINS", table)
    return table


def one(url: str, kind: str = "sha256") -> Origin:
    return Origin("ONE", "one file", (File(url, "ONE/one.bin", kind, hashlib.new(kind, BODY).hexdigest()),), ())


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_is_fetched_once(server: Any, known: dict[str, Origin], tmp_path: Path, kind: str) -> None:
    known["one"] = one(f"{server[0]}/one.bin", kind=kind)
    said: list[str] = []
    fetch("one", tmp_path, said.append)
    fetch("one", tmp_path, said.append)
    assert (tmp_path / "ONE/one.bin").read_bytes() == BODY
    assert [path.name for path in (tmp_path / "ONE").iterdir()] == ["one.bin"]
    assert len(server[1].ranges) == 1
    assert "10,240 bytes" in said[0]


@pytest.mark.parametrize("takes_ranges", [True, False])
@pytest.mark.usefixtures("known")
def test_a_download_that_was_cut_goes_on(server: Any, tmp_path: Path, takes_ranges: bool) -> None:
    server[1].cut, server[1].takes_ranges = 1000, takes_ranges
    with pytest.raises(DataError, match=r"cut after 1,000 of 10,240 bytes.*the same command continues"):
        fetch("one", tmp_path)
    assert not (tmp_path / "ONE/one.bin").exists()
    fetch("one", tmp_path)
    assert server[1].ranges == [None, "bytes=1000-"]
    assert (tmp_path / "ONE/one.bin").read_bytes() == BODY


@pytest.mark.usefixtures("known")
def test_a_damaged_file_is_fetched_anew(tmp_path: Path) -> None:
    (tmp_path / "ONE").mkdir()
    (tmp_path / "ONE/one.bin").write_bytes(b"damaged")
    fetch("one", tmp_path)
    assert (tmp_path / "ONE/one.bin").read_bytes() == BODY


@pytest.mark.usefixtures("known")
def test_what_has_no_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_LARGEST", 100)
    with pytest.raises(DataError, match="more than"):
        fetch("one", tmp_path)


def packed(kind: str) -> bytes:
    """An archive with two files that are wanted, one that is not, and one that would leave the folder."""
    made = io.BytesIO()
    files = {"x/a.bin": b"a", "x/../../b.bin": b"b", "x/readme.txt": b"no"}
    if kind == "zip":
        with zipfile.ZipFile(made, "w") as zipped:
            for name, body in files.items():
                zipped.writestr(name, body)
        return made.getvalue()
    with tarfile.open(fileobj=made, mode="w:gz") as tarred:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tarred.addfile(info, io.BytesIO(body))
        link = tarfile.TarInfo("x/link.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tarred.addfile(link)
    return made.getvalue()


def archive(server: Any, kind: str) -> File:
    """An archive of two files that the server has."""
    body = server[1].files[f"/all.{kind}"] = packed(kind)
    digest = hashlib.sha256(body).hexdigest()
    return File(f"{server[0]}/all.{kind}", f"ONE/all.{kind}", "sha256", digest, ("*.bin", 2))


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_of_an_archive_only_what_is_named_is_written(server: Any, known: Any, tmp_path: Path, kind: str) -> None:
    file = archive(server, kind)
    known["one"] = Origin("ONE/raw", "two files", (file,), ())
    fetch("one", tmp_path)
    fetch("one", tmp_path)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"ONE/raw/a.bin", "ONE/raw/b.bin"}
    assert len(server[1].ranges) == 1
    (tmp_path / "ONE/raw/more.bin").write_bytes(b"of somebody")
    fetch("one", tmp_path)
    assert len(server[1].ranges) == 1
    (tmp_path / "ONE/raw/a.bin").write_bytes(b"")
    fetch("one", tmp_path)
    assert (tmp_path / "ONE/raw/a.bin").read_bytes() == b"a"
    assert len(server[1].ranges) == 2
    known["one"] = Origin("ONE/other", "three files", (file._replace(holds=("*.bin", 3)),), ())
    with pytest.raises(DataError, match=r"2 files .* in it, expected 3"):
        fetch("one", tmp_path)


def test_files_that_somebody_put_there_are_kept(server: Any, known: dict[str, Origin], tmp_path: Path) -> None:
    known["one"] = Origin("ONE/raw", "two files", (archive(server, "zip"),), ())
    (tmp_path / "ONE/raw").mkdir(parents=True)
    for name in ("a.bin", "b.bin"):
        (tmp_path / "ONE/raw" / name).write_bytes(b"mine")
    said: list[str] = []
    fetch("one", tmp_path, said.append)
    assert said == [f"{tmp_path / 'ONE/raw'}: its 2 files are there; what they hold was not checked"]


def test_without_a_network_it_says_what_to_do(known: dict[str, Origin], tmp_path: Path) -> None:
    with socket.socket() as free:  # nobody listens there, and nobody else can
        free.bind(("127.0.0.1", 0))
        known["one"] = one(f"http://127.0.0.1:{free.getsockname()[1]}/one.bin")
        with pytest.raises(DataError, match=r"cannot be fetched \(.*refused.*put it at .*ONE/one\.bin"):
            fetch("one", tmp_path)


def test_what_a_data_set_needs_is_fetched_too(known: dict[str, Origin], tmp_path: Path) -> None:
    known["more"] = Origin("MORE", "more", (known["one"].files[0]._replace(to="MORE/more.bin"),), ("one",))
    fetch("more", tmp_path)
    assert (tmp_path / "ONE/one.bin").exists()
    assert (tmp_path / "MORE/more.bin").exists()


def test_who_gives_data_to_people_only_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"eicu-demo: cannot be fetched by a program: get .*put it in .*eicu-demo"):
        fetch("eicu-demo", tmp_path)
    with pytest.raises(ConfigError, match="NAME: no 'mnst'; did you mean 'mnist'"):
        fetch("mnst", tmp_path)


@pytest.mark.parametrize("name", sorted(ORIGINS))
def test_a_missing_data_set_says_where_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        parse(SOURCES[name], {"source": name}, "data").load(tmp_path)
    text, origin = str(refused.value), fetching.ORIGINS[name]
    # The digits of qmnist are those of mnist, which are read first.
    wanted = fetching.ORIGINS["mnist"] if name == "qmnist" else origin
    assert "--data-root DIR" in text
    assert f"{wanted.where}, in DIR/{wanted.folder}" in text
    assert ("fedkin data fetch" in text) == bool(origin.files)
