"""Token ids in tables: CSV and Parquet to whole numbers of one length, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import torch

import fedkin
from fedkin.data.sources.tables import Csv, Parquet, ids_of
from fedkin.errors import ConfigError, DataError
from fedkin.running.experiment import Experiment
from fedkin.running.networked import settings_of

IDS = [[5 + row % 3, 7, *[9] * (row % 4)] for row in range(40)]
OTHERS = {"stars": [row % 2 for row in range(40)], "site": [f"s{row % 2}" for row in range(40)]}


def table(folder: Path, kind: str, ids: list[Any] = IDS) -> Any:
    """A source of a table with a column of token ids."""
    path = folder / f"texts.{kind}"
    if kind == "csv":
        texts = [one if isinstance(one, str) else " ".join(map(str, one)) for one in ids]
        pc.write_csv(pa.table({**OTHERS, "ids": texts}), path)
    else:
        pq.write_table(pa.table({**OTHERS, "ids": ids}), path)
    return (Csv if kind == "csv" else Parquet)(path=path, target="stars", client="site", tokens="ids", padding=3)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_are_filled_up_and_cut(tmp_path: Path, kind: str) -> None:
    source = table(tmp_path, kind)
    made = source.load(Path())
    assert made.task.shape == (5,)
    assert made.train.x.dtype == torch.int64
    both = torch.cat([made.train.x, made.test.x]).tolist()
    assert sorted(both) == sorted([*ids, 3, 3, 3][:5] for ids in IDS)
    cut = source.model_copy(update={"length": 2}).load(Path())
    assert {tuple(row) for row in cut.train.x.tolist()} == {(5, 7), (6, 7), (7, 7)}
    assert made.target is not None
    assert made.target.classes == ("0", "1")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_same_federation_from_both_runs_to_predictions(tmp_path: Path, kind: str) -> None:
    source = table(tmp_path, kind)
    experiment = Experiment.of({
        "name": "t", "data": source.model_dump(mode="json", exclude_none=True), "scenario": {"name": "natural"},
        "model": {"name": "text-mean", "words": 16, "padding": 3}, "training": {"rounds": 1, "lr": 0.1},
        "method": {"name": "fedavg"},
    })  # fmt: skip
    from fedkin.running.loop import run_experiment

    run_experiment(experiment, tmp_path, tmp_path / "run")
    assert fedkin.load(tmp_path / "run").predict(torch.tensor([IDS[3]])).shape == (1,)
    with pytest.raises(ConfigError, match=r"data\.tokens: over a network, token ids come from .*npz"):
        settings_of(experiment)


@pytest.mark.parametrize(
    ("kind", "bad", "why"),
    [("csv", "a review", r"row 4: 'ids': expected a list of whole numbers, got 'a review'; tokenise texts first"),
     ("parquet", [-1], r"row 4: 'ids': expected a list of whole numbers, got \[-1\]"),
     ("parquet", None, r"row 4: 'ids': expected a list of whole numbers, got None"),
     ("csv", f"7 {2**63}", r"row 4: 'ids': expected whole numbers below 2\*\*63, got '7 9223372036854775808'"),
     ("csv", "9" * 5000, r"row 4: 'ids': expected whole numbers below 2\*\*63, got '9999")],
)  # fmt: skip
def test_what_is_no_list_of_ids_is_refused(tmp_path: Path, kind: str, bad: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        table(tmp_path, kind, [*IDS[:4], bad, *IDS[5:]]).load(Path())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_texts_of_one_id_each(tmp_path: Path, kind: str) -> None:
    ids = [3 + row % 5 for row in range(40)]
    source = table(tmp_path, kind)
    one = pa.table({**OTHERS, "ids": ids})
    (pc.write_csv if kind == "csv" else pq.write_table)(one, tmp_path / f"texts.{kind}")
    made = source.load(Path())
    assert sorted(torch.cat([made.train.x, made.test.x]).tolist()) == sorted([id] for id in ids)


@pytest.mark.slow
def test_one_text_that_fills_up_all_others_beyond_the_memory_is_refused() -> None:
    rows = [[1, 2]] * 100_000 + [[1] * 1_000_000]
    with pytest.raises(DataError, match=r"t\.csv: row 100000: 'ids': has 1,000,000 token ids; filling up 100,001 texts"
                                        r" to that takes 800\.0 GB; set data\.length"):  # fmt: skip
        ids_of(rows, None, 0, "t.csv", "ids")
    assert ids_of(rows, 3, 0, "t.csv", "ids")[-2:].tolist() == [[1, 2, 0], [1, 1, 1]]
