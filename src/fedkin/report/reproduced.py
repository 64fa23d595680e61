"""Pages of reproduced tables: figures with intervals beside the paper's, what communication adds, and the claims."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedkin.analysis.added import Added
from fedkin.analysis.intervals import over
from fedkin.methods import METHODS
from fedkin.records.tables import csv_text
from fedkin.report.kept import UNRUN_LINE, Kept, csv_rows, joined_csv
from fedkin.report.units import megabytes
from fedkin.running.candidates import RATE
from fedkin.running.controls import CONTROLS, parted
from fedkin.running.papers import Claim, PaperTable
from fedkin.running.reproduce import Chosen, Done, judged, words_of
from fedkin.running.table_runs import FIGURES, GIVEN, Run, added_by_exchange, differences, mean_over
from fedkin.settings import tunables

__all__ = ["Verdict", "claims_csv", "figures_csv", "index", "page", "top", "verdict_rows", "verdicts"]

_WORDS = {"better": "holds", "worse": "does not hold", "cannot be told apart": "cannot be told apart"}
_HEADS = ("claim", "federation", "verdict", "found", "needed", "seeds")
_HOLDS = (
    "*found*: the difference between the two rows, above 0 if the first is the better one (of a variance or of bytes, "
    "the smaller one); for a claim about one row, its figure. In brackets is the 95 % interval over seeds; accuracies "
    "are in points. A claim *holds* if the interval lies above what is *needed*, and *does not hold* if it lies below."
)
_APART = "How far this setting is from the paper's: "
_UNTESTED, _UNRUN = "not testable here", "not run yet"


class Verdict(NamedTuple):
    """What the records say of a claim on one federation; found: the difference that it is about, or the figure itself.

    share: whether the metric is a share, which is written in points.
    """

    claim: Claim
    federation: str
    word: str
    found: Added | None
    share: bool

    @property
    def cells(self) -> list[str]:
        """What was found with its interval, what it must lie above, in the unit of its figure, and the seeds."""
        if self.found is None:
            return ["", "", ""]
        ends = [end for end in (self.found.low, self.found.high) if end is not None]
        bounds = f" ({' to '.join(map(self._text, ends))})" if ends else ""
        needed = self._text(self.claim.needed) if self.claim.needed else "0"
        return [self._text(self.found.value) + bounds, f"above {needed}", str(self.found.seeds)]

    def _text(self, value: float) -> str:
        """A difference with its sign, or a figure."""
        sign = "" if self.claim.than is None else "+"
        if self.claim.figure == "bytes":
            return _megabytes(value) if sign else megabytes(value)
        return _number(value, self.share and self.claim.figure not in ("ari", "variance"), sign)


def verdicts(table: PaperTable, done: Sequence[Done]) -> list[Verdict]:
    """Judge every claim on every federation where it is made; those that have not been run are said to be so."""
    ended = {one.part.name: one for one in done}
    made = []
    for claim in table.claim:
        if claim.untestable is not None:
            made.append(Verdict(claim, "", f"{_UNTESTED}: {claim.untestable}", None, False))
            continue
        for part in table.federation:
            if claim.on is not None and part.name not in claim.on:
                continue
            one = ended.get(part.name)
            if one is None:
                made.append(Verdict(claim, part.name, _UNRUN, None, False))
                continue
            found = judged(claim, one.results)
            made.append(Verdict(claim, part.name, _word(found, claim), found, _share(one)))
    return made


def _word(found: Added | None, claim: Claim) -> str:
    if found is None:
        return "a figure is not known"
    return _WORDS.get(found.against(claim.needed), "one seed: no verdict")


def page(
    name: str, table: PaperTable, done: Sequence[Done], quick: bool, kept: Mapping[str, Kept] | None = None
) -> str:
    """The page of a table in Markdown; done: federations whose runs have ended; kept: what it has said of others."""
    ended, parts = {one.part.name: one for one in done}, kept or {}
    lines = []
    for part in table.federation:
        lines += [f"## {part.name}", ""]
        if (one := ended.get(part.name)) is not None:
            lines += [*_figures(one, table), ""]
        else:
            lines += [*(parts[part.name].section if part.name in parts else [UNRUN_LINE]), ""]
    if found := verdict_rows(table, done, kept):
        lines += ["## The paper's claims", "", _HOLDS, "", *_table_of(found), ""]
    return top(name, table, quick) + "\n".join(lines)


def top(name: str, table: PaperTable, quick: bool) -> str:
    """What a page says before its federations."""
    lines = [f"# {table.title}", "", f"Source: {table.source}. This page is written from the records by", ""]
    lines += [f"    fedkin reproduce {name}{' --quick' if quick else ''} --data-root ROOT", ""]
    if quick:
        lines += ["**A quick run, to test the command: its figures say nothing about the methods.**", ""]
    if table.apart:
        lines += [f"{_APART}{table.apart}", ""]
    return "\n".join([*lines, _tuning(table), "", *_legend(table), "", ""])


def verdict_rows(
    table: PaperTable, done: Sequence[Done], kept: Mapping[str, Kept] | None = None
) -> list[Sequence[str]]:
    """The cells of every claim on every federation: verdicts on those that have ended, and what is kept of others."""
    ended, rows = {one.part.name for one in done}, []
    for one in verdicts(table, done):
        made: Sequence[str] = [one.claim.text, one.federation, one.word, *one.cells]
        other = (kept or {}).get(one.federation)
        rows.append(made if other is None or one.federation in ended else other.claims.get(one.claim.text, made))
    return rows


def _tuning(table: PaperTable) -> str:
    seeds = ", ".join(map(str, table.seeds))
    if table.tune is None:
        return f"Seeds {seeds}. Nothing was tuned: every row has the settings of its preset."
    how = table.tune
    length = "by successive halving" if how.halving else "at full length"
    if how.optuna:
        length += f", {how.equal().chosen} of them chosen by Optuna"
    held = [how.hold_out, *(f"{row.name}: {row.hold_out}" for row in table.rows() if row.hold_out is not None)]
    return (
        f"Seeds {seeds}. Every row was tuned with the same budget: {how.candidates} candidates for the rate (from "
        f"{how.rates[0]:g} to {how.rates[1]:g}; those tried stand below) and the settings that the method declares, "
        f"{length}, with seeds {', '.join(map(str, how.seeds))}, judged on held-out training data ({'; '.join(held)}). "
        "The first candidate is the preset's settings. Controls have their method's settings."
    )


def _legend(table: PaperTable) -> list[str]:
    controls = ", ".join(f"`@{control}`" for control in table.controls)
    missing = [f"`@{control}`" for control in CONTROLS if control not in table.controls]
    left = f" Left out, for time or since no groups are planted: {', '.join(missing)}." if missing else ""
    text = (
        "Brackets are 95 % intervals over seeds (Student); the clients of one seed share their draws and count as one. "
        "*gain*: over Local with the same seed. *adds*: what communication adds, the row minus its control without "
        f"exchange (`@self`). {controls}: controls (docs/comparing.md).{left} *border*: settings for which the tuning "
        "chose the smallest or largest value that it tried, so that a better one may lie outside. *sent*, of a "
        "control: what a client and its own server exchange."
    )
    return [text]


def _figures(one: Done, table: PaperTable) -> list[str]:
    """The setting of a federation, and its table."""
    experiment, share = one.experiment, _share(one)
    training = experiment.training
    local = f"{training.local_steps} steps" if training.local_steps is not None else f"{training.local_epochs} epochs"
    first = _first(one)
    metric = first.metric
    about = (
        f"{first.clients} clients, model `{experiment.model.name}`, {training.rounds} rounds of {local}, "
        f"{_sampled(training.per_round)} a round. Test {metric.title}{' in per cent' if share else ''}, mean over "
        f"clients.{_rates(one, table)}"
    )
    lines = [about, ""]
    unseen = any(mean_over(by_seed, "unseen") for by_seed in one.results.values())
    heads = ["row", metric.title, *(["unseen"] if unseen else []), "paper", "gain", "adds", "worst 10 %", "ARI", "sent",
             "tuned", "border"]  # fmt: skip
    lines += [_line(heads), _line(["---"] * len(heads))]
    local_runs = one.results.get("local")
    for name, by_seed in one.results.items():
        chosen = one.chosen.get(name)
        gain = None if local_runs is None or name == "local" else differences(by_seed, local_runs)
        cells = [
            name + _given(table, name, by_seed), _mean(mean_over(by_seed, "mean"), share),
            *([_mean(mean_over(by_seed, "unseen"), share)] if unseen else []),
            str(one.part.paper.get(name, "")), _added(gain, share),
            "" if parted(name)[1] == "self" or name == "local"
            else _added(added_by_exchange(name, one.results), share),
            _mean(mean_over(by_seed, "worst10"), share, False), _plain(mean_over(by_seed, "ari")),
            megabytes(sum(mean_over(by_seed, "bytes")) / len(by_seed)), _settings(chosen),
            "" if chosen is None else "; ".join(chosen.border),
        ]  # fmt: skip
        lines.append(_line(cells))
    failed = {name: chosen.failed for name, chosen in one.chosen.items() if chosen.failed}
    if failed:
        told = ", ".join(f"{name} {count}" for name, count in failed.items())
        lines += ["", f"Candidates that failed in training: {told}."]
    return lines


def _rates(one: Done, table: PaperTable) -> str:
    """Which rates were tried: candidates spread evenly, and need not come near the ends of their range."""
    if table.tune is None:
        return ""
    rates: set[float] = set()
    for row in table.rows():
        if row.tuned_as is None and RATE not in row.set:
            made = one.experiment.for_method(row.method).with_changes(**row.set)
            tried = table.tune.equal(tuple(row.set)).settings(made)[: table.tune.equal().spread]
            rates |= {each.get(RATE, made.training.lr) for each in tried}
    return f" Rates tried: {', '.join(f'{rate:g}' for rate in sorted(rates))}."


def _table_of(rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of claims."""
    lines = [_line(_HEADS), _line(["---"] * len(_HEADS))]
    return lines + [_line([text, where, f"**{word}**", *rest]) for text, where, word, *rest in rows]


