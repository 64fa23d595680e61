"""How methods rank over seeds or federations, which differ significantly, and how evenly a metric is spread."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from fedkin.analysis.ranking import ALPHA, LEAST_BLOCKS, Diagram, diagram
from fedkin.errors import first_few
from fedkin.records.run import Result
from fedkin.report.html import render
from fedkin.report.runs import comparison_name, seeds_of_one, titles_of
from fedkin.report.units import plural
from fedkin.settings import flat

_MOST_NAMED = 12  # up to this number of methods, all pairs are listed
# The kind of a block: its name, how to get more of them, and what a comparison over them means.
_FEDERATIONS = "federation", "", "each is a mean over its seeds, so that this speaks for federations like these"
_SEEDS = (
    "seed", " (--seeds 0-5)",
    "each seed is a block, so that this speaks for other seeds on the same data, not for other data",
)  # fmt: skip


# -- how evenly a metric is spread over clients ------------------------------------------------------------------------


def jain(values: Sequence[float]) -> float | None:
    """Jain's index (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if only one is above 0; None if all are 0.

    >>> jain([0.5, 0.5]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def entropy(values: Sequence[float]) -> float | None:
    """Entropy of the values' shares of their sum, divided by log n: 1 if all are equal (as in q-FFL, 2020).

    None for fewer than two values, or if all are 0.

    >>> entropy([0.5, 0.5]), entropy([1.0, 0.0])
    (1.0, 0.0)
    """
    total = math.fsum(values)
    if len(values) < 2 or total <= 0:
        return None
    shares = [value / total for value in values if value > 0]
    return abs(math.fsum(-share * math.log(share) for share in shares)) / math.log(len(values))


# -- ranks over seeds or federations -----------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A run of a method: its federation and seed, and its mean over clients (None: unknown)."""

    method: str
    federation: str
    seed: int
    mean: float | None


class Ranking(NamedTuple):
    """A comparison of methods over blocks: federations or seeds.

    what: a sentence that says what the blocks are. diagram: None if no test is possible; `why` then gives the reason.
    """

    what: str
    why: str
    diagram: Diagram | None = None

    def line(self) -> str:
        """The comparison in a sentence: which methods do not differ clearly from the one with the best mean rank."""
        diagram = self.diagram
        if diagram is None:
            return self.why
        if diagram.friedman is None or diagram.friedman > ALPHA:
            return tests_text(diagram)
        best = [name for name, rank in zip(diagram.methods, diagram.ranks, strict=True) if rank == diagram.ranks[0]]
        near = [name for name in next((group for group in diagram.groups if best[0] in group), ()) if name not in best]
        them = "it" if len(best) == 1 else "them"
        rest = f"not significantly below {them}: {first_few(near, 3)}" if near else "significantly above all others"
        pairs = math.comb(len(diagram.methods), 2)
        return f"best mean rank: {' and '.join(best)}, {rest} (Nemenyi, alpha = {ALPHA:g}, corrected for {pairs} pairs)"


def tests_text(diagram: Diagram) -> str:
    """The result of the tests in words, with the level and the number of tests that it is corrected for."""
    alpha = f"alpha = {ALPHA:g}"
    if diagram.friedman is None:
        p = float(diagram.p[0, 1])
        verb = "differ" if p <= ALPHA else "do not differ"
        both = f"{' and '.join(diagram.methods)} {verb} significantly"
        return f"{both} (Wilcoxon's signed-rank test, p {_p(p)}, {alpha}, 1 test)"
    text = f"Friedman's test of equal ranks: p {_p(diagram.friedman)} ({alpha})"
    if diagram.friedman > ALPHA:
        return f"{text}, so that no two methods differ significantly"
    pairs = math.comb(len(diagram.methods), 2)
    near = "; ".join(", ".join(group) for group in diagram.groups)
    rest = f"no significant difference within {near}" if near else "all pairs differ significantly"
    return (
        f"{text}; by Nemenyi's critical difference of {diagram.difference:.2f}, corrected for {pairs} pairs of "
        f"methods, {rest}"
    )


def entries(runs: Sequence[Result]) -> list[Entry]:
    """The runs by method and federation; if a method ran with several settings, each setting counts as a method."""
    names = [comparison_name(run) for run in runs]
    where = [_federation(run) for run in runs]
    of_one: dict[tuple[str, str], list[Result]] = {}
    for name, at, run in zip(names, where, runs, strict=True):
        of_one.setdefault((name, at), []).append(run)
    several = {name for (name, _), its in of_one.items() if not seeds_of_one(its)}
    titles = titles_of(runs, names)
    return [
        Entry(titles[name] + (_variant(run, runs) if name in several else ""), at, run.seed, run.figures.get("mean"))
        for name, at, run in zip(names, where, runs, strict=True)
    ]


def _federation(run: Result) -> str:
    settings = {name: run.settings.get(name) for name in ("data", "scenario", "federation")}
    return json.dumps([run.summary.get("scenario"), settings], sort_keys=True, default=str)


def _variant(run: Result, runs: Sequence[Result]) -> str:
    """The settings that distinguish a run from the other runs of its method."""
    settings = [_method_settings(other) for other in runs if comparison_name(other) == comparison_name(run)]
    values = _method_settings(run)
    paths = [path for path in values if len({str(one.get(path)) for one in settings}) > 1]
    text = ", ".join(f"{path.rpartition('.')[2]}={values[path]}" for path in paths)
    return f" ({text})" if text else ""


def _method_settings(run: Result) -> dict[str, Any]:
    return flat({name: run.settings.get(name, {}) for name in ("method", "model", "training")})


def ranking_lines(results: Mapping[str, Mapping[int, Result]]) -> list[str]:
    """The comparison of methods on one federation, as [line]; empty for one method. results: by method and seed."""
    runs = [(method, seed, run) for method, by_seed in results.items() for seed, run in by_seed.items()]
    comparison = ranking(
        [Entry(method, "", seed, (run.summary[run.metric.name] or {}).get("mean")) for method, seed, run in runs],
        runs[0][2].metric.higher,
    )
    return [] if comparison is None else [comparison.line()]


def ranking(runs: Sequence[Entry], higher: bool) -> Ranking | None:
    """Compare the methods over blocks that all methods have; None if there is only one method.

    Blocks are federations if there are several (with the mean over the seeds that all methods have), else seeds.
    """
    methods = list(dict.fromkeys(run.method for run in runs))
    if len(methods) < 2:
        return None
    several = len({run.federation for run in runs}) > 1
    kind, advice, meaning = _FEDERATIONS if several else _SEEDS
    blocks: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        if run.mean is not None:
            blocks[run.federation if several else str(run.seed)][run.method][run.seed] = run.mean
    rows = list(filter(None, (_means(block, methods) for block in blocks.values())))
    counted = plural(len(rows), kind)
    if len(blocks) > len(rows):
        counted += f" that all methods have ({len(blocks) - len(rows)} left out)"
    if len(rows) < LEAST_BLOCKS:
        return Ranking("", f"no test of the methods over {counted}: {LEAST_BLOCKS} are needed{advice}")
    result = diagram({name: [row[at] for row in rows] for at, name in enumerate(methods)}, higher)
    return Ranking(f"over {counted}: {meaning}", "", result)


def _means(block: Mapping[str, Mapping[int, float]], methods: Sequence[str]) -> list[float]:
    """Each method's mean over the seeds that all methods have in a block; empty without such a seed."""
    common = sorted(set.intersection(*(set(block.get(name, ())) for name in methods)))
    return [statistics.fmean(block[name][seed] for seed in common) for name in methods] if common else []


def ranks_section(comparison: Ranking | None) -> dict[str, Any] | None:
    """The data of the report's section: the tests' result (or `why` there is none), the diagram, all p-values."""
    if comparison is None:
        return None
    diagram, what = comparison.diagram, comparison.what
    if diagram is None:
        return {"why": comparison.why}
    text, methods = tests_text(diagram), diagram.methods
    pairs = [
        (f"{methods[a]}, {methods[b]}", f"{diagram.ranks[b] - diagram.ranks[a]:.2f}",
         _p(float(diagram.p[a][b])).removeprefix("= "))
        for a, b in combinations(range(len(methods)), 2)
    ]  # fmt: skip
    return {
        "why": comparison.why, "text": text[:1].upper() + text[1:], "what": what[:1].upper() + what[1:],
        "svg": "" if diagram.difference is None else svg(diagram),
        "pairs": pairs if len(methods) <= _MOST_NAMED else [],
    }  # fmt: skip


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def svg(diagram: Diagram) -> str:
    """The critical-difference diagram (Demsar, 2006): ranks on an axis; bars join methods that do not differ."""
    methods, count = diagram.methods, len(diagram.methods)
    side = 16 + 8.4 * (max(map(len, methods)) + 6)  # room for the longest name and its rank, also in wide fonts
    right, axis = max(760.0, 2 * side + 240) - side, 58.0
    lines: list[tuple[float, float, float, float, float]] = []  # x, y, x, y, width
    texts: list[tuple[float, float, str, str]] = []  # x, y, words, anchor

    def at(rank: float) -> float:
        return side + (rank - 1) / (count - 1) * (right - side)

    lines.append((side, axis, right, axis, 1.5))
    for whole in range(1, count + 1):
        lines.append((at(whole), axis - 7, at(whole), axis, 1))
        texts.append((at(whole), axis - 12, str(whole), "middle"))
    if diagram.difference is not None:
        end = min(at(1 + diagram.difference), right)
        lines.append((side, 18, end, 18, 3))
        texts.append((end + 8, 22, f"critical difference {diagram.difference:.2f}", "start"))
    for number, group in enumerate(diagram.groups):
        ranks, y = [diagram.ranks[methods.index(name)] for name in group], axis + 10 + 8 * number
        lines.append((at(min(ranks)) - 5, y, at(max(ranks)) + 5, y, 4))
    base, half = axis + 24 + 8 * len(diagram.groups), (count + 1) // 2
    for index, (name, rank) in enumerate(zip(methods, diagram.ranks, strict=True)):
        left = index < half
        y = base + 22 * (index if left else count - 1 - index)
        end = side - 8 if left else right + 8
        lines += [(at(rank), axis, at(rank), y, 1), (at(rank), y, end, y, 1)]
        texts.append((end + (-5 if left else 5), y + 4, f"{name} {rank:.2f}", "end" if left else "start"))
    return render("ranks.svg", methods=methods, wide=side + right, high=base + 22 * half, lines=lines, texts=texts)
