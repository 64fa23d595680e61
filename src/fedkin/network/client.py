"""A client of a federation over a network: it joins, answers the server's orders with its own samples, and leaves."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from fedkin.data.own import FileWatch, OwnSamples, OwnTable
from fedkin.engines.ledger import Ledger
from fedkin.engines.setup import Setup
from fedkin.errors import ConfigError, DataError, MethodError, RunError
from fedkin.federation import Client
from fedkin.federation.summaries import ColumnTypes, SharedEncoding
from fedkin.flow import Params
from fedkin.learning.devices import opened
from fedkin.network.agreement import Agreement, SetupOf, Terms, difference, setup_and_agreement
from fedkin.network.client_run import ClientRun
from fedkin.network.consent import consent_to_profile, disclosure, lines_about, releases_in
from fedkin.network.hello import NEXT_ROUND, About, Hello, HelloReceived, Welcome, about_of
from fedkin.network.link import LARGEST, UNREACHED, Left, Link, Missed, Refused
from fedkin.network.messages import Answer, Order, Pointer, WireMessage, encode, read
from fedkin.network.status import StatusFile
from fedkin.tasks import Task
from fedkin.untrusted import error_text, escaped

# Stores a client's model of a round in a folder, with the settings of the federation, its setup, and the encoding of
# the table if there is one; returns the hash of the model.
TakeHome = Callable[[Path, str, Setup, SharedEncoding | None, Client, Params, int], str]
S = TypeVar("S", bound=WireMessage)
LEAVES = "leaves"  # the file that tells a running client to leave for good
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
        self.say("telling the server that this client leaves; it answers at the end of a round")
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
        self.say(f"left: data of {self.link.me} no longer count from round {welcome.number} on")


class NetworkClient(ServerConnection):
    """One client with its samples. `run` takes part until the run has ended.

    samples: ready samples, or a table to encode with the common encoding. setup_of: makes the setup from the agreed
    settings. folder: where the client's states are kept. settings: the client's own copy of the common settings, if
    any. consent: gets lines that say what will leave, and returns whether it may. ledger: of all releases under
    `[privacy]` (None: in memory). take_home: stores the model after each evaluation (None: it is not stored). stop: set
    it to make the client leave. patience: seconds of one wait. watch: reads the client's file again after a change,
    with `[network] reread`. unseen: whether the client never trains, and only gets a model.
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
        self.consented, self.said_missing = False, ""
        self.leave_nonce = ""  # of the hello by which it leaves
        self.last_run = ""
        self.watch, self.unseen = watch, unseen
        again = "has changed: the same facts about its new samples, which count from then on"
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
                self.status.rounds = setup.training.rounds
                about = self._about_with_salt() if setup.privacy.on else self.about
                run = self._begin(setup, self._hello(about=about))
                try:
                    if self._serve(run):
                        return
                finally:
                    if round := run.stored_round:
                        rounds, folder = setup.training.rounds, self.folder
                        self.say(f"its model after round {round} of {rounds} is kept: fedkin export {folder}")
                self.say("the server has restarted, or continues without this client: joining again")

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
            self.say(f"{error_text(error)}; the earlier samples count until the file is correct")
            return
        self.client = samples[0]
        self._describe()
        self.say(f"{self.watch.path} has changed: telling the server of {self.about.n_train:,} training samples")
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
        self.consented = consent_to_profile(
            table, self.settings, self.setup_of, self.ledger, self.consent, self.later_lines
        )
        self.agreement = Agreement(settings=self.settings)
        try:
            self.columns = ColumnTypes.from_json(self._hello(columns=table.columns.to_json()).columns)
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

    def _begin(self, setup: Setup, start: Welcome) -> ClientRun:
        """Return this client's part of the run to which the server has admitted it."""
        client = self.client
        if start.run != self.last_run:
            self.last_run, self.status.round = start.run, 0
        consented = releases_in(setup, client) * setup.training.rounds if setup.privacy.on else None
        page = self.ledger.page(start.run, setup.privacy, consented)
        facts = {**dict(self.about), "columns": client.about.get("columns"), "digest": "", "seen": False}
        page.sent({"join": [*(name for name, value in facts.items() if value), *self.ledger.sent_unprotected]})
        keep_model = None
        if self.take_home is not None:
            keep_model = partial(self.take_home, self.folder, self.agreement.settings, setup, self.encoding)
        return ClientRun(
            setup, client, start, page, self.folder, self.status, device=self.device, signatures=self.link.signatures,
            samples=self.about.digest, versions=None if self.watch is None else self.versions, unseen=self.unseen,
            keep_model=keep_model, server=self.server, say=self.say,
        )  # fmt: skip

    def _serve(self, run: ClientRun) -> bool:
        """Answer orders; returns True if the run has ended or this client has left, and False to join again."""
        self.leave_nonce = ""
        with run.site.exact():
            while True:
                if not self.leave_nonce and self.leave_file.exists():
                    self.leave_nonce = self.say_leaving()
                if not self.leave_nonce:  # a hello about new samples would replace the one by which it leaves
                    self._reread()
                data = self.pull(f"{run.place}/{run.number}/order")
                if data is None:
                    if (ended := self._ended(run)) is not None:
                        return ended
                    continue
                answer, over = self._answer(run, data)
                self.link.withdraw(f"{run.place}/", self.server)
                self.link.offer(self.server, f"{run.place}/{run.number}/answer", encode(answer))
                del data, answer  # they may hold models, and the wait for the next order may be long
                if over:
                    self.say("the run has ended")
                    return True
                run.number += 1

    def _answer(self, run: ClientRun, data: bytes) -> tuple[Answer, bool]:
        """Return the answer to an order, and whether the order ends the run."""
        try:
            order = read(Order, data)
        except MethodError as error:
            self.say(f"refused: {error_text(error)}")
            return Answer(number=run.number, error=error_text(error)), False
        if order.samples == self.about.digest != run.samples:  # the newest samples count from now on
            for digest in set(self.versions) - {order.samples}:
                del self.versions[digest]
            self.link.withdraw("hello", self.server)
        return run.answer(order), order.what == "end"

    def _ended(self, run: ClientRun) -> bool | None:
        """Read the number of the newest order; returns the result of `_serve` if it is to end, else None."""
        if (now := self.read(Pointer, "now")) is None:
            return None
        if now.left and self.leave_nonce:
            self.await_farewell(self.leave_nonce)
            return True
        if now.withdrawn == self.life and not self.leave_nonce:
            self.say("this client leaves at its own request: fedkin net join brings it back")
            return True
        if now.left:
            self.say("the server counts this client as one that has left")
            return False
        if now.epoch != run.epoch:
            return None if self.pull("terms") is None else False
        run.number = max(run.number, now.number)
        return None
