"""`fedkin inspect EXPERIMENT.toml`, or of data that are no table: their clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedkin.cli.screen import as_json, screen
from fedkin.errors import ConfigError

if TYPE_CHECKING:
    from fedkin.data.skew import Skew
    from fedkin.federation import Client, Federation

__all__ = ["SHOWN", "bar", "inspect_experiment", "inspect_federation", "levels"]

SHOWN, _BAR = 40, 20
_LEVELS = "▁▂▃▄▅▆▇█"


def bar(size: int, largest: int) -> str:
    """A bar as long as a size is beside the largest one."""
    return "█" * max(1, round(_BAR * size / max(largest, 1)))


def levels(counts: list[int]) -> str:
    """Numbers as bars beside each other, empty where there is nothing."""
    return "".join(_LEVELS[round((len(_LEVELS) - 1) * count / max(counts))] if count else " " for count in counts)


def inspect_experiment(path: Path, options: dict[str, Any], data_root: Path | None, json: bool) -> None:
    """Print the clients of the experiment's federation, their sizes and targets, and how unlike these are."""
    from fedkin.running.experiment import load

    if given := [f"--{name.replace('_', '-')}" for name, value in options.items() if value]:
        raise ConfigError(f"{given[0]}: for tables; {path} is an experiment file, which says this in [data]")
    inspect_federation(load(path).federation(data_root if data_root is not None else Path("data")), json)


def inspect_federation(federation: Federation, json: bool) -> None:
    """Print the clients of a federation, their sizes and targets, and how unlike these are."""
    skew = _skew(federation)
    facts = [_facts(federation, federation[id]) for id in sorted(federation)]
    if json:
        told = None if skew is None else skew._asdict()
        print(as_json({"task": federation.task.kind, "clients": facts, "skew": told}))
        return
    console = screen(soft_wrap=True)
    train, test = (sum(one[part] for one in facts) for part in ("train", "test"))
    console.print(f"{len(facts):,} clients, {train:,} training and {test:,} test samples, {federation.task.kind}")
    screen().print(_table(federation, facts))
    if len(facts) > SHOWN:
        console.print(f"... and {len(facts) - SHOWN:,} more clients")
    if skew is not None and skew.matters:
        what = f"targets differ between clients beyond chance (effect {skew.effect:.2f} of 1)"
        console.print(f"skew: {what}; furthest from all: {', '.join(skew.apart)}")


def _facts(federation: Federation, client: Client) -> dict[str, Any]:
    labels, task = client.train.labels(), federation.task
    known = {"id": client.id, "train": len(client.train), "test": len(client.test), "seen": client.seen}
    if task.kind == "regression":
        return {**known, "mean": labels.double().mean(0).tolist() if len(labels) else None}
    return {**known, "classes": labels.reshape(-1).bincount(minlength=task.classes).tolist()}


def _skew(federation: Federation) -> Skew | None:
    from fedkin.data.skew import of_classes, of_numbers

    labels = {id: client.train.labels() for id, client in federation.items()}
    if federation.task.kind == "regression":
        return of_numbers({id: y[:, 0].numpy() for id, y in labels.items()})
    if not federation.task.labels:  # pixels of one image are no samples
        return None
    return of_classes({id: y.bincount(minlength=federation.task.classes).numpy() for id, y in labels.items()})


def _table(federation: Federation, facts: list[dict[str, Any]]) -> Table:
    kind, groups = federation.task.kind, federation.planted
    last = {"risk": "events", "regression": "mean"}.get(kind, "classes")
    made = Table(box=None, pad_edge=False)
    for head in ("client", "train", "test", "", last, *(["group"] if groups else [])):
        made.add_column(head, justify="right" if head in ("train", "test") else "left")
    largest = max(one["train"] + one["test"] for one in facts)
    for one in facts[:SHOWN]:
        name = one["id"] if one["seen"] else f"{one['id']} (unseen)"
        size = bar(one["train"] + one["test"], largest)
        group = [str(groups.get(one["id"], ""))] if groups else []
        made.add_row(name, f"{one['train']:,}", f"{one['test']:,}", size, _targets(kind, one), *group)
    return made


def _targets(kind: str, one: dict[str, Any]) -> str:
    if kind == "regression":
        return "" if one["mean"] is None else ", ".join(f"{value:.4g}" for value in one["mean"][:3])
    counts = one["classes"]
    if not sum(counts):
        return ""
    if kind == "risk":
        return f"{counts[1]:,} ({counts[1] / sum(counts):.0%})"
    return levels(counts[:60])
