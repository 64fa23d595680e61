"""How a run is carried out: the section `[run]` of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedkin.engines.adversaries import Attack
from fedkin.errors import ConfigError, nearest
from fedkin.graph import check_network
from fedkin.learning.devices import checked as check_device
from fedkin.running.trackers import TRACKERS
from fedkin.settings import Settings

__all__ = ["RunSettings", "without_none"]


class RunSettings(Settings):
    """How a run is carried out, apart from what it computes.

    mode: how the engine does local work: "one-by-one" (client after client), "stacked" (many clients in one computation),
    "workers" (processes of one thread), or "auto", which takes the quickest on the first jobs. All but "stacked" give the
    same bits; with "auto" the machine decides which bits.
    workers: how many processes (0: one per core).
    device: where local work is done: "cpu", "cuda" or "cuda:1". A GPU gives bits of its own, and the default mode there
    is "stacked".
    dtype: of parameters and inputs.
    evaluate_every, checkpoint_every: in rounds.
    embeddings_every: in rounds; evaluated rounds that it divides keep class means of features for the report. The last
    round always does (0: only that one).
    dropout: probability in [0, 1) that a client's exchange with the server is lost, half of it on the way to the client,
    half on the way back.
    network: which peers are neighbours, for methods without a server: "full", "ring", "regular:4", "erdos-renyi:0.3",
    "planted" (the known groups); with ", changing" a new network each round.
    adversaries: "sign-flip:0.2" lets a fifth of the clients send the opposite of what they learned (also "scale",
    "shuffle", "noise"); these clients are not evaluated.
    state_limit_mb: memory for clients' states in MB (2^20 bytes); states above it are kept in the folder for temporary
    files (None: all in memory). It is for personal models of many clients.
    trackers: what else receives every round's figures: "tensorboard", "mlflow", "wandb" (a list, or a text with commas).
    """

    seed: int = Field(0, ge=0)
    engine: str = "local"
    mode: Literal["auto", "one-by-one", "stacked", "workers"] = "one-by-one"
    workers: int = Field(0, ge=0)
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: int = Field(1, ge=1)
    checkpoint_every: int = Field(10, ge=1)
    embeddings_every: int = Field(0, ge=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    network: str = "full"
    adversaries: str = "none"
    state_limit_mb: float | None = Field(None, ge=0)
    trackers: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _stacked_on_gpu(cls, given: Any) -> Any:
        # With one small net at a time, a GPU waits for the CPU.
        if isinstance(given, dict) and given.get("device", "cpu") != "cpu" and "mode" not in given:
            return {**given, "mode": "stacked"}
        return given

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

    @field_validator("device")
    @classmethod
    def _device(cls, name: str) -> str:
        return check_device(name)

    @model_validator(mode="after")
    def _cpu_only(self) -> Self:
        if self.device != "cpu" and (self.mode == "workers" or self.engine == "ray"):
            what = "mode = 'workers'" if self.mode == "workers" else "engine = 'ray'"
            raise ValueError(f"{what} is for processors; leave it out with device = {self.device!r}")
        return self

    @field_validator("network", "adversaries")
    @classmethod
    def _spec(cls, spec: str, info: ValidationInfo) -> str:
        try:
            check_network(spec) if info.field_name == "network" else Attack.parse(spec)
        except ConfigError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        return spec

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
