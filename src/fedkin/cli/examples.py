"""The examples at the end of every command's help."""

from __future__ import annotations

from collections.abc import Mapping

import typer

__all__ = ["EXAMPLES", "with_examples"]

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": (
        "fedkin run digits-rotated --seed 1",
        "fedkin run EXPERIMENT.toml --set training.lr=0.1 --rounds 20",
        "fedkin run --resume runs/digits-rotated",
    ),
    "compare": (
        "fedkin compare digits-rotated --methods local,fedavg,kin --seeds 0-4",
        "fedkin compare EXPERIMENT.toml --methods local,mine.py:Mine --controls",
        "fedkin compare --resume runs/digits-rotated",
    ),
    "tune": (
        "fedkin tune EXPERIMENT.toml --methods fedavg,tfl --try training.lr=0.01,0.1",
        "fedkin tune EXPERIMENT.toml --methods fedavg,tfl --equal 12 --seeds 0,1",
    ),
    "sweep": ("fedkin sweep digits-rotated --methods sfmtl-graph --grid method.lam=0.1,1 --seeds 0-4",),
    "advise": ("fedkin advise stays.csv --target died --client hospital",),
    "serve": ("fedkin serve EXPERIMENT.toml --join join.toml --key server.key",),
    "join": ("fedkin join join.toml --data stays.csv --target died --key north.key",),
    "peer": ("fedkin peer join.toml --data stays.csv --target died --key north.key",),
    "inspect": ("fedkin inspect stays.csv --target died --client hospital", "fedkin inspect EXPERIMENT.toml"),
    "init": ("fedkin init stays.csv --target died --client hospital",),
    "new": ("fedkin new method my-method", "fedkin new metric recall-at-5 --out src"),
    "check": ("fedkin check runs/digits-rotated",),
    "report": ("fedkin report runs/digits-rotated", "fedkin report runs/A runs/B --out both.html"),
    "graph": (
        "fedkin graph signatures.csv --sparsify knn:10 --out graph",
        "fedkin graph rows.csv --groups same --client hospital --target died",
    ),
    "export": ("fedkin export runs/wards --client north --to onnx",),
    "reproduce": ("fedkin reproduce", "fedkin reproduce flt-table1 --data-root data", "fedkin reproduce all --quick"),
    "methods": ("fedkin methods", "fedkin methods sfmtl-graph", "fedkin methods mine.py:Mine"),
    "scenarios": ("fedkin scenarios", "fedkin scenarios dirichlet"),
    "sources": ("fedkin sources", "fedkin sources mnist"),
    "models": ("fedkin models", "fedkin models cnn-mnist"),
    "metrics": ("fedkin metrics",),
    "presets": ("fedkin presets", "fedkin presets digits-rotated > mine.toml"),
    "data fetch": ("fedkin data fetch", "fedkin data fetch mnist --data-root data"),
    "runs diff": ("fedkin runs diff runs/A runs/B",),
    "net init": ("fedkin net init keys --name north",),
    "net ca": ("fedkin net ca ca", "fedkin net ca ca --sign north.csr"),
    "net invite": (
        "fedkin net invite EXPERIMENT.toml --ca ca.pem --member server=host:7447 --member north --out join.toml",
    ),
    "net router": ("fedkin net router join.toml --key router.key",),
    "net show": ("fedkin net show join.toml",),
    "net status": ("fedkin net status runs/wards",),
    "flower new": ("fedkin flower new app --experiment EXPERIMENT.toml --out /srv/runs/wards",),
    "flower node": (
        "fedkin flower node EXPERIMENT.toml --name a --socket a.sock --state a --data stays.csv --target died",
    ),
}


def with_examples(app: typer.Typer, before: str = "") -> None:
    """Give every command of an application, and of the groups in it, its examples; KeyError for one without."""
    for command in app.registered_commands:
        command.epilog = "\n\n".join(["Examples:", *EXAMPLES[f"{before}{command.name}"]])
    for group in app.registered_groups:
        assert group.typer_instance is not None
        with_examples(group.typer_instance, f"{before}{group.name} ")
