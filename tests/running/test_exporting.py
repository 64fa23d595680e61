"""Exported models answer as the models of the run do, without fedkin: a frame in, predictions out."""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedkin
from cli.invoked import said
from fedkin.data.sources.tables import Csv
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Federation
from fedkin.federation.table_encoding import Encoding, profile
from fedkin.federation.table_values import as_table, need_known_texts
from fedkin.running import exported
from fedkin.running.experiment import Experiment
from fedkin.running.export import columns_of, export_model
from fedkin.running.loop import run_experiment
from support import module_at, present

PLAN = {"local_steps": 3, "lr": 0.1}
NEW: dict[str, list[Any]] = {
    "age": [50.0, 70.0, None, 1e9],
    "ward": ["icu", "a", "elsewhere", None],
    "bed": [1, 2, None, 3],
    "admitted": [date(2024, 1, 5), date(2030, 2, 1), None, date(2024, 3, 1)],
    "smoker": [True, False, None, True],
}


def rows(count: int = 120) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    days = [date.fromordinal(738_886 + int(day)) for day in rng.integers(0, 90, count)]
    return {
        "age": [None if rng.random() < 0.2 else float(age) for age in rng.normal(60, 10, count)],
        "ward": [None if rng.random() < 0.2 else str(ward) for ward in rng.choice(["icu", "a", "b"], count)],
        "bed": rng.integers(1, 3, count).tolist(), "admitted": days, "smoker": (rng.random(count) < 0.4).tolist(),
        "days": rng.gamma(2, 3, count).tolist(), "stay": rng.choice(["short", "long", "none"], count).tolist(),
        "died": (rng.random(count) < 0.4).tolist(), "hospital": ["north", "south"] * (count // 2),
    }  # fmt: skip


@cache
def wards(target: str) -> fedkin.Loaded:
    """The models of one run for all tests."""
    folder = Path(tempfile.mkdtemp(prefix="fedkin-wards-"))
    others = [name for name in ("days", "stay", "died") if name != target]
    fed = Federation.from_frame(rows(), target=target, client="hospital", leave_out=others, categories=("bed",))
    fedkin.run("local", fed, rounds=2, training=PLAN, out=folder)
    return fedkin.load(folder)


def beside(path: Path) -> Any:
    """The module that was written with an exported model."""
    return module_at(path.with_suffix(".py"))


def test_what_is_written_imports_no_fedkin() -> None:
    tree = ast.parse(Path(exported.__file__).read_text())
    names = {(node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
             for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
             for alias in node.names}  # fmt: skip
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"numpy", "torch", "onnxruntime"}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["days", "stay", "died"])
def test_a_frame_goes_in_and_the_run_s_predictions_come_out(tmp_path: Path, target: str) -> None:
    models, out = wards(target), tmp_path / "north.pt2"
    said("export", present(models.folder), "--client", "north", "--out", out)
    module, expected = beside(out), models.predict(NEW, "north")
    found = module.predict(NEW)
    assert found.shape == expected.shape
    if target == "stay":
        assert found.tolist() == expected.tolist()
        np.testing.assert_allclose(module.outputs(NEW), models.probabilities(NEW, "north"), rtol=1e-5)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    (alone,) = module.predict({name: values[:1] for name, values in NEW.items()})
    assert alone == (found[0] if target == "stay" else pytest.approx(found[0], rel=1e-5))


def frames() -> dict[str, Callable[[], Any]]:
    return {
        "pandas": lambda: pd.DataFrame(NEW), "polars": lambda: pytest.importorskip("polars").DataFrame(NEW),
        "arrow's types": lambda: pd.DataFrame(NEW).convert_dtypes(),
        "times": lambda: pd.DataFrame({**NEW, "admitted": pd.to_datetime(pd.Series(NEW["admitted"]))}),
        "text, as of a CSV file": lambda: {
            name: [None if value is None else str(value) for value in values] for name, values in NEW.items()
        },
    }  # fmt: skip


@pytest.mark.parametrize("kind", list(frames()))
def test_any_frame_gives_the_same(tmp_path: Path, kind: str) -> None:
    models = wards("days")
    path, *_ = export_model(models, "north", "torch", tmp_path / "north.pt2")
    np.testing.assert_allclose(beside(path).predict(frames()[kind]()), models.predict(NEW, "north"), rtol=1e-5)


