"""Would a client's own veto help kin against clients that lie about their held-out costs?

    OMP_NUM_THREADS=1 FEDKIN_DATA=DATA python benchmarks/kin_veto.py veto.jsonl            some minutes of one core
    OMP_NUM_THREADS=1 FEDKIN_DATA=DATA python benchmarks/kin_veto.py veto.jsonl --table    the table only

Lies are those of kin_liars.py. At the choice a client knows the loss of each of its held-out samples under the chosen
candidate, under the other strengths at the chosen level, and under a model of its own, trained on the same four fifths
for as many rounds. It vetoes if an alternative has a smaller mean loss by more than Z standard errors of the paired
difference, and then uses the alternative with the smallest. "head": only other strengths; "own": only the model of its
own, for which every client has to train a second model; "both". A veto changes the model that a client uses, but not
training, so one run serves all rules. Bodies are shared here. Each run is one line of the file, so a run that was
stopped can be continued.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from full_suite import SUITE
from kin_ablations import shared_bodies
from kin_liars import AIMS, LIARS, RATE
from torch import Tensor

import fedkin
from fedkin.analysis.intervals import over
from fedkin.federation import Federation, Samples
from fedkin.keys import key
from fedkin.learning.losses import per_sample
from fedkin.learning.net import Net
from fedkin.learning.sgd import infer
from fedkin.methods import kin
from fedkin.methods.blocks.pulled_head import pulled_heads, strengths, with_head

FEDERATIONS, SEEDS, ROUNDS = ("writers 40", "MNIST swap4 40x100"), (0, 1, 2), 20
RULES = [(kind, z) for kind in ("head", "own", "both") for z in (1.0, 2.0)]
judged, offer, best_candidate = kin.Kin.judged, kin.Kin.offer, kin.best_candidate
TRAINING = {"lr": RATE, "local_steps": 5, "batch_size": 32}


class Runs:
    """A federation of a seed, its net, and the models that each client trained alone.

    trial: after half of the rounds, on four fifths of the samples. own: after all rounds, on all samples.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.entry, self.seed = SUITE.federations[name], seed
        self.federation = self.entry.make(seed)
        task = self.federation.task
        model = (
            fedkin.learning.models.MODELS[self.entry.model]() if isinstance(self.entry.model, str) else self.entry.model
        )
        self.net = Net.build(lambda: model.build(task), key(seed, "net"), torch.float32)
        self.module = self.net.scratch()
        self.parts = {
            id: tuple(client.train.take(rows) for rows in kin.held_out(client.train))
            for id, client in self.federation.items()
        }
        fewer = Federation(
            [fedkin.Client(id, self.parts[id][0], client.test) for id, client in self.federation.items()], task, "kept"
        )
        self.trial = self.run("local", fewer, ROUNDS // 2).models
        self.own = self.run("local", self.federation, ROUNDS).models

    def run(self, method: str, federation: Federation, rounds: int) -> fedkin.Result:
        return fedkin.run(
            method, federation, rounds=rounds, seed=self.seed, model=self.entry.model, training=TRAINING,
            settings={"evaluate_every": rounds},
        )  # fmt: skip

    def losses(self, params: Mapping[str, Tensor], samples: Samples) -> np.ndarray[Any, Any]:
        loss = per_sample(self.federation.task)
        return loss(infer(self.net, self.module, params, "logits", samples).double(), samples.labels()).numpy()

    def right(self, params: Mapping[str, Tensor], id: str) -> float:
        test = self.federation[id].test
        found = infer(self.net, self.module, params, "logits", test)[:, : self.federation.task.classes].argmax(1)
        return 100 * float((found == test.labels()).double().mean())

    def personal(self, params: Mapping[str, Tensor], samples: Samples) -> list[dict[str, Tensor]]:
        """The model with the client's head under each strength."""
        task, features = self.federation.task, infer(self.net, self.module, params, "features", samples)
        heads = pulled_heads(params, features, samples.labels(), strengths(task), task)
        return [with_head(params, head) for head in heads]


def outcome(runs: Runs, liars: int, aim: tuple[int, int]) -> dict[str, Any]:
    """Mean accuracy of clients that never lie under each rule, and how many of them veto."""
    ids = sorted(runs.federation)
    lying = set(ids[:: len(ids) // liars][:liars]) if liars else set()
    seen: dict[str, Any] = {"models": []}

    def told_lies(costs: Mapping[str, Any], sizes: Mapping[str, int], levels: Sequence[str]) -> tuple[str, int]:
        lie = np.full((len(levels), next(iter(costs.values())).shape[1]), 1e9)
        lie[aim[0], 1 + aim[1]] = 0.0  # column 0 has the solved shared heads
        costs = {id: lie if id in lying else one for id, one in costs.items()}
        seen["choice"] = best_candidate(costs, {id: 10**9 if id in lying else n for id, n in sizes.items()}, levels)
        return seen["choice"]  # type: ignore[no-any-return]

    def noted(self: kin.Kin, server: Any, ids: Sequence[str], models: Any) -> Any:
        seen["models"].append(models)
        seen["nodes"] = {level: kin.nodes_of(server.state, level) for level in models}
        return judged(self, server, ids, models)

    offers: dict[str, Any] = {}

    def offered(self: kin.Kin, server: Any, id: str) -> Any:
        offers[id] = offer(self, server, id)
        return offers[id]

    with patch.object(kin, "best_candidate", told_lies), patch.object(kin.Kin, "judged", noted), \
            patch.object(kin.Kin, "offer", offered), patch.object(kin.Kin, "choose_body", shared_bodies):  # fmt: skip
        result = runs.run("kin", runs.federation, ROUNDS)
    level, place = seen["choice"]
    count = len(strengths(runs.federation.task))
    trained, strength = 1 <= place <= count, 0 if place == 0 else place - 1 if place <= count else place - count
    models = seen["models"][0 if trained else 1][level]
    figures: dict[str, list[float]] = {"kin": []}
    vetoes: dict[str, int] = {}
    for id in sorted(set(ids) - set(ids[:: len(ids) // max(LIARS)]) - set(ids[::10]) - set(ids[::5])):
        score = result.scores[id]
        figures["kin"].append(100 * score.right / score.n)
        kept, held = runs.parts[id]
        own = runs.losses(runs.trial[id], held)
        if offers[id]["alone"]:
            each, final = [], [runs.own[id]]
        else:
            each = [runs.losses(one, held) for one in runs.personal(models[seen["nodes"][level][id]], kept)]
            final = runs.personal(offers[id].params, runs.federation[id].train)
            used = runs.right(final[strength], id)
            # Features of a batch of many clients differ in their last bits, which may change one sample.
            assert abs(used - figures["kin"][-1]) < 100.01 / score.n, f"{id}: {used} here, {figures['kin'][-1]} there"
            figures["kin"][-1] = used
        for kind, z in RULES:
            rule = f"{kind} {z:g}"
            others = {} if kind == "own" else dict(enumerate(each))
            if kind != "head":
                others[-1] = own
            best = min(others, key=lambda one: others[one].mean(), default=-1)
            chosen = figures["kin"][-1]
            if each:
                gap = each[strength] - others[best]
                error = float(gap.std(ddof=1)) / np.sqrt(len(gap)) if len(gap) > 1 else np.inf
                if best != strength and gap.mean() > z * error:
                    vetoes[rule] = vetoes.get(rule, 0) + 1
                    chosen = runs.right(runs.own[id] if best == -1 else final[best], id)
            figures.setdefault(rule, []).append(chosen)
    means = {rule: float(np.mean(values)) for rule, values in figures.items()}
    return {"level": level, "place": place, "means": means, "vetoes": vetoes, "clients": len(figures["kin"])}


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Kin's mean, and the paired difference that each rule makes, with its 95 % interval over seeds."""
    names = [f"{kind} {z:g}" for kind, z in RULES]
    rows = ["| federation, liars, aim | kin | " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) + 1)]
    for place in dict.fromkeys((line["federation"], line["liars"], line["aim"]) for line in lines):
        mine = [line["means"] for line in lines if (line["federation"], line["liars"], line["aim"]) == place]
        cells = [f"{np.mean([one['kin'] for one in mine]):.1f}"]
        for rule in names:
            more = [one[rule] - one["kin"] for one in mine]
            interval = over(more)
            half = 0.0 if interval is None else (interval.high - interval.low) / 2
            cells.append(f"{np.mean(more):+.2f}±{half:.2f}")
        rows.append(f"| {', '.join(map(str, place))} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = options.file
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(line["federation"], line["seed"], line["liars"], line["aim"]) for line in lines}
    for name in () if options.table else FEDERATIONS:
        for seed in SEEDS:
            todo = [(0, "-", (0, 0)), *((max(LIARS), aim, place) for aim, place in AIMS.items() if place)]
            todo = [one for one in todo if (name, seed, *one[:2]) not in done]
            runs = Runs(name, seed) if todo else None
            for liars, aim, place in todo:
                assert runs is not None
                line = {"federation": name, "seed": seed, "liars": liars, "aim": aim, **outcome(runs, liars, place)}
                lines.append(line)
                with file.open("a", encoding="utf-8") as opened:
                    opened.write(json.dumps(line) + "\n")
    print(table(lines))


if __name__ == "__main__":
    main()
