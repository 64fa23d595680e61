"""Registration: clients join the server, are admitted or refused, leave, and come back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from hashlib import blake2b
from threading import Condition, Thread
from typing import Any

from fedkin.engines.facts import times_of
from fedkin.errors import ConfigError, MethodError, RunError, first_few
from fedkin.federation import Entry, Roster
from fedkin.federation.samples import Absence
from fedkin.federation.table_columns import Reading
from fedkin.network.agreement import SetupOf, Terms, difference
from fedkin.network.gathering import Gathering, Shared
from fedkin.network.hello import LARGEST_HELLO, NEXT_ROUND, About, Hello, HelloReceived, Stage, Welcome
from fedkin.network.link import Link, LinkError, Missed, Refused
from fedkin.network.messages import Pointer, encode, read
from fedkin.network.settings import NetworkSettings, task_from
from fedkin.settings import Settings, parse
from fedkin.untrusted import error_text, escaped

_SLICE = 5.0  # seconds of one pull of a hello
_ALIVE = 3.0  # seconds within which a living process of the same name answers
_AGAIN = 0.05  # seconds between two looks at a participant
_LONGEST_PAUSE = 60.0  # longest time between two looks, after unreadable hellos


class Registered(Settings):
    """A client of the federation. told: its descriptions, by the first round in which each counts. away: absences.

    withdrawn: its process when it left at its own request; a later process may have joined since the last checkpoint.
    """

    told: dict[int, About]
    away: tuple[Absence, ...] = ()
    withdrawn: str = ""

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


class Registration:
    """Registers the clients of a federation as they join, leave and come back.

    A client is one of those that begin, or a member, or late: it comes when the others have begun, or takes no part.
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
        self.link, self.network, self.name, self.say = link, network, name, say
        self.gathering = Gathering(settings, setup_of, network, reading, shared, keep, say)
        self.run, self.epoch = secrets.token_hex(4), secrets.token_hex(4)
        self.changed = Condition()
        self.members: dict[str, Registered] = {}
        self.processes: dict[str, str] = {}  # by client, the process that takes part
        self.next_order: dict[str, int] = {}  # by admitted client, the number of its next order
        self.next_round: dict[str, Hello] = {}  # clients that join, leave or have new samples from the next round on
        self.left_this_round: dict[str, Hello] = {}
        self.fingerprint = ""  # of a resumed run: the fingerprint in federation.json
        self.lost_at: dict[str, float] = {}  # by member without a connection, since when
        self.closed = False
        self.threads: dict[str, Thread] = {}
        if kept is not None:
            self._resume(kept, moved or {})
        elif shared is not None:
            self.gathering.set_task(shared.task)
        Thread(target=self._watch, name="registration", daemon=True).start()

    def _resume(self, kept: Mapping[str, Any], moved: Mapping[str, Any]) -> None:
        if self.gathering.reading is not None and self.gathering.shared is None:
            raise RunError("encoding.json: the encoding on which all agreed is not in the folder; put the file back")
        try:
            about = {id: {k: facts[k] for k in About.model_fields} for id, facts in kept["clients"].items()}
            trees = moved or {id: {"told": {1: facts}} for id, facts in about.items()}
            self.members = {id: parse(Registered, tree, id) for id, tree in trees.items()}
            self.run, self.fingerprint = str(kept["run"]), str(kept["fingerprint"])
            self.gathering.set_task(task_from(kept["task"]))
        except (KeyError, TypeError, AttributeError, ConfigError):
            raise RunError("federation.json: not that of a federation over a network; name another folder") from None

    @property
    def complete(self) -> bool:
        """Whether all clients that begin are members."""
        return bool(self.members)

    @property
    def active(self) -> list[str]:
        """The members that have not left."""
        return [name for name in sorted(self.members) if self._is_active(name)]

    def _is_active(self, name: str) -> bool:
        return name in self.members and self.members[name].left is None

    # -- hellos ---------------------------------------------------------------------------------------------------

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
            left = name in self.members and not self._is_active(name)
            now = Pointer(epoch=self.epoch, number=number, left=left, withdrawn=self._withdrawn(name))
            self.link.offer(name, "now", encode(now))

    def _withdrawn(self, name: str) -> str:
        """The process of a client that has left at its own request, or of which another process says so; else empty."""
        if (hello := self.next_round.get(name)) is not None:
            return self.processes.get(name, "") if hello.leaves and self.has_paused(name) else ""
        return self.members[name].withdrawn if name in self.members else ""

    def _offer_terms(self, name: str) -> None:
        self.link.offer(name, "terms", encode(Terms(agreement=self.gathering.agreement, name=self.name)))

    def _answer(self, name: str, hello: Hello) -> None:
        """Answer a hello now, or keep it until the next round, or until all clients have reached its stage."""
        second = "" if hello.leaves else self._second_process(name, hello)
        with self.changed:
            later = ""
            if words := second or self._refusal(name, hello):
                self._refuse(name, hello, words)
            elif not hello.leaves or self._is_active(name):
                later = self._change_next_round(name, hello)
                self._keep(name, hello, later)
            elif name in self.left_this_round:
                self.left_this_round[name] = hello
            else:
                self._farewell(name, hello)
            missing = NEXT_ROUND if later else self._missing(hello.stage)
            self.link.offer(name, f"heard/{hello.nonce}", encode(HelloReceived(missing=missing)))
            self.changed.notify_all()

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

    def _refusal(self, name: str, hello: Hello) -> str:
        """Return why this client cannot take part, as far as this is known before all clients are there; else empty."""
        if name == "server":
            return "no client can have the server's name"
        if hello.leaves:
            if name in self.next_round and not self._is_active(name):
                return "it takes no part yet: end its fedkin net join"
            return "" if name in self.members else "it takes no part, so that there is nothing to leave"
        if hello.life == self._withdrawn(name):
            return "it leaves at its own request: only a new process of it takes part again"
        if words := difference(self.gathering.agreement, hello.agreement):
            return f"{words} (here: the server; there: {name})"
        if self._is_late(name, hello):
            words = self._why_not_admitted(name, hello)
        elif self.complete:
            words = self._unlike_before(name, hello)
        else:
            words = self.gathering.why_not(name, hello.stage)
        return words or self.gathering.unlike_columns(hello)

    def _is_late(self, name: str, hello: Hello) -> bool:
        """Whether a client is no member, and is not one of those that begin."""
        return (self.complete or not hello.seen) and not self._is_active(name)

    def _unlike_before(self, name: str, hello: Hello) -> str:
        """Return why a member cannot come back with these samples; empty if it can."""
        now, about = self.members[name].now, hello.about
        if about is None or self.network.reread or (now.digest, now.n_train) == (about.digest, about.n_train):
            return ""
        return "its samples are not those with which it was here before (network.reread is false)"

    def _why_not_admitted(self, name: str, hello: Hello) -> str:
        """Return why a client cannot join or come back after the first round; empty if it can."""
        if not self.network.newcomers:
            how = "network.newcomers = true in the server's experiment would let it in from the next round on"
            if name in self.members:
                return f"it has left the federation in round {self.members[name].left}; {how}"
            return f"the federation is complete without it ({first_few(self.active)}); {how}"
        setup = self.gathering.setup
        if hello.about is None or setup is None:  # it is checked again when it waits for a round
            return ""
        try:
            entries = {id: Entry(True, 1, member.now.n_train, None) for id, member in self.members.items()}
            entries[name] = Entry(hello.seen, 1, hello.about.n_train, None)
            setup.method.check(Roster(entries, setup.task))
        except ConfigError as error:
            return f"method {setup.method.name!r} cannot take it in: {error_text(error)}"
        return ""

    def _refuse(self, name: str, hello: Hello, words: str) -> None:
        self._note(name, words)
        self.link.offer(name, f"welcome/{hello.nonce}", encode(Welcome(refused=escaped(words, 1000))))

    def _note(self, name: str, words: str, once: bool = True) -> None:
        self.say(f"{name} is refused: {escaped(words, 400)}")
        if once:  # the link has noted its own refusals
            self.link.refused.add(name, words)

    def _change_next_round(self, name: str, hello: Hello) -> str:
        """Return what this client does from the next round on, in words; empty if its hello is answered now."""
        about = hello.about
        if self._is_active(name):
            if hello.leaves:
                return "leaves"
            other = about is not None and about.digest != self.members[name].now.digest
            return "has other samples, which count from the next round on" if other else ""
        if not self._is_late(name, hello) or (about is None and (hello.seen or self.gathering.answer(hello.stage))):
            return ""
        return f"{'takes part' if hello.seen else 'is evaluated'} from the next round on"

    def _keep(self, name: str, hello: Hello, later: str) -> None:
        """Keep a hello until the next round (later: what changes then), or until all clients have reached its stage."""
        before = self.next_round.pop(name, None)  # a client that was about to leave may have come back
        if not hello.leaves:
            lives = self.processes.get(name), None if before is None else before.life
            if hello.life not in lives:
                self.say(f"{name} is here" + (" again" if name in self.processes else ""))
            if hello.seen:
                self.gathering.hellos[hello.stage][name] = hello
        if not self._is_active(name) or not later:
            self.processes[name] = hello.life
        if not later:
            self._welcome(name, hello)
        elif hello.leaves or hello.about is not None:
            if before is None or before.about != hello.about:
                self.say(f"{name} {later}")
            self.next_round[name] = hello
            self.point(name)

    def _welcome(self, name: str, hello: Hello) -> None:
        """Answer a hello if its stage is decided."""
        self.point(name)  # before it reads that it has left, which is so no more
        welcome = self.gathering.answer(hello.stage)
        if hello.stage == "about" and self.complete:
            welcome = Welcome(run=self.run, epoch=self.epoch, number=self.next_order.setdefault(name, 0))
        if welcome is not None:
            self.link.offer(name, f"welcome/{hello.nonce}", encode(welcome))

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
                back = {name for name in self.active if name in self.next_order or name in self.next_round}
                if self.complete and (not resumed or (back and (left <= 0 or back == set(self.active)))):
                    return self.roster()
                if stopping():
                    raise RunError("stopped while clients were awaited; nothing is lost; --resume continues it")
                if (line := self._state()) != status:
                    status = line
                    self.say(line)
                if not self.changed.wait(0.2) and back:
                    left -= 0.2

    def _state(self) -> str:
        """Return which clients are there and which are missing, in one line."""
        stage = self.gathering.stage
        here, missing = self._arrived(stage), self._missing(stage)
        needed = len(self.active) if self.complete else self.gathering.needed
        what = {"columns": "have told their columns", "profile": "have told of their tables", "about": "are ready"}
        line = f"{len(here)} of {needed} clients {what[stage]}: {', '.join(here) or 'nobody yet'}"
        return line + (f"; missing: {missing}" if missing and here else "")

    def _arrived(self, stage: Stage) -> list[str]:
        return sorted(self.next_order if self.complete else self.gathering.hellos[stage])

    def _missing(self, stage: Stage) -> str:
        """Return the names of clients that have not come yet, as far as names are known."""
        clients = self.network.clients
        names: Iterable[str] = self.active if self.complete else () if isinstance(clients, int) else clients
        missing = sorted(set(names) - set(self._arrived(stage)))
        return first_few(missing)

    def _decide(self) -> None:
        """Once all clients have reached a stage, refuse those that differ from most, or answer all and continue."""
        gathering, stage = self.gathering, self.gathering.stage
        hellos = gathering.hellos[stage]
        if self.complete or len(hellos) < gathering.needed:
            return
        wrong = gathering.decide()
        for name, words in wrong.items():
            self._refuse(name, hellos.pop(name), words)
        if wrong:
            return
        if stage == "about":
            self.members = {name: Registered(told={1: each.about}) for name, each in hellos.items() if each.about}
            for name in list(self.threads):
                self._offer_terms(name)
        if len(hellos) < gathering.expected:
            self.say(f"{gathering.expected - len(hellos)} clients have not come in time, and are left out")
        gathering.await_clients(len(hellos))
        for name, hello in sorted(hellos.items()):
            self._welcome(name, hello)

    def roster(self) -> Roster[Entry]:
        """Return the roster of the clients, as they described themselves."""
        assert self.gathering.setup is not None
        members = [(id, one) for id, one in sorted(self.members.items()) if one.first.seen or not one.left]
        return Roster({id: member.entry for id, member in members}, self.gathering.setup.task, self.name)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the clients for records and reports."""
        assert self.gathering.setup is not None
        task = self.gathering.setup.task
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
            for name in sorted({*self.left_this_round, *gone}):
                member = self.members[name]
                withdrawn = self.processes.get(name, "") if name in self.left_this_round else ""
                away = (*member.away, (round, None))
                self.members[name] = Registered(told=member.told, away=away, withdrawn=withdrawn)
                self.point(name)
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

    def _count(self, name: str, hello: Hello, about: About, round: int) -> None:
        """Use a client's new description from this round on: it joins, comes back, or has new samples."""
        newly, member = not self._is_active(name), self.members.get(name)
        if member is None:
            member = Registered(told={round: about})
        elif newly:
            away, (first, _) = member.away[:-1], member.away[-1]
            member = Registered(
                told={member.joins: about}, away=(*away, *([(first, round - 1)] if first < round else []))
            )
        else:
            before = member.now.n_train
            self.say(f"{name}: {about.n_train:,} training samples from round {round} on ({before:,} before)")
            member = Registered(told={**member.told, round: about}, away=member.away)
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

    def close(self) -> None:
        """Stop registering clients."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
