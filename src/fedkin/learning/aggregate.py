"""Means of parameters over clients, and robust rules, whose result a minority of adversaries cannot choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator
from torch import Tensor

from fedkin.codec import Params
from fedkin.errors import MethodError, nearest

Array = npt.NDArray[np.float64]


class RunningMean:
    """The weighted mean (sum_k w_k x_k) / (sum_k w_k), tensor by tensor, of terms that are added one after another.

    Add the terms in the order of the client ids: the order decides the last bits. The mean of one term is that term,
    bit for bit. Tensors of 16 bits are summed in float32. Integer tensors (counters) take the largest value.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._names: list[str] = []
        self._only: Params | None = None
        self._dtypes: dict[str, torch.dtype] = {}
        self._sums: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}

    def add(self, params: Params, weight: float) -> None:
        """Add a term; its tensors are needed only until the next term is added."""
        floats = {
            name: tensor.float() if tensor.dtype.itemsize < 4 else tensor
            for name, tensor in params.items() if tensor.is_floating_point()
        }  # fmt: skip
        self._only = None if self._names else params
        if not self._names:
            self._begin(params, floats)
        self.total += weight
        if floats:
            # One call for all tensors is faster than one for each.
            torch._foreach_add_(list(self._sums.values()), [floats[name] for name in self._sums], alpha=weight)
        for name, largest in self._largest.items():
            self._largest[name] = torch.maximum(largest, params[name])

    def _begin(self, params: Params, floats: Params) -> None:
        self._names = list(params)
        self._dtypes = {name: params[name].dtype for name in floats}
        self._sums = {name: torch.zeros_like(tensor) for name, tensor in floats.items()}
        self._largest = {name: tensor for name, tensor in params.items() if name not in floats}

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of the terms so far; raises MethodError if their weights sum to zero."""
        if not self.total > 0:
            raise MethodError(f"a weighted mean with weights that sum to {self.total:g}")
        if self._only is not None:
            return dict(self._only)
        sums = torch._foreach_div(list(self._sums.values()), self.total) if self._sums else []
        means = dict(self._largest)
        for name, tensor in zip(self._sums, sums, strict=True):
            means[name] = tensor.to(self._dtypes[name])
        return {name: means[name] for name in self._names}


def weighted_mean(params: Mapping[str, Params], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Return (sum_k weights[k] params[k]) / (sum_k weights[k]), tensor by tensor.

    Clients are summed in the order of their ids, so that the order of their answers changes no bit.
    Integer tensors (counters) take the largest value. Raises MethodError if the weights sum to zero.

    >>> mean = weighted_mean({"a": {"w": torch.ones(1)}, "b": {"w": torch.zeros(1)}}, {"a": 3, "b": 1})
    >>> mean["w"]
    tensor([0.7500])
    """
    running = RunningMean()
    for id in sorted(params):
        running.add(params[id], weights[id])
    if not running.total > 0:
        raise MethodError(f"a weighted mean over {len(params)} clients with weights that sum to {running.total:g}")
    return running.mean()


# -- robust rules: `aggregated` names the papers -----------------------------------------------------------------------
# A client's vector is the concatenation of all float tensors of its parameters; [m, d] for m clients.


