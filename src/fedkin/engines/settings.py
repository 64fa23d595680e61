"""Settings of engines: the part of the section `[run]` that engines read."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedkin.engines.adversaries import Attack
from fedkin.errors import ConfigError
from fedkin.graph import check_network
from fedkin.learning.devices import checked
from fedkin.settings import Settings

__all__ = ["EngineSettings"]


class EngineSettings(Settings):
    """The settings of an engine.

    mode: mode of local training: "one-by-one" (client after client), "stacked" (many clients in one computation),
    "workers" (processes of one thread), or "auto", which takes the fastest mode on the first jobs. All modes but
    "stacked" give the same bits; "auto" may choose "stacked" on one machine and not on another. workers: number of
    processes (0: one per core).
    device: device of local training: "cpu", "cuda" or "cuda:1". The bits on a GPU differ from those on a CPU, and its
    default mode is "stacked".
    dropout: probability in [0, 1) that a client's exchange with the server is lost, half of it on the way to the
    client, half on the way back.
    network: which peers are neighbours, for methods without a server: "full", "ring", "regular:4", "erdos-renyi:0.3",
    "planted" (the known groups); with ", changing" a new network each round.
    adversaries: "sign-flip:0.2" lets a fifth of the clients send the opposite of what they learned (also "scale",
    "shuffle", "noise"); these clients are not evaluated.
    state_limit_mb: memory for clients' states in MB (2^20 bytes); states above it are kept in the folder for temporary
    files (None: all in memory). It is for personal models of many clients.
    """

    mode: Literal["auto", "one-by-one", "stacked", "workers"] = "one-by-one"
    workers: int = Field(0, ge=0)
    device: str = "cpu"
    dropout: float = Field(0.0, ge=0, lt=1)
    network: str = "full"
    adversaries: str = "none"
    state_limit_mb: float | None = Field(None, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _stacked_on_a_gpu(cls, given: Any) -> Any:
        # With one small net at a time, a GPU mostly waits for the CPU.
        if isinstance(given, dict) and given.get("device", "cpu") != "cpu" and "mode" not in given:
            return {**given, "mode": "stacked"}
        return given

    @field_validator("device")
    @classmethod
    def _device(cls, name: str) -> str:
        return checked(name)

    @field_validator("network", "adversaries")
    @classmethod
    def _spec(cls, spec: str, info: ValidationInfo) -> str:
        try:
            check_network(spec) if info.field_name == "network" else Attack.parse(spec)
        except ConfigError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        return spec

    @model_validator(mode="after")
    def _on_processors(self) -> Self:
        if self.device != "cpu" and self.mode == "workers":
            raise ValueError(f"mode = 'workers' is for processors; leave it out with device = {self.device!r}")
        return self
