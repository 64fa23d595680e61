"""The numbers behind the papers' figures, computed from a run's records; nothing here draws."""

from __future__ import annotations

from fedkin.analysis.embeddings import Cloud, Features, measure, read_features
from fedkin.analysis.figures import class_overlap, correlation, mean_by_level, separation

__all__ = [
    "Cloud", "Features", "class_overlap", "correlation", "mean_by_level", "measure", "read_features", "separation",
]  # fmt: skip
