"""Pages: links and anchors lead somewhere, commands exist, experiments are valid, every page is on the site."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w

import fedkin
from cli.invoked import fault
from fedkin.methods import METHODS
from fedkin.running.experiment import load
from fedkin.running.papers import PaperTable
from support import module_at

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", flags=re.M | re.S)


def site() -> Any:
    """What mkdocs does beyond its settings."""
    return module_at(ROOT / ".ci" / "site.py")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return {*found, *(f"{slug}-{number}" for slug, count in Counter(found).items() for number in range(1, count))}


def wrong_links(page: Path, text: str) -> list[str]:
    """Links of a text that lead nowhere: files, folders and anchors. Addresses elsewhere are not asked."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"(https?|mailto):", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        outside = page.is_relative_to(DOCS) and not file.resolve().is_relative_to(DOCS)
        if not file.exists() or outside or (anchor and anchor not in slugs(file)):
            wrong.append(target)
    paths = re.findall(r"`((?:docs|presets|tests|benchmarks|src)/[\w./-]+\.\w+)`", text)
    return wrong + [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links(page: Path) -> None:
    assert wrong_links(page, prose(page)) == []


def test_pages_that_code_and_presets_name_are_there() -> None:
    files = [file for folder in ("src", "presets", "benchmarks") for file in sorted((ROOT / folder).rglob("*.*"))]
    named = {
        (str(file.relative_to(ROOT)), page)
        for file in files if file.suffix in (".py", ".toml")
        for page in re.findall(r"docs/[a-z][\w./-]*\.md", file.read_text(encoding="utf-8"))
    }  # fmt: skip
    assert len(named) > 30
    assert [one for one in sorted(named) if not (ROOT / one[1]).exists()] == []


def test_the_tests_that_the_page_on_security_names_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "network-security.md").read_text(encoding="utf-8")))
    folder = ROOT / "tests" / "network"
    tests = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py")))
    assert len(named) > 30
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_links_that_lead_nowhere_are_seen() -> None:
    text = "[a](data.md) [b](dta.md) [c](data.md#images) [d](data.md#idd) [](../README.md) `docs/data.md` `docs/dta.md`"
    assert wrong_links(DOCS / "tasks.md", text) == ["dta.md", "data.md#idd", "../README.md", "docs/dta.md"]


def command_lines(text: str) -> Iterator[str]:
    """Lines that call fedkin, in blocks of shell and in indented blocks; a backslash joins lines."""
    blocks = [body for language, body in FENCE.findall(text) if language.split(" ")[0] in ("", "sh")]
    blocks += [line[4:] for line in FENCE.sub("", text).replace("\\\n", "").splitlines() if line.startswith("    ")]
    for block in blocks:
        for line in block.replace("\\\n", "").splitlines():
            for part in re.split(r"; do |&& ", line):
                if part.strip().startswith("fedkin ") and "..." not in part:
                    yield part.strip()


def mentions(text: str) -> list[str]:
    """Commands in backticks, of which many name no arguments."""
    return [" ".join(found.split()) for found in re.findall(r"`(fedkin [^`]+)`", FENCE.sub("", text))]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = [fault(line) for line in command_lines(text)] + [fault(line, mentioned=True) for line in mentions(text)]
    assert [one for one in found if one] == []


def test_the_two_commands_of_a_clone_are_in_the_readme_and_are_run_on_a_fresh_machine() -> None:
    readme, fresh = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", ".ci/run"))
    for command in ("make demo", "make test"):
        assert f"`{command}`" in readme
        assert f"\n{command}\n" in fresh


def test_commands_are_read() -> None:
    text = "```sh\nfedkin run a.toml \\\n  --seeed 1\n```\n\n    fedkin runs dif A B\n    OTHER fedkin nothing\n"
    lines = list(command_lines(text))
    assert lines == ["fedkin run a.toml   --seeed 1", "fedkin runs dif A B"]
    assert "--seeed" in str(fault(lines[0]))
    assert "dif" in str(fault(lines[1]))
    assert fault("fedkin run a.toml --seed 1   # what it does") is None
    assert "DATA" in str(fault("fedkin init --look"))
    assert fault("fedkin init --look", mentioned=True) is None
    assert "--seeed" in str(fault("fedkin init --look --seeed", mentioned=True))
    assert mentions("Use `fedkin net\n status`.") == ["fedkin net status"]
    assert "x" in str(fault("fedkin run a.toml --seed x"))
    assert len([line for page in PAGES for line in command_lines(page.read_text(encoding="utf-8"))]) > 80


# A whole experiment needs these; a page may show some sections only.
WHOLE = """
name = "shown"
[data]
source = "digits"
[scenario]
name = "iid"
[model]
name = "mlp"
[method]
name = "fedavg"
"""
KNOWN = {"name", "data", "scenario", "model", "training", "method", "methods", "run", "network", "privacy", "faults"}


