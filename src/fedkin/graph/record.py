"""The graph of a round as a value (ids, weights, groups, mixing matrix, tests), with saving, loading and export."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import Matrix, as_matrix
from fedkin.untrusted import arrays_in, cell, error_text, json_of

if TYPE_CHECKING:
    import networkx as nx


Group = TypeVar("Group", bound=Hashable)

# Verdicts of groups.
MEANINGS = {
    "same": "no significant difference: one model serves all",
    "shares": "differ, but not clearly in what a class looks like (mostly in how often it occurs): one model, with "
    "each client's own class shares",
    "offsets": "each shifted by itself, with the same relation of inputs to targets: one model, with what "
    "removes a client's shift (own normalisation)",
    "alone": "differs from all others: trained alone",
}
# Who shares a model, in the words of kin, advice and reports.
SHARING = {
    "all": "one model for all", "branches": "one model for each branch", "groups": "one model for each group",
    "alone": "training alone",
}  # fmt: skip


def own_part(weights: float | None, bias: float | None, body: bool = False) -> str:
    """Say what each client has of its own besides a shared model, by the strengths of the pull (None: shared).

    body: whether each client trains the body further before use.

    >>> own_part(1.0, 1.0), own_part(None, None)
    ('a head for each client (pull 1)', '')
    >>> own_part(None, 3.0, body=True), own_part(None, None, body=True)
    ('own bodies and biases (pull 3)', 'own bodies')
    """
    one, many, pull = ("a head", "heads", weights) if weights is not None else ("a bias", "biases", bias)
    if pull is None:
        return "own bodies" if body else ""
    return f"{f'own bodies and {many}' if body else f'{one} for each client'} (pull {pull:g})"


TESTS = {
    "x": "inputs", "xy": "how inputs go with targets", "y": "class shares", "offset": "shift of all classes",
    "concept": "shift of some classes",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """Clients that were tested together. parent: number of the node that they were cut from, None at the root.

    p: {test: corrected p-value}; empty for one client. rejected: the tests with p below alpha. cut: the blocks used
    to cut its clients in two. verdict: of a leaf; a group of several leaves may have another verdict.

    >>> Node(None, {"x": 0.2, "y": 3e-12}, ("y",)).summary(), Node(0, {"x": 0.2}).summary()
    ('differ in class shares (p 3e-12)', 'no significant difference (smallest p 0.2, inputs)')
    """

    parent: int | None
    p: Mapping[str, float]
    rejected: tuple[str, ...] = ()
    cut: str | None = None
    verdict: str | None = None

    def smallest_p(self) -> str:
        """The smallest p-value and its test, in words.

        >>> Node(None, {"x": 0.2, "y": 1.0}).smallest_p(), Node(None, {"x": 1.0, "y": 1.0}).smallest_p()
        ('smallest p 0.2, inputs', 'smallest p 1')
        """
        test = min(self.p, key=lambda name: self.p[name])
        return f"smallest {p_text(self.p[test])}" + (f", {_name(test)}" if self.p[test] < 1 else "")

    def summary(self) -> str:
        """What the tests say, in words."""
        if not self.p:
            return "not tested"
        if not self.rejected:
            return f"no significant difference ({self.smallest_p()})"
        return "differ in " + ", ".join(f"{_name(test)} ({p_text(self.p[test])})" for test in self.rejected)


@dataclass(frozen=True, eq=False)
class Evidence:
    """The tree of tests behind groups. nodes: the root first, each after its parent. leaf: {client id: last node}.

    Clients that joined a group later have no leaf. alpha: the level of each node's tests. warnings: what weakens the
    tests, such as samples that depend on their neighbours.

    >>> root = Node(None, {"x": 1e-9}, ("x",), "x")
    >>> found = Evidence((root, Node(0, {"x": 0.4}, verdict="same"), Node(0, {}, verdict="alone")),
    ...                  {"ann": 1, "bob": 1, "cat": 2}, alpha=0.001)
    >>> found.children[0], found.sizes
    ((1, 2), (3, 2, 1))
    """

    nodes: tuple[Node, ...]
    leaf: Mapping[str, int]
    alpha: float
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for number, node in enumerate(self.nodes):
            if not _is_node(number, node):
                raise GraphError(f"evidence: node {number} of the tree of tests is damaged ({node})")
        inner = {node.parent for node in self.nodes}
        for id, number in self.leaf.items():
            if not _is_whole(number) or not 0 <= number < len(self.nodes) or number in inner:
                raise GraphError(
                    f"evidence: client {id!r} ends at node {number!r}, which is no leaf of the tree of tests"
                )
        if not _is_share(self.alpha):
            raise GraphError(f"evidence: alpha is {self.alpha!r}; expected a number from 0 to 1")

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each node, in the order of their numbers."""
        children: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            if node.parent is not None:
                children[node.parent].append(number)
        return tuple(map(tuple, children))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of clients of each node."""
        sizes = [0] * len(self.nodes)
        for number in self.leaf.values():
            sizes[number] += 1
        for number in range(len(self.nodes) - 1, 0, -1):
            sizes[self.nodes[number].parent or 0] += sizes[number]
        return tuple(sizes)

    def path(self, number: int) -> list[int]:
        """A node and all nodes above it."""
        path = [number]
        while (parent := self.nodes[path[-1]].parent) is not None:
            path.append(parent)
        return path

    @cached_property
    def spreads(self) -> frozenset[int]:
        """Nodes that were cut although their clients form no clumps, but differ by degrees.

        No cut is better than another there, and such a node has more than half as many leaves as clients.
        """
        leaves = [int(not below) for below in self.children]
        for number in range(len(self.nodes) - 1, 0, -1):
            leaves[self.nodes[number].parent or 0] += leaves[number]
        # Only the parts of a cut into clumps are tested for shifts again.
        return frozenset(
            number for number, below in enumerate(self.children)
            if below and 2 * leaves[number] > self.sizes[number]
            and not any({"offset", "concept"} & set(self.nodes[child].p) for child in below)
        )  # fmt: skip

    def branches(self, groups: Mapping[str, Group]) -> dict[Group, int | None]:
        """Return for each tested group the topmost spread above most of its clients; None if there is none.

        groups: {client id: group}.
        """
        votes: dict[Group, Counter[int | None]] = {}
        for id, last in self.leaf.items():
            spreads = [at for at in self.path(last) if at in self.spreads]
            votes.setdefault(groups[id], Counter())[spreads[-1] if spreads else None] += 1
        # On ties None comes first, then the numbers as text: existing records made this choice.
        return {
            group: max(sorted(count, key=lambda node: "" if node is None else str(node)), key=lambda node: count[node])
            for group, count in votes.items()
        }

    @classmethod
    def of(
        cls, tree: Iterable[Mapping[str, Any]], leaf: Mapping[str, int], alpha: float, warnings: Iterable[str] = ()
    ) -> Evidence:
        """From plain nodes, such as those of `Verdicts.tree`; raises GraphError for nodes that make no tree."""
        try:
            nodes = tuple(
                Node(
                    node["parent"], {str(test): float(f"{value:.3g}") for test, value in dict(node["p"]).items()},
                    tuple(map(str, node["rejected"])), node["cut"], node["verdict"],
                ) for node in tree
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GraphError(f"evidence: a node of the tree of tests is damaged ({error})") from None
        return cls(nodes, dict(leaf), alpha, tuple(map(str, warnings)))

    def to_bytes(self, ids: Sequence[str]) -> bytes:
        """Return JSON, with the leaves in the order of `ids` (-1: none)."""
        leaf = [self.leaf.get(id, -1) for id in ids]
        fields: dict[str, Any] = {"alpha": self.alpha, "nodes": [asdict(node) for node in self.nodes], "leaf": leaf}
        if self.warnings:
            fields["warnings"] = self.warnings
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, ids: Sequence[str]) -> Evidence:
        """Read what `to_bytes` wrote; raises GraphError for other bytes."""
        try:
            fields = json_of(data.decode())
            leaf = {id: node for id, node in zip(ids, fields["leaf"], strict=True) if node != -1}
            return cls.of(fields["nodes"], leaf, fields["alpha"], fields.get("warnings", ()))
        except GraphError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise GraphError(f"evidence: not readable as a tree of tests ({error})") from None


def p_text(p: float) -> str:
    """A p-value in short.

    >>> p_text(0.0), p_text(4.2e-9), p_text(0.104)
    ('p < 1e-300', 'p 4e-9', 'p 0.1')
    """
    if p < 1e-300:
        return "p < 1e-300"
    return f"p {p:.2g}" if p >= 0.001 else f"p {p:.0e}".replace("e-0", "e-")


def _name(test: str) -> str:
    return TESTS.get(test, test)


def _is_node(number: int, node: Node) -> bool:
    """Whether a node's parent comes before it (the first has none), and its values are valid."""
    if (node.parent is None) != (number == 0):
        return False
    parent = node.parent is None or (_is_whole(node.parent) and 0 <= node.parent < number)
    texts = all(text is None or isinstance(text, str) for text in (node.cut, node.verdict))
    return parent and texts and all(map(_is_share, node.p.values())) and set(node.rejected) <= set(node.p)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


