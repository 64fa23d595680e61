"""What a participant has released under `[privacy]`, on its own disk, where nothing takes it back.

States go back when a server does; this does not. It is a folder of its own, beside that of the states: a file to which
lines are only added, one for each release before it leaves, and the released numbers of the last rounds, which are sent
again when they are asked for again.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from fedkin import codec
from fedkin.engines.epsilon import total_epsilon
from fedkin.engines.privacy import Privacy, Spent
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.folders import fsync_folder, made_private, write_private
from fedkin.learning.private import Private
from fedkin.untrusted import error_text, json_of

# Where a client's state has what it has released: no method has a name that begins so.
KEY = "_privacy"
_FILE, _SALT = "releases.jsonl", "salt"
_KEPT = 3  # rounds whose releases are kept, as long as the states that belong to them


def one_more(before: Mapping[str, Any] | None, rate: float, noise: float, steps: int) -> dict[str, Any]:
    """Return a client's private training after one more fit: {"fits", "steps", "rate", "noise"}."""
    fits, so_far = (0, 0) if before is None else (before["fits"], before["steps"])
    return {"fits": fits + 1, "steps": so_far + steps, "rate": rate, "noise": noise}


class Ledger:
    """All releases of one participant, of every run.

    folder: where they are; None: in a temporary one, which ends with this object.
    beside: what leaves as it is before a run begins. limit: the owner's own epsilon, over all runs in this folder,
    above which nothing more is released; None: no limit.
    Raises RunError for a file that is damaged, because then nobody knows how much was released.
    """

    def __init__(self, folder: Path | None = None, limit: float | None = None) -> None:
        if folder is None:
            folder = Path(mkdtemp(prefix="fedkin-"))
            finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder, self.limit = folder, limit
        made_private(self.folder, "what was released")
        self.lines = list(self._read(self.folder / _FILE))
        self.beside: list[str] = []

    def page(self, run: str, privacy: Privacy, consented: int | None = None) -> Page:
        """Return the part of one run; raises ConfigError if nothing in it could be within the owner's limit."""
        if self.limit is not None and not privacy.noise and privacy.sample_epsilon is None:
            raise ConfigError(
                f"--max-epsilon {self.limit:g}: this federation adds no noise to what leaves, so that no epsilon is "
                "finite; take part without the limit, or ask for [privacy] with noise"
            )
        return Page(self, run, privacy, consented)

    def epsilon(self, delta: float, *more: Mapping[str, Any]) -> float:
        """Return the epsilon of all releases of all runs, and of these lines besides."""
        mu_squared, steps = list[float](), Counter[tuple[float, float]]()
        for line in (*self.lines, *more):
            if "rate" in line:
                steps[line["rate"], line["noise"]] += line["count"]
            else:
                mu_squared.append(line["count"] / line["noise"] ** 2 if line["noise"] > 0 else math.inf)
        return total_epsilon(math.fsum(mu_squared), steps, delta)

    def salted(self, digest: str) -> str:
        """Return a digest of this participant's samples under a secret of its own, so that nobody can try guesses."""
        path = self.folder / _SALT
        if not path.exists():
            _write(path, secrets.token_bytes(32))
        return hmac.new(path.read_bytes(), digest.encode(), "blake2b").hexdigest()[:32]

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one release; it is on the disk before this returns."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        path = self.folder / _FILE
        try:
            new = not path.exists()
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                if os.write(number, data) != len(data):
                    raise OSError("the disk is full")
                os.fsync(number)
            finally:
                os.close(number)
            if new:
                fsync_folder(self.folder)
        except OSError as error:
            raise RunError(f"{path}: a release cannot be counted, so that nothing is sent ({error})") from None
        self.lines.append(dict(line))

    def _read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the lines. What a kill left half-written was never sent, and is cut off."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunError(f"{path}: {error.strerror or error}") from None
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
        for number, text in enumerate(data[:whole].splitlines(), 1):
            try:
                line = json_of(text.decode())
                share = float(line["share"])
                if not (type(line["count"]) is int and line["count"] > 0 and math.isfinite(line["noise"])):
                    raise ValueError("not a number of releases")
                if not 0 < line.get("rate", 1) <= 1 or ("rate" in line and line["noise"] <= 0):
                    raise ValueError("not steps of training")
                if not 0 <= share <= 1:
                    raise ValueError("not a share of a signature")
                named = {name: str(line[name]) for name in ("run", "at")}
                yield {**line, **named, "noise": float(line["noise"]), "share": share}
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(
                    f"{path}: line {number} is damaged ({error_text(error)}), so that nobody knows how much was "
                    "released; put the file back as it was"
                ) from None


