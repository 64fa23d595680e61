"""Pages of reproduced tables: a summary, figures, claims with verdicts, and how to run it again.

A page is written from two CSV files next to it: the figures of every row and seed, and the verdicts on the claims.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedkin.analysis.intervals import Added, over
from fedkin.errors import ConfigError
from fedkin.methods import METHODS
from fedkin.records.comparison import added_by_exchange, differences
from fedkin.records.controls import CONTROLS, split_control
from fedkin.records.files import csv_text
from fedkin.report.html import file_text
from fedkin.report.units import megabytes
from fedkin.running.experiment import load
from fedkin.running.grid import words
from fedkin.running.papers import OURS, PAPERS, Claim, PaperTable, Part
from fedkin.running.reproduce import FIGURES, GIVEN, FinishedPart, Run, claim_value
from fedkin.running.tune import RATE
from fedkin.settings import tunables
from fedkin.tasks import METRICS

Cells = Mapping[str, str]

CLAIM_COLUMNS = ("claim", "federation", "paper", "verdict", "found", "needed", "seeds", "length")
HOW = "## How it was run"
UNRUN = "Not run yet."
UNKNOWN = "a figure is not known"
_UNTESTED = "not testable here: "
_WORDS = {"better": "holds", "worse": "does not hold", "cannot be told apart": "cannot be told apart"}
_SHORT = {"cannot be told apart": "open"}
_UNJUDGED = "not judged"
_COUNTED = (*_WORDS.values(), _UNJUDGED)
_LEGEND = "[how to read it](index.md#how-to-read-a-page)"
_INTERVAL = re.compile(r"([+-]?[\d.]+)(| \w+) \(([+-]?[\d.]+)\2 to ([+-]?[\d.]+)\2\)")


# -- the two CSV files ------------------------------------------------------------------------------------------------


def figure_rows(done: FinishedPart, table: PaperTable) -> list[dict[str, str]]:
    """The figures of each row and seed of a federation, the tuned settings, and gains with their intervals."""
    alone, unmatched = done.results.get("local"), done.unmatched_views(table)
    rows: list[dict[str, Any]] = []
    for name, by_seed in done.results.items():
        gain = None if alone is None else differences(by_seed, alone)
        adds, chosen = added_by_exchange(name, done.results), done.chosen.get(name)
        for seed, run in sorted(by_seed.items()):
            rows.append({
                "federation": done.part.name, "row": name, "seed": seed, "metric": run.metric.name,
                "paper": str(done.part.paper.get(name, "")), "clients": run.clients, "given": GIVEN.join(run.given),
                **{figure: run.figures.get(figure) for figure in FIGURES},
                "gain": _interval(gain), "adds": _interval(adds),
                "tuned": "" if chosen is None else words(chosen.settings, " "),
                "border": "" if chosen is None else "; ".join(chosen.border),
                "failed": 0 if chosen is None else chosen.failed,
                "views": "unmatched" if name in unmatched else None,
            })  # fmt: skip
    return csv_rows(csv_text(rows))


def _means_of_local(rows: Iterable[Cells]) -> dict[str, str]:
    return {row["seed"]: row["mean"] for row in rows if row["row"] == "local"}


def _interval(added: Added | None) -> dict[str, float | None]:
    return {} if added is None else {"mean": added.value, "low": added.low, "high": added.high}


def claim_rows(table: PaperTable, done: Sequence[FinishedPart], kept: Iterable[Cells] = ()) -> list[dict[str, str]]:
    """The verdict on each claim for each of its federations; kept: known verdicts for other federations."""
    ended = {one.part.name: one for one in done}
    known = {(row["claim"], row["federation"]): dict(row) for row in kept}
    rows = []
    for claim in table.claim:
        if claim.untestable is not None:
            rows.append(_claim_row(claim, None, verdict=_UNTESTED + claim.untestable))
            continue
        for part in table.federation:
            if claim.on is not None and part.name not in claim.on:
                continue
            row = _judged_row(claim, ended[part.name]) if part.name in ended else None
            if row is None or row["verdict"] == UNKNOWN:
                row = known.get((claim.text, part.name), row)
            rows.append(row or _claim_row(claim, part, verdict="not run yet"))
    return rows


def merge_results(
    table: PaperTable, done: Sequence[FinishedPart], figures: Sequence[Cells], claims: Sequence[Cells]
) -> tuple[list[Cells], list[dict[str, str]]]:
    """Merge `done` into a page's figures and verdicts; returns both. Other rows and federations are kept.

    The kept rows' figures of each seed serve to judge claims, and to compute gains again if Local was run again. A
    verdict is kept only if none of its rows was run again.
    """
    order = {name: at for at, name in enumerate(table.names(planted=True))}
    every: list[Cells] = []
    judged_parts = []
    ended = {one.part.name: one for one in done}
    again = {(name, row) for name, one in ended.items() for row in (*one.results, *one.failed)}
    rows_of = {claim.text: (claim.better, claim.than) for claim in table.claim}
    claims = [
        row for row in claims
        if not again & {(row["federation"], name) for name in rows_of.get(row["claim"], ())}
    ]  # fmt: skip
    for part in table.federation:
        before = kept = [row for row in figures if row["federation"] == part.name]
        if (one := ended.get(part.name)) is not None:
            kept = [
                row for row in kept
                if (part.name, row["row"]) not in again and split_control(row["row"])[0] not in one.failed
            ]  # fmt: skip
            rows: list[Cells] = [*kept, *figure_rows(one, table)]
            by_row = Run.by_row(rows)
            judged_parts.append(replace(one, results=by_row) if kept else one)
            if "local" in one.results and _means_of_local(before) != _means_of_local(rows):
                gains = {name: _interval(differences(of, by_row["local"])) for name, of in by_row.items()}
                rows[: len(kept)] = [dict(row) | csv_rows(csv_text([{"gain": gains[row["row"]]}]))[0] for row in kept]
            kept = sorted(rows, key=lambda row: order[row["row"]])
        every += kept
    return every, claim_rows(table, judged_parts, claims)


def _claim_row(claim: Claim, part: Part | None, **cells: str) -> dict[str, str]:
    row = {"claim": claim.text, "federation": "" if part is None else part.name, "paper": _in_paper(claim, part)}
    return dict.fromkeys(CLAIM_COLUMNS, "") | row | cells


def _in_paper(claim: Claim, part: Part | None) -> str:
    """The paper's figure for a claim: as the claim states it, or the figures of the two rows."""
    if claim.paper or part is None or claim.ours:
        return claim.paper
    figures = [str(part.paper[name]) for name in (claim.better, claim.than) if name in part.paper]
    return " against ".join(figures) if len(figures) == 1 + (claim.than is not None) else ""


