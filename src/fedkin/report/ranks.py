"""Which methods are told apart over several seeds or federations: ranks and tests, in words, as a table and drawn."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias, get_args

from fedkin.analysis.ranking import LEAST_BLOCKS, Diagram, diagram
from fedkin.errors import ConfigError, nearest
from fedkin.records.files import flat
from fedkin.records.run import Result
from fedkin.report.html import details, table
from fedkin.report.labels import called, titles_of

__all__ = [
    "BLOCKS", "Blocks", "Entry", "Ranking", "blocks_of", "drawing", "entries", "pair_rows", "ranking", "ranks_html",
    "svg", "tested",
]  # fmt: skip

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

    what: what the blocks are, in a sentence. diagram: None if no test is possible, which `why` then says.
    """

    what: str
    why: str
    diagram: Diagram | None = None

    def lines(self) -> list[str]:
        """The comparison in a few lines of text."""
        if self.diagram is None:
            return [self.why]
        pairs = zip(self.diagram.methods, self.diagram.ranks, strict=True)
        ranks = ", ".join(f"{name} {rank:.2f}" for name, rank in pairs)
        return [f"mean ranks (1 is best): {ranks}", tests_text(self.diagram), self.what]


def tests_text(diagram: Diagram) -> str:
    """What the tests say."""
    if diagram.friedman is None:
        p = float(diagram.p[0, 1])
        apart = "are told apart" if p <= _ALPHA else "cannot be told apart"
        return f"{' and '.join(diagram.methods)} {apart} (Wilcoxon's signed-rank test, p {_p(p)})"
    said = f"Friedman's test of equal ranks: p {_p(diagram.friedman)}"
    if diagram.friedman > _ALPHA:
        return f"{said}, so that no method can be told apart from another"
    near = "; ".join(", ".join(group) for group in diagram.groups)
    rest = f"not told apart: {near}" if near else "all are told apart"
    return f"{said}; by Nemenyi's critical difference of {diagram.difference:.2f}, {rest}"


def blocks_of(text: str) -> Blocks:
    """A kind of blocks by its name; raises ConfigError."""
    for known in BLOCKS:
        if text == known:
            return known
    raise ConfigError(f"--blocks {text}: no such kind of blocks; {nearest(text, BLOCKS)}")


def entries(runs: Sequence[Result]) -> list[Entry]:
    """The runs by method and federation; runs of a method with other settings on one federation are other methods."""
    where = [_federation(run) for run in runs]
    taken = Counter((called(run), at, run.seed) for run, at in zip(runs, where, strict=True))
    twice = {name for (name, _, _), times in taken.items() if times > 1}
    names = titles_of(runs, [called(run) for run in runs])
    variants = _variants([run for run in runs if called(run) in twice])
    return [
        Entry(names[called(run)] + variants.get(id(run), ""), at, run.seed, run.figures.get("mean"), run.values)
        for run, at in zip(runs, where, strict=True)
    ]


def tested(results: Mapping[str, Mapping[int, Result]], blocks: Blocks) -> list[str]:
    """The comparison of methods on one federation in lines of text; results: by method and seed."""
    every = [(method, seed, one) for method, by_seed in results.items() for seed, one in by_seed.items()]
    runs = [
        Entry(method, "", seed, (one.summary[one.metric.name] or {}).get("mean"), one.values)
        for method, seed, one in every
    ]
    comparison = ranking(runs, every[0][2].metric.higher, blocks)
    return [] if comparison is None else comparison.lines()


def _federation(run: Result) -> str:
    kept = {name: run.settings.get(name) for name in _FEDERATION}
    return json.dumps([run.summary.get("scenario"), kept], sort_keys=True, default=str)


def _variants(runs: Sequence[Result]) -> dict[int, str]:
    """By the run's id in memory: the settings in which it differs from the other runs of its method."""
    variants = {}
    for name in {called(run) for run in runs}:
        mine = [run for run in runs if called(run) == name]
        settings = [flat({name: run.settings.get(name, {}) for name in _OWN}) for run in mine]
        paths = [path for path in settings[0] if len({str(one.get(path)) for one in settings}) > 1]
        for run, one in zip(mine, settings, strict=True):
            text = ", ".join(f"{path.rpartition('.')[2]}={one.get(path)}" for path in paths)
            variants[id(run)] = f" ({text})" if text else ""
    return variants


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
    result = diagram({name: [row[at] for row in table] for at, name in enumerate(methods)}, higher)
    return Ranking(f"over {counted}: {_MEANING[kind]}", "", result)


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


def ranks_html(diagram: Diagram, what: str) -> str:
    """The body of the report's section: the diagram, what it says, and the p-values of all pairs."""
    picture = ""
    if diagram.difference is not None:
        label = f"Mean ranks: {', '.join(diagram.methods)}"
        picture = (
            '<div class="scroll" tabindex="0" role="region" aria-label="Critical-difference diagram">'
            f"{svg(drawing(diagram), escape(label))}</div>"
            '<p class="note">Critical-difference diagram (Demšar, 2006): a method’s place is its mean rank, 1 is best. '
            "Methods under one bar cannot be told apart.</p>"
        )
    said, about = escape(_capital(tests_text(diagram))), escape(_capital(what))
    return f'<p>{said}.</p>{picture}<p class="note">{about}.</p>{_pairs(diagram)}'


