"""Pages of reproduced tables: a summary, figures, claims with verdicts, and how to run it again.

A page is written from its definition and the CSV file next to it, which has the figures of every row and seed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin.analysis.intervals import Added, over
from fedkin.errors import ConfigError
from fedkin.methods import METHODS
from fedkin.records.controls import CONTROLS, named, split_control, without_exchange
from fedkin.records.files import csv_text
from fedkin.report.html import file_text
from fedkin.report.units import megabytes
from fedkin.running.experiment import setting_value
from fedkin.running.grid import words
from fedkin.running.papers import OURS, PAPERS, Claim, PaperTable, Part
from fedkin.running.reproduce import GIVEN, Cells, FinishedPart, TunedRow, claim_value, difference
from fedkin.running.tune import RATE
from fedkin.settings import choose, tunables
from fedkin.tasks import METRICS

_GAINS = tuple(f"{name}.{end}" for name in ("gain", "adds") for end in ("mean", "low", "high"))
CLAIM_COLUMNS = ("claim", "federation", "paper", "verdict", "found", "needed", "seeds", "length")
HOW = "## How it was run"
UNRUN = "Not run yet."
_NOT_RUN = "not run yet"
UNKNOWN = "a figure is not known"
_UNTESTED = "not testable here: "
_WORDS = {"better": "holds", "worse": "does not hold", "cannot be told apart": "cannot be told apart"}
_SHORT = {"cannot be told apart": "open"}
_UNJUDGED = "not judged"
_COUNTED = (*_WORDS.values(), _UNJUDGED)
_LEGEND = "[how to read it](index.md#how-to-read-a-page)"


# -- the CSV file, and the verdicts from it ----------------------------------------------------------------------------


def merged(table: PaperTable, done: Sequence[FinishedPart], kept: Iterable[Cells]) -> list[Cells]:
    """The rows of a page's CSV, in the definition's order: those of `done`, and kept ones that were not run again."""
    order = {name: at for at, name in enumerate(table.names(planted=True))}
    done_by_name, before = {one.part.name: one for one in done}, _group_by("federation", kept)
    every: list[Cells] = []
    for part in table.federation:
        rows, one = before.get(part.name, []), done_by_name.get(part.name)
        if one is not None:
            ran = {*one.results, *one.failed}
            others = [
                row for row in rows
                if int(row["seed"]) not in one.seeds or not {row["row"], split_control(row["row"])[0]} & ran
            ]  # fmt: skip
            together = [*others, *figure_rows(one, table)]
            rows = with_gains(sorted(together, key=lambda row: (order[row["row"]], int(row["seed"]))))
        every += rows
    return every


def figure_rows(done: FinishedPart, table: PaperTable) -> list[dict[str, str]]:
    """The figures of each row and seed of a federation, and the tuned settings; gains are left empty."""
    unmatched = done.unmatched_views(table)
    rows: list[dict[str, Any]] = []
    for name, by_seed in done.results.items():
        chosen = done.chosen.get(name)
        tuning = {"tuned": "", "border": "", "failed": 0} if chosen is None else {
            "tuned": words(chosen.settings, " "), "border": "; ".join(chosen.border), "failed": chosen.failed,
        }  # fmt: skip
        for seed, run in sorted(by_seed.items()):
            rows.append({
                "federation": done.part.name, "row": name, "seed": seed, "metric": run["metric"],
                "paper": str(done.part.paper.get(name, "")), **run, **dict.fromkeys(_GAINS, ""), **tuning,
                "views": "unmatched" if name in unmatched else None,
            })  # fmt: skip
    return csv_rows(csv_text(rows))


def tuned_rows(table: PaperTable, rows: Iterable[Cells]) -> dict[str, dict[str, TunedRow]]:
    """The result of the tuning in a page's CSV, for the federations and rows of the table."""
    tuned: dict[str, dict[str, TunedRow]] = {part.name: {} for part in table.federation}
    methods = {row.name: row.method for row in table.rows()}
    for cells in rows:
        part, name = cells["federation"], cells["row"]
        if part in tuned and name in methods:
            border = tuple(filter(None, cells["border"].split("; ")))
            tuned[part][name] = TunedRow(_settings_in(cells["tuned"], methods[name]), border, int(cells["failed"] or 0))
    return tuned


