"""Further metrics of a client's model, beside those of its task: fedkin's own, and those of its users."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedkin.errors import ConfigError, MethodError
from fedkin.federation import Samples
from fedkin.learning.net import Net
from fedkin.learning.sgd import infer
from fedkin.tasks import METRICS
from fedkin.untrusted import plain_word, said, shown

__all__ = [
    "LARGEST",
    "MEASURES",
    "Measure",
    "Unmeasured",
    "balanced_accuracy",
    "code_of",
    "file_of",
    "metric",
    "value",
    "values",
]

Values = npt.NDArray[Any]

LARGEST = 1e150  # of a figure: the square of a larger one is no float

# Columns of `Result.to_frame`, of comparisons and of the report, in which a metric has a column of its own name.
_COLUMNS = {
    *METRICS, "adds", "ari", "client", "epsilon", "gain", "gap", "groups", "hurt", "loss", "mean", "method", "n",
    "round", "sent", "surely", "unseen", "worst10", "worst20",
}  # fmt: skip


class Unmeasured(MethodError):
    """A metric that failed on a client's samples. Its text may hold some of them; `told` may not, and may leave."""

    def __init__(self, measure: Measure, client: str, words: str, kind: str) -> None:
        super().__init__(f"metric {measure.name!r}, client {client!r}: {words}")
        self.told = f"metric {measure.name!r} failed ({kind}): the participant's own log says why"


@dataclass(frozen=True, eq=False)
class Measure:
    """A metric of a model on one client's test samples.

    function: (outputs [n, ...] before any softmax, targets [n, ...]) as NumPy arrays, n at least 1 -> a number; None or
    nan where these samples do not determine it, and the client is then left out of the mean. higher: whether higher
    is better. share: whether it lies in 0..1. module: where it was made (empty: that of the function).
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
        """What has a module and a docstring of its user's."""
        return self.function if hasattr(self.function, "__qualname__") else type(self.function)

    @property
    def home(self) -> str:
        """The module whose code it is."""
        return self.module or getattr(self.part, "__module__", None) or ""


def metric(
    *, higher: bool, name: str | None = None, title: str | None = None, share: bool = False
) -> Callable[[Callable[[Values, Values], Any]], Measure]:
    """Make a metric of a function, or of a class whose objects are called like one; see `Measure` for what it takes.

    name: in settings and tables; by default that of the function, with "-" for "_". Raises ConfigError for one that is
    no plain word, or that a column of tables has.

    >>> @metric(higher=False)
    ... def largest_error(outputs, targets):
    ...     return abs(outputs - targets).max()
    >>> largest_error.name, largest_error.higher
    ('largest-error', False)
    """
    # What is called may be of elsewhere, such as a functools.partial: the metric is where this is called.
    module = str(sys._getframe(1).f_globals.get("__name__", ""))

    def made(function: Callable[[Values, Values], Any]) -> Measure:
        own = name if name is not None else getattr(function, "__name__", type(function).__name__).replace("_", "-")
        called = function() if isinstance(function, type) else function
        if not callable(called):
            raise ConfigError(f"metric {own!r}: expected a function of (outputs, targets), or a class of such objects")
        return Measure(own, called, higher, title or own, share, module)

    return made


def file_of(measure: Measure) -> str:
    """Return the file in which a metric is; empty for fedkin's own, and for one that is in no file."""
    file = getattr(sys.modules.get(measure.home), "__file__", None)
    return "" if file is None or _is_own(measure) else str(file)


def _is_own(measure: Measure) -> bool:
    """Whether this is a metric of fedkin's."""
    return measure.home.partition(".")[0] == "fedkin"


def code_of(measure: Measure) -> str:
    """Return a hash of the file in which a metric is, empty for fedkin's own; raises ConfigError for one without.

    Line ends do not count, which some systems change.
    """
    if _is_own(measure):
        return ""
    try:
        lines = Path(file_of(measure) or os.devnull).read_bytes().splitlines()
    except OSError:
        lines = []
    if not lines:
        raise ConfigError(
            f"metric {measure.name!r}: its code is in no file that can be read, so participants cannot compare it: "
            "put it in a file, and name that"
        )
    return sha256(b"\n".join(lines)).hexdigest()[:16]


def value(measure: Measure, outputs: Tensor, targets: Tensor, client: str) -> float | None:
    """Return a metric of one client's outputs; None where there is none. Raises Unmeasured."""
    try:
        # Copies: what a function writes into its arrays is no business of the samples', nor of the next metric's.
        found = measure.function(outputs.double().numpy().copy(), targets.numpy().copy())
    except Exception as error:  # whatever a function of the user's does
        kind = shown(type(error).__name__, 60)
        raise Unmeasured(measure, client, f"{kind}: {said(error)}", kind) from error
    if found is None:
        return None
    if isinstance(found, (Tensor, np.ndarray)) and found.ndim == 0:
        found = found.item()
    if isinstance(found, bool) or not isinstance(found, (int, float, np.integer, np.floating)):
        raise Unmeasured(measure, client, f"expected one number, got {_kind(found)}", "not one number")
    try:
        number = float(found)
        large = math.isfinite(number) and abs(number) > LARGEST
    except OverflowError:
        large = True
    if large:
        raise Unmeasured(measure, client, f"expected a number of at most {LARGEST:g}, got a larger one", "too large")
    return number if math.isfinite(number) else None


def _kind(found: object) -> str:
    """What a function returned, without the values."""
    kind = shown(type(found).__name__, 60)
    return f"{kind} of shape {tuple(found.shape)}" if isinstance(found, (Tensor, np.ndarray)) else kind


def values(
    measures: Sequence[Measure], net: Net, params: Mapping[str, Tensor], test: Samples, client: str
) -> tuple[float | None, ...]:
    """Return these metrics of a client's model on its test samples, None without any; raises MethodError."""
    if not measures or not len(test):
        return (None,) * len(measures)
    outputs = infer(net, net.scratch(), params, "logits", test)
    return tuple(value(each, outputs, test.labels(), client) for each in measures)


@metric(higher=True, share=True, title="balanced accuracy")
def balanced_accuracy(outputs: Values, targets: Values) -> float | None:
    """The mean over the classes among the targets of the share of their samples that are right."""
    if targets.ndim != 1 or outputs.ndim != 2 or targets.dtype.kind not in "iu":
        return None
    right = outputs.argmax(1) == targets
    return float(np.mean([right[targets == each].mean() for each in np.unique(targets)]))


MEASURES: dict[str, Measure] = {balanced_accuracy.name: balanced_accuracy}
