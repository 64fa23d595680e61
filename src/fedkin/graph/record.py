"""The graph of a round as a value (ids, weights, groups, mixing matrix), with saving, loading and export."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import scipy.sparse as sp

from fedkin.errors import GraphError
from fedkin.graph._check import Matrix, as_matrix
from fedkin.graph.evidence import Evidence
from fedkin.untrusted import arrays_in, json_of, said

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Graph", "from_networkx", "load_graph"]

_FORMAT = 1


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """Weights between clients, labelled by id.

    ids: unique and non-empty. weights: [n, n], ndarray or csr_array, finite, symmetric unless `directed`; row i
    belongs to ids[i]; stored as float64. groups: {id: group} of every client. values: named arrays whose first axis
    is the clients in the order of ids. mixing: a second matrix [n, n], for instance the mixing matrix that was
    applied. evidence: the tests that the groups rest on, if they rest on tests.

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
        if self.evidence is not None and (unknown := sorted(set(self.evidence.leaf) - set(self.ids))):
            raise GraphError(f"evidence: {unknown[0]!r} is not among the ids")

    def tested(self, verdict: Mapping[str, str], evidence: Evidence) -> Graph:
        """This graph with the verdict of each client's group as `values["verdict"]`, and the tests behind it.

        >>> from fedkin.graph.evidence import Node
        >>> graph = Graph(("ann", "bob"), np.zeros((2, 2)), groups={"ann": 0, "bob": 0})
        >>> node = Node(None, {"x": 0.3}, verdict="same")
        >>> graph.tested({"ann": "same", "bob": "same"}, Evidence((node,), {"ann": 0, "bob": 0}, 0.001)).values
        {'verdict': array(['same', 'same'], dtype='<U4')}
        """
        if missing := [id for id in self.ids if id not in verdict]:
            raise GraphError(f"verdict: {missing[0]!r} has none; expected one for each of the {len(self.ids)} ids")
        each = np.array([verdict[id] for id in self.ids])
        return replace(self, values={**self.values, "verdict": each}, evidence=evidence)

    def _matrix(self, a: Any, name: str, *, symmetric: bool) -> Matrix:
        matrix = as_matrix(a, name, symmetric=symmetric)
        if matrix.shape[0] != len(self.ids):
            raise GraphError(f"{name}: expected {len(self.ids)} rows, one per id, got {matrix.shape[0]}")
        return matrix

    def _per_client(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        array = np.asarray(value)
        if array.ndim == 0 or len(array) != len(self.ids) or array.dtype.kind not in "biufU":
            raise GraphError(
                f"values[{name!r}]: expected numbers or text, first axis {len(self.ids)} clients; "
                f"got {array.dtype} of shape {array.shape}"
            )
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
        found = hashlib.blake2b(digest_size=16)
        arrays: dict[str, Any] = {"ids": np.array(self.ids), "directed": np.array(self.directed)}
        for name, matrix in (("weights", self.weights), ("mixing", self.mixing)):
            arrays |= {} if matrix is None else _packed(name, matrix)
        if self.groups is not None:
            arrays["groups"] = self.labels
        arrays |= {f"values/{name}": value for name, value in self.values.items()} | self._tests()
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            found.update(f"{name} {array.dtype.str} {array.shape}".encode())
            found.update(array.tobytes())
        return found.hexdigest()

    def save(self, path: str | Path | BinaryIO) -> None:
        """Write a .npz without pickles; the same graph always gives the same bytes."""
        meta = {"format": _FORMAT, "directed": self.directed, "round": self.round}
        arrays: dict[str, Any] = {
            "meta": np.array(json.dumps(meta, sort_keys=True)),
            "ids": np.array(self.ids),
        }
        arrays |= _packed("weights", self.weights)
        if self.mixing is not None:
            arrays |= _packed("mixing", self.mixing)
        if self.groups is not None:
            arrays["groups"] = self.labels
        arrays |= {f"values/{name}": self.values[name] for name in sorted(self.values)} | self._tests()
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in arrays.items():
                raw = io.BytesIO()
                np.lib.format.write_array(raw, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
                # The date is fixed: np.savez would write the time of day into the file.
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, raw.getvalue())

    def _tests(self) -> dict[str, Any]:
        if self.evidence is None:
            return {}
        return {"evidence": np.frombuffer(self.evidence.to_bytes(self.ids), dtype=np.uint8)}

    def edges(self) -> list[tuple[str, str, float]]:
        """List (id, id, weight) of every non-zero weight, self-loops included; undirected edges appear once."""
        coo = sp.coo_array(self.weights)
        keep = (coo.data != 0) & (self.directed | (coo.row <= coo.col))
        order = np.lexsort((coo.col[keep], coo.row[keep]))
        row, column, weight = (part[keep][order].tolist() for part in (coo.row, coo.col, coo.data))
        return [(self.ids[i], self.ids[j], w) for i, j, w in zip(row, column, weight, strict=True)]

    def to_graphml(self, path: str | Path) -> None:
        """Write GraphML for Gephi, Cytoscape, yEd or networkx: weights of edges, groups and scalar values of nodes."""
        from fedkin.graph._export import write_graphml

        write_graphml(self, Path(path))

    def to_json(self, path: str | Path) -> None:
        """Write node-link JSON, which `networkx.node_link_graph(..., edges="edges")` and d3 read."""
        from fedkin.graph._export import write_json

        write_json(self, Path(path))

    def to_csv(self, path: str | Path) -> None:
        """Write the edges as CSV: source, target, weight; an id that looks like a formula gets an apostrophe before."""
        from fedkin.graph._export import write_csv

        write_csv(self, Path(path))

    def to_networkx(self) -> nx.Graph[str]:
        """Return a networkx Graph (DiGraph if directed): weights on edges, groups and scalar values on nodes."""
        import networkx as nx

        from fedkin.graph._export import node_attributes

        graph: nx.Graph[str] = nx.DiGraph() if self.directed else nx.Graph()
        graph.graph["round"] = self.round
        graph.add_nodes_from(node_attributes(self))
        graph.add_weighted_edges_from(self.edges())
        return graph


def from_networkx(graph: nx.Graph[Any], *, sparse: bool = False) -> Graph:
    """Make a Graph from a networkx graph: ids are str(node), and a missing weight is 1.

    The node attribute `group` gives the groups if it is a whole number at every node. Other node attributes are not
    read.
    """
    import networkx as nx

    if graph.is_multigraph():
        raise GraphError("expected a Graph or DiGraph, got a multigraph: it has several weights per pair")
    nodes = list(graph.nodes)
    if not nodes:
        raise GraphError("the networkx graph has no nodes; expected at least one client")
    weights = sp.csr_array(nx.to_scipy_sparse_array(graph, nodes, format="csr"))
    ids = tuple(str(node) for node in nodes)
    found: list[Any] = [graph.nodes[node].get("group") for node in nodes]
    whole = all(isinstance(group, int | np.integer) and not isinstance(group, bool) for group in found)
    groups = {id: int(group) for id, group in zip(ids, found, strict=True)} if whole else None
    number = graph.graph.get("round")
    return Graph(
        ids,
        weights if sparse else weights.toarray(),
        groups=groups,
        directed=graph.is_directed(),
        round=number,
    )


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
        raise GraphError(f"{path}: not a graph file saved by fedkin, or cut short ({said(error)})") from None


def _packed(name: str, a: Matrix) -> dict[str, Any]:
    if isinstance(a, np.ndarray):
        return {name: a}
    kept = a.copy()
    kept.sort_indices()
    indices = {"indices": kept.indices.astype(np.int64), "indptr": kept.indptr.astype(np.int64)}
    return {f"{name}/{part}": array for part, array in {"data": kept.data, **indices}.items()}


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
    found = tuple(ids)
    seen: set[str] = set()
    for row, id in enumerate(found):
        if not isinstance(id, str) or not id or "\0" in id:
            raise GraphError(f"ids: row {row} is {id!r}; expected a non-empty text")
        if id in seen:
            raise GraphError(f"ids: {id!r} occurs twice, again in row {row}; expected unique ids")
        seen.add(id)
    return tuple(str(id) for id in found)


def _groups(groups: Mapping[str, int], ids: tuple[str, ...]) -> dict[str, int]:
    missing = [id for id in ids if id not in groups]
    if missing:
        raise GraphError(f"groups: {missing[0]!r} has none; expected a group for each of the {len(ids)} ids")
    unknown = sorted(set(groups) - set(ids))
    if unknown:
        raise GraphError(f"groups: {unknown[0]!r} is not among the ids")
    for id in ids:
        if not isinstance(groups[id], int | np.integer) or isinstance(groups[id], bool):
            raise GraphError(f"groups: {id!r} has {groups[id]!r}; expected a whole number")
    return {id: int(groups[id]) for id in ids}