def _settings_in(text: str, method: str) -> dict[str, Any]:
    """Read a method's tuned settings from the text of `words`; raises ConfigError."""
    paths = {path.rpartition(".")[2]: path for path in (RATE, *tunables(METHODS[method], "method"))}
    parts = [] if text == words({}) else [part.partition(" ") for part in text.split(", ")]
    where = f"tuned {text!r}: {method}"
    return {choose(paths, name, where): setting_value(value, where) for name, _, value in parts}


def with_gains(rows: Sequence[Cells]) -> list[Cells]:
    """The rows of a federation with gains over Local, what exchange adds, and the intervals of both."""
    results = _by_row(rows)
    gains = {}
    for name, runs in results.items():
        gain = difference("mean", runs, results.get("local", {}))
        adds = difference("mean", runs, without_exchange(name, results) or {})
        gains[name] = dict(zip(_GAINS, (*_bounds(gain), *_bounds(adds)), strict=True))
    return [{**row, **gains[row["row"]]} for row in rows]


def _bounds(added: Added | None) -> Iterator[str]:
    """A value and the ends of its interval as cells; empty if not known."""
    return ("" if value is None else str(value) for value in (added[:3] if added is not None else (None,) * 3))


def claim_rows(table: PaperTable, rows: Iterable[Cells], presets: Path) -> list[dict[str, str]]:
    """The verdict on each claim for each of its federations, from the rows of the page's CSV."""
    by_part = _group_by("federation", rows)
    rounds = {part.name: part.experiment(presets).training.rounds for part in table.federation if part.paper_rounds}
    verdicts = []
    for claim in table.claim:
        if claim.untestable is not None:
            verdicts.append(_claim_row(claim, None, verdict=_UNTESTED + claim.untestable))
        else:
            verdicts += [
                _judged_row(claim, part, by_part.get(part.name, ()), rounds.get(part.name, 0))
                for part in table.federations_of(claim)
            ]
    return verdicts


def _by_row(rows: Iterable[Cells]) -> dict[str, dict[int, Cells]]:
    """The rows of a federation, by name and seed."""
    return {name: {int(row["seed"]): row for row in of_row} for name, of_row in _group_by("row", rows).items()}


def _claim_row(claim: Claim, part: Part | None, **cells: str) -> dict[str, str]:
    row = {"claim": claim.text, "federation": "" if part is None else part.name, "paper": _in_paper(claim, part)}
    return dict.fromkeys(CLAIM_COLUMNS, "") | row | cells


def _in_paper(claim: Claim, part: Part | None) -> str:
    """The paper's figure for a claim: as the claim states it, or the figures of the two rows."""
    if claim.paper or part is None or claim.ours:
        return claim.paper
    figures = [str(part.paper[name]) for name in claim.row_names if name in part.paper]
    return " against ".join(figures) if len(figures) == len(claim.row_names) else ""


def _judged_row(claim: Claim, part: Part, rows: Sequence[Cells], rounds: int) -> dict[str, str]:
    """The verdict on a claim; rows: those of the federation. rounds: of its runs, if the paper states its own."""
    if not rows:
        return _claim_row(claim, part, verdict=_NOT_RUN)
    found, share = claim_value(claim, _by_row(rows)), METRICS[rows[0]["metric"]].share
    if found is None:
        return _claim_row(claim, part, verdict=UNKNOWN)
    verdict, whole = _WORDS.get(found.against(claim.needed), "one seed: no verdict"), part.paper_rounds
    if whole is not None and 2 * rounds < whole and claim.figure != "bytes" and not claim.ours:
        verdict = _UNJUDGED
    return _claim_row(
        claim, part, verdict=verdict, found=_found_text(found, claim, share),
        needed=f"above {_claim_text(claim.needed, claim, share) if claim.needed else '0'}",
        seeds=str(found.seeds), length="" if whole is None else f"{rounds} of {whole} rounds",
    )  # fmt: skip


