"""How participants agree over a network on the encoding of their tables, before the federation begins.

Each sends its summary once (`federation.summaries`): to the server, which sends back what all agree on, or between
peers to all, who each find the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from threading import Event

from pydantic import StrictStr

from fedkin._version import __version__
from fedkin.errors import DataError, MethodError, RunError
from fedkin.federation.summaries import SharedEncoding, TableSummary, agree, check_alike
from fedkin.federation.table import Reading
from fedkin.network.agreement import Agreement, unlike
from fedkin.network.link import Left, Link, LinkError, Missed, Refused
from fedkin.network.messages import Sent, Text, encode, read
from fedkin.tasks import Task
from fedkin.untrusted import said, shown

__all__ = ["ENCODING", "PROFILE", "Shared", "among", "gathered", "received"]

PROFILE, ENCODING = "profile", "encoding"
_MOST = 1 << 26  # bytes of a profile, and of an encoding
_SLICE, _AGAIN = 0.5, 0.05  # seconds of one look, and until the next one


@dataclass(frozen=True)
class Shared:
    """What participants agreed on, and who they are."""

    agreed: SharedEncoding
    clients: tuple[str, ...]

    @property
    def task(self) -> Task:
        """The task that follows from it."""
        return self.agreed.target.task(len(self.agreed.encoding.names))

    def answer(self, name: str) -> EncodingAnswer:
        """Return what this participant is told."""
        if name in self.clients:
            return EncodingAnswer(agreed=self.agreed.to_json())
        return EncodingAnswer(refused=f"the federation is complete without it ({', '.join(self.clients[:8])})")


class Profile(Sent):
    """What a participant tells of its table. settings: those that all must have in common. summary: as JSON."""

    version: StrictStr
    settings: Text
    summary: StrictStr


class EncodingAnswer(Sent):
    """What the server says to a profile: the encoding on which all agreed, as JSON, or why the profile is refused."""

    agreed: StrictStr = ""
    refused: StrictStr = ""


def _offer(summary: TableSummary, settings: str) -> bytes:
    return encode(Profile(version=__version__, settings=settings, summary=summary.to_json()))


def _mark(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _read(data: bytes, settings: str) -> TableSummary:
    """Return what another one tells; raises DataError if it is of another federation, or not readable."""
    try:
        profile = read(Profile, data)
        if words := unlike(Agreement(settings=settings), Agreement(settings=profile.settings, version=profile.version)):
            raise DataError(words)
        return TableSummary.from_json(profile.summary)
    except DataError:
        raise
    except Exception as error:  # whatever another one sends ends nobody's run
        raise DataError(f"what it tells of its table is not readable ({said(error)})") from None


# -- with a server ----------------------------------------------------------------------------------------------------


def gathered(
    link: Link, wanted: int | Sequence[str], settings: str, reading: Reading, *,
    stopping: Callable[[], bool] = lambda: False, say: Callable[[str], None] = lambda line: None,
) -> Shared:  # fmt: skip
    """Wait for the profiles of all clients, and return what they agree on; raises RunError if it is to stop before.

    wanted: their number, or their names. One whose table or settings differ from the others' is refused in one line.
    """
    count = wanted if isinstance(wanted, int) else len(wanted)
    summaries: dict[str, TableSummary] = {}
    pulls: dict[str, Future[bytes]] = {}
    refused, pause = dict[str, bytes](), Event()
    say(f"waiting for what {count} participants tell of their tables")
    with ThreadPoolExecutor(min(32, 4 + count), thread_name_prefix="profile") as pool:
        while len(summaries) < count:
            if stopping():
                raise RunError("stopped while clients were awaited; nothing is lost, start it again")
            for name in sorted(link.present() - set(summaries) - set(pulls)):
                pulls[name] = pool.submit(link.pull, name, PROFILE, _SLICE, _MOST)
            for name in [name for name, job in pulls.items() if job.done()]:
                data = b""
                try:
                    if refused.get(name) == (data := pulls.pop(name).result()):
                        continue  # it has not heard yet
                    _take(name, data, summaries, wanted, settings)
                    say(f"{name} tells of its table: {len(summaries)} of {count}")
                except Missed:
                    continue
                except (DataError, LinkError) as error:
                    if name not in refused or data:
                        say(f"{name} is refused: {said(error)}")
                    refused[name] = data
                    link.refused.add(name, PROFILE, said(error))
                    link.offer(name, f"refused/{_mark(data)}", encode(EncodingAnswer(refused=said(error))))
            pause.wait(_AGAIN)
    shared = Shared(agree(summaries, reading), tuple(sorted(summaries)))
    for name in shared.clients:
        link.offer(name, ENCODING, encode(shared.answer(name)))
    return shared


def _take(
    name: str, data: bytes, summaries: dict[str, TableSummary], wanted: int | Sequence[str], settings: str
) -> None:
    """Take what a participant tells; raises DataError if it does not fit."""
    if not isinstance(wanted, int) and name not in wanted:
        raise DataError(f"network.clients does not name it ({', '.join(wanted[:8])})")
    one = _read(data, settings)
    check_alike({**summaries, name: one})
    summaries[name] = one


def received(
    link: Link, server: str, summary: TableSummary, settings: str, *, stop: Event, patience: float = 2.0,
    say: Callable[[str], None] = lambda line: None,
) -> SharedEncoding:  # fmt: skip
    """Tell the server of this participant's table, and return what all agree on.

    Raises Left, and RunError if the server refuses it.
    """
    link.offer(server, PROFILE, data := _offer(summary, settings))
    say("waiting for the encoding on which all agree")
    places = itertools.cycle((ENCODING, f"refused/{_mark(data)}"))
    try:
        while not stop.is_set():
            try:
                answer = read(EncodingAnswer, link.pull(server, next(places), patience, _MOST))
            except Missed:
                continue
            except Refused as error:  # one who passes messages may have forged it: ask again
                say(f"refused: {said(error)}")
                stop.wait(patience)
                continue
            if answer.refused:
                raise RunError(f"the server refuses this client: {shown(answer.refused, 400)}")
            return SharedEncoding.from_json(answer.agreed)
        raise Left
    except MethodError as error:
        raise RunError(f"the server sent no encoding ({said(error)})") from None
    finally:
        link.withdraw(PROFILE, server)


# -- between peers ----------------------------------------------------------------------------------------------------


def among(
    link: Link, names: Iterable[str], begin: int | Sequence[str], summary: TableSummary, settings: str,
    reading: Reading, *, kept: Shared | None = None, stop: Event, say: Callable[[str], None] = lambda line: None,
) -> Shared:  # fmt: skip
    """Tell all others of this peer's table, and return what those agree on who begin, as each of them finds it.

    begin: their names; a number stands for all. kept: what was agreed before. Raises Left, and RunError if a table or
    settings differ. The profile stays offered, for those who come later.
    """
    others = sorted({*names} - {link.me})
    first = {*others, link.me} if isinstance(begin, int) else {*begin}
    for id in others:
        link.offer(id, PROFILE, _offer(summary, settings))
    if kept is not None:
        return kept
    heard: dict[str, TableSummary] = {link.me: summary} if link.me in first else {}
    waiting = 0
    while missing := sorted(first - set(heard)):
        if stop.is_set():
            raise Left
        if waiting != len(missing):
            waiting = len(missing)
            say(f"waiting for what {', '.join(missing[:8])} tell of their tables")
        for id in missing:
            try:
                heard[id] = _read(link.pull(id, PROFILE, _SLICE, _MOST), settings)
                check_alike({**heard, link.me: summary})
            except (Missed, Refused):
                continue
            except DataError as error:
                raise RunError(f"{id} cannot be a neighbour: {said(error)}") from None
    return Shared(agree(heard, reading), tuple(sorted(heard)))