class _Inputs(NamedTuple):
    """The vectors x [m, d], their weights w [m] with sum 1, the vector start [d], and the rule's number."""

    x: Array
    w: Array
    start: Array
    number: float | None

    @property
    def outliers(self) -> int:
        """f, the number of vectors that may be adversaries': the given share of m, rounded up, less than m / 2."""
        share = 0.2 if self.number is None else self.number
        return min(math.ceil(share * len(self.x) - 1e-9), (len(self.x) - 1) // 2)

    def scaled(self, limit: float | None, centre: Array) -> Array:
        """x - centre, with each row clipped to the length `limit`; None: to the median length of the rows."""
        updates = self.x - centre
        lengths = np.linalg.norm(updates, axis=1)
        limit = float(np.median(lengths)) if limit is None else limit
        return np.asarray(updates * np.minimum(1.0, limit / np.maximum(lengths, 1e-300))[:, None])


def _trimmed(inputs: _Inputs) -> Array:
    f = inputs.outliers
    return np.asarray(np.sort(inputs.x, axis=0)[f : len(inputs.x) - f].mean(0))


def _krum_order(inputs: _Inputs) -> npt.NDArray[np.int64]:
    """Clients by their score, lowest first: the sum of |x_i - x_j|^2 over the m - f - 2 nearest others, at least one.

    With up to four clients, two always share the lowest score; the one nearer to the start is then the first. The
    paper takes the smallest id, but then other names would give another result.
    """
    m = len(inputs.x)
    between = np.array([np.square(inputs.x - row).sum(1) for row in inputs.x])
    near = np.sort(between + np.diag(np.full(m, np.inf)), axis=1)[:, : max(m - inputs.outliers - 2, 1)]
    return np.lexsort((np.linalg.norm(inputs.x - inputs.start, axis=1), near.sum(1) if m > 1 else np.zeros(1)))


def _multi_krum(inputs: _Inputs) -> Array:
    chosen = np.sort(_krum_order(inputs)[: len(inputs.x) - inputs.outliers])
    return np.asarray(inputs.x[chosen].mean(0))


def _geometric_median(inputs: _Inputs) -> Array:
    """Smoothed Weiszfeld from the coordinate median: weights w_i / max(nu, |x_i - z|), until z converges."""
    z = np.median(inputs.x, axis=0)
    scale = float(np.linalg.norm(inputs.x - z, axis=1).min(initial=math.inf))
    nu = 1e-6 if inputs.number is None else inputs.number
    for _ in range(1000):
        share = inputs.w / np.maximum(np.linalg.norm(inputs.x - z, axis=1), nu)
        # Shares are scaled to sum to 1 first: with a tiny nu, their products with x could overflow.
        moved = (share / share.sum()) @ inputs.x
        step, z = float(np.linalg.norm(moved - z)), moved
        if step <= 1e-9 * max(scale, nu):
            break
    return np.asarray(z)


def _clipping(inputs: _Inputs, steps: int = 1) -> Array:
    """v <- v + sum_i w_i (x_i - v) min(1, tau / |x_i - v|), `steps` times, with v = start at first."""
    v = inputs.start
    for _ in range(steps):
        v = v + inputs.w @ inputs.scaled(inputs.number, v)
    return v


class _Kind(NamedTuple):
    """A rule, and the meaning of its number: a "share" below 1/2, a "length" above 0, or "" if it takes none."""

    combine: Callable[[_Inputs], Array] | None
    number: str = ""


# By name. The mean is `weighted_mean`, which needs no vectors.
RULES: dict[str, _Kind] = {
    "mean": _Kind(None),
    "median": _Kind(lambda inputs: np.asarray(np.median(inputs.x, axis=0))),
    "trimmed-mean": _Kind(_trimmed, "share"),
    "krum": _Kind(lambda inputs: inputs.x[_krum_order(inputs)[0]], "share"),
    "multi-krum": _Kind(_multi_krum, "share"),
    "geometric-median": _Kind(_geometric_median, "length"),
    "centred-clipping": _Kind(partial(_clipping, steps=3), "length"),
    "norm-clipping": _Kind(_clipping, "length"),
}


def rule_of(spec: str) -> tuple[str, float | None]:
    """Read "NAME" or "NAME:NUMBER"; raises ValueError with what was expected.

    >>> rule_of("trimmed-mean:0.3")
    ('trimmed-mean', 0.3)
    """
    name, colon, text = spec.partition(":")
    if name not in RULES:
        raise ValueError(f"no rule {name!r}; {nearest(name, RULES)}")
    meaning = RULES[name].number
    if not colon:
        return name, None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not meaning:
        raise ValueError(f"{name!r} takes no number")
    if not 0 <= number < (0.5 if meaning == "share" else math.inf) or (meaning == "length" and number == 0):
        raise ValueError(f"expected {name}:NUMBER, {'at least 0 and below 0.5' if meaning == 'share' else 'above 0'}")
    return name, number


def _check_rule(spec: str) -> str:
    rule_of(spec)
    return spec


# A setting that names a rule of aggregation.
Rule = Annotated[str, AfterValidator(_check_rule)]


def aggregated(
    params: Mapping[str, Params], weights: Mapping[str, float], rule: str = "mean", start: Params | None = None
) -> dict[str, Tensor]:
    """Aggregate parameters over clients, by client id.

    rule: "mean" is `weighted_mean`, bit for bit. "median" (of each coordinate; Yin et al., ICML 2018); "trimmed-mean:b"
    (of each coordinate, without the f largest and the f smallest, f = ceil(b m); the same paper); "krum:b" (the vector
    with the smallest sum of squared distances to its m - f - 2 nearest vectors) and "multi-krum:b" (the mean of the
    m - f vectors with the smallest sums; both Blanchard et al., NeurIPS 2017); "geometric-median:nu" (Weiszfeld
    smoothed by nu; Pillutla et al., IEEE TSP 2022); "centred-clipping:tau" (Karimireddy et al., ICML 2021);
    "norm-clipping:c" (the mean of updates clipped to length c; Sun et al., 2019). Without a number b is 0.2, nu is
    1e-6, and tau and c are the median length of the updates (fedkin's choice). f is always less than m / 2, and Krum
    uses the distance to at least one other vector: 2 clients give the mean of both, with Krum the vector nearer to
    `start`; 1 client gives its own.

    start: the parameters before the updates (None: the coordinate median). The two clippings and the geometric median
    weight clients by `weights`, as the mean does. The other rules weight all clients equally. Integer tensors take the
    largest value. A client with weight 0 is left out. Takes 8 m d bytes. Raises MethodError if the weights sum to zero.

    >>> params = {id: {"w": torch.tensor([x])} for id, x in {"a": 1.0, "b": 2.0, "c": 99.0}.items()}
    >>> aggregated(params, dict.fromkeys("abc", 1), "median")
    {'w': tensor([2.])}
    """
    name, number = rule_of(rule)
    combine = RULES[name].combine
    ids = sorted(id for id in params if weights[id])
    if combine is None or not ids:
        return weighted_mean(params, weights)
    models = [params[id] for id in ids]
    floats = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    x, w = np.stack([_vector(model, floats) for model in models]), np.array([float(weights[id]) for id in ids])
    centre = np.median(x, axis=0) if start is None else _vector(start, floats)
    return as_params(combine(_Inputs(x, w / w.sum(), centre, number)), models[0], models)


def _vector(params: Params, names: list[str]) -> Array:
    flat = [params[name].detach().double().flatten() for name in names]
    return np.asarray(torch.cat(flat).numpy() if flat else np.zeros(0))


def as_params(vector: Array, like: Params, models: Sequence[Params]) -> dict[str, Tensor]:
    """Parameters shaped like these, with the float tensors from one vector, and the largest counters of the models."""
    values, at, params = torch.from_numpy(vector), 0, dict[str, Tensor]()
    for name, tensor in like.items():
        if tensor.is_floating_point():
            part = values[at : at + tensor.numel()]
            params[name], at = part.reshape(tensor.shape).to(tensor.dtype), at + tensor.numel()
        else:
            params[name] = torch.stack([model[name] for model in models]).amax(0)
    return params
