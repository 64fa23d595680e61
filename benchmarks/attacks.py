"""Attacks, methods and defences on rotated digits: how honest clients fare with 20 % adversaries.

    OMP_NUM_THREADS=1 python benchmarks/attacks.py --out FILE [--seeds 0,1,2] [--defences mean,median]
    OMP_NUM_THREADS=1 python benchmarks/attacks.py --out FILE --table

20 clients in four rotations, all in each of 20 rounds, an MLP with 32 hidden units. Each run is a line in FILE, and
what is there is not run again, so that the script can be stopped and started. The table has the accuracy of honest
clients and of the worst honest planted group in percent (means over seeds), and how many of the adversaries that belong
elsewhere ended in the victims' group: the found group of most honest clients of the planted group that forgers aim at.

A forger flips its labels too, so that it does harm where it gets in, and forges only what its method groups by.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from fedkin.engines import LocalEngine
from fedkin.engines.adversaries import FORGERS, Attacks
from fedkin.engines.forging import Forgery
from fedkin.learning.robust import RULES
from fedkin.running.experiment import load

ROOT = Path(__file__).resolve().parents[1]
SHARE = 0.2
ATTACKS = (
    "none", "label-flip", "copy", "model-replacement", "sign-flip", "alie", "ipm", "sybil", "group-mean", "mimic",
)  # fmt: skip
# What the method groups clients by, of what they send; numbers and bytes can only be copied.
FIELDS = {"flt": "centres", "sfmtl-graph": "anchors+classes", "kin": "signature", "ifca": "cluster"}
METHODS = ("fedavg", *FIELDS)
SMALL = {
    "scenario.clients": 20, "model.hidden": [32], "training.rounds": 20, "training.per_round": "all",
}  # fmt: skip


def spec_of(attack: str, method: str) -> str | None:
    """Return `run.adversaries` of this attack; None: it says nothing about this method."""
    if attack not in FORGERS:
        return attack if attack == "none" else f"{'label-flip:.2, ' * (attack == 'sybil')}{attack}:.2"
    if method not in FIELDS or (attack != "copy" and method in ("kin", "ifca")):
        return None
    return f"label-flip:.2, {attack}:.2:{FIELDS[method]}"


def run(method: str, attack: str, defence: str, seed: int) -> dict[str, Any]:
    """Run one method, and return its line."""
    plan = load(ROOT / "presets" / "digits-rotated.toml").for_method(method)
    own: dict[str, Any] = {"method.aggregate": defence} if defence != "mean" else {}
    if method == "ifca":
        own["method.clusters"] = 4
    plan = plan.with_changes(**SMALL, **own, **{"run.seed": seed, "run.adversaries": spec_of(attack, method)})
    setup = plan.setup(plan.scenario.federation(plan.data.load(Path()), seed), Path())
    engine, groups = LocalEngine(setup), dict[str, int]()
    for number in range(1, plan.training.rounds + 1):
        found = engine.round(number).graph
        groups = {**found.groups} if found is not None and found.groups else groups
    scores = engine.evaluate()
    each: dict[str, list[float]] = {}
    for id, score in scores.items():
        each.setdefault(str(setup.federation[id].group), []).append(score.right / score.n)
    # The same clients are drawn in every run of a seed, as adversaries and as those whom forgers aim at.
    attacks = Attacks.parse(f"copy:{SHARE}:params")
    assert attacks is not None
    adversaries = attacks.clients(setup.federation.seen, seed)
    honest = {id: setup.federation[id].group or "" for id in setup.federation.seen if id not in adversaries}
    victims = Forgery(setup.plan, attacks, adversaries, honest).victims
    theirs, foreign = setup.federation[victims[0]].group, list[str]()
    if attack != "none" and groups:
        foreign = [id for id in sorted(adversaries) if setup.federation[id].group != theirs]
    most = Counter(groups[id] for id in victims if id in groups).most_common(1)
    inside = [id for id in foreign if most and groups.get(id) == most[0][0]]
    return {
        "method": method, "attack": attack, "defence": defence, "seed": seed,
        "accuracy": statistics.fmean(accuracy for group in each.values() for accuracy in group),
        "worst": min(statistics.fmean(group) for group in each.values()),
        "inside": len(inside), "foreign": len(foreign),
    }  # fmt: skip


def done(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the lines of the file by what was run; a line that was cut off counts as not there."""
    found = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        found[line["method"], line["attack"], line["defence"], line["seed"]] = line
    return found


def table(lines: list[dict[str, Any]]) -> list[str]:
    """Return the table of what is there."""
    cells: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for line in lines:
        row = cells.setdefault((line["method"], line["defence"]), {})
        row.setdefault(line["attack"], []).append(line)
    shown = [attack for attack in ATTACKS if any(attack in row for row in cells.values())]
    rows = [f"| method | aggregate | {' | '.join(shown)} |", "|---|---|" + "---|" * len(shown)]
    for (method, defence), row in sorted(
        cells.items(), key=lambda cell: (METHODS.index(cell[0][0]), [*RULES].index(cell[0][1]))
    ):
        texts = [_cell(row.get(attack, [])) for attack in shown]
        rows.append(f"| {method} | {defence} | {' | '.join(texts)} |")
    return rows


def _cell(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return ""
    accuracy, worst = (100 * statistics.fmean(line[name] for line in lines) for name in ("accuracy", "worst"))
    foreign = sum(line["foreign"] for line in lines)
    inside = f", {sum(line['inside'] for line in lines)} of {foreign}" if foreign else ""
    return f"{accuracy:.0f} / {worst:.0f}{inside}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each run")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--defences", default=",".join(RULES))
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and run nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    there = done(asked.out)
    chosen = (value.split(",") for value in (asked.seeds, asked.defences, asked.attacks, asked.methods))
    for seed, defence, attack, method in itertools.product(*chosen) if not asked.table else ():
        # SFMTL-Graph moves heads along edges: there is no mean to replace.
        fits = spec_of(attack, method) is not None and (method != "sfmtl-graph" or defence == "mean")
        if fits and (method, attack, defence, int(seed)) not in there:
            line = run(method, attack, defence, int(seed))
            there[method, attack, defence, int(seed)] = line
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    print(*table(list(there.values())), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