def test_the_encoding_beside_the_program_is_that_of_the_run() -> None:
    kinds: Any = {"a": "number", "ward": "category", "b": "number", "same": "number", "bed": "category"}
    table = as_table({
        "a": [1.0, 2.0, None, 1e6], "ward": ["x", None, "y", "x"], "b": [3, 4, 5, 6], "same": [7.0] * 4,
        "bed": ["1", "2", "1", "1"],
    })  # fmt: skip
    encoding = Encoding.of([profile(table, kinds)], kinds, least=1)
    rows = {"a": [1.0, None, 2.0], "ward": ["x", "z", None], "b": [3.0, 1e9, None], "same": [7.0, 8.0, None],
            "bed": ["1", None, "2"]}  # fmt: skip
    form = {"columns": columns_of(encoding), "far": encoding.FAR}
    (inputs,) = exported.arrays_of(rows, form)
    np.testing.assert_array_equal(inputs, encoding(as_table(rows)))
    endless = exported.arrays_of({**rows, "b": [3.0, 1e9, float("inf")]}, form)
    np.testing.assert_array_equal(endless[0], inputs)


@pytest.mark.parametrize(("known", "given", "fits"), [
    (("01067", "80331"), [1067, 80331], False),  # a number has no leading zeros
    (("ja", "nein"), [True, False], False),
    (("ja", "nein"), [1, None], False),
    (("1", "2", "unknown"), [1.0, 2.0, None, 3.0], True),
    (("false", "true"), [True, None], True),
    (("01", "02"), [None, None], True),
    ((), [1, 2], True),
])  # fmt: skip
def test_numbers_in_place_of_the_texts_of_training_are_refused(
    known: tuple[str, ...], given: list[Any], fits: bool
) -> None:
    column = {"name": "plz", "kind": "category", "values": known, "flagged": False}
    for check in (
        lambda: need_known_texts(as_table({"plz": given}), "plz", known),
        lambda: exported._encoded(given, column, 10.0),
    ):
        wrong = pytest.raises(
            (DataError, ValueError), match=f"'plz': expected texts such as '{known[:1] and known[0]}'"
        )
        with nullcontext() if fits else wrong:
            check()


def test_stored_images_and_several_arrays_go_in_as_they_are(tmp_path: Path) -> None:
    fed = fedkin.federate("digits", "rotated-masked", clients=4, seed=0)
    fedkin.run("fedavg", fed, rounds=1, training=PLAN, out=tmp_path / "run")
    models = fedkin.load(tmp_path / "run")
    path, *_ = export_model(models, None, "torch", tmp_path / "all.pt2")
    x = fed["c00"].test.x[:5]
    assert beside(path).predict(x.numpy()).tolist() == models.predict(x).tolist()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([self.table(x["ids"]).mean(1), x["age"]], 1)


def test_a_dict_of_token_ids_and_numbers_goes_in(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    each = {name: [({"ids": rng.integers(0, 9, 5), "age": rng.normal(size=2).astype(np.float32)}, i % 2)
                   for i in range(20)] for name in ("a", "b")}  # fmt: skip
    fed = Federation.from_datasets(each)
    pair = Words(), nn.Linear(6, 2)
    fedkin.run("local", fed, rounds=1, model=pair, training=PLAN, out=tmp_path / "run")
    models = fedkin.load(tmp_path / "run", model=pair)
    path, *_ = export_model(models, "a", "torch", tmp_path / "a.pt2")
    x = {"ids": rng.integers(0, 9, (3, 5)), "age": rng.normal(size=(3, 2)).astype(np.float32)}
    assert beside(path).predict(x).tolist() == models.predict(x, "a").tolist()
    # Codes outside of the embedding, in the second batch too.
    for code, codes in ((57, "ids from 0 to 57"), (-1, "ids from -1 to 0")):
        ids = np.zeros((1500, 5), np.int64)
        ids[1200, 3] = code
        odd = {"ids": ids, "age": np.zeros((1500, 2), np.float32)}
        words = f"the model has no embedding for a code; the codes are: {codes}"
        with pytest.raises(ValueError, match=f"^{words}$"):
            beside(path).predict(odd)
        with pytest.raises(DataError, match=f"^x: {words}$"):
            models.predict(odd, "a")


def test_another_index_error_of_a_model_is_not_blamed_on_codes() -> None:
    assert exported.no_embedding({"x": np.zeros((3, 5))}) == ""


def test_onnx_gets_no_negative_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(run=lambda outputs, inputs: [inputs["ids"]])
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=lambda path: session))
    about = {"program": "a.onnx", "inputs": [{"name": "ids"}]}
    (tmp_path / "a.json").write_text(json.dumps(about))
    run = exported._program(tmp_path / "a.py")
    assert run([np.array([[0, 3]])]).tolist() == [[0, 3]]
    with pytest.raises(ValueError, match=r"^ids: expected 0 or more, got -1, which ONNX counts from the end$"):
        run([np.array([[0, -1]])])


