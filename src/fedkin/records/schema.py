"""The schemas of a run's files, with the fields that readers need.

Files may have further fields: a newer version may write more of them, and an older one fewer.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "VALIDATION",
    "Facts",
    "Finished",
    "Form",
    "Line",
    "Plan",
    "Settings",
    "Spent",
    "Statistics",
    "Summary",
    "Trials",
    "Validation",
]  # fmt: skip


class Form(BaseModel):
    """A strict JSON object: a text is not read as a number, true is not 1, and NaN is refused."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Ways(Form):
    up: int = Field(ge=0)
    down: int = Field(ge=0)


class Statistics(Form):
    """Statistics of a metric over clients; a figure that is not known is None or missing."""

    mean: float | None = None
    std: float | None = None
    worst10: float | None = None
    worst20: float | None = None
    variance: float | None = None
    loss: float | None = None
    weighted: float | None = None
    pooled: float | None = None
    stderr: float | None = None
    clients: int | None = None
    left_out: int | None = None


class _Groups(Form):
    found: int | None = None
    ari: float | None = None
    nmi: float | None = None
    modularity: float | None = None


class Spent(Form):
    """A line of timing.jsonl."""

    round: int
    total: float | None = None


class Line(Form):
    """A line of rounds.jsonl; `reading.judged` checks its metric."""

    round: int
    bytes: _Ways
    groups: _Groups | None
    sampled: list[str] | None = None
    figures: dict[str, Any] | None = None
    unseen: Statistics | None = None
    gap: float | None = None
    metrics: dict[str, Statistics] | None = None


class _Seconds(Form):
    total: float | None = None


class _Missed(Form):
    count: int
    round: int
    phase: str
    reason: str


class _Missing(Form):
    kinds: dict[str, int]
    clients: dict[str, _Missed]


class _Epsilon(Form):
    max: float | None
    mean: float | None
    clients: dict[str, float | None]


class _Privacy(Form):
    """Epsilon is None where it has no bound."""

    epsilon: _Epsilon
    delta: float
    releases: dict[str, int]
    open: dict[str, list[str]]


class _Calibration(Form):
    brier: float
    brier_none: float
    slope: float | None
    slope_low: float | None
    slope_high: float | None
    large: float | None


class _Measured(Form):
    """A further metric; values: of each client, None where it is not determined."""

    title: str
    higher: bool
    share: bool = False
    mean: float | None = None
    std: float | None = None
    worst10: float | None = None
    worst20: float | None = None
    clients: int
    left_out: int = 0
    values: dict[str, float | None]


class _Way(Form):
    net: str
    loss: str
    way: str
    why: str


class Summary(Form):
    """The file summary.json; `reading.judged` checks its metric."""

    method: str
    seed: int = Field(ge=0)
    rounds: int = Field(ge=0)
    bytes: _Ways
    groups: _Groups | None = None
    unseen: Statistics | None = None
    gap: float | None = None
    seconds: _Seconds | None = None
    engine: str | None = None
    dtype: str | None = None
    parameters: int | None = None
    versions: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    missing: _Missing | None = None
    calibration: _Calibration | None = None
    given: list[str] | None = None
    warnings: list[str] | None = None
    privacy: _Privacy | None = None
    metrics: dict[str, _Measured] | None = None
    ways: list[_Way] | None = None


class _Shares(_Ways):
    up_per_client: float
    down_per_client: float


class _Floats(_Shares):
    largest_upload: int


class _Flops(Form):
    local_training: float | None


class _Parts(_Seconds):
    total: float
    local: float
    graph: float
    evaluate: float


class Finished(Summary):
    """A summary with the fields that the terminal prints, which are more than a report needs."""

    scenario: str
    clients: int
    bytes: _Shares
    floats: _Floats
    flops: _Flops
    groups: _Groups
    seconds: _Parts


class _Client(Form):
    n_train: int | None = None
    n_test: int | None = None
    group: str | None = None
    labels: dict[str, int] = {}
    about: dict[str, Any] = {}
    seen: bool = True


class _Task(Form):
    classes: int | None = None


class Facts(Form):
    """The file federation.json."""

    task: _Task = _Task()
    clients: dict[str, _Client] = {}


class Plan(Form):
    """The file plan.json of a comparison."""

    methods: list[str]
    seeds: list[int]
    leave_out: list[str] | None = None


# Beside an experiment that `fedkin tune` wrote, and in a comparison of it.
VALIDATION = "validation.json"


class Validation(Form):
    """The file validation.json: each method's mean on held-out training data ("samples:0.2", "clients:0.2")."""

    hold_out: str = Field(pattern=r"^(samples|clients):\d*\.?\d+(e-\d+)?$")
    means: dict[str, float]


class Trials(Plan):
    """The file plan.json of a tuning; `try` has [method or None, setting, values] for each setting.

    optuna: the version that chose candidates.
    """

    hold_out: str
    tries: list[Annotated[tuple[str | None, str, list[Any]], Field(strict=False)]] = Field(alias="try")
    equal: (
        Annotated[tuple[int, Annotated[tuple[float, float], Field(strict=False)] | None, int], Field(strict=False)]
        | None
    ) = None
    halving: bool = False
    optuna: str | None = None


class Sweep(Plan):
    """The file plan.json of a sweep; `grid` as `try` of a tuning."""

    grid: list[Annotated[tuple[str | None, str, list[Any]], Field(strict=False)]]


class _Method(Form):
    name: str = ""


class _Rounds(Form):
    rounds: int = 0


class _Run(Form):
    seed: int = 0
    label: str | None = None


class Settings(Form):
    """The file experiment.toml of a run or a comparison."""

    data: dict[str, Any] = {}
    scenario: dict[str, Any] = {}
    model: dict[str, Any] = {}
    methods: dict[str, Any] = {}
    method: _Method = _Method()
    training: _Rounds = _Rounds()
    run: _Run = _Run()