def _found_text(found: Added, claim: Claim, share: bool) -> str:
    """A figure, ± half its interval unless that is unknown or rounds to 0."""
    value = _claim_text(found.value, claim, share)
    if found.low is None or found.high is None:
        return value
    half = _claim_text((found.high - found.low) / 2, claim, share, found.value).lstrip("+").partition(" ")[0]
    figure, space, unit = value.partition(" ")
    return f"{figure}±{half}{space}{unit}" if float(half) else value


def _claim_text(value: float, claim: Claim, share: bool, like: float = 0.0) -> str:
    """A difference of two rows with its sign, or the figure of one row. like: bytes whose unit is taken."""
    sign = "" if claim.than is None else "+"
    if claim.figure in ("bytes", "best_bytes"):
        return ("+" if sign and value > 0 else "-" if value < 0 else "") + megabytes(abs(value), abs(like))
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


def read_rows(name: str, table: PaperTable, presets: Path, pages: Path, quick: bool = False) -> list[Cells]:
    """Read the rows of the CSV beside a table's page; none without a page.

    Raises ConfigError if the page comes from another definition, other than by federations and seeds that it lacks, or
    if the CSV is missing.
    """
    path = pages / f"{name}.md"
    if not path.exists():
        return []
    text = _read(path)
    lines = text.splitlines()
    had = tuple(part for part in table.federation if f"## {part.name}" in lines)
    settings = text.partition(HOW)[2]
    seeds = tuple(seed for seed in sorted(table.seeds) if re.search(rf"Seeds [\d, ]*\b{seed}\b", settings))
    how = settings_text(name, table.model_copy(update={"federation": had, "seeds": seeds}), presets, quick)
    if settings.strip() != how.partition(HOW)[2].strip():
        raise _other_definition(path, "its settings are not those of this definition")
    rows: list[Cells] = [*csv_rows(_read(pages / f"{name}.csv"))]
    by_part, order = _group_by("federation", rows), table.names(planted=True)
    for part in table.federation:
        names = list(_group_by("row", by_part.get(part.name, ())))
        if names != [name for name in order if name in names]:
            raise _other_definition(path, f"its rows for {part.name!r} are not those of this definition")
    return rows


def _seeds(rows: Iterable[Cells]) -> tuple[int, ...]:
    return tuple(sorted({int(row["seed"]) for row in rows}))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file, which goes with the page beside it; move the page away, or run the whole table"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _other_definition(page: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{page}: written from another definition ({why}), so its figures cannot be kept; run the whole table (without "
        "--federation, --methods, --seeds and --finished), or choose another folder with --pages"
    )


# -- the page ---------------------------------------------------------------------------------------------------------


_AFTER = "After this page you know how these methods compare here"
_AFTER_INDEX = (
    "After this page you know which claims of the four papers hold here. `fedkin reproduce` writes these pages; "
    "[how to read them](#how-to-read-a-page) is at the end."
)


