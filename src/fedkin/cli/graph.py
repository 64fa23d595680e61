"""`fedkin graph`: groups of similar clients, from one vector per client, or from raw samples."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedkin.cli.options import JSON
from fedkin.cli.output import print_table, printed_as_json, say
from fedkin.errors import ConfigError, RunError, first_few
from fedkin.report.units import plural

if TYPE_CHECKING:
    import numpy as np

    from fedkin.graph import Graph

# With more clients, nearest neighbours are found in blocks, without the matrix of all pairs.
_LARGEST_FULL = 5000
# With more clients, betweenness takes too long, and the degree replaces it.
_LARGEST_BETWEENNESS = 3000
# All clients of a tested group are linked; the graph of more clients than this is not written.
_LARGEST_TESTED = 2000
Writers = Mapping[str, Callable[[Path], Any]]


def graph(
    signatures: Path = typer.Argument(
        ..., help="A table of clients: .npz (arrays ids and x), .csv or .parquet (an id column, numbers).",
        metavar="SIGNATURES",
    ),
    similarity: str | None = typer.Option(
        None, help="cosine, dot, l1, l2, rbf, FILE.py:NAME. Default: cosine."
    ),
    sparsify: str = typer.Option(
        "knn:10", help="none, epsilon:E, knn:K, mutual:K, gamma:auto, gamma:D, FILE.py:NAME."
    ),
    groups: str = typer.Option(
        "louvain",
        help="louvain, leiden, components, hierarchical, hierarchical:N, kmeans:N, single, alone, "
        "FILE.py:NAME; for raw rows, one per sample: same, same:ALPHA (groups by statistical tests).",
    ),
    resolution: float = typer.Option(1.0, help="Louvain and Leiden: above 1 more and smaller groups."),
    seed: int = typer.Option(0, min=0, max=2**32 - 1, help="Seed of the grouping and the picture."),
    client: str | None = typer.Option(
        None, help="Raw rows (--groups same): the column with the client. Default: client.", metavar="COLUMN"
    ),
    target: str | None = typer.Option(
        None, help="Raw rows (--groups same): the column with the target.", metavar="COLUMN"
    ),
    out: Path | None = typer.Option(None, help="Folder for graph.npz, .graphml, .json, .html and edges.csv.",
                                    metavar="DIR"),
    json: bool = JSON,
) -> None:  # fmt: skip
    """Find groups of similar clients, from one vector per client, or from raw samples.

    Examples:
    fedkin graph signatures.csv --sparsify knn:10 --out graph
    fedkin graph rows.csv --groups same --client hospital --target died
    """
    if groups.partition(":")[0] == "same":
        if similarity is not None:
            raise ConfigError(f"--similarity {similarity}: --groups {groups} compares samples by tests; leave it out")
        summary, lines = _tested_groups(signatures, groups, client, target, seed, out)
        if not printed_as_json(json, summary):
            say(*lines)
        return
    if client or target:
        raise ConfigError(f"--client, --target: of raw rows; --groups {groups} reads one vector per client")
    from fedkin.graph.tables import read_signatures

    similarity = _stage_name(similarity or "cosine", "similarity")
    sparsify, groups = _stage_name(sparsify, "sparsify"), _stage_name(groups, "groups")
    ids, vectors = read_signatures(signatures)
    result, similar = _build(ids, vectors, similarity, sparsify, groups, resolution, seed)
    summary = {"similarity": similarity, "sparsify": sparsify, "groups_by": groups, "seed": seed}
    summary |= _facts(result, similar)
    if out is not None:
        summary["files"] = _write(out, _writers(result, f"{signatures.name}: {len(result.ids)} clients", seed))
    if not printed_as_json(json, summary):
        _print(summary)


def _stage_name(spec: str, kind: str) -> str:
    """Return the name of a stage, after reading its file if it is FILE.py:NAME; installed packages may add stages."""
    from fedkin.graph.stages import BUILT_IN

    in_file = ".py:" in spec
    if spec.partition(":")[0] in BUILT_IN[kind] or not (in_file or entry_points(group="fedkin.graph")):
        return spec
    from fedkin.running.plugins import add_installed, resolve_names  # which import torch

    add_installed()
    return resolve_names([spec], "graph", f"--{kind}")[0][0] if in_file else spec


def _tested_groups(
    path: Path, spec: str, client: str | None, target: str | None, seed: int, out: Path | None
) -> tuple[dict[str, Any], list[str]]:
    """(summary as plain data, lines to print) of a table of raw rows or of saved signatures."""
    from fedkin import graph as graphs

    alpha = graphs.same_alpha(spec)
    signed, about = graphs.read_signed(path), "saved signatures"
    if signed is None:
        rows = graphs.read_rows(path, client or "client", target)
        signed = rows.sign(seed)
        about = f"{len(rows.x)} samples of {rows.x.shape[1]} numbers, target: {rows.target}"
    elif client or target:
        raise ConfigError(f"--client, --target: {path} holds signatures, made from rows before; leave them out")
    verdicts = graphs.find(signed, alpha=alpha, seed=seed)
    summary: dict[str, Any] = {"groups_by": spec, "seed": seed, "table": about, "clients": len(signed)}
    summary |= verdicts.to_json()
    lines = [f"{path.name}: {about}", *verdicts.lines()]
    if out is not None:
        text = json_text.dumps(summary, indent=2, ensure_ascii=False) + "\n"
        writers: dict[str, Callable[[Path], Any]] = {
            "groups.json": partial(Path.write_text, data=text, encoding="utf-8"),
            "signatures.npz": partial(graphs.write_signed, signatures=signed),
        }
        if len(verdicts.ids) <= _LARGEST_TESTED:
            tested = graphs.Graph(verdicts.ids, graphs.oracle(verdicts.labels), groups=verdicts.groups)
            writers |= _writers(tested.tested(verdicts.by_client, verdicts.evidence), path.name, seed)
        summary["files"] = _write(out, writers)
        lines += [f"wrote {file}" for file in summary["files"]]
    return summary, lines


def _build(
    ids: tuple[str, ...], vectors: Any, similarity: str, sparsify: str, groups: str, resolution: float, seed: int
) -> tuple[Graph, Any]:
    """Return the graph with its groups, and the matrix of similarities (None beyond 5,000 clients)."""
    from fedkin import graph as graphs

    of_vectors, to_affinity, to_groups = (
        graphs.similarity_stage(similarity), graphs.sparsify_stage(sparsify), graphs.groups_stage(groups)
    )  # fmt: skip
    if groups == "planted":
        raise ConfigError("--groups planted: a table of signatures has no planted groups")
    similar = of_vectors(vectors) if len(ids) <= _LARGEST_FULL else None
    kind, _, k = sparsify.partition(":")
    if similar is not None:
        affinity = to_affinity(similar)
    elif similarity != "cosine" or kind not in ("knn", "mutual"):
        raise ConfigError(
            f"{len(vectors)} clients are too many to compare all pairs; expected --similarity cosine and "
            "--sparsify knn:K or mutual:K"
        )
    elif groups.partition(":")[0] == "hierarchical":
        raise ConfigError(f"--groups {groups} compares all pairs; {len(vectors)} clients are too many")
    else:
        affinity = graphs.knn_graph(vectors, int(k), mutual=kind == "mutual")
    labels = to_groups(affinity, seed=seed, resolution=resolution, vectors=vectors)
    few = len(ids) <= _LARGEST_BETWEENNESS
    central = graphs.betweenness(affinity, normalised=True) if few else graphs.degree(affinity)
    values = {"betweenness" if few else "degree": central}
    return graphs.Graph(ids, affinity, groups=graphs.by_id(ids, labels), values=values), similar


def _facts(result: Graph, similar: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    import numpy as np
    import scipy.sparse as sp

    from fedkin import graph as graphs

    edges, labels = sp.coo_array(result.weights), result.labels
    size = np.bincount(labels)
    rows = np.split(np.argsort(labels, kind="stable"), np.cumsum(size)[:-1])
    # The mean similarity of each group's pairs; of its edges without a matrix of all pairs.
    if similar is None:
        inside = (labels[edges.row] == labels[edges.col]) & (edges.row != edges.col) & (edges.data != 0)
        group = labels[edges.row[inside]]
        total, pairs = np.bincount(group, edges.data[inside], len(size)), np.bincount(group, minlength=len(size))
    else:
        total = np.array([similar[np.ix_(of, of)].sum() - similar[of, of].sum() for of in rows])
        pairs = size * (size - 1)
    groups = [
        {"size": int(size[at]), "inner_similarity": float(total[at] / pairs[at]) if pairs[at] else None,
         "members": [result.ids[row] for row in rows[at].tolist()]}
        for at in range(len(size))
    ]  # fmt: skip
    measure, central = next(iter(result.values.items()))
    alone = np.asarray(result.weights.sum(axis=1)).ravel() == 0
    top = np.lexsort((np.arange(len(central)), -central))[:5]
    return {
        "clients": len(result.ids),
        "edges": int(np.count_nonzero((edges.row <= edges.col) & (edges.data != 0))),
        "modularity": graphs.modularity(result.weights, result.labels),
        "groups": groups,
        "isolated": [result.ids[row] for row in np.flatnonzero(alone)],
        "central": [{"client": result.ids[row], measure: float(central[row])} for row in top if central[row] > 0],
    }


def _writers(result: Graph, title: str, seed: int) -> dict[str, Callable[[Path], Any]]:
    from fedkin.graph.picture import draw

    return {
        "graph.npz": result.save, "graph.graphml": result.to_graphml, "graph.json": result.to_json,
        "edges.csv": result.to_csv, "graph.html": partial(draw, result, title=title, seed=seed),
    }  # fmt: skip


def _write(out: Path, writers: Writers) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    for name, write in writers.items():
        try:
            write(out / name)
        except OSError as error:  # of a full disk, it lacks the name of the file
            raise RunError(f"{out / name}: {error.strerror or error}") from None
    return [str(out / name) for name in writers]


def _print(summary: dict[str, Any]) -> None:
    groups = summary["groups"]
    say(
        f"{summary['clients']} clients, {summary['edges']} edges ({summary['similarity']}, {summary['sparsify']}), "
        f"{plural(len(groups), 'group')} ({summary['groups_by']}), modularity {summary['modularity']:.3f}"
    )
    _print_groups(groups)
    say(f"isolated (no edge): {first_few(summary['isolated']) if summary['isolated'] else 'none'}")
    if summary["central"]:
        measure = next(name for name in summary["central"][0] if name != "client")
        listed = ", ".join(f"{one['client']} {one[measure]:.3f}" for one in summary["central"])
        say(f"most central ({measure}): {listed}")
    say(*(f"wrote {path}" for path in summary.get("files", ())))


def _print_groups(groups: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each of the largest groups, and the clients that are alone."""
    rows, lone = [], []
    for number, group in enumerate(groups):
        inner = group["inner_similarity"]
        similarity = "-" if inner is None else f"{inner:.3f}"
        if group["size"] > 1:
            rows.append((str(number), str(group["size"]), similarity, first_few(group["members"])))
        else:
            lone.append(group["members"][0])
    if rows:
        print_table(("group", "size", "inner similarity", "members"), rows[:30])
    if len(rows) > 30:
        say(f"and {plural(len(rows) - 30, 'smaller group')}")
    if lone:
        say(f"groups of one: {first_few(lone)}")
