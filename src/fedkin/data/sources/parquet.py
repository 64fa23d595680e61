"""Your own tables as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedkin.data.sources._table import TableSource
from fedkin.untrusted import parquet_in

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Parquet"]


class Parquet(TableSource):
    """Your own table in one Parquet file with a column of clients, or in a folder with a file for each client."""

    source: Literal["parquet"] = "parquet"

    @property
    def endings(self) -> tuple[str, ...]:
        return (".parquet", ".pq")

    def read(self, path: Path) -> pa.Table:
        return parquet_in(path)
