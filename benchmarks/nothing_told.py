"""The tables of docs/results/nothing-told.md and docs/bench.md, from the stored runs of the suites full and quick.

    for method in local fedavg kin ditto ...; do fedkin bench $method --suite benchmarks/full_suite.py --store; done
    python benchmarks/nothing_told.py --csv docs/results/nothing-told.csv \\
        --pages docs/results/nothing-told.md docs/bench.md

Prints all tables, and writes those that a page has marks for.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from full_suite import SUITE
from scipy.stats import t as student

from fedkin.running.bench import rank_on_suite, read_lines
from fedkin.running.suites import SUITES, Suite

Lines = list[dict[str, Any]]
SHOWN = 0.4  # share of federations on which a method has to be finished to be shown
# Groups that the data set states, which may mean nothing for training.
NATURAL = ("eICU hospitals", "TPT-48 states")
NO_RATE = "mixed"  # it solves its models, and trains nothing
# Federations whose clients differ gradually rather than in groups.
DEGREES = (
    "writers 20", "writers 40", "writers 100", "writers rot2 40", "writers and turns 20+20",
    "MNIST Dirichlet .3 40x100", "MNIST rot4 own mask 40x100", "MNIST own swaps 40x100", "MNIST own angles 40x100",
    "schools", "districts", "eICU hospitals", "TPT-48 states",
)  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """Finished runs: those of methods that have at least the first `least` seeds on a federation.

    Two methods are compared on the seeds that both have.
    """

    lines: Lines
    seeds: tuple[int, ...]
    least: int = 3

    @cached_property
    def finished(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """{(federation, method): runs in the order of the seeds}."""
        by_seed: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for line in self.lines:
            if line["stage"] == "run" and line["mean"] is not None and "@" not in line["method"]:
                by_seed.setdefault((line["federation"], line["method"]), {})[line["seed"]] = line
        finished = {}
        for pair, runs in by_seed.items():
            first = list(takewhile(runs.__contains__, self.seeds))
            if len(first) >= self.least:
                finished[pair] = [runs[seed] for seed in first]
        return finished

    @cached_property
    def federations(self) -> list[str]:
        """Names of federations on which the reference and kin are finished, in the suite's order."""
        return [
            name for name in SUITE.federations
            if all((name, method) in self.finished for method in ("local", "fedavg", "kin"))
        ]  # fmt: skip

    @cached_property
    def methods(self) -> list[str]:
        return sorted({method for _, method in self.finished})

    def means(self, federation: str, method: str) -> Any:
        """[seeds] mean points over clients."""
        return np.array([run["mean"] for run in self.finished[federation, method]])

    def reference(self, federation: str) -> str:
        """The best method except kin, by its mean lead over FedAvg."""
        methods = [m for m in self.methods if (federation, m) in self.finished and not m.startswith("kin")]
        return max(methods, key=lambda method: float(self.apart(federation, method, "fedavg").mean()))

    def apart(self, federation: str, one: str, other: str) -> Any:
        """[seeds] points by which a method is above another with the same seed."""
        mine, theirs = self.means(federation, one), self.means(federation, other)
        n = min(len(mine), len(theirs))
        return mine[:n] - theirs[:n]

    def regret(self, federation: str, method: str) -> Any:
        """[seeds] points by which a method is below the best other method with the same seed."""
        return self.apart(federation, self.reference(federation), method)

    def gaps(self, federation: str, method: str) -> Any:
        """[seeds, clients] points above local training, of clients that have a figure in all runs."""
        mine, local = self.finished[federation, method], self.finished[federation, "local"]
        ids = [
            id for id in mine[0]["points"] if all(run["points"].get(id) is not None for run in (*mine, *local))
        ]  # fmt: skip
        return np.array([
            [one["points"][id] - other["points"][id] for id in ids] for one, other in zip(mine, local, strict=False)
        ])  # fmt: skip

    def hurt(self, federation: str, method: str) -> tuple[float, float, float, float]:
        """Shares of clients: more than a point below Local and above it; significantly below and above.

        Significantly: Student's 95 % interval over seeds excludes zero.
        """
        gaps = self.gaps(federation, method)
        mean, half = gaps.mean(0), half_width(gaps)
        shares = (mean < -1, mean > 1, mean < -half - 1e-9, mean > half + 1e-9)
        return tuple(float(one.mean()) for one in shares)  # type: ignore[return-value]

    def lead(self, method: str, among: Sequence[str]) -> tuple[float, float, float]:
        """Kin's lead over a method in points: mean and 95 % interval, Student's over the means of federations."""
        leads = np.array([float(self.apart(n, "kin", method).mean()) for n in among])
        half = float(half_width(leads))
        return float(leads.mean()), float(leads.mean()) - half, float(leads.mean()) + half

    def cost(self, federation: str, figure: str) -> float:
        """Kin's bytes or trained samples over those of FedAvg: the mean over the seeds that have them."""
        pairs = zip(self.finished[federation, "kin"], self.finished[federation, "fedavg"], strict=False)
        return float(np.mean([kin[figure] / base[figure] for kin, base in pairs if figure in kin and figure in base]))

    def ari(self, federation: str, method: str) -> float | None:
        """Mean over seeds of the ARI of a method's groups with the planted ones; None if a run has none."""
        values = [run.get("ari") for run in self.finished[federation, method]]
        return None if None in values else float(np.mean(values))  # type: ignore[arg-type]


