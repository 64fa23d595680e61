"""Scores of a client's model on its test samples: the loss, the figures of the task, and further metrics."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedkin.codec import Params
from fedkin.errors import ConfigError, MethodError
from fedkin.federation import Samples
from fedkin.learning.devices import CPU
from fedkin.learning.losses import per_sample
from fedkin.learning.net import BodyHead, Net
from fedkin.learning.sgd import infer, load, outputs
from fedkin.tasks import METRICS, Task
from fedkin.untrusted import error_text, escaped, plain_word

Values = npt.NDArray[Any]
Figures = tuple[float | None, ...]


# -- the figures of a task --------------------------------------------------------------------------------------------


class Score(NamedTuple):
    """The score of outputs on a set of n samples.

    loss: mean over samples. right: number of correct class labels (0 for tasks without labels). figures: those of
    `task.figures`, None where these samples do not determine a figure; empty for classification, which has `right`.
    digest: the data from which figures over several clients are computed. outcomes: a number for each sample, 1 or 0
    for a right or wrong label (uint8), or a squared error or part of Dice (float32, little-endian); empty for risk
    tasks, whose digest has this information. further: the values of `Setup.measures`, in their order; empty before they
    are computed.
    """

    n: int
    loss: float
    right: int
    figures: Figures = ()
    digest: tuple[tuple[float, ...], ...] = ()
    outcomes: bytes = b""
    further: Figures = ()


NO_SCORES = Score(0, math.nan, 0)


def score(net: Net, module: BodyHead, params: Params, parts: Iterable[Samples], task: Task) -> list[Score]:
    """Score the model on each of these sets of samples; an empty set gives NO_SCORES.

    Samples are on the device of the module. Each set passes through the net alone, so that its figures do not depend on
    the others. Raises MethodError if an output is not finite.
    """
    load(module, params)
    return [
        scores_of(task, outputs(net, module, "logits", samples), samples.labels().to(CPU))
        if len(samples)
        else NO_SCORES
        for samples in parts
    ]


def scores_of(task: Task, outputs: Tensor, targets: Tensor) -> Score:
    """Score outputs [n, ...] against targets [n, ...], n at least 1; raises MethodError if an output is not finite.

    classification   right: the number of samples with the largest output at the label
    risk             figures: ROC-AUC and average precision of output 1 minus output 0 (None with one class only);
                     digest: these scores, and the labels
    regression       figures: squared error, summed over the targets of a sample, mean over samples
    segmentation     figures: Dice; digest: for each class except the background, the number of pixels in both
                     prediction and truth, and the sum of the numbers of pixels in each, over all samples; outcomes:
                     the contribution of each sample to the Dice of all samples: their mean is this Dice, and their
                     variance is that of the linearised Dice
    """
    wide = outputs.double()
    wrong = int((~torch.isfinite(wide)).flatten(1).any(1).sum())
    if wrong:
        raise MethodError(
            f"the model's outputs are not finite for {wrong} of {len(targets)} test samples, so that it has no "
            "figures; look for inputs that the net does not take, or set training.lr lower"
        )
    losses = per_sample(task)(wide, targets).tolist()
    # The mean depends neither on the order of samples nor on the machine.
    n, loss = len(losses), math.fsum(losses) / len(losses)
    if task.kind == "regression":
        errors = (wide - targets.double()).square().sum(1)
        return Score(n, loss, 0, (float(errors.mean()),), outcomes=_bytes(errors.numpy()))
    if task.kind == "segmentation":
        both, either = _overlap(outputs.argmax(1), targets, task.classes)
        sums = both.sum(0), either.sum(0)
        digest = tuple(tuple(counts.tolist()) for counts in sums)
        return Score(n, loss, 0, _without_nan(_dice(*sums)), digest, _bytes(_dice_parts(both, either)))
    correct = (outputs.argmax(1) == targets).to(torch.uint8)
    if task.kind == "classification":
        return Score(n, loss, int(correct.sum()), outcomes=correct.numpy().tobytes())
    margins, labels = (wide[:, 1] - wide[:, 0]).numpy(), targets.numpy()
    digest = tuple(margins.tolist()), tuple(labels.astype(np.float64).tolist())
    return Score(n, loss, int(correct.sum()), _ranked(margins, labels), digest)


def pooled(task: Task, parts: Sequence[tuple[int, Score]]) -> Figures:
    """Return `task.figures` over the samples of several clients together, from (samples, scores) of each client.

    Each client has at least one sample. A figure that needs clients' digests is None if a digest is missing: over a
    network, the scores of single samples stay at the client.
    """
    sizes, scores = zip(*parts, strict=True)
    if task.kind == "classification":
        return (sum(score.right for score in scores) / sum(sizes),)
    if task.kind == "regression":
        return (sum(n * (score.figures[0] or 0.0) for n, score in parts) / sum(sizes),)
    digests = [score.digest for score in scores]
    if not all(digests):
        return (None,) * len(task.figures)
    first, second = zip(*digests, strict=True)
    if task.kind == "segmentation":
        return _without_nan(_dice(np.sum(first, axis=0), np.sum(second, axis=0)))
    return _ranked(np.concatenate(first), np.concatenate(second))


def roc_auc(scores: Values, labels: Values) -> float:
    """Return P(score of a 1 > score of a 0), with half of the ties (Mann and Whitney); nan without both classes.

    scikit-learn's function takes 2.6 ms for a client of 100 samples, and this one .06 ms.

    >>> roc_auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return math.nan
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2  # the mean rank of each value's ties, from 1
    return float((rank[place][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def average_precision(scores: Values, labels: Values) -> float:
    """Return sum_k (R_k - R_{k-1}) P_k over the thresholds, from high to low; nan without both classes.

    P and R are precision and recall; equal scores share one threshold.

    >>> round(average_precision(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])), 4)
    0.8333
    """
    positive = labels == 1
    if positive.all() or not positive.any():
        return math.nan
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    gained = np.diff(hits[last], prepend=0)
    return float((gained / hits[-1] * (hits[last] / (last + 1))).sum())


def _ranked(scores: Values, labels: Values) -> Figures:
    return _without_nan(roc_auc(scores, labels), average_precision(scores, labels))


def _without_nan(*figures: float) -> Figures:
    """Replace nan by None, which equals itself and which JSON can hold."""
    return tuple(None if math.isnan(figure) else figure for figure in figures)


def _bytes(numbers: Values) -> bytes:
    return numbers.astype("<f4").tobytes()


def _overlap(predicted: Tensor, truth: Tensor, classes: int) -> tuple[Values, Values]:
    """Return two arrays [samples, classes except 0]: pixels in both, and the sum of the pixels in each."""
    pairs = [((predicted == label).flatten(1), (truth == label).flatten(1)) for label in range(1, classes)]
    both = torch.stack([(p & t).sum(1) for p, t in pairs], 1).double()
    either = torch.stack([p.sum(1) + t.sum(1) for p, t in pairs], 1).double()
    return both.numpy(), either.numpy()


def _dice_parts(both: Values, either: Values) -> Values:
    """Return each sample's contribution to the Dice of all samples, which is their mean; empty if no class occurs."""
    total = either.sum(0)
    occurs = total > 0
    if not occurs.any():
        return np.zeros(0)
    dice = 2 * both.sum(0)[occurs] / total[occurs]
    gap = 2 * both[:, occurs] - dice * either[:, occurs]
    return np.asarray((dice + len(both) * gap / total[occurs]).mean(1))


def _dice(both: Values, either: Values) -> float:
    """Return the mean of 2 |A and B| / (|A| + |B|) over the classes that occur; nan if no class occurs."""
    occurs = either > 0
    return float((2 * both[occurs] / either[occurs]).mean()) if occurs.any() else math.nan


# -- further metrics: fedkin's own, and those of its users ------------------------------------------------------------

LARGEST = 1e150  # largest value of a metric: the square of a larger one overflows

# Columns of `Result.to_frame`, of comparisons and of the report, where each metric adds a column of its own name.
_COLUMNS = {
    *METRICS, "adds", "ari", "client", "clients", "epsilon", "gain", "gap", "groups", "hurt", "loss", "mean", "method",
    "n", "round", "sent", "unseen", "worst10", "worst20",
}  # fmt: skip


class Unmeasured(MethodError):
    """A metric failed on a client's samples. The message may contain samples; `public` never does, and may be sent."""

    def __init__(self, measure: Measure, client: str, words: str, kind: str) -> None:
        super().__init__(f"metric {measure.name!r}, client {client!r}: {words}")
        self.public = f"metric {measure.name!r} failed ({kind}): the participant's own log says why"


@dataclass(frozen=True, eq=False)
class Measure:
    """A metric of a model on one client's test samples.

    function: (outputs [n, ...] before any softmax, targets [n, ...]) as NumPy arrays, n at least 1 -> a number; None or
    nan where these samples do not determine it, and the client is then left out of the mean. higher: whether higher
    is better. share: whether it lies in 0..1. module: the module that made the metric (empty: that of the function).
    """

    name: str
    function: Callable[[Values, Values], Any]
    higher: bool
    title: str
    share: bool = False
    module: str = ""

    def __post_init__(self) -> None:
        if not plain_word(self.name):
            raise ConfigError(f"metric {self.name!r}: this is no plain word: give it another, name='...'")
        if self.name.lower() in _COLUMNS:
            raise ConfigError(f"metric {self.name!r}: a column of tables has this name: give it another, name='...'")

    @property
    def part(self) -> Any:
        """The user's function or class, which has the module and the docstring."""
        return self.function if hasattr(self.function, "__qualname__") else type(self.function)

    @property
    def home(self) -> str:
        """The name of the module that has the metric's code."""
        return self.module or getattr(self.part, "__module__", None) or ""


def metric(
    *, higher: bool, name: str | None = None, title: str | None = None, share: bool = False
) -> Callable[[Callable[[Values, Values], Any]], Measure]:
    """Make a metric from a function, or from a class whose objects can be called; `Measure` explains the arguments.

    name: in settings and tables; by default that of the function, with "-" for "_". Raises ConfigError if the name is
    not a plain word, or is the name of a column of tables.

    >>> @metric(higher=False)
    ... def largest_error(outputs, targets):
    ...     return abs(outputs - targets).max()
    >>> largest_error.name, largest_error.higher
    ('largest-error', False)
    """
    # A functools.partial, for example, belongs to another module; the metric belongs to the module that calls `metric`.
    module = str(sys._getframe(1).f_globals.get("__name__", ""))

    def decorate(function: Callable[[Values, Values], Any]) -> Measure:
        word = name if name is not None else getattr(function, "__name__", type(function).__name__).replace("_", "-")
        instance = function() if isinstance(function, type) else function
        if not callable(instance):
            raise ConfigError(f"metric {word!r}: expected a function of (outputs, targets), or a class of such objects")
        return Measure(word, instance, higher, title or word, share, module)

    return decorate


def file_of(measure: Measure) -> str:
    """Return the file with a metric's code; empty for fedkin's own metrics, and if the code is in no file."""
    file = getattr(sys.modules.get(measure.home), "__file__", None)
    return "" if file is None or measure.home.partition(".")[0] == "fedkin" else str(file)


def code_of(measure: Measure) -> str:
    """Return a hash of the file with a metric's code; empty for fedkin's own. Raises ConfigError without a file.

    Line ends do not count, since some systems change them.
    """
    if measure.home.partition(".")[0] == "fedkin":
        return ""
    try:
        lines = Path(file_of(measure) or os.devnull).read_bytes().splitlines()
    except OSError:
        lines = []
    if not lines:
        why = "its code is in no file that can be read, so participants cannot compare it"
        raise ConfigError(f"metric {measure.name!r}: {why}: put it in a file, and name that")
    return sha256(b"\n".join(lines)).hexdigest()[:16]


def value(measure: Measure, outputs: Tensor, targets: Tensor, client: str) -> float | None:
    """Return a metric of one client's outputs; None if these samples do not determine it. Raises Unmeasured."""
    try:
        # Copies: if a function changes its arrays, neither the samples nor the next metric may be affected.
        result = measure.function(outputs.double().numpy().copy(), targets.numpy().copy())
    except Exception as error:  # a user's function may raise anything
        kind = escaped(type(error).__name__, 60)
        raise Unmeasured(measure, client, f"{kind}: {error_text(error)}", kind) from error
    number = None if result is None else _number(measure, result, client)
    if number is None or not math.isfinite(number):
        return None
    if abs(number) > LARGEST:
        raise Unmeasured(measure, client, f"expected a number of at most {LARGEST:g}, got a larger one", "too large")
    return number


def _number(measure: Measure, result: Any, client: str) -> float:
    """Return what a metric returned as a float, larger than LARGEST if it is too large for one; raises Unmeasured."""
    if isinstance(result, (Tensor, np.ndarray)) and result.ndim == 0:
        result = result.item()
    if isinstance(result, bool) or not isinstance(result, (int, float, np.integer, np.floating)):
        kind = escaped(type(result).__name__, 60)
        shape = f" of shape {tuple(result.shape)}" if isinstance(result, (Tensor, np.ndarray)) else ""
        raise Unmeasured(measure, client, f"expected one number, got {kind}{shape}", "not one number")
    try:
        return float(result)
    except OverflowError:  # of a large int
        return 10 * LARGEST


def values(
    measures: Sequence[Measure], net: Net, params: Params, test: Samples, client: str
) -> tuple[float | None, ...]:
    """Return these metrics of a client's model on its test samples, None without any; raises MethodError."""
    if not measures or not len(test):
        return (None,) * len(measures)
    outputs = infer(net, net.scratch(), params, "logits", test)
    return tuple(value(measure, outputs, test.labels(), client) for measure in measures)


@metric(higher=True, share=True, title="balanced accuracy")
def balanced_accuracy(outputs: Values, targets: Values) -> float | None:
    """The share of correct samples in each class, averaged over the classes that occur among the targets."""
    if targets.ndim != 1 or outputs.ndim != 2 or targets.dtype.kind not in "iu":
        return None
    right = outputs.argmax(1) == targets
    return float(np.mean([right[targets == label].mean() for label in np.unique(targets)]))


MEASURES: dict[str, Measure] = {balanced_accuracy.name: balanced_accuracy}
