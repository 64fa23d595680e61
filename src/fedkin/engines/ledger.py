"""The ledger of a participant's releases under `[privacy]`, on its own disk; no entry is ever taken back.

States are rolled back when the server is; the ledger is not. It has its own folder beside the states: an append-only
file with a line for each release, written before the release is sent; and the released numbers of the last rounds,
which are sent again when the server asks for them again.
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
from fedkin.engines.privacy import BudgetSpent, Privacy
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.folders import fsync_folder, made_private, write_private
from fedkin.learning.private import Private
from fedkin.untrusted import error_text, json_of

# The key of the release record in a client's state; methods have no such names.
KEY = "_privacy"
_FILE, _SALT = "releases.jsonl", "salt"
_KEPT = 3  # rounds whose releases are kept, as many as a client keeps states


def one_more(before: Mapping[str, Any] | None, rate: float, noise: float, steps: int) -> dict[str, Any]:
    """Return a client's private training after one more fit: {"fits", "steps", "rate", "noise"}."""
    fits, so_far = (0, 0) if before is None else (before["fits"], before["steps"])
    return {"fits": fits + 1, "steps": so_far + steps, "rate": rate, "noise": noise}


class Ledger:
    """All releases of one participant, of every run.

    folder: where the ledger is stored; None: a temporary folder, which is removed with this object.
    sent_unprotected: names of what is sent without protection before a run begins. limit: the owner's own limit of
    epsilon over all runs in this folder; nothing is released above it; None: no limit.
    Raises RunError for a damaged file, because then nobody knows how much was released.
    """

    def __init__(self, folder: Path | None = None, limit: float | None = None) -> None:
        if folder is None:
            folder = Path(mkdtemp(prefix="fedkin-"))
            finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder, self.limit = folder, limit
        made_private(self.folder, "what was released")
        self.lines = list(self._read(self.folder / _FILE))
        self.sent_unprotected: list[str] = []

    def page(self, run: str, privacy: Privacy, consented: int | None = None) -> Page:
        """Return the page of one run; raises ConfigError if the owner has set a limit and the run adds no noise."""
        if self.limit is not None and not privacy.noise and privacy.sample_epsilon is None:
            raise ConfigError(
                f"--max-epsilon {self.limit:g}: this federation adds no noise to what leaves, so that no epsilon is "
                "finite; take part without the limit, or ask for [privacy] with noise"
            )
        return Page(self, run, privacy, consented)

    def epsilon(self, delta: float, *more: Mapping[str, Any]) -> float:
        """Return the epsilon of all releases of all runs, together with these further lines."""
        mu_squared, steps = list[float](), Counter[tuple[float, float]]()
        for line in (*self.lines, *more):
            if "rate" in line:
                steps[line["rate"], line["noise"]] += line["count"]
            else:
                mu_squared.append(line["count"] / line["noise"] ** 2 if line["noise"] > 0 else math.inf)
        return total_epsilon(math.fsum(mu_squared), steps, delta)

    def salted(self, digest: str) -> str:
        """Return the samples' digest, hashed with a secret of this participant so that nobody can test guesses."""
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
        """Yield the lines. A line that a kill left incomplete is cut off; its release was never sent."""
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
                yield _checked_line(json_of(text.decode()))
            except (ValueError, KeyError, TypeError) as error:
                why = "so that nobody knows how much was released; put the file back as it was"
                raise RunError(f"{path}: line {number} is damaged ({error_text(error)}), {why}") from None


def _checked_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of the ledger in its types; raises ValueError, KeyError or TypeError for impossible counts."""
    share, training = float(line["share"]), "rate" in line
    if not (type(line["count"]) is int and line["count"] > 0 and math.isfinite(line["noise"])):
        raise ValueError("not a number of releases")
    if training and not (0 < line["rate"] <= 1 and line["noise"] > 0):
        raise ValueError("not steps of training")
    if not 0 <= share <= 1:
        raise ValueError("not a share of a signature")
    return {**line, "run": str(line["run"]), "at": str(line["at"]), "noise": float(line["noise"]), "share": share}


class SimulatedPage:
    """The releases of a simulated client or peer in this run, which are a part of its state: its release record.

    Only signatures are stored, as nothing else is asked for again. The attributes are those of `Page`.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self.record, self.signatures = record, record.get("signed", {})
        self.count: int = record.get("releases", 0)
        self.signed = float(sum(part["share"] for part in self.signatures.values()))
        self.trained: dict[str, Any] | None = record.get("trained")

    def train(self, at: str, private: Private) -> None:
        """Count a fit."""
        self.record["trained"] = one_more(self.trained, private.rate, private.noise, private.steps)

    def known(self, prefix: str) -> bool:
        """Whether a release whose name has this prefix is stored; here never."""
        return False

    def counts(self, prefix: str) -> bool:
        """Whether a signature whose name has this prefix was counted."""
        return any(part["at"].startswith(prefix) for part in self.signatures.values())

    def find(self, at: str) -> dict[str, Any] | None:
        """Return the signature that was released under this name."""
        return next((part["fields"] for part in self.signatures.values() if part["at"] == at), None)

    def check(self, count: int, share: float = 0.0) -> None:
        """Here without a limit."""

    def keep(self, at: str, round: int, count: int, fields: Mapping[str, Any], share: float = 0.0) -> None:
        """Count these releases, or a signature, which is stored."""
        if share:
            part = {"at": at, "share": share, "fields": dict(fields)}
            self.record["signed"] = {**self.signatures, at.split(" ")[1]: part}
        else:
            self.count += count


