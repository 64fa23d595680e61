"""Figures and tables for a paper: what the page says, in files that LaTeX takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedkin.errors import ConfigError
from fedkin.report.collect import collect
from fedkin.report.paper import method_table, write_paper
from report.fake_runs import make_comparison


@pytest.fixture(scope="module")
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("paper")
    return make_comparison(home / "made", seeds=tuple(range(6)), clients=6, rounds=3, names={0: "a_b & 50 %"})


@pytest.mark.slow
def test_without_matplotlib_one_line_says_what_to_install(
    comparison_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedkin\[paper\]'"):
        write_paper([comparison_folder / "nothing"], tmp_path / "out")
    assert [path.name for path in write_paper([comparison_folder], tmp_path / "out", "table")] == [
        "table.tex",
        "all.tex",
    ]
    with pytest.raises(ConfigError, match="did you mean 'table'"):
        write_paper([comparison_folder], tmp_path / "out", "tabel")


def test_a_table_over_fewer_clients_says_so(comparison_folder: Path) -> None:
    data = collect([comparison_folder])
    assert "figures are over" not in method_table(data)
    assert "figures are over 2 of 6 clients" in method_table(
        {**data, "partial": "ROC-AUC: figures are over 2 of 6 clients"}
    )


def test_a_table_of_methods_has_the_figures_of_the_page(comparison_folder: Path) -> None:
    data = collect([comparison_folder])
    lines = method_table(data).splitlines()
    first = lines.index(r"\toprule")
    assert lines[first - 1] == rf"\begin{{tabular}}{{l{'r' * lines[first + 1].count('&')}}}"
    assert r"$\pm$: half of Student's 95 \% interval over seeds" in lines[2]
    rows = {row["label"]: row for row in data["table"]}
    local = next(line for line in lines if line.startswith("Local training"))
    mean, spread = rows["local"]["mean"]
    assert f"${100 * mean:.1f} \\pm {100 * spread:.1f}$" in local
    body = [line for line in lines if line.endswith(r"\\")]
    assert len({line.count("&") for line in body}) == 1


def test_figures_are_vectors_and_all_of_it_compiles(comparison_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install -e .[paper]")
    assert {path.name for path in write_paper([comparison_folder], tmp_path / "two")} == {
        "table.tex", "curves.svg", "curves.pdf", "curves.tex", "all.tex",
    }  # fmt: skip
    parts = "table,curves,gains,graph"
    written = write_paper([comparison_folder], tmp_path / "out", parts)
    names = {path.name for path in written}
    for figure in ("curves", "gains-fedavg", "gains-sfmtl-graph", "graph-sfmtl-graph"):
        assert {f"{figure}.svg", f"{figure}.pdf", f"{figure}.tex"} <= names
        assert ElementTree.parse(tmp_path / f"out/{figure}.svg").getroot().tag.endswith("svg")
        assert "<image" not in (tmp_path / f"out/{figure}.svg").read_text(encoding="utf-8")
        assert (tmp_path / f"out/{figure}.pdf").read_bytes().startswith(b"%PDF")
    assert {"table.tex", "all.tex"} <= names
    assert "95 % interval" in (tmp_path / "out/curves.tex").read_text(encoding="utf-8").replace("\\%", "%")
    again = write_paper([comparison_folder], tmp_path / "again", parts)
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]
    if (latex := shutil.which("pdflatex")) is not None:
        done = subprocess.run(
            [latex, "-interaction=nonstopmode", "-halt-on-error", "all.tex"], cwd=tmp_path / "out", capture_output=True,
            timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:]
