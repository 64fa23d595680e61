"""Pages of the papers' tables: a claim's line."""

from __future__ import annotations

from fedkin.report.results import _claims
from fedkin.running.papers import known_tables, table_folder


def test_a_claim_on_two_federations_names_its_figure_wherever_that_is_given() -> None:
    table = next(one for one in known_tables(table_folder(None)).values() if len(one.federation) > 1)
    once = table.claim[0].model_copy(update={"text": "it is better", "paper": None})
    table = table.model_copy(update={"claim": (once, once.model_copy(update={"paper": "12.3"}))})
    row = {"claim": "it is better", "verdict": "holds", "needed": "above 0", "paper": "12.3", "found": "+1.0"}
    line = _claims(table, [{**row, "federation": part.name} for part in table.federation])[-1]
    assert line.startswith("| it is better (paper: 12.3) |")
    assert line.count("12.3") == 1
