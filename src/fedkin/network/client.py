"""A client of a federation over a network: it joins, answers the server's orders with its own samples, and leaves."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from threading import Event
from typing import Any, Literal, TypeVar

from fedkin import codec
from fedkin.data.own import FileWatch, OwnSamples, OwnTable
from fedkin.engines.executors.jobs import Modules, OneByOne
from fedkin.engines.failures import words_of
from fedkin.engines.ledger import Ledger
from fedkin.engines.privacy import system_noise
from fedkin.engines.results import Missing
from fedkin.engines.secure_sums import MASKED, STEPS
from fedkin.engines.setup import Setup
from fedkin.engines.site import LocalSite
from fedkin.engines.transport import Validator
from fedkin.errors import ConfigError, DataError, MethodError, RunError
from fedkin.federation import Client
from fedkin.federation.summaries import ColumnTypes, SharedEncoding
from fedkin.flow import Message, Params, PeerMethod
from fedkin.folders import made_private, write_private
from fedkin.learning.devices import opened
from fedkin.learning.metrics import Unmeasured
from fedkin.network.agreement import Agreement, SetupOf, Terms, difference, setup_and_agreement
from fedkin.network.consent import disclosure, disclosure_with_table, lines_about, releases_in
from fedkin.network.hello import NEXT_ROUND, About, Hello, HelloReceived, Welcome, about_of
from fedkin.network.link import LARGEST, UNREACHED, Left, Link, Missed, Refused
from fedkin.network.messages import (
    Answer,
    Failed,
    Order,
    Pointer,
    ReleaseReport,
    Scored,
    WireMessage,
    WorkReport,
    encode,
    read,
    tree_of,
)
from fedkin.network.status import StatusFile
from fedkin.tasks import Task
from fedkin.untrusted import error_text, escaped

# Stores a client's model of a round in a folder, with the settings of the federation, its setup, and the encoding of
# the table if there is one; returns the hash of the model.
TakeHome = Callable[[Path, str, Setup, Client, SharedEncoding | None, Params, int], str]
S = TypeVar("S", bound=WireMessage)
LEAVES = "leaves"  # the file that tells a running client to leave for good
_KEPT = 3  # last rounds whose states a client keeps
_HASH = 32  # bytes
_HELLO = 10  # waits for an answer to a hello before the client says hello again
_UNABLE = 1  # waits of a client that cannot take part, for the server to read why
_GIVE_UP = 24 * 3600.0  # seconds without reaching the server after which a client gives up


class ServerConnection:
    """A participant that pulls the offers of a server.

    stop: set it to end the participant. patience: seconds of one wait.
    """

    def __init__(
        self, link: Link, server: str = "server", *, say: Callable[[str], None] = lambda line: None,
        stop: Event | None = None, patience: float = 2.0,
    ) -> None:  # fmt: skip
        self.link, self.server, self.say = link, server, say
        self.stop, self.patience = stop or Event(), patience
        self.life = secrets.token_hex(4)
        self.unreached_since: float | None = None

    def pull(self, subject: str) -> bytes | None:
        """Return the server's offer under this subject; None if none came within `patience`. Raises Left, RunError."""
        if self.stop.is_set():
            raise Left
        try:
            data = self.link.pull(self.server, subject, self.patience, LARGEST * 4)
        except Missed:
            self._note_absence()
            return None
        except Refused as error:  # somebody on the way may have forged it: ask again
            self.say(f"refused: {error_text(error)}")
            self.stop.wait(self.patience)
            return None
        self.unreached_since = None
        return data

    def read(self, form: type[S], subject: str) -> S | None:
        """Return the server's message; None if none came within `patience`. Raises RunError for another form."""
        data = self.pull(subject)
        try:
            return None if data is None else read(form, data)
        except MethodError as error:
            raise RunError(f"the server's {subject.rpartition('/')[2]}: {error_text(error)}") from None

    def wait_for(self, form: type[S], subject: str) -> S:
        """Wait for the server's message without limit, and return it; raises Left and RunError."""
        while (message := self.read(form, subject)) is None:
            pass
        return message

    def _note_absence(self) -> None:
        """Say once that the server is not reached, or is reached again; raises RunError if it was away for too long."""
        now = time.monotonic()
        if self.server in self.link.present():
            if self.unreached_since is not None:
                self.say("the server is reached again")
            self.unreached_since = None
            return
        if trouble := self.link.trouble():
            raise RunError(trouble)
        if self.unreached_since is None:
            self.unreached_since = now
            hours = _GIVE_UP / 3600
            self.say(
                f"the server is not reached: waiting for at most {hours:g} hours; if the run has ended, there is "
                f"nothing to wait for ({UNREACHED})"
            )
        if now - self.unreached_since > _GIVE_UP:
            raise RunError(f"the server was not reached for {_GIVE_UP:g} s; the same command comes back")

    def say_leaving(self) -> str:
        """Tell the server that this participant leaves for good; returns the nonce of this hello."""
        self.say("the server is told that this client leaves; it answers when a round has ended")
        return self.say_hello(Agreement(settings=""), leaves=True)

    def say_hello(self, agreement: Agreement, **fields: Any) -> str:
        """Say hello once; returns the nonce of this hello, which the server answers once."""
        nonce = secrets.token_hex(4)
        hello = Hello(nonce=nonce, life=self.life, agreement=agreement, **fields)
        self.link.offer(self.server, "hello", encode(hello))
        return nonce

    def await_farewell(self, nonce: str) -> None:
        """Wait until a checkpoint of the server records that this participant has left; raises Left and RunError."""
        welcome = self.wait_for(Welcome, f"welcome/{nonce}")
        if welcome.refused:
            raise RunError(f"the server refuses: {escaped(welcome.refused, 400)}")
        self.say(f"left: data of {self.link.me} count no more from round {welcome.number} on")


