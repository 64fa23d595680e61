"""Writers for `Graph`: GraphML, node-link JSON, CSV."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree as ET

import numpy as np

from fedkin.errors import GraphError
from fedkin.untrusted import cell

__all__ = ["node_attributes", "write_csv", "write_graphml", "write_json"]

_KINDS = {bool: "boolean", int: "long", float: "double", str: "string"}
# Characters that XML 1.0 cannot hold, even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Graph(Protocol):
    """The part of a `Graph` that the writers use."""

    @property
    def ids(self) -> tuple[str, ...]: ...
    @property
    def directed(self) -> bool: ...
    @property
    def round(self) -> int | None: ...
    @property
    def groups(self) -> Mapping[str, int] | None: ...
    @property
    def values(self) -> Mapping[str, np.ndarray[Any, Any]]: ...
    def edges(self) -> list[tuple[str, str, float]]: ...


def node_attributes(graph: Graph) -> list[tuple[str, dict[str, Any]]]:
    """Return (id, {group, scalar values}) of every client; values with several numbers per client are left out."""
    columns: dict[str, list[Any]] = {}
    if graph.groups is not None:
        columns["group"] = [graph.groups[id] for id in graph.ids]
    columns |= {name: value.tolist() for name, value in graph.values.items() if value.ndim == 1}
    return [(id, {name: column[row] for name, column in columns.items()}) for row, id in enumerate(graph.ids)]


def write_json(graph: Graph, path: Path) -> None:
    nodes = [{**values, "id": id} for id, values in node_attributes(graph)]
    edges = [{"source": a, "target": b, "weight": w} for a, b, w in graph.edges()]
    whole = {
        "directed": graph.directed,
        "multigraph": False,
        "graph": {"round": graph.round},
        "nodes": nodes,
        "edges": edges,
    }
    try:
        text = json.dumps(whole, ensure_ascii=False, indent=1, allow_nan=False)
    except ValueError:
        raise GraphError(f"{path}: a value is not finite, which JSON cannot hold") from None
    path.write_text(text + "\n", encoding="utf-8")


def write_csv(graph: Graph, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["source", "target", "weight"])
        writer.writerows((cell(source), cell(target), weight) for source, target, weight in graph.edges())


def write_graphml(graph: Graph, path: Path) -> None:
    root = ET.Element("graphml", xmlns="http://graphml.graphdrawing.org/xmlns")
    nodes = node_attributes(graph)
    for name, value in nodes[0][1].items():
        kind = {"id": f"n_{name}", "for": "node", "attr.name": name, "attr.type": _KINDS[type(value)]}
        ET.SubElement(root, "key", _xml(kind))
    ET.SubElement(root, "key", {"id": "e_weight", "for": "edge", "attr.name": "weight", "attr.type": "double"})
    if graph.round is not None:
        ET.SubElement(root, "key", {"id": "g_round", "for": "graph", "attr.name": "round", "attr.type": "long"})
    body = ET.SubElement(root, "graph", edgedefault="directed" if graph.directed else "undirected")
    if graph.round is not None:
        ET.SubElement(body, "data", key="g_round").text = str(graph.round)
    for id, values in nodes:
        node = ET.SubElement(body, "node", _xml({"id": id}))
        for name, value in values.items():
            text = str(value).lower() if isinstance(value, bool) else _xml({"": str(value)})[""]
            ET.SubElement(node, "data", key=f"n_{name}").text = text
    for source, target, weight in graph.edges():
        edge = ET.SubElement(body, "edge", source=source, target=target)
        ET.SubElement(edge, "data", key="e_weight").text = repr(weight)
    ET.indent(root)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _xml(texts: dict[str, str]) -> dict[str, str]:
    for text in texts.values():
        if _NOT_XML.search(text):
            raise GraphError(f"{text!r} has a control character, which GraphML cannot hold")
    return texts
