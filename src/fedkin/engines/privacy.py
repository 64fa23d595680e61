"""Privacy of uploads: the section `[privacy]`, and the mechanisms that add normal noise to what leaves a client.

A release is what a client sends at once: the floating-point fields that its phase declares, as one vector, clipped to
the norm C. If all samples of the client are replaced, the vector moves by at most 2 C, the sensitivity; the noise has a
standard deviation of `noise` times that in every number. A signature is another release: it moves by at most 1 if one
sample is replaced. `docs/privacy.md` says what this promises, and what not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri
from torch import Tensor

from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.flow import Message, Params
from fedkin.forms import Bytes, Choice, Each, Fields, Form, Noised, Number, Shaped, Sometimes, Sums, Weights, Whole
from fedkin.keys import rng
from fedkin.learning.net import Net
from fedkin.settings import Settings


@lru_cache(maxsize=4096)
def epsilon(noise: float, releases: int, delta: float) -> float:
    """Return the exact epsilon of releases with this noise multiplier (standard deviation over sensitivity), composed.

    Together they are one Gaussian mechanism with m = sqrt(releases) / noise, for which
    delta = Phi(m / 2 - epsilon / m) - e^epsilon Phi(-m / 2 - epsilon / m) (Balle and Wang, ICML 2018). There is no
    amplification by sampling: the server knows who was asked. 0 without releases, infinite without noise.

    >>> epsilon(5.0, 0, 1e-5), round(epsilon(5.0, 100, 1e-5), 2), epsilon(0.0, 3, 1e-5)
    (0.0, 10.0, inf)
    """
    if not releases:
        return 0.0
    if not noise:
        return math.inf
    m = math.sqrt(releases) / noise

    def surplus(e: float) -> float:
        return float(ndtr(m / 2 - e / m) - math.exp(min(e + log_ndtr(-m / 2 - e / m), 0.0)) - delta)

    if surplus(0.0) <= 0:
        return 0.0
    # The bound of zero-concentrated privacy is never below.
    most = m * m / 2 + m * math.sqrt(2 * math.log(1 / delta))
    return float(brentq(surplus, 0.0, most, xtol=1e-12, rtol=1e-12)) * (1 + 1e-9)


@lru_cache(maxsize=64)
def noise_for(target: float, delta: float) -> float:
    """Return the noise multiplier with which one release has this epsilon; 1 / multiplier is mu of Gaussian privacy.

    >>> round(epsilon(noise_for(1.0, 1e-5), 1, 1e-5), 6)
    1.0
    """
    low, high = -10.0, 20.0  # of the logarithm, for epsilon from 0 to 1e8
    power = brentq(lambda power: epsilon(math.exp(power), 1, delta) - target, low, high, xtol=1e-12)
    return math.exp(power) * (1 + 1e-9)


# A function of a number n that returns n independent standard normal draws.
Normal: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
# The draws for one release: of a client, in a round, under a name that no other release of the round has.
Source: TypeAlias = Callable[[str, int, str], Normal]


class Spent(MethodError):
    """A client sends nothing more, because its next release would cost more than `privacy.budget`."""


class Privacy(Settings):
    """The section `[privacy]`: what clients send is clipped, and noise is added. Off unless `clip` and `noise` are set.

    clip: the largest norm C of a message, all its floating-point fields together; or a table {field: C} of fields that
    are clipped and noised apart, each a release of its own. A field of model parameters is measured from the parameters
    that the client was sent.
    noise: standard deviation of the noise over the sensitivity 2 C; 0 is clipping alone, without any promise.
    signature_epsilon: signatures of samples, which methods with groups from tests ask for, leave once and with noise:
    this is their epsilon for one sample. It needs neither `clip` nor `noise`.
    delta: the delta for which epsilon is given. budget: the epsilon above which a client sends nothing more.
    secure_sums: parameters leave clients only in sums over a group, of which the server learns no member's part
    (`fedkin.engines.secure_sums`); this needs neither `clip` nor `noise`. min_members: in smaller groups nothing is
    summed, and the members count as missing.
    """

    clip: float | dict[str, float] | None = None
    noise: float | None = Field(None, ge=0)
    signature_epsilon: float | None = Field(None, gt=0, le=1e6)
    delta: float = Field(1e-5, gt=0, lt=1)
    budget: float | None = Field(None, gt=0)
    secure_sums: bool = False
    min_members: int = Field(3, ge=2)

    @model_validator(mode="after")
    def _fits(self) -> Privacy:
        bounds = list(self.clip.values()) if isinstance(self.clip, dict) else [self.clip or 1.0]
        if not bounds or min(bounds) <= 0 or self.clip == 0:
            raise ValueError(f"clip: expected norms above 0, got {self.clip}")
        if (self.clip is None) != (self.noise is None):
            given, other = ("clip", "noise") if self.noise is None else ("noise", "clip")
            raise ValueError(f"{other}: missing, and {given} needs it; set both, or neither for uploads as they are")
        if self.budget is not None and not self.noise:
            raise ValueError("budget: without noise no epsilon is finite; set noise above 0, or leave it out")
        return self

    @property
    def on(self) -> bool:
        """Whether anything is clipped, or signatures have noise."""
        return self.clip is not None or self.signature_epsilon is not None

    @property
    def signature_noise(self) -> float | None:
        """The standard deviation of the noise on a whole signature, which moves by at most 1; None: there is none."""
        return None if self.signature_epsilon is None else noise_for(self.signature_epsilon, self.delta)

    def epsilon(self, releases: int, signed: float = 0.0) -> float:
        """Return the epsilon of so many releases, and of this share of a signature; infinite without noise."""
        if not signed or (releases and not self.noise):
            return epsilon(self.noise or 0.0, releases, self.delta)
        # Gaussian releases together are one: their mu^2, 1 / multiplier^2, add up.
        assert self.signature_noise is not None
        total = signed / self.signature_noise**2 + (releases / self.noise**2 if self.noise else 0.0)
        return epsilon(1 / math.sqrt(total), 1, self.delta)

    def check(self, nets: Sequence[Net]) -> None:
        """Raise ConfigError if uploads of these nets cannot be protected."""
        if self.clip is None:
            return
        for net in nets:
            running = [name for name in net.initial if name not in net.trainable]
            if running:
                raise ConfigError(
                    f"[privacy]: the model has running statistics ({running[0]}), which noise makes useless (a "
                    "variance may become negative); choose a model without batch normalisation"
                )


@dataclass(frozen=True, eq=False)
class Part:
    """A field of a message that is protected: its form, its value, and what it is measured from (None: zero)."""

    name: str
    form: Form
    value: Any
    base: Params | None = None


def parts_of(
    phase: str, message: Mapping[str, Any], declared: Sequence[Fields] | None, clipped: bool = True
) -> list[Part]:
    """Return the fields of a message to clip; raises RunError for a phase that cannot be protected.

    clipped: whether anything is; else only signatures have noise.
    """
    fields = next((fields for fields in declared or () if set(message) <= set(fields)), None)
    if fields is None and not clipped:
        return []
    if fields is None:
        raise RunError(
            f"phase {phase!r}: [privacy] protects the fields that a phase declares, and it does not declare "
            f"{', '.join(message)}: write @phase(...), or `shares`"
        )
    forms = {name: _bare(form) for name, form in fields.items() if name in message}
    for name, form in forms.items():
        if isinstance(form, (Sums, Bytes)):
            raise RunError(
                f"phase {phase!r}: {name!r} holds sums or moments of a client's samples, which [privacy] cannot "
                "protect; choose another method, or a rule for groups that is not 'same', or noise on signatures alone "
                "(signature_epsilon; docs/privacy.md)"
            )
        if not clipped:
            continue
        if isinstance(form, Choice) or (isinstance(form, Whole) and callable(form.high)):
            raise RunError(
                f"phase {phase!r}: {name!r} is a choice that a client makes by its samples, and noise cannot protect a "
                "choice; choose another method (docs/privacy.md)"
            )
    clip = [name for name, form in forms.items() if clipped and _noisy(form) and not isinstance(form, Noised)]
    return [Part(name, forms[name], message[name]) for name in clip]


def noised_in(fields: Mapping[str, Form]) -> dict[str, float]:
    """Return the share of each field of a signature, which leaves with noise only."""
    forms = {name: _bare(form) for name, form in fields.items()}
    return {name: form.share for name, form in forms.items() if isinstance(form, Noised)}


def signature(values: Tensor, share: float, privacy: Privacy, normal: Normal) -> Tensor:
    """Return this part of a signature with its noise; raises MethodError for values that are not finite."""
    assert privacy.signature_noise is not None
    numbers = values.double().reshape(-1).numpy()
    if not np.isfinite(numbers).all():
        raise MethodError("a signature: not all numbers are finite, so that nobody knows how far one sample moves them")
    noisy = numbers + privacy.signature_noise / math.sqrt(share) * normal(len(numbers))
    return torch.from_numpy(noisy).reshape(values.shape).to(values.dtype)


def released(message: Message, parts: Sequence[Part], privacy: Privacy, normal: Normal) -> Message:
    """Return the message with its parts clipped and noised: together, or each for itself with a table of norms.

    Raises MethodError for values that are not finite, and RunError for a field without a bound in `privacy.clip`.
    """
    if not parts or privacy.clip is None:
        return message
    if isinstance(privacy.clip, Mapping):
        missing = [part.name for part in parts if part.name not in privacy.clip]
        if missing:
            raise RunError(
                f"privacy.clip: no norm for the field {missing[0]!r}; give one for each of "
                f"{', '.join(part.name for part in parts)}, or one number for the whole message"
            )
        together = [([part], privacy.clip[part.name]) for part in parts]
    else:
        together = [(list(parts), privacy.clip)]
    made = dict(message)
    for group, bound in together:
        made |= _protected(group, bound, privacy.noise or 0.0, normal)
    return Message(**made)


def _protected(parts: Sequence[Part], bound: float, noise: float, normal: Normal) -> dict[str, Any]:
    """Return these fields clipped as one vector to this norm, with noise."""
    moved = [_moved(part) for part in parts]
    norm = float(np.sqrt(sum(float(np.vdot(values, values)) for leaves in moved for values in leaves)))
    if not np.isfinite(norm):
        names = ", ".join(part.name for part in parts)
        raise MethodError(f"{names}: not all numbers are finite, so that they cannot be clipped")
    factor, spread = min(1.0, bound / norm) if norm else 1.0, noise * 2 * bound
    if factor == 1 and not spread:
        return {}
    made = {}
    for part, leaves in zip(parts, moved, strict=True):
        new = iter([factor * values + (spread * normal(values.size) if spread else 0.0) for values in leaves])
        made[part.name] = _rebuilt(part.value, part.base or {}, part.form, new)
    return made


def _moved(part: Part) -> list[npt.NDArray[np.float64]]:
    """Return the numbers of a field, less its base, as one vector for each tensor."""
    base = part.base or {}
    return [_numbers(leaf) - (_numbers(base[name]) if name in base else 0.0) for name, leaf in _leaves(part.value)]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, key)
    else:
        yield name, value


def _numbers(leaf: Any) -> npt.NDArray[np.float64]:
    if isinstance(leaf, Tensor):
        return leaf.detach().double().reshape(-1).numpy()
    return np.array([leaf], dtype=np.float64)


def _rebuilt(value: Any, base: Params, form: Form, new: Iterator[npt.NDArray[np.float64]], name: str = "") -> Any:
    """Return a value of the same form with other numbers, to which its base is added."""
    if isinstance(value, Mapping):
        return {key: _rebuilt(item, base, form, new, key) for key, item in value.items()}
    numbers = next(new) + (_numbers(base[name]) if name in base else 0.0)
    least = float(form.low) if isinstance(form, Number) else -np.inf
    if not isinstance(value, Tensor):
        return max(float(numbers[0]), least)
    return torch.from_numpy(np.maximum(numbers, least)).reshape(value.shape).to(value.dtype)


def _bare(form: Form) -> Form:
    return form.form if isinstance(form, (Sometimes, Each)) else form


def protects(form: Form) -> bool:
    """Whether what has this form gets noise; other fields are sent as they are."""
    return _noisy(_bare(form))


def _noisy(form: Form) -> bool:
    """Whether values of this form are floating-point numbers."""
    if isinstance(form, Shaped):
        return form.dtype is None or form.dtype.is_floating_point
    return isinstance(form, (Weights, Number))


# -- where noise comes from -------------------------------------------------------------------------------------------


def keyed(seed: int) -> Source:
    """Return draws for a simulation, the same in every run. They protect nobody: whoever knows the seed knows them."""
    return lambda id, round, what: rng(seed, id, round, what, "privacy").standard_normal


def silent(id: str, round: int, what: str) -> Normal:
    """Return no noise, for clipping alone."""
    return np.zeros


def secret(id: str, round: int, what: str) -> Normal:
    """Return draws from the operating system's randomness, of which nobody else knows anything, for a deployment.

    >>> one, other = (secret("a", 1, "train")(1000) for _ in range(2))
    >>> bool((one == other).any()), bool(abs(one.std() - 1) < 0.2)
    (False, True)
    """

    def normal(count: int) -> npt.NDArray[np.float64]:
        # 52 random bits each, in the middle of their interval: neither 0 nor 1, of which no quantile is finite.
        whole = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(12)
        drawn: npt.NDArray[np.float64] = ndtri((whole.astype(np.float64) + 0.5) * 2.0**-52)
        return drawn

    return normal