class Page:
    """The releases of one run in the ledger of a deployed client or peer.

    count: releases so far, without those of a signature; signed: the released share of a signature. open: fields that
    were sent without protection, by phase. consented: the most releases of this run (None: no limit).
    """

    def __init__(self, ledger: Ledger, run: str, privacy: Privacy, consented: int | None) -> None:
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
        """Return the key of all draws of the fit with this name; only this participant can compute it."""
        return self.ledger.salted(f"training {self.run} {at}").encode()

    def train(self, at: str, private: Private) -> None:
        """Count a fit, before it begins; raises BudgetSpent if it would cost more than the owner's limit.

        A repeated fit has the same draws, and so the same result: it costs nothing.
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
        """Whether a release whose name has this prefix is stored."""
        return any(at.startswith(prefix) and self._path(at).exists() for at in self.counted)

    def counts(self, prefix: str) -> bool:
        """Whether a release whose name has this prefix was counted."""
        return any(at.startswith(prefix) for at in self.counted)

    def find(self, at: str) -> dict[str, Any] | None:
        """Return the fields that were released under this name; None if they are not stored, or were never counted."""
        if at not in self.counted:
            return None
        try:
            tree = codec.decode(self._path(at).read_bytes())
            return dict(tree["fields"]) if tree["at"] == at else None
        except (KeyError, OSError, MethodError):
            return None  # it is released again, and counted again

    def _line(self, at: str, count: int, share: float = 0.0) -> dict[str, Any]:
        """Return the line of `count` releases, or of this share of a signature."""
        noise = (self.privacy.signature_noise or 0.0) / math.sqrt(share) if share else self.privacy.noise or 0.0
        delta = self.privacy.delta
        return {"run": self.run, "at": at, "count": count, "noise": noise, "delta": delta, "share": share}

    def check(self, count: int, share: float = 0.0) -> None:
        """Raise BudgetSpent if this would exceed the owner's consent for this run, or limit over all runs.

        count: further releases. share: further share of a signature.
        """
        if self.consented is not None and self.count + count > self.consented:
            made = f"this participant has made {self.count} releases in this run"
            raise BudgetSpent(f"{made}, and its owner consented to {self.consented}")
        self._within_limit(*[self._line("", count)] * (count > 0), *[self._line("", 1, share)] * (share > 0))

    def _within_limit(self, *lines: Mapping[str, Any]) -> None:
        """Raise BudgetSpent if these releases would exceed the owner's limit over all runs."""
        limit, delta = self.ledger.limit, self.privacy.delta
        if limit is not None and (least := self.ledger.epsilon(delta, *lines)) > limit:
            spent = f"epsilon of all that this participant has released is {self.ledger.epsilon(delta):.3g}"
            raise BudgetSpent(f"{spent}, and would be {least:.3g}, above its owner's limit of {limit:g}")

    def keep(self, at: str, round: int, count: int, fields: Mapping[str, Any], share: float = 0.0) -> None:
        """Store the released fields, then count them; send them only after that. share: of a signature; 0: none."""
        _write(self._path(at), codec.encode({"at": at, "fields": dict(fields)}))
        self.ledger.add(self._line(at, count, share))
        self.counted.add(at)
        self.count += 0 if share else count
        self.signed += share
        self._forget(round)

    def sent(self, open: Mapping[str, Iterable[str]]) -> None:
        """Note fields that are sent without protection."""
        for phase, names in open.items():
            self.open[phase] = sorted({*self.open.get(phase, ()), *names})

    def tree(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what others may know: the number of releases, the share of a signature, open fields, and training.

        state: the participant's state, which has the open fields of its phases.
        """
        self.sent(state.get(KEY, {}).get("open", {}))
        trained = {} if self.trained is None else {"trained": self.trained}
        return {"releases": self.count, "signed": self.signed, "open": self.open, **trained}

    def _path(self, at: str) -> Path:
        name = blake2b(at.encode(), digest_size=16).hexdigest()
        return self.folder / f"{at.partition(' ')[0]}-{name}.release"

    def _forget(self, round: int) -> None:
        """Remove the numbers of old rounds, which nobody asks for any more; counts and signatures (round 0) stay."""
        for path in self.folder.glob("*.release"):
            if 0 < int(path.name.partition("-")[0]) <= round - _KEPT:
                path.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    try:
        write_private(path, data)
    except OSError as error:
        raise RunError(f"{path}: cannot be written, so that nothing is sent ({error})") from None