def pair_rows(diagram: Diagram) -> list[tuple[str, str, str]]:
    """Of each pair of methods: their names, the difference of their mean ranks, and Wilcoxon's p-value after Holm."""
    return [
        (f"{diagram.methods[a]}, {diagram.methods[b]}", f"{diagram.ranks[b] - diagram.ranks[a]:.2f}",
         _p(float(diagram.p[a][b])).removeprefix("= "))
        for a, b in combinations(range(len(diagram.methods)), 2)
    ]  # fmt: skip


def _pairs(diagram: Diagram) -> str:
    if len(diagram.methods) > _MOST_NAMED:
        return ""
    heads = ("methods", "difference of mean ranks", "p, Wilcoxon with Holm’s correction")
    rows = [[escape(cell) for cell in row] for row in pair_rows(diagram)]
    return details("Every pair", table(heads, rows, "Tests of all pairs of methods"))


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- the critical-difference diagram as lines and texts, and these as SVG ----------------------------------------------


_WIDTH, _EDGE = 760.0, 16.0
_LETTER, _STEP, _AXIS = 7.2, 22.0, 58.0


class Line(NamedTuple):
    """A line from (x, y) to (x2, y2), with y downwards."""

    x: float
    y: float
    x2: float
    y2: float
    width: float = 1.0


class Text(NamedTuple):
    """A text whose start, middle or end is at (x, y)."""

    x: float
    y: float
    text: str
    anchor: str = "middle"


class Drawing(NamedTuple):
    """Lines and texts in a box of this width and height."""

    width: float
    height: float
    lines: tuple[Line, ...]
    texts: tuple[Text, ...]


def drawing(diagram: Diagram) -> Drawing:
    """The diagram (Demsar, 2006): ranks on an axis, 1 to the left, and a bar under methods that are not told apart."""
    count = len(diagram.methods)
    # Room for the longest name and its rank.
    side = _EDGE + _LETTER * (max(len(name) for name in diagram.methods) + 6)
    left, right = side, max(_WIDTH, side * 2 + 240) - side

    def at(rank: float) -> float:
        return left + (rank - 1) / (count - 1) * (right - left)

    lines = [Line(left, _AXIS, right, _AXIS, 1.5)]
    texts = []
    for whole in range(1, count + 1):
        lines.append(Line(at(whole), _AXIS - 7, at(whole), _AXIS))
        texts.append(Text(at(whole), _AXIS - 12, str(whole)))
    if diagram.difference is not None:
        end = min(at(1 + diagram.difference), right)
        lines += [Line(left, 18, end, 18, 1.5), Line(left, 13, left, 23), Line(end, 13, end, 23)]
        texts.append(Text(end + 8, 22, f"critical difference {diagram.difference:.2f}", "start"))
    below = _AXIS + 10.0
    for number, group in enumerate(diagram.groups):
        ranks = [diagram.ranks[diagram.methods.index(name)] for name in group]
        y = below + 8 * number
        lines.append(Line(at(min(ranks)) - 5, y, at(max(ranks)) + 5, y, 4))
    base = below + 8 * len(diagram.groups) + 14
    half = (count + 1) // 2
    for place, (name, rank) in enumerate(zip(diagram.methods, diagram.ranks, strict=True)):
        first = place < half
        y = base + _STEP * (place if first else count - 1 - place)
        end, anchor = (left - 8, "end") if first else (right + 8, "start")
        lines += [Line(at(rank), _AXIS, at(rank), y), Line(at(rank), y, end, y)]
        texts.append(Text(end + (-5 if first else 5), y + 4, f"{name} {rank:.2f}", anchor))
    return Drawing(left + right, base + _STEP * half, tuple(lines), tuple(texts))


def svg(drawing: Drawing, label: str = "", ink: str = "currentColor") -> str:
    """The drawing as an SVG element; label: what it shows, escaped."""
    parts = [
        f'<line x1="{one.x:.1f}" y1="{one.y:.1f}" x2="{one.x2:.1f}" y2="{one.y2:.1f}" stroke="{ink}" '
        f'stroke-width="{one.width:g}"/>'
        for one in drawing.lines
    ]
    parts += [
        f'<text x="{one.x:.1f}" y="{one.y:.1f}" text-anchor="{one.anchor}">{escape(one.text)}</text>'
        for one in drawing.texts
    ]
    return (
        f'<svg class="ranks" role="img" aria-label="{label}" viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}" '
        f'width="{drawing.width:.0f}" fill="{ink}" font-size="13">{"".join(parts)}</svg>'
    )
