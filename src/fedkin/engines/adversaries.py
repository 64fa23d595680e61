"""Adversarial clients: they train like other clients, but return changed results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import ConfigError, nearest
from fedkin.flow import Fitted, Params
from fedkin.keys import rng

__all__ = ["ATTACKS", "Attack"]

# The attacks with their default strengths.
ATTACKS = {"sign-flip": 1.0, "shuffle": 1.0, "noise": 1.0, "scale": 10.0}


@dataclass(frozen=True)
class Attack:
    """An attack: the adversaries' share of the clients, and their change of an update u = trained - start.

    sign-flip: -strength u; scale: strength u; shuffle: the entries of each tensor of u in random order, times
    strength; noise: u + strength |u| e, with a random unit vector e for each tensor.
    """

    kind: str
    share: float
    strength: float

    @classmethod
    def parse(cls, spec: str) -> Self | None:
        """Read "none" or "KIND:SHARE[:STRENGTH]", for example "sign-flip:0.2"; raises ConfigError.

        >>> Attack.parse("scale:0.1:5")
        Attack(kind='scale', share=0.1, strength=5.0)
        """
        if spec == "none":
            return None
        kind, *numbers = spec.split(":")
        if kind not in ATTACKS:
            raise ConfigError(f"run.adversaries: no attack {kind!r}; {nearest(kind, [*ATTACKS, 'none'])}")
        try:
            share, strength = (*map(float, numbers), *[ATTACKS[kind]] * (2 - len(numbers)))
        except ValueError:
            raise ConfigError(f"run.adversaries: {spec!r}: expected KIND:SHARE or KIND:SHARE:STRENGTH") from None
        if not 0 < share < 1 or not 0 < strength < float("inf"):
            raise ConfigError(
                f"run.adversaries: {spec!r}: SHARE must be above 0 and below 1, STRENGTH above 0 and finite"
            )
        return cls(kind, share, strength)

    def clients(self, ids: Sequence[str], seed: int) -> frozenset[str]:
        """Draw the adversaries, keyed by the seed: round(share * n) of these clients, at least one, never all."""
        names = sorted(ids)
        count = min(max(1, round(self.share * len(names))), len(names) - 1)
        return frozenset(names[k] for k in rng(seed, "adversaries").permutation(len(names))[:count])

    def __call__(self, fitted: Fitted, start: Params, draw: np.random.Generator) -> Fitted:
        """Return the fit as the adversary changes it; counters and other integer buffers stay the same."""
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
        else:
            update = update * (-self.strength if self.kind == "sign-flip" else self.strength)
        return start + update
