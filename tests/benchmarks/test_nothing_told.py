"""benchmarks/nothing_told.py: its federations, that it goes on where it was, and the figures of its tables."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.federation import Federation, Scale, Task
from fedkin.methods import METHODS


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


def pool(n: int = 1600) -> Dataset:
    """Small pictures, each unlike all others in its first row of pixels; ten classes, equally frequent."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (n, 1, 4, 4), dtype=np.uint8)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = np.arange(n) // 256, np.arange(n) % 256
    part = Part(torch.from_numpy(x), torch.from_numpy(rng.permutation(np.arange(n) % 10)))
    return Dataset("pictures", part, part, Task(10, (1, 4, 4)), Scale((0.0,), (1.0,), 1.0))


def sorted_rows(x: Any) -> Any:
    return np.sort(x.flatten(1).numpy(), axis=1)


def test_rotated_clients_are_turned_as_their_group_says_and_share_no_picture() -> None:
    made = import_module("full_suite").rotated(pool(), [20] * 6, 3, turns=(0, 1, 2), tests=10)
    assert made.planted == {f"client-{k:03d}": f"group-{k % 3}" for k in range(6)}
    marks = []
    for number, client in enumerate(made.values()):
        assert (len(client.train), len(client.test)) == (20, 10)
        for samples in (client.train, client.test):
            upright = torch.rot90(samples.inputs(slice(None)), -(number % 3), (2, 3))
            marks += (256 * upright[:, 0, 0, 0] + upright[:, 0, 0, 1]).tolist()
    assert len(marks) == 180
    assert len(set(marks)) == 180


def test_a_mask_is_the_same_on_all_pictures_of_a_client_and_its_own() -> None:
    made = import_module("full_suite").rotated(pool(), [20] * 3, 0, turns=(0,), mask=0.4, tests=10)
    masks = []
    for client in made.values():
        both = torch.cat([client.train.inputs(slice(None)), client.test.inputs(slice(None))])
        masks.append((both == 1.0).all(0).flatten().tolist())
    assert masks[0] != masks[1]
    assert all(sum(mask) % 4 == 0 for mask in masks)


def test_clients_of_a_class_group_have_its_classes_only() -> None:
    made = import_module("full_suite").by_class(pool(), 4, 21, ((0, 1, 2), (7, 8)), 0)
    for number, client in enumerate(made.values()):
        for samples, size in ((client.train, 21), (client.test, 60)):
            assert len(samples) == size
            assert set(samples.labels().tolist()) == ({0, 1, 2} if number % 2 == 0 else {7, 8})


def test_swapped_labels_differ_from_the_pictures_own_in_two_classes() -> None:
    source = pool()
    made = import_module("full_suite").swapped(source, 4, 100, 0)
    for number, client in enumerate(made.values()):
        x = client.train.inputs(slice(None))
        own = source.train.y[(256 * x[:, 0, 0, 0] + x[:, 0, 0, 1]).long()]
        moved = set(own[own != client.train.labels()].tolist())
        assert moved == (set() if number == 0 else {2 * number - 2, 2 * number - 1})


def test_clients_that_are_all_different_see_the_same_pixels_in_an_order_of_their_own() -> None:
    module, source = import_module("full_suite"), pool()
    plain, made = module.iid(source, [20] * 3, 5), module.different(source, 3, 20, 5)
    assert len(set(made.planted.values())) == 3
    for id, client in made.items():
        seen, upright = client.train.inputs(slice(None)), plain[id].train.inputs(slice(None))
        assert (sorted_rows(seen) == sorted_rows(upright)).all()
        assert (seen != upright).any()


def test_one_client_is_a_loner() -> None:
    module, source = import_module("full_suite"), pool()
    plain, made = module.iid(source, [20] * 5, 5), module.loner(source, 5, 20, 5)
    turned = [id for id in made if (made[id].train.inputs(slice(None)) != plain[id].train.inputs(slice(None))).any()]
    assert turned == ["client-002"] == [id for id, group in made.planted.items() if group == "group-1"]


