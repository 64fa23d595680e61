"""The line of a round (rounds.jsonl) and the summary of a run (summary.json), from the engine and the records."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from fedkin.analysis.paired import Outcomes
from fedkin.engines import Engine, Outcome, Score
from fedkin.engines.results import SERVER
from fedkin.errors import first_few
from fedkin.learning.devices import title
from fedkin.records import metrics
from fedkin.records.events import drifts_in, events_in
from fedkin.records.files import versions
from fedkin.records.metrics import missing_kinds, missing_summary, privacy_spent
from fedkin.records.outcomes import calibration_of
from fedkin.records.recorder import Records
from fedkin.records.run import bytes_by_client
from fedkin.running.experiment import RunSettings

_SUMMARY_ONLY = ("title", "higher", "share", "values")
# A loss that grows by more than this factor needs a warning.
_GROWN = 10.0


def round_line(outcome: Outcome, scores: Mapping[str, Score], engine: Engine) -> dict[str, Any]:
    """Return the line of a round; nothing in it depends on the speed of the machine."""
    line: dict[str, Any] = {
        "round": outcome.round, "sampled": list(outcome.sampled), **metrics.metric_figures(scores, engine.roster),
        "groups": metrics.groups(outcome.graph, engine.roster.planted), **metrics.traffic(outcome.traffic),
        "samples": sum(outcome.samples.values()), "inferred": outcome.inferred, "flops": outcome.flops,
    }  # fmt: skip
    further = metrics.further(engine.setup.measures, scores, engine.all_clients.unseen) if scores else {}
    optional: dict[str, Any] = {
        "missing": missing_kinds(message.missing for message in outcome.traffic),
        "skipped": outcome.skipped,
        "events": {what: list(ids) for what, ids in outcome.events.items()},
        "metrics": {
            name: {what: value for what, value in row.items() if what not in _SUMMARY_ONLY}
            for name, row in further.items()
        },
        "figures": dict(engine.server.info),
    }
    return line | {name: value for name, value in optional.items() if value}


def summary_of(
    engine: Engine, run: RunSettings, name: str, scenario: str, records: Records, scores: Mapping[str, Score],
    outcomes: Mapping[str, Outcomes], seconds: Mapping[str, float], training_paths: list[dict[str, str]],
) -> dict[str, Any]:  # fmt: skip
    """Return the content of summary.json, without empty entries (no warnings, nothing missing, ...)."""
    rounds, setup, all_clients = records.rows["rounds"], engine.setup, engine.all_clients
    seen = {id: one for id, one in outcomes.items() if id not in set(all_clients.unseen)}
    settings = setup.method.model_dump(mode="json")
    machine = {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()}
    if run.device != "cpu":
        machine["gpu"] = title(torch.device(run.device))
    optional: dict[str, Any] = {
        "calibration": calibration_of(seen),
        "given": prior_knowledge(settings, run.network),
        "warnings": [
            *drifts_in(rounds),
            *warnings_of(settings, setup.training.rounds, rounds, scores, all_clients.task.metric.name, run.precision),
        ],
        "events": events_in(rounds),
        "missing": missing_summary(records.rows["messages"]),
        "privacy": privacy_spent(setup.privacy, engine.releases()) if setup.privacy.on else {},
    }
    return {
        "name": name, "method": setup.method.name, "scenario": scenario, "seed": setup.seed,
        "rounds": setup.training.rounds, "clients": len(all_clients), **metrics.metric_figures(scores, all_clients),
        **({"metrics": metrics.further(setup.measures, scores, all_clients.unseen)} if setup.measures else {}),
        **_traffic(records, all_clients), **{key: value for key, value in optional.items() if value},
        "groups": _groups(rounds), "flops": {"local_training": sum(row["flops"] for row in rounds)},
        "seconds": dict(seconds), "engine": run.engine, "mode": engine.site.mode,
        **({"training_paths": training_paths} if training_paths else {}), "device": run.device, "dtype": run.dtype,
        **({} if run.precision == "float32" else {"precision": run.precision}), "parameters": setup.net.parameters(),
        "versions": versions(), "machine": machine,
    }  # fmt: skip


def _traffic(records: Records, ids: Iterable[str]) -> dict[str, Any]:
    """Return bytes and floats up and down: in total, per client (mean, and bytes of each), and the largest upload."""
    ids = list(ids)
    total: dict[str, Any] = {}
    for what in ("bytes", "floats", "messages"):
        up, down = (sum(row[what][way] for row in records.rows["rounds"]) for way in ("up", "down"))
        total[what] = {"up": up, "down": down, "up_per_client": up / len(ids), "down_per_client": down / len(ids)}
    messages = records.rows["messages"]
    total["floats"]["largest_upload"] = max((row[5] for row in messages if row[1] != SERVER), default=0)
    total["bytes"]["clients"] = bytes_by_client(messages, ids)
    return total


def _groups(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the groups of the last graph, and the mean recovery over all rounds with a graph."""
    with_graph = [row["groups"] for row in rounds if row["groups"]]
    if not with_graph:
        return {"found": None, "ari": None, "nmi": None, "modularity": None}
    aris = [row["ari"] for row in with_graph if row["ari"] is not None]
    return {**with_graph[-1], "ari_mean": sum(aris) / len(aris) if aris else None}