class NetworkClient(ServerConnection):
    """One client with its samples. `run` takes part until the run has ended.

    samples: ready samples, or a table to encode with the common encoding. setup_of: makes the setup from the agreed
    settings. folder: where the client's states are kept. settings: the client's own copy of the common settings, if
    any. consent: gets lines that say what will leave, and returns whether it may. ledger: of all releases under
    `[privacy]` (None: in memory). take_home: stores the model after each evaluation (None: it is not stored). stop: set
    it to make the client leave. patience: seconds of one wait. watch: reads the client's file again after a change,
    with `[network] reread`. unseen: whether the client takes no part, and only takes home a model.
    """

    def __init__(
        self, link: Link, samples: OwnSamples, setup_of: SetupOf, folder: Path, *,
        server: str = "server", settings: str | None = None, device: str = "cpu",
        consent: Callable[[list[str]], bool] = lambda lines: True, say: Callable[[str], None] = lambda line: None,
        stop: Event | None = None, patience: float = 2.0, ledger: Ledger | None = None,
        take_home: TakeHome | None = None, watch: FileWatch | None = None, unseen: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(link, server, say=say, stop=stop, patience=patience)
        self.setup_of, self.folder, self.samples = setup_of, folder, samples
        self.settings, self.device = settings, str(opened(device))  # before anything leaves
        self.consent, self.ledger, self.take_home = consent, ledger or Ledger(), take_home
        self.client: Client
        self.task: Task
        self.agreement = Agreement(settings=settings or "")
        self.encoding: SharedEncoding | None = None
        self.consented = False
        self.said_round, self.said_missing, self.said_drift = 0, "", False
        self.watch, self.unseen = watch, unseen
        again = "has changed: what it tells of itself, anew; then the new samples count too"
        self.later_lines = [f"whenever {watch.path} {again}"] if watch is not None else []  # what may leave later
        self.leave_file = folder / LEAVES  # another process makes this file, so that this client leaves for good
        self.versions: dict[str, Client] = {}  # the samples by hash, if they may change
        self.status = StatusFile(link, folder, "client", lambda: [server])

    def run(self) -> None:
        """Take part until the run has ended; raises Left, and RunError if the server refuses this client."""
        with self.status:
            self.leave_file.unlink(missing_ok=True)
            self.link.offer(self.server, f"life/{self.life}", b"")  # so that a second process with its key is refused
            if isinstance(self.samples, OwnTable):
                self.client, self.task = self._agree_on_encoding(self.samples)
            else:
                self.client, self.task = self.samples
            self._describe()
            while True:
                if self.leave_file.exists():
                    self.await_farewell(self.say_leaving())
                    return
                setup = self._agree()
                self.status.round, self.status.rounds = 0, setup.training.rounds
                about = self._about_with_salt() if setup.privacy.on else self.about
                self._begin(setup, self._hello(about=about))
                try:
                    if self._serve():
                        return
                finally:
                    self._say_stored()
                self.say("the server has started again, or goes on without this client: joining once more")

    def _describe(self) -> None:
        about = about_of(self.client, self.task)
        self.about = about.model_copy(update={"seen": not self.unseen})
        self.versions[self.about.digest] = self.client

    def _reread(self) -> None:
        """Tell the server of new samples in the file, if there are any; they count when an order names them."""
        if self.watch is None:
            return
        try:
            samples = self.watch.changed()
            if samples is None:
                return
            if isinstance(samples, OwnTable):
                assert self.encoding is not None
                samples.keep(self.columns)
                samples = samples.client(self.encoding)
        except DataError as error:
            self.say(f"{error_text(error)}; the samples of before count until the file is correct")
            return
        self.client = samples[0]
        self._describe()
        self.say(f"{self.watch.path} has changed: the server is told of {self.about.n_train:,} training samples")
        self.say_hello(self.agreement, about=self.about, seen=not self.unseen)

    # -- joining --------------------------------------------------------------------------------------------------

    def _agree(self) -> Setup:
        """Return the setup for the server's settings; raises RunError if this client's agreement differs."""
        terms = self.wait_for(Terms, "terms")
        theirs, self.status.federation = terms.agreement, terms.name
        settings = theirs.settings if self.settings is None else self.settings
        setup, ours = setup_and_agreement(settings, theirs.task or self.task, self.setup_of, self.device)
        columns = tuple(map(str, self.client.about.get("columns", ())))
        ours = ours.model_copy(update={"task": self._task(theirs.task), "columns": columns})
        words = difference(ours, theirs)
        if words or setup is None:
            raise self._unable(ours, f"this client cannot take part: {words or ours.cannot}")
        if setup.nets is not None and self.client.id not in setup.nets:
            raise RunError(f"this client cannot take part: the experiment deals no body to {self.client.id!r}")
        page = self.ledger.page("", setup.privacy)
        if not self.consented and not self.consent([*disclosure(setup, self.client, page), *self.later_lines]):
            raise Left
        self.consented = True  # also for later joins, since the settings stay the same
        self.agreement = ours
        return setup

    def _unable(self, ours: Agreement, words: str) -> RunError:
        """Tell the server why this client cannot take part, if its owner consents; returns the error to raise."""
        with suppress(ConfigError):  # where nobody can be asked, the server is not told
            if self.consent([words, *lines_about(self.client)]):
                self.agreement = ours
                self._greet(_UNABLE, about=self._about_with_salt())
        return RunError(words)

    def _about_with_salt(self) -> About:
        return self.about.model_copy(update={"digest": self.ledger.salted(self.about.digest)})

    def _task(self, agreed: Task | None) -> Task:
        """Return this client's task, with the federation's number of classes if that is larger."""
        if agreed is None or not self.task.labels or self.task.classes >= agreed.classes:
            return self.task
        return replace(self.task, classes=agreed.classes)

    def _agree_on_encoding(self, table: OwnTable) -> tuple[Client, Task]:
        """Return the samples of a table, after all clients have agreed on the columns and the encoding."""
        if self.settings is None:
            self.settings = self.wait_for(Terms, "terms").agreement.settings
        lines, self.consented = disclosure_with_table(table, self.settings, self.setup_of, self.ledger)
        if not self.consent([*lines, *self.later_lines]):
            raise Left
        self.ledger.sent_unprotected.append("profile")
        self.agreement = Agreement(settings=self.settings)
        try:
            self.columns = ColumnTypes.from_json(self._hello(columns=table.summary.columns.to_json()).columns)
            if extra := table.keep(self.columns):
                self.say(f"columns that most do not have stay here: {', '.join(map(escaped, extra))}")
            encoding = self._hello(profile=table.summary.to_json()).encoding
            self.encoding = SharedEncoding.from_json(encoding)
            return table.client(self.encoding)
        except DataError as error:
            raise RunError(error_text(error)) from None

    def _hello(self, **fields: Any) -> Welcome:
        """Say hello until the server has answered; raises RunError if it refuses this client."""
        while (welcome := self._greet(_HELLO, **fields)) is None:
            pass
        if welcome.refused:
            raise RunError(f"the server refuses this client: {escaped(welcome.refused, 400)}")
        return welcome

    def _greet(self, waits: int, **fields: Any) -> Welcome | None:
        """Say hello once; returns the server's answer, or None if none came within `waits` waits."""
        nonce, received = self.say_hello(self.agreement, seen=not self.unseen, **fields), None
        try:
            for _ in range(waits):
                if (received := self.read(HelloReceived, f"heard/{nonce}")) is not None:
                    break
        finally:
            self.link.withdraw("hello", self.server)
        if received is not None and received.missing not in ("", self.said_missing):
            self.said_missing = received.missing
            self.say(f"waiting for {escaped(received.missing, 400)}")
        # A client that waits for a round repeats its hello, since the server may start again meanwhile.
        for _ in range(0 if received is None else 1 if received.missing == NEXT_ROUND else waits):
            if (welcome := self.read(Welcome, f"welcome/{nonce}")) is not None:
                return welcome
        return None

    # -- a run ----------------------------------------------------------------------------------------------------

    def _begin(self, setup: Setup, start: Welcome) -> None:
        """Prepare for the run to which the server has admitted this client."""
        client, self.setup = self.client, setup
        self.run_id, self.epoch, self.number, self.id = start.run, start.epoch, start.number, client.id
        self.clients = {self.id: client}
        consented = releases_in(setup, client) * setup.training.rounds if setup.privacy.on else None
        self.page = self.ledger.page(self.run_id, setup.privacy, consented)
        facts = {**dict(self.about), "columns": client.about.get("columns"), "digest": "", "seen": False}
        self.page.sent({"join": [*(name for name, value in facts.items() if value), *self.ledger.sent_unprotected]})
        executor = OneByOne(setup.net, self.clients, Modules(opened(self.device)))
        self.site = LocalSite(
            setup, self.clients, executor, noise=system_noise, store=self.page, signatures=self.link.signatures
        )
        self.validator = Validator(setup)
        self.checkpoints = ClientCheckpoints(self.folder / self.run_id)
        self.history: tuple[Any, ...] | None = None
        self.offered, self.used_samples = self.number - 1, self.about.digest
        self.leave_nonce = ""  # the nonce of the hello by which it leaves
        self.stored_round = 0  # the newest round whose model is kept

    def _serve(self) -> bool:
        """Answer orders; returns True if the run has ended or this client has left, and False to join once more."""
        with self.site.exact():
            while True:
                if not self.leave_nonce and self.leave_file.exists():
                    self.leave_nonce = self.say_leaving()
                self._reread()
                data = self.pull(f"{self.run_id}/{self.epoch}/{self.number}/order")
                if data is None:
                    if (ended := self._ended()) is not None:
                        return ended
                    continue
                try:
                    order = read(Order, data)
                except MethodError as error:
                    self.say(f"refused: {error_text(error)}")
                    self._offer(Answer(number=self.number, error=error_text(error)))
                else:
                    self._offer(self._answered(order))
                    if order.what == "end":
                        self.say("the run has ended")
                        return True
                self.number += 1

    def _answered(self, order: Order) -> Answer:
        """Return the answer to an order, with what this client has released so far."""
        answer = Answer(number=self.number) if order.what == "end" else self._answer(order)
        if not self.setup.privacy.on:
            return answer
        if order.what == "scores":
            self.page.sent({"evaluate": ["scores"]})
        self.status.tell(epsilon={"": self.page.spent})
        spent = ReleaseReport(**self.page.tree(self.site.states.get(self.id, {})))
        return answer.model_copy(update={"spent": spent})

    def _ended(self) -> bool | None:
        """Read the number of the newest order; returns the result of `_serve` if it is to end, else None."""
        if (now := self.read(Pointer, "now")) is None:
            return None
        if now.left and self.leave_nonce:
            self.await_farewell(self.leave_nonce)
            return True
        if now.left:
            self.say("the server counts this client as one that has left")
            return False
        if now.epoch != self.epoch:
            return None if self.pull("terms") is None else False
        self.number = max(self.number, now.number)
        return None

    def _offer(self, answer: Answer) -> None:
        if self.offered != self.number:
            self.link.withdraw(f"{self.run_id}/{self.epoch}/{self.offered}/", self.server)
        self.offered = self.number
        self.link.offer(self.server, f"{self.run_id}/{self.epoch}/{self.number}/answer", encode(answer))

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
        if self.watch is None or order.samples == self.used_samples:
            return ""
        if order.samples not in self.versions:
            return "the samples of this round are not there any more: the file has changed"
        self.used_samples, self.clients[self.id] = order.samples, self.versions[order.samples]
        self.say(f"round {order.round}: {self.clients[self.id].size:,} training samples count")
        if order.samples == self.about.digest:
            self.versions = {order.samples: self.client}
            self.link.withdraw("hello", self.server)
        return ""

    def _beyond_consent(self, order: Order) -> str:
        """Return why this order exceeds the consent of the client's owner; empty if it does not."""
        assert not isinstance(self.setup.method, PeerMethod)
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
        if self.take_home is not None:
            settings, params = self.agreement.settings, self.site.scorer.model(self.id)
            model = self.take_home(self.folder, settings, self.setup, self.client, self.encoding, params, round)
            self.stored_round = round
            self.status.tell(model={"": model})
            scored = scored.model_copy(update={"model": model})
        return Answer(number=self.number, score=scored, failed=self._failed())

    def _say_stored(self) -> None:
        """Say of which round the model is kept, which is not the last round if the run ends without this client."""
        if self.stored_round:
            rounds, folder = self.setup.training.rounds, self.folder
            self.say(f"its model after round {self.stored_round} of {rounds} is kept: fedkin export {folder}")

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
        if order.what == "ask" and order.round != self.said_round:
            self.said_round = order.round
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
