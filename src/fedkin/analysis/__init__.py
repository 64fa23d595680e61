"""The numbers behind the papers' figures, computed from a run's records; nothing here draws."""

from __future__ import annotations

from fedkin.analysis.embeddings import Cloud, Features, measure, read_features
from fedkin.analysis.figures import Tree, class_overlap, correlation, mean_by_level, separation, tree

__all__ = [
    "Cloud", "Features", "Tree", "class_overlap", "correlation", "mean_by_level", "measure", "read_features",
    "separation", "tree",
]  # fmt: skip