def test_rows_that_do_not_fit_are_refused_by_column_and_row(tmp_path: Path) -> None:
    path, *_ = export_model(wards("days"), "north", "torch", tmp_path / "north.pt2")
    predict = beside(path).predict
    with pytest.raises(ValueError, match="no column 'age'"):
        predict({"ward": ["icu"]})
    with pytest.raises(ValueError, match="column 'age', row 1: expected a number or a date, got 'old'"):
        predict({**{name: values[:2] for name, values in NEW.items()}, "age": [5, "old"]})
    with pytest.raises(ValueError, match="no rows"):
        predict({name: [] for name in NEW})
    with pytest.raises(ValueError, match="different lengths"):
        predict({**NEW, "age": [5]})


def file_of(place: Path, write: Callable[[int], list[str]], delimiter: str = ",") -> Path:
    """A table of 120 rows with a ward that has an effect: cells of (age, ward, day, smoker), by row, are written."""
    names = ["hospital", "age", "ward", "day", "smoker", "died"]
    lines = [delimiter.join(["ns"[row % 2], *write(row), str(int(row % 3 == 0 or row % 7 == 0))]) for row in range(120)]
    place.write_text("\n".join([delimiter.join(names), *lines]) + "\n", encoding="utf-8-sig")
    return place


FILES: dict[str, tuple[Callable[[int], list[str]], str, dict[str, Any]]] = {
    "gaps, also written NA, null and by its own text": (
        lambda row: [["NA", "", "?", f"{row}"][row % 4], ["NA", "icu", "null", "?"][row % 4], "2026-01-31", "True"],
        ",", {"missing": ["?"], "categories": ["smoker"]},
    ),
    "days first": (lambda row: [f" {40 + row}", "NA", f"{1 + row % 28:02}.12.2026", "false"], ",", {}),
    "stated dates, which are categories": (
        lambda row: [f"{row}", "a", f"{1 + row % 3}/12/2026", "false"], ",", {"dates": "D/M/Y", "categories": ["day"]},
    ),
    "commas as decimal signs": (
        lambda row: [f"1.{row:03},5", "a", "10:30", "TRUE"], ";", {"decimal": ",", "thousands": "."},
    ),
    "commas as decimal signs, found by their digits": (
        lambda row: [f"1.{row:03},5" if row % 3 else f"{row},25", "a", "10:30", "TRUE"], ";", {},
    ),
    "commas for thousands, found by their points": (lambda row: [f"1,{row:03}.5", "a", "10:30", "TRUE"], ";", {}),
    "points for thousands": (lambda row: [f"{1 + row}.000", "a", "10:30", "TRUE"], ";", {"decimal": ","}),
}  # fmt: skip


def run_on(place: Path, folder: Path, settings: dict[str, Any]) -> tuple[fedkin.Loaded, Csv]:
    """The models of a run on this file, and its section [data]."""
    data = {"source": "csv", "path": str(place), "target": "died", "client": "hospital", **settings}
    table = {"name": "wards", "data": data, "scenario": {"name": "natural"}, "model": {"name": "mlp", "hidden": [4]},
             "training": {"rounds": 2, "lr": 0.3, "local_steps": 2}, "method": {"name": "fedavg"}}  # fmt: skip
    run_experiment(Experiment.of(table), folder, folder / "run")
    return fedkin.load(folder / "run"), Csv.model_validate(data)


