"""benchmarks/nothing_told.py: its federations, that it goes on where it was, and the figures of its tables."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.data.dataset import Dataset, Part
from fedkin.federation import Federation, Scale, Task


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
    made = import_module("told_federations").rotated(pool(), [20] * 6, 3, turns=(0, 1, 2), tests=10)
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
    made = import_module("told_federations").rotated(pool(), [20] * 3, 0, turns=(0,), mask=0.4, tests=10)
    masks = []
    for client in made.values():
        both = torch.cat([client.train.inputs(slice(None)), client.test.inputs(slice(None))])
        masks.append((both == 1.0).all(0).flatten().tolist())
    assert masks[0] != masks[1]
    assert all(sum(mask) % 4 == 0 for mask in masks)


def test_clients_of_a_class_group_have_its_classes_only() -> None:
    made = import_module("told_federations").by_class(pool(), 4, 21, ((0, 1, 2), (7, 8)), 0)
    for number, client in enumerate(made.values()):
        for samples, size in ((client.train, 21), (client.test, 60)):
            assert len(samples) == size
            assert set(samples.labels().tolist()) == ({0, 1, 2} if number % 2 == 0 else {7, 8})


def test_swapped_labels_differ_from_the_pictures_own_in_two_classes() -> None:
    source = pool()
    made = import_module("told_federations").swapped(source, 4, 100, 0)
    for number, client in enumerate(made.values()):
        x = client.train.inputs(slice(None))
        own = source.train.y[(256 * x[:, 0, 0, 0] + x[:, 0, 0, 1]).long()]
        moved = set(own[own != client.train.labels()].tolist())
        assert moved == (set() if number == 0 else {2 * number - 2, 2 * number - 1})


def test_clients_that_are_all_different_see_the_same_pixels_in_an_order_of_their_own() -> None:
    module, source = import_module("told_federations"), pool()
    plain, made = module.iid(source, [20] * 3, 5), module.different(source, 3, 20, 5)
    assert len(set(made.planted.values())) == 3
    for id, client in made.items():
        seen, upright = client.train.inputs(slice(None)), plain[id].train.inputs(slice(None))
        assert (sorted_rows(seen) == sorted_rows(upright)).all()
        assert (seen != upright).any()


def test_one_client_is_a_loner() -> None:
    module, source = import_module("told_federations"), pool()
    plain, made = module.iid(source, [20] * 5, 5), module.loner(source, 5, 20, 5)
    turned = [id for id in made if (made[id].train.inputs(slice(None)) != plain[id].train.inputs(slice(None))).any()]
    assert turned == ["client-002"] == [id for id, group in made.planted.items() if group == "group-1"]


def test_dirichlet_clients_have_one_distribution_of_classes_in_training_and_test() -> None:
    made = import_module("told_federations").dirichlet(pool(), 3, 100, 0.1, 0)
    assert made.planted is None
    for client in made.values():
        shares = [np.bincount(part.labels(), minlength=10) / len(part) for part in (client.train, client.test)]
        assert np.abs(shares[0] - shares[1]).sum() < 0.5


def test_there_are_24_federations_and_the_one_that_needs_no_files_can_be_made() -> None:
    known = import_module("told_federations").told(Path("nowhere"))
    assert len(known) == 24
    made: Federation = known["digits rot4 16x100"].make(0)
    assert len(made) == 16
    assert import_module("told_rows").number_of_groups(made) == 4


def test_rows_are_told_the_number_of_groups_and_left_out_where_there_is_none() -> None:
    module = import_module("told_rows")
    kinds = {title: module.built(row, 4, 20) for title, row in module.ROWS.items() if title not in module.SAME}
    assert kinds["ifca, told"].clusters == 4
    assert kinds["flt, told"].graph.groups == 4
    assert module.built(module.ROWS["ifca, told"], None, 20) is None


def test_a_second_start_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, federations = import_module("nothing_told"), import_module("told_federations")
    monkeypatch.setattr(benchmark, "ROUNDS", 2)
    known = {"small": federations.Told(lambda seed: federations.rotated(pool(), [20] * 4, seed, tests=10))}
    first = benchmark.Work(tmp_path, known)
    for title in ("local", "fedavg", "ifca, told"):
        first.pair("small", title)
    lines = (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 * (3 + 3) + 1  # four groups of four clients: nothing to be told
    (tmp_path / "runs.jsonl").write_text("\n".join(lines[:5]) + '\n{"federation": "sm', encoding="utf-8")
    for _ in range(2):
        again = benchmark.Work(tmp_path, known)
        for title in ("local", "fedavg", "ifca, told"):
            again.pair("small", title)
    module = import_module("told_table")
    same = [{**line, "seconds": 0} for line in module.read(tmp_path / "runs.jsonl")]
    assert same == [{**line, "seconds": 0} for line in first.lines]
    made = module.tables(module.Runs(same))
    assert "| fedavg | 1 |" in made["methods"]
    marks = "".join(f"# {name}\n<!-- table: {name} -->\nstale\n<!-- end -->\n" for name in made)
    page = module.filled(marks, made)
    assert "stale" not in page
    assert module.filled(page, made) == page
    assert all(text in page for text in made.values())


def line(row: str, seed: int, points: list[float | None], **more: Any) -> dict[str, Any]:
    ids = [f"c{place}" for place in range(len(points))]
    made = {"federation": "f", "row": row, "stage": "run", "seed": seed, "lr": 0.1, "seconds": 1.0, "ari": None}
    made |= {"points": dict(zip(ids, points, strict=True)), "tests": dict.fromkeys(ids, 50)}
    return made | {"groups": "planted", "kind": "classification"} | more


def test_regret_is_what_the_best_of_the_reference_has_more() -> None:
    lines = [line("local", 0, [50, 70]), line("local", 1, [60, 80])]
    lines += [line("fedavg", 0, [90, 90]), line("fedavg", 1, [10, 10])]  # best with seed 0 only
    lines += [line("kin", 0, [40, 72], ari=1.0), line("kin", 1, [70, 81], ari=0.5)]
    lines += [line("median", 0, [99, 99]), {**line("median", 1, []), "stage": "rate"}]  # not finished
    runs = import_module("told_table").Runs(lines, seeds=(0, 1))
    name, means = runs.reference("f")
    assert name == "local"
    assert means.tolist() == [60, 70]
    assert runs.regret("f", "kin").tolist() == [4, -5.5]
    its = runs.of_row("kin", ["f"])
    assert its["regret"] == pytest.approx(-0.75)
    assert its["deviation"] == pytest.approx(4.75)
    assert (its["ari"], its["within"], its["federations"]) == (0.75, 1, 1)
    assert runs.rows == ["local", "fedavg", "kin"]


def test_hurt_is_counted_over_the_test_samples_of_all_seeds() -> None:
    local = [line("local", 0, [80, 80, 80]), line("local", 1, [80, 80, 80])]
    fedavg = [line("fedavg", 0, [0, 0, 0]), line("fedavg", 1, [0, 0, 0])]
    # Of 50 samples each: one less in one seed; one less in both; three less, then three more.
    kin = [line("kin", 0, [78, 78, 74]), line("kin", 1, [80, 78, 86])]
    runs = import_module("told_table").Runs(local + fedavg + kin, seeds=(0, 1))
    assert runs.hurt("f", "kin") == pytest.approx((1 / 3, 0, 4 / 6))
    assert runs.hurt("f", "fedavg") == (1, 0, 1)


def test_surely_hurt_is_who_is_so_beyond_chance() -> None:
    # Of 100 samples. The share .8 alone differs from .69 by 1.79 standard errors, from .67 by 2.10, from .92 by 2.48.
    local = [line("local", seed, [80, 80, 80, 100]) for seed in (0, 1)]
    fedavg = [line("fedavg", seed, [0, 80, 80, 100]) for seed in (0, 1)]
    kin = [line("kin", 0, [70, 66, 92, 100]), line("kin", 1, [68, 68, 92, 100])]
    runs = import_module("told_table").Runs(local + fedavg + kin, seeds=(0, 1))
    assert runs.surely("f", "kin") == (1 / 4, 1 / 4)
    assert runs.surely("f", "fedavg") == (1 / 4, 0)
    its = runs.of_row("kin", ["f"])
    assert (its["surely"], its["surely_helped"]) == (1 / 4, 1 / 4)


@pytest.mark.parametrize(("mine", "found"), [([70, 71, 69], (1, 0)), ([70, 90, 60], (0, 0)), ([90, 91, 89], (0, 1))])
def test_surely_hurt_is_judged_over_the_seeds_where_points_are_no_accuracies(
    mine: list[float], found: tuple[float, float]
) -> None:
    lines = [line("local", seed, [80], kind="risk") for seed in range(3)]
    lines += [line("fedavg", seed, [80], kind="risk") for seed in range(3)]
    lines += [line("kin", seed, [points], kind="risk") for seed, points in enumerate(mine)]
    assert import_module("told_table").Runs(lines).surely("f", "kin") == found


def test_clients_without_a_figure_are_left_out() -> None:
    risk = {"kind": "risk", "groups": "natural"}
    lines = [line("local", 0, [80, None], **risk), line("fedavg", 0, [70, None], **risk)]
    lines += [line("kin", 0, [78.5, None], ari=0.3, **risk)]
    runs = import_module("told_table").Runs(lines, seeds=(0,))
    assert runs.regret("f", "kin").tolist() == [1.5]
    assert runs.hurt("f", "kin") == (1, 0, 1)
    assert runs.of_row("kin", ["f"])["ari"] is None  # regions were not planted


def test_kin_s_lead_is_an_interval_over_the_federations_where_both_are_finished() -> None:
    scipy = pytest.importorskip("scipy.stats")
    ahead, lines = {"f": 3.0, "g": 5.0, "h": 10.0}, []
    for name, points in ahead.items():
        for row, mine in (("local", 50.0), ("fedavg", 50.0), ("kin", 50 + points)):
            lines += [line(row, seed, [mine + seed], federation=name) for seed in (0, 1)]
    lines += [line("median", seed, [0.0], federation="f") for seed in (0, 1)]
    runs = import_module("told_table").Runs(lines, seeds=(0, 1))
    wanted = scipy.ttest_1samp(list(ahead.values()), 0).confidence_interval(0.95)
    assert runs.lead("fedavg") == pytest.approx((wanted.low, wanted.high))
    assert runs.lead("median") is None
