"""Tables for the terminal and the report of one run or many: one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedkin.report.ranks import Blocks

__all__ = ["write_report"]


def write_report(runs: Sequence[Path], out: Path, blocks: Blocks = "auto", tsne: bool = False) -> Path:
    """Write one self-contained HTML file about these finished runs (methods x seeds); returns its path.

    A folder that holds run folders stands for all of them, and the answer of `fedkin advise` in it comes first. blocks:
    over what methods are tested against each other: "federations", "seeds", "clients"; "auto" takes federations if
    there are several, else seeds. tsne: pictures of features by t-SNE, which takes seconds, in place of principal
    components. Raises RunError for a folder without a finished run.
    """
    from fedkin.records.files import write_bytes
    from fedkin.report.collect import collect
    from fedkin.report.page import answer_in, page

    write_bytes(out, page(collect(runs, blocks, tsne), answer_in(runs)).encode())
    return out
