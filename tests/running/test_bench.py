"""`fedkin bench`: what is run, how it goes on, and where a method is placed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedkin
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.flow import ServerFlow
from fedkin.methods import METHODS
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.fedu import FedU
from fedkin.methods.local import Local
from fedkin.records.files import read_json
from fedkin.report.bench_page import headline, page
from fedkin.running.bench import _figures, bench, mean_gain, points, rank_on_suite, read_lines, store
from fedkin.running.suites import SUITES, Entry, Suite, suite_of
from fedkin.views import ServerView
from support import present, small_federation
from tiny import CutAt


@pytest.fixture
def tiny(tmp_path: Path) -> Suite:
    entry = Entry(lambda seed: small_federation(seed=seed), "linear", (0.03, 0.3))
    return Suite("tiny", {"small": entry}, tmp_path / "stored.jsonl", rounds=2, local_steps=2, seeds=(0, 1))


@pytest.mark.slow
def test_controls_run_with_the_methods_rate_and_are_stored_with_it(tiny: Suite, tmp_path: Path) -> None:
    (place,) = bench(tiny, METHODS["fedu"](), "fedu", tmp_path / "fedu")["federations"]
    assert set(place["adds"]) == {"self", "one", "random"}
    store(tiny, "fedu", tmp_path / "fedu")
    kept = read_lines(tiny.stored)
    assert {line["method"] for line in kept} == {"fedu", "fedu@self", "fedu@one", "fedu@random"}
    assert {line["lr"] for line in kept} == {place["lr"]}
    alone = {line["seed"]: line["points"] for line in kept if line["method"] == "fedu@self"}
    bench(tiny, Local(), "local", tmp_path / "local")
    local = [line for line in read_lines(tmp_path / "local" / "runs.jsonl") if line["stage"] == "run"]
    if local[0]["lr"] == place["lr"]:
        assert alone == {line["seed"]: line["points"] for line in local}


def test_a_message_between_peers_is_counted_once() -> None:
    federation = small_federation()
    result = fedkin.run("dfedavgm", federation, rounds=1, model="linear", training={"local_steps": 1})
    ways = result.summary["bytes"]
    assert _figures(federation, result)["bytes"] == ways["up"] == ways["down"] > 0


@pytest.mark.slow
def test_the_page_has_all_figures_and_says_where_the_method_stands(tiny: Suite, tmp_path: Path) -> None:
    for name in ("local", "fedavg"):
        bench(tiny, METHODS[name](), name, tmp_path / name)
        store(tiny, name, tmp_path / name)
    data = bench(tiny, METHODS["ditto"](), "ditto", tmp_path / "ditto")
    assert data == json.loads((tmp_path / "ditto" / "bench.json").read_text())
    (place,) = data["federations"]
    assert data["ranks"] is not None
    place["surely"] = ["site-<a>"]
    html = page(data)
    assert "Significantly below training alone: small: site-&lt;a&gt;" in html
    assert headline(data) in html
    assert f"{place['mean']:.1f}" in html
    assert all(f">{name}<" in html for name in ("local", "fedavg", "ditto"))


def test_a_rate_is_chosen_on_held_out_samples_and_all_seeds_run_with_it(tiny: Suite, tmp_path: Path) -> None:
    bench(tiny, FedAvg(), "fedavg", tmp_path / "out")
    lines = [line for line in read_lines(tmp_path / "out" / "runs.jsonl") if line["method"] == "fedavg"]
    summaries = sorted((tmp_path / "out" / "small" / "rates").glob("*/summary.json"))
    tried = [read_json(path)["accuracy"]["mean"] for path in summaries]
    best = (0.03, 0.3)[tried.index(max(tried))]
    assert [(line["lr"], line["seed"]) for line in lines] == [(best, 0), (best, 1)]


@pytest.mark.slow
def test_a_stopped_bench_goes_on_and_gives_the_same_lines(tiny: Suite, tmp_path: Path) -> None:
    bench(tiny, FedAvg(), "fedavg", tmp_path / "whole")
    with pytest.raises(RuntimeError, match="cut"):
        bench(tiny, FedAvg(), "fedavg", tmp_path / "cut", lambda what, done, of: CutAt(1 if done else 99))
    assert not (tmp_path / "cut" / "runs.jsonl").exists()
    bench(tiny, FedAvg(), "fedavg", tmp_path / "cut")
    assert (tmp_path / "cut" / "runs.jsonl").read_bytes() == (tmp_path / "whole" / "runs.jsonl").read_bytes()


def line(method: str, seed: int, values: dict[str, float]) -> dict[str, Any]:
    mean = float(np.mean(list(values.values())))
    return {"federation": "small", "method": method, "stage": "run", "lr": 0.3, "seed": seed, "mean": mean,
            "points": values, "data": "d"}  # fmt: skip


def test_a_place_is_the_rank_the_paired_gain_and_who_is_hurt(tiny: Suite) -> None:
    values = {"local": (50.0, 60.0), "fedavg": (70.0, 58.0), "mine": (72.0, 59.0), "best": (90.0, 90.0)}
    lines = [line(name, s, {"a": a + s, "b": b}) for name, (a, b) in values.items() for s in (0, 1)]
    lines.append(line("mine@self", 0, {"a": 99.0, "b": 99.0}))
    (place,) = rank_on_suite(tiny, "mine", lines)[0]
    assert (place["rank"], place["of"], place["reference"], place["hurt"], place["clients"]) == (2, 4, "fedavg", 1, 2)
    assert present(place["gain"])["value"] == pytest.approx(1.5)
    assert place["border"]
    assert place["surely"] == ["b"]


def test_the_headline_has_the_mean_over_federations_and_what_was_told(tiny: Suite) -> None:
    three = replace(tiny, federations=dict.fromkeys(("x", "y", "z"), tiny.federations["small"]))
    lines = [
        {**line(method, s, {"a": 50.0 + gain + s}), "federation": name, "given": given}
        for name, ahead in (("x", 1.0), ("y", 2.0), ("z", 6.0)) for s in (0, 1)
        for method, gain, given in (("local", 0.0, []), ("mine", ahead, ["2 groups, given"]))
    ]  # fmt: skip
    places = rank_on_suite(three, "mine", lines)[0]
    gain = present(mean_gain(places))
    wanted = stats.ttest_1samp([1.0, 2.0, 6.0], 0).confidence_interval(0.95)
    assert (gain["value"], gain["low"], gain["high"]) == pytest.approx((3.0, wanted.low, wanted.high))
    said = headline({"method": "mine", "suite": "tiny", "federations": places, "mean_gain": gain})
    assert "in the mean of 3 federations +3.0 (-3.6 to +9.6) points from it; 2 groups, given" in said


def test_what_a_method_is_told_is_kept(tiny: Suite, tmp_path: Path) -> None:
    for method, given in ((METHODS["ifca"].model_validate({"clusters": 2}), ["2 groups, given"]), (FedAvg(), [])):
        (place,) = bench(tiny, method, method.name, tmp_path / method.name)["federations"]
        assert place["given"] == given


def test_a_method_without_all_seeds_is_not_ranked(tiny: Suite) -> None:
    lines = [line("local", s, {"a": 50.0}) for s in (0, 1)] + [line("mine", 0, {"a": 60.0})]
    assert rank_on_suite(tiny, "mine", lines)[0][0]["rank"] is None
    lines = [line("mine", s, {"a": 50.0}) for s in (0, 1)] + [line("local", 0, {"a": 60.0})]
    assert rank_on_suite(tiny, "mine", lines)[0][0]["of"] == 1


@pytest.mark.slow
def test_stored_results_are_placed_beside_and_of_other_data_are_refused(tiny: Suite, tmp_path: Path) -> None:
    bench(tiny, Local(), "local", tmp_path / "local")
    store(tiny, "local", tmp_path / "local")
    (place,) = bench(tiny, FedAvg(), "fedavg", tmp_path / "fedavg")["federations"]
    assert (place["of"], place["reference"]) == (2, "local")
    written = json.loads((tmp_path / "fedavg" / "bench.json").read_text())
    assert written["federations"][0]["mean"] == place["mean"]
    tiny.stored.write_text(tiny.stored.read_text().replace('"data": "', '"data": "0'))
    with pytest.raises(RunError, match="small"):
        bench(tiny, FedAvg(), "fedavg", tmp_path / "fedavg")


@pytest.mark.parametrize(("data", "says"), [
    (b'{"method": "a", "federation": "f", "seed": 0, "stage": "run"}\n{bad\n', r"stored\.jsonl, line 2: is damaged"),
    (b"[1]\n", r"stored\.jsonl, line 1: is damaged"), (b'{"seed": 0}\n', "line 1: is damaged .*federation, method"),
    (b"\xff", r"stored\.jsonl: is damaged"),
])  # fmt: skip
def test_damaged_results_are_named_with_file_and_line(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "stored.jsonl").write_bytes(data)
    with pytest.raises(RunError, match=says):
        read_lines(tmp_path / "stored.jsonl")
    (tmp_path / "stored.jsonl.gz").write_bytes(data)
    with pytest.raises(RunError, match=r"jsonl\.gz: is damaged"):
        read_lines(tmp_path / "stored.jsonl.gz")


@pytest.mark.parametrize(
    ("method", "says"),
    [(METHODS["mixed"](), "two classes"), (FedU.model_validate({"graph": {"source": "planted"}}), "not known")],
    ids=["mixed", "no method is told the groups"],
)
def test_a_method_that_fails_everywhere_is_said_to(tiny: Suite, tmp_path: Path, method: Any, says: str) -> None:
    (place,) = bench(tiny, method, method.name, tmp_path / "out")["federations"]
    assert place["mean"] is None
    assert says in place["failed"]


class FailsAtSeedOne(FedAvg):
    name = "fails-at-seed-one"

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        yield from super().round(server, sampled)
        if server.seed == 1:
            raise MethodError("seed 1")


def test_a_method_that_fails_at_one_seed_has_no_place_and_may_be_stored(
    tiny: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, FailsAtSeedOne.name, FailsAtSeedOne)
    method = FailsAtSeedOne()
    (place,) = bench(tiny, method, method.name, tmp_path / "out")["federations"]
    assert place["mean"] is None
    assert "seed 1" in place["failed"]
    store(tiny, method.name, tmp_path / "out")
    bench(tiny, Local(), "local", tmp_path / "local")


def test_a_suite_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from pathlib import Path\nfrom fedkin.running.suites import SUITES, Suite\n"
        "SUITE = Suite('mine', SUITES['quick'].federations, Path(__file__).with_suffix('.jsonl'))\n"
    )
    assert suite_of(str(file)).stored == tmp_path / "mine.jsonl"
    with pytest.raises(ConfigError, match="quick"):
        suite_of("slow")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name"),
    [
        *[("fedavg", name) for name in SUITES["quick"].federations],
        ("ditto", "hospitals, risk"),
        ("kin", "hospitals, risk"),
    ],
)
def test_stored_results_are_those_of_this_version(method: str, name: str) -> None:
    """A sample, with the first seed; another processor may move a few samples."""
    quick = SUITES["quick"]
    (kept,) = [
        one for one in read_lines(quick.stored)
        if one["method"] == method and one["federation"] == name and one["seed"] == quick.seeds[0]
    ]  # fmt: skip
    entry = quick.federations[name]
    federation = entry.make(quick.seeds[0])
    assert federation.fingerprint()[:16] == kept["data"]
    from fedkin.running.api import run

    training = {"lr": kept["lr"], "local_steps": quick.local_steps, "batch_size": quick.batch_size}
    result = run(method, federation, rounds=quick.rounds, seed=quick.seeds[0], model=entry.model, training=training)
    values = [value for value in points(federation, result).values() if value is not None]
    assert np.mean(values) == pytest.approx(kept["mean"], abs=1.0)