def _judged_row(claim: Claim, done: FinishedPart) -> dict[str, str]:
    difference = claim_value(claim, done.results)
    if difference is None:
        return _claim_row(claim, done.part, verdict=UNKNOWN)
    bounds = "" if difference.low is None or difference.high is None else (
        f" ({_claim_text(difference.low, claim, done.share)} to {_claim_text(difference.high, claim, done.share)})"
    )  # fmt: skip
    verdict = _WORDS.get(difference.against(claim.needed), "one seed: no verdict")
    rounds, whole = done.experiment.training.rounds, done.part.paper_rounds
    if whole is not None and 2 * rounds < whole and claim.figure != "bytes" and not claim.ours:
        verdict = _UNJUDGED
    return _claim_row(
        claim, done.part, verdict=verdict,
        found=_claim_text(difference.value, claim, done.share) + bounds,
        needed=f"above {_claim_text(claim.needed, claim, done.share) if claim.needed else '0'}",
        seeds=str(difference.seeds),
        length="" if whole is None else f"{rounds} of {whole} rounds",
    )  # fmt: skip


def _claim_text(value: float, claim: Claim, share: bool) -> str:
    """A difference of two rows with its sign, or the figure of one row."""
    sign = "" if claim.than is None else "+"
    if claim.figure in ("bytes", "best_bytes"):
        return ("+" if sign and value > 0 else "-" if value < 0 else "") + megabytes(abs(value))
    if claim.figure == "best_round":
        return f"{value:{sign}.1f} rounds"
    return number(value, share and claim.figure not in ("ari", "variance"), sign)


