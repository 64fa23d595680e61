"""Run folders that are damaged or edited by hand: one line that names the file, or a report, and never a traceback."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.invoked import refused as command_refused
from fedkin.analysis.embeddings import Cloud, Features
from fedkin.errors import FedkinError, RunError
from fedkin.graph import load_graph
from fedkin.records.listing import read_listed
from fedkin.report.collect import collect
from fedkin.report.page import page
from report.fake_runs import data_in, make_run
from tiny import written

MISSING = object()


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("damaged") / "run", clients=3, rounds=2)


@pytest.fixture
def run(undamaged: Path, tmp_path: Path) -> Path:
    """A run that a test may damage."""
    shutil.copytree(undamaged, tmp_path / "run")
    return tmp_path / "run"


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """`value` with something else at a place, or without it."""
    if not place:
        return new
    value = copy.deepcopy(value)
    inner = value
    for part in place[:-1]:
        inner = inner[part]
    if new is MISSING:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return value


def edit(path: Path, place: tuple[Any, ...], new: Any) -> None:
    """Change a JSON file, or the second line of one with a line per round."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    lines[-1] = json.dumps(changed(json.loads(lines[-1]), place, new))
    path.write_text("".join(line + "\n" for line in lines))


def one_line(error: BaseException | None, path: Path) -> str:
    """The error's text, which names the file."""
    assert isinstance(error, FedkinError), error
    text = str(error)
    assert str(path) in text
    assert "\n" not in text
    return text


def refused(run: Path, path: Path) -> str:
    """The line with which a report refuses this run, for this file."""
    with pytest.raises(RunError) as caught:
        collect([run])
    return one_line(caught.value, path)


# -- the files of text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "place", "new", "said"),
    [
        ("summary.json", (), [], "input should be a valid dictionary or instance of Summary, got []"),
        ("summary.json", ("seed",), "zero", "seed: input should be a valid integer, got 'zero'"),
        ("summary.json", ("rounds",), MISSING, "rounds: field required"),
        ("summary.json", ("accuracy",), MISSING, "no accuracy in it"),
        ("summary.json", ("accuracy", "mean"), float("nan"), "mean: input should be a finite number, got nan"),
        ("summary.json", ("bytes", "up"), -3, "bytes.up: input should be greater than or equal to 0, got -3"),
        ("federation.json", (), [], "input should be a valid dictionary or instance of Facts, got []"),
        ("federation.json", ("clients", "site-001", "group"), [1], "group: input should be a valid string, got [1]"),
        ("rounds.jsonl", (), 3, "line 2: input should be a valid dictionary or instance of RoundLine, got 3"),
        ("rounds.jsonl", ("bytes",), MISSING, "line 2: bytes: field required"),
        ("rounds.jsonl", ("accuracy",), MISSING, "line 2: no accuracy in it"),
        ("rounds.jsonl", ("sampled",), ["a", 3], "line 2: sampled.1: input should be a valid string, got 3"),
        ("timing.jsonl", ("total",), "long", "line 2: total: input should be a valid number, got 'long'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(run: Path, file: str, place: tuple[Any, ...], new: Any, said: str) -> None:
    edit(run / file, place, new)
    text = refused(run, run / file)
    assert said in text
    assert "run this again in another folder" in text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*place, key))


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_any_value_anywhere_is_reported_or_refused(undamaged: Path, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(["summary.json", "federation.json", "rounds.jsonl", "timing.jsonl"]))
    path = undamaged / file
    before = path.read_text()
    value = json.loads(before.splitlines()[-1] if path.suffix == ".jsonl" else before)
    place = data.draw(st.sampled_from(list(places(value))))
    edit(path, place, data.draw(_JSON | st.just(MISSING) if place else _JSON))
    refusals: list[RunError] = []
    try:
        for act in (
            lambda: json.dumps(collect([undamaged]), allow_nan=False),
            lambda: read_listed(undamaged).figures(),
        ):
            try:
                act()
            except RunError as error:
                refusals.append(error)
    finally:
        path.write_text(before)
    assert all(one_line(error, path) for error in refusals)


