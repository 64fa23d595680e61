"""The example of adapters runs, and what it prints is what travels."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from fedkin.learning.models import MODELS
from support import module_at

gone = [name for name in ("transformers", "peft") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,  # the packages are installed before the slow tests only
    pytest.mark.skipif(bool(gone), reason=f"{gone} not installed: pip install 'fedkin[transformers]'"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::FutureWarning"),
]  # fmt: skip


def test_adapters_travel_in_place_of_nets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "examples")
    monkeypatch.setitem(MODELS, "transformers", MODELS["mlp"])  # what the example puts there goes when the test ends
    path = Path(__file__).parents[1] / "examples/adapters.py"
    module_at(path).main(1, None)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["sfmtl-graph", "mapl-plus", "mapl"]
    for line in lines:
        found = re.search(r"trained ([\d,]+) of ([\d,]+)  kB sent .*: ([\d.]+), whole net ([\d.]+)", line)
        assert found is not None
        trained, whole = (int(number.replace(",", "")) for number in found.groups()[:2])
        light, heavy = float(found[3]), float(found[4])
        assert trained < whole
        # MAPL's bodies stay at home; of the others' models only adapters travel.
        assert light == heavy if line.startswith("mapl ") else 5 * light < heavy
    assert "transformers" in sys.modules