def test_dirichlet_clients_have_one_distribution_of_classes_in_training_and_test() -> None:
    made = import_module("full_suite").dirichlet(pool(), 3, 100, 0.1, 0)
    assert made.planted is None
    for client in made.values():
        shares = [np.bincount(part.labels(), minlength=10) / len(part) for part in (client.train, client.test)]
        assert np.abs(shares[0] - shares[1]).sum() < 0.5


def test_own_swaps_differ_in_two_classes_and_own_angles_are_spread_over_the_circle() -> None:
    module, source = import_module("full_suite"), pool()
    plain = module.iid(source, [20] * 4, 5)
    swapped, turned = module.own_swaps(source, 4, 20, 5), module.own_angles(source, 4, 20, 5)
    for number, id in enumerate(plain):
        own, other = plain[id].train.labels(), swapped[id].train.labels()
        assert len(set(own[own != other].tolist()) | set(other[own != other].tolist())) in (0, 2)
        angle = torch.rot90(plain[id].train.x, number, (2, 3))
        assert torch.equal(turned[id].train.x, angle)


def test_there_are_31_federations_and_the_one_that_needs_no_files_can_be_made() -> None:
    known = import_module("full_suite").entries(Path("nowhere"))
    assert len(known) == 31
    assert set(import_module("nothing_told").DEGREES) <= set(known)
    made: Federation = known["digits rot4 16x100"].make(0)
    assert len(made) == 16
    assert len(set((made.planted or {}).values())) == 4


F, G, H = "digits rot4 16x100", "writers 40", "eICU hospitals"


def line(method: str, seed: int, points: list[float | None], federation: str = F, **more: Any) -> dict[str, Any]:
    values = [value for value in points if value is not None]
    made = {"federation": federation, "method": method, "stage": "run", "seed": seed, "lr": 0.1, "ari": None}
    made |= {"points": {f"c{place}": value for place, value in enumerate(points)}, "groups": 2}
    return made | {"mean": float(np.mean(values)) if values else None} | more


def runs_of(lines: list[dict[str, Any]], seeds: tuple[int, ...] = (0, 1)) -> Any:
    return import_module("nothing_told").Runs(lines, seeds, least=min(2, len(seeds)))


def test_methods_with_fewer_seeds_are_compared_on_those_that_both_have() -> None:
    lines = [line("local", seed, [50.0 + seed]) for seed in range(4)]
    lines += [line("fedavg", seed, [40.0]) for seed in range(4)] + [
        line("kin", seed, [60.0 + seed]) for seed in range(4)
    ]
    lines += [line("median", seed, [55.0 + seed]) for seed in range(2)]
    runs = runs_of(lines, (0, 1, 2, 3))
    assert runs.reference(F) == "median"
    assert runs.regret(F, "kin").tolist() == [-5, -5]
    assert runs.regret(F, "local").tolist() == [5, 5]
    assert runs.apart(F, "kin", "local").tolist() == [10] * 4


def test_regret_is_what_the_best_other_has_more() -> None:
    lines = [line("local", 0, [50, 70]), line("local", 1, [60, 80])]
    lines += [line("fedavg", 0, [90, 90]), line("fedavg", 1, [10, 10])]  # best with seed 0 only
    lines += [line("kin", 0, [40, 72], ari=1.0), line("kin", 1, [70, 81], ari=0.5)]
    lines += [line("median", 0, [99, 99]), {**line("median", 1, [99, 99]), "stage": "rate"}]  # not finished
    lines += [line("fedavg@self", seed, [99, 99]) for seed in (0, 1)]  # a control
    runs = runs_of(lines)
    assert runs.reference(F) == "local"
    assert runs.regret(F, "kin").tolist() == [4, -5.5]
    assert runs.ari(F, "kin") == 0.75
    assert runs.methods == ["fedavg", "kin", "local"]
    assert runs.federations == [F]


