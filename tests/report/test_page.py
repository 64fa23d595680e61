"""The page is one file: nothing to load, nothing to inject, not too large."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedkin.cli.results import report
from fedkin.errors import RunError
from fedkin.graph.picture import embedded
from fedkin.report import write_report
from fedkin.running.experiment import load
from fedkin.running.grid import Runs, compare
from report.fake_runs import data_in, make_comparison, make_run

EVIL = '<script>alert("x")</script>&\u2028'


class Outside(HTMLParser):
    """Collects what a page would load or lead to, and its script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A comparison whose first client has a name made of markup."""
    folder = tmp_path_factory.mktemp("page")
    make_comparison(folder / "made", names={0: EVIL})
    return write_report([folder / "made"], folder / "report.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere(html: str) -> None:
    outside = Outside()
    outside.feed(html)
    assert outside.links
    assert all(link.startswith("#") for link in outside.links)
    assert not re.search(r"https?://|//cdn|@import|url\(", html)
    assert "default-src 'none'" in html


def test_names_cannot_become_markup(html: str) -> None:
    outside = Outside()
    outside.feed(html)
    assert outside.scripts == 4
    assert EVIL not in html
    assert EVIL in data_in(html)["federations"][0]["ids"]


def test_embedded_json_has_no_markup() -> None:
    assert embedded({"</script>": "<!--&\u2029"}) == '{"\\u003c/script\\u003e":"\\u003c!--\\u0026\\u2029"}'


def test_tables_stand_in_the_page_without_the_script(html: str) -> None:
    for text in ("worst 10 %", "Jain&#39;s index", "SFMTL-Graph", "fedkin compare experiment.toml", "server to client"):
        assert text in html


def test_the_same_records_give_the_same_page(html: str, tmp_path: Path) -> None:
    make_comparison(tmp_path / "made", names={0: EVIL})
    assert write_report([tmp_path / "made"], tmp_path / "report.html").read_text(encoding="utf-8") == html


def test_command(tmp_path: Path) -> None:
    make_comparison(tmp_path / "made")
    report([tmp_path / "made"], None, None)
    assert (tmp_path / "made" / "report.html").is_file()
    report([tmp_path / "made" / "local-seed0"], tmp_path / "one" / "local.html", None)
    assert (tmp_path / "one" / "local.html").is_file()
    with pytest.raises(RunError, match="a folder; name the file"):
        report([tmp_path / "made"], tmp_path, None)
    with pytest.raises(RunError, match="no such run folder"):
        report([tmp_path / "none"], None, None)


@pytest.mark.parametrize(("key", "named"), [("gpu", True), ("cores", False)])
def test_a_gpu_is_named(key: str, named: bool, tmp_path: Path) -> None:
    make_run(tmp_path / "made")
    kept = tmp_path / "made" / "summary.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"machine": {key: "H200"}}))
    text = write_report([tmp_path / "made"], tmp_path / "report.html").read_text(encoding="utf-8")
    assert ("on the same GPU" in text) == named


def test_a_table_s_one_split_is_said_beside_the_intervals_over_seeds(tmp_path: Path) -> None:
    rows = [f"{'ab'[n % 2]},{n * 37 % 91},{n // 2 % 2}" for n in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["h,age,died", *rows]) + "\n")
    (tmp_path / "e.toml").write_text(
        'name = "t"\n[data]\nsource = "csv"\npath = "t.csv"\ntarget = "died"\nclient = "h"\n'
        '[scenario]\nname = "natural"\n[model]\nname = "linear"\n[method]\nname = "fedavg"\n[training]\nrounds = 1\n'
    )
    results = compare(Runs(load(tmp_path / "e.toml"), tmp_path), ["local", "fedavg"], [0, 1], tmp_path / "runs")
    folders = [run.folder for by_seed in results.values() for run in by_seed.values() if run.folder is not None]
    page = write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "All seeds have the same test rows (data.seed)" in page