def half_width(values: Any) -> Any:
    """Half of Student's 95 % interval over the first axis."""
    n = len(values)
    return student.ppf(0.975, n - 1) * np.std(values, axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.inf


# -- tables -----------------------------------------------------------------------------------------------------------

# Heads of the shares of clients that `Runs.hurt` gives.
SHARES = ("% below, above Local", "% significantly")


def tables(runs: Runs) -> dict[str, str]:
    """All tables as markdown, by name."""
    return {
        "border": _at_border(runs),
        "federations": _by_federation(runs),
        "methods": _by_method(runs),
        "missing": _missing(runs),
        "quick": _quick(),
        "places": _places("kin", "ditto"),
    }


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with new tables between its marks `<!-- table: NAME -->` and `<!-- end -->`."""
    names = re.findall(r"<!-- table: (\w+) -->", page)
    if not names:
        raise ValueError("the page has no <!-- table: NAME -->")
    for name in names:
        before, mark, rest = page.partition(f"<!-- table: {name} -->")
        page = f"{before}{mark}\n{made[name]}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return page


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _spread(values: Any) -> str:
    return f"{np.mean(values):.1f}±{np.std(values, ddof=1):.1f}"


def _shares(values: Sequence[float]) -> str:
    """Shares in per cent."""
    return ", ".join(f"{100 * value:.0f}" for value in values)


def _paired(leads: Any) -> str:
    """The mean of leads over seeds, with its 95 % interval in brackets."""
    half = float(half_width(leads))
    return f"{leads.mean():+.1f} ({leads.mean() - half:+.1f} to {leads.mean() + half:+.1f})"


def _seeds(values: Sequence[str]) -> str:
    """A value for each seed, or the common value of all seeds."""
    return values[0] if len(set(values)) == 1 else " ".join(values)


def _is_at_border(runs: Runs, suite: Suite, federation: str, method: str) -> bool:
    """Whether the rate that a method's tuning chose is the smallest or the largest of those that it tried."""
    tried = suite.federations[federation].rates
    return runs.finished[federation, method][0]["lr"] in (min(tried), max(tried))


def _at_border(runs: Runs) -> str:
    """A sentence on how many rates lie at a border."""
    pairs = [(name, method) for name, method in runs.finished if name in runs.federations and method != NO_RATE]
    count = sum(_is_at_border(runs, SUITE, *pair) for pair in pairs)
    return (
        f"**Tuning is short.** Each method chooses among three rates. For {count} of {len(pairs)} pairs of a method "
        "and a federation\nthe best is the smallest or the largest of them, so that a better one may lie outside."
    )


def _by_federation(runs: Runs) -> str:
    head = ["federation", "best other", "its points", "kin", "kin minus other", *SHARES, "groups", "ARI",
            "samples, bytes"]  # fmt: skip
    body = []
    for name in runs.federations:
        best, ari = runs.reference(name), runs.ari(name, "kin")
        index = "" if ari is None else f"{ari:.2f}"
        hurt = runs.hurt(name, "kin")
        body.append([
            name, best, _spread(runs.means(name, best)), _spread(runs.means(name, "kin")),
            _paired(-runs.regret(name, "kin")), _shares(hurt[:2]), _shares(hurt[2:]),
            _seeds([str(run["groups"]) for run in runs.finished[name, "kin"]]),
            f"({index})" if name in NATURAL and index else index,
            f"{runs.cost(name, 'trained'):.1f}, {runs.cost(name, 'bytes'):.1f}",
        ])  # fmt: skip
    return _table(head, body)


def _by_method(runs: Runs) -> str:
    head = [
        "method", "federations", "seeds", "mean regret", "kin minus method", "by degrees", "regret at most .5 on",
        "largest regret", "where", *SHARES, "rate at a border",
    ]  # fmt: skip
    rows = []
    for method in runs.methods:
        names = [name for name in runs.federations if (name, method) in runs.finished]
        if len(names) < SHOWN * len(runs.federations):
            continue
        regrets = np.array([runs.regret(name, method).mean() for name in names])
        hurt = np.mean([runs.hurt(name, method) for name in names], axis=0)
        border = sum(_is_at_border(runs, SUITE, name, method) for name in names)
        within, worst = int((regrets <= 0.5).sum()), names[int(regrets.argmax())]
        seeds = min(len(runs.finished[name, method]) for name in names)
        row = [
            method, str(len(names)), str(seeds), f"{regrets.mean():.2f}", _ahead(runs, method, names),
            _ahead(runs, method, [name for name in names if name in DEGREES]), str(within), f"{regrets.max():.1f}",
            worst, _shares(hurt[:2]), _shares(hurt[2:]), str(border),
        ]  # fmt: skip
        rows.append((-len(names), regrets.mean(), row))
    return _table(head, [row for *_, row in sorted(rows, key=lambda row: row[:2])])


def _ahead(runs: Runs, method: str, among: Sequence[str]) -> str:
    """Kin's mean lead over federations, with half its 95 % interval."""
    if method == "kin" or not among:
        return ""
    mean, low, high = runs.lead(method, among)
    return f"{mean:.2f}±{(high - low) / 2:.2f}"


def _missing(runs: Runs) -> str:
    """Why a method has no figure on a federation."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for line in runs.lines:
        if "failed" in line and (line["federation"], line["method"]) not in runs.finished:
            names = reasons.setdefault((line["method"], line["failed"]), [])
            if line["federation"] not in names:
                names.append(line["federation"])
    body = [[method, reason, ", ".join(names)] for (method, reason), names in reasons.items()]
    return _table(["method", "no figures because", "on"], body)


def _quick() -> str:
    """Each method's means on the suite quick, and on how many federations it is significantly above or below Local.

    Mean ranks are among the methods that finished on all federations.
    """
    suite = SUITES["quick"]
    lines = read_lines(suite.stored)
    runs = Runs(lines, tuple(suite.seeds), len(suite.seeds))
    ranks = rank_on_suite(suite, "kin", lines)[1]
    assert ranks is not None
    mean_rank = dict(zip(ranks.methods, ranks.ranks, strict=True))
    body = []
    for method in sorted(runs.methods, key=lambda method: mean_rank.get(method, np.inf)):
        names = [name for name in suite.federations if (name, method) in runs.finished]
        leads = [runs.apart(name, method, "local") for name in names]
        above, below = (sum(sign * lead.mean() > half_width(lead) + 1e-9 for lead in leads) for sign in (1, -1))
        means = [f"{runs.means(name, method).mean():.1f}" if name in names else "" for name in suite.federations]
        body.append([method, f"{mean_rank[method]:.1f}" if method in mean_rank else "", *means, f"{above}, {below}"])
    tuned = [(name, method) for name, method in runs.finished if method != NO_RATE]
    count = sum(_is_at_border(runs, suite, *pair) for pair in tuned)
    said = (
        f"For {count} of {len(tuned)} pairs of a method and a federation the rate is at an end of the five tried. A "
        f"difference of mean ranks is\nsignificant if it is at least {ranks.difference:.1f} (Nemenyi)."
    )
    return said + "\n\n" + _table(["method", "mean rank", *suite.federations, "above, below Local"], body)


def _places(*methods: str) -> str:
    """Where methods stand on the suite quick: mean, rank, and difference from the best simple method."""
    suite = SUITES["quick"]
    lines = read_lines(suite.stored)
    body = [[name] for name in suite.federations]
    for method in methods:
        for row, place in zip(body, rank_on_suite(suite, method, lines)[0], strict=True):
            gain = place["gain"]
            row += [
                f"{place['mean']:.1f}", f"{place['rank']} of {place['of']}",
                f"{gain['value']:+.1f} ({gain['low']:+.1f} to {gain['high']:+.1f})",
            ]  # fmt: skip
    head = ["federation", *(text for method in methods for text in (method, "rank", "difference"))]
    return _table(head, body)


def write_csv(runs: Runs, path: Path) -> None:
    """One line for each federation and method; kin_ahead: kin's lead, paired by seed, with half its 95 % interval."""
    columns = ("federation", "method", "points", "deviation", "regret", "hurt", "helped", "surely_hurt",
               "surely_helped", "ari", "rate", "kin_ahead", "kin_ahead_half")  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for name in runs.federations:
            for method in runs.methods:
                if (name, method) in runs.finished:
                    means, ari = runs.means(name, method), runs.ari(name, method)
                    figures = [
                        means.mean(),
                        means.std(ddof=1),
                        runs.regret(name, method).mean(),
                        *runs.hurt(name, method),
                    ]
                    rate = runs.finished[name, method][0]["lr"]
                    index = "" if ari is None else f"{ari:.4f}"
                    lead = runs.apart(name, "kin", method)
                    ahead = ["", ""] if method == "kin" else [f"{lead.mean():.4f}", f"{float(half_width(lead)):.4f}"]
                    writer.writerow([name, method, *(f"{v:.4f}" for v in figures), index, f"{rate:g}", *ahead])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stored", type=Path, default=SUITE.stored, help="the runs, if not those of the suite")
    parser.add_argument("--seeds", type=int, default=len(SUITE.seeds), help="how many of the suite's seeds")
    parser.add_argument("--pages", type=Path, nargs="*", default=[], help="pages whose tables are written anew")
    parser.add_argument("--csv", type=Path, help="a line for each federation and method")
    given = parser.parse_args()
    runs = Runs(read_lines(given.stored), tuple(SUITE.seeds[: given.seeds]))
    made = tables(runs)
    for page in given.pages:
        page.write_text(filled(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    if given.csv is not None:
        write_csv(runs, given.csv)
    print("\n\n".join(f"{name}\n{table}" for name, table in made.items()))


if __name__ == "__main__":
    main()