def figures_csv(table: PaperTable, done: Sequence[Done], kept: Mapping[str, Kept]) -> str:
    """A line for each row of each federation: figures of every seed, intervals, and what the tuning chose.

    kept: what has been written of other federations, which stand in the order of the table.
    """
    texts = {name: one.figures for name, one in kept.items()} | {one.part.name: _figure_lines(one) for one in done}
    return joined_csv([texts[part.name] for part in table.federation if part.name in texts])


def _figure_lines(one: Done) -> str:
    """The CSV of one federation."""
    lines: list[dict[str, Any]] = []
    alone = one.results.get("local")
    for name, by_seed in one.results.items():
        gain = None if alone is None else differences(by_seed, alone)
        chosen = one.chosen.get(name)
        for seed, run in sorted(by_seed.items()):
            row: dict[str, Any] = {"federation": one.part.name, "row": name, "seed": seed}
            row |= {"metric": run.metric.name, "paper": str(one.part.paper.get(name, ""))}
            row |= {"clients": run.clients, "given": GIVEN.join(run.given)}
            row |= {key: run.figures.get(key) for key in FIGURES}
            row |= {"gain": _parts(gain), "adds": _parts(added_by_exchange(name, one.results))}
            row |= {"tuned": _settings(chosen), "border": "" if chosen is None else "; ".join(chosen.border)}
            row |= {"failed": 0 if chosen is None else chosen.failed}
            lines.append(row)
    return csv_text(lines)


