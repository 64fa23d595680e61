"""What the figures of a run do not say by themselves: what was told to the method, and why not to trust them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.engines import Score

__all__ = ["cautions", "given"]

# A loss that ends at more than so many times its first value did not just overfit.
_GROWN = 10.0


def given(method: Mapping[str, Any], network: str) -> list[str]:
    """What was told to a method, from its settings and `run.network`; empty if nothing was.

    >>> given({"clusters": 4}, "complete"), given({"graph": {"groups": "planted"}}, "complete")
    (['4 groups, given'], ['planted groups, given'])
    """
    graph = method.get("graph") or {}
    graph = graph if isinstance(graph, Mapping) else {}
    found = []
    for value in (method.get("clusters"), method.get("groups"), graph.get("groups"), graph.get("clusters")):
        count = _count(value)
        if count is not None:
            found.append(f"{count} group{'' if count == 1 else 's'}, given")
        elif value == "planted":
            found.append("planted groups, given")
    if "oracle" in (method.get("control"), graph.get("control")):
        found.append("planted graph, given")
    if network.split(":")[0] == "planted":
        found.append("planted network, given")
    return list(dict.fromkeys(found))


def _count(value: Any) -> int | None:
    """The number of groups that a setting names."""
    if isinstance(value, str):
        name, _, number = value.partition(":")
        return int(number) if name in ("hierarchical", "kmeans") and number.isdigit() else None
    if isinstance(value, (Mapping, list, tuple)):
        return len(value) or None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def cautions(
    method: Mapping[str, Any],
    rounds: int,
    lines: Sequence[Mapping[str, Any]],
    scores: Mapping[str, Score],
    metric: str,
    precision: str = "float32",
) -> list[str]:
    """Warnings about a run, each a sentence with what to do. lines: those of rounds.jsonl; scores: the last ones."""
    found = []
    if precision != "float32":
        found.append(
            f"bodies of nets were computed in {precision}: compare with runs of the same precision, or set "
            "run.precision = 'float32'"
        )
    warmup, graph = method.get("warmup"), method.get("graph")
    off = isinstance(graph, Mapping) and graph.get("on") is False
    if isinstance(warmup, (int, float)) and warmup >= 1 and rounds and warmup >= rounds and not off:
        found.append(
            f"the warm-up of {warmup:g} rounds is not shorter than the run of {rounds}, so what follows it never began "
            "or had one round: set method.warmup lower or training.rounds higher"
        )
    losses = [row[metric].get("loss") for row in lines if row.get(metric)]
    if len(losses) == 1 and rounds > 1:
        found.append(
            f"one of {rounds} rounds was evaluated, so that nothing shows whether the run had converged: set "
            "run.evaluate_every lower"
        )
    lost = sorted(id for id, score in scores.items() if score.n and not math.isfinite(score.loss))
    if lost:
        named = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        found.append(f"the models of {len(lost)} of {len(scores)} clients diverged ({named}): set training.lr lower")
    elif len(losses) > 1 and losses[0] and losses[-1] and losses[-1] > _GROWN * losses[0] > 0:
        found.append(
            f"the mean test loss grew from {losses[0]:.3g} to {losses[-1]:.3g}: the models diverge or overfit; set "
            "training.lr or training.rounds lower"
        )
    return found
