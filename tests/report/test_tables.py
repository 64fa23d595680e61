"""Tables in a terminal: the columns are the right ones, whatever the groups are called."""

from __future__ import annotations

from pathlib import Path

from fedkin.records.run import read_run
from fedkin.report.tables import left_out
from report.fake_runs import make_run


def test_groups_may_have_the_names_of_other_columns(tmp_path: Path) -> None:
    methods = ("local", "fedavg")
    runs = {method: {0: read_run(make_run(tmp_path / method, method))} for method in methods}
    table = left_out(dict.fromkeys(("method", "mean", "north"), runs))
    assert [column.header for column in table.columns] == ["method", "method", "mean", "north", "mean"]
    assert tuple(table.columns[0].cells) == methods
