"""The rows of nothing_told.py: methods as they are, and methods that are told the number of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.methods import METHODS
from fedkin.settings import parse

__all__ = ["ESSENTIAL", "ROWS", "SAME", "TIERS", "Row", "built", "number_of_groups"]

Options = Callable[[int, int], Mapping[str, Any]]


@dataclass(frozen=True)
class Row:
    """A method and its options, from (number of planted groups, rounds); told: whether they depend on the groups."""

    method: str
    options: Options = lambda groups, rounds: {}
    told: bool = False


def _fixed(**options: Any) -> Options:
    return lambda groups, rounds: options


def _pixels(groups: Any) -> Mapping[str, Any]:
    """FLT on the inputs themselves, with matching distances and without an embedding."""
    graph = {"embedding": "none", "distance": "matching", "gamma": "groups", "cluster": "distances"}
    return {"graph": {**graph, "groups": groups}}


ESSENTIAL: dict[str, Row] = {
    "local": Row("local"),
    "fedavg": Row("fedavg"),
    "flt, told": Row("flt", lambda groups, rounds: _pixels(groups), told=True),
    "kin": Row("kin"),
}
CLUSTERED: dict[str, Row] = {
    "cfl": Row("cfl"),
    "flt, ratio": Row("flt", lambda groups, rounds: _pixels("ratio")),
    "pca-km-hc": Row("pca-km-hc"),
    "fedsem": Row("fedsem"),
    "ifca": Row("ifca"),
    "pca-km-hc, told": Row("pca-km-hc", lambda groups, rounds: {"clusters": groups}, told=True),
    "fedsem, told": Row("fedsem", lambda groups, rounds: {"clusters": groups}, told=True),
    "ifca, told": Row("ifca", lambda groups, rounds: {"clusters": groups}, told=True),
}
# FLT with the planted groups themselves, and with groups from the test of docs/groups.md, in methods that are otherwise
# told.
SAME: dict[str, Row] = {
    "flt, oracle": Row("flt-same", _fixed(graph={"control": "oracle"}), told=True),
    "flt-same": Row("flt-same"),
    "pca-km-hc, same": Row("pca-km-hc", _fixed(clusters="same")),
    "fedsem, same": Row("fedsem", _fixed(clusters="same")),
    "ifca, same": Row("ifca", _fixed(clusters="same")),
    "cfl, same": Row("cfl", _fixed(split="same")),
    "sfmtl-graph, same": Row("sfmtl-graph", _fixed(graph={"groups": "same"})),
}
# Cheapest first. MAPL's warm-up is its default, a quarter of the rounds.
OTHERS: dict[str, Row] = {
    **{name: Row(name) for name in ("fedprox", "median", "fedsim", "pfedsim", "tfl", "drfa", "fedu", "sfmtl-graph")},
    **{name: Row(name) for name in ("dfedavgm", "fedproto", "pfedme", "fedsr")},
    **{name: Row(name, lambda groups, rounds: {"warmup": max(1, rounds // 4)}) for name in ("mapl", "mapl-plus")},
    "fedclassavg": Row("fedclassavg"),
}
# Rivals that are told nothing, the simplest first.
RIVALS: dict[str, Row] = {
    **{name: Row(name) for name in ("fedavg-ft", "ditto", "fedper", "fedrep", "pfedgraph", "lg-fedavg", "apfl")},
    **{name: Row(name) for name in ("per-fedavg", "fedamp")},
    "fedavg-ft, one pass": Row("fedavg-ft", _fixed(passes=1)),
    "ditto, lam .1": Row("ditto", _fixed(lam=0.1)),
}
# What the choice of a level and a degree adds: last, and best asked for by name.
WHY: dict[str, Row] = {"kin, groups": Row("kin", _fixed(degrees="groups"))}
# Inside a tier, a federation is done with all rows before the next one; after the reference, kin and FLT each row is a
# tier of its own.
TIERS: tuple[dict[str, Row], ...] = (
    ESSENTIAL, *({name: row} for name, row in {**SAME, **CLUSTERED, **OTHERS, **WHY, **RIVALS}.items()),
)  # fmt: skip
ROWS: dict[str, Row] = {name: row for tier in TIERS for name, row in tier.items()}


def number_of_groups(federation: Federation) -> int | None:
    """How many groups a method could be told; None if that is unknown, or makes it FedAvg or local training."""
    groups = len(set((federation.planted or {}).values()))
    return groups if 1 < groups < len(federation) else None


def built(row: Row, groups: int | None, rounds: int) -> ServerMethod | PeerMethod | None:
    """The method; None for a row that is told and has nothing to be told. Raises ConfigError for unknown settings."""
    if row.told and groups is None:
        return None
    if row.method not in METHODS:
        raise ConfigError(f"no method {row.method!r}")
    return parse(METHODS[row.method], row.options(groups or 0, rounds), "method")