def prior_knowledge(method: Mapping[str, Any], network: str) -> list[str]:
    """Return the prior knowledge that a method was given, from its settings and `run.network`; empty if none.

    >>> prior_knowledge({"clusters": 4}, "complete"), prior_knowledge({"graph": {"groups": "planted"}}, "complete")
    (['4 groups, given'], ['planted groups, given'])
    """
    graph = method.get("graph")
    graph = graph if isinstance(graph, Mapping) else {}
    texts = []
    for value in (method.get("clusters"), method.get("groups"), graph.get("groups"), graph.get("clusters")):
        count = _group_count(value)
        if count is not None:
            texts.append(f"{count} group{'' if count == 1 else 's'}, given")
        elif value == "planted":
            texts.append("planted groups, given")
    if "oracle" in (method.get("control"), graph.get("control")):
        texts.append("planted graph, given")
    if network.split(":")[0] == "planted":
        texts.append("planted network, given")
    return list(dict.fromkeys(texts))


def _group_count(value: Any) -> int | None:
    """The number of groups that a setting fixes; None if it fixes none."""
    if isinstance(value, str):
        name, _, number = value.partition(":")
        return int(number) if name in ("hierarchical", "kmeans") and number.isdigit() else None
    if isinstance(value, (Mapping, list, tuple)):
        return len(value) or None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def warnings_of(
    method: Mapping[str, Any], rounds: int, lines: Sequence[Mapping[str, Any]], scores: Mapping[str, Score],
    metric: str, precision: str = "float32",
) -> list[str]:  # fmt: skip
    """Warnings about a run, each with what to do. lines: of rounds.jsonl; scores: of the last evaluation."""
    warnings = []
    if precision != "float32":
        warnings.append(
            f"bodies of nets were computed in {precision}: compare with runs of the same precision, or set "
            "run.precision = 'float32'"
        )
    warmup, graph = method.get("warmup"), method.get("graph")
    off = isinstance(graph, Mapping) and graph.get("on") is False
    if isinstance(warmup, (int, float)) and 0 < rounds <= warmup and not off:
        warnings.append(
            f"the warm-up of {method['warmup']:g} rounds is not shorter than the run of {rounds}, so what follows it "
            "never began or had one round: set method.warmup lower or training.rounds higher"
        )
    losses = [row[metric].get("loss") for row in lines if row.get(metric)]
    if len(losses) == 1 and rounds > 1:
        warnings.append(
            f"one of {rounds} rounds was evaluated, so that nothing shows whether the run had converged: set "
            "run.evaluate_every lower"
        )
    if divergence := _divergence(losses, scores):
        warnings.append(divergence)
    return warnings


def _divergence(losses: Sequence[float | None], scores: Mapping[str, Score]) -> str:
    """Whether models diverged, or the mean test loss grew; empty if not."""
    diverged = sorted(id for id, score in scores.items() if score.n and not math.isfinite(score.loss))
    if diverged:
        few = first_few(diverged, 3)
        return f"the models of {len(diverged)} of {len(scores)} clients diverged ({few}): set training.lr lower"
    first, last = (losses[0] or 0.0, losses[-1] or 0.0) if losses else (0.0, 0.0)
    if last > _GROWN * first > 0:
        return (
            f"the mean test loss grew from {first:.3g} to {last:.3g}: the models diverge or overfit; set training.lr "
            "or training.rounds lower"
        )
    return ""