# -- graphs ------------------------------------------------------------------------------------------------------------


_FORMAT = 1
# Characters that XML 1.0 cannot hold, even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """Weights between clients, labelled by id.

    ids: unique and non-empty. weights: [n, n], ndarray or csr_array, finite, symmetric unless `directed`; row i
    belongs to ids[i]; stored as float64. groups: {id: group} of every client. values: named arrays whose first axis
    is the clients in the order of ids. mixing: a second matrix [n, n], for instance the mixing matrix that was
    applied. evidence: the tests behind the groups, if there are any.

    >>> graph = Graph(("ann", "bob"), np.array([[0.0, 0.5], [0.5, 0.0]]), groups={"ann": 0, "bob": 0})
    >>> graph.labels
    array([0, 0])
    """

    ids: tuple[str, ...]
    weights: Matrix
    groups: Mapping[str, int] | None = None
    directed: bool = False
    round: int | None = None
    values: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    mixing: Matrix | None = None
    evidence: Evidence | None = None

    def __repr__(self) -> str:
        groups = "" if self.groups is None else f", {len(set(self.groups.values()))} groups"
        round = "" if self.round is None else f", round {self.round}"
        return f"Graph({len(self.ids)} clients{groups}{round})"

    def _repr_html_(self) -> str:
        members: dict[int, list[str]] = {}
        for id, group in (self.groups or {}).items():
            members.setdefault(group, []).append(id)
        rows = "".join(
            f"<tr><th>{group}</th><td>{len(ids):,}</td><td>{escape(', '.join(ids[:20]))}</td></tr>"
            for group, ids in sorted(members.items())[:20]
        )
        head = "<tr><th>group</th><th>clients</th><th>the first 20</th></tr>" if rows else ""
        return f"<p>{escape(repr(self))}</p><table>{head}{rows}</table>"

    def __post_init__(self) -> None:
        keep = object.__setattr__
        keep(self, "ids", _ids(self.ids))
        keep(self, "weights", self._matrix(self.weights, "weights", symmetric=not self.directed))
        if self.mixing is not None:
            keep(self, "mixing", self._matrix(self.mixing, "mixing", symmetric=False))
        if self.groups is not None:
            keep(self, "groups", _groups(self.groups, self.ids))
        keep(self, "values", {name: self._per_client(name, value) for name, value in self.values.items()})
        if self.evidence is not None and (strangers := sorted(set(self.evidence.leaf) - set(self.ids))):
            raise GraphError(f"evidence: {strangers[0]!r} is not among the ids")

    def tested(self, verdict: Mapping[str, str], evidence: Evidence) -> Graph:
        """This graph with the verdict of each client's group as `values["verdict"]`, and the tests behind it.

        >>> graph = Graph(("ann", "bob"), np.zeros((2, 2)), groups={"ann": 0, "bob": 0})
        >>> node = Node(None, {"x": 0.3}, verdict="same")
        >>> graph.tested({"ann": "same", "bob": "same"}, Evidence((node,), {"ann": 0, "bob": 0}, 0.001)).values
        {'verdict': array(['same', 'same'], dtype='<U4')}
        """
        if missing := [id for id in self.ids if id not in verdict]:
            raise GraphError(f"verdict: {missing[0]!r} has none; expected one for each of the {len(self.ids)} ids")
        verdicts = np.array([verdict[id] for id in self.ids])
        return replace(self, values={**self.values, "verdict": verdicts}, evidence=evidence)

    def _matrix(self, a: Any, name: str, *, symmetric: bool) -> Matrix:
        matrix = as_matrix(a, name, symmetric=symmetric)
        if matrix.shape[0] != len(self.ids):
            raise GraphError(f"{name}: expected {len(self.ids)} rows, one per id, got {matrix.shape[0]}")
        return matrix

    def _per_client(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        array = np.asarray(value)
        if array.ndim == 0 or len(array) != len(self.ids) or array.dtype.kind not in "biufU":
            got = f"got {array.dtype} of shape {array.shape}"
            raise GraphError(f"values[{name!r}]: expected numbers or text, first axis {len(self.ids)} clients; {got}")
        if not name or "/" in name:
            raise GraphError(f"values: expected names without '/', got {name!r}")
        return array

    @property
    def labels(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The groups [n] in the order of ids; raises GraphError if there are none."""
        if self.groups is None:
            raise GraphError("the graph has no groups")
        return np.array([self.groups[id] for id in self.ids], dtype=np.int64)

    def digest(self) -> str:
        """A hash of everything in the graph except its round: equal graphs have equal digests."""
        digest = hashlib.blake2b(digest_size=16)
        arrays = self._arrays() | {"directed": np.array(self.directed)}
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def _arrays(self) -> dict[str, Any]:
        """All that a file holds, as arrays by name, without the round."""
        arrays = {"ids": np.array(self.ids)} | _packed("weights", self.weights)
        if self.mixing is not None:
            arrays |= _packed("mixing", self.mixing)
        if self.groups is not None:
            arrays["groups"] = self.labels
        arrays |= {f"values/{name}": self.values[name] for name in sorted(self.values)}
        if self.evidence is not None:
            arrays["evidence"] = np.frombuffer(self.evidence.to_bytes(self.ids), dtype=np.uint8)
        return arrays

    def save(self, path: str | Path | BinaryIO) -> None:
        """Write a .npz without pickles; the same graph always gives the same bytes."""
        meta = {"format": _FORMAT, "directed": self.directed, "round": self.round}
        arrays = {"meta": np.array(json.dumps(meta, sort_keys=True))} | self._arrays()
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in arrays.items():
                raw = io.BytesIO()
                np.lib.format.write_array(raw, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
                # The date is fixed: np.savez would write the time of day into the file.
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, raw.getvalue())

    def edges(self) -> list[tuple[str, str, float]]:
        """List (id, id, weight) of every non-zero weight, self-loops included; undirected edges appear once."""
        coo = sp.coo_array(self.weights)
        keep = (coo.data != 0) & (self.directed | (coo.row <= coo.col))
        order = np.lexsort((coo.col[keep], coo.row[keep]))
        row, column, weight = (part[keep][order].tolist() for part in (coo.row, coo.col, coo.data))
        return [(self.ids[i], self.ids[j], w) for i, j, w in zip(row, column, weight, strict=True)]

    def to_graphml(self, path: str | Path) -> None:
        """Write GraphML for Gephi, Cytoscape, yEd or networkx: weights of edges, groups and scalar values of nodes."""
        import networkx as nx

        text = "\n".join(nx.generate_graphml(self.to_networkx()))
        if _NOT_XML.search(text):
            raise GraphError(f"{path}: an id or a value has a control character, which GraphML cannot hold")
        Path(path).write_text(f"<?xml version='1.0' encoding='utf-8'?>\n{text}\n", encoding="utf-8")

    def to_json(self, path: str | Path) -> None:
        """Write node-link JSON, which `networkx.node_link_graph(..., edges="edges")` and d3 read."""
        import networkx as nx

        try:
            data = nx.node_link_data(self.to_networkx(), edges="edges")
            text = json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False)
        except ValueError:
            raise GraphError(f"{path}: a value is not finite, which JSON cannot hold") from None
        Path(path).write_text(text + "\n", encoding="utf-8")

    def to_csv(self, path: str | Path) -> None:
        """Write the edges as CSV: source, target, weight; an id that looks like a formula gets an apostrophe first."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["source", "target", "weight"])
            writer.writerows((cell(source), cell(target), weight) for source, target, weight in self.edges())

    def to_networkx(self) -> nx.Graph[str]:
        """Return a networkx Graph (DiGraph if directed): weights on edges, groups and scalar values on nodes."""
        import networkx as nx

        graph: nx.Graph[str] = nx.DiGraph() if self.directed else nx.Graph()
        if self.round is not None:
            graph.graph["round"] = self.round
        graph.add_nodes_from(self.ids)
        columns = {} if self.groups is None else {"group": self.labels}
        columns |= {name: value for name, value in self.values.items() if value.ndim == 1}
        for name, column in columns.items():
            nx.set_node_attributes(graph, dict(zip(self.ids, column.tolist(), strict=True)), name)
        graph.add_weighted_edges_from(self.edges())
        return graph


def load_graph(path: str | Path) -> Graph:
    """Read a graph that `Graph.save` wrote; raises GraphError for a missing, truncated or foreign file."""
    path = Path(path)
    try:
        stored, _ = arrays_in(path)
        meta = json_of(str(stored["meta"]))
        if meta["format"] != _FORMAT:
            raise GraphError(f"graph format {meta['format']}; this version reads {_FORMAT}")
        ids = tuple(stored["ids"].tolist())
        groups = dict(zip(ids, stored["groups"].tolist(), strict=True)) if "groups" in stored else None
        values = {name.removeprefix("values/"): a for name, a in stored.items() if name.startswith("values/")}
        matrices = [_unpacked(name, stored, len(ids)) for name in ("weights", "mixing")]
        tests = Evidence.from_bytes(stored["evidence"].tobytes(), ids) if "evidence" in stored else None
        return Graph(ids, matrices[0], groups, meta["directed"], meta["round"], values, matrices[1], tests)  # type: ignore[arg-type]
    except FileNotFoundError:
        raise GraphError(f"{path}: no such file") from None
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
    # Several libraries read the archive, and each raises errors of its own for a damaged one.
    except Exception as error:
        raise GraphError(f"{path}: not a graph file saved by fedkin, or cut short ({error_text(error)})") from None


def _packed(name: str, a: Matrix) -> dict[str, Any]:
    if isinstance(a, np.ndarray):
        return {name: a}
    a = a.copy()
    a.sort_indices()
    return {
        f"{name}/data": a.data, f"{name}/indices": a.indices.astype(np.int64),
        f"{name}/indptr": a.indptr.astype(np.int64),
    }  # fmt: skip


def _unpacked(name: str, stored: Mapping[str, Any], n: int) -> Matrix | None:
    if name in stored:
        dense: Matrix = stored[name]
        return dense
    if f"{name}/data" not in stored:
        return None
    data, indices, indptr = (stored[f"{name}/{part}"] for part in ("data", "indices", "indptr"))
    a: sp.csr_array = sp.csr_array((data, indices, indptr), shape=(n, n))
    a.check_format(full_check=True)
    return a


def _ids(ids: Any) -> tuple[str, ...]:
    if isinstance(ids, str):
        raise GraphError("ids: expected a tuple of texts, got one text")
    texts = tuple(ids)
    seen: set[str] = set()
    for row, id in enumerate(texts):
        if not isinstance(id, str) or not id or "\0" in id:
            raise GraphError(f"ids: row {row} is {id!r}; expected a non-empty text")
        if id in seen:
            raise GraphError(f"ids: {id!r} occurs twice, again in row {row}; expected unique ids")
        seen.add(id)
    return tuple(str(id) for id in texts)


def _groups(groups: Mapping[str, int], ids: tuple[str, ...]) -> dict[str, int]:
    missing = [id for id in ids if id not in groups]
    if missing:
        raise GraphError(f"groups: {missing[0]!r} has none; expected a group for each of the {len(ids)} ids")
    strangers = sorted(set(groups) - set(ids))
    if strangers:
        raise GraphError(f"groups: {strangers[0]!r} is not among the ids")
    for id in ids:
        if not isinstance(groups[id], int | np.integer) or isinstance(groups[id], bool):
            raise GraphError(f"groups: {id!r} has {groups[id]!r}; expected a whole number")
    return {id: int(groups[id]) for id in ids}