def number(value: float, share: bool, sign: str = "") -> str:
    """A figure as text; a share in per cent.

    >>> number(0.1234, True, "+"), number(0.1234, False)
    ('+12.3', '0.123')
    """
    return f"{100 * value:{sign}.1f}" if share else f"{value:{sign}.3f}"


def csv_rows(text: str) -> list[dict[str, str]]:
    """The rows of a CSV file, as dicts with the names in its first line."""
    return [{name: cell or "" for name, cell in row.items()} for row in csv.DictReader(io.StringIO(text))]


def rows_csv(rows: Sequence[Cells], names: Sequence[str] = ()) -> str:
    """The CSV text of these rows: first the columns `names`, then the others in order of appearance."""
    text = io.StringIO()
    columns = dict.fromkeys([*names, *(name for row in rows for name in row)])
    table = csv.DictWriter(text, list(columns), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def read_pages(
    name: str, table: PaperTable, how: str, pages: Path, without: Sequence[str] = ()
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Read the figures and claims from a table's pages, except for the federations in `without`.

    how: the settings of this definition (`settings_text`). Raises ConfigError if the pages come from another
    definition, or a file is missing.
    """
    path, figures, claims = (pages / f"{name}{end}" for end in (".md", ".csv", "-claims.csv"))
    if not path.exists():
        return [], []
    if _read(path).partition(HOW)[2].strip() != how.partition(HOW)[2].strip():
        raise _other_definition(path, "its settings are not those of this definition")
    rows = [row for row in csv_rows(_read(figures)) if row["federation"] not in without]
    for part in table.federation:
        names = list(dict.fromkeys(row["row"] for row in rows if row["federation"] == part.name))
        if names != [name for name in table.names(planted=True) if name in names]:
            raise _other_definition(path, f"its rows for {part.name!r} are not those of this definition")
    return rows, [row for row in csv_rows(_read(claims)) if row["federation"] not in without]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file, which goes with the page beside it; move the page away, or run all federations"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _other_definition(page: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{page}: written from another definition ({why}), so what it says of the other federations cannot be kept; "
        "run all of them (without --federation), or choose another folder with --pages"
    )


# -- the page ---------------------------------------------------------------------------------------------------------


_AFTER = "After this page you know how these methods compare here"
_AFTER_INDEX = (
    "After this page you know which claims of the four papers hold here. `fedkin reproduce` writes these pages; "
    "[how to read them](#how-to-read-a-page) is at the end."
)


def page(table: PaperTable, figures: Sequence[Cells], claims: Sequence[Cells], how: str, quick: bool = False) -> str:
    """The page of a table in Markdown; how: its last section (`settings_text`)."""
    by_part = {part.name: [row for row in figures if row["federation"] == part.name] for part in table.federation}
    lines = [f"# {table.title}", ""]
    if quick:
        lines += ["**A quick run, to test the command: its figures say nothing about the methods.**", ""]
    claims_link = "" if table.paper is None else f", [the paper's claims](index.md#{table.paper.lower()})"
    lines += [f"{_AFTER} ({_LEGEND}{claims_link}).", ""]
    lines += [*(f"- {each}" for each in _summary_sentences(table, by_part, claims)), ""]
    if table.apart:
        what = "What was run" if table.paper is None else "What differs from the paper"
        lines += [f"{what}: {table.apart}", ""]
    for part in table.federation:
        rows = by_part[part.name]
        lines += [f"## {part.name}", "", *(_figures(part, rows, table) if rows else [UNRUN]), ""]
    if table.paper is not None:
        claims = [row for row in claims if row["claim"].startswith(OURS)]
    if claims:
        lines += ["## Our claims", "", *_claims(table, claims), *_untested(claims), ""]
    return "\n".join([*lines, how])


def _summary_sentences(table: PaperTable, by_part: Mapping[str, Sequence[Cells]], claims: Sequence[Cells]) -> list[str]:
    """Up to four sentences: length of runs, number of claims that hold, the best method, and where exchange adds."""
    counts = {word: sum(row["verdict"] == word for row in claims) for word in _COUNTED}
    sentences = []
    if lengths := {row["federation"]: row["length"] for row in claims if row["length"]}:
        texts = [text.replace(" of ", " of the paper's ") + on for text, on in _shared(lengths).items()]
        sentences.append(f"Length: {'; '.join(texts)}.")
    if table.paper is None and any(counts.values()):  # the index has the claims of papers
        told = ", ".join(f"{_SHORT.get(word, word)} {count}" for word, count in counts.items() if count)
        sentences.append(f"Claims: {told}.")
    best: list[str] = []
    adds: dict[str, str] = {}
    for part, rows in by_part.items():
        known = _group_by("row", [row for row in rows if split_control(row["row"])[1] is None and row.get("mean")])
        if not known:
            continue
        metric = METRICS[rows[0]["metric"]]
        means = {name: _mean([float(row["mean"]) for row in of]) for name, of in known.items()}
        first = max(means, key=lambda name: metric.better(means[name], 0.0))
        local = f", Local {number(means['local'], metric.share)}" if "local" in means and first != "local" else ""
        best.append(f"{first} on {part} ({number(means[first], metric.share)}{local})")
        lows = {name: of[0]["adds.low"] for name, of in known.items() if name != "local" and of[0].get("adds.low")}
        helped = [name for name, low in lows.items() if float(low) > 0]
        if lows:
            many = f"{len(helped)} of {len(lows)} rows"
            adds[part] = many if len(helped) > 5 else ", ".join(helped) or "no row"
    if best:
        sentences.append(f"Highest mean: {'; '.join(best)}." if metric.higher else f"Lowest mean: {'; '.join(best)}.")
    if adds:
        sentences.append(f"Exchange surely adds to {'; '.join(text + on for text, on in _shared(adds).items())}.")
    return sentences or ["Nothing has been run yet."]


def _shared(texts: Mapping[str, str]) -> dict[str, str]:
    """The distinct texts, each with the names of its federations; no names if all federations have the same text.

    >>> _shared({"MNIST": "a", "CIFAR-10": "b", "eICU": "a"}), _shared({"MNIST": "a", "CIFAR-10": "a"})
    ({'a': ' on MNIST and eICU', 'b': ' on CIFAR-10'}, {'a': ''})
    """
    of = {text: [part for part, its in texts.items() if its == text] for text in dict.fromkeys(texts.values())}
    return {text: "" if len(of) == 1 else f" on {' and '.join(parts)}" for text, parts in of.items()}


def _figures(part: Part, rows: Sequence[Cells], table: PaperTable) -> list[str]:
    """One line per row of a federation, with its controls' means."""
    metric, share = METRICS[rows[0]["metric"]], METRICS[rows[0]["metric"]].share
    by_row = _group_by("row", rows)
    controls = [one for one in CONTROLS[1:] if any(split_control(name)[1] == one for name in by_row)]
    optional = [name for name in ("unseen", "worst10", "ari") if any(row.get(name) for row in rows)]
    titles = {"unseen": "unseen", "worst10": "worst 10 %", "ari": "ARI"}
    heads = ["row", metric.title, "paper", "gain", "adds", *(f"@{one}" for one in controls),
             *(titles[name] for name in optional), "sent"]  # fmt: skip
    cells = []
    for name, of in by_row.items():
        if split_control(name)[1] is not None:
            continue
        cells.append([
            name + "*" * bool(of[0]["border"]) + _prior_knowledge(table, name, of),
            _spread([row["mean"] for row in of if row.get("mean")], share), of[0]["paper"],
            "" if name == "local" else _added(of[0], "gain", share),
            "" if name == "local" else _added(of[0], "adds", share),
            *(_spread([row["mean"] for row in by_row.get(f"{name}@{one}", ()) if row.get("mean")], share, False)
              for one in controls),
            *(_spread([row[figure] for row in of if row.get(figure)], share and figure != "ari", figure == "unseen",
                      2 if figure == "ari" else None) for figure in optional),
            megabytes(_mean([float(row["bytes"]) for row in of])),
        ])  # fmt: skip
    filled = [at for at in range(len(heads)) if any(row[at] for row in cells)]
    lines = [_line([row[at] for at in filled]) for row in (heads, ["---"] * len(heads), *cells)]
    clients = ", ".join(sorted({row["clients"] for row in rows}))
    unit = " in %" if share else ""
    text = f"{clients} clients; test {metric.title}{unit}; {len({row['seed'] for row in rows})} seeds."
    if unmatched := [name for name, of in by_row.items() if of[0].get("views")]:
        text += f" No row is Local on the views of {', '.join(unmatched)}: their gains may come from these views."
    if failed := {name: of[0]["failed"] for name, of in by_row.items() if int(of[0].get("failed") or 0)}:
        text += f" Failed candidates: {', '.join(f'{name} {n}' for name, n in failed.items())}."
    if table.tune is not None:
        text += f" Best at a border (*): {sum('*' in row[0] for row in cells)} of {len(cells)} rows."
    if absent := [row.name for row in table.rows() if row.name not in by_row]:
        text += f" No figures: {', '.join(absent)} (not run here, or failed in training)."
    return [text, "", *lines]


def _claims(table: PaperTable, claims: Sequence[Cells]) -> list[str]:
    """One line per tested claim, with a verdict for each federation."""
    printed = {claim.text: f"paper: {claim.paper}" for claim in table.claim if claim.paper}
    tested = [row for row in claims if row["federation"]]
    parts = [part.name for part in table.federation if any(row["federation"] == part.name for row in tested)]
    lines = [_line(["claim", *parts]), _line(["---"] * (len(parts) + 1))] if tested else []
    for claim in dict.fromkeys(row["claim"] for row in tested):
        cells = {row["federation"]: row for row in tested if row["claim"] == claim}
        needed = next((row["needed"] for row in cells.values() if row["needed"] not in ("", "above 0")), "")
        notes = "; ".join(filter(None, (printed.get(claim), f"needed: {needed}" if needed else "")))
        text = claim if table.paper is None else claim.removeprefix(OURS).strip()
        first = f"{text} ({notes})" if notes else text
        verdicts = [_verdict(cells[part], claim in printed) if part in cells else "–" for part in parts]
        lines.append(_line([first, *verdicts]))
    return lines


def _untested(claims: Sequence[Cells]) -> list[str]:
    """The claims that are not tested, in one sentence."""
    texts = [f"{row['claim']} ({row['verdict'].removeprefix(_UNTESTED)})" for row in claims if not row["federation"]]
    return ["", f"Not testable here: {'; '.join(texts)}."] if texts else []


def _verdict(row: Cells, printed: bool) -> str:
    """A verdict with the figure, and the paper's figure on this federation unless it is `printed` next to the claim."""
    text = f"**{_SHORT.get(row['verdict'], row['verdict'])}** {_short(row['found'])}".strip()
    return text if printed or not row["paper"] else f"{text} (paper: {row['paper']})"


def _short(found: str) -> str:
    """Write a figure's symmetric interval as ±; a figure with several units stays unchanged.

    >>> _short("+11.3 (+10.8 to +11.8)"), _short("+163.1 MB (+163.1 MB to +163.1 MB)"), _short("0.4")
    ('+11.3±0.5', '+163.1 MB', '0.4')
    >>> _short("+1.0 GB (+900.0 MB to +1.1 GB)")
    '+1.0 GB (+900.0 MB to +1.1 GB)'
    """
    if (parts := _INTERVAL.fullmatch(found)) is None:
        return found
    value, unit, low, high = parts.groups()
    digits = len(value.partition(".")[2])
    half = f"{(float(high) - float(low)) / 2:.{digits}f}"
    return f"{value}{'±' + half if float(half) else ''}{unit}"


def settings_text(name: str, table: PaperTable, presets: Path, quick: bool = False, methods: Sequence[str] = ()) -> str:
    """The last section of a page: source, command, seeds, tuning, and the setting of each federation."""
    only = f" --methods {','.join(methods)}" if methods else ""
    lines = [HOW, "", f"    fedkin reproduce {name}{' --quick' if quick else ''}{only} --data-root ROOT", ""]
    lines += [f"Source: {table.source}. {_tuning(table)} All figures: [{name}.csv]({name}.csv).", ""]
    settings = {part.name: _setting(part, presets) for part in table.federation}
    rates = {part.name: text for part in table.federation if (text := _rates(part, table, presets))}
    every = "All federations" if len(settings) != 1 else next(iter(settings))
    lines += [f"- {on.removeprefix(' on ') or every}: {text}." for text, on in _shared(settings).items()]
    lines += [f"- Rates of the first candidates{on}: {text}." for text, on in _shared(rates).items()]
    return "\n".join([*lines, ""])


def _tuning(table: PaperTable) -> str:
    seeds = f"Seeds {', '.join(map(str, table.seeds))}."
    if table.tune is None:
        return f"{seeds} Nothing was tuned: every row has the settings of its preset."
    how = table.tune
    held = [how.hold_out, *(f"{row.name}: {row.hold_out}" for row in table.rows() if row.hold_out is not None)]
    tuned = f"Tuned: {how.candidates} candidates, seeds {', '.join(map(str, how.seeds))}"
    return f"{seeds} {tuned}, held out {'; '.join(held)}."


def _setting(part: Part, presets: Path) -> str:
    experiment = load(presets / part.preset).with_changes(**part.set)
    training = experiment.training
    steps, epochs, chosen = training.local_steps, training.local_epochs or 1, training.clients_per_round
    local = f"{steps} steps" if steps is not None else f"{epochs} epoch{'s' * (epochs != 1)}"
    a_round = "all clients" if chosen == "all" else f"{chosen:g}" + (" clients" if chosen >= 1 else " of the clients")
    return f"model `{experiment.model.name}`, {training.rounds} rounds of {local}, {a_round} a round"


def _rates(part: Part, table: PaperTable, presets: Path) -> str:
    """The learning rates of the first candidates of all rows on a federation; empty if nothing was tuned."""
    if table.tune is None:
        return ""
    experiment = load(presets / part.preset).with_changes(**part.set)
    rates: set[float] = set()
    for row in table.rows():
        if row.tuned_as is None and RATE not in row.set:
            changed = experiment.for_method(row.method).with_changes(**row.set)
            equal = table.tune.equal(tuple(row.set))
            rates |= {each.get(RATE, changed.training.lr) for each in equal.settings(changed)}
    return ", ".join(f"{rate:g}" for rate in sorted(rates))


def _prior_knowledge(table: PaperTable, name: str, rows: Sequence[Cells]) -> str:
    """The prior knowledge given to a row, in brackets; a tuned number of groups is no prior knowledge."""
    row, _ = table.row_of(name)
    tuned = table.tune is not None and "method.clusters" in tunables(METHODS[row.method], "method")
    told = list(dict.fromkeys(text for one in rows for text in one["given"].split(GIVEN) if text))
    return "" if not told or (tuned and "method.clusters" not in row.set) else f" ({', '.join(told)})"


def _group_by(name: str, rows: Iterable[Cells]) -> dict[str, list[Cells]]:
    """Group rows by their value in this column."""
    lines: dict[str, list[Cells]] = {}
    for row in rows:
        lines.setdefault(row[name], []).append(row)
    return lines


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(cells: Sequence[str], share: bool, interval: bool = True, digits: int | None = None) -> str:
    """A mean over seeds, ± half its 95 % interval."""
    if not cells:
        return ""
    values = [float(cell) for cell in cells]
    bounds = over(values) if interval else None
    text = number(_mean(values), share) if digits is None else f"{_mean(values):.{digits}f}"
    return text if bounds is None else f"{text}±{number((bounds.high - bounds.low) / 2, share)}"


def _added(row: Cells, name: str, share: bool) -> str:
    if not row.get(f"{name}.mean"):
        return ""
    text = number(float(row[f"{name}.mean"]), share, "+")
    if not row.get(f"{name}.low"):
        return text
    return f"{text}±{number((float(row[f'{name}.high']) - float(row[f'{name}.low'])) / 2, share)}"


def _line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# -- the index --------------------------------------------------------------------------------------------------------


def index(tables: Mapping[str, PaperTable], claims: Mapping[str, str]) -> str:
    """The index in Markdown: every claim of the papers, with its verdict or why it is not tested.

    claims: the claims' CSV of each table that has a page.
    """
    rows = {name: csv_rows(claims[name]) if name in claims else claim_rows(table, []) for name, table in tables.items()}
    pages: dict[str | None, list[str]] = {}
    untested: dict[str | None, dict[str, list[str]]] = {}
    verdicts: list[str] = []
    for name, several in rows.items():
        table = tables[name]
        theirs = [row for row in several if table.paper is not None and not row["claim"].startswith(OURS)]
        verdicts += [row["verdict"] for row in theirs]
        if table.federation:
            title = f"[{table.title}]({name}.md)" if name in claims else table.title
            ours = _counted([row for row in several if row not in theirs])
            notes = "; ".join(filter(None, (_length(several), f"ours: {ours}" if ours else "")))
            lines = [f"**{title}**{f' ({notes})' if notes else ''}", "", *_claims(table, theirs)]
            pages.setdefault(table.paper, []).extend([*lines, ""] if lines[-1] else lines)
        for text, of in _group_by("claim", theirs).items():
            if (verdict := of[0]["verdict"]).startswith(_UNTESTED):
                figure = f" (paper: {of[0]['paper']})" if of[0]["paper"] else ""
                why = verdict.removeprefix(_UNTESTED)
                untested.setdefault(table.paper, {}).setdefault(why, []).append(text + figure)
    counts = [f"{_SHORT.get(word, word)} {verdicts.count(word)}" for word in _COUNTED]
    counts.append(f"not tested {sum(verdict.startswith(_UNTESTED) for verdict in verdicts)}")
    if "not run yet" in verdicts:
        counts.append(f"not run yet {verdicts.count('not run yet')}")
    first = f"Verdicts on the papers' claims, one for each claim and federation: {', '.join(counts)}."
    lines = ["# What the papers claim, and what is found here", "", _AFTER_INDEX, "", first, ""]
    for part in (*PAPERS, None):
        if part in pages or part in untested:
            lines += [f"## {part or 'Other tables'}", ""]
            lines += [text for table in tables.values() if part and table.paper == part and table.summary
                      for text in (table.summary, "")]  # fmt: skip
        lines += pages.get(part, [])
        if part in untested:
            lines += ["Not tested:", ""]
            lines += [f"- {'; '.join(texts)}: {why}." for why, texts in untested[part].items()] + [""]
    return "\n".join([*lines, "## How to read a page", "", file_text("how_to_read.md")])


def _length(rows: Sequence[Cells]) -> str:
    """The seeds and lengths of a page's runs."""
    seeds = [f"{number} seeds" for number in dict.fromkeys(row["seeds"] for row in rows if row["seeds"])]
    lengths = dict.fromkeys(row["length"] for row in rows if row["length"])
    return ", ".join(filter(None, (" or ".join(seeds), " or ".join(lengths))))


def _counted(rows: Sequence[Cells]) -> str:
    """The number of claims with each verdict, over all federations."""
    verdicts = [row["verdict"] for row in rows if row["federation"]]
    known = [*(word for word in _COUNTED if word in verdicts), *sorted(set(verdicts) - set(_COUNTED))]
    return ", ".join(f"{_SHORT.get(word, word)} {verdicts.count(word)}" for word in known)