def test_clients_are_significantly_hurt_where_the_interval_over_seeds_excludes_zero() -> None:
    mine = {"c": [70.0, 71.0, 69.0], "d": [70.0, 90.0, 60.0], "e": [90.0, 91.0, 89.0]}
    lines = [line(name, seed, [80.0, 80.0, 80.0]) for name in ("local", "fedavg") for seed in range(3)]
    lines += [line("kin", seed, [values[seed] for values in mine.values()]) for seed in range(3)]
    assert runs_of(lines, (0, 1, 2)).hurt(F, "kin") == pytest.approx((2 / 3, 1 / 3, 1 / 3, 1 / 3))


def test_clients_without_a_figure_are_left_out() -> None:
    lines = [line("local", 0, [80, None]), line("fedavg", 0, [70, None]), line("kin", 0, [78.5, None])]
    runs = runs_of(lines, (0,))
    assert runs.regret(F, "kin").tolist() == [1.5]
    assert runs.hurt(F, "kin")[:2] == (1, 0)
    assert runs.ari(F, "kin") is None


def test_kin_s_lead_is_an_interval_over_the_federations_where_both_are_finished() -> None:
    scipy = pytest.importorskip("scipy.stats")
    ahead, lines = {F: 3.0, G: 5.0, H: 10.0}, []
    for name, points in ahead.items():
        for method, mine in (("local", 50.0), ("fedavg", 50.0), ("kin", 50 + points)):
            lines += [line(method, seed, [mine + seed], name) for seed in (0, 1)]
    wanted = scipy.ttest_1samp(list(ahead.values()), 0).confidence_interval(0.95)
    assert runs_of(lines).lead("fedavg", [F, G, H]) == pytest.approx((6.0, wanted.low, wanted.high))


def test_the_pages_have_the_tables_of_the_stored_runs() -> None:
    module = import_module("nothing_told")
    tables = module.tables(module.Runs(module.read_lines(module.SUITE.stored), module.SUITE.seeds))
    for name in ("results/nothing-told.md", "bench.md"):
        page = (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8")
        assert module.filled(page, tables) == page, f"docs/{name}: run benchmarks/nothing_told.py"
    assert set(METHODS) - {"given"} <= set(re.findall(r"^\| ([a-z-]+) \|", tables["quick"], re.MULTILINE))


def test_tables_are_written_into_their_places(tmp_path: Path) -> None:
    module = import_module("nothing_told")
    lines = [
        line(name, seed, [50.0 + place + seed], federation, trained=100 * place, bytes=place**2)
        for federation in (F, G) for place, name in enumerate(("local", "fedavg", "kin")) for seed in (0, 1)
    ]  # fmt: skip
    lines.append({**line("mixed", 0, []), "failed": "two classes"})
    runs = runs_of(lines)
    made = module.tables(runs)
    assert "| fedavg | 2 | 2 | 0.00 | 1.00±0.00 | 1.00±inf | 2 |" in made["methods"]  # one of them by degrees
    assert made["federations"].count("| 2.0, 4.0 |") == 2  # what kin trains and sends over FedAvg
    assert "For 3 of 6 pairs" in made["border"]  # .1 is the smallest rate of digits, and none that writers had
    assert "| mixed | two classes | digits rot4 16x100 |" in made["missing"]
    page = module.filled("".join(f"<!-- table: {name} -->\nstale\n<!-- end -->\n" for name in made), made)
    assert "stale" not in page
    assert module.filled(page, made) == page
    module.write_csv(runs, tmp_path / "t.csv")
    rows = [row.split(",") for row in (tmp_path / "t.csv").read_text().splitlines()]
    assert {(row[1], *row[-2:]) for row in rows[1:]} == {
        ("local", "2.0000", "0.0000"), ("fedavg", "1.0000", "0.0000"), ("kin", "", ""),
    }  # fmt: skip
    assert len(rows) == 1 + 6
