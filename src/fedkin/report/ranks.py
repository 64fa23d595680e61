"""Which methods are told apart over several seeds or federations: ranks and tests, in words, as a table and drawn."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from fedkin.analysis.ranking import LEAST_BLOCKS, Diagram, diagram, nemenyi, wilcoxon_holm
from fedkin.errors import ConfigError, nearest
from fedkin.records.files import flat
from fedkin.report.critical import drawing, svg
from fedkin.report.pairing import named, titles_of
from fedkin.report.reading import Run

if TYPE_CHECKING:
    from fedkin.records.run import Result

__all__ = ["BLOCKS", "Blocks", "Entry", "Ranking", "blocks_of", "entries", "ranking", "ranks_html", "tested"]

Blocks: TypeAlias = Literal["auto", "federations", "seeds", "clients"]
BLOCKS: tuple[Blocks, ...] = get_args(Blocks)
_FEDERATION = ("data", "scenario", "federation")
_OWN = ("method", "model", "training")
_ALPHA = 0.05
_MOST_NAMED = 12  # methods of which all pairs are listed


class Entry(NamedTuple):
    """A run of a method: its federation and seed, its mean over clients (None: not known), and each client's figure."""

    method: str
    federation: str
    seed: int
    mean: float | None
    clients: Mapping[str, float]


class Ranking(NamedTuple):
    """A comparison of methods over blocks.

    what: what the blocks are, in a sentence. diagram, and the p-values of pairs in its order: None if no test is
    possible, which `why` then says.
    """

    what: str
    why: str
    diagram: Diagram | None = None
    nemenyi: Sequence[Sequence[float]] | None = None
    wilcoxon: Sequence[Sequence[float]] | None = None

    def lines(self) -> list[str]:
        """The comparison in a few lines of text."""
        if self.diagram is None:
            return [self.why]
        ranks = ", ".join(
            f"{name} {rank:.2f}" for name, rank in zip(self.diagram.methods, self.diagram.ranks, strict=True)
        )
        return [f"mean ranks (1 is best): {ranks}", *self.tests(), self.what]

    def tests(self) -> list[str]:
        """What the tests say."""
        found = self.diagram
        assert found is not None
        if found.friedman is None or found.difference is None:
            p = 1.0 if found.p is None else float(found.p[0, 1])
            apart = "are told apart" if p <= _ALPHA else "cannot be told apart"
            return [f"{' and '.join(found.methods)} {apart} (Wilcoxon's signed-rank test, p {_p(p)})"]
        said = f"Friedman's test of equal ranks: p {_p(found.friedman.p)}"
        if found.friedman.p > _ALPHA:
            return [f"{said}, so that no method can be told apart from another"]
        near = "; ".join(", ".join(group) for group in found.groups)
        rest = f"not told apart: {near}" if near else "all are told apart"
        return [f"{said}; by Nemenyi's critical difference of {found.difference:.2f}, {rest}"]


def blocks_of(text: str) -> Blocks:
    """A kind of blocks by its name; raises ConfigError."""
    for known in BLOCKS:
        if text == known:
            return known
    raise ConfigError(f"--blocks {text}: no such kind of blocks; {nearest(text, BLOCKS)}")


def entries(runs: Sequence[Run]) -> list[Entry]:
    """The runs by method and federation; runs of a method with other settings on one federation are other methods."""
    where = [_federation(run) for run in runs]
    taken = Counter((named(run), at, run.seed) for run, at in zip(runs, where, strict=True))
    twice = {name for (name, _, _), times in taken.items() if times > 1}
    names = titles_of(runs, [named(run) for run in runs])
    variants = _variants([run for run in runs if named(run) in twice])
    return [
        Entry(names[named(run)] + variants.get(id(run), ""), at, run.seed, run.figures.get("mean"), run.last_values)
        for run, at in zip(runs, where, strict=True)
    ]


def tested(results: Mapping[str, Mapping[int, Result]], blocks: Blocks) -> list[str]:
    """The comparison of methods on one federation in lines of text; results: by method and seed."""
    every = [(method, seed, one) for method, by_seed in results.items() for seed, one in by_seed.items()]
    runs = [
        Entry(method, "", seed, (one.summary[one.metric.name] or {}).get("mean"), one.values)
        for method, seed, one in every
    ]
    found = ranking(runs, every[0][2].metric.higher, blocks)
    return [] if found is None else found.lines()


def _federation(run: Run) -> str:
    kept = {name: run.settings.get(name) for name in _FEDERATION}
    return json.dumps([run.summary.get("scenario"), kept], sort_keys=True, default=str)