def page(name: str, table: PaperTable, rows: Sequence[Cells], presets: Path, quick: bool = False) -> str:
    """The page of a table in Markdown; rows: those of its CSV."""
    claims = claim_rows(table, rows, presets)
    _, our_claims = _split_claims(table, claims)
    claims_link, what = "", "What was run"
    if table.paper is not None:
        claims_link, what = f", [the paper's claims](index.md#{table.paper.lower()})", "What differs from the paper"
    by_part = {part.name: [row for row in rows if row["federation"] == part.name] for part in table.federation}
    lines = [f"# {table.title}", ""]
    if quick:
        lines += ["**A quick run, to test the command: its figures say nothing about the methods.**", ""]
    lines += [f"{_AFTER} ({_LEGEND}{claims_link}).", ""]
    lines += [*(f"- {sentence}" for sentence in _summary_sentences(table, by_part, claims)), ""]
    if table.apart:
        lines += [f"{what}: {table.apart}", ""]
    for part, of_part in by_part.items():
        lines += [f"## {part}", "", *_figures(table, of_part), ""]
    if our_claims:
        lines += ["## Our claims", "", *_claims(table, our_claims)]
        if untested := [row for row in our_claims if not row["federation"]]:
            texts = [f"{row['claim']} ({row['verdict'].removeprefix(_UNTESTED)})" for row in untested]
            lines += ["", f"Not testable here: {'; '.join(texts)}."]
        lines.append("")
    with_figures = table.model_copy(update={"seeds": _seeds(rows) or tuple(sorted(table.seeds))})
    return "\n".join([*lines, settings_text(name, with_figures, presets, quick)])


def _summary_sentences(table: PaperTable, by_part: Mapping[str, Sequence[Cells]], claims: Sequence[Cells]) -> list[str]:
    """Up to four sentences: length of runs, number of claims that hold, the best method, and where exchange adds."""
    methods = {}
    for part, rows in by_part.items():
        if scored := [row for row in rows if split_control(row["row"])[1] is None and row.get("mean")]:
            methods[part] = _group_by("row", scored)
    sentences = _claims_sentences(table, claims)
    if methods:
        sentences.append(_best_sentence(methods))
    helped = _shared({part: text for part, by_row in methods.items() if (text := _helped(by_row))})
    if helped:
        sentences.append(f"Exchange significantly adds to {'; '.join(text + on for text, on in helped.items())}.")
    return sentences or ["Nothing has been run yet."]


def _claims_sentences(table: PaperTable, claims: Sequence[Cells]) -> list[str]:
    """The length of runs, and for a table of no paper the number of claims with each verdict."""
    sentences = []
    lengths = _shared({row["federation"]: row["length"] for row in claims if row["length"]})
    if texts := [text.replace(" of ", " of the paper's ") + on for text, on in lengths.items()]:
        sentences.append(f"Length: {'; '.join(texts)}.")
    verdicts = [row["verdict"] for row in claims]
    if table.paper is None and (counts := _counts(verdicts, [word for word in _COUNTED if word in verdicts])):
        sentences.append(f"Claims: {counts}.")
    return sentences


def _best_sentence(methods: Mapping[str, Mapping[str, Sequence[Cells]]]) -> str:
    """The method with the best mean on each federation, or all with this mean, with Local's mean beside it."""
    texts, which = [], ""
    for part, by_row in methods.items():
        metric = METRICS[next(iter(by_row.values()))[0]["metric"]]
        means = {name: _mean(_values(rows, "mean")) for name, rows in by_row.items()}
        mean = max(means.values(), key=lambda mean: metric.better(mean, 0.0))
        best = [name for name in means if means[name] == mean]
        figures = number(mean, metric.share)
        if "local" in means and "local" not in best:
            figures += f", Local {number(means['local'], metric.share)}"
        texts.append(f"{' and '.join(best)} on {part} ({figures})")
        which = "Highest" if metric.higher else "Lowest"
    return f"{which} mean: {'; '.join(texts)}."


def _helped(by_row: Mapping[str, Sequence[Cells]]) -> str:
    """The rows to which exchange significantly adds; empty if no row is judged."""
    lows = {name: of[0].get("adds.low") for name, of in by_row.items() if name != "local"}
    judged = {name: float(low) for name, low in lows.items() if low}
    helped = [name for name, low in judged.items() if low > 0]
    if len(helped) > 5:
        return f"{len(helped)} of {len(judged)} rows"
    return (", ".join(helped) or "no row") if judged else ""