def printed(path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[float]:
    """What the program beside an exported model prints for these rows."""
    monkeypatch.setattr(sys, "argv", ["north.py", str(rows)])
    capsys.readouterr()
    beside(path)._main()
    head, *lines = capsys.readouterr().out.split()
    assert head == "prediction"
    return [float(line) for line in lines]


def test_a_reader_that_has_enough_gets_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "argv", ["north.py", "rows.csv"])
    monkeypatch.setattr(exported, "about", dict)
    monkeypatch.setattr(exported, "_csv_columns", lambda path, about: {})
    monkeypatch.setattr(exported, "predict", lambda rows: np.ones(3))
    with open(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(SystemExit) as ended:
            exported._main()
    assert ended.value.code == 1


@pytest.mark.parametrize("kind", list(FILES))
def test_the_file_of_the_training_rows_gives_the_run_s_predictions(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, delimiter, settings = FILES[kind]
    place = file_of(tmp_path / "wards.csv", write, delimiter)
    models, source = run_on(place, tmp_path, settings)
    path, *_ = export_model(models, None, "torch", tmp_path / "north.pt2")
    expected = models.predict(source.read(place))
    assert len(set(expected)) > 1
    np.testing.assert_allclose(printed(path, place, monkeypatch, capsys), expected, rtol=1e-5)


def test_the_line_with_which_excel_names_the_delimiter_is_no_row(tmp_path: Path) -> None:
    place = tmp_path / "new.csv"
    place.write_text('sep=|\nage|ward\n60|"a,b;c"\n', encoding="utf-8-sig")
    assert exported._csv_cells(str(place), None) == ({"age": ("60",), "ward": ("a,b;c",)}, "|")


def test_a_text_that_a_frame_had_as_a_category_is_none_that_is_missing() -> None:
    column, form = {"name": "drug", "kind": "category", "values": ["NA", "K"]}, {"missing": ["NA", ""]}
    assert [exported._cell(text, column, 1, form) for text in ("NA", "", "K")] == ["NA", None, "K"]


@pytest.mark.parametrize(("data", "says"), [
    (b"age,ward,bed,admitted,smoker\n60\n", "row 1: expected 5 cells, one for each column, got 1"),
    (b"age,ward,bed,admitted,smoker\n60,K\xf6ln,1,2024-01-05,true\n", "not UTF-8; save it as UTF-8"),
    (b"age,ward,bed,admitted,smoker\n61 years,a,1,2024-01-05,true\n", "column 'age', row 1: expected a number"),
    (b"age;ward;bed;admitted;smoker\n61,500;a;1;2024-01-05;true\n", "got '61,500'; write 61.5 and 2026-01-31, or as"),
    (b"age;ward;bed;admitted;smoker\n7;a;1;2024-01-05;true\n1.104;a;1;2024-01-05;true\n",
     "column 'age', row 2: '1.104' may be 1104 or 1.104; data.decimal or data.thousands of the run says which"),
    (b"age,age,ward,bed,admitted,smoker\n60,61,a,1,2024-01-05,true\n", "two columns are called 'age'"),
    (b"age,ward,bed,admitted,smoker\n", "no rows"),
    (b"", "no rows"),
    (None, "No such file"),
])  # fmt: skip
def test_a_file_that_does_not_fit_is_refused_in_a_sentence(
    tmp_path: Path, data: bytes | None, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, *_ = export_model(wards("days"), "north", "torch", tmp_path / "north.pt2")
    if data is not None:
        (tmp_path / "new.csv").write_bytes(data)
    with pytest.raises(SystemExit) as ended:
        printed(path, tmp_path / "new.csv", monkeypatch, capsys)
    assert str(ended.value.code).startswith(f"{tmp_path / 'new.csv'}: ")
    assert says in str(ended.value.code)


def test_nothing_is_written_over_and_names_must_fit(tmp_path: Path) -> None:
    models = wards("days")
    (tmp_path / "north.json").write_text("mine")
    with pytest.raises(ConfigError, match=r"north\.json exists; name another file"):
        export_model(models, "north", "torch", tmp_path / "north.pt2")
    with pytest.raises(ConfigError, match=r"ends with \.pt2"):
        export_model(models, "north", "torch", tmp_path / "north.onnx")
    assert (tmp_path / "north.json").read_text() == "mine"


def test_without_onnx_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = wards("days")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"^to = 'onnx' needs onnx.*: pip install 'fedkin\[onnx\]'"):
        export_model(models, "north", "onnx", tmp_path / "x.onnx")


@pytest.mark.slow
def test_onnx_gives_the_same_predictions(tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"needs {name}")
    fed = fedkin.federate("digits", "rotated-masked", clients=4, seed=0)
    fedkin.run("fedavg", fed, rounds=1, model="small-residual", training=PLAN, out=tmp_path / "digits")
    models, x = fedkin.load(tmp_path / "digits"), fed["c00"].test.x[:5]
    path, *_ = export_model(models, None, "onnx", tmp_path / "all.onnx")
    np.testing.assert_allclose(beside(path).outputs(x.numpy()), models.probabilities(x), atol=1e-5)
    for target in ("days", "stay"):
        models = wards(target)
        path, about, _ = export_model(models, "north", "onnx", tmp_path / f"{target}.onnx")
        found, expected = beside(path).predict(NEW), models.predict(NEW, "north")
        if target == "days":
            np.testing.assert_allclose(found, expected, rtol=1e-4)
        else:
            assert found.tolist() == expected.tolist()
        assert json.loads(about.read_text())["program"] == path.name
    # A stable sort has no form in ONNX.
    fedkin.run("knn-per", fed, rounds=1, training=PLAN, out=tmp_path / "voting")
    models = fedkin.load(tmp_path / "voting")
    with pytest.raises(ConfigError, match=r"ONNX has no form of this model \(.*sort.*\); export it to torch"):
        export_model(models, "c00", "onnx", tmp_path / "voting.onnx")
    path, *_ = export_model(models, "c00", "torch", tmp_path / "voting.pt2")
    np.testing.assert_allclose(beside(path).outputs(x.numpy()), models.probabilities(x, "c00"), atol=1e-5)
