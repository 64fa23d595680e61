"""Tables of peers: without a server, all peers agree on a common encoding of their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Event

from pydantic import StrictStr

from fedkin.data.own import OwnTable
from fedkin.errors import DataError, MethodError, RunError, first_few
from fedkin.federation.summaries import ColumnTypes, TableSummary, agree, common_columns
from fedkin.network.agreement import Agreement, difference
from fedkin.network.gathering import Shared
from fedkin.network.hello import LARGEST_HELLO
from fedkin.network.link import Left, Link, Missed, Refused
from fedkin.network.messages import WireMessage, encode, read
from fedkin.untrusted import error_text, escaped

_SHORT = 0.5  # seconds of one pull from a peer


class TableOffer(WireMessage):
    """What a peer tells about its table: its columns, or their profile, as JSON."""

    agreement: Agreement
    text: StrictStr


def agree_with_peers(
    link: Link, names: Iterable[str], begin: int | Sequence[str], table: OwnTable, settings: str, *,
    kept: Shared | None, stop: Event, say: Callable[[str], None],
) -> Shared:  # fmt: skip
    """Exchange table profiles with all other peers; return the common encoding, which each peer computes itself.

    begin: names of the peers that begin and agree on the encoding; a number stands for all. Peers exchange first their
    columns, and then the profile of the columns that most have. kept: what was agreed before. Raises Left, and RunError
    if this table or the settings differ. Columns and profile stay offered, for peers that come later.
    """
    others = {*names} - {link.me}
    first = {*others, link.me} if isinstance(begin, int) else {*begin}

    def exchanged(what: str, text: str) -> dict[str, str]:
        mine = TableOffer(agreement=Agreement(settings=settings), text=text)
        for id in others:
            link.offer(id, what, encode(mine))
        return _pull_tables(link, what, mine, first if kept is None else set(), stop, say)

    try:
        texts = exchanged("columns", table.columns.to_json())
        columns = {id: ColumnTypes.from_json(text) for id, text in texts.items()}
        common = common_columns(columns) if kept is None else kept.columns
        if extra := table.keep(common):
            say(f"columns that most do not have stay here: {', '.join(map(escaped, extra))}")
        texts = exchanged("profile", table.summary.to_json())
        profiles = {id: TableSummary.from_json(text) for id, text in texts.items()}
        return kept or Shared(agree(profiles, table.reading), common, tuple(profiles))
    except DataError as error:
        raise RunError(error_text(error)) from None


def _pull_tables(
    link: Link, what: str, mine: TableOffer, first: set[str], stop: Event, say: Callable[[str], None]
) -> dict[str, str]:  # fmt: skip
    """Return the text of each of these peers; raises Left, and RunError if the settings of a peer differ."""
    heard = {link.me: mine.text} if link.me in first else {}
    waiting = 0
    while missing := sorted(first - set(heard)):
        if stop.is_set():
            raise Left
        if waiting != len(missing):
            waiting = len(missing)
            say(f"waiting for the {what} of the tables of {first_few(missing)}")
        for id in missing:
            try:
                there = read(TableOffer, link.pull(id, what, _SHORT, LARGEST_HELLO))
                words = difference(mine.agreement, there.agreement)
            except (Missed, Refused):
                continue
            except MethodError as error:
                words = error_text(error)
            if words:
                raise RunError(f"{id} cannot be a neighbour: {words}")
            heard[id] = there.text
    return dict(sorted(heard.items()))
