"""Tables of nothing_told.py, from the lines that its runs have written."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

__all__ = ["Lines", "Runs", "filled", "read", "tables", "write_csv"]

Lines = list[dict[str, Any]]


def told(row: str) -> bool:
    """Whether a row is told the groups, or how many there are."""
    return row.endswith((", told", ", oracle"))


def read(path: Path) -> Lines:
    """The lines of the file; a line that was cut off by a crash is left out."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


@dataclass(frozen=True)
class Runs:
    """Finished runs, `seeds` of them for each federation and row, and what is known from them.

    lines: those of the stage "run" have points {client: figure or None} (100 x accuracy, or what stands for it), tests
    {client: number of test samples}, ari, groups ("planted", "natural" or "none") and kind (of task).
    """

    lines: Lines
    seeds: tuple[int, ...] = (0, 1, 2)

    @cached_property
    def finished(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """{(federation, row): runs in the order of the seeds}, where all seeds are there and none failed."""
        found: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
        for line in self.lines:
            if line["stage"] == "run" and "points" in line:
                found[line["federation"], line["row"]][line["seed"]] = line
        return {
            pair: [runs[seed] for seed in self.seeds] for pair, runs in found.items() if set(self.seeds) <= set(runs)
        }

    @cached_property
    def federations(self) -> list[str]:
        """Names of federations that have a reference, in the order of the lines."""
        names = dict.fromkeys(line["federation"] for line in self.lines)
        return [name for name in names if all((name, row) in self.finished for row in ("local", "fedavg"))]

    @cached_property
    def rows(self) -> list[str]:
        """Names of rows that are finished anywhere."""
        return list(dict.fromkeys(row for _, row in self.finished))

    def means(self, federation: str, row: str) -> Any:
        """[seeds] mean points over clients."""
        return np.array([mean(run["points"].values()) for run in self.finished[federation, row]])

    def reference(self, federation: str) -> tuple[str, Any]:
        """(row, its means) of the best row that is told nothing, but kin; by its mean over seeds."""
        rows = [row for row in self.rows if (federation, row) in self.finished]
        rows = [row for row in rows if not told(row) and not row.startswith("kin")]
        best = max(rows, key=lambda row: float(self.means(federation, row).mean()))
        return best, self.means(federation, best)

    def regret(self, federation: str, row: str) -> Any:
        """[seeds] points below the reference with the same seed."""
        return self.reference(federation)[1] - self.means(federation, row)

    def hurt(self, federation: str, row: str) -> tuple[float, float, float]:
        """Shares: clients worse off than by local training, clients better off, clients and seeds below it.

        Worse or better off: with the test samples of all seeds together, by more than one sample; where points are no
        accuracies, by more than one point of the mean over seeds.
        """
        pairs = self._pairs(federation, row)
        below = [other > one + 1e-9 for each in pairs.values() for one, other, _ in each]
        whole = np.array([self._gap(federation, each) for each in pairs.values()])
        return float((whole > 1 + 1e-6).mean()), float((whole < -1 - 1e-6).mean()), float(np.mean(below))

    def surely(self, federation: str, row: str) -> tuple[float, float]:
        """Shares: clients surely worse off than by local training, clients surely better off.

        Surely: the 95 % interval of the difference excludes zero. Of accuracies it is that of two shares of all seeds'
        test samples, taken as independent, which makes it wider than one of pairs; else Student's, over the seeds.
        """
        pairs = self._pairs(federation, row)
        gaps = np.array([self._gap(federation, each) for each in pairs.values()])
        half = np.array([self._half(federation, each) for each in pairs.values()])
        return float((gaps > half + 1e-9).mean()), float((gaps < -half - 1e-9).mean())

    def _pairs(self, federation: str, row: str) -> dict[str, list[tuple[float, float, int]]]:
        """{client: (points, local training's, test samples) by seed}, where both are determined."""
        found: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
        for one, other in zip(self.finished[federation, row], self.finished[federation, "local"], strict=True):
            for id, points in one["points"].items():
                if points is not None and other["points"][id] is not None:
                    found[id].append((points, other["points"][id], one["tests"][id]))
        return found

    def _accuracies(self, federation: str) -> bool:
        return bool(self.finished[federation, "local"][0]["kind"] == "classification")

    def _gap(self, federation: str, each: Sequence[tuple[float, float, int]]) -> float:
        """How much is lost beside local training: test samples of all seeds, or mean points."""
        if self._accuracies(federation):
            return sum((other - one) * n / 100 for one, other, n in each)
        return float(np.mean([other - one for one, other, _ in each]))

    def _half(self, federation: str, each: Sequence[tuple[float, float, int]]) -> float:
        """Half the length of the 95 % interval of `_gap`."""
        if self._accuracies(federation):
            n = sum(tests for *_, tests in each)
            right = [sum(pair[kind] * pair[2] for pair in each) / 100 / n for kind in (0, 1)]
            return float(norm.ppf(0.975) * np.sqrt(n * sum(share * (1 - share) for share in right)))
        if len(each) < 2:
            return math.inf
        gaps = [other - one for one, other, _ in each]
        return float(student.ppf(0.975, len(gaps) - 1) * np.std(gaps, ddof=1) / np.sqrt(len(gaps)))

    def lead(self, row: str) -> tuple[float, float] | None:
        """95 % interval (low, high) of kin's lead over a row, in points: Student's, over the means of federations.

        None with fewer than two federations on which both are finished.
        """
        both = [name for name in self.federations if {(name, row), (name, "kin")} <= set(self.finished)]
        leads = np.array([float((self.means(name, "kin") - self.means(name, row)).mean()) for name in both])
        if len(leads) < 2:
            return None
        half = float(student.ppf(0.975, len(leads) - 1) * leads.std(ddof=1) / np.sqrt(len(leads)))
        return float(leads.mean()) - half, float(leads.mean()) + half

    def ari(self, federation: str, row: str) -> float | None:
        """Mean over seeds of the adjusted Rand index with the clients' groups; None where there are none."""
        runs = self.finished[federation, row]
        known = [run["ari"] for run in runs if run["ari"] is not None and run["groups"] != "none"]
        return float(np.mean(known)) if len(known) == len(runs) else None

    def planted(self, federation: str) -> bool:
        """Whether the federation was made of these groups."""
        return bool(self.finished[federation, "local"][0]["groups"] == "planted")

    def of_row(self, row: str, among: Sequence[str]) -> dict[str, Any]:
        """What a row does over these federations, those of them where it is finished."""
        there = [name for name in among if (name, row) in self.finished]
        regrets = np.array([self.regret(name, row) for name in there])
        worst = int(regrets.mean(1).argmax())
        aris = [self.ari(name, row) for name in there if self.planted(name)]
        hurts = np.array([[*self.hurt(name, row), *self.surely(name, row)] for name in there])
        return {
            "federations": len(there), "regret": regrets.mean(), "deviation": regrets.mean(0).std(),
            "worst": regrets.mean(1)[worst], "where": there[worst], "within": int((regrets.mean(1) <= 0.5).sum()),
            "hurt": hurts[:, 0].mean(), "helped": hurts[:, 1].mean(), "below": hurts[:, 2].mean(),
            "surely": hurts[:, 3].mean(), "surely_helped": hurts[:, 4].mean(),
            "ari": float(np.mean(aris)) if aris and None not in aris else None,
        }  # fmt: skip


def mean(points: Iterable[float | None]) -> float:
    """The mean of the clients whose figure is determined."""
    return float(np.mean([value for value in points if value is not None]))


# -- tables -----------------------------------------------------------------------------------------------------------


def tables(runs: Runs) -> dict[str, str]:
    """All tables as markdown, by name."""
    return {
        "federations": _by_federation(runs),
        "methods": _by_row(runs),
        "degrees": _degrees(runs),
        "missing": _missing(runs),
    }


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with the tables that it has marks for, `<!-- table: NAME -->` and `<!-- end -->`, written anew."""
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
    return f"{np.mean(values):.1f}±{np.std(values):.1f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _both(shares: Sequence[float]) -> str:
    return ", ".join(_share(value) for value in shares[:2])


def _interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}"


def _index(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _by_federation(runs: Runs) -> str:
    head = ["federation", "best other", "its points", "kin", "kin less it", "hurts, helps", "surely", "groups", "ARI"]
    body = []
    for name in runs.federations:
        if (name, "kin") not in runs.finished:
            continue
        best, means = runs.reference(name)
        index = _index(runs.ari(name, "kin"))
        body.append([
            name, best, _spread(means), _spread(runs.means(name, "kin")), _paired(runs.means(name, "kin") - means),
            _both(runs.hurt(name, "kin")), _both(runs.surely(name, "kin")),
            " ".join(str(run["found"]) for run in runs.finished[name, "kin"]),
            index if runs.planted(name) or not index else f"({index})",
        ])  # fmt: skip
    return _table(head, body)


def _by_row(runs: Runs) -> str:
    head = [
        "method", "federations", "mean regret", "kin's on these", "kin ahead by", "regret at most .5 on", "worst",
        "where", "hurts, helps", "surely", "below local", "ARI",
    ]  # fmt: skip
    found = {row: runs.of_row(row, runs.federations) for row in runs.rows}
    body = []
    for row, its in sorted(found.items(), key=lambda item: (-item[1]["federations"], item[1]["regret"])):
        there = [name for name in runs.federations if {(name, row), (name, "kin")} <= set(runs.finished)]
        kin = f"{runs.of_row('kin', there)['regret']:.2f}" if there else ""
        lead = "" if row == "kin" else _interval(runs.lead(row))
        body.append([
            row, str(its["federations"]), f"{its['regret']:.2f}±{its['deviation']:.2f}", kin, lead, str(its["within"]),
            f"{its['worst']:.1f}", its["where"], _both((its["hurt"], its["helped"])),
            _both((its["surely"], its["surely_helped"])), _share(its["below"]), _index(its["ari"]),
        ])  # fmt: skip
    return _table(head, body)


def _degrees(runs: Runs) -> str:
    """Kin, and its lead over local training, FedAvg and its own groups: paired by seed, Student's 95 % intervals."""
    rows = ("local", "fedavg", "kin, groups", "kin")
    head = ["federation", *rows, *(f"kin less {row}" for row in rows[:-1])]
    body = []
    for name in runs.federations:
        if all((name, row) in runs.finished for row in rows):
            means = {row: runs.means(name, row) for row in rows}
            leads = [_paired(means["kin"] - means[row]) for row in rows[:-1]]
            body.append([name, *(_spread(means[row]) for row in rows), *leads])
    return _table(head, body)


def _paired(leads: Any) -> str:
    """The mean of leads over seeds, with its 95 % interval in brackets."""
    half = float(student.ppf(0.975, len(leads) - 1) * leads.std(ddof=1) / np.sqrt(len(leads)))
    return f"{leads.mean():+.1f} ({leads.mean() - half:+.1f} to {leads.mean() + half:+.1f})"


def _missing(runs: Runs) -> str:
    """Why a pair has no figures."""
    reasons: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in runs.lines:
        reason = line.get("skipped") or line.get("failed")
        if reason and (line["federation"], line["row"]) not in runs.finished:
            names = reasons[line["row"]][reason]
            if line["federation"] not in names:
                names.append(line["federation"])
    body = [[row, reason, ", ".join(names)] for row, each in reasons.items() for reason, names in each.items()]
    return _table(["method", "no figures because", "on"], body)


def write_csv(runs: Runs, path: Path) -> None:
    """One line for each federation and row."""
    names = ("federation", "row", "reference", "points", "deviation", "regret", "regret_deviation", "hurt",
             "helped", "below_local", "surely_hurt", "surely_helped", "ari", "rate", "seconds")  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for name in runs.federations:
            for row in runs.rows:
                if (name, row) in runs.finished:
                    writer.writerow([name, row, *_figures(runs, name, row)])


def _figures(runs: Runs, name: str, row: str) -> list[str]:
    means, regret, ari = runs.means(name, row), runs.regret(name, row), runs.ari(name, row)
    made: list[Mapping[str, Any]] = list(runs.finished[name, row])
    figures = [means.mean(), means.std(), regret.mean(), regret.std(), *runs.hurt(name, row), *runs.surely(name, row)]
    return [
        runs.reference(name)[0], *(f"{value:.4f}" for value in figures), "" if ari is None else f"{ari:.4f}",
        f"{made[0]['lr']:g}", f"{np.mean([run['seconds'] for run in made]):.1f}",
    ]  # fmt: skip
