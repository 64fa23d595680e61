"""Registration: clients join the server, agree on a common encoding of their tables, and are admitted or refused.

A client says hello in up to three stages: with the columns of its table, with a profile of its rows (both only if the
experiment learns from tables), and with its description. The server answers a stage once all clients have reached it.
Then it knows what most clients have, and refuses only the clients that differ; these may come back.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from threading import Condition, Thread
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr

from fedkin.engines.facts import times_of
from fedkin.engines.setup import Setup
from fedkin.errors import ConfigError, DataError, MethodError, RunError, first_few
from fedkin.federation import Client, Entry, Federation, Roster
from fedkin.federation.samples import Absence
from fedkin.federation.summaries import ColumnTypes, SharedEncoding, TableSummary, agree, common_columns, unlike_targets
from fedkin.federation.table_columns import Reading
from fedkin.network.agreement import Agreement, SetupOf, Terms, difference, setup_and_agreement
from fedkin.network.link import Link, LinkError, Missed, Refused
from fedkin.network.messages import Count, Id, Pointer, WireMessage, encode, read
from fedkin.network.settings import NetworkSettings, task_from
from fedkin.settings import Settings, parse
from fedkin.tasks import Task
from fedkin.untrusted import error_text, escaped

NEXT_ROUND = "the next round"  # what a late client waits for
_SAMPLES = 10**12
LARGEST_HELLO = 1 << 26  # bytes
_SLICE = 5.0  # seconds of one pull of a hello
_ALIVE = 3.0  # seconds within which a living process of the same name answers
_AGAIN = 0.05  # seconds between two looks at a participant
_LONGEST_PAUSE = 60.0  # longest time between two looks, after unreadable hellos


class About(Settings):
    """A client's description of itself: numbers of samples, a hash of them, and optionally its group.

    seen: whether the client takes part; otherwise it is only evaluated, and takes a model home.
    """

    n_train: int = Field(ge=1, le=_SAMPLES)
    n_test: int = Field(ge=0, le=_SAMPLES)
    digest: str = Field(pattern="^[0-9a-f]{32}$")
    group: str | None = Field(None, max_length=100)
    seen: bool = True


def about_of(client: Client, task: Task) -> About:
    """Return the description of a client."""
    digest = Federation([client], task).fingerprint()
    return About(n_train=client.size, n_test=len(client.test), digest=digest, group=client.group)


class Member(Settings):
    """A client of the federation. told: its descriptions, by the first round in which each counts. away: absences."""

    told: dict[int, About]
    away: tuple[Absence, ...] = ()

    @property
    def joins(self) -> int:
        """The client's first round."""
        return min(self.told)

    @property
    def first(self) -> About:
        """The client's first description."""
        return self.told[self.joins]

    @property
    def now(self) -> About:
        """The client's current description."""
        return self.told[max(self.told)]

    @property
    def left(self) -> int | None:
        """The round in which the client has left; None if it is here."""
        return self.away[-1][0] if self.away and self.away[-1][1] is None else None

    @property
    def since(self) -> int:
        """The round in which the client last joined or came back."""
        return self.joins if not self.away else (self.away[-1][1] or self.away[-1][0]) + 1

    @property
    def later(self) -> list[tuple[int, About]]:
        """The later descriptions, by round."""
        return sorted(self.told.items())[1:]

    @property
    def entry(self) -> Entry:
        """The client's entry in a roster."""
        later = tuple((round, new.n_train, new.group) for round, new in self.later)
        return Entry(self.first.seen, self.joins, self.first.n_train, self.first.group, later, self.away)

    @property
    def facts(self) -> dict[str, Any]:
        """The client's facts for records and reports."""
        rounds = [[round, about.n_train, about.n_test] for round, about in self.later]
        renewed = {"renewed": rounds} if rounds else {}
        return {**self.first.model_dump(), "about": {}, **times_of(self.joins, self.away), **renewed}


Stage = Literal["columns", "profile", "about"]


