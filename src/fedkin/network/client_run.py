"""A client's part of a run: it answers the server's orders, and keeps its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from fedkin import codec
from fedkin.engines.executors.jobs import Modules, OneByOne
from fedkin.engines.failures import words_of
from fedkin.engines.ledger import Page
from fedkin.engines.privacy import system_noise
from fedkin.engines.results import Missing
from fedkin.engines.secure_sums import MASKED, STEPS, Signatures
from fedkin.engines.setup import Setup
from fedkin.engines.site import LocalSite
from fedkin.engines.transport import Validator
from fedkin.errors import MethodError, RunError
from fedkin.federation import Client
from fedkin.flow import Message, Params
from fedkin.folders import made_private, write_private
from fedkin.learning.devices import opened
from fedkin.learning.metrics import Unmeasured
from fedkin.network.hello import Welcome
from fedkin.network.messages import Answer, Failed, Order, ReleaseReport, Scored, WorkReport, tree_of
from fedkin.network.status import StatusFile
from fedkin.untrusted import escaped

_KEPT = 3  # last rounds whose states a client keeps
_HASH = 32  # bytes


class ClientRun:
    """A client's part of the run to which a server has admitted it: an order in, an answer out.

    place: the prefix of the subjects of orders and answers. number: of the next order. samples: the hash of the
    client's samples. versions: its samples by hash, if an order may name others (None: they stay). page: its releases.
    keep_model: stores the model of a round, and returns its hash (None: it is not stored). unseen: whether it takes no
    part.
    """

    def __init__(
        self, setup: Setup, client: Client, start: Welcome, page: Page, folder: Path, status: StatusFile, *,
        device: str, signatures: Signatures, samples: str, versions: Mapping[str, Client] | None, unseen: bool,
        keep_model: Callable[[Client, Params, int], str] | None, server: str, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.setup, self.id, self.page, self.status = setup, client.id, page, status
        self.place, self.epoch, self.number = f"{start.run}/{start.epoch}", start.epoch, start.number
        self.clients, self.samples, self.versions = {client.id: client}, samples, versions
        self.unseen, self.keep_model, self.server, self.say = unseen, keep_model, server, say
        executor = OneByOne(setup.net, self.clients, Modules(opened(device)))
        self.site = LocalSite(setup, self.clients, executor, noise=system_noise, store=page, signatures=signatures)
        self.validator = Validator(setup)
        self.checkpoints = ClientCheckpoints(folder / start.run)
        self.history: tuple[Any, ...] | None = None
        self.said_drift = False
        self.stored_round = 0  # the newest round whose model is kept

    def answer(self, order: Order) -> Answer:
        """Return the answer to an order, with what this client has released so far."""
        answer = Answer(number=self.number) if order.what == "end" else self._answer(order)
        if not self.setup.privacy.on:
            return answer
        if order.what == "scores":
            self.page.sent({"evaluate": ["scores"]})
        self.status.tell(epsilon={"": self.page.spent})
        spent = ReleaseReport(**self.page.tree(self.site.states.get(self.id, {})))
        return answer.model_copy(update={"spent": spent})

    def _answer(self, order: Order) -> Answer:
        """Return the answer to an order, or why there is none; raises RunError if this client cannot go on."""
        if words := self._beyond_consent(order):
            self.say(f"refused: {words}")
            return Answer(number=self.number, error=words)
        if words := self._use_samples(order):
            return Answer(number=self.number, error=words)
        if (kept := self._turn_to(order)) is not None:  # it was answered before this client was killed
            return kept
        message = Message(**order.message)
        if order.what == "scores":
            return self._evaluate(order.round, message)
        try:
            reply = dict(self.site.replies(order.phase, {self.id: message})).get(self.id)
        except Exception as error:
            return Answer(number=self.number, error=self._why(error))
        failed, fields = self._failed(), {} if reply is None else {"reply": dict(reply)}
        if reply is not None and (problem := self.validator.problem(self.id, order.phase, reply, message)):
            # Send only declared fields, since the owner has seen only these.
            self.say(f"phase {order.phase!r}: not what the method declares ({problem.words}), so it was not sent")
            failed, fields = Failed(words=escaped(problem.words, 300), kind="refused"), {}
        total = self.site.work
        work = WorkReport(samples=total.samples.get(self.id, 0), inferred=total.inferred, flops=float(total.flops))
        answer = Answer(number=self.number, work=work, failed=failed, **fields)
        self._save(order, answer)
        return answer

    def _use_samples(self, order: Order) -> str:
        """Use the samples that count in this order, if they may change; returns why that is impossible, else empty."""
        if order.drifted and not self.said_drift:
            self.said_drift = True
            self.say("a test says that new samples here are unlike those of this client's group; look at the data")
        if self.versions is None or order.samples == self.samples:
            return ""
        if order.samples not in self.versions:
            return "the samples of this round are not there any more: the file has changed"
        self.samples, self.clients[self.id] = order.samples, self.versions[order.samples]
        self.say(f"round {order.round}: {self.clients[self.id].size:,} training samples count")
        return ""

    def _beyond_consent(self, order: Order) -> str:
        """Return why this order exceeds the consent of the client's owner; empty if it does not."""
        rounds = self.setup.training.rounds
        if order.round > rounds:
            return f"the server asked for round {order.round} of {rounds}"
        asked = order.phase
        if self.setup.sums_securely and asked in STEPS:
            if asked != MASKED:
                return ""
            asked = str(order.message.get("phase"))
        if order.what == "ask" and asked not in self.setup.method.phases():
            phase = escaped(repr(asked), 60)
            return f"the server asked for phase {phase}, which method {self.setup.method.name!r} does not have"
        return ""

    def _evaluate(self, round: int, offer: Message) -> Answer:
        """Return the score of this client's model, without outcomes of single samples.

        The model is stored before the score is sent.
        """
        try:
            score = self.site.scores({self.id: offer})[self.id]
            digest = [] if self.setup.task.kind == "risk" else [list(part) for part in score.digest]
            fields = {name: getattr(score, name) for name in ("n", "right", "figures", "further")}
            scored = Scored(loss=float(score.loss), digest=digest, **fields)
        except Exception as error:
            return Answer(number=self.number, error=self._why(error))
        if self.keep_model is not None:
            model = self.keep_model(self.clients[self.id], self.site.scorer.model(self.id), round)
            self.stored_round = round
            self.status.tell(model={"": model})
            scored = scored.model_copy(update={"model": model})
        return Answer(number=self.number, score=scored, failed=self._failed())

    def _failed(self) -> Failed | None:
        """Return why this client's own part has failed, if it has."""
        failures = self.site.failed()
        if not failures:
            return None
        first = failures[0]
        kind: Literal["failed", "spent"] = "spent" if first.cause.missing is Missing.SPENT else "failed"
        return Failed(words=escaped(first.cause.reason, 300), injected=first.injected, kind=kind)

    def _why(self, error: Exception) -> str:
        """Return why there is no answer, for the server; text that may hold samples is only logged here."""
        if isinstance(error, Unmeasured):
            self.say(words_of(error))
            return error.public
        return words_of(error)

    # -- states ---------------------------------------------------------------------------------------------------

    def _turn_to(self, order: Order) -> Answer | None:
        """Restore the state for the order's round; returns the answer, if it was made before."""
        site = self.site
        history = self.epoch, order.begun, tuple(order.undone), order.since
        if self.history == history:
            if order.round != site.number:
                self._begin_round(order)
            return None
        self._drop_states(order)
        last = max(self.checkpoints.rounds(), default=0)
        if last < order.last and order.last not in order.undone:
            how = "bring the folder back with which it took part"
            raise RunError(f"this client's state of round {order.last} is not in {self.checkpoints.folder}: {how}")
        kept = self.checkpoints.get(last) if last else None
        site.restore(order.round, {})
        self._begin_round(order)
        self.history = history
        if kept is None:
            return None
        site.restore_client(self.id, kept["part"])
        if last != order.round:
            site.turn_to(order.round)
            return None
        same = kept["epoch"] == self.epoch and kept["number"] == self.number
        site.work = replace(site.work, **kept["work"])
        return Answer.model_validate(kept["answer"]) if same else None

    def _drop_states(self, order: Order) -> None:
        """Drop the states of rounds that the server has undone, before it started again or since."""
        rounds = self.checkpoints.rounds()
        rolled_back = [r for r in rounds if r > order.begun and self.checkpoints.get(r)["epoch"] != self.epoch]
        if newly_undone := set(rolled_back).difference(order.undone):
            self.say(f"going back to the state before round {min(newly_undone)}, as the server has")
        self.checkpoints.drop([r for r in rounds if r < order.since or r in {*order.undone, *rolled_back}])

    def _begin_round(self, order: Order) -> None:
        self.site.turn_to(order.round)
        if self.unseen:  # it is evaluated as a client that never took part
            self.site.forget([self.id])
        if order.what == "ask" and order.round != self.status.round:
            self.status.round = order.round
            self.status.tell(round={self.server: order.round})
            self.say(f"round {order.round}: {order.phase}")

    def _save(self, order: Order, answer: Answer) -> None:
        """Write the state and the answer before the answer is offered: an answer counts only if its state is stored."""
        if self.unseen:
            return
        tree = {
            "epoch": self.epoch, "number": self.number, "part": self.site.checkpoint(self.id),
            "work": vars(self.site.work), "answer": tree_of(answer),
        }  # fmt: skip
        self.checkpoints.put(order.round, tree)


