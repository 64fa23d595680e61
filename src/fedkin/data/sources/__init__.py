"""Readers of data sets. To add one, add a module with a named subclass of Source here."""

from __future__ import annotations

from fedkin.data.registry import discover
from fedkin.data.sources.base import Source

__all__ = ["SOURCES", "Source"]

SOURCES: dict[str, type[Source]] = discover(__name__, __path__, Source, "source")
