"""Your own tables as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fedkin.data.sources._table import TableSource

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Csv"]


class Csv(TableSource):
    """Your own table in one CSV file with a column of clients, or in a folder with a CSV file for each client.

    The first line has the columns' names. Numbers, dates (2026-11-22) and booleans are found; empty cells, NA and NaN
    are missing values; ids of clients and groups are the texts of the file, so that 01 is not 1; so are the columns in
    `categories`, and the target if `kind` says that it is classes, with numbers such as 007 or 250.00. Without `kind`
    numbers of the target are numbers: 01 is the class 1. Files may be packed (.csv.gz).
    delimiter: what separates the cells; without it a comma, or, if the first line has none, the semicolon, tab or bar
    that is most often in it; numbers may then have decimal commas.
    """

    source: Literal["csv"] = "csv"
    delimiter: str | None = Field(None, min_length=1, max_length=1)

    @property
    def endings(self) -> tuple[str, ...]:
        return (".csv", ".csv.gz")

    def read(self, path: Path) -> pa.Table:
        from fedkin.data.tables import read_any_csv

        names = [name for name in (self.client, self.group) if name is not None]
        return read_any_csv(path, self.delimiter, names, self._coded)

    def alike(self, tables: list[pa.Table]) -> list[pa.Table]:
        """The tables with texts in columns of names where some of them have texts: "007" in one file, 12 in another."""
        import pyarrow as pa

        from fedkin.federation.table import texts

        tables = list(tables)
        for name in set(self._coded) & set(tables[0].column_names):
            kinds = [table.schema.field(name).type for table in tables]
            if pa.string() not in kinds:
                continue
            for place, (table, kind) in enumerate(zip(tables, kinds, strict=True)):
                if pa.types.is_integer(kind) or pa.types.is_floating(kind):
                    column = table.column_names.index(name)
                    tables[place] = table.set_column(column, name, pa.array(texts(table, name), pa.string()))
        return tables

    @property
    def _coded(self) -> list[str]:
        """The columns whose numbers are names: of categories, and of classes."""
        return [*self.categories, *([self.target] if self.kind in ("classification", "risk") else [])]
