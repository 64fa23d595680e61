"""Privacy of uploads: the section `[privacy]`, and the mechanisms that add normal noise to uploads.

A release is what a client sends at once: the floating-point fields that its phase declares, as one vector, clipped to
the norm C. Replacing all samples of the client moves this vector by at most 2 C, the sensitivity; every number gets
noise with a standard deviation of `noise` times the sensitivity. A signature is another kind of release: replacing one
sample moves it by at most 1. `docs/privacy.md` says what this guarantees, and what not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator
from scipy.special import ndtri
from torch import Tensor

from fedkin.engines.epsilon import noise_for, total_epsilon, training_noise
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.flow import Message, Params
from fedkin.forms import COUNT, Bytes, Fields, Form, Integer, Noised, Number, Sometimes, Sums, Weights
from fedkin.keys import rng
from fedkin.learning.net import Net
from fedkin.learning.private import Private, check_separate, uniform
from fedkin.learning.training import Training
from fedkin.settings import Settings

# A function of a number n that returns n independent standard normal draws.
Normal: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
# Returns the draws for one release, given the client, the round, and a name that is unique in the round.
Source: TypeAlias = Callable[[str, int, str], Normal]


class BudgetSpent(MethodError):
    """A client sends nothing more, because its next release would cost more than `privacy.budget`."""


class Privacy(Settings):
    """The section `[privacy]`: what clients send is clipped, and noise is added. Off unless `clip` and `noise` are set.

    clip: the largest norm C of a message, all its floating-point fields together; or a table {field: C} of fields that
    are clipped and noised separately, each as its own release. The norm of model parameters is that of their change
    from the parameters that the client was sent.
    noise: standard deviation of the noise divided by the sensitivity 2 C; 0: clipping alone, without any guarantee.
    signature_epsilon: epsilon, for one sample, of the signatures that methods with groups from tests ask for. Clients
    send signatures once, with noise. This needs neither `clip` nor `noise`.
    sample_epsilon: local training is private for each sample (`fedkin.learning.private`), with this epsilon for one
    sample over all rounds; the noise follows from it. It replaces `clip` and `noise`. sample_clip: the largest norm of
    one sample's gradient.
    delta: the delta for which epsilon is given. budget: the epsilon above which a client sends nothing more.
    secure_sums: the server learns only the sum of a group's parameters, not the parameters of a member
    (`fedkin.engines.secure_sums`); this needs neither `clip` nor `noise`. min_members: smaller groups are not summed,
    and their members count as missing.
    """

    clip: float | dict[str, float] | None = None
    noise: float | None = Field(None, ge=0)
    signature_epsilon: float | None = Field(None, gt=0, le=1e6)
    sample_epsilon: float | None = Field(None, ge=0.01, le=1e6)
    sample_clip: float = Field(1.0, gt=0, le=1e6)
    delta: float = Field(1e-5, gt=0, lt=1)
    budget: float | None = Field(None, gt=0)
    secure_sums: bool = False
    min_members: int = Field(3, ge=2)

    @model_validator(mode="after")
    def _check(self) -> Privacy:
        bounds = list(self.clip.values()) if isinstance(self.clip, dict) else [1.0 if self.clip is None else self.clip]
        if min(bounds, default=0.0) <= 0:
            raise ValueError(f"clip: expected norms above 0, got {self.clip}")
        if (self.clip is None) != (self.noise is None):
            given, other = ("clip", "noise") if self.noise is None else ("noise", "clip")
            raise ValueError(f"{other}: missing, and {given} needs it; set both, or neither for uploads as they are")
        if self.sample_epsilon is not None and self.noise is not None:
            raise ValueError(
                "sample_epsilon: it has noise in training, so that uploads need none; leave out clip and noise"
            )
        if self.budget is not None and not self.noise:
            raise ValueError("budget: without noise no epsilon is finite; set noise above 0, or leave it out")
        return self

    @property
    def on(self) -> bool:
        """Whether anything is clipped, or signatures or training have noise."""
        return any(each is not None for each in (self.clip, self.signature_epsilon, self.sample_epsilon))

    @property
    def signature_noise(self) -> float | None:
        """The standard deviation of the noise on a complete signature, of sensitivity 1; None: there is no noise."""
        return None if self.signature_epsilon is None else noise_for(self.signature_epsilon, self.delta)

    def training(self, samples: int, training: Training, fits: int) -> Private:
        """Return the private training of a client. samples: its number of samples. fits: its number of fits in a round.

        The noise is such that all fits of all rounds together have `sample_epsilon`.
        """
        assert self.sample_epsilon is not None
        size = samples if training.batch_size == "all" else min(training.batch_size, samples)
        rate, steps = size / samples, training.steps(samples)
        most = max(1, training.rounds * fits) * steps
        return Private(self.sample_clip, training_noise(self.sample_epsilon, self.delta, rate, most), rate, steps)

    def epsilon(self, releases: int, signed: float = 0.0, trained: Mapping[str, Any] | None = None) -> float:
        """Return the epsilon of releases, of a signature, and of training; infinite without noise.

        releases: their number. signed: the released share of the signature. trained: {"steps", "rate", "noise"}, if a
        client has trained privately (`fedkin.learning.private`).
        """
        if releases and not self.noise:
            return math.inf
        mu_squared = releases / self.noise**2 if self.noise else 0.0
        if signed and self.signature_noise is not None:
            mu_squared += signed / self.signature_noise**2
        steps = {} if trained is None else {(trained["rate"], trained["noise"]): trained["steps"]}
        return total_epsilon(mu_squared, steps, self.delta)

    def spent(self, one: Mapping[str, Any]) -> float:
        """Return the epsilon of what a client has released (`engines.releases.counted`)."""
        return self.epsilon(one["releases"], one["signed"], one.get("trained"))

    def check(self, nets: Sequence[Net], buffers: Callable[[Net], Sequence[str]]) -> None:
        """Raise ConfigError if uploads, or the training, of these nets cannot be protected.

        buffers: returns the names of the buffers of a net that clients send.
        """
        for net in nets if self.sample_epsilon is not None else ():
            check_separate(net.module)
        for net in nets if self.clip is not None else ():
            if running := buffers(net):
                raise ConfigError(
                    f"[privacy]: clients send running statistics ({running[0]}), which noise makes useless (a variance "
                    "may become negative); choose a model without batch normalisation, or method fedbn, which keeps it "
                    "at the clients"
                )


@dataclass(frozen=True, eq=False)
class Part:
    """A protected field of a message: its form, its value, and the base from which it is measured (None: zero)."""

    name: str
    form: Form
    value: Any
    base: Params | None = None


def clipped_fields(
    phase: str, names: Collection[str], declared: Sequence[Fields] | None, clipped: bool = True
) -> dict[str, Form]:
    """Return the sent fields that must be clipped; raises RunError for a phase that cannot be protected.

    clipped: whether fields are clipped at all; otherwise only signatures have noise.
    """
    fields = _fields_with(names, declared)
    if fields is None:
        if not clipped:
            return {}
        raise RunError(
            f"phase {phase!r}: [privacy] protects the fields that a phase declares, and it does not declare "
            f"{', '.join(names)}: write @phase(...), or `shares`"
        )
    forms = {name: form.bare for name, form in fields.items() if name in names}
    for name, form in forms.items():
        _check_protectable(phase, name, form, clipped)
    floats = {name: form for name, form in forms.items() if form.is_float and not isinstance(form, Noised)}
    return floats if clipped else {}


def _check_protectable(phase: str, name: str, form: Form, clipped: bool) -> None:
    if isinstance(form, (Sums, Bytes)):
        why = "holds sums or moments of a client's samples, which [privacy] cannot protect"
        how = "choose another method, or a rule for groups that is not 'same', or noise on signatures alone"
        raise RunError(f"phase {phase!r}: {name!r} {why}; {how} (signature_epsilon; docs/privacy.md)")
    if clipped and isinstance(form, Integer) and callable(form.high):
        why = "is a choice that a client makes by its samples, and noise cannot protect a choice"
        raise RunError(f"phase {phase!r}: {name!r} {why}; choose another method (docs/privacy.md)")


def _fields_with(names: Collection[str], declared: Sequence[Fields] | None) -> Fields | None:
    """Return the first declared fields that have all these names; None if there are none."""
    return next((fields for fields in declared or () if set(names) <= set(fields)), None)


def check_trained(phase: str, declared: Sequence[Fields] | None, names: Collection[str], signed: bool) -> None:
    """Raise RunError for a phase that sends more than privately trained models, n, and signatures with noise.

    names: the fields that are sent. signed: whether signatures have noise.
    """
    if not names:
        return
    fields = _fields_with(names, declared)
    if fields is None:
        how = "write @phase(...), or `shares`"
        raise RunError(f"phase {phase!r}: privacy.sample_epsilon needs phases that declare what they send: {how}")
    for name in names:
        form = fields[name]
        form = form.form if isinstance(form, Sometimes) else form
        if not isinstance(form, Weights) and form != COUNT and not (signed and isinstance(form, Noised)):
            raise RunError(
                f"phase {phase!r}: {name!r} is computed from samples outside of training, which "
                "privacy.sample_epsilon does not protect; choose another method, or for signatures signature_epsilon "
                "beside it (docs/privacy.md)"
            )


def noised_in(fields: Mapping[str, Form]) -> dict[str, float]:
    """Return the share in a signature of each of its fields, which a client sends only with noise."""
    return {name: form.bare.share for name, form in fields.items() if isinstance(form.bare, Noised)}


def signature(values: Tensor, share: float, privacy: Privacy, normal: Normal) -> Tensor:
    """Return this part of a signature with noise; raises MethodError for values that are not finite."""
    assert privacy.signature_noise is not None
    numbers = values.double().reshape(-1).numpy()
    if not np.isfinite(numbers).all():
        raise MethodError("a signature: not all numbers are finite, so that nobody knows how far one sample moves them")
    noisy = numbers + privacy.signature_noise / math.sqrt(share) * normal(len(numbers))
    return torch.from_numpy(noisy).reshape(values.shape).to(values.dtype)


def released(message: Message, parts: Sequence[Part], privacy: Privacy, normal: Normal) -> Message:
    """Return the message with its parts clipped and noised: together, or each by itself if `clip` is a table.

    Raises MethodError for values that are not finite, and RunError for a field without a bound in `privacy.clip`.
    """
    if not parts or privacy.clip is None:
        return message
    fields, noise = dict(message), privacy.noise or 0.0
    if not isinstance(privacy.clip, Mapping):
        return Message(**{**fields, **_protected(parts, privacy.clip, noise, normal)})
    names = [part.name for part in parts]
    if missing := [name for name in names if name not in privacy.clip]:
        how = f"give one for each of {', '.join(names)}, or one number for the whole message"
        raise RunError(f"privacy.clip: no norm for the field {missing[0]!r}; {how}")
    for part in parts:
        fields |= _protected([part], privacy.clip[part.name], noise, normal)
    return Message(**fields)


def _protected(parts: Sequence[Part], bound: float, noise: float, normal: Normal) -> dict[str, Any]:
    """Return these fields clipped as one vector to this norm, with noise."""
    differences = [_differences(part) for part in parts]
    norm = math.sqrt(sum(float(np.vdot(values, values)) for values in chain(*differences)))
    if not math.isfinite(norm):
        names = ", ".join(part.name for part in parts)
        raise MethodError(f"{names}: not all numbers are finite, so that they cannot be clipped")
    factor, spread = bound / max(norm, bound), noise * 2 * bound
    if factor == 1 and not spread:
        return {}
    fields = {}
    for part, leaves in zip(parts, differences, strict=True):
        new = (factor * values + (spread * normal(values.size) if spread else 0.0) for values in leaves)
        fields[part.name] = _rebuilt(part, part.value, new)
    return fields


def _differences(part: Part) -> list[npt.NDArray[np.float64]]:
    """Return the numbers of a field minus its base, as one vector for each tensor."""
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


def _rebuilt(part: Part, value: Any, new: Iterator[npt.NDArray[np.float64]], name: str = "") -> Any:
    """Return a value of the part, or of a tree in it, with the numbers `new` plus its base."""
    if isinstance(value, Mapping):
        return {key: _rebuilt(part, item, new, key) for key, item in value.items()}
    base = part.base or {}
    numbers = next(new) + (_numbers(base[name]) if name in base else 0.0)
    least = float(part.form.low) if isinstance(part.form, Number) else -np.inf
    if not isinstance(value, Tensor):
        return max(float(numbers[0]), least)
    return torch.from_numpy(np.maximum(numbers, least)).reshape(value.shape).to(value.dtype)


# -- where noise comes from -------------------------------------------------------------------------------------------


def keyed(seed: int) -> Source:
    """Return draws for a simulation, the same in every run. They protect nobody: whoever knows the seed knows them."""
    return lambda id, round, what: rng(seed, id, round, what, "privacy").standard_normal


def no_noise(id: str, round: int, what: str) -> Normal:
    """Return no noise, for clipping alone."""
    return np.zeros


def system_noise(id: str, round: int, what: str) -> Normal:
    """Return draws from the operating system's randomness, which nobody else knows, for a deployment.

    >>> one, other = (system_noise("a", 1, "train")(1000) for _ in range(2))
    >>> bool((one == other).any()), bool(abs(one.std() - 1) < 0.2)
    (False, True)
    """

    def normal(count: int) -> npt.NDArray[np.float64]:
        drawn: npt.NDArray[np.float64] = ndtri(uniform(os.urandom(8 * count)))
        return drawn

    return normal