class ClientCheckpoints:
    """The states of one client in one run: a file in `folder` for each of the last three rounds in which it took part.

    Each file begins with a hash of the rest: a state in which a bit has changed is refused. A server that writes a
    checkpoint after every round resumes at most two rounds earlier, so that three states are enough.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made_private(folder, "the client's states")

    def rounds(self) -> list[int]:
        """Return the rounds with a stored state, ascending."""
        names = [path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors")]
        return sorted(int(name) for name in names if name.isdigit())

    def put(self, round: int, tree: Mapping[str, Any]) -> None:
        """Write the state of a round; it is on the disk before this returns."""
        path, data = self._path(round), codec.encode(tree)
        try:
            write_private(path, _hash(data) + data)
        except OSError as error:
            raise RunError(f"{path}: the client's state cannot be written ({error})") from None
        self.drop(self.rounds()[:-_KEPT])

    def get(self, round: int) -> dict[str, Any]:
        """Return the state of this round; raises RunError for a damaged file."""
        path = self._path(round)
        try:
            data = path.read_bytes()
            if _hash(data[_HASH:]) != data[:_HASH]:
                raise MethodError("its hash does not fit: it was changed or is damaged")
            return codec.decode(data[_HASH:])
        except (OSError, MethodError) as error:
            raise RunError(f"{path}: not readable ({error}); remove it to take part with an older state") from None

    def drop(self, rounds: list[int]) -> None:
        """Remove the states of these rounds."""
        for round in rounds:
            self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=_HASH).digest()
