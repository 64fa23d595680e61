"""Definitions of the papers' tables, one TOML file each: federations, rows, tuning, the paper's figures and claims."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from fedkin.errors import ConfigError, nearest
from fedkin.methods import METHODS
from fedkin.records.controls import split_control, with_controls
from fedkin.running.experiment import Experiment, load, read_table
from fedkin.running.grid import HoldOut
from fedkin.running.plugins import add_installed
from fedkin.running.presets import preset_folder
from fedkin.running.tune import Equal
from fedkin.settings import Settings, choose, parse

OURS = "ours:"

Paper = Literal["FLT", "SFMTL-Graph", "MAPL", "TFL"]
PAPERS: tuple[str, ...] = get_args(Paper)
Figure = Literal[
    "mean", "worst10", "worst20", "std", "variance", "unseen", "gap", "ari", "bytes", "best_round", "best_bytes",
]  # fmt: skip


class EqualBudget(Settings):
    """Tuning of every row with the same budget: equally many candidates and seeds, each with all rounds.

    rates: the range of training.lr. hold_out: as for `fedkin tune`. seeds: the seeds of the tuning.
    """

    candidates: int = Field(6, ge=2)
    rates: tuple[float, float]
    seeds: tuple[int, ...] = Field((0, 1), min_length=1)
    hold_out: str = "samples:0.2"

    def equal(self, fixed: tuple[str, ...] = ()) -> Equal:
        """The candidates for one row; its own settings `fixed` are not tuned."""
        return Equal(self.candidates, self.rates, fixed=fixed)

    @field_validator("hold_out")
    @classmethod
    def _held(cls, text: str) -> str:
        try:
            return str(HoldOut.parse(text))
        except ConfigError as error:
            raise ValueError(str(error)) from None


class Row(Settings):
    """A row of the table: a method with its settings.

    tuned_as: another row whose tuned settings it takes. hold_out: held-out data that judge its candidates, if other
    than for the other rows (Local has no model for held-out clients).
    """

    name: str = Field(pattern=r"^[\w+.-]+$")
    method: str
    set: dict[str, Any] = Field(default_factory=dict)
    tuned_as: str | None = None
    hold_out: str | None = None


class Part(Settings):
    """A federation of the table: an experiment file (relative to the definition's folder), and changes of its settings.

    paper: the paper's figure of each row, as printed there. paper_rounds: the paper's rounds; None: not stated.
    """

    name: str = Field(pattern=r"^[\w+.,' -]+$")
    preset: str
    set: dict[str, Any] = Field(default_factory=dict)
    paper: dict[str, float | str] = Field(default_factory=dict)
    paper_rounds: int | None = Field(None, ge=1)

    def experiment(self, presets: Path) -> Experiment:
        """The experiment with the settings of this federation; presets: the folder of the definition."""
        return load(presets / self.preset).with_changes(**self.set)


class Claim(Settings):
    """A claim of the paper: row `better` is better than row `than` in a figure, or its figure is above `least`.

    figure: "gap" is between clients in and out of federation, "best_round" the evaluated round with the best mean over
    unseen clients (without them, over all), and "best_bytes" what had been sent by then. by: how much better at least;
    below 0: how much worse at most. on: federations of the claim (None: all). paper: the
    paper's figure, if other than those of the two rows. untestable: why the claim is not tested. A text that begins
    with "ours:" is our claim, not the paper's.
    """

    text: str
    better: str | None = None
    than: str | None = None
    least: float | None = None
    by: float = 0.0
    figure: Figure = "mean"
    on: tuple[str, ...] | None = None
    paper: str = ""
    untestable: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        tested = self.better is not None and (self.than is None) != (self.least is None)
        if tested == (self.untestable is not None):
            raise ValueError("give better and than (or least) for a claim that is tested, or untestable for another")
        if self.by and self.than is None:
            raise ValueError("by goes with than: it is a difference between two rows")
        return self

    @property
    def ours(self) -> bool:
        """Whether the claim is ours, not the paper's."""
        return self.text.startswith(OURS)

    @property
    def row_names(self) -> list[str]:
        """The names of the rows that the claim is about."""
        return [name for name in (self.better, self.than) if name is not None]

    @property
    def needed(self) -> float:
        """The value that the difference, or the figure itself, must exceed."""
        return self.by if self.least is None else self.least


class Quick(Settings):
    """The changes of `--quick`: settings of every federation, and fewer seeds and candidates."""

    set: dict[str, Any] = Field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1)
    candidates: int = Field(2, ge=2)


