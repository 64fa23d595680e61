"""`fedkin init` and `fedkin init --look`: archives, folders of images, saved datasets, tables and experiments."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cli.invoked import refused, said
from fedkin.data.inspection import Finding
from fedkin.federation import Federation
from fedkin.records.files import read_json
from fedkin.records.run import read_run
from fedkin.running.experiment import load
from fedkin.running.init_experiment import FirstExperiment
from tiny import written

Arrays = dict[str, Any]
SITES = ("north", "south", "west")


@pytest.fixture(scope="module")
def digits() -> Arrays:
    """The first 300 digits of the package: bytes [n, 8, 8], labels, three hospitals by turns."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = (found.images[:300] * 15).astype(np.uint8)
    return {"x": x, "y": found.target[:300], "client": np.array(SITES)[np.arange(300) % 3]}


def started(data: Path, *more: str) -> tuple[dict[str, Any], Federation]:
    """The experiment that `init` writes, which is run for one round, and its federation."""
    file = data.with_name("first.toml")
    assert f"wrote {file}" in said("init", data, *more, "--out", file)
    out = data.with_name("out")
    said("run", file, "--set", "training.rounds=1", "--set", "training.local_steps=2", "--out", out)
    federation = load(file).federation(Path("nowhere"))
    assert sorted(read_run(out).scores) == sorted(id for id, one in federation.items() if len(one.test))
    assert read_json(out / "summary.json")["rounds"] == 1
    return tomllib.loads(file.read_text()), federation


def test_the_help_says_what_json_goes_with() -> None:
    assert "With --look: print what it finds as JSON" in " ".join(said("init", "--help", columns=200).split())


def test_an_archive_with_clients_runs_on_its_clients(digits: Arrays, tmp_path: Path) -> None:
    np.savez(tmp_path / "digits.npz", **digits)
    table, federation = started(tmp_path / "digits.npz")
    assert table["scenario"] == {"name": "natural"}
    assert table["model"]["name"] == "small-plain"
    assert sorted(federation) == sorted(SITES)
    assert federation.task.shape == (1, 8, 8)
    assert table["data"] == {"source": "npz", "path": str(tmp_path / "digits.npz"), "channels": "none"}
    looked = ("init", "--look", tmp_path / "digits.npz")
    assert [one["id"] for one in json.loads(said(*looked, "--json"))["clients"]] == sorted(SITES)
    assert "3 clients, 240 training and 60 test samples, classification" in said(*looked)


def test_an_archive_without_clients_is_dealt_at_random(digits: Arrays, tmp_path: Path) -> None:
    x = digits["x"].reshape(300, -1) / 15
    split = np.where(np.arange(300) < 240, "train", "test")
    np.savez(tmp_path / "flat.npz", x=x, y=digits["y"], split=split)
    table, federation = started(tmp_path / "flat.npz")
    assert table["scenario"] == {"name": "iid", "clients": 10}
    assert table["model"]["name"] == "mlp"
    assert sum(len(client.test) for client in federation.values()) == 60
    inputs = np.concatenate([np.asarray(client.train.inputs(slice(None))) for client in federation.values()])
    np.testing.assert_allclose((inputs.mean(), inputs.std()), (0, 1), atol=1e-4)
    for words in ("dealt at random to 10 clients", "mean and std are those of all clients' training samples"):
        assert words in (tmp_path / "first.toml").read_text()


def test_numbers_to_predict_are_a_regression(digits: Arrays, tmp_path: Path) -> None:
    x = digits["x"].reshape(300, -1) / 255
    np.savez(tmp_path / "ink.npz", x=x, y=x.sum(1) * 100.5, client=digits["client"])
    table, federation = started(tmp_path / "ink.npz")
    assert (table["data"]["kind"], federation.task.kind) == ("regression", "regression")
    assert "# scale: targets have means up to" in (tmp_path / "first.toml").read_text()
    np.savez(tmp_path / "even.npz", x=x, y=digits["y"] % 2, client=digits["client"])
    (tmp_path / "first.toml").unlink()
    said("init", tmp_path / "even.npz", "--kind", "risk", "--out", tmp_path / "first.toml")
    assert load(tmp_path / "first.toml").federation(Path()).task.kind == "risk"


