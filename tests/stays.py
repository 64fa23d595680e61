"""Tables of hospitals that differ as real ones do: categories, dates, booleans, missing values, an empty column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = ("north", "north-2", "south")


def table(name: str, rows: int = 60) -> pd.DataFrame:
    """The rows of one hospital; "south" knows nobody's dose, and has a ward that no other has."""
    rng = np.random.default_rng(HOSPITALS.index(name))
    age = rng.normal(60, 12, rows).round()
    age[rng.random(rows) < 0.2] = np.nan
    wards = ["icu", "er", None] if name != "south" else ["icu", "burns"]
    found = {
        "age": age,
        "ward": rng.choice(np.array(wards, dtype=object), rows),
        "admitted": pd.date_range("2026-01-01", periods=rows).strftime("%Y-%m-%d"),
        "smoker": rng.random(rows) < 0.4,
        "dose": np.full(rows, np.nan) if name == "south" else rng.gamma(2.0, size=rows).round(3),
        "days": rng.gamma(3.0, size=rows).round(2),
        "died": np.where(rng.random(rows) < 0.3, "yes", "no"),
    }
    return pd.DataFrame(found)


def written(folder: Path) -> Path:
    """A folder with a CSV file for each hospital."""
    folder.mkdir()
    for name in HOSPITALS:
        table(name).to_csv(folder / f"{name}.csv", index=False)
    return folder
