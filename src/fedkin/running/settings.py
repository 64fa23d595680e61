"""How a run is carried out: the section `[run]` of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator

from fedkin.engines.settings import EngineSettings
from fedkin.errors import nearest
from fedkin.running.trackers import TRACKERS

__all__ = ["RunSettings", "without_none"]


class RunSettings(EngineSettings):
    """The section `[run]`: the seed, which engine, what the engine reads (see EngineSettings), what is kept of a run.

    engine: "local", "ray", or for tests "loopback" and "processes". dtype: of parameters and inputs.
    evaluate_every, checkpoint_every: in rounds.
    embeddings_every: in rounds; evaluated rounds that it divides keep class means of features for the report. The last
    round always does (0: only that one).
    trackers: what else receives every round's figures: "tensorboard", "mlflow", "wandb" (a list, or a text with
    commas).
    """

    seed: int = Field(0, ge=0)
    engine: str = "local"
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: int = Field(1, ge=1)
    checkpoint_every: int = Field(10, ge=1)
    embeddings_every: int = Field(0, ge=0)
    trackers: tuple[str, ...] = ()

    @field_validator("trackers", mode="before")
    @classmethod
    def _names(cls, names: Any) -> Any:
        return [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    @field_validator("trackers")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for place, name in enumerate(names):
            if name not in TRACKERS:
                raise ValueError(f"no {name!r}; {nearest(name, TRACKERS)}")
            if name in names[:place]:
                raise ValueError(f"{name!r} is there twice")
        return names

    @model_validator(mode="after")
    def _on_cores(self) -> Self:
        if self.device != "cpu" and self.engine == "ray":
            raise ValueError(f"engine = 'ray' is for processors; leave it out with device = {self.device!r}")
        return self

    def keeps_features(self, round: int) -> bool:
        """Whether `embeddings_every` names this round."""
        return self.embeddings_every > 0 and round % self.embeddings_every == 0

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch knows it."""
        return torch.float64 if self.dtype == "float64" else torch.float32


def without_none(value: Any) -> Any:
    """TOML has no null: an absent setting is one at its default None."""
    if isinstance(value, Mapping):
        return {name: without_none(item) for name, item in value.items() if item is not None}
    return value
