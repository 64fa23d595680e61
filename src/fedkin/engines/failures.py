"""Clients whose own part fails: who, where and why; and the errors that end a run when that is too much."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedkin.engines.faults import Crashed
from fedkin.engines.privacy import Spent
from fedkin.errors import FedkinError, MethodError, RunError

__all__ = ["Failure", "Failures", "TooFew", "raise_if_all", "words_of"]

_MEANT = (Crashed, Spent)  # what settings have happen
_LONGEST = 300  # characters of a reason in the records


@dataclass(frozen=True, eq=False)
class Failure:
    """A client that failed in a phase. injected: `[faults]`, `privacy.budget`, or the network had it fail.

    kind: what it is called in the records: "failed", "spent", or "late", "gone", "refused" for a client over a network.
    """

    id: str
    phase: str
    words: str
    error: Exception | None = None
    injected: bool = False
    kind: str = "failed"


class TooFew(RunError):
    """Fewer clients answered than `run.min_replies`, and `run.on_missing` says to stop."""


class _Noting:
    """The context of `Failures.of`: a class, because it is entered for each client."""

    __slots__ = ("failures", "id", "phase")

    def __init__(self, failures: Failures, id: str, phase: str) -> None:
        self.failures, self.id, self.phase = failures, id, phase

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failures.note(error, self.id, self.phase)
        return True


class Failures:
    """The failures of clients since they were last taken; with `stop`, the first one is raised at once."""

    def __init__(self, stop: bool = False) -> None:
        self.stop = stop
        self.found: list[Failure] = []
        self.round = 0

    def of(self, id: str, phase: str) -> _Noting:
        """Return a context that notes an error of a client's own part. Errors of the machine are raised."""
        return _Noting(self, id, phase)

    def note(self, error: Exception, id: str, phase: str) -> None:
        """Note this error of a client's own part; raises it, with the client's name, if the run is to stop.

        Errors of the machine are raised as they are.
        """
        if isinstance(error, (RunError, MemoryError)):
            raise error
        named = self._named(error, id, phase)
        if self.stop and not isinstance(error, _MEANT):
            if named is error:
                raise error
            raise named from error.__cause__
        kind = "spent" if isinstance(error, Spent) else "failed"
        self.found.append(Failure(id, phase, words_of(error), named, isinstance(error, _MEANT), kind))

    def _named(self, error: Exception, id: str, phase: str) -> Exception:
        """Return an error that names round, client and phase; errors of a user's own code stay what they are."""
        if not isinstance(error, FedkinError):
            return error
        named = MethodError(f"round {self.round}, client {id!r}, phase {phase!r}: {error}")
        named.__cause__ = error.__cause__
        return named

    def take(self) -> list[Failure]:
        """Return the failures so far, and forget them."""
        found, self.found = self.found, []
        return found


def raise_if_all(asked: int, failures: Iterable[Failure]) -> None:
    """Raise the first error if all that were asked have failed, and not because a setting had them fail."""
    own = {failure.id: failure for failure in failures if not failure.injected}
    if asked and len(own) == asked:
        first = next(iter(own.values()))
        raise first.error if first.error is not None else MethodError(first.words)


def words_of(error: Exception) -> str:
    """Return one line for the records, with the kind of an error that is not fedkin's."""
    text = " ".join(str(error).split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    text = text if isinstance(error, FedkinError) else f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