# -- tables, and files of a round ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "column", "values", "said"),
    [
        ("clients", "client", [0, 1, 2] * 2, "column 'client': expected texts, got int64"),
        ("clients", "client", ["a", None, "c"] * 2, "column 'client': 2 values are missing"),
        ("clients", "round", ["1", "1", "1", "2", "2", "2"], "column 'round': expected whole numbers, got string"),
        ("clients", "accuracy", ["good"] * 6, "column 'accuracy': expected numbers, got string"),
        ("clients", "accuracy", [70.0] * 6, "in round 1: expected a share from 0 to 1, got 70.0"),
        ("messages", "bytes", ["8"], "column 'bytes': expected whole numbers, got string"),
        ("messages", "from", [None], "column 'from': expected texts, got null"),
    ],
)
def test_a_column_of_the_wrong_kind_is_named(run: Path, file: str, column: str, values: list[Any], said: str) -> None:
    path = run / f"{file}.parquet"
    table = pq.read_table(path).slice(0, len(values))
    pq.write_table(table.set_column(table.column_names.index(column), column, pa.array(values)), path)
    assert said in refused(run, path)


@pytest.mark.parametrize(
    ("ids", "client", "said"),
    [
        (("site-000", "stranger"), [0, 1], "features of client 'stranger', which the run does not have"),
        (("site-000", "site-001"), [0, 2], "a point of client 2, but there are 2"),
        (("site-000", "site-001"), [0], "2 points, (1,) clients and (2,) labels"),
    ],
)
def test_features_of_other_clients_are_named(run: Path, ids: tuple[str, ...], client: list[int], said: str) -> None:
    path = run / "features" / "round-000002.safetensors"
    path.parent.mkdir(exist_ok=True)
    cloud = Cloud(np.array(client), np.array([0, 1]), np.ones((2, 3), np.float32))
    path.write_bytes(Features(2, ids, 2, cloud).to_bytes())
    assert said in refused(run, path)


# -- graphs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [["a", "b", "c"], [0.1, float("nan"), 0.3], [0.1, 0.2, float("inf")], [[1.0, 2.0], [3.0, 4.0], [5.0, 6]]]
)
def test_values_that_the_page_cannot_draw_are_left_out(run: Path, values: list[Any]) -> None:
    path = run / "graphs" / "round-000001.npz"
    graph = load_graph(path)
    replace(graph, values={"prior": np.array(values), "centrality": np.array([0.5, 0.25, 0.25])}).save(path)
    first = data_in(page(collect([run])))["runs"][0]["graph"]["frames"][0]
    assert first["values"] == {"centrality": [0.5, 0.25, 0.25]}


# -- going on -----------------------------------------------------------------------------------------------------


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """The folder of a comparison that has begun, and no more."""
    written(tmp_path / "experiment.toml")
    (tmp_path / "plan.json").write_text('{"methods": ["local"], "seeds": [0]}')
    return tmp_path


@pytest.mark.parametrize(
    ("command", "plan", "said"),
    [
        ("compare", "{}", "methods: field required"),
        ("compare", "[]", "input should be a valid dictionary or instance of PlanFile, got []"),
        ("compare", "{", "not readable as JSON"),
        ("compare", '{"methods": "local", "seeds": [0]}', "methods: input should be a valid list, got 'local'"),
        ("compare", '{"methods": ["local"], "seeds": ["0"]}', "seeds.0: input should be a valid integer, got '0'"),
        ("compare", '{"methods": ["lokal"], "seeds": [0]}', "methods: no 'lokal'; did you mean 'local'?"),
        ("tune", '{"command": "run", "methods": [], "seeds": []}', "command: input should be 'compare', 'tune' or"),
        ("tune", '{"command": "tune", "methods": [], "seeds": [], "values": [["a"]]}', "values.0.1: field required"),
    ],
)
def test_what_has_a_damaged_plan_is_not_resumed(comparison: Path, command: str, plan: str, said: str) -> None:
    (comparison / "plan.json").write_text(plan)
    text = command_refused(command, "--resume", comparison)
    assert str(comparison / "plan.json") in text
    assert said in text


def test_a_comparison_is_not_resumed_as_a_run(comparison: Path) -> None:
    before = sorted(comparison.iterdir())
    assert "continue it with fedkin compare --resume" in command_refused("run", "--resume", comparison)
    assert sorted(comparison.iterdir()) == before
