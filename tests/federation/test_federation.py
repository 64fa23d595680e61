"""Federation, Client, Samples, Scale, Task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin.errors import DataError
from fedkin.federation import Client, Federation, Samples, Scale, Task

TASK = Task(3, (2,))


def samples(count: int = 4, **changes: Any) -> Samples:
    made = {"x": torch.arange(2.0 * count).reshape(count, 2), "y": torch.arange(count) % 3, **changes}
    return Samples(**made)


def client(id: str = "a", **changes: Any) -> Client:
    return Client(id, **{"train": samples(), "test": samples(2), **changes})


def test_relabel_and_reorder() -> None:
    federation = Federation([client("a", group="x"), client("b", group="y")], TASK, "two")
    renamed = federation.relabel({"a": "z"})
    assert list(renamed) == ["z", "b"]
    assert renamed["z"].train is federation["a"].train
    assert renamed.planted == {"z": "x", "b": "y"}
    swapped = federation.relabel({"a": "b", "b": "a"})
    assert swapped["b"].train is federation["a"].train
    assert list(federation.reorder(["b", "a"])) == ["b", "a"]
    assert list(federation.reorder(["b"])) == ["b"]
    assert federation.reorder(["b"]).name == "two"
    with pytest.raises(DataError, match="two clients have the id 'b'"):
        federation.relabel({"a": "b"})


def test_a_client_is_shown_in_a_line() -> None:
    assert repr(client()).startswith("Client(id='a', train=Samples(4 of shape (2,)), test=Samples(2 of shape (2,)), ")


def test_an_id_that_is_no_text_is_answered_with_one() -> None:
    with pytest.raises(KeyError, match="1 is no client; ids are texts, such as '1'"):
        Federation([client("1")], TASK)[1]  # type: ignore[index]


def test_rows_of_a_shared_array() -> None:
    x, y = torch.arange(20).reshape(10, 2).to(torch.uint8), torch.arange(10) % 3
    part = Samples(x, y, torch.tensor([7, 2, 9]), Scale((1.0, 2.0), (2.0, 4.0), 1.0))
    assert len(part) == 3
    assert part.labels().tolist() == [1, 2, 0]
    assert part.labels(torch.tensor([2, 0])).tolist() == [0, 1]
    assert part.inputs(torch.tensor([0])).tolist() == [[(14 - 1) / 2, (15 - 2) / 4]]
    assert part.inputs(slice(1, 3), torch.float64).dtype == torch.float64
    fewer = part.take([2, 0])
    assert fewer.labels().tolist() == [0, 1]
    assert fewer.x is x
    assert part.take(np.array([1])).labels().tolist() == [2]
    assert Samples(x, y).take(torch.tensor([3])).inputs(slice(None)).tolist() == [[6.0, 7.0]]


def test_the_fingerprint_tells_whose_the_samples_are() -> None:
    """But neither how persons are numbered nor how samples are stored."""
    nobody, two, same, others = (
        Federation([client(train=samples(person=None if persons is None else torch.tensor(persons)))], TASK)
        for persons in (None, [1, 1, 5, 5], [0, 0, 3, 3], [1, 5, 1, 5])
    )
    stored = Federation([client(train=two["a"].train.take(range(4)).own())], TASK)
    assert two.fingerprint() == same.fingerprint() == stored.fingerprint()
    assert len({each.fingerprint() for each in (nobody, two, others)}) == 3


def test_scale_is_per_channel() -> None:
    x = torch.full((2, 3, 2, 2), 51, dtype=torch.uint8)
    out = Scale((0.1, 0.2, 0.3), (1.0, 2.0, 0.5))(x, torch.float64)
    assert out.shape == x.shape
    assert out[0, :, 0, 0].tolist() == pytest.approx([0.1, 0.0, -0.2])


NAN = torch.tensor([[0.0, float("nan")], [0.0, 0.0]])
LARGE = torch.tensor([[0.0, 1e300], [0.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([], "at least one client"),
        ([client(""),], "a client id must be printable text without spaces around it, got ''"),
        ([client(" a")], "got ' a'"),
        ([client("a\n")], r"got 'a\\n'"),
        ([client(3)], "got 3"),  # type: ignore[arg-type]
        ([client("a"), client("a")], "two clients have the id 'a'"),
        ([client(train=samples().take([]))], "client 'a' has no training samples"),
        ([client(train=samples(x=torch.zeros(4, 3)))], r"client 'a': training inputs have shape \(3,\), .*2"),
        ([client(test=samples(x=torch.zeros(4, 2, 1)))], r"client 'a': test inputs have shape \(2, 1\)"),
        ([client(train=samples(y=torch.tensor([0, 1, 2, 3])))], "'a': training labels run from 0 to 3, .*2"),
        ([client(test=samples(y=torch.tensor([0, 1, 2, -1])))], "'a': test labels run from -1 to 2"),
        ([client(train=samples(y=torch.zeros(4)))], "'a': training labels must be int64, got torch.float32"),
        ([client(train=samples(rows=torch.tensor([0, 4])))], r"'a': training rows 0..4 are outside 0..3"),
        ([client(test=samples(rows=torch.tensor([-1])))], r"'a': test rows -1..-1 are outside"),
        ([client(test=samples(2, x=NAN))], "'a': test inputs hold NaN or infinite values"),
        ([client(test=samples(2, x=LARGE))], "'a': test inputs hold NaN or infinite values"),
        ([client(train=samples(2, x=NAN / 0))], "'a': training inputs hold NaN"),
        ([client("server")], "no client may be called 'server'"),
        ([client(train=samples(rows=torch.tensor([0, 1], dtype=torch.int32)))], "training rows must be int64"),
        ([client(train=samples(scale=Scale((0.0,) * 3, (1.0,))))], "scale: mean has 3 values; expected 1, or 2"),
    ],
)  # fmt: skip
def test_bad_clients(clients: list[Client], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Federation(clients, TASK)
