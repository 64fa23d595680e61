"""Attacks, methods and defences on rotated digits: how honest clients fare, and how often a forger gets into a group.

    OMP_NUM_THREADS=1 python benchmarks/attacks.py --out FILE [--seeds 0,1,2] [--defences mean,median]
    OMP_NUM_THREADS=1 python benchmarks/attacks.py --out FILE --table

20 clients in four rotations, all in each of 20 rounds, an MLP with 32 hidden units. Each run is a line in FILE; runs in
FILE are not repeated, so that the script can be stopped and started. Adversaries are a fifth of the clients, drawn by
the seed; in the runs `together` they are two of the five clients of one rotation. All figures, also those of runs
without attack, are of the clients that are honest in every run of a seed.

A forger flips its labels too, so that it does harm in a group that it gets into, and forges only the fields by which
its method groups clients. It got in if its planted group is another one, and its found group is that of most honest
clients of the planted group that forgers attack; it ended beside the victim if its found group is that of the client
whose fields it forges.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedkin.engines import LocalEngine
from fedkin.engines.attacks import FORGERS, Attacks, Forgery
from fedkin.federation import Federation
from fedkin.learning.aggregate import RULES
from fedkin.running.experiment import load

ROOT = Path(__file__).resolve().parents[1]
PLACES = {"spread": 0.2, "together": 0.1}
ATTACKS = ("none", "label-flip", "model-replacement", "alie", "ipm", "sybil", "copy", "group-mean", "mimic", "mimic:1")
FORGED = tuple(attack for attack in ATTACKS if attack.partition(":")[0] in FORGERS)
# The fields of messages by which the method groups clients; numbers and bytes can only be copied.
FIELDS = {
    "flt": "centres",
    "sfmtl-graph": "anchors+classes",
    "kin": "signature",
    "ifca": "cluster",
    "mapl-plus": "head",
}
METHODS = ("fedavg", "dfedavgm", *FIELDS)
SMALL = {
    "scenario.clients": 20, "model.hidden": [32], "training.rounds": 20, "training.clients_per_round": "all",
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "ifca": {"method.clusters": 4},
    "flt": {
        "method.graph.groups": 4, "method.graph.embedding": "none", "method.graph.distance": "matching",
        "method.graph.gamma": "groups", "method.graph.cluster": "distances",
    },
    "dfedavgm": {"run.network": "regular:6"},
    "mapl-plus": {
        "training.optimiser": "adam", "training.lr": 0.01, "method.warmup": 5,
        "method.augment": {"crop": 0.8, "flip": 0.0, "jitter": 0.0, "grey": 0.0, "blur": 0.0},
    },
}  # fmt: skip
# SFMTL-Graph has no mean to replace; MAPL+ takes twenty times as long as the others.
TRIED = {"sfmtl-graph": ("mean",), "mapl-plus": ("mean",)}
Key = tuple[str, str, str, str, int]


def spec_of(attack: str, method: str, share: float) -> str | None:
    """Return `run.adversaries` of this attack; None if the attack does not apply to this method."""
    kind, _, strength = attack.partition(":")
    if kind not in FORGERS:
        flips = f"label-flip:{share}, " if attack == "sybil" else ""
        return attack if attack == "none" else f"{flips}{attack}:{share}"
    if method not in FIELDS or (attack != "copy" and method in ("kin", "ifca")):
        return None
    return f"label-flip:{share}, {kind}:{share}:{FIELDS[method]}{strength and ':' + strength}"


def wanted(key: Key) -> bool:
    """Whether the tables need this run."""
    method, attack, defence, place, _ = key
    if spec_of(attack, method, 0.2) is None or defence not in TRIED.get(method, RULES):
        return False
    if method == "mapl-plus":
        return place == "spread" and attack in ("none", "label-flip", "copy")
    if place == "together":
        return method != "dfedavgm" and defence in ("mean", "median") and attack not in ("sybil", *FORGED)
    return attack not in FORGED[1:] or defence == "mean"


def gathered(federation: Federation, adversaries: Iterable[str]) -> Federation:
    """Return the federation with ids changed so that all adversaries are of one planted group."""
    first, *others = sorted(adversaries)
    group = federation[first].group
    away = [id for id in others if federation[id].group != group]
    inside = [id for id in federation if federation[id].group == group and id not in (first, *others)]
    pairs = list(zip(away, inside, strict=False))
    return federation.relabel({**dict(pairs), **{b: a for a, b in pairs}})


def run(method: str, attack: str, defence: str, place: str, seed: int) -> dict[str, Any]:
    """Run one method, and return its line."""
    share = PLACES[place]
    own = {**OWN.get(method, {}), **({"method.aggregate": defence} if defence != "mean" else {})}
    plan = load(ROOT / "presets" / "digits-rotated.toml").for_method(method)
    plan = plan.with_changes(**SMALL, **own, **{"run.seed": seed, "run.adversaries": spec_of(attack, method, share)})
    federation = plan.scenario.federation(plan.data.load(Path()), seed)
    # The same clients are drawn in every run of a seed, as adversaries and as the victims of forgers.
    attacks = Attacks.parse(f"copy:{share}:params")
    adversaries = attacks.clients(federation.seen, seed)
    federation = gathered(federation, adversaries) if place == "together" else federation
    setup = plan.setup(federation, Path())
    engine, groups = LocalEngine(setup), dict[str, int]()
    for number in range(1, plan.training.rounds + 1):
        found = engine.round(number).graph
        groups = {**found.groups} if found is not None and found.groups else groups
    honest = {id: federation[id].group or "" for id in federation.seen if id not in adversaries}
    victims = Forgery(attacks, adversaries, federation, setup.seed, setup.net_of).victims
    aimed = federation[victims[0] if place == "spread" else min(adversaries)].group or ""
    foreign = [id for id in sorted(adversaries) if federation[id].group != aimed and attack != "none" and groups]
    most = Counter(groups[id] for id in victims if id in groups).most_common(1)
    return {
        "method": method, "attack": attack, "defence": defence, "place": place, "seed": seed, "aimed": aimed,
        **figures({id: score.right / score.n for id, score in engine.evaluate().items()}, honest, aimed),
        "inside": sum(bool(most) and groups.get(id) == most[0][0] for id in foreign), "foreign": len(foreign),
        "beside": sum(groups.get(id) == groups.get(victims[0]) for id in foreign),
    }  # fmt: skip


def figures(scores: Mapping[str, float], honest: Mapping[str, str], aimed: str) -> dict[str, float]:
    """Return the mean over honest clients, and over groups: the worst, the attacked one, the mean of the others."""
    each: dict[str, list[float]] = {}
    for id, group in honest.items():
        each.setdefault(group, []).append(scores[id])
    mean = {group: statistics.fmean(values) for group, values in each.items()}
    return {
        "accuracy": statistics.fmean(scores[id] for id in honest), "worst": min(mean.values()),
        "aimed at": mean[aimed], "others": statistics.fmean(mean[group] for group in mean if group != aimed),
    }  # fmt: skip


def done(path: Path) -> dict[Key, dict[str, Any]]:
    """Return the lines of the file by run; a line that was cut off is ignored."""
    found = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        found[line["method"], line["attack"], line["defence"], line["place"], line["seed"]] = line
    return found


def cell(lines: list[dict[str, Any]], *names: str) -> str:
    """Return these figures in percent, with their deviations over the seeds if there are several."""
    values = [[100 * line[name] for line in lines] for name in names]
    return " / ".join(
        f"{statistics.fmean(each):.0f}" + (f"±{statistics.stdev(each):.0f}" if len(each) > 1 else "") for each in values
    )


def tables(lines: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Yield the tables of these runs."""
    there: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for line in lines:
        there.setdefault((line["place"], line["method"], line["attack"], line["defence"]), []).append(line)
    for method in METHODS:
        shown = [rule for rule in RULES if ("spread", method, "none", rule) in there]
        if not shown:
            continue
        yield f"\n`{method}`: all honest clients / the worst honest group\n"
        yield f"| attack | {' | '.join(shown)} |\n|---|{'---|' * len(shown)}"
        for attack in ATTACKS:
            row = [there.get(("spread", method, attack, rule), []) for rule in shown]
            if any(row):
                yield f"| {attack} | {' | '.join(cell(own, 'accuracy', 'worst') if own else '' for own in row)} |"
    yield "\nForgers: got in, ended beside the victim; the group aimed at and the others, without attack first\n"
    yield "| method | forged | attack | got in | beside | aimed at | others |\n|---|---|---|---|---|---|---|"
    for method, attack in itertools.product(FIELDS, ("label-flip", "sybil", *FORGED)):
        own, before = (there.get(("spread", method, kind, "mean"), []) for kind in (attack, "none"))
        if own and before:
            of = sum(line["foreign"] for line in own)
            got = " | ".join(f"{sum(line[name] for line in own)}/{of}" for name in ("inside", "beside"))
            each = [f"{cell(before, name)} → {cell(own, name)}" for name in ("aimed at", "others")]
            field = FIELDS[method] if attack in FORGED else ""
            yield f"| {method} | {field} | {attack} | {got} | {' | '.join(each)} |"
    yield "\nTwo of five clients of one group: honest clients of their group / of the other groups\n"
    kinds = [kind for kind in ATTACKS if any(key[0] == "together" and key[2] == kind for key in there)]
    yield f"| method | aggregate | {' | '.join(kinds)} |\n|---|---|{'---|' * len(kinds)}"
    for method, rule in itertools.product(METHODS, RULES):
        row = [there.get(("together", method, kind, rule), []) for kind in kinds]
        if any(row):
            texts = [cell(own, "aimed at", "others") if own else "" for own in row]
            yield f"| {method} | {rule} | {' | '.join(texts)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each run")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--defences", default=",".join(RULES))
    parser.add_argument("--table", action="store_true", help="print the tables of what is there, and run nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    there = done(asked.out)
    seeds, defences, attacks, methods = (
        value.split(",") for value in (asked.seeds, asked.defences, asked.attacks, asked.methods)
    )
    for seed, defence, place, method, attack in itertools.product(seeds, defences, PLACES, methods, attacks):
        key = (method, attack, defence, place, int(seed))
        if not asked.table and key not in there and wanted(key):
            there[key] = run(*key)
            cut = asked.out.exists() and not asked.out.read_bytes().endswith(b"\n")
            with asked.out.open("a", encoding="utf-8") as file:
                file.write("\n" * cut + json.dumps(there[key]) + "\n")
    print(*tables(there.values()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
