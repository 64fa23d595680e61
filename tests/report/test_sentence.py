"""The sentence says what the records say, whatever they are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedkin.analysis.paired import VERDICTS, Difference
from fedkin.records.comparison import Gains
from fedkin.report import sentence, verdicts
from fedkin.tasks import METRICS


def run_of(clients: int = 40, **more: Any) -> Any:
    made = {"method": "flt", "metric": METRICS["accuracy"], "summary": {}, "graphs": {}, "unseen": (), "sent": 0}
    return cast(Any, SimpleNamespace(**made | {"client_facts": dict.fromkeys(range(clients))} | more))


def about(runs: list[Any], gains: list[Gains | None], mean: float | None = 0.9) -> sentence.Subject:
    return sentence.Subject("flt", "FLT", runs, gains, 1, "the test samples", mean)


def plain(up: int, down: int = 0, equal: int = 0) -> Gains:
    return Gains({f"c{i}": value for i, value in enumerate([0.1] * up + [-0.1] * down + [0.0] * equal)})


def sure(*counts: int, events: int | None = None) -> Gains:
    said = [word for word, count in zip(VERDICTS, counts, strict=True) for _ in range(count)]
    each = {f"c{i:03d}": (Difference(0.1, 0.0, 0.2, 50, events), word) for i, word in enumerate(said)}
    return Gains(dict.fromkeys(each, 0.1), each)


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([plain(38, 2)], "38 of 40 clients gain over training alone, 2 lose, mean gain +9 points"),
        ([plain(0, 0, 40)], "0 of 40 clients gain over training alone, 0 lose, mean gain +0 points"),
        ([plain(38, 2), plain(37, 3)], "37.5 of 40 clients gain over training alone, 2.5 lose (means over 2 seeds), "),
        (
            [sure(30, 1, 9, 0)],
            "30 of 40 clients significantly gain over training alone, 1 significantly lose, 9 do neither",
        ),
        (
            [sure(1, 0, 0, 3, events=4)],
            "1 of 4 clients significantly gain over training alone, 0 significantly lose, 3 with too few",
        ),
        ([sure(1, 0, 0, 3)], "3 with too few test samples, mean gain +10 points (95 % interval over clients +10 to "),
        ([None], "mean test accuracy 90.0 % over 40 clients, without a comparable run of Local to say who gains"),
        ([plain(40), None], "mean test accuracy 90.0 % over 40 clients (means over 2 seeds), without a comparable run"),
    ],
)
def test_who_gains(gains: list[Gains | None], said: str) -> None:
    assert said in sentence._who_gains(about([run_of() for _ in gains], gains))


def test_clients_without_a_value_of_the_metric_are_counted() -> None:
    gains = sure(1, 0, 0, 3, events=4)
    fewer = Gains(dict(list(gains.by_client.items())[:2]), gains.sure)  # two of the four have one class only
    assert "1 of 4 clients significantly gain over training alone, 0 significantly lose, 3 with" in sentence._who_gains(
        about([run_of(4)], [fewer])
    )
    run = run_of(4, method="local", metric=METRICS["auc"], summary={"auc": {"clients": 2, "left_out": 2}})
    assert sentence._who_gains(about([run], [None])) == "mean test ROC-AUC 90.0 % over 2 of 4 clients"


def test_local_and_runs_without_test_data() -> None:
    assert sentence._who_gains(about([run_of(method="local")], [None])) == "mean test accuracy 90.0 % over 40 clients"
    assert sentence._who_gains(about([run_of(1)], [None], None)) == "1 client without test data"
    error = run_of(metric=METRICS["squared_error"])
    assert "mean gain +0.1 (95 %" in sentence._who_gains(about([error], [plain(2)], 0.25))


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"found": 4, "ari": 1.0}], "4 groups found, equal to the planted ones"),
        ([{"found": 1, "ari": 0.997}], "1 group found (ARI 0.99 to the planted ones)"),
        ([{"found": 3, "ari": None}], "3 groups found"),
        ([{"found": 3, "ari": 1.0}, {"found": 4, "ari": 0.5}],
         "3 to 4 groups found (ARI 0.75 to the planted ones, equal with 1 of 2 seeds)"),
        ([{"found": None}], ""),
    ],
)  # fmt: skip
def test_groups(groups: list[dict[str, Any]], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "judged_groups", lambda graph: [])
    graph = SimpleNamespace(evidence=None)
    runs = [run_of(summary={"groups": each}, graphs={1: Path()}, graph_at=lambda round: graph) for each in groups]
    assert sentence._groups(runs) == said
    for run in runs:
        run.summary["given"] = ["4 groups, given"]
    assert sentence._groups(runs) == (f"{said} (4 groups, given)" if said else "prior knowledge: 4 groups, given")


@pytest.mark.parametrize(
    ("gains", "mean", "said"),
    [
        (
            [sure(30, 1, 9, 0)],
            0.9,
            "FLT: 30 of 40 clients significantly gain over training alone, 1 significantly lose; m",
        ),
        ([plain(38, 2)], 0.9, "FLT: 38 of 40 clients gain over training alone, 2 lose; mean accuracy 90.0 %."),
        ([None], 0.9, "FLT reaches a mean accuracy of 90.0 % over clients."),
        ([None], None, "FLT: no client has test data."),
    ],
)
def test_the_headline_has_at_most_twenty_words(gains: list[Gains | None], mean: float | None, said: str) -> None:
    assert sentence.headline(about([run_of()], gains, mean)).startswith(said)
    long = sentence.Subject("a", "A Method With a Very Long Name", [run_of()], gains, 1, "", mean)
    assert len(sentence.headline(long).split()) <= 20
