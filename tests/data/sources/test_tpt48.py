"""TPT-48: windows and scaling on made-up temperatures, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.sources.tpt48 import _EAST, _NORTH, Tpt48
from fedkin.errors import ConfigError, DataError

WEST = "AL AR AZ CA CO IA ID KS LA MN MS MT ND NE NM NV OK OR SD TX UT WA WI WY IL"
STATES = sorted({*_EAST.split(), *_NORTH.split(), *WEST.split()})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """48 states; the temperature of state s in month m is 100 s + m."""
    assert len(STATES) == 48
    degrees = 100.0 * np.arange(48)[:, None] + np.arange(144)
    (tmp_path / "TPT-48").mkdir()
    np.savez(tmp_path / "TPT-48" / "tpt48.npz", temp_f=degrees.astype(np.float32), states=np.array(STATES))
    return tmp_path


def test_windows_do_not_overlap_and_are_scaled_by_the_training_states(root: Path) -> None:
    fed = fedkin.federate("tpt48", "natural", data_root=root)
    assert sorted(fed) == STATES
    assert set(fed.seen) == set(_EAST.split())
    assert {fed[id].group for id in fed.unseen} == {"west"}
    degrees = {state: 100.0 * STATES.index(state) + np.arange(144) for state in STATES}
    past = np.concatenate([degrees[state][:120] for state in _EAST.split()])
    for id in ("VT", "CA"):
        scaled = ((degrees[id] - past.mean()) / past.std()).reshape(12, 12)
        for samples, years in ((fed[id].train, range(10)), (fed[id].test, range(10, 12))):
            np.testing.assert_allclose(samples.inputs(slice(None)).numpy(), scaled[list(years), :6], rtol=1e-4)
            np.testing.assert_allclose(samples.labels().numpy(), scaled[list(years), 6:], rtol=1e-4)


def test_all_years_to_train_and_all_years_of_the_unseen_to_test(root: Path) -> None:
    data = {"split": "north-south", "test_years": 0}
    fed = fedkin.federate("tpt48", "natural", data_root=root, data=data, unseen_test="all")
    assert set(fed.seen) == set(_NORTH.split())
    assert {(len(fed[id].train), len(fed[id].test)) for id in fed.seen} == {(12, 0)}
    assert {(len(fed[id].train), len(fed[id].test)) for id in fed.unseen} == {(0, 12)}


def test_others_cannot_be_unseen(root: Path) -> None:
    with pytest.raises(ConfigError, match="tpt48 was prepared without group:west"):
        fedkin.federate("tpt48", "natural", data_root=root, unseen=0.2)
    with pytest.raises(ConfigError, match=r"scenario\.name: it deals samples out by their class labels"):
        Tpt48().load(root).train.by_class(2)


def test_files_that_are_something_else(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tpt48\.npz: no such file; expected a numpy \.npz file with temp_f"):
        Tpt48().load(tmp_path)
    file = tmp_path / "other.npz"
    source = Tpt48(path=file)
    file.write_bytes(b"PK")
    with pytest.raises(DataError, match=r"other\.npz: cannot be read"):
        source.load(tmp_path)
    np.savez(file, temp_f=np.zeros((48, 140), np.float32), states=np.array(STATES))
    with pytest.raises(DataError, match=r"temp_f is float32 \[48, 140\]"):
        source.load(tmp_path)
    np.savez(file, temp_f=np.zeros((2, 144), np.float32), states=np.array(["AL", "VT"]))
    with pytest.raises(DataError, match="states CT, DE"):
        source.load(tmp_path)
