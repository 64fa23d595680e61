"""What each kind of task states, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.errors import ConfigError, DataError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.tasks import METRICS


def test_outputs_metrics_and_targets() -> None:
    kinds = {
        "classification": Task(10, (1, 8, 8)), "risk": Task(2, (5,), "risk"),
        "regression": Task.regression(6, (3,)), "segmentation": Task(3, (2, 8, 4), "segmentation"),
    }  # fmt: skip
    assert {kind: task.kind for kind, task in kinds.items()} == {kind: kind for kind in kinds}
    assert [task.outputs for task in kinds.values()] == [10, 2, 6, 3]
    assert [task.metric.name for task in kinds.values()] == ["accuracy", "auc", "squared_error", "dice"]
    assert [task.target_shape for task in kinds.values()] == [(), (), (6,), (8, 4)]
    assert [task.labels for task in kinds.values()] == [True, True, False, False]
    assert [m.name for m in kinds["risk"].figures] == ["auc", "average_precision"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Task(1, (2,)), "a classification task needs at least 2 classes, got 1"),
        (lambda: Task(3, (2,), "risk"), "a risk task has 2 classes, 0 and 1, got 3"),
        (lambda: Task.regression(0, (2,)), "at least 1 target"),
        (lambda: Task(4, (2,), "regression", 1), "0 classes, got 1 and 4"),
        (lambda: Task(4, (2,), targets=2), "has classes, not targets"),
        (lambda: Task(2, (5,), "segmentation"), r"images \[channels, height, width\], got shape \(5,\)"),
        (lambda: Task(2, (5,), "guessing"), "no task of kind 'guessing'"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_tasks_that_make_no_sense(make: object, says: str) -> None:
    with pytest.raises(DataError, match=says):
        make()  # type: ignore[operator]


def test_better_points_the_metrics_way() -> None:
    assert METRICS["auc"].better(0.9, 0.7) == pytest.approx(0.2)
    assert METRICS["squared_error"].better(0.9, 0.7) == pytest.approx(-0.2)


def federation_of(task: Task, y: torch.Tensor) -> Federation:
    x = torch.zeros(len(y), *task.shape)
    return Federation([Client("a", Samples(x, y), Samples(x, y))], task)


def test_targets_are_checked_by_task() -> None:
    regression, masks = Task.regression(2, (3,)), Task(2, (1, 4, 4), "segmentation")
    assert repr(federation_of(regression, torch.zeros(5, 2))).endswith("1 clients, regression of 2)")
    federation_of(masks, torch.zeros(5, 4, 4, dtype=torch.int64))
    for task, y, says in (
        (regression, torch.zeros(5, 3), r"client 'a': training targets have shape \(3,\), those of a regression task"),
        (regression, torch.zeros(5, 2, dtype=torch.int64), "finite numbers of a floating type, got torch.int64"),
        (regression, torch.full((5, 2), np.nan), "finite numbers"),
        (masks, torch.zeros(5, 4, 5, dtype=torch.int64), r"targets have shape \(4, 5\)"),
        (masks, torch.full((5, 4, 4), 2), "labels run from 2 to 2, expected 0 to 1"),
    ):
        with pytest.raises(DataError, match=says):
            federation_of(task, y)


def test_need_for_labels_names_the_setting() -> None:
    Task(2, (3,), "risk").need_labels("method.name", "'x'")
    with pytest.raises(ConfigError, match=r"method\.name: 'x' needs a class label.*this task is regression"):
        Task.regression(2, (3,)).need_labels("method.name", "'x'")


def test_from_arrays_of_every_kind() -> None:
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(20, 3)).astype(np.float32), ["a"] * 12 + ["b"] * 8
    one = Federation.from_arrays(x, x.sum(1), client, kind="regression")
    assert one.task == Task.regression(1, (3,))
    assert one["a"].train.labels().shape[1:] == (1,)
    two = Federation.from_arrays(x, np.stack([x[:, 0], x[:, 1]], 1), client, kind="regression")
    assert two.task == Task.regression(2, (3,))
    for id in two:
        torch.testing.assert_close(two[id].train.labels(), two[id].train.inputs(slice(None))[:, :2])
    assert Federation.from_arrays(x, np.zeros(20, int), client, kind="risk").task == Task(2, (3,), "risk")
    images = rng.normal(size=(20, 1, 4, 5))
    masks = Federation.from_arrays(images, (images[:, 0] > 0).astype(int), client, kind="segmentation")
    assert masks.task == Task(2, (1, 4, 5), "segmentation")
    for id in masks:
        expected = (masks[id].train.inputs(slice(None))[:, 0] > 0).long()
        assert torch.equal(masks[id].train.labels(), expected)
    for y, more, says in (
        (x[:, 0], {"kind": "regression", "classes": 3}, "a regression task has none"),
        (x[:5, 0], {"kind": "regression"}, r"y: expected numbers \[20\] or \[20, targets\], got float32 \[5\]"),
        (np.full(20, np.inf), {"kind": "regression"}, "y: row 0, of client 'a', holds NaN"),
        (np.full(20, 2), {"kind": "risk"}, r"row 0, of client 'a', has label 2; expected whole numbers 0\.\.1"),
        (np.zeros(20, int), {"kind": "segmentation"}, "y: expected whole numbers"),
    ):
        with pytest.raises(DataError, match=says):
            Federation.from_arrays(x, y, client, **more)
