"""Your own tables as Parquet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedkin.data.sources._table import TableSource
from fedkin.untrusted import parquet_in

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Parquet"]

_INDEX = re.compile(r"__index_level_\d+__")


class Parquet(TableSource):
    """Your own table in one Parquet file with a column of clients, or in a folder with a file for each client."""

    source: Literal["parquet"] = "parquet"

    @property
    def endings(self) -> tuple[str, ...]:
        return (".parquet", ".pq")

    def read(self, path: Path) -> pa.Table:
        table = parquet_in(path, lists=() if self.tokens is None else (self.tokens,))
        # pandas stores the numbers of its rows as a column, if nobody tells it not to.
        return table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)])
