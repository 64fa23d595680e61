"""The rooms that docs/design.md draws: folders and import contracts agree with it, and no imports run in circles."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import networkx as nx

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedkin"


def rooms_there() -> set[str]:
    """Names of the folders and modules right below the package, as the drawing writes them."""
    folders = {f"{path.parent.name}/" for path in PACKAGE.glob("*/*.py")}
    return folders | {path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"}


def drawn(text: str) -> list[list[str]]:
    """The lines of the drawing in the section Rooms, each as the rooms on it."""
    section = re.search(r"^## Rooms\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert section is not None, "docs/design.md has no section Rooms"
    lines = re.findall(r"^    (\S+(?: \| \S+)*)  +\S", section[1], re.MULTILINE)
    return [line.split(" | ") for line in lines]


def contracted(settings: dict[str, Any]) -> list[list[str]]:
    """The layers of the contract on rooms, written as in the drawing."""
    (rooms,) = [each for each in settings["tool"]["importlinter"]["contracts"] if each["id"] == "rooms"]
    written = {room.removesuffix("/").removesuffix(".py"): room for room in rooms_there()}
    return [[written.get(name, name) for name in layer.split(" | ")] for layer in rooms["layers"]]


def test_the_drawing_is_the_contract_that_is_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert drawn((ROOT / "docs" / "design.md").read_text(encoding="utf-8")) == contracted(settings)


def test_the_drawing_has_every_room_once() -> None:
    rooms = [room for line in drawn((ROOT / "docs" / "design.md").read_text(encoding="utf-8")) for room in line]
    assert sorted(rooms) == sorted(rooms_there())


def imports() -> nx.DiGraph[str]:
    """Which module imports which, imports inside functions and those for types only included."""
    modules = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(modules)
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                named = [f"{node.module}.{entry.name}" for entry in node.names]
                graph.add_edges_from((module, name if name in modules else node.module) for name in named)
            elif isinstance(node, ast.Import):
                graph.add_edges_from((module, entry.name) for entry in node.names)
    found: nx.DiGraph[str] = graph.subgraph(modules)
    return found


def test_no_modules_import_each_other() -> None:
    graph = imports()
    # Not an empty graph by mistake: the settings of a run are looked up in the table of trackers.
    assert graph.has_edge("fedkin.running.experiment", "fedkin.running.trackers")
    assert [sorted(each) for each in nx.strongly_connected_components(graph) if len(each) > 1] == []
    assert list(nx.selfloop_edges(graph)) == []