def _shared(texts: Mapping[str, str]) -> dict[str, str]:
    """The distinct texts, each with the names of its federations; no names if all federations have the same text.

    >>> _shared({"MNIST": "a", "CIFAR-10": "b", "eICU": "a"}), _shared({"MNIST": "a", "CIFAR-10": "a"})
    ({'a': ' on MNIST and eICU', 'b': ' on CIFAR-10'}, {'a': ''})
    """
    of = {text: [part for part, its in texts.items() if its == text] for text in dict.fromkeys(texts.values())}
    return {text: "" if len(of) == 1 else f" on {' and '.join(parts)}" for text, parts in of.items()}


def _figures(table: PaperTable, rows: Sequence[Cells]) -> list[str]:
    """One line per row of a federation, with its controls' means, after a sentence about all of them."""
    if not rows:
        return [UNRUN]
    by_row = _group_by("row", rows)
    methods = {name: of for name, of in by_row.items() if split_control(name)[1] is None}
    cells = [_figure_cells(table, name, by_row) for name in methods]
    filled = [head for head in (cells[0] if cells else ()) if any(row[head] for row in cells)]
    table_lines = _markdown(filled, ([row[head] for head in filled] for row in cells))
    return [f"{_runs_sentence(rows)}{''.join(_reservations(table, methods))}", "", *table_lines]


def _figure_cells(table: PaperTable, name: str, by_row: Mapping[str, Sequence[Cells]]) -> dict[str, str]:
    """The figures of a row by the heads of their columns."""
    of, first = by_row[name], by_row[name][0]
    metric, share = METRICS[first["metric"]], METRICS[first["metric"]].share
    controls = {control: by_row.get(named(name, control), ()) for control in CONTROLS[1:]}
    return {
        "row": name + "*" * bool(first["border"]) + _prior_knowledge(table, name, of),
        metric.title: _spread_cell(of, "mean", share), "paper": first["paper"],
        "gain": _added_cell(first, "gain", share), "adds": _added_cell(first, "adds", share),
        **{f"@{control}": _mean_cell(rows, "mean", share) for control, rows in controls.items()},
        "unseen": _spread_cell(of, "unseen", share), "worst 10 %": _mean_cell(of, "worst10", share),
        "ARI": _mean_cell(of, "ari", share=False, digits=2), "sent": megabytes(_mean(_values(of, "bytes"))),
    }  # fmt: skip


def _runs_sentence(rows: Sequence[Cells]) -> str:
    clients = ", ".join(sorted({row["clients"] for row in rows}))
    metric, seeds = METRICS[rows[0]["metric"]], {len(_seeds(of_row)) for of_row in _group_by("row", rows).values()}
    counts = " or ".join(map(str, sorted(seeds)))
    return f"{clients} clients; test {metric.title}{' in %' if metric.share else ''}; {counts} seeds."


def _reservations(table: PaperTable, methods: Mapping[str, Sequence[Cells]]) -> Iterator[str]:
    """Sentences about rows whose figures are missing, or may be better with other settings or for other reasons."""
    first_rows = {name: of[0] for name, of in methods.items()}
    if unmatched := [name for name, row in first_rows.items() if row.get("views")]:
        yield f" No row is Local on the views of {', '.join(unmatched)}: their gains may come from these views."
    if failed := [
        f"{name} {row['failed']}" for name, row in first_rows.items() if row.get("failed", "0") not in ("", "0")
    ]:
        yield f" Failed candidates: {', '.join(failed)}."
    if table.tune is not None:
        at_border = sum(bool(row["border"]) for row in first_rows.values())
        yield f" Best at a border (*): {at_border} of {len(methods)} rows."
    if absent := [row.name for row in table.rows() if row.name not in methods]:
        yield f" No figures: {', '.join(absent)} (not run here, or failed in training)."


def _claims(table: PaperTable, claims: Sequence[Cells]) -> list[str]:
    """One line per tested claim, with a verdict for each federation."""
    tested = [row for row in claims if row["federation"]]
    parts = [part.name for part in table.federation if part.name in {row["federation"] for row in tested}]
    by_claim = _group_by("claim", tested).items()
    lines = (_claim_cells(table, claim, rows, parts) for claim, rows in by_claim)
    return _markdown(["claim", *parts], lines) if tested else []


