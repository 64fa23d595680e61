"""What is installed: every package in one version, and every file of it by its hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import fedkin

ROOT = Path(__file__).parents[1]
LOCKS = [ROOT / "constraints.txt", *sorted((ROOT / "constraints").glob("*.txt"))]


def locked(path: Path) -> dict[str, list[str]]:
    """The hashes of every package in a file."""
    found: dict[str, list[str]] = {}
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    for entry in text.replace("\\\n", " ").strip().splitlines():
        pinned, *hashes = entry.split()
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)==[0-9A-Za-z.+!]+", pinned)
        assert match, f"{path}: {entry[:80]}"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), f"{path}: {pinned}"
        found[_plain(match[1])] = hashes
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirements: list[str]) -> set[str]:
    """The packages of requirements, without versions."""
    return {_plain(re.split(r"[<>=~!\[; ]", one)[0]) for one in requirements}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_package_has_a_version_and_hashes(path: Path) -> None:
    found = locked(path)
    assert found
    assert all(found.values())


def test_everything_that_the_project_names_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names, optional = ("ray", "network", "hub", "transformers", "onnx"), project["optional-dependencies"]
    wanted = named([*project["dependencies"], *(one for extra in ("dev", *names) for one in optional[extra])])
    extras = {name for extra in names for name in locked(ROOT / f"constraints/{extra}.txt")}
    assert wanted <= {*locked(ROOT / "constraints.txt"), *extras, "torch"}
    flower = named(optional["flower"])
    assert flower <= {*locked(ROOT / "constraints/flower.txt")}  # an environment of its own, whole but for torch
    site = named((ROOT / ".ci/docs.in").read_text().split())
    assert site <= {*locked(ROOT / "constraints/docs.txt")}  # an environment of its own, without fedkin
    files = [(ROOT / f"constraints/{name}.txt").read_text() for name in ("cpu", "torch")]
    (version,) = {pinned for text in files for pinned in re.findall(r"^torch==[0-9.]+", text, re.MULTILINE)}
    assert f"$(PIP) {version})" in (ROOT / "Makefile").read_text()


def test_whatever_installs_asks_for_hashes() -> None:
    for path in (ROOT / "Makefile", ROOT / ".ci/run", ROOT / ".ci/audit"):
        for line in path.read_text().splitlines():
            if "install" in line and "-r " in line:
                assert re.search(r"--require-hashes|\$\((FLOWER_)?LOCKED\)", line), f"{path}: {line}"


def test_what_workflows_run_is_pinned() -> None:
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for line in path.read_text().splitlines():
            if "uses:" in line:
                assert re.search(r"@[0-9a-f]{40} # v\d", line), f"{path}: {line}"
            if "pipx install" in line:
                assert "==" in line, f"{path}: {line}"


def test_nothing_for_gpus_is_installed_beside_torch_for_processors() -> None:
    for path in sorted((ROOT / "constraints").glob("*.txt")):
        assert not re.findall(r"^(?:nvidia|cuda|triton)[^=]*==", path.read_text(), re.MULTILINE), path.name


def test_all_has_every_extra_but_those_with_an_environment_of_their_own() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    within = {name: re.findall(r"fedkin\[([^\]]+)\]", "".join(named)) for name, named in extras.items()}

    def whole(name: str) -> set[str]:
        inner = {one for listed in within[name] for one in listed.split(",")}
        return {name} | {deeper for one in inner for deeper in whole(one)}

    assert set(extras) - whole("all") == {"dev", "flower", "flwr-datasets"}


def test_the_citation_is_of_this_version() -> None:
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == fedkin.__version__
