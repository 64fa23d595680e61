"""Sources (readers of data sets) and scenarios (which client gets which samples)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkin.data.dataset import Dataset, Part
from fedkin.data.scenarios import SCENARIOS, Scenario
from fedkin.data.sources import SOURCES, Source
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.settings import choose, expect, parse, place

__all__ = ["SCENARIOS", "SOURCES", "Dataset", "Part", "Scenario", "Source", "federate"]


def federate(
    source: str | Source | Dataset,
    scenario: str | Scenario,
    *,
    seed: int = 0,
    data_root: Path | str = "data",
    data: Mapping[str, Any] | None = None,
    **options: Any,
) -> Federation:
    """Load a data set and assign its samples to clients.

    source: a name of `fedkin list sources`, a source, or a data set that is already loaded. data: the source's settings
    if `source` is a name. scenario: a name of `fedkin list scenarios` or a scenario. options: the scenario's settings
    if `scenario` is a name. Raises ConfigError for wrong settings, DataError for missing or wrong files.

    >>> from fedkin.data import federate
    >>> fed = federate("digits", "rotated-masked", clients=8, seed=0)
    >>> sorted(set(fed.planted.values()))
    ['rot0', 'rot180', 'rot270', 'rot90']
    """
    if isinstance(source, str):
        source = parse(choose(SOURCES, source, "source"), data or {}, "data")
    elif data:
        raise ConfigError(f"data: set {', '.join(map(repr, data))} on the source that you passed")
    if isinstance(scenario, str):
        scenario = parse(choose(SCENARIOS, scenario, "scenario"), options, "scenario")
    elif options:
        raise ConfigError(f"{', '.join(options)}: set these on the scenario that you passed")
    expect(source, (Source, Dataset), "source", "a name of fedkin list sources, a Source or a Dataset")
    expect(scenario, Scenario, "scenario", "a name of fedkin list scenarios or a Scenario")
    dataset = source if isinstance(source, Dataset) else source.loaded(place(data_root, "data_root"))
    return scenario.federation(dataset, seed)
