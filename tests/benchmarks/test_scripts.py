"""The scripts that measure, which are no part of the package: they follow its names."""

from __future__ import annotations

import ast
import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_name_that_a_script_imports_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedkin"):
            module = import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name) or import_module(f"{node.module}.{name.name}")


@pytest.mark.parametrize(
    ("script", "words", "row"),
    [
        ("kin_ablations", ["--constants"], "| digits, iid | 50.0 | +1.0±0.0 |"),
        ("kin_veto", [], "| writers 40, 0, - | 50.0 | +1.00±0.00 |"),
    ],
)
def test_what_has_been_run_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    script: str, words: list[str], row: str,
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module, file = import_module(script), tmp_path / "lines.jsonl"
    if script == "kin_veto":
        means = {"kin": 50.0, **{f"{kind} {z:g}": 51.0 for kind, z in module.RULES}}
        lines = [
            {"federation": "writers 40", "seed": seed, "liars": 0, "aim": "-", "means": means} for seed in module.SEEDS
        ]
    else:
        suite = module.SUITES["quick"]
        lines = [
            {"federation": name, "variant": variant, "seed": seed, "mean": 50.0 if variant == module.BASE else 51.0}
            for name in suite.federations for variant in module.CONSTANTS for seed in suite.seeds
        ]  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(sys, "argv", [script, str(file), "--table", *words])
    module.main()
    assert row in capsys.readouterr().out