class Page:
    """The releases of one run, which a client of a deployment keeps here, so that nothing takes them back.

    A simulation has no pages: there the count of releases is part of a client's state.

    count: releases so far, without those of a signature; signed: the share of a signature. open: fields that were sent
    as they are, by phase. consented: the most releases of this run (None: no limit).
    """

    def __init__(self, ledger: Ledger, run: str, privacy: Privacy, consented: int | None = None) -> None:
        self.ledger, self.run, self.privacy, self.consented = ledger, run, privacy, consented
        self.open: dict[str, list[str]] = {}
        self.folder = ledger.folder / run
        lines = [line for line in ledger.lines if line["run"] == run]
        self.trained: dict[str, Any] | None = None
        for line in lines:
            self._count(line)
        self.count: int = sum(line["count"] for line in lines if not line["share"] and "rate" not in line)
        self.signed: float = sum(line["share"] for line in lines)
        self.counted = {line["at"] for line in lines}
        if privacy.on:
            made_private(self.folder, "what was released")

    @property
    def spent(self) -> float:
        """The epsilon of this run's releases."""
        return self.privacy.epsilon(self.count, self.signed, self.trained)

    def secret(self, at: str) -> bytes:
        """Return the key of all draws of the fit of this name, which nobody but this participant can know."""
        return self.ledger.salted(f"training {self.run} {at}").encode()

    def train(self, at: str, private: Private) -> None:
        """Count a fit, before it begins; raises Spent if it would cost more than the owner's limit.

        The same fit again has the same draws, and so the same result: it costs nothing.
        """
        line = {**self._line(at, private.steps), "noise": private.noise, "rate": private.rate}
        self._within_limit(line)
        self.ledger.add(line)
        self.counted.add(at)
        self._count(self.ledger.lines[-1])

    def _count(self, line: Mapping[str, Any]) -> None:
        if "rate" in line:
            self.trained = one_more(self.trained, line["rate"], line["noise"], line["count"])

    def known(self, prefix: str) -> bool:
        """Whether a release of a name that begins so is kept."""
        return any(at.startswith(prefix) and self._path(at).exists() for at in self.counted)

    def counts(self, prefix: str) -> bool:
        """Whether a release of a name that begins so was counted."""
        return any(at.startswith(prefix) for at in self.counted)

    def find(self, at: str) -> dict[str, Any] | None:
        """Return the fields that were released under this name; None if they are not kept, or were never counted."""
        if at not in self.counted:
            return None
        try:
            tree = codec.decode(self._path(at).read_bytes())
            return dict(tree["fields"]) if tree["at"] == at else None
        except (KeyError, OSError, MethodError):
            return None  # it is released anew, and counted once more

    def _line(self, at: str, count: int, share: float = 0.0) -> dict[str, Any]:
        """Return the line of so many releases, or of this share of a signature."""
        noise = (self.privacy.signature_noise or 0.0) / math.sqrt(share) if share else self.privacy.noise or 0.0
        delta = self.privacy.delta
        return {"run": self.run, "at": at, "count": count, "noise": noise, "delta": delta, "share": share}

    def check(self, count: int, share: float = 0.0) -> None:
        """Raise Spent if this is beyond what the owner consented to, or its limit over all runs.

        count: releases more. share: of a signature.
        """
        if self.consented is not None and self.count + count > self.consented:
            raise Spent(
                f"this participant has made {self.count} releases in this run, and its owner consented to "
                f"{self.consented}"
            )
        self._within_limit(*[self._line("", count)] * (count > 0), *[self._line("", 1, share)] * (share > 0))

    def _within_limit(self, *lines: Mapping[str, Any]) -> None:
        """Raise Spent if these releases would exceed the owner's limit over all runs."""
        limit, delta = self.ledger.limit, self.privacy.delta
        if limit is not None and (least := self.ledger.epsilon(delta, *lines)) > limit:
            raise Spent(
                f"epsilon of all that this participant has released is {self.ledger.epsilon(delta):.3g}, and would be "
                f"{least:.3g}, above its owner's limit of {limit:g}"
            )

    def keep(self, at: str, round: int, count: int, fields: Mapping[str, Any], share: float = 0.0) -> None:
        """Write what is released, then count it; it leaves after that. share: of a signature, 0 if it is none."""
        _write(self._path(at), codec.encode({"at": at, "fields": dict(fields)}))
        self.ledger.add(self._line(at, count, share))
        self.counted.add(at)
        self.count += 0 if share else count
        self.signed += share
        self._forget(round)

    def sent(self, open: Mapping[str, Iterable[str]]) -> None:
        """Note fields that are sent as they are."""
        for phase, names in open.items():
            self.open[phase] = sorted({*self.open.get(phase, ()), *names})

    def tree(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what others are told: the releases, the share of a signature, the open fields, and the training.

        state: the participant's, which names those that it sent in phases.
        """
        self.sent(state.get(KEY, {}).get("open", {}))
        trained = {} if self.trained is None else {"trained": self.trained}
        return {"releases": self.count, "signed": self.signed, "open": self.open, **trained}

    def _path(self, at: str) -> Path:
        name = blake2b(at.encode(), digest_size=16).hexdigest()
        return self.folder / f"{at.partition(' ')[0]}-{name}.release"

    def _forget(self, round: int) -> None:
        """Forget the numbers of rounds that nobody asks for any more; their count stays, and so do signatures (0)."""
        for path in self.folder.glob("*.release"):
            if 0 < int(path.name.partition("-")[0]) <= round - _KEPT:
                path.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    try:
        write_private(path, lambda file: file.write(data))
    except OSError as error:
        raise RunError(f"{path}: cannot be written, so that nothing is sent ({error})") from None
