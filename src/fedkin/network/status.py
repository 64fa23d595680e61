"""How a participant's federation goes, in a file of its own folder: who is there, rounds, bytes, what was refused.

The file is renewed while the participant runs, so that `fedkin net status` reads it without a network. It is written
for people: trouble with it never ends a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fedkin.errors import RunError
from fedkin.folders import replace
from fedkin.network.link import Link, LinkError, is_name
from fedkin.settings import Settings, parse
from fedkin.untrusted import error_text, json_of, text_in

FILE = "status.json"
_LOOK = 1.0  # seconds from one look to the next
_SILENT = 15.0  # seconds after which a participant that has written nothing is called silent
_LARGEST = 1 << 26


class _Known(Settings):
    """What is known of a participant.

    epsilon: of what it has released in this run under `[privacy]`, if that is finite. model: the hash of the model that
    it keeps; empty before the first evaluation.
    """

    epsilon: Annotated[float | None, BeforeValidator(lambda value: None if value == math.inf else value)] = None
    model: str = ""


class Other(_Known):
    """Another participant as this one sees it.

    here: whether it is connected. round: the last round of which this one has an answer or a message of it. seen: when
    it was connected last, in seconds since 1970. bytes_in, bytes_out: of offers, from it and to it. refused: how many
    of its messages and arrivals were refused; why: the newest of them. group: in which the method has put it.
    """

    here: bool
    round: int | None = None
    seen: float | None = None
    bytes_in: int = Field(0, ge=0)
    bytes_out: int = Field(0, ge=0)
    refused: int = Field(0, ge=0)
    why: str = ""
    group: int | None = None


Role = Literal["server", "client", "peer"]
State = Literal["running", "ended", "left"]


class Status(_Known):
    """What the file says.

    written: when, in seconds since 1970. round, rounds: done or under way, and to do; 0: not begun, not known. others:
    by name. nameless: refused messages of which nobody knows whose they were. weights: the largest ones that a peer has
    learned, by name.
    """

    name: str
    role: Role
    federation: str
    state: State
    written: float
    round: int = Field(0, ge=0)
    rounds: int = Field(0, ge=0)
    others: dict[str, Other] = Field(default_factory=dict)
    nameless: int = Field(0, ge=0)
    weights: dict[str, float] = Field(default_factory=dict)

    def late(self, now: float) -> float:
        """Seconds for which a participant that should be running has written nothing; 0 while it does."""
        age = now - self.written
        return age if self.state == "running" and age > _SILENT else 0.0


def read_status(path: Path) -> Status:
    """Return what a file says; raises RunError, in one line, for one that is none."""
    try:
        tree = json_of(text_in(path, _LARGEST))
    except OSError as error:
        raise RunError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise RunError(f"{path}: not a status file ({error_text(error)})") from None
    if not isinstance(tree, dict):
        raise RunError(f"{path}: not a status file (expected a table)")
    return parse(Status, tree, str(path))


class StatusFile:
    """Keeps the status file of a participant while it is in `with`.

    names: the others, who may become more. federation, round, rounds: as in `Status`; set while it runs.
    """

    def __init__(
        self, link: Link, folder: Path, role: Role, names: Callable[[], Iterable[str]], federation: str = ""
    ) -> None:  # fmt: skip
        self.link, self.folder, self.role, self.names, self.federation = link, folder, role, names, federation
        self.round = self.rounds = 0
        self.told: dict[str, dict[str, Any]] = {}
        self.seen: dict[str, float] = {}
        self.over = Event()
        self.thread = Thread(target=self._keep, name="status", daemon=True)

    def __enter__(self) -> StatusFile:
        self.look()
        self.thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.look("ended" if kind is None else "left")

    def tell(self, **facts: Mapping[str, Any]) -> None:
        """Note fields of `Other` by participant, and under "" of `Status`."""
        for field, values in facts.items():
            for id, value in values.items():
                self.told.setdefault(id, {})[field] = value

    def _keep(self) -> None:
        while not self.over.wait(_LOOK):
            self.look()

    def look(self, state: State = "running") -> None:
        """Write how it goes now; trouble with the file ends no run."""
        with suppress(LinkError, OSError):
            replace(self.folder / FILE, self._status(state).model_dump_json(indent=1).encode())

    def _status(self, state: State) -> Status:
        link, now = self.link, round(time.time(), 1)
        present, counts = link.present(), link.refused.counts
        self.seen |= dict.fromkeys(present, now)
        why = {refusal.who: refusal.why for refusal in link.refused}
        others = {
            id: Other(
                here=id in present, seen=self.seen.get(id), bytes_in=link.bytes_in[id], bytes_out=link.bytes_out[id],
                refused=counts.get(id, 0), why=why.get(id, "")[:300], **self.told.get(id, {}),
            )
            for id in sorted({*self.names(), *present, *filter(is_name, counts)} - {link.me})
        }  # fmt: skip
        return Status(
            name=link.me, role=self.role, federation=self.federation, state=state, written=now, round=self.round,
            rounds=self.rounds, others=others, nameless=counts.get("", 0), **self.told.get("", {}),
        )  # fmt: skip