@pytest.mark.parametrize(
    ("channels", "shape"), [("last", (40, 8, 12, 3)), (None, (40, 3, 8, 12)), (None, (40, 1, 8, 3))]
)
def test_where_pictures_have_their_channels_is_seen(tmp_path: Path, channels: str | None, shape: Any) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.normal(50, 9, size=shape), y=np.arange(40) % 2)
    said("init", tmp_path / "a.npz", "--out", tmp_path / "first.toml")
    experiment = load(tmp_path / "first.toml")
    assert experiment.table["data"].get("channels") == channels
    count = 3 if shape[1:] != (1, 8, 3) else 1
    assert experiment.federation(Path()).task.numbers("x")[0] == count
    assert [len(experiment.table["data"][name]) for name in ("mean", "std")] == [count, count]


@pytest.fixture
def images(digits: Arrays, tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install fedkin[images]")
    for place in range(120):
        folder = tmp_path / "images" / digits["client"][place] / f"class-{digits['y'][place] % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(digits["x"][place]).resize((16, 12)).save(folder / f"{place}.png")
    return tmp_path / "images"


@pytest.mark.slow
def test_each_folder_of_images_is_a_client(images: Path) -> None:
    table, federation = started(images)
    assert table["data"] == {"source": "folder", "path": str(images), "folders": "clients", "size": "same"}
    assert sorted(federation) == sorted(SITES)
    assert federation.task.shape == (3, 12, 16)
    shown = json.loads(said("init", "--look", images, "--json"))
    assert [(one["id"], one["train"] + one["test"]) for one in shown["clients"]] == [(id, 40) for id in SITES]


def test_images_of_unlike_sizes_are_stretched(images: Path) -> None:
    from PIL import Image

    one = next(images.glob("*/*/*.png"))
    Image.open(one).resize((90, 70)).save(one)
    said("init", images, "--out", images / "first.toml")
    assert load(images / "first.toml").federation(Path()).task.shape == (3, 64, 64)


@pytest.mark.slow
def test_what_cannot_be_read_is_one_line(digits: Arrays, images: Path, tmp_path: Path) -> None:
    def saved(**arrays: Any) -> Path:
        np.savez(tmp_path / "a.npz", **{"x": digits["x"], "y": digits["y"], **arrays})
        return tmp_path / "a.npz"

    for data, more, text in (
        (tmp_path / "none.npz", (), "no such file"),
        (tmp_path / "none", (), "no such file or folder; expected a file, or a folder of files, that ends with .csv"),
        (images / "north", (), "put them in folders CLIENT/CLASS/"),
        (images / "north" / "class-0", (), "put them in folders CLIENT/CLASS/"),
        (images, ("--target", "y"), "--target: not for these data; a folder of images is CLIENT/CLASS/"),
        (saved(), ("--client", "site"), "--client: not for these data; a .npz file says this in its arrays"),
    ):
        assert text in refused("init", data, *more, "--out", tmp_path / "first.toml")
        assert text in refused("init", "--look", data, *more)
    arrays: list[tuple[Arrays, str]] = [
        ({"y": np.eye(10)[digits["y"]]}, "array y has a column for each class; store their numbers: y.argmax(1)"),
        ({"y": digits["y"].astype(float)}, "array y holds whole numbers as float64 [300]; store classes as whole"),
        ({"y": digits["y"][:, None]}, "array y holds whole numbers as int64 [300, 1]; store classes as whole"),
        ({"y": digits["y"][:20]}, "array y: expected shape [300]"),
        ({"y": np.float64(3)}, "array y"),
        ({"split": np.array(["train"] * 300)}, "no test samples; mark some, or leave the split out"),
        ({"clients": digits["client"]}, "array clients is not one of x, y, client, group, split; expected client"),
    ]
    for parts, text in arrays:
        assert text in refused("init", saved(**parts), "--out", tmp_path / "first.toml")
    broken = next(images.glob("*/*/*.png"))
    broken.write_bytes(b"no picture")
    assert f"{broken}: cannot be read as an image" in refused("init", images, "--out", tmp_path / "first.toml")
    assert not (tmp_path / "first.toml").exists()


def test_a_table_without_a_target_names_its_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("site,age,died\nn,1,0\ns,2,1\n")
    text = "--target: name the column to predict; "
    assert f"{text}{tmp_path / 'a.csv'} has site, age, died" in refused("init", tmp_path / "a.csv")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.csv").write_text("age,died\n1,0\n2,1\n")
    assert f"{text}{tmp_path / 'd'} has age, died, file" in refused("init", tmp_path / "d")


@pytest.mark.slow  # the package is installed before the slow tests only
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
class TestSaved:
    """Datasets that `save_to_disk` wrote."""

    @pytest.fixture
    def save(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'fedkin[hub]'")
        datasets.disable_progress_bars()

        def saved(columns: dict[str, Any], test: dict[str, Any] | None = None, **features: Any) -> Path:
            def made(of: dict[str, Any]) -> Any:
                held = datasets.Dataset.from_dict(of).features.copy()
                named = {name: getattr(datasets, kind)(**more) for name, (kind, more) in features.items()}
                return datasets.Dataset.from_dict(of, features=datasets.Features({**held, **named}))

            whole = made(columns) if test is None else datasets.DatasetDict(train=made(columns), test=made(test))
            whole.save_to_disk(str(tmp_path / "saved"))
            return tmp_path / "saved"

        return saved

    def test_rows_of_clients(self, save: Callable[..., Path]) -> None:
        rng = np.random.default_rng(0)
        data = save({"site": [*SITES] * 30, "age": rng.normal(size=90).tolist(), "ward": ["icu", "er"] * 45,
                     "died": rng.integers(0, 2, 90).tolist()})  # fmt: skip
        assert f"--target: name the column to predict; {data} has site, age, ward, died" in refused("init", data)
        text = refused("init", data, "--target", "died")
        assert "--client: name the column that says whose each row is" in text
        assert "--time: not for these data; a saved dataset" in refused("init", data, "--time", "age")
        assert "did you mean 'died'" in refused("init", data, "--target", "dies", "--client", "site")
        table, federation = started(data, "--target", "died", "--client", "site")
        assert sorted(federation) == sorted(SITES)
        assert table["scenario"] == {"name": "natural"}
        said("init", "--look", data, "--target", "died", "--client", "site")

    def test_pictures_with_a_test_split(self, save: Callable[..., Path], digits: Arrays) -> None:
        from PIL import Image

        def part(rows: slice) -> dict[str, Any]:
            pictures = [Image.fromarray(one) for one in digits["x"][rows]]
            return {"picture": pictures, "digit": digits["y"][rows].tolist()}

        names = {"names": [str(digit) for digit in range(10)]}
        data = save(part(slice(0, 80)), part(slice(80, 120)), digit=("ClassLabel", names), picture=("Image", {}))
        table, federation = started(data)
        assert table["data"] == {"source": "hub", "path": str(data), "train": "train", "target": "digit",
                                 "image": "picture"}  # fmt: skip
        assert table["scenario"] == {"name": "iid", "clients": 4}
        assert sum(len(client.test) for client in federation.values()) == 40

    def test_token_ids(self, save: Callable[..., Path]) -> None:
        rng = np.random.default_rng(0)
        ids = [rng.integers(1, 50, rng.integers(3, 9)).tolist() for _ in range(60)]
        rows = {"input_ids": ids, "attention_mask": [[1] * len(one) for one in ids], "label": [0, 1] * 30,
                "client": [*SITES] * 20}  # fmt: skip
        table, federation = started(save(rows))
        assert table["model"] == {"name": "text-mean"}
        assert sorted(federation) == sorted(SITES)

    def test_a_damaged_folder_is_one_line(self, save: Callable[..., Path]) -> None:
        data = save({"label": [0, 1] * 10, "x": [1.0] * 20, "client": ["a", "b"] * 10})
        (data / "dataset_info.json").write_text("{")
        assert "saved: cannot be opened (JSONDecodeError" in refused("init", data)


def test_the_experiment_names_the_clients_that_a_finding_is_about() -> None:
    findings = (Finding("few", "2 of 3 clients have few rows", ("a", "b")), Finding("constant", "column 'x'", ("x",)))
    assert FirstExperiment({}, findings).text.splitlines()[1:] == [
        "# few: 2 of 3 clients have few rows: a, b", "# constant: column 'x'",
    ]  # fmt: skip


def test_codes_with_leading_zeros_become_categories(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{'abc'[row % 3]},{row % 5:03d},{rng.normal():.3f},{row:05d},{rng.integers(2)}" for row in range(300)]
    (tmp_path / "d.csv").write_text("site,ward,x,row,died\n" + "\n".join(lines) + "\n")
    options = ("--target", "died", "--client", "site")
    looked = said("init", "--look", tmp_path / "d.csv", *options)
    assert "column 'ward' is read as numbers, although values have leading zeros, such as '000': if they are" in looked
    assert "codes: column 'row'" not in looked  # it is the number of the row
    table, federation = started(tmp_path / "d.csv", *options)
    assert table["data"]["categories"] == ["ward"]
    assert table["data"]["leave_out"] == ["row"]
    assert federation.encoding is not None
    assert federation.encoding.names == (*(f"ward=00{ward}" for ward in range(5)), "ward=(other)", "x")
    text = (tmp_path / "first.toml").read_text()
    assert "# codes: column 'ward' is in categories, since its numbers have leading zeros" in text


@pytest.mark.slow
def test_how_a_file_is_written_is_said_once_and_stands_in_the_experiment(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stages = ["-" if row % 9 == 0 else str(row % 5) for row in range(300)]
    rows = [f"{'abc'[row % 3]};1.{rng.integers(100, 999)};{rng.integers(1, 12)}/3/2026;{stage};{rng.integers(2)}"
            for row, stage in enumerate(stages)]  # fmt: skip
    data = tmp_path / "d.csv"
    data.write_text("site;cost;seen;stage;died\n" + "\n".join(rows) + "\n")
    columns = ("--target", "died", "--client", "site")
    assert "say which: data.decimal" in refused("init", data, *columns)
    written = ("--thousands", ".", "--missing", "-,unknown", "--dates", "D/M/Y")
    assert "3 clients" in said("init", "--look", data, *columns, *written)
    table, _ = started(data, *columns, *written)
    assert {name: table["data"].get(name) for name in ("decimal", "thousands", "missing", "dates")} == {
        "decimal": None, "thousands": ".", "missing": ["-", "unknown"], "dates": "D/M/Y",
    }  # fmt: skip
    assert "data.decimal" in refused("init", data, *columns, "--decimal", ";")
    (tmp_path / "d.parquet").touch()
    for command in (("init",), ("init", "--look")):
        refusal = refused(*command, tmp_path / "d.parquet", *columns, "--dates", "D/M/Y")
        assert "--dates: not for these data; a Parquet file" in refusal


# -- tables --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stays(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "stay": np.arange(300), "hospital": rng.choice(["north", "south", "west"], 300),
        "age": rng.normal(60, 10, 300), "ward": rng.choice(["icu", "er"], 300), "died": rng.integers(0, 2, 300),
    })  # fmt: skip
    frame.to_csv(tmp_path / "stays.csv", index=False)
    (tmp_path / "each").mkdir()
    for name, own in frame.groupby("hospital"):
        own.drop(columns="hospital").to_parquet(tmp_path / "each" / f"{name}.parquet")
    return tmp_path


def test_columns_are_listed_where_no_target_is_named(stays: Path) -> None:
    text = said("init", "--look", stays / "stays.csv")
    assert "300 rows. Name the column to predict" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["ward", "category", "string", "0", "2"] in [line[:5] for line in lines]
    found = json.loads(said("init", "--look", stays / "stays.csv", "--json"))
    assert [one["kind"] for one in found["columns"]] == ["number", "category", "number", "category", "number"]


@pytest.mark.parametrize("folder", [False, True])
def test_clients_and_what_looks_wrong_are_shown(stays: Path, folder: bool) -> None:
    words = [stays / "each"] if folder else [stays / "stays.csv", "--client", "hospital"]
    text = said("init", "--look", *words, "--target", "died")
    assert "3 clients, 240 training and 60 test rows, risk of died (event: 1), 5 inputs of 3 columns" in text
    assert "id: column 'stay' differs in every row" in text
    facts = json.loads(said("init", "--look", *words, "--target", "died", "--json"))
    assert [one["id"] for one in facts["clients"]] == ["north", "south", "west"]
    assert sum(one["train"] + one["test"] for one in facts["clients"]) == 300


@pytest.mark.parametrize("folder", [False, True])
def test_the_first_experiment_file_runs(stays: Path, folder: bool) -> None:
    words = [stays / "each"] if folder else [stays / "stays.csv", "--client", "hospital"]
    file = stays / "first.toml"
    assert f"wrote {file}" in said("init", *words, "--target", "died", "--out", file)
    data = tomllib.loads(file.read_text())["data"]
    assert (data["leave_out"], data["kind"]) == (["stay"], "risk")
    said("run", file, "--set", "training.rounds=2", "--out", stays / "out")
    assert (stays / "out" / "report.html").exists()
    assert f"{file}: exists; name another file: --out" in refused("init", *words, "--target", "died", "--out", file)
    nowhere = stays / "nowhere" / "first.toml"
    assert f"{nowhere}: cannot be written" in refused("init", *words, "--target", "died", "--out", nowhere)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["stays.csv", "--target", "died"], "expected the name of the column that says whose each row is"),
        (["stays.csv", "--target", "dead", "--client", "hospital"], "did you mean 'died'"),
        (["stays.csv", "--target", "died", "--client", "hospital", "--kind", "risks"], "data.kind"),
        (["stays.txt"], "expected a file, or a folder of files, that ends with .csv"),
        (["none.csv", "--target", "died"], "no such file or folder"),
        (["empty"], "expected a file, or a folder of files, that ends with .csv"),
    ],
)
def test_what_is_wrong_is_one_line(stays: Path, words: list[str], text: str) -> None:
    (stays / "empty").mkdir()
    assert text in refused("init", "--look", stays / words[0], *words[1:])