class PaperTable(Settings):
    """A table of a paper. paper: which of the four. summary: a sentence for the index: which results of the paper hold.

    apart: how this setting differs from the paper's. methods: rows of methods without changed settings.
    controls: the controls that every row has. seeds: the seeds of the compared runs.
    """

    title: str
    source: str
    paper: Paper | None = None
    summary: str = ""
    apart: str = ""
    methods: tuple[str, ...] = ()
    controls: tuple[Literal["self", "one", "random", "oracle"], ...] = ("self",)
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    tune: EqualBudget | None = None
    row: tuple[Row, ...] = ()
    federation: tuple[Part, ...] = ()
    claim: tuple[Claim, ...] = ()
    quick: Quick = Quick()

    @model_validator(mode="after")
    def _names(self) -> Self:
        rows, parts = [row.name for row in self.rows()], [part.name for part in self.federation]
        for row in self.rows():
            choose(METHODS, row.method, f"row {row.name!r}: method")
            if row.tuned_as is not None and row.tuned_as not in rows:
                raise ValueError(f"row {row.name!r}: tuned_as: no row {row.tuned_as!r}")
        for kind, names in (("rows", rows), ("federations", parts)):
            if len(set(names)) < len(names):
                raise ValueError(f"two {kind} share a name")
        return self

    @model_validator(mode="after")
    def _names_of_claims(self) -> Self:
        rows, parts = set(self.names(planted=True)), {part.name for part in self.federation}
        for claim in self.claim:
            if wrong := [name for name in claim.row_names if name not in rows]:
                raise ValueError(f"claim {claim.text!r}: no row {wrong[0]!r}; {nearest(wrong[0], rows)}")
            if unknown := set(claim.on or ()) - parts:
                raise ValueError(f"claim {claim.text!r}: no federation {min(unknown)!r}")
        return self

    @model_validator(mode="after")
    def _views(self) -> Self:
        """Refuse methods that train on views (augmented samples) unless a row has Local on the same views."""
        of_local = [
            view for row in self.rows()
            if row.method == "local" and (view := row.set.get("training.augment")) not in (None, "none")
        ]  # fmt: skip
        for row in self.rows():
            if "augment" not in METHODS[row.method].model_fields:
                continue
            views = row.set.get("method.augment")
            if not of_local or (views is not None and views not in of_local):
                raise ValueError(
                    f"row {row.name!r} trains on views of the samples: add a row with method local and "
                    f"training.augment{' ' + str(views) if views is not None else ''}, so that what views give is not "
                    "credited to the exchange"
                )
        return self

    def rows(self) -> tuple[Row, ...]:
        """The rows without controls: first the methods without changed settings, then the others."""
        return (*(Row(name=name, method=name) for name in self.methods), *self.row)

    def names(self, planted: bool) -> list[str]:
        """The names of all rows, each followed by its controls; `oracle` only if planted groups are known."""
        kinds = {row.name: METHODS[row.method] for row in self.rows()}
        names = with_controls(list(kinds), planted, kinds)
        return [name for name in names if split_control(name)[1] in (None, *self.controls)]

    def row_of(self, name: str) -> tuple[Row, str | None]:
        """Return (the row, the control or None) for a name."""
        base, control = split_control(name)
        return next(row for row in self.rows() if row.name == base), control

    def federations_of(self, claim: Claim) -> list[Part]:
        """The federations on which a claim is tested."""
        return [part for part in self.federation if claim.on is None or part.name in claim.on]

    def only(self, methods: Collection[str]) -> PaperTable:
        """The table with the rows of these methods and of Local.

        Local on views is left out if no named method trains on views. Raises ConfigError for a method without a row,
        and for a row tuned as another row that is left out.
        """
        of = {row.name: row.method for row in self.rows()}
        for name in methods:
            choose(dict.fromkeys(of.values()), name, "--methods")
        on_views = any("augment" in METHODS[name].model_fields for name in methods)
        kept = {
            row.name for row in self.rows()
            if row.method in methods or (row.method == "local" and (on_views or "training.augment" not in row.set))
        }  # fmt: skip
        rows = tuple(row for row in self.row if row.name in kept)
        for row in rows:
            if row.tuned_as is not None and row.tuned_as not in kept:
                raise ConfigError(
                    f"--methods: row {row.name!r} has the tuned settings of row {row.tuned_as!r}; name its method "
                    f"{of[row.tuned_as]} too"
                )
        return self.model_copy(update={"methods": tuple(name for name in self.methods if name in kept), "row": rows})

    def with_seeds(self, seeds: Sequence[int]) -> PaperTable:
        """The table with these of its seeds; raises ConfigError for another one."""
        if other := [seed for seed in seeds if seed not in self.seeds]:
            raise ConfigError(
                f"--seeds: the definition has {list(self.seeds)}, not {other[0]}; add it there, or leave it out"
            )
        return self.model_copy(update={"seeds": tuple(seeds)})

    def shortened(self) -> PaperTable:
        """The table for `--quick`, which takes minutes: every row, with few rounds, seeds and candidates."""
        quick, tune = self.quick, self.tune
        parts = tuple(part.model_copy(update={"set": part.set | quick.set}) for part in self.federation)
        less = None if tune is None else tune.model_copy(
            update={"candidates": quick.candidates, "seeds": tune.seeds[:1]}
        )  # fmt: skip
        return self.model_copy(update={"federation": parts, "tune": less, "seeds": quick.seeds})


def table_folder(given: Path | None) -> Path:
    """The folder of the definitions: `given`, else presets/tables here, else fedkin's own; raises ConfigError."""
    if given is not None and not given.is_dir():
        raise ConfigError(f"--tables {given}: no such folder; without it the tables that come with fedkin are used")
    here = Path("presets/tables")
    return given or (here if here.is_dir() else preset_folder() / "tables")


def known_tables(folder: Path) -> dict[str, PaperTable]:
    """The definitions in a folder, by name, sorted; raises ConfigError naming file and field."""
    add_installed()
    return {path.stem: parse(PaperTable, read_table(path), str(path)) for path in sorted(folder.glob("*.toml"))}