class Hello(WireMessage):
    """A client's hello to the server: its columns, its profile (both as JSON), or its description.

    nonce: id of this hello; the server answers each hello once. life: id of the client's process. leaves: whether the
    client leaves for good. seen: as in `About`.
    """

    nonce: Annotated[StrictStr, Field(pattern="^[0-9a-f]{8}$")]
    life: Id
    agreement: Agreement
    columns: StrictStr = ""
    profile: StrictStr = ""
    leaves: StrictBool = False
    seen: StrictBool = True
    about: About | None = None

    @property
    def stage(self) -> Stage:
        """The stage of registration."""
        return "about" if self.about is not None else "profile" if self.profile else "columns"


class HelloReceived(WireMessage):
    """The server has read a hello. missing: whom or what it still waits for, as text."""

    missing: Annotated[StrictStr, Field(max_length=1000)] = ""


class Welcome(WireMessage):
    """The server's answer to a hello: the common columns or encoding, where a client begins, or why it is refused.

    columns, encoding: as JSON.
    """

    run: Annotated[StrictStr, Field(pattern="^[0-9a-z]{0,32}$")] = ""
    epoch: Annotated[StrictStr, Field(pattern="^[0-9a-z]{0,32}$")] = ""
    number: Count = 0
    columns: StrictStr = ""
    encoding: StrictStr = ""
    refused: Annotated[StrictStr, Field(max_length=2000)] = ""


@dataclass(frozen=True)
class Shared:
    """The agreed common encoding of tables, the columns that it needs, and the names of the clients that agreed."""

    agreed: SharedEncoding
    columns: ColumnTypes
    clients: tuple[str, ...]

    @property
    def task(self) -> Task:
        """The task that follows from the encoding."""
        return self.agreed.target.task(len(self.agreed.encoding.names))


