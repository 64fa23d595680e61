"""Who joined and left: in the lines of rounds, the summary and the report of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkin.federation import Federation
from fedkin.methods.fedavg import FedAvg
from fedkin.records.run import read_run
from fedkin.report.collect import collect
from fedkin.report.page import page
from fedkin.running.experiment import RunSettings
from fedkin.running.loop import execute
from fedkin.testing import small_federation, small_setup


def test_the_records_and_the_report_say_who_joined_and_left(tmp_path: Path) -> None:
    whole = small_federation()
    late, gone = sorted(whole)[:2]
    when: dict[str, dict[str, Any]] = {late: {"joins": 2}, gone: {"away": ((3, None),)}}
    moving = Federation([replace(client, **when.get(id, {})) for id, client in whole.items()], whole.task)
    result = execute(small_setup(FedAvg(), moving), RunSettings(mode="one-by-one"), folder=tmp_path / "run")
    assert [row.get("events") for row in result.rounds] == [None, {"joined": [late]}, {"left": [gone]}]
    words = [f"round 2: {late} joined", f"round 3: {gone} left: data count no more from this round on"]
    assert read_run(tmp_path / "run").summary["events"] == words
    html = page(collect([tmp_path / "run"]))
    assert all(line in html for line in words)