def claims_csv(rows: Iterable[Sequence[str]]) -> str:
    """A line for each claim on each federation, which `index` reads; rows: of `verdict_rows`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADS)
    writer.writerows(rows)
    return text.getvalue()


def index(tables: Mapping[str, PaperTable], kept: Mapping[str, str], others: Mapping[str, str] | None = None) -> str:
    """The index of all claims in Markdown; kept: the claims' CSV of each table that has a page.

    others: titles of tables of which only the page is known, by name.
    """
    about = (
        f"Written by `fedkin reproduce` from the pages beside it; nobody types a verdict. {_HOLDS} One in twenty "
        "intervals misses the truth by chance: one that only just excludes its bound is weak evidence."
    )
    lines = ["# What the papers claim, and what is found here", "", about, ""]
    for name, table in tables.items():
        if not table.claim:
            continue
        page_of = f"[{table.title}]({name}.md)" if name in kept else table.title
        lines += [f"## {page_of}", ""]
        lines += [f"{_APART}{table.apart}", ""] if table.apart else []
        rows = _rows_of(kept[name]) if name in kept else verdict_rows(table, [])
        lines += [*_table_of(rows), ""]
    for name, title in (others or {}).items():
        if rows := _rows_of(kept.get(name, "")):
            lines += [f"## [{title}]({name}.md)", "", *_table_of(rows), ""]
    return "\n".join(lines)


def _rows_of(text: str) -> list[Sequence[str]]:
    """The rows of a claims' CSV, without the line of names."""
    return [list(row.values()) for row in csv_rows(text)]


def _first(one: Done) -> Run:
    return next(iter(next(iter(one.results.values())).values()))


def _share(one: Done) -> bool:
    return _first(one).metric.share


def _given(table: PaperTable, name: str, by_seed: Mapping[int, Run]) -> str:
    """What was told to a row, behind its name. A number of groups that was tuned was not told."""
    row, _ = table.row_of(name)
    tuned = table.tune is not None and "method.clusters" in tunables(METHODS[row.method], "method")
    if tuned and "method.clusters" not in row.set:
        return ""
    told = dict.fromkeys(text for run in by_seed.values() for text in run.given)
    return f" ({', '.join(told)})" if told else ""


def _megabytes(count: float) -> str:
    return ("+" if count > 0 else "-" if count < 0 else "") + megabytes(abs(count))


def _sampled(per_round: Any) -> str:
    return "all clients" if per_round == "all" else f"{per_round:g}" + (" clients" if per_round >= 1 else " of them")


def _settings(chosen: Chosen | None) -> str:
    return "" if chosen is None else words_of(chosen.settings)


def _mean(values: Sequence[float], share: bool, interval: bool = True) -> str:
    if not values:
        return ""
    mean = sum(values) / len(values)
    bounds = over(values) if interval else None
    return _number(mean, share) + (
        "" if bounds is None else f" ({_number(bounds.low, share)} to {_number(bounds.high, share)})"
    )


def _added(found: Added | None, share: bool) -> str:
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return _number(found.value, share, "+")
    return f"{_number(found.value, share, '+')} ({_number(found.low, share, '+')} to {_number(found.high, share, '+')})"


def _parts(found: Added | None) -> dict[str, float | None]:
    return {} if found is None else {"mean": found.value, "low": found.low, "high": found.high}


def _plain(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else ""


def _number(value: float, share: bool, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f}" if share else f"{value:{sign}.3f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