def _claim_cells(table: PaperTable, claim: str, rows: Sequence[Cells], parts: Sequence[str]) -> list[str]:
    """A claim with the paper's figure and the value needed, if it is not 0; and its verdict on each federation.

    The paper's figure is beside each verdict, unless it is printed with the claim.
    """
    printed = {known.text: known.paper for known in table.claim if known.paper}.get(claim, "")
    needed = [f"needed: {row['needed']}" for row in rows if row["needed"] not in ("", "above 0")]
    notes = "; ".join([*([f"paper: {printed}"] if printed else []), *needed[:1]])
    text = claim if table.paper is None else claim.removeprefix(OURS).strip()
    verdicts = {}
    for row in rows:
        verdict = f"**{_SHORT.get(row['verdict'], row['verdict'])}** {row['found']}".strip()
        verdicts[row["federation"]] = verdict + (f" (paper: {row['paper']})" if row["paper"] and not printed else "")
    return [text + (f" ({notes})" if notes else ""), *(verdicts.get(part, "–") for part in parts)]


def settings_text(name: str, table: PaperTable, presets: Path, quick: bool = False) -> str:
    """The last section of a page: source, command, seeds, tuning, and the setting of each federation."""
    lines = [HOW, "", f"    fedkin reproduce {name}{' --quick' if quick else ''} --data-root ROOT", ""]
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
    experiment = part.experiment(presets)
    training = experiment.training
    steps, epochs, chosen = training.local_steps, training.local_epochs or 1, training.clients_per_round
    local = f"{steps} steps" if steps is not None else f"{epochs} epoch{'s' * (epochs != 1)}"
    a_round = "all clients" if chosen == "all" else f"{chosen:g}" + (" clients" if chosen >= 1 else " of the clients")
    return f"model `{experiment.model.name}`, {training.rounds} rounds of {local}, {a_round} a round"


def _rates(part: Part, table: PaperTable, presets: Path) -> str:
    """The learning rates of the first candidates of all rows on a federation; empty if nothing was tuned."""
    if table.tune is None:
        return ""
    experiment = part.experiment(presets)
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


def _values(rows: Sequence[Cells], figure: str) -> list[float]:
    """The known values of a figure, one per seed."""
    return [float(row[figure]) for row in rows if row.get(figure)]


def _mean_cell(rows: Sequence[Cells], figure: str, share: bool, digits: int | None = None) -> str:
    """A mean over seeds."""
    values = _values(rows, figure)
    if not values:
        return ""
    return number(_mean(values), share) if digits is None else f"{_mean(values):.{digits}f}"


def _spread_cell(rows: Sequence[Cells], figure: str, share: bool) -> str:
    """A mean over seeds, ± half its 95 % interval."""
    bounds = over(_values(rows, figure))
    half = "" if bounds is None else f"±{number((bounds.high - bounds.low) / 2, share)}"
    return _mean_cell(rows, figure, share) + half


def _added_cell(row: Cells, name: str, share: bool) -> str:
    """A gain, or what exchange adds, ± half its interval; empty for Local."""
    if row["row"] == "local" or not row.get(f"{name}.mean"):
        return ""
    text = number(float(row[f"{name}.mean"]), share, "+")
    if not row.get(f"{name}.low"):
        return text
    return f"{text}±{number((float(row[f'{name}.high']) - float(row[f'{name}.low'])) / 2, share)}"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = (heads, ["---"] * len(heads), *rows)
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


# -- the index --------------------------------------------------------------------------------------------------------


