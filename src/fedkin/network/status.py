"""The status file in a participant's folder: who is there, rounds, bytes, and what was refused.

The file is updated while the participant runs, so that `fedkin net status` reads it without a network. It is for people
only: an error with the file never ends a run.
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
from fedkin.network.link import Link, LinkError
from fedkin.settings import Settings, parse
from fedkin.untrusted import error_text, json_of, plain_word, text_in

FILE = "status.json"
_LOOK = 1.0  # seconds between two updates
_SILENT = 15.0  # seconds without an update after which a participant is called silent
_LARGEST = 1 << 26


class _Facts(Settings):
    """Facts about any participant.

    epsilon: that of its releases in this run under `[privacy]`, if finite. model: the hash of the model that it keeps;
    empty before the first evaluation.
    """

    epsilon: Annotated[float | None, BeforeValidator(lambda value: None if value == math.inf else value)] = None
    model: str = ""


class Other(_Facts):
    """Another participant as this one sees it.

    here: whether it is connected. round: the last round with an answer or a message from it. seen: when it was last
    connected or heard, in seconds since 1970. bytes_in, bytes_out: bytes of offers from it and to it. refused: how many
    of its messages and registrations were refused; why: the newest reason. group: its group in the method.
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


class Status(_Facts):
    """The content of the file.

    written: when, in seconds since 1970. round: the last round that has begun (0: none). rounds: the number of rounds
    in the run (0: unknown). others: the other participants by name. nameless: number of refused messages from unknown
    senders. weights: the largest weights that a peer has learned, by name.
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
        """Return the seconds without an update of a participant that should be running; 0 if it is not silent."""
        age = now - self.written
        return age if self.state == "running" and age > _SILENT else 0.0


def read_status(path: Path) -> Status:
    """Return the content of a status file; raises RunError, in one line, for any other file."""
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
    """Keeps the status file of a participant up to date inside a `with` block.

    names: returns the names of the others, which may grow. federation, round, rounds: as in `Status`; set during a run.
    """

    def __init__(
        self, link: Link, folder: Path, role: Role, names: Callable[[], Iterable[str]], federation: str = ""
    ) -> None:  # fmt: skip
        self.link, self.folder, self.role, self.names, self.federation = link, folder, role, names, federation
        self.round = self.rounds = 0
        self.facts: dict[str, dict[str, Any]] = {}
        self.seen: dict[str, float] = {}
        self.heard: dict[str, int] = {}  # bytes from each participant until the last look
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
        """Note fields of `Other` by participant; under "", fields of `Status`."""
        for field, values in facts.items():
            for id, value in values.items():
                self.facts.setdefault(id, {})[field] = value

    def _keep(self) -> None:
        while not self.over.wait(_LOOK):
            self.look()

    def look(self, state: State = "running") -> None:
        """Write the current status; an error with the file does not end the run."""
        with suppress(LinkError, OSError):
            replace(self.folder / FILE, self._status(state).model_dump_json(indent=1).encode())

    def _status(self, state: State) -> Status:
        link, now = self.link, round(time.time(), 1)
        present, counts = link.present(), dict(link.refused.counts)
        # A participant that is refused may be gone again before the next look.
        heard, self.heard = self.heard, dict(link.bytes_in)
        self.seen |= dict.fromkeys([*present, *(id for id, size in self.heard.items() if size > heard.get(id, 0))], now)
        others = {
            id: Other(
                here=id in present, seen=self.seen.get(id), bytes_in=link.bytes_in[id], bytes_out=link.bytes_out[id],
                refused=counts.get(id, 0), why=link.refused.reasons.get(id, "")[:300], **self.facts.get(id, {}),
            )
            for id in sorted({*self.names(), *present, *filter(plain_word, counts)} - {link.me})
        }  # fmt: skip
        return Status(
            name=link.me, role=self.role, federation=self.federation, state=state, written=now, round=self.round,
            rounds=self.rounds, others=others, nameless=counts.get("", 0), **self.facts.get("", {}),
        )  # fmt: skip
