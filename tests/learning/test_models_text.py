"""The net for texts as padded token ids: what counts, what does not, and whole runs on ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Task
from fedkin.learning.models import Mlp, TextMean
from fedkin.learning.models.nets import _MeanOfWords
from fedkin.learning.net import Net
from fedkin.running.experiment import Experiment

IDS = Task(2, (6,), codes=("x",))


def test_the_mean_is_over_words_and_not_over_padding() -> None:
    body = _MeanOfWords(10, 3, padding=0)
    ids = torch.tensor([[4, 7, 0, 0], [0, 0, 0, 0], [4, 14, 4, 0]])
    table = body.vectors.weight
    expected = torch.stack([(table[4] + table[7]) / 2, torch.zeros(3), table[4]])
    torch.testing.assert_close(body(ids), expected)
    torch.testing.assert_close(body(ids[:, [3, 2, 1, 0]]), expected)
    mask = torch.tensor([[1, 0, 0, 0]] * 3)
    told = body({"input_ids": ids, "attention_mask": mask})
    torch.testing.assert_close(told, table[[4, 0, 4]])
    assert torch.isfinite(body(torch.tensor([[-100, 2**40]]))).all()


def texts(length: int = 6) -> tuple[Any, Any, list[str]]:
    """Texts that are of class 1 if one of the words 1 to 5 is in them; words are of 3,000."""
    rng = np.random.default_rng(0)
    x = rng.integers(6, 3000, (600, length))
    y = rng.integers(0, 2, 600)
    x[y == 1, 2] = rng.integers(1, 6, int(y.sum()))
    return x, y, ["a", "b", "c"] * 200


@pytest.mark.parametrize("mode", ["one-by-one", "fast"])
def test_a_federation_of_token_ids_runs_and_learns(tmp_path: Path, mode: str) -> None:
    x, y, client = texts()
    np.savez(tmp_path / "reviews.npz", x=x, y=y, client=np.array(client))
    experiment = Experiment.of({
        "name": "reviews", "data": {"source": "npz", "path": str(tmp_path / "reviews.npz"), "codes": True},
        "scenario": {"name": "natural"}, "model": {"name": "text-mean", "words": 4096},
        "training": {"rounds": 8, "local_steps": 25, "batch_size": 32, "lr": 1.0}, "method": {"name": "fedavg"},
        "run": {"mode": mode},
    })  # fmt: skip
    from fedkin.running.loop import run_experiment

    run_experiment(experiment, tmp_path, tmp_path / mode)
    models = fedkin.load(tmp_path / mode)
    assert (models.predict(x, "a") == y).mean() > 0.8


def test_inputs_of_a_tokenizer_fit() -> None:
    rng = np.random.default_rng(0)
    each = {name: [({"input_ids": rng.integers(0, 90, 8), "attention_mask": np.ones(8, np.int64)}, i % 2)
                   for i in range(20)] for name in ("a", "b")}  # fmt: skip
    fed = Federation.from_datasets(each)
    Net.build(lambda: TextMean(words=100).build(fed.task), 0).check(fed.task)


@pytest.mark.parametrize(
    "task", [Task(2, (6,)), Task(2, (3, 8, 8), codes=("x",)), Task(2, {"ids": (4,)}, codes=("ids",))]
)
def test_what_is_no_text_is_refused(task: Task) -> None:
    with pytest.raises(ConfigError, match=r"'text-mean' needs token ids \[length\] as whole numbers"):
        TextMean().build(task)


def test_a_net_for_numbers_names_the_one_for_texts() -> None:
    with pytest.raises(ConfigError, match=r"for token ids: model\.name = 'text-mean'"):
        Mlp().build(IDS)
