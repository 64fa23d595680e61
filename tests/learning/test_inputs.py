"""Token ids, category codes and dicts of arrays reach the net as they are, in every mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

import fedkin
from fedkin.errors import ConfigError, DataError
from fedkin.federation import Client, Federation, Samples, Scale
from fedkin.learning import Net, Training
from fedkin.learning.devices import Resident
from fedkin.methods.flt import Flt
from support import WAYS, plain_fedavg

WORDS, LENGTH, CLASSES = 12, 6, 3
PLAN = {"rounds": 2, "lr": 0.2, "batch_size": 4, "local_steps": 5}
DOUBLE = {"dtype": "float64"}


class Bag(nn.Module):
    """Mean embedding of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype in (torch.int32, torch.int64)
        return torch.tanh(self.out(self.words(x).mean(-2)))


class Masked(Bag):
    """The same of the words that are there, with a number beside them."""

    def forward(self, x: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        assert x["input_ids"].dtype == torch.int64
        assert x["attention_mask"].dtype == torch.int64
        there = x["attention_mask"].unsqueeze(-1)
        mean = (self.words(x["input_ids"]) * there).sum(-2) / there.sum(-2)
        return torch.tanh(self.out(mean) + x["age"].unsqueeze(-1))


def model(kind: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(4)
    return (Bag() if kind == "ids" else Masked()), nn.Linear(4, CLASSES)


def arrays(count: int = 66) -> tuple[dict[str, np.ndarray[Any, Any]], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(inputs, labels, clients): a class prefers its own words; clients of unlike sizes."""
    draw = np.random.default_rng(2)
    y = draw.integers(0, CLASSES, count)
    ids = (4 * y[:, None] + draw.integers(0, 6, (count, LENGTH))) % WORDS
    mask = np.arange(LENGTH) < draw.integers(1, LENGTH + 1, count)[:, None]
    age = draw.normal(size=count).astype(np.float32)
    return {"input_ids": ids, "attention_mask": mask, "age": age}, y, np.sort(draw.integers(0, 4, count))


def federation(kind: str) -> Federation:
    x, y, client = arrays()
    return Federation.from_arrays(x["input_ids"] if kind == "ids" else x, y, client, name=kind)


def apart(whole: Federation) -> Federation:
    """The same with arrays of its own for every client."""
    return Federation(
        [Client(c.id, c.train.own(), c.test.own()) for c in whole.values()], whole.task, whole.name
    )  # fmt: skip


def plain_run(kind: str) -> dict[str, Tensor]:
    """FedAvg on the stored arrays, numbers in float64."""
    body, head = (part.double() for part in model(kind))
    x, _, _ = arrays()
    stored = {
        "input_ids": torch.from_numpy(x["input_ids"]), "attention_mask": torch.from_numpy(x["attention_mask"]).long(),
        "age": torch.from_numpy(x["age"]).double(),
    }  # fmt: skip

    def outputs(samples: Samples, rows: Tensor) -> Tensor:
        assert samples.rows is not None
        batch = {name: t[samples.rows[rows]] for name, t in stored.items()}
        values: Tensor = head(body(batch["input_ids"] if kind == "ids" else batch))
        return values

    return plain_fedavg(body, head, federation(kind), Training.model_validate(PLAN), outputs)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", ["ids", "dict"])
def test_fedavg_equals_a_plain_loop(kind: str, how: dict[str, Any], workers_here: None) -> None:
    want = plain_run(kind)
    for clients in (federation(kind), apart(federation(kind))):
        got = fedkin.run("fedavg", clients, model=model(kind), training=PLAN, settings={**DOUBLE, **how})
        for params in got.models.values():
            torch.testing.assert_close(params, want, rtol=1e-9, atol=1e-10)
        # Linear 5 x 4 and 4 x 3, forwards and twice that backwards.
        assert got.rounds[-1]["flops"] == 192 * got.rounds[-1]["samples"]


@pytest.mark.parametrize("method", ["sfmtl-graph", "fedproto", "mapl-plus", "ifca", "fedsr", "cfl", "tfl"])
@pytest.mark.parametrize("kind", [pytest.param("ids", marks=pytest.mark.slow), "dict"])
def test_other_methods_and_modes_agree(kind: str, method: str, workers_here: None) -> None:
    options: dict[str, Any] = {"augment": {"on": False}} if method.startswith("mapl") else {}
    runs = [
        fedkin.run(method, federation(kind), model=model(kind), training=PLAN, settings={**DOUBLE, **how}, **options)
        for how in WAYS
    ]
    for other in runs[1:]:
        torch.testing.assert_close(other.models, runs[0].models, rtol=1e-8, atol=1e-9)


def test_the_task_knows_shapes_and_codes() -> None:
    ids, both = federation("ids").task, federation("dict").task
    assert (ids.shape, ids.codes) == ((LENGTH,), ("x",))
    assert both.shape == {"input_ids": (LENGTH,), "attention_mask": (LENGTH,), "age": ()}
    assert both.codes == ("input_ids", "attention_mask")
    assert Federation.from_arrays(np.zeros((4, 2), np.float32), [0, 1, 0, 1], list("aabb")).task.codes == ()
    for kind, task in (("ids", ids), ("dict", both)):
        net = Net(*model(kind))
        net.check(task)
        assert net.width(task) == 4


@pytest.mark.parametrize(
    ("stored", "given"),
    [(np.int64, torch.int64), (np.int32, torch.int32), (np.uint8, torch.float64), (np.int16, torch.float64),
     (np.float32, torch.float64)],
)  # fmt: skip
def test_what_becomes_of_numbers(stored: Any, given: torch.dtype) -> None:
    x = np.arange(8).reshape(4, 2).astype(stored)
    for values in (x, {"one": x}):
        clients = Federation.from_arrays(values, [0, 1, 0, 1], list("aabb"), test_fraction=0)
        made = clients["a"].train.inputs(slice(None), torch.float64)
        made = made if isinstance(made, Tensor) else made["one"]
        assert made.dtype == given
        assert made.tolist() == [[0, 1], [2, 3]]


def test_a_scale_says_that_numbers_are_quantities() -> None:
    x, scale = np.full((4, 2), 255, np.int64), Scale()
    clients = Federation.from_arrays(x, [0, 1, 0, 1], list("aabb"), scale=scale)
    assert clients.task.codes == ()
    assert clients["a"].train.inputs(slice(None)).tolist() == [[1.0, 1.0]]
    both: dict[str, npt.ArrayLike] = {"image": x.astype(np.uint8), "code": x}
    made = Federation.from_arrays(both, [0, 1, 0, 1], list("aabb"), scale=scale)["a"].train.inputs(slice(None))
    assert made["image"].tolist() == [[1.0, 1.0]]
    assert made["code"].tolist() == [[255, 255]]


def test_the_fingerprint_is_of_what_inputs_hold() -> None:
    for kind in ("ids", "dict"):
        assert federation(kind).fingerprint() == apart(federation(kind)).fingerprint()
    x, y, client = arrays()
    whole = Federation.from_arrays(x, y, client).fingerprint()
    assert Federation.from_arrays(dict(reversed(x.items())), y, client).fingerprint() == whole
    assert Federation.from_arrays({**x, "age": x["age"] + 1}, y, client).fingerprint() != whole
    assert Federation.from_arrays({"ids" if k == "input_ids" else k: v for k, v in x.items()}, y, client
                                  ).fingerprint() != whole  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"age": np.zeros(65)}, r"x\['age'\]: 65 rows, x\['input_ids'\] has 66"),
        ({"age": np.full(66, np.nan)}, r"x\['age'\]: row 0, of client '0', holds NaN"),
        ({"age": np.array(["a"] * 66)}, r"x\['age'\]: expected numbers, got dtype"),
        ({3: np.zeros(66)}, r"x\[3\]: the arrays of a dict are named by text"),
    ],
)
def test_errors_name_the_entry(changes: dict[Any, Any], said: str) -> None:
    x, y, client = arrays()
    with pytest.raises(DataError, match=said):
        Federation.from_arrays({**x, **changes}, y, client)


def test_clients_must_have_the_same_entries() -> None:
    one = federation("dict")
    first, second, *_ = one.values()
    train = second.train.own()
    x: Any = train.x
    changed: list[tuple[Any, str]] = [
        ({name: t for name, t in x.items() if name != "age"}, "are input_ids, attention_mask, the task's are"),
        (x | {"age": x["age"][:, None]}, r"'age' have shape \(1,\), the task's is \(\)"),
        (x | {"input_ids": x["input_ids"].float()}, "'input_ids' are torch.float32; expected int32"),
        (x | {"age": x["age"] * torch.nan}, "'age' hold NaN"),
    ]
    for other, said in changed:
        with pytest.raises(DataError, match=f"client '1': training inputs {said}"):
            Federation([first, Client(second.id, Samples(other, train.y), Samples(other, train.y))], one.task)
    with pytest.raises(DataError, match=r"x\['age'\] and labels differ in number: 1 and"):
        Samples(x | {"age": torch.zeros(1)}, train.y)
    with pytest.raises(DataError, match="without a single array"):
        Samples({}, torch.zeros(0))


@pytest.mark.parametrize("kind", ["ids", "dict"])
@pytest.mark.parametrize("name", ["mlp", "linear", "cnn-mnist", "small-plain"])
def test_nets_of_numbers_say_so(kind: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' needs inputs that are one array of numbers, and these are"):
        fedkin.run("fedavg", federation(kind), model=name, training=PLAN)


def test_a_net_that_cannot_take_codes_says_so() -> None:
    with pytest.raises(ConfigError, match="where x holds token ids or category codes"):
        fedkin.run("fedavg", federation("ids"), model=(nn.Linear(LENGTH, 3), nn.Linear(3, 3)), training=PLAN)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Flt(graph={"groups": 2}), r"method.encoder needs inputs .* method.name = 'ifca' or 'cfl'"),
        ("pca-km-hc", r"'pca-km-hc' needs inputs .* method.name = 'ifca' or 'cfl'"),
        ("mapl", r"method.augment needs inputs .* set method.augment.on = false"),
        ("fedclassavg", r"method.augment needs inputs .* set method.augment.on = false"),
    ],
)
@pytest.mark.parametrize("kind", ["ids", "dict"])
def test_methods_of_numbers_say_which_setting_helps(kind: str, method: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fedkin.run(method, federation(kind), model=model(kind), training=PLAN)


def test_samples_of_a_dict_go_to_a_device_entry_by_entry() -> None:
    samples = federation("dict")["0"].train
    resident = Resident(torch.device("meta"))
    there, again = resident(samples), resident(samples)
    assert isinstance(there.x, dict)
    assert isinstance(again.x, dict)
    assert all(there.x[name] is again.x[name] for name in there.x)
    assert {t.device.type for t in there.x.values()} == {"meta"}
    assert Resident(torch.device("meta"), limit=0)(samples).rows is None
