"""Pages of reproduced tables: figures with intervals beside the paper's, what communication adds, and the claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedkin.analysis.added import Added
from fedkin.analysis.intervals import over
from fedkin.methods import METHODS
from fedkin.records.tables import csv_text
from fedkin.report.cells import line, number
from fedkin.report.claims import APART, HOLDS, table_of, verdict_rows
from fedkin.report.kept import UNRUN_LINE, Kept, joined_csv
from fedkin.report.units import megabytes
from fedkin.running.candidates import RATE
from fedkin.running.controls import CONTROLS, parted
from fedkin.running.papers import PaperTable
from fedkin.running.reproduce import Chosen, Done, words_of
from fedkin.running.table_runs import FIGURES, GIVEN, Run, added_by_exchange, differences, mean_over
from fedkin.settings import tunables

__all__ = ["figures_csv", "page", "top"]


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
        lines += ["## The paper's claims", "", HOLDS, "", *table_of(found), ""]
    return top(name, table, quick) + "\n".join(lines)


def top(name: str, table: PaperTable, quick: bool) -> str:
    """What a page says before its federations."""
    lines = [f"# {table.title}", "", f"Source: {table.source}. This page is written from the records by", ""]
    lines += [f"    fedkin reproduce {name}{' --quick' if quick else ''} --data-root ROOT", ""]
    if quick:
        lines += ["**A quick run, to test the command: its figures say nothing about the methods.**", ""]
    if table.apart:
        lines += [f"{APART}{table.apart}", ""]
    return "\n".join([*lines, _tuning(table), "", *_legend(table), "", ""])


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
    experiment, share = one.experiment, one.share
    training = experiment.training
    local = f"{training.local_steps} steps" if training.local_steps is not None else f"{training.local_epochs} epochs"
    first = one.first
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
    lines += [line(heads), line(["---"] * len(heads))]
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
        lines.append(line(cells))
    if unmatched := one.unmatched_views(table):
        lines += [
            "",
            f"No row is Local on the same views as {', '.join(unmatched)}: gains over Local may be the views'.",
        ]
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


def _given(table: PaperTable, name: str, by_seed: Mapping[int, Run]) -> str:
    """What was told to a row, behind its name. A number of groups that was tuned was not told."""
    row, _ = table.row_of(name)
    tuned = table.tune is not None and "method.clusters" in tunables(METHODS[row.method], "method")
    if tuned and "method.clusters" not in row.set:
        return ""
    told = dict.fromkeys(text for run in by_seed.values() for text in run.given)
    return f" ({', '.join(told)})" if told else ""


def _sampled(per_round: Any) -> str:
    return "all clients" if per_round == "all" else f"{per_round:g}" + (" clients" if per_round >= 1 else " of them")


def _settings(chosen: Chosen | None) -> str:
    return "" if chosen is None else words_of(chosen.settings)


def _mean(values: Sequence[float], share: bool, interval: bool = True) -> str:
    if not values:
        return ""
    mean = sum(values) / len(values)
    bounds = over(values) if interval else None
    return number(mean, share) + (
        "" if bounds is None else f" ({number(bounds.low, share)} to {number(bounds.high, share)})"
    )


def _added(found: Added | None, share: bool) -> str:
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return number(found.value, share, "+")
    return f"{number(found.value, share, '+')} ({number(found.low, share, '+')} to {number(found.high, share, '+')})"


def _parts(found: Added | None) -> dict[str, float | None]:
    return {} if found is None else {"mean": found.value, "low": found.low, "high": found.high}


def _plain(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else ""