def test_changed_settings_exist(tmp_path: Path) -> None:
    general = tmp_path / "E.toml"
    general.write_text(WHOLE)
    tried = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in [*command_lines(text), *mentions(text)]:
            words = shlex.split(line, comments=True)
            changes = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
            named = [word for word in words[2:3] if word.endswith(".toml")]
            if changes and named and ".py:" not in line:
                file = ROOT / named[0] if named[0].startswith("presets/") else general
                method = any(change.startswith("method.name=") for change in changes)
                owned = [one for one in changes if file != general or method or not one.startswith("method.")]
                assert load(file, owned) is not None, line
                tried += len(owned)
    assert tried > 15


def experiments() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each block of TOML that is an experiment, or a part of one, with where it stands."""
    for name, page in zip(NAMES, PAGES, strict=True):
        text = page.read_text(encoding="utf-8")
        found = [body for language, body in FENCE.findall(text) if language.startswith("toml")]
        found += re.findall(r"<<'TOML'\n(.*?)^TOML$", text, flags=re.M | re.S)
        for number, body in enumerate(found):
            table = tomllib.loads(body)
            # Not the pyproject.toml of a package with parts of its own, and not a table for `fedkin reproduce`.
            if "project" not in table and "federation" not in table:
                yield f"{name}, block {number + 1} of TOML", table


def test_experiments(tmp_path: Path) -> None:
    places = []
    for number, (place, table) in enumerate(experiments()):
        places.append(place)
        assert set(table) <= KNOWN | {"own"}, place
        names = [str(section.get("name")) for section in table.values() if isinstance(section, dict)]
        if "own" in table or any(".py:" in name for name in names):
            continue  # its file is the reader's: tests/test_tutorials.py and tests/running/test_own.py run such ones
        whole = {**tomllib.loads(WHOLE), **table}
        file = tmp_path / f"{number}.toml"
        file.write_text(tomli_w.dumps(whole))
        assert load(file) is not None, place
    assert len(places) > 8


def test_the_table_of_one_s_own_can_be_read() -> None:
    found = FENCE.findall((DOCS / "comparing.md").read_text("utf-8"))
    blocks = [tomllib.loads(body) for language, body in found if language.startswith("toml")]
    (table,) = [PaperTable(**block) for block in blocks if "federation" in block]
    assert [row.name for row in table.rows()] == ["local", "fedavg", "kin", "ditto-weak"]


def test_every_page_is_on_the_site(tmp_path: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    placed = re.findall(r"([\w./-]+\.md)", text)
    assert len(placed) == len(set(placed))
    assert [page for page in placed if not (DOCS / page).exists()] == []
    for name in ("index", "new"):
        (tmp_path / f"{name}.md").write_text("# A page\n")
    config = SimpleNamespace(docs_dir=str(tmp_path), nav=["index.md", {"Guides": [{"One": "one.md"}]}])
    pages = site()
    nav = pages.on_config(config).nav
    assert nav[2:] == [{"More": ["new.md"]}, {"Reference": list(pages.reference())}]


def test_every_method_has_its_page_and_its_place() -> None:
    text = (DOCS / "methods" / "index.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w-]+)`", text)
    assert set(METHODS) <= set(named)
    pages = {page.name for page in (DOCS / "methods").glob("*.md")} - {"index.md"}
    assert {target.partition("#")[0] for target in re.findall(r"\]\(([\w.#-]+)\)", text)} >= pages


def test_the_reference_has_every_public_name() -> None:
    pages = site()
    reference = pages.reference()
    for module in pages.PUBLIC:
        written = reference[f"reference/{module}.md"]
        for name in importlib.import_module(module).__all__:
            assert f"::: {module}.{name}\n" in written or f"`{name}`: " in written, f"{module}.{name}"
    for name in fedkin.__all__:
        assert f"::: fedkin.{name}\n" in reference["reference/fedkin.md"] or name == "__version__"
    for name, method in METHODS.items():
        assert f"::: {method.__module__}.{method.__name__}\n" in reference["reference/fedkin.methods.md"], name
    package = ROOT / "src" / "fedkin"
    rooms = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    shown = {module.split(".")[1] for module in pages.PUBLIC if "." in module}
    assert rooms - {"__init__"} == shown | set(pages.INSIDE), "a new room is for users (PUBLIC) or not (INSIDE)"


def test_names_of_pages_are_links_on_the_site() -> None:
    text = "See `docs/data.md`.\n```sh\ncat `docs/data.md`\n```\n[`docs/data.md`](x)\n"
    assert site().linked(text, "methods/kin.md") == text.replace("`docs/data.md`.", "[data.md](../data.md).")
