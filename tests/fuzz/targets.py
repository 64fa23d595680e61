"""Everything that reads what others may have written, as functions of bytes that raise nothing but FedkinError."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import tomli_w
import torch

from fedkin import codec
from fedkin.analysis.embeddings import read_features
from fedkin.data.inspection import inspect
from fedkin.data.sources.eicu import read_csv
from fedkin.data.sources.folder import read_image
from fedkin.data.sources.images import Femnist, _records, read_idx
from fedkin.data.sources.npz import Npz
from fedkin.data.sources.tables import Csv, Parquet, TableSource
from fedkin.data.sources.tpt48 import _EAST, Tpt48
from fedkin.engines.transport import Envelope
from fedkin.errors import DataError, FedkinError
from fedkin.flow import Message
from fedkin.graph import Graph, Rows, Signature, load_graph, read_rows, read_signed, write_signed
from fedkin.graph.tables import read_signatures
from fedkin.network import messages as sent
from fedkin.network.agreement import Agreement, Terms
from fedkin.network.calls import Letter, Mailbox
from fedkin.network.hello import About, Hello, HelloReceived, Welcome
from fedkin.network.identity import certificate_pem, make_ca
from fedkin.network.join_file import VERSION, read_join
from fedkin.records import reading
from fedkin.records.files import read_json
from fedkin.records.listing import listed_difference, read_listed
from fedkin.records.run import read_run
from fedkin.report.collect import collect
from fedkin.running.experiment import load
from fedkin.running.grid import Choice, HoldOut, parse_seeds, split_names
from fedkin.running.tune import plan_choices
from fedkin.tasks import Task
from report.fake_runs import make_run
from support import idx_bytes
from tiny import TABLE

__all__ = ["TARGETS", "Target", "accepts"]


@dataclass(frozen=True)
class Target:
    """read(file that holds the input, folder for whatever else it needs); seeds(): inputs that it accepts."""

    read: Callable[[Path, Path], object]
    seeds: Callable[[], list[bytes]]
    name: str = "input"


def accepts(target: Target, data: bytes, folder: Path) -> bool:
    """Whether the target reads this input; raises whatever it raises but FedkinError."""
    path = folder / target.name
    path.write_bytes(data)
    try:
        target.read(path, folder)
    except FedkinError as error:
        return not str(error)  # a refusal without a word is none
    return True


# -- seeds ----------------------------------------------------------------------------------------------------


def saved(write: Callable[[Any], object]) -> bytes:
    made = io.BytesIO()
    write(made)
    return made.getvalue()


def npz(**entries: Any) -> bytes:
    return saved(partial(np.savez_compressed, **entries))


def parquet(table: Mapping[str, Any]) -> bytes:
    return saved(partial(pq.write_table, pa.table(dict(table))))


def idx(shape: tuple[int, ...], code: int = 8) -> bytes:
    return idx_bytes(np.arange(np.prod(shape)).reshape(shape), code)


IDS = np.array(["ann", "bob", "cy", "dé"])
X = np.arange(12.0).reshape(4, 3)
TUNED = {**TABLE, "methods": {"local": {"training.lr": 0.2}, "sfmtl-graph": {"method": {"lam": 0.1}}}}
PLAN = {"methods": ["local"], "seeds": [0], "try": [[None, "training.lr", [0.1, 1]]], "hold_out": "samples:0.2"}
CSV = b"client,a,b\nann,1,2.5\nbob,3,4\ncy,0,0\n"
RAW = b"client,a,kind,t\n" + b"".join(
    b"c%d,%d,%s,%d\n" % (i % 2, i, b"xy"[i % 2 : i % 2 + 1], i % 3) for i in range(12)
)
OWN = b"client,age,day,ward,ok,died\n" + b"".join(
    b"c%d,%s,2026-01-%02d,%s,%s,%d\n" % (i % 3, b"" if i == 5 else b"%d.5" % i, i + 1, b"ie"[i % 2 : i % 2 + 1],
                                         (b"true", b"false")[i % 2], i % 4 == 0) for i in range(24)
)  # fmt: skip
STAYS = b'patientunitstayid,age,note\n1,2.5,a\n2,,"b\nc"\n'
STATES = [*_EAST.split(), "CA", "TX"]


@cache
def base() -> dict[str, bytes]:
    """The files of a finished run, by name."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        folder = make_run(Path(place) / "run", clients=4, rounds=3, features=[2])
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def signed() -> dict[str, Signature]:
    x = np.random.default_rng(0).normal(size=(60, 3))
    return Rows(np.repeat(IDS[:3], 20), x, (x[:, 0] > 0).astype(np.int64)).sign()


def tree() -> dict[str, Any]:
    return {
        "round": 2, "engine": {"clients": {"a/b": {"w": torch.ones(2, 3), "n": 2}}}, "seconds": {"total": 0.5},
        "params": {"head.bias": torch.zeros(3), "odd": torch.tensor(True)}, "list": [1, [2.5, None], "é"], "none": {},
    }  # fmt: skip