def index(tables: Mapping[str, PaperTable], figures: Mapping[str, Sequence[Cells]], presets: Path) -> str:
    """The index in Markdown: every claim of the papers, with its verdict or why it is not tested.

    figures: the rows of the CSV of each table that has a page.
    """
    rows = {name: claim_rows(table, figures.get(name, ()), presets) for name, table in tables.items()}
    verdicts = [row["verdict"] for name, table in tables.items() for row in _split_claims(table, rows[name])[0]]
    counts = [_counts(verdicts, _COUNTED), f"not tested {sum(word.startswith(_UNTESTED) for word in verdicts)}"]
    if _NOT_RUN in verdicts:
        counts.append(_counts(verdicts, [_NOT_RUN]))
    found = f"Verdicts on the papers' claims, one for each claim and federation: {', '.join(counts)}."
    lines = ["# What the papers claim, and what is found here", "", _AFTER_INDEX, "", found, ""]
    for paper in (*PAPERS, None):
        of_paper = {name: table for name, table in tables.items() if table.paper == paper}
        lines += _paper_section(paper, of_paper, rows, figures)
    return "\n".join([*lines, "## How to read a page", "", file_text("how_to_read.md")])


def _paper_section(
    paper: str | None, tables: Mapping[str, PaperTable], rows: Mapping[str, Sequence[Cells]], pages: Collection[str]
) -> list[str]:
    """The tables of one paper (or of none), and the claims that are not tested; pages: the tables that have a page."""
    head = [f"## {paper or 'Other tables'}", ""]
    entries: list[str] = []
    of_paper: list[Cells] = []
    for name, table in tables.items():
        if paper is not None and table.summary:
            head += [table.summary, ""]
        if table.federation:
            entries += _entry(f"[{table.title}]({name}.md)" if name in pages else table.title, table, rows[name])
        of_paper += _split_claims(table, rows[name])[0]
    body = [*entries, *_untested_by_reason(of_paper)]
    return [*head, *body] if body else []


def _entry(title: str, table: PaperTable, rows: Sequence[Cells]) -> list[str]:
    """A table in the index: seeds and lengths of its runs, the verdicts on our claims, and the claims of the paper."""
    of_paper, ours = _split_claims(table, rows)
    seeds = [f"{number} seeds" for number in dict.fromkeys(row["seeds"] for row in rows if row["seeds"])]
    lengths = dict.fromkeys(row["length"] for row in rows if row["length"])
    verdicts = [row["verdict"] for row in ours if row["federation"]]
    known = [word for word in _COUNTED if word in verdicts]
    counts = _counts(verdicts, [*known, *sorted(set(verdicts) - set(known))])
    runs = ", ".join(filter(None, (" or ".join(seeds), " or ".join(lengths))))
    notes = "; ".join(filter(None, (runs, counts and f"ours: {counts}")))
    claims = _claims(table, of_paper)
    return [f"**{title}** ({notes})" if notes else f"**{title}**", "", *claims, *([""] if claims else [])]


def _split_claims(table: PaperTable, rows: Sequence[Cells]) -> tuple[list[Cells], list[Cells]]:
    """Return (the claims of the table's paper, ours)."""
    ours = [row for row in rows if table.paper is None or row["claim"].startswith(OURS)]
    return [row for row in rows if row not in ours], ours


def _untested_by_reason(rows: Sequence[Cells]) -> list[str]:
    """The claims that are not tested, one line for each reason."""
    claims: dict[str, list[str]] = {}
    for row in [row for row in rows if row["verdict"].startswith(_UNTESTED)]:
        text = f"{row['claim']} (paper: {row['paper']})" if row["paper"] else row["claim"]
        claims.setdefault(row["verdict"].removeprefix(_UNTESTED), []).append(text)
    lines = [f"- {'; '.join(texts)}: {reason}." for reason, texts in claims.items()]
    return ["Not tested:", "", *lines, ""] if lines else []


def _counts(verdicts: Sequence[str], words: Sequence[str]) -> str:
    """How often each of these words is a verdict."""
    return ", ".join(f"{_SHORT.get(word, word)} {verdicts.count(word)}" for word in words)
