"""Adversarial clients: they train like other clients, but their samples, results or messages are changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import ConfigError, nearest
from fedkin.federation import Federation
from fedkin.flow import Fitted, Params, PeerMethod, ServerMethod
from fedkin.keys import rng

__all__ = ["ATTACKS", "FORGERS", "Attack", "Attacks"]

# The attacks with their default strengths; None: without a strength.
ATTACKS: dict[str, float | None] = {
    "sign-flip": 1.0, "shuffle": 1.0, "noise": 1.0, "scale": 10.0, "label-flip": 1.0, "model-replacement": 1.0,
    "sybil": None, "alie": 1.5, "ipm": 2.0, "copy": None, "group-mean": None, "mimic": 0.1,
}  # fmt: skip
# Attacks that name the fields of messages on which they act.
FORGERS = ("copy", "group-mean", "mimic")
_FITS = ("sign-flip", "shuffle", "noise", "scale", "model-replacement")


@dataclass(frozen=True)
class Attack:
    """An attack: the adversaries' share of the clients, its strength, and for a forger the fields that it forges.

    On an update u = trained - start. sign-flip: -strength u; scale: strength u; shuffle: the entries of each tensor of
    u in random order, times strength; noise: u + strength |u| e, with a random unit vector e for each tensor.
    model-replacement: u / (share strength), learned from flipped labels, so that the mean of all becomes the
    adversaries' model (strength: the server's learning rate; Bagdasaryan et al., AISTATS 2020).

    On samples. label-flip: label y becomes classes - 1 - y, for the share `strength` of the training samples. sybil:
    all adversaries have the samples of one of them.

    On messages, in collusion: see `fedkin.engines.attacks`. alie: mean - strength std of the colluders' updates (Baruch
    et al., NeurIPS 2019); ipm: -strength times their mean (Xie et al., UAI 2019); copy: a victim's fields; group-mean:
    their mean over the victim's group; mimic: copy, and noise of strength times its length in each tensor of floats.
    """

    kind: str
    share: float
    strength: float = 1.0
    fields: tuple[str, ...] = ()

    @classmethod
    def parse(cls, spec: str) -> Self | None:
        """Read "none", "KIND:SHARE[:STRENGTH]", or for a forger "KIND:SHARE:FIELD+FIELD[:STRENGTH]".

        Raises ConfigError.

        >>> Attack.parse("scale:0.1:5")
        Attack(kind='scale', share=0.1, strength=5.0, fields=())
        >>> Attack.parse("copy:0.2:anchors+classes").fields
        ('anchors', 'classes')
        """
        if spec == "none":
            return None
        kind, *rest = (part.strip() for part in spec.split(":"))
        if kind not in ATTACKS:
            raise ConfigError(f"run.adversaries: no attack {kind!r}; {nearest(kind, [*ATTACKS, 'none'])}")
        default = ATTACKS[kind]
        fields = tuple(rest.pop(1).split("+")) if kind in FORGERS and len(rest) > 1 else ()
        parts = ["KIND:SHARE", *["FIELD+FIELD"] * (kind in FORGERS)]
        try:
            share, *given = map(float, rest)
        except ValueError:
            share, given = -1.0, [0.0, 0.0]
        if len(given) > (default is not None) or (kind in FORGERS and not all(fields or [""])):
            ways = [":".join(parts), *[":".join([*parts, "STRENGTH"])] * (default is not None)]
            raise ConfigError(f"run.adversaries: {spec!r}: expected {' or '.join(ways)}")
        strength = given[0] if given else 1.0 if default is None else default
        if not 0 < share < 1 or not 0 < strength < float("inf"):
            raise ConfigError(
                f"run.adversaries: {spec!r}: SHARE must be above 0 and below 1, STRENGTH above 0 and finite"
            )
        if kind == "label-flip" and strength > 1:
            raise ConfigError(f"run.adversaries: {spec!r}: STRENGTH is a share of the labels, at most 1")
        return cls(kind, share, strength, fields)

    def clients(self, ids: Sequence[str], seed: int) -> frozenset[str]:
        """Draw the adversaries, keyed by the seed: round(share * n) of these clients, at least one, never all."""
        names = sorted(ids)
        count = min(max(1, round(self.share * len(names))), len(names) - 1)
        return frozenset(names[k] for k in rng(seed, "adversaries").permutation(len(names))[:count])

    def __call__(self, fitted: Fitted, start: Params, draw: np.random.Generator) -> Fitted:
        """Return the fit as the adversary changes it; counters and other integer buffers stay the same."""
        if self.kind not in _FITS:
            return fitted
        params = {
            name: self._changed(tensor, start[name].to(tensor.dtype), draw) if tensor.is_floating_point() else tensor
            for name, tensor in fitted.params.items()
        }
        return replace(fitted, params=params)

    def _changed(self, tensor: Tensor, start: Tensor, draw: np.random.Generator) -> Tensor:
        update = tensor - start
        if self.kind == "shuffle":
            order = torch.from_numpy(draw.permutation(update.numel()))
            update = update.flatten()[order].reshape(update.shape) * self.strength
        elif self.kind == "noise":
            e = torch.from_numpy(draw.normal(size=tuple(update.shape))).to(update)
            update = update + self.strength * update.norm() / e.norm().clamp(min=1e-12) * e
        elif self.kind == "model-replacement":
            update = update / (self.share * self.strength)
        else:
            update = update * (-self.strength if self.kind == "sign-flip" else self.strength)
        return start + update


@dataclass(frozen=True)
class Attacks:
    """What the adversaries of a run do: one attack, or several by the same clients, one after another."""

    each: tuple[Attack, ...]

    @classmethod
    def parse(cls, spec: str) -> Self | None:
        """Read "none", or attacks with commas between them, all with one share; raises ConfigError.

        >>> [attack.kind for attack in Attacks.parse("label-flip:0.2, copy:0.2:signature").each]
        ['label-flip', 'copy']
        """
        if spec == "none":
            return None
        read = [Attack.parse(part.strip()) for part in spec.split(",")]
        each = tuple(attack for attack in read if attack)
        if len(each) < len(read):
            raise ConfigError(f"run.adversaries: {spec!r}: 'none' stands alone, or not at all")
        if len({attack.share for attack in each}) != 1:
            raise ConfigError(f"run.adversaries: {spec!r}: several attacks are by the same clients: give one SHARE")
        return cls(each)

    def of(self, *kinds: str) -> list[Attack]:
        """Return the attacks of these kinds."""
        return [attack for attack in self.each if attack.kind in kinds]

    def clients(self, ids: Sequence[str], seed: int) -> frozenset[str]:
        """Draw the adversaries: see `Attack.clients`."""
        return self.each[0].clients(ids, seed)

    def __call__(self, fitted: Fitted, start: Params, draw: np.random.Generator) -> Fitted:
        """Return the fit as the adversary changes it."""
        for attack in self.each:
            fitted = attack(fitted, start, draw)
        return fitted

    def check(self, method: ServerMethod | PeerMethod, federation: Federation) -> None:
        """Raise ConfigError for an attack that this method or federation gives no place to."""
        for attack in self.of("label-flip", "model-replacement"):
            federation.task.need_labels("run.adversaries", repr(attack.kind))
        if self.of("group-mean") and federation.planted is None:
            raise ConfigError("run.adversaries: 'group-mean' needs known groups of the clients, and these have none")
        phases = method.phases() if isinstance(method, ServerMethod) else list(method.shares)
        declared = [method.declared(phase) for phase in sorted(phases)]
        if any(sets is None for sets in declared):
            return
        known = sorted({name for sets in declared for fields in sets or () for name in fields})
        for name in (name for attack in self.of(*FORGERS) for name in attack.fields):
            if name not in known:
                raise ConfigError(
                    f"run.adversaries: no message of {method.name!r} has a field {name!r}; {nearest(name, known)}"
                )
