"""What the rows of a table say beside inputs and targets: which belong together, and when they were."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.advice.folds import Rows
from fedkin.data.sources._table import TableSource
from fedkin.errors import ConfigError, nearest
from fedkin.federation import Federation
from fedkin.federation.table import numbers, texts
from fedkin.running.experiment import Experiment

__all__ = ["rows_of", "without_column"]


def without_column(experiment: Experiment, together: str | None) -> Experiment:
    """The experiment without this column among the inputs: a patient's number is none."""
    left = getattr(experiment.data, "leave_out", ())
    if together is None or not isinstance(experiment.data, TableSource) or together in left:
        return experiment
    return experiment.with_changes(**{"data.leave_out": [*left, together]})


def rows_of(
    experiment: Experiment, federation: Federation, data_root: Path, together: str | None = None
) -> Mapping[str, Rows]:
    """Of each client's training samples: those with one value of column `together` belong together; and their times.

    Raises ConfigError if there is no such column, or if the data are no table of the clients' own rows.
    """
    source = experiment.data
    if not isinstance(source, TableSource) or experiment.scenario.name != "natural":
        if together is not None:
            raise ConfigError("--together: only for tables whose rows are the clients' own (scenario natural)")
        return {}
    if together is None and source.time is None:
        return {}
    from fedkin.federation.table import columns_of

    table, owner = source.table(data_root)
    if together is not None and together not in table.column_names:
        raise ConfigError(f"--together: no column {together!r}; {nearest(together, table.column_names)}")
    plain = table if source.tokens is None else table.drop_columns([source.tokens])
    train = np.flatnonzero(~columns_of(plain, source.reading(owner)).held)
    unit = None
    if together is not None:
        values = [repr(value) for value in texts(table, together)]
        unit = np.unique(np.array(values), return_inverse=True)[1].reshape(-1)[train]
    when = None if source.time is None else numbers(table, source.time)[train]
    found = {}
    for id, client in federation.items():
        rows = client.train.rows
        own = np.arange(len(train)) if rows is None else rows.numpy()
        found[id] = Rows(None if unit is None else unit[own], None if when is None else when[own])
    return found
