"""Tasks: what a model predicts, and the metrics that judge its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from fedkin.errors import ConfigError, DataError

__all__ = ["METRICS", "Kind", "Metric", "Shape", "Task"]

Kind = Literal["classification", "risk", "regression", "segmentation"]

# The shape of one sample: of its array, or of each array of a dict.
Shape: TypeAlias = tuple[int, ...] | Mapping[str, tuple[int, ...]]


class Metric(NamedTuple):
    """A metric of a model on a client's test samples.

    title: for display; higher: whether higher is better; share: whether it lies in 0..1 and is shown as a
    percentage.
    """

    name: str
    title: str
    higher: bool = True
    share: bool = True

    def better(self, value: float, other: float) -> float:
        """How much better `value` is than `other`: above 0 if it is better."""
        return value - other if self.higher else other - value


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy"),
        Metric("auc", "ROC-AUC"),
        Metric("average_precision", "average precision"),
        Metric("squared_error", "squared error", higher=False, share=False),
        Metric("dice", "Dice"),
    )
}

# The first metric compares clients, methods and curves.
_FIGURES: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy",), "risk": ("auc", "average_precision"), "regression": ("squared_error",),
    "segmentation": ("dice",),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What a model predicts from inputs of `shape` (channels first for images; by name for a dict of arrays).

    codes: names of the arrays that hold token ids or category codes, which stay whole numbers ("x" if there is only one
    array); a Federation finds them itself.

    classification   one of `classes` labels: y [n] int64
    risk             0 or 1, judged by the ranking of samples: y [n] int64; two classes, so two outputs
    regression       `targets` numbers: y [n, targets] float; classes is 0
    segmentation     one of `classes` labels for each pixel, 0 the background: y [n, height, width] int64

    >>> Task(10, (1, 28, 28)).outputs, Task.regression(6, (6,)).outputs
    (10, 6)
    """

    classes: int
    shape: Shape
    kind: Kind = "classification"
    targets: int = 0
    codes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in _FIGURES:
            raise DataError(f"no task of kind {self.kind!r}; known: {', '.join(_FIGURES)}")
        if self.kind == "regression":
            if self.classes or self.targets < 1:
                raise DataError(f"a regression task needs at least 1 target and 0 classes, got {self.targets} and "
                                f"{self.classes}")  # fmt: skip
        elif self.targets:
            raise DataError(f"a {self.kind} task has classes, not targets; got {self.targets} targets")
        elif self.classes < 2:
            raise DataError(f"a {self.kind} task needs at least 2 classes, got {self.classes}")
        elif self.kind == "risk" and self.classes != 2:
            raise DataError(f"a risk task has 2 classes, 0 and 1, got {self.classes}")
        elif self.kind == "segmentation" and (isinstance(self.shape, Mapping) or len(self.shape) != 3):
            raise DataError(f"a segmentation task needs images [channels, height, width], got shape {self.shape}")

    @classmethod
    def regression(cls, targets: int, shape: Shape) -> Task:
        """`targets` numbers from inputs of `shape`."""
        return cls(0, shape, "regression", targets)

    @property
    def outputs(self) -> int:
        """Number of outputs of a model per sample; per pixel in segmentation."""
        return self.classes or self.targets

    @property
    def labels(self) -> bool:
        """Whether a sample has one class label."""
        return self.kind in ("classification", "risk")

    @property
    def figures(self) -> tuple[Metric, ...]:
        """The metrics of a model; the first is `metric`."""
        return tuple(METRICS[name] for name in _FIGURES[self.kind])

    @property
    def metric(self) -> Metric:
        """The metric by which clients and methods are compared."""
        return self.figures[0]

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one sample's target."""
        if self.kind == "regression":
            return (self.targets,)
        return self.shapes["x"][1:] if self.kind == "segmentation" else ()

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each array by name; a single array is called "x"."""
        return self.shape if isinstance(self.shape, Mapping) else {"x": self.shape}

    def numbers(
        self, where: str, instead: str = "pass a (body, head) pair of modules that takes them"
    ) -> tuple[int, ...]:
        """The shape of inputs that are one array of numbers; raises ConfigError for other inputs.

        where: the setting that needs such inputs; instead: what else to choose, for the error.

        >>> Task(2, (30,)).numbers("model.name: 'mlp'")
        (30,)
        """
        if not isinstance(self.shape, Mapping) and not self.codes:
            return self.shape
        kind = f"a dict of {', '.join(self.shape)}" if isinstance(self.shape, Mapping) else (
            "whole numbers, which are kept as token ids or category codes (hand over quantities as floats)"
        )  # fmt: skip
        ids = "; for token ids: model.name = 'text-mean'" if self.codes and where.startswith("model") else ""
        raise ConfigError(f"{where} needs inputs that are one array of numbers, and these are {kind}: {instead}{ids}")

    def need_labels(self, where: str, why: str) -> None:
        """Raise ConfigError unless a sample has one class label; `where` names the setting, `why` what needs it."""
        if not self.labels:
            raise ConfigError(f"{where}: {why} needs a class label for each sample; this task is {self.kind}")