def messages() -> list[bytes]:
    envelope = Envelope(1, "train", 0, "server", "ann", Message(w=torch.ones(2), n=3))
    return [codec.encode(tree()), envelope.to_bytes()]


def of_network() -> list[bytes]:
    scored = sent.Scored(n=3, loss=0.5, right=2, figures=[0.5], digest=[], further=[], model="0" * 32)
    reply, work = {"params": {"w": torch.ones(2)}, "n": 3}, sent.WorkReport(samples=3, inferred=0, flops=1.0)
    agreement = Agreement(settings="[run]", task=Task(2, (4,)), columns=("age",), metrics=(("m", True, "0"),))
    about = About(n_train=3, n_test=1, digest="0" * 32)
    spent = sent.ReleaseReport(releases=1, open={"train": ["n"]})
    box = Mailbox("ann", "server")
    box.put("r", b"answer")
    return [box.letter(), *(sent.encode(one) for one in (
        sent.Answer(number=1, reply=reply, work=work, score=scored, spent=spent),
        sent.Answer(number=1, error="no", failed=sent.Failed(words="no")),
        sent.Order(what="ask", round=1, undone=[1], phase="train", message=reply), sent.Pointer(epoch="e1", number=1),
        Hello(nonce="0" * 8, life="1", agreement=agreement, about=about), HelloReceived(missing="bob"),
        Terms(agreement=agreement), Welcome(run="r1", epoch="e1", number=1),
    ))]  # fmt: skip


def join_file() -> list[bytes]:
    ca = certificate_pem([make_ca("ca", 9)[1]]).decode()
    book = {"server": {"locator": "tls/fed.example.org:7447"}, "ca": {"certificate": ca}}
    facts = {"version": VERSION, "federation": "heart", "server": "server", "ca": ca, "experiment": "[run]"}
    return [tomli_w.dumps({**facts, "members": book}).encode()]


def images() -> list[bytes]:
    from PIL import Image

    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    return [saved(partial(picture.save, format=kind)) for kind in ("PNG", "JPEG", "BMP", "WEBP")]


# -- readers --------------------------------------------------------------------------------------------------


def each(*reads: Callable[[], object]) -> None:
    """All of these; those that refuse do not keep the others from reading."""
    refused = []
    for read in reads:
        try:
            read()
        except FedkinError as error:
            refused.append(error)
    if len(refused) == len(reads):
        raise refused[0]


def text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def option(path: Path, folder: Path) -> None:
    experiment, text = folder / "good.toml", text_of(path)
    if not experiment.exists():
        experiment.write_text(tomli_w.dumps(TABLE))
    each(
        lambda: load(experiment, [text]), lambda: load(experiment, [f"training.lr={text}"]), lambda: Choice.parse(text),
        lambda: HoldOut.parse(text), lambda: parse_seeds(text), lambda: split_names(text, "--methods"),
    )  # fmt: skip


def plan(path: Path, folder: Path) -> None:
    kept = read_json(path)
    each(lambda: plan_choices(reading.checked(reading.PlanFile, kept, path)))


def message(path: Path, folder: Path) -> None:
    data = path.read_bytes()
    found = codec.decode(data)
    codec.size(found)
    codec.encode(found)
    each(lambda: Envelope.from_bytes(data), lambda: Message(**found).nbytes)


def network_message(path: Path, folder: Path) -> None:
    data, forms = (
        path.read_bytes(),
        (sent.Answer, sent.Order, sent.Pointer, Hello, HelloReceived, Letter, Terms, Welcome),
    )
    each(*(partial(sent.read, form, data) for form in forms))


def checkpoint(path: Path, folder: Path) -> None:
    codec.read(path)


def signature(path: Path, folder: Path) -> None:
    found = Signature.from_bytes(path.read_bytes())
    Signature.from_bytes(found.to_bytes())


def table(path: Path, folder: Path) -> None:
    def saved() -> None:
        if read_signed(path) is None:
            raise DataError("no signatures")

    each(lambda: read_signatures(path), lambda: read_rows(path), lambda: read_rows(path, target="t"), saved)


def record(name: str) -> Target:
    """A file of a run, read by everything that reads runs; the others are as they should be."""

    def read(path: Path, folder: Path) -> None:
        run = folder / "run"
        if not run.exists():
            for other, data in base().items():
                # Projections of features take most of a report's time.
                if name.startswith("features") or not other.startswith("features"):
                    (run / other).parent.mkdir(parents=True, exist_ok=True)
                    (run / other).write_bytes(data)
        shutil.copyfile(path, run / name)
        with suppress(FedkinError):
            read_run(run)
        with suppress(FedkinError):
            listed_difference(read_listed(run), read_listed(run))
        collect([run])

    return Target(read, lambda: [base()[name]])


