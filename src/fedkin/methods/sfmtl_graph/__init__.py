"""SFMTL-Graph: heads and anchors make a graph of clients each round, and heads are mixed inside its communities."""

from __future__ import annotations

from fedkin.methods.sfmtl_graph.method import SfmtlGraph

__all__ = ["SfmtlGraph"]
