"""Readers of data sets. Adding one takes one module here, with a subclass of Source that names itself."""

from __future__ import annotations

from fedkin.data.registry import discover
from fedkin.data.sources.base import Source

__all__ = ["SOURCES", "Source"]

SOURCES: dict[str, type[Source]] = discover(__name__, __path__, Source, "source")
