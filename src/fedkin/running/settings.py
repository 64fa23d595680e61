"""Settings of a run: the section `[run]` of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedkin.engines.settings import EngineSettings
from fedkin.errors import nearest
from fedkin.learning.computing import Computing, Precision, Source
from fedkin.learning.measures import MEASURES
from fedkin.running.trackers import TRACKERS
from fedkin.untrusted import printable

__all__ = ["RunSettings", "modern", "without_none"]


class RunSettings(EngineSettings):
    """The section `[run]`: the seed, the engine and its settings (see EngineSettings), and the records of a run.

    engine: "local", "ray", or for tests "loopback" and "processes". dtype: type of parameters and inputs.
    precision: "bf16" computes bodies of nets in bfloat16 by torch's autocast, on a CPU or GPU that has instructions for
    it; parameters, messages, heads and losses stay in float32, and so do parts that fedkin froze (`frozen = true`).
    "float32" computes in `dtype`. channels_last: compute convolutions on a CPU with channels last, which is faster;
    nets that cannot do so are computed with channels first. kernels: "numba" computes small convolutions on a CPU by
    kernels that numba compiles (`fedkin[kernels]`), in float32, where one client at a time is trained.
    evaluate_every, checkpoint_every: in rounds.
    embeddings_every: in rounds. Evaluated rounds that it divides store class means of features for the report. The last
    round always stores them (0: only the last round).
    models: "last" keeps each client's model after the last round with the run, "none" keeps none. Clients with equal
    models share a file. models_limit_mb: if all different models together are larger (in MB of 2^20 bytes), none is
    kept, and a warning says so.
    metrics: further metrics of each client's model in every evaluation:
    names of `fedkin list metrics`, or FILE.py:NAME.
    trackers: trackers of the figures of every round: "tensorboard", "mlflow", "wandb" (a list, or a text with
    commas).
    label: what the report calls the method where a comparison gave it another name: "mu=1"; its control is "mu=1@self".
    """

    seed: int = Field(0, ge=0, lt=10**18)
    engine: str = "local"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "float32"
    channels_last: bool = True
    kernels: Source = "torch"
    evaluate_every: int = Field(1, ge=1)
    checkpoint_every: int = Field(10, ge=1)
    embeddings_every: int = Field(0, ge=0)
    models: Literal["last", "none"] = "last"
    models_limit_mb: float = Field(4096.0, gt=0)
    metrics: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    label: str | None = Field(None, max_length=200)

    @field_validator("trackers", "metrics", mode="before")
    @classmethod
    def _names(cls, names: Any) -> Any:
        return [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    @field_validator("trackers", "metrics")
    @classmethod
    def _known(cls, names: tuple[str, ...], about: ValidationInfo) -> tuple[str, ...]:
        known: Mapping[str, Any] = TRACKERS if about.field_name == "trackers" else MEASURES
        for place, name in enumerate(names):
            if name not in known:
                raise ValueError(f"no {name!r}; {nearest(name, known)}")
            if name in names[:place]:
                raise ValueError(f"{name!r} is there twice")
        return names

    @field_validator("label")
    @classmethod
    def _in_a_line(cls, label: str | None) -> str | None:
        if label is not None and not printable(label):
            raise ValueError("expected a text in one line")
        return label

    @model_validator(mode="after")
    def _on_cores(self) -> Self:
        if self.device != "cpu" and self.engine == "ray":
            raise ValueError(f"engine = 'ray' is for processors; leave it out with device = {self.device!r}")
        return self

    @model_validator(mode="after")
    def _one_precision(self) -> Self:
        if self.precision == "bf16" and self.dtype != "float32":
            raise ValueError(f"precision = 'bf16' is for dtype = 'float32', not {self.dtype!r}; leave one of them out")
        if self.kernels == "numba" and (self.dtype, self.precision, self.device) != ("float32", "float32", "cpu"):
            raise ValueError("kernels = 'numba' is for dtype and precision float32 on the CPU; leave it out")
        return self

    def keeps_features(self, round: int) -> bool:
        """Whether `embeddings_every` selects this round."""
        return self.embeddings_every > 0 and round % self.embeddings_every == 0

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch type of `dtype`."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def computing(self) -> Computing:
        """How nets are computed."""
        return Computing(self.precision, self.channels_last, self.kernels)


def modern(table: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run of an older version under today's names, to go on with it."""
    table = {**table, **{name: _of_path(table[name]) for name in ("data", "model") if name in table}}
    run = dict(table.get("run", {}))
    if "dropout" not in run:
        return table
    dropout = run.pop("dropout")
    return {**table, "faults": {"dropout": dropout, **table.get("faults", {})}, "run": run}


def _of_path(section: Any) -> Any:
    """Drop what only has a meaning on the Hub from what is read from a path, beside which it was ignored once."""
    if not isinstance(section, Mapping):
        return section
    made = dict(section)
    if {made.get("source"), made.get("name")} & {"hub", "transformers"} and made.get("path") is not None:
        made = {name: item for name, item in made.items() if name not in ("config", "revision")}
    if isinstance(nets := made.get("nets"), Mapping):
        made["nets"] = {name: _of_path(net) for name, net in nets.items()}
    return made


def without_none(value: Any) -> Any:
    """Drop settings that are None, since TOML has no null; a missing setting has its default None."""
    if isinstance(value, Mapping):
        return {name: without_none(item) for name, item in value.items() if item is not None}
    return value
