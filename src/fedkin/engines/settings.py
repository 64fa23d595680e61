"""Settings of engines: the part of the section `[run]` that engines read."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedkin.engines.adversaries import Attacks
from fedkin.errors import ConfigError
from fedkin.graph.network import check_network
from fedkin.learning.devices import checked
from fedkin.settings import Settings

__all__ = ["EngineSettings"]


class EngineSettings(Settings):
    """The settings of an engine.

    mode: mode of local training: "fast" (many clients in one computation where their net and loss are of the simple
    kinds that `fedkin.learning.stacked` has, else client after client), "one-by-one" (client after client, the
    reference), or "workers" (processes of one thread, with the bits of "one-by-one"). "fast" differs from these by
    rounding. workers: number of processes (0: one per core).
    device: device of local training: "cpu", "cuda" or "cuda:1". The bits on a GPU differ from those on a CPU.
    network: which peers are neighbours, for methods without a server: "full", "ring", "regular:4", "erdos-renyi:0.3",
    "planted" (the known groups); with ", changing" a new network each round.
    alone: every client has a server of its own, or no neighbours: the method without exchange, as a control. What a
    client and its own server send each other is counted as for any server.
    adversaries: "sign-flip:0.2" lets a fifth of the clients send the opposite of what they learned; other attacks are
    "scale", "shuffle", "noise", "model-replacement", "label-flip", "sybil", "alie", "ipm", and "copy:0.2:FIELD",
    "group-mean", "mimic", which forge fields of messages. Several have commas between them. Adversaries are not
    evaluated.
    min_replies: the fewest replies to a request of the server with which a round goes on: a number, or a share (below
    1) of those asked. on_missing: otherwise those that are missing are asked again, up to `retries` times ("wait", then
    as for "skip"), or the round is skipped and leaves all states as before ("skip"), or the run stops and can be
    resumed ("stop").
    errors: a client whose own part fails (its samples, the net, the loss) counts as missing in that phase ("missing"),
    or ends the run ("stop"). If all clients fail in a phase, the run ends in any case.
    largest_n: replies with a larger number of samples are refused. message_limit_mb: largest size of a message in MB.
    """

    mode: Literal["fast", "one-by-one", "workers"] = "fast"
    workers: int = Field(0, ge=0)
    device: str = "cpu"
    network: str = "full"
    alone: bool = False
    adversaries: str = "none"
    min_replies: int | float = Field(0, ge=0)
    on_missing: Literal["skip", "wait", "stop"] = "skip"
    retries: int = Field(3, ge=1)
    errors: Literal["missing", "stop"] = "missing"
    largest_n: int = Field(10**9, ge=1)
    message_limit_mb: float = Field(1024.0, gt=0)

    @field_validator("device")
    @classmethod
    def _device(cls, name: str) -> str:
        return checked(name)

    @field_validator("network", "adversaries")
    @classmethod
    def _spec(cls, spec: str, info: ValidationInfo) -> str:
        try:
            check_network(spec) if info.field_name == "network" else Attacks.parse(spec)
        except ConfigError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        return spec

    @property
    def reach(self) -> str:
        """The network of the peers: `network`, or "none" if every client is alone."""
        return "none" if self.alone else self.network

    @field_validator("min_replies")
    @classmethod
    def _count_or_share(cls, least: int | float) -> int | float:
        if least > 1 and least % 1:
            raise ValueError("expected a whole number of replies, or a share below 1")
        return least

    def needed(self, asked: int) -> int:
        """Return the fewest replies with which a round goes on, if this many clients were asked."""
        least = math.ceil(self.min_replies * asked) if self.min_replies < 1 else int(self.min_replies)
        return min(least, asked)

    @model_validator(mode="after")
    def _on_processors(self) -> Self:
        if self.device != "cpu" and self.mode == "workers":
            raise ValueError(f"mode = 'workers' is for processors; leave it out with device = {self.device!r}")
        return self