class Registration:
    """Registers the clients of a federation as they join, leave and come back.

    settings: the common settings, as TOML. reading: how to read tables, if the experiment learns from them. kept:
    federation.json of a resumed run. moved: `moved` of its checkpoint, if it has one. shared: the encoding that was
    agreed before; keep: called with an encoding that is agreed now.
    """

    def __init__(
        self, link: Link, settings: str, setup_of: SetupOf, network: NetworkSettings, *, name: str = "federation",
        reading: Reading | None = None, kept: Mapping[str, Any] | None = None,
        moved: Mapping[str, Any] | None = None, shared: Shared | None = None,
        keep: Callable[[Shared], None] = lambda shared: None, say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.link, self.network, self.setup_of, self.name, self.say = link, network, setup_of, name, say
        self.reading, self.shared, self.keep = reading, shared, keep
        self.run, self.epoch = secrets.token_hex(4), secrets.token_hex(4)
        self.changed = Condition()
        self.hellos: dict[Stage, dict[str, Hello]] = {"columns": {}, "profile": {}, "about": {}}
        self.columns = None if shared is None else shared.columns
        self.expected = network.clients if isinstance(network.clients, int) else len(network.clients)
        self.deadline = self._deadline()
        self.members: dict[str, Member] = {}
        self.processes: dict[str, str] = {}  # by client, the process that takes part
        self.next_order: dict[str, int] = {}  # by admitted client, the number of its next order
        self.next_round: dict[str, Hello] = {}  # clients that join, leave or have new samples from the next round on
        self.left_this_round: dict[str, Hello] = {}
        self.fingerprint = ""  # of a resumed run: the fingerprint in federation.json
        self.lost_at: dict[str, float] = {}  # by member without a connection, since when
        self.closed = self.complete = False
        self.setup: Setup | None = None
        self.agreement = Agreement(settings=settings, task=None)
        self.threads: dict[str, Thread] = {}
        if kept is not None:
            self._resume(kept, moved or {})
        elif shared is not None:
            self._set_task(shared.task)
        Thread(target=self._watch, name="registration", daemon=True).start()

    def _resume(self, kept: Mapping[str, Any], moved: Mapping[str, Any]) -> None:
        if self.reading is not None and self.shared is None:
            raise RunError("encoding.json: the encoding on which all agreed is not in the folder; put the file back")
        try:
            about = {id: {k: facts[k] for k in About.model_fields} for id, facts in kept["clients"].items()}
            trees = moved or {id: {"told": {1: facts}} for id, facts in about.items()}
            self.members = {id: parse(Member, tree, id) for id, tree in trees.items()}
            self.run, self.fingerprint = str(kept["run"]), str(kept["fingerprint"])
            self._set_task(task_from(kept["task"]))
        except (KeyError, TypeError, AttributeError, ConfigError):
            raise RunError("federation.json: not that of a federation over a network; name another folder") from None
        self.complete = True

    def _set_task(self, task: Task) -> None:
        """Set the federation's task; raises ConfigError if the experiment does not fit it."""
        setup, agreement = setup_and_agreement(self.agreement.settings, task, self.setup_of)
        if setup is None:
            raise ConfigError(agreement.cannot)
        self.setup, self.agreement = setup, agreement

    # -- waiting for clients --------------------------------------------------------------------------------------

    def wait(self, stopping: Callable[[], bool] = lambda: False) -> Roster[Entry]:
        """Return the roster once all clients are there; raises RunError if `stopping` returns True before.

        In a resumed run all clients are known: wait for one of them without limit, and then for the others for at most
        `network.grace`.
        """
        status, left, resumed = "", self.network.grace, self.complete
        with self.changed:
            while True:
                self._decide()
                back = self._back()
                if self.complete and (not resumed or self._are_enough(back, left)):
                    return self.roster()
                if stopping():
                    raise RunError("stopped while clients were awaited; nothing is lost; --resume continues it")
                if (line := self._state()) != status:
                    status = line
                    self.say(line)
                if not self.changed.wait(0.2) and back:
                    left -= 0.2

    def _back(self) -> set[str]:
        """Return the members that are there again after a resume."""
        return {name for name in self.active if name in self.next_order or name in self.next_round}

    def _are_enough(self, back: Collection[str], left: float) -> bool:
        """Whether the resumed run goes on with these members, if others are awaited for so many seconds more."""
        return bool(back) and (left <= 0 or set(self.active) <= set(back))

    def _stage(self) -> Stage:
        """Return the current stage of registration."""
        if self.reading is None or self.shared is not None or self.complete:
            return "about"
        return "columns" if self.columns is None else "profile"

    def _arrived(self, stage: Stage) -> list[str]:
        return sorted(self.next_order if self.complete else self.hellos[stage])

    def _state(self) -> str:
        """Return which clients are there and which are missing, in one line."""
        stage = self._stage()
        here, missing = self._arrived(stage), self._missing(stage)
        what = {"columns": "have told their columns", "profile": "have told of their tables", "about": "are ready"}
        line = f"{len(here)} of {self._needed()} clients {what[stage]}: {', '.join(here) or 'nobody yet'}"
        return line + (f"; missing: {missing}" if missing and here else "")

    def _missing(self, stage: Stage) -> str:
        """Return the names of clients that have not come yet, as far as names are known."""
        clients = self.network.clients
        names: Iterable[str] = self.active if self.complete else () if isinstance(clients, int) else clients
        missing = sorted(set(names) - set(self._arrived(stage)))
        return first_few(missing)

    def _needed(self) -> int:
        """Return how many clients are needed now."""
        if self.complete:
            return len(self.active)
        if time.monotonic() < self.deadline:
            return self.expected
        return max(2, min(self.expected, len(self.hellos[self._stage()])))

    def _deadline(self) -> float:
        """Return the time after which registration continues without the missing clients."""
        after = self.network.begin_after
        return math.inf if after is None else time.monotonic() + after

    def roster(self) -> Roster[Entry]:
        """Return the roster of the clients, as they described themselves."""
        assert self.setup is not None
        members = [(id, one) for id, one in sorted(self.members.items()) if one.first.seen or not one.left]
        return Roster({id: member.entry for id, member in members}, self.setup.task, self.name)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the clients for records and reports."""
        assert self.setup is not None
        task = self.setup.task
        more: dict[str, Any] = {}
        if task.kind != "classification":
            more = {"outputs": task.outputs, "metric": task.metric.name}
        digest = blake2b(digest_size=16)
        for id, member in sorted(self.members.items()):
            digest.update(repr((id, member.first.group, member.first.digest)).encode())
        return {
            "name": self.name,
            "fingerprint": self.fingerprint or digest.hexdigest(),
            "run": self.run,
            "task": {**asdict(task), **more},
            "clients": {id: member.facts for id, member in sorted(self.members.items())},
        }

    # -- clients that join or leave after the first round ---------------------------------------------------------

    @property
    def active(self) -> list[str]:
        """The members that have not left."""
        return [name for name in sorted(self.members) if self._is_active(name)]

    def _is_active(self, name: str) -> bool:
        return name in self.members and self.members[name].left is None

    def is_gone(self, name: str) -> bool:
        """Whether a member had no connection for so long (`network.gone_after`) that it counts as left."""
        after, now = self.network.gone_after, time.monotonic()
        return after is not None and now - self.lost_at.get(name, now) > after

    def turn_to(self, round: int) -> bool:
        """Begin a round: admit waiting clients, remove clients that leave or are gone, and count new samples.

        Returns whether there was any such change. All earlier changes are in a checkpoint by now, so clients that left
        before are told now.
        """
        with self.changed:
            self._confirm_leaving()
            changes, self.next_round = self.next_round, {}
            self.left_this_round = {name: hello for name, hello in changes.items() if hello.leaves}
            gone = self._gone(changes)
            self._remove({*self.left_this_round, *gone}, round)
            for name, hello in sorted(changes.items()):
                if not hello.leaves and hello.about is not None:
                    self._count(name, hello, hello.about, round)
            return bool(changes or gone)

    def _gone(self, changes: Collection[str]) -> list[str]:
        """Return, and name, the members that are gone and change nothing themselves."""
        gone = [name for name in self.active if name not in changes and self.is_gone(name)]
        for name in gone:
            self.say(f"{name} was not connected for {self.network.gone_after:g} s: it has left")
        return gone

    def _remove(self, names: Collection[str], round: int) -> None:
        """Count these members as left from this round on."""
        for name in sorted(names):
            member = self.members[name]
            self.members[name] = Member(told=member.told, away=(*member.away, (round, None)))
            self.point(name)

    def _count(self, name: str, hello: Hello, about: About, round: int) -> None:
        """Use a client's new description from this round on: it joins, comes back, or has new samples."""
        newly, member = not self._is_active(name), self.members.get(name)
        if member is None:
            member = Member(told={round: about})
        elif newly:
            away, (first, _) = member.away[:-1], member.away[-1]
            member = Member(told={member.joins: about}, away=(*away, *([(first, round - 1)] if first < round else [])))
        else:
            before = member.now.n_train
            self.say(f"{name}: {about.n_train:,} training samples from round {round} on ({before:,} before)")
            member = Member(told={**member.told, round: about}, away=member.away)
        self.members[name] = member
        if newly or self.has_paused(name, hello):
            self.processes[name] = hello.life
            self._welcome(name, hello)

    def _confirm_leaving(self) -> None:
        """Confirm to clients that they have left, since a checkpoint has that by now."""
        for name, hello in self.left_this_round.items():
            self._farewell(name, hello)
        self.left_this_round = {}

    def end(self) -> None:
        """Confirm to clients that they have left; tell those that wait for another round that the run has ended."""
        with self.changed:
            self._confirm_leaving()
            for name, hello in self.next_round.items():
                if hello.leaves or not self._is_active(name) or self.has_paused(name):
                    self._refuse(name, hello, "the run has ended")

    def _farewell(self, name: str, hello: Hello) -> None:
        left = Welcome(run=self.run, epoch=self.epoch, number=self.members[name].left or 0)
        self.link.offer(name, f"welcome/{hello.nonce}", encode(left))

    def has_paused(self, name: str, hello: Hello | None = None) -> bool:
        """Whether the process of a member has ended, so that it will answer no request.

        A new process of this member has said that it leaves, or has new samples from the next round on.
        """
        hello = hello or self.next_round.get(name)
        return hello is not None and hello.life != self.processes.get(name)

    def moved(self) -> dict[str, Any]:
        """Return all members, also those that joined later or left, for the state of a run."""
        return {id: member.model_dump(mode="json") for id, member in sorted(self.members.items())}

    # -- agreement ------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Once all clients have reached this stage, refuse those that differ from most, or answer all and continue."""
        stage = self._stage()
        hellos = self.hellos[stage]
        if self.complete or len(hellos) < self._needed():
            return
        decide = {"columns": self._decide_columns, "profile": self._decide_encoding, "about": self._decide_members}
        wrong = decide[stage](hellos)
        for name, words in wrong.items():
            self._refuse(name, hellos.pop(name), words)
        if wrong:
            return
        if len(hellos) < self.expected:
            self.say(f"{self.expected - len(hellos)} clients have not come in time, and are left out")
        self.expected, self.deadline = len(hellos), self._deadline()
        for name, hello in sorted(hellos.items()):
            self._welcome(name, hello)

    def _decide_columns(self, hellos: Mapping[str, Hello]) -> dict[str, str]:
        """Set the common columns, or return the clients that lack some of them, and why they are refused."""
        tables = {name: ColumnTypes.from_json(hello.columns) for name, hello in hellos.items()}
        common = common_columns(tables)
        wrong = {name: words for name, each in tables.items() if (words := each.unlike(common))}
        self.columns = None if wrong else common
        return wrong

    def _decide_encoding(self, hellos: Mapping[str, Hello]) -> dict[str, str]:
        """Set the common encoding and the task, or return the clients with other targets, and why they are refused."""
        assert self.reading is not None
        assert self.columns is not None
        summaries = {name: TableSummary.from_json(hello.profile) for name, hello in hellos.items()}
        wrong = unlike_targets(summaries, self.reading)
        if not wrong:
            self.shared = Shared(agree(summaries, self.reading), self.columns, tuple(sorted(hellos)))
            self.keep(self.shared)
            self._set_task(self.shared.task)
        return wrong

    def _decide_members(self, hellos: Mapping[str, Hello]) -> dict[str, str]:
        """Set the members of the federation, or return the clients unlike most, and why they are refused."""
        wrong = self._adopt_majority(hellos)
        if not wrong:
            about = {name: hello.about for name, hello in hellos.items() if hello.about is not None}
            self.members = {name: Member(told={1: each}) for name, each in about.items()}
            self.complete = True
            for name in list(self.threads):
                self._offer_terms(name)
        return wrong

    def _adopt_majority(self, hellos: Mapping[str, Hello]) -> dict[str, str]:
        """Adopt the task and columns that most clients have; return those that differ, and why.

        The first clients break ties. If any client is returned, nothing is adopted; those with the task of most are
        returned if the experiment cannot be run with it.
        """
        tasks = {name: (repr(hello.agreement.task), hello.agreement.columns) for name, hello in hellos.items()}
        most = Counter(tasks.values()).most_common(1)[0][0]
        like = [name for name in hellos if tasks[name] == most]
        first = hellos[like[0]].agreement
        setup, agreement = self.setup, self.agreement
        try:
            if first.task is None:
                raise ConfigError("it does not say what it has learned to predict")
            if setup is None:
                self._set_task(first.task)
        except Exception as error:  # torch may lack the memory for a net of this task
            return dict.fromkeys(like, f"the experiment cannot be run with these samples: {error_text(error)}")
        self.agreement = self.agreement.model_copy(update={"columns": first.columns})
        here, wrong = first_few(like, 4), dict[str, str]()
        for name, hello in hellos.items():
            if words := difference(self.agreement, hello.agreement):
                wrong[name] = f"{words} (here: {here}; there: {name})"
        if wrong:  # even a client with the task of most may be refused here, and come back with another file
            self.setup, self.agreement = setup, agreement
        return wrong

    # -- arrivals -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Start a thread for each connected participant that answers its hellos."""
        with self.changed:
            while not self.closed:
                try:
                    present = self.link.present()
                except LinkError:
                    return
                now = time.monotonic()
                self.lost_at = {name: self.lost_at.get(name, now) for name in self.members if name not in present}
                for name in sorted(present - set(self.threads)):
                    self.threads[name] = Thread(target=self._serve, args=(name,), name=f"hello {name}", daemon=True)
                    self.threads[name].start()
                self.changed.wait(_AGAIN)

    def _serve(self, name: str) -> None:
        """Answer each hello of this participant once, until it is gone."""
        before, pause = b"", _AGAIN
        try:
            self._offer_terms(name)
            # A client that still waits for an order of an earlier server process sees that this is another process.
            self.point(name)
            while not self.closed:
                try:
                    data = self.link.pull(name, "hello", _SLICE, LARGEST_HELLO)
                    if data != before:
                        before = data
                        self._answer(name, read(Hello, data))
                    pause = _AGAIN
                except Missed:
                    if name not in self.link.present():
                        return
                except (MethodError, Refused) as error:
                    self._note(name, error_text(error), once=not isinstance(error, Refused))
                    pause = min(2 * pause, _LONGEST_PAUSE)
                with self.changed:
                    self.changed.wait_for(lambda: self.closed, pause)
        except LinkError:
            return
        finally:
            with self.changed:
                del self.threads[name]

    def point(self, name: str) -> None:
        """Tell a client the number of its newest order."""
        with self.changed:
            number = self.next_order.get(name, 0)
            left = self.complete and name in self.members and not self._is_active(name)
            self.link.offer(name, "now", encode(Pointer(epoch=self.epoch, number=number, left=left)))

    def _offer_terms(self, name: str) -> None:
        self.link.offer(name, "terms", encode(Terms(agreement=self.agreement, name=self.name)))

    def _answer(self, name: str, hello: Hello) -> None:
        """Answer a hello now, or keep it until all clients have reached its stage."""
        second = "" if hello.leaves else self._second_process(name, hello)
        with self.changed:
            words = second or self._refusal(name, hello)
            later = "" if words else self._change_next_round(name, hello)
            if words:
                self._refuse(name, hello, words)
            elif hello.leaves and not later:
                if name in self.left_this_round:
                    self.left_this_round[name] = hello
                else:
                    self._farewell(name, hello)
            else:
                self._keep(name, hello, later)
            missing = NEXT_ROUND if later else self._missing(hello.stage)
            self.link.offer(name, f"heard/{hello.nonce}", encode(HelloReceived(missing=missing)))
            self.changed.notify_all()

    def _keep(self, name: str, hello: Hello, later: str) -> None:
        """Keep a hello until the next round (later: what changes then), or until all clients have reached its stage."""
        before = self.next_round.pop(name, None)  # a client that was about to leave may have come back
        if not hello.leaves:
            self._note_arrival(name, hello, before)
        if not self._is_active(name) or not later:
            self.processes[name] = hello.life
        if not later:
            if self._is_decided(hello.stage):
                self._welcome(name, hello)
        elif hello.leaves or hello.about is not None:
            if before is None or before.about != hello.about:
                self.say(f"{name} {later}")
            self.next_round[name] = hello

    def _note_arrival(self, name: str, hello: Hello, before: Hello | None) -> None:
        lives = self.processes.get(name), None if before is None else before.life
        if hello.life not in lives:
            self.say(f"{name} is here" + (" again" if name in self.processes else ""))
        if hello.seen:
            self.hellos[hello.stage][name] = hello

    def _change_next_round(self, name: str, hello: Hello) -> str:
        """Return what this client does from the next round on, in words; empty if its hello is answered now."""
        about = hello.about
        if self._is_active(name):
            if hello.leaves:
                return "leaves"
            other = about is not None and about.digest != self.members[name].now.digest
            return "has other samples, which count from the next round on" if other else ""
        if self._is_answered_now(hello):
            return ""
        return f"{'takes part' if hello.seen else 'is evaluated'} from the next round on"

    def _is_answered_now(self, hello: Hello) -> bool:
        """Whether the hello of a client that is no member is answered before the next round."""
        if hello.about is not None:
            return hello.seen and not self.complete
        return hello.leaves or hello.seen or self._is_decided(hello.stage)

    def _second_process(self, name: str, hello: Hello) -> str:
        """Return why to refuse a second process with this name and key while the first one answers; else empty."""
        first = self.processes.get(name, hello.life)
        if first == hello.life:
            return ""
        try:
            self.link.pull(name, f"life/{first}", _ALIVE)
        except LinkError:
            return ""
        return f"another process takes part as {name}, with the same key; end one of them"

    def _is_decided(self, stage: Stage) -> bool:
        return {"columns": self.columns, "profile": self.shared, "about": self.complete or None}[stage] is not None

    def _welcome(self, name: str, hello: Hello) -> None:
        if hello.stage == "columns" and self.columns is not None:
            welcome = Welcome(columns=self.columns.to_json())
        elif hello.stage == "profile" and self.shared is not None:
            welcome = Welcome(encoding=self.shared.agreed.to_json())
        else:
            welcome = Welcome(run=self.run, epoch=self.epoch, number=self.next_order.setdefault(name, 0))
        self.link.offer(name, f"welcome/{hello.nonce}", encode(welcome))

    def _refuse(self, name: str, hello: Hello, words: str) -> None:
        self._note(name, words)
        self.link.offer(name, f"welcome/{hello.nonce}", encode(Welcome(refused=escaped(words, 1000))))

    def _note(self, name: str, words: str, once: bool = True) -> None:
        self.say(f"{name} is refused: {escaped(words, 400)}")
        if once:  # the link has noted its own refusals
            self.link.refused.add(name, "hello", words)

    def _refusal(self, name: str, hello: Hello) -> str:
        """Return why this client cannot take part, as far as this is known before all clients are there; else empty."""
        if name == "server":
            return "no client can have the server's name"
        if hello.leaves:
            return "" if name in self.members else "it takes no part, so that there is nothing to leave"
        if words := difference(self.agreement, hello.agreement):
            return f"{words} (here: the server; there: {name})"
        if self._comes_later(name, hello):
            return self._why_not_admitted(name, hello)
        if self.complete and hello.about is not None:
            return self._unlike_before(self.members[name].now, hello.about)
        if words := self._why_not_first(name, hello.stage):
            return words
        return "" if hello.stage == "about" else self._unlike_columns(hello)

    def _comes_later(self, name: str, hello: Hello) -> bool:
        """Whether a client is no member, and is not one of those that begin."""
        return (self.complete or not hello.seen) and not self._is_active(name)

    def _why_not_first(self, name: str, stage: Stage) -> str:
        """Return why a client cannot be one of those that begin; empty if it can, or if they have begun."""
        if self.complete:
            return ""
        clients = self._decided_clients(stage)
        if clients and name not in clients:
            return f"the federation is complete without it ({first_few(sorted(clients))})"
        named = self.network.clients
        if not isinstance(named, int) and name not in named:
            return f"network.clients does not name it ({first_few(named)})"
        return ""

    def _decided_clients(self, stage: Stage) -> Collection[str]:
        """Return the only clients that may begin; empty while others may come."""
        clients = () if self.shared is None else self.shared.clients
        all_here = not clients and len(self.hellos[stage]) >= self._needed()
        return self.hellos[stage] if all_here else clients

    def _unlike_before(self, before: About, now: About) -> str:
        """Return why a client cannot come back with these samples; empty if it can."""
        if self.network.reread or (before.digest, before.n_train) == (now.digest, now.n_train):
            return ""
        return "its samples are not those with which it was here before (network.reread is false)"

    def _why_not_admitted(self, name: str, hello: Hello) -> str:
        """Return why a client cannot join or come back after the first round; empty if it can."""
        if not self.network.newcomers:
            how = "network.newcomers = true in the server's experiment would let it in from the next round on"
            if name in self.members:
                return f"it has left the federation in round {self.members[name].left}; {how}"
            return f"the federation is complete without it ({first_few(self.active)}); {how}"
        if hello.about is None:
            return self._unlike_columns(hello)
        if self.setup is None:  # it is checked again when it waits for a round
            return ""
        try:
            entries = {id: Entry(True, 1, member.now.n_train, None) for id, member in self.members.items()}
            entries[name] = Entry(hello.seen, 1, hello.about.n_train, None)
            self.setup.method.check(Roster(entries, self.setup.task))
        except ConfigError as error:
            return f"method {self.setup.method.name!r} cannot take it in: {error_text(error)}"
        return ""

    def _unlike_columns(self, hello: Hello) -> str:
        """Return why a table cannot take part; empty if it can, as far as that is known."""
        try:
            table = TableSummary.from_json(hello.profile).columns if hello.profile else (
                ColumnTypes.from_json(hello.columns))  # fmt: skip
        except DataError as error:
            return f"what it tells of its table is not readable ({error_text(error)})"
        return "" if self.columns is None else table.unlike(self.columns)

    def close(self) -> None:
        """Stop registering clients."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
