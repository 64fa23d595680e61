"""benchmarks/attacks.py: who attacks whom, the figures of its tables, and that it goes on where it was."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedkin.engines.attacks import Attacks
from support import small_federation


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("attacks")


def test_every_attack_of_the_tables_is_one_that_settings_take(benchmark: Any) -> None:
    for method in benchmark.METHODS:
        for attack in benchmark.ATTACKS:
            spec = benchmark.spec_of(attack, method, 0.2)
            read = Attacks.parse(spec or "none")
            assert (not read.each) == (attack == "none" or spec is None)
            if read.each:
                assert read.each[-1].kind == attack.partition(":")[0]
                assert read.each[-1].strength == (1.0 if attack.endswith(":1") else read.each[-1].strength)
    assert benchmark.spec_of("copy", "fedavg", 0.2) is None
    assert benchmark.spec_of("mimic:1", "flt", 0.2) == "label-flip:0.2, mimic:0.2:centres:1"


def test_gathered_adversaries_are_of_one_group_and_no_client_is_lost(benchmark: Any) -> None:
    federation = small_federation(clients=8)
    adversaries = sorted(federation)[:3]
    assert len({federation[id].group for id in adversaries}) == 2
    made = benchmark.gathered(federation, adversaries)
    assert len({made[id].group for id in adversaries}) == 1
    assert sorted(made) == sorted(federation)
    assert {id(client.train.x) for client in made.values()} == {id(client.train.x) for client in federation.values()}


def test_figures_by_hand(benchmark: Any) -> None:
    scores = {"a": 1.0, "b": 0.5, "c": 0.25, "d": 0.75, "e": 0.0}
    found = benchmark.figures(scores, {"a": "x", "b": "x", "c": "y", "d": "z", "e": "z"}, "x")
    assert found == {"accuracy": 0.5, "worst": 0.25, "aimed at": 0.75, "others": 0.3125}


def test_cells_have_means_and_deviations(benchmark: Any) -> None:
    lines = [{"accuracy": 0.5, "worst": 0.2}, {"accuracy": 0.7, "worst": 0.2}]
    assert benchmark.cell(lines, "accuracy", "worst") == "60±14 / 20±0"
    assert benchmark.cell(lines[:1], "accuracy") == "50"


@pytest.mark.slow
def test_a_run_is_a_line_and_is_not_run_again(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(benchmark.SMALL, "training.rounds", 2)
    out = tmp_path / "lines"
    options = ["--out", str(out), "--seeds", "0", "--methods", "flt", "--attacks", "none,copy", "--defences", "median"]
    monkeypatch.setattr(sys, "argv", ["attacks.py", *options])
    assert benchmark.main() == 0
    lines = out.read_text().splitlines()
    made = [json.loads(line) for line in lines]
    assert [(line["place"], line["attack"]) for line in made] == [
        ("spread", "none"), ("spread", "copy"), ("together", "none"),
    ]  # fmt: skip
    copy = made[1]
    assert copy["inside"] == copy["beside"] == copy["foreign"] > 0
    assert "| copy | " in capsys.readouterr().out
    # Cut off in the last line: that run alone is made again, with the same figures, on a line of its own.
    out.write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    assert benchmark.main() == 0
    assert [json.loads(line) for line in out.read_text().splitlines()[:2] + out.read_text().splitlines()[3:]] == made