def own_table(source: Callable[..., TableSource], path: Path, folder: Path) -> None:
    """The table as training, and as `fedkin init --look`, would read it."""
    table = source(path=path, target="died", client="client", time="day", least=2)
    table.load(folder)
    inspect(*table.table(folder), str(path))


def stays(path: Path, folder: Path) -> None:
    read_csv(folder, "stays", {"patientunitstayid": "id", "age": "number", "note": "text"})


def writers(path: Path, folder: Path) -> None:
    Femnist(path=folder / "leaf").load(folder)


def femnist() -> list[bytes]:
    users = {"users": ["a", "b"], "num_samples": [1, 1], "user_data": {u: {"x": [[0.5] * 784], "y": [3]} for u in "ab"}}
    return [json.dumps(users).encode()]


TARGETS: dict[str, Target] = {
    "experiment": Target(lambda path, _: load(path), lambda: [tomli_w.dumps(t).encode() for t in (TABLE, TUNED)]),
    "option": Target(option, lambda: [b"training.lr=0.1", b"method.lam = [1, 2]", b"tfl:method.q=1,2", b"samples:0.2"]),
    "plan": Target(plan, lambda: [json.dumps(PLAN).encode()]),
    "message": Target(message, messages),
    "network-message": Target(network_message, of_network),
    "join-file": Target(lambda path, _: read_join(path), join_file),
    "checkpoint": Target(checkpoint, lambda: [codec.encode(tree())]),
    "features": Target(lambda path, _: read_features(path), lambda: [base()["features/round-000002.safetensors"]]),
    "graph": Target(lambda path, _: load_graph(path), lambda: [
        base()["graphs/round-000001.npz"], saved(Graph(tuple(IDS), np.ones((4, 4)), values={"v": X[:, 0]}).save)]),
    "npz": Target(table, lambda: [npz(ids=IDS, x=X), npz(ids=np.repeat(IDS[:2], 4), x=np.eye(8), y=np.arange(8) % 2)],
                  "input.npz"),
    "signatures": Target(table, lambda: [saved_signed()], "input.npz"),
    "csv": Target(table, lambda: [CSV, RAW], "input.csv"),
    "parquet": Target(table, lambda: [parquet({"client": IDS, "a": X[:, 0], "n": [1, 2, 3, 4]}),
                                      parquet({"client": np.repeat(IDS, 3), "k": ["x", "y"] * 6})], "input.parquet"),
    "own-csv": Target(partial(own_table, Csv), lambda: [OWN], "input.csv"),
    "own-csv-gz": Target(partial(own_table, Csv), lambda: [gzip.compress(OWN)], "input.csv.gz"),
    "own-parquet": Target(partial(own_table, Parquet), lambda: [
        saved(partial(pq.write_table, pc.read_csv(io.BytesIO(OWN)))),
    ], "input.parquet"),
    "own-npz": Target(lambda path, folder: Npz(path=path).load(folder), lambda: [
        npz(x=np.eye(8, dtype=np.float32), y=np.arange(8) % 2, client=np.repeat(IDS[:2], 4))], "input.npz"),
    "tpt48": Target(lambda path, folder: Tpt48(path=path).load(folder), lambda: [
        npz(temp_f=np.arange(26 * 144.0).reshape(26, 144), states=np.array(STATES))], "input.npz"),
    "idx": Target(lambda path, _: each(lambda: read_idx(path, 3), lambda: read_idx(path, 1),
                                       lambda: read_idx(path, 2, "ints")),
                  lambda: [idx((2, 3, 4)), idx((5,)), idx((2, 3), 12)]),
    "idx-gz": Target(lambda path, _: read_idx(path, 3), lambda: [gzip.compress(idx((2, 3, 4)))], "input.gz"),
    "cifar": Target(lambda path, _: each(lambda: _records([path], "", (10,), 0),
                                         lambda: _records([path], "", (20, 100), 1)),
                    lambda: [bytes(3073), bytes(2 * 3074)]),
    "tables": Target(stays, lambda: [STAYS], "stays.csv"),
    "tables-gz": Target(stays, lambda: [gzip.compress(STAYS)], "stays.csv.gz"),
    "femnist": Target(writers, femnist, "leaf/all.json"),
    "image": Target(lambda path, _: read_image(path, (4, 4)), images),
    "signature": Target(signature, lambda: [one.to_bytes() for one in signed().values()]),
    **{f"run-{name}": record(name) for name in (
        "summary.json", "rounds.jsonl", "timing.jsonl", "federation.json", "experiment.toml", "clients.parquet",
        "messages.parquet", "graphs/round-000001.npz", "features/round-000002.safetensors")},
}  # fmt: skip


def saved_signed() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        write_signed(Path(place) / "a.npz", signed())
        return (Path(place) / "a.npz").read_bytes()