# -- `fedkin init --look EXPERIMENT.toml`: the clients of a federation, as it is trained on ------------------------


def test_figures_are_those_of_the_federation(tmp_path: Path) -> None:
    place = written(tmp_path / "small.toml")
    federation = load(place).federation(Path("nowhere"))
    shown = json.loads(said("init", "--look", place, "--json"))
    assert [one["id"] for one in shown["clients"]] == sorted(federation)
    for one in shown["clients"]:
        client = federation[one["id"]]
        assert (one["train"], one["test"]) == (len(client.train), len(client.test))
        assert one["classes"] == np.bincount(client.train.labels().numpy(), minlength=10).tolist()
    text = said("init", "--look", place)
    assert "6 clients" in text
    assert "rot0" in text
    assert "skew" not in text  # rotations change no labels


def test_means_of_a_number_are_in_its_units(stays: Path) -> None:
    data, place = stays / "stays.csv", stays / "first.toml"
    said("init", data, "--client", "hospital", "--target", "age", "--out", place)
    looked = json.loads(said("init", "--look", place, "--json"))["clients"]
    assert all(50 < one["mean"][0] < 70 for one in looked)


def test_clients_with_classes_of_their_own_are_skewed(tmp_path: Path) -> None:
    place = written(tmp_path / "small.toml", scenario={"name": "classes-per-client", "clients": 6, "classes": 2})
    assert "skew: targets differ between clients beyond chance (effect 0." in said("init", "--look", place)


@pytest.mark.parametrize("command", [["init", "--look"], ["advise"]])
def test_options_of_tables_are_refused(tmp_path: Path, command: list[str]) -> None:
    for words in (["--target", "died"], ["--leave-out", "a"]):
        assert f"{words[0]}: not for these data" in refused(*command, written(tmp_path / "small.toml"), *words)


def test_an_empty_cell_is_no_value_of_its_column(tmp_path: Path) -> None:
    place = tmp_path / "stays.csv"
    place.write_text("site,age,died\nn,,0\ns,2,1\nn,3,0\nn,,1\n")
    column = json.loads(said("init", "--look", place, "--json"))["columns"][1]
    assert (column["empty"], column["different"], column["values"]) == (2, 2, ["2", "3"])
