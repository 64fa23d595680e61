"""A federation that was read from files can be read again elsewhere; one that was made in this process cannot."""

from __future__ import annotations

import pickle  # noqa: TID251  (this is how Ray sends it)
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from fedkin.data import Dataset, Source, federate
from fedkin.data.scenarios.label_skew import Iid
from fedkin.data.sources.digits import Digits
from fedkin.errors import DataError
from fedkin.federation.samples import hashes


def saved(folder: Path, seed: int = 0) -> Path:
    """A file with 60 samples of three clients."""
    rng, path = np.random.default_rng(seed), folder / "samples.npz"
    client = np.repeat(["a", "b", "c"], 20)
    np.savez(path, x=rng.normal(size=(60, 4)).astype(np.float32), y=rng.integers(2, size=60), client=client)
    return path


def test_what_travels_reads_the_same_clients_and_holds_no_sample(tmp_path: Path) -> None:
    made = federate("npz", "natural", data={"path": str(saved(tmp_path))}, data_root=tmp_path)
    assert made.origin is not None
    sent = pickle.dumps(made.origin.read)
    assert len(sent) < 2000
    assert b"torch" not in sent
    there = pickle.loads(sent)()
    assert hashes(there.values()) == hashes(made.values())


def test_a_path_means_the_same_in_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    monkeypatch.chdir(tmp_path)
    made = federate("npz", "natural", data={"path": "samples.npz"}, data_root="data")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert made.origin is not None
    assert hashes(made.origin.read().values()) == hashes(made.values())


def test_the_hash_of_a_client_tells_other_samples(tmp_path: Path) -> None:
    made = federate("npz", "natural", data={"path": str(saved(tmp_path))})
    saved(tmp_path, seed=1)
    assert made.origin is not None
    assert hashes(made.origin.read().values()) != hashes(made.values())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    made = federate("npz", "natural", data={"path": str(path)})
    path.unlink()
    assert made.origin is not None
    with pytest.raises(DataError, match=r"samples\.npz"):
        made.origin.read()


def test_clients_that_were_changed_here_are_not_read_elsewhere() -> None:
    made = federate("digits", "iid", clients=4, seed=0)
    names = sorted(made)
    other = made.relabel({names[0]: "renamed"}).reorder(["renamed", *names[1:3]])
    origin = other.origin
    assert origin is not None
    assert [origin.has(client) for client in other.values()] == [False, True, True]
    assert not origin.has(replace(made[names[1]], group="other"))


def test_code_that_another_machine_lacks_is_not_sent() -> None:
    class Own(Source):
        source: Literal["own"] = "own"

        def load(self, root: Path) -> Dataset:
            return Digits().load(root)

    class Mine(Iid):
        pass

    assert federate(Own(), "iid", clients=4).origin is None
    assert federate("digits", Mine(clients=4)).origin is None