def _variants(runs: Sequence[Run]) -> dict[int, str]:
    """By the run's id in memory: the settings in which it differs from the other runs of its method."""
    found = {}
    for name in {named(run) for run in runs}:
        mine = [run for run in runs if named(run) == name]
        tables = [flat({name: run.settings.get(name, {}) for name in _OWN}) for run in mine]
        paths = [path for path in tables[0] if len({str(table.get(path)) for table in tables}) > 1]
        for run, table in zip(mine, tables, strict=True):
            told = ", ".join(f"{path.rpartition('.')[2]}={table.get(path)}" for path in paths)
            found[id(run)] = f" ({told})" if told else ""
    return found


def ranking(runs: Iterable[Entry], higher: bool, blocks: Blocks = "auto") -> Ranking | None:
    """Compare the methods over blocks; None with one method.

    auto: over federations if there are several, each the mean over the seeds that all methods have, else over the seeds
    of the one. clients: over clients, each its mean over seeds; only if asked for, as clients of one run share models
    and are not independent. Only blocks that all methods have are used.
    """
    every = list(runs)
    methods = list(dict.fromkeys(one.method for one in every))
    if len(methods) < 2:
        return None
    federations = len({one.federation for one in every})
    kind: Blocks = ("federations" if federations > 1 else "seeds") if blocks == "auto" else blocks
    table, left = _table(every, methods, kind)
    counted = f"{len(table)} {kind if len(table) != 1 else kind[:-1]}"
    if left:
        counted += f" that all methods have ({left} left out)"
    if len(table) < LEAST_BLOCKS:
        more = "; add seeds (--seeds 0-5)" if kind == "seeds" and federations == 1 else ""
        return Ranking("", f"no test of the methods is possible over {counted}: {LEAST_BLOCKS} are needed{more}")
    found = diagram({name: [row[at] for row in table] for at, name in enumerate(methods)}, higher)
    order = [[row[methods.index(name)] for name in found.methods] for row in table]
    pairs = None if len(methods) == 2 else nemenyi(order, higher).tolist()
    return Ranking(f"over {counted}: {_MEANING[kind]}", "", found, pairs, wilcoxon_holm(order).tolist())


_MEANING = {
    "federations": "each is a mean over its seeds, so that this speaks for federations like these",
    "seeds": "each seed is a block, so that this speaks for other seeds on the same data, not for other data",
    "clients": "each is a mean over its seeds. Clients of one run share models and are not independent, so that the "
    "p-values are too small",
    "auto": "",
}


def _table(every: Sequence[Entry], methods: Sequence[str], kind: Blocks) -> tuple[list[list[float]], int]:
    """A row for each block that all methods have, and the number of the others."""
    cells: dict[tuple[str, ...], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for one in every:
        if kind == "clients":
            for client, value in one.clients.items():
                cells[one.federation, client][one.method][one.seed] = value
        elif one.mean is not None:
            key = (one.federation, str(one.seed)) if kind == "seeds" else (one.federation,)
            cells[key][one.method][one.seed] = one.mean
    rows = []
    for of_block in cells.values():
        common = set.intersection(*(set(of_block[name]) for name in methods))
        if common:
            rows.append([statistics.fmean(of_block[name][seed] for seed in sorted(common)) for name in methods])
    return rows, len(cells) - len(rows)


def ranks_html(found: Ranking) -> str:
    """The body of the report's section: the diagram, what it says, and the p-values of all pairs."""
    assert found.diagram is not None
    said = "".join(f"<p>{escape(_capital(text))}.</p>" for text in found.tests())
    picture = ""
    if found.diagram.difference is not None:
        named = f"Mean ranks: {', '.join(found.diagram.methods)}"
        picture = (
            '<div class="scroll" tabindex="0" role="region" aria-label="Critical-difference diagram">'
            f"{svg(drawing(found.diagram), escape(named))}</div>"
            '<p class="note">Critical-difference diagram (Demšar, 2006): a method’s place is its mean rank, 1 is best. '
            "Methods under one bar cannot be told apart.</p>"
        )
    return f'{said}{picture}<p class="note">{escape(_capital(found.what))}.</p>{_pairs(found)}'


def _pairs(found: Ranking) -> str:
    if found.diagram is None or found.wilcoxon is None or len(found.diagram.methods) > _MOST_NAMED:
        return ""
    names, ranks = found.diagram.methods, found.diagram.ranks
    rows = []
    for a in range(len(names)):
        for b in range(a + 1, len(names)):
            own = "–" if found.nemenyi is None else _p(found.nemenyi[a][b]).removeprefix("= ")
            cells = (f"{ranks[b] - ranks[a]:.2f}", own, _p(found.wilcoxon[a][b]).removeprefix("= "))
            body = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            rows.append(f'<tr><th scope="row">{escape(names[a])}, {escape(names[b])}</th>{body}</tr>')
    heads = ("methods", "difference of mean ranks", "p, Nemenyi", "p, Wilcoxon with Holm’s correction")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        "<details><summary>Every pair</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Tests of all pairs of methods">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
