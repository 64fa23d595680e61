"""A client of a federation over a network: it joins, answers the server's requests with its own samples, and leaves."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from threading import Event
from typing import Any

from fedkin import codec
from fedkin.engines import wire
from fedkin.engines.accounting.clock import Clock
from fedkin.engines.door import Door
from fedkin.engines.executors.jobs import Modules, OneByOne
from fedkin.engines.local_site import LocalSite
from fedkin.engines.privacy import secret
from fedkin.engines.remote import answered, work_tree
from fedkin.engines.setup import Plan
from fedkin.engines.states import States
from fedkin.errors import ConfigError, FedkinError, MethodError, RunError
from fedkin.federation import Client
from fedkin.flow import Message, PeerMethod
from fedkin.learning.devices import opened
from fedkin.network.agreement import Agreement, PlanOf, agreed, unlike
from fedkin.network.client_checkpoints import Shelf
from fedkin.network.consent import about, leaving, why, without_samples
from fedkin.network.ledger import Ledger
from fedkin.network.link import LARGEST, Left, Link, Missed
from fedkin.network.registration import about_of
from fedkin.network.status import Progress, Teller
from fedkin.tasks import Task
from fedkin.untrusted import shown

__all__ = ["NetworkClient"]

_ANSWERED = {"ask", "scores"}  # what a server may ask of a client
_HELLO = 10  # waits for an answer to what a client says of itself, before it says so anew
_UNABLE = 1  # waits of one that cannot take part, for the server to hear why


class NetworkClient:
    """One client with its samples. `run` takes part until the run has ended.

    plan_of: makes the plan of the agreed settings. folder: where its states are kept (None: in memory). settings: its
    own copy of the settings that all must have, if it has one. consent: is shown what will leave, and says whether it
    may. labels: whether to tell the number of samples of each class. ledger: of all that it released under `[privacy]`
    (None: in memory). stop: set by whoever wants it to leave. patience: seconds of one wait. memory: where it goes on.
    """

    def __init__(
        self, link: Link, client: Client, task: Task, plan_of: PlanOf, folder: Path | None = None, *,
        server: str = "server", settings: str | None = None, labels: bool = False, device: str = "cpu",
        consent: Callable[[list[str]], bool] = lambda lines: True, say: Callable[[str], None] = lambda line: None,
        stop: Event | None = None, patience: float = 2.0, ledger: Ledger | None = None,
        memory: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.memory = {} if memory is None else memory
        self.link, self.client, self.task, self.plan_of, self.folder = link, client, task, plan_of, folder
        self.server, self.settings, self.labels, self.device = server, settings, labels, device
        self.consent, self.say, self.stop, self.patience = consent, say, stop or Event(), patience
        self.about, self.ledger = about_of(client, task, labels), ledger or Ledger()
        self.digest = self.about.digest
        self.agreed: Agreement | None = None
        self.away = False
        self.told_round = 0
        self.progress, self.federation = Progress(), ""

    def run(self) -> None:
        """Take part until the run has ended; raises Left, and RunError if the server refuses this client."""
        with Teller(self.link, self.folder, "client", "", lambda: [self.server], lambda: self.progress) as told:
            self._take_part(told)

    def _take_part(self, told: Teller) -> None:
        while True:
            plan = self._agree()
            self.progress, told.federation = Progress(0, plan.training.rounds), self.federation
            self.memory["here"] = self.memory.get("here") or self._join()
            ended = _Desk(self, plan, self.memory["here"]).serve()
            self.memory.clear()
            if ended:
                self.say("the run has ended")
                return
            self.say("the server has started again: joining once more")

    def pulled(self, subject: str) -> dict[str, Any] | None:
        """Return what the server offers under this subject; None if nothing came in a while. Raises Left."""
        if self.stop.is_set():
            raise Left
        try:
            tree = codec.decode(self.link.pull(self.server, subject, self.patience, LARGEST * 4))
        except Missed:
            if (away := self.server not in self.link.present()) != self.away:
                self.away = away
                self.say("the server is not reached: waiting" if away else "the server is reached again")
            return None
        except MethodError as error:
            raise RunError(f"the server sent something that is not readable under {subject} ({error})") from None
        self.away = False
        return tree

    # -- joining --------------------------------------------------------------------------------------------------

    def _agree(self) -> Plan:
        """Return the plan of the server's settings; raises RunError if this client has something else."""
        while (terms := self.pulled("terms")) is None:
            pass
        there, self.federation = Agreement.of(terms), str(terms.get("name", ""))
        settings = there.settings if self.settings is None else self.settings
        plan, mine = agreed(settings, self.task if there.task is None else there.task, self.plan_of, self.device)
        own = replace(mine, task=self._task(there.task), columns=tuple(map(str, self.client.about.get("columns", ()))))
        words = unlike(own, there)
        if words or plan is None:
            raise self._unable(own, f"this client cannot take part: {words or own.cannot}")
        if isinstance(plan.method, PeerMethod):
            raise RunError(f"method {plan.method.name!r} has no server: use fedkin net peer")
        if plan.nets is not None and self.client.id not in plan.nets:
            raise RunError(f"this client cannot take part: the experiment deals no body to {self.client.id!r}")
        page = self.ledger.page("", plan.privacy)
        if self.agreed != own and not self.consent(leaving(plan, self.client, self.labels, page)):
            raise Left
        if plan.privacy.on and self.agreed is None:
            self._salt()
        self.agreed = own
        return plan

    def _unable(self, own: Agreement, words: str) -> RunError:
        """Tell the server why this client cannot take part, if its owner consents; returns the error that says so."""
        with suppress(ConfigError):  # where nobody can be asked, the server is not told
            if self.consent([words, *about(self.client, self.labels)]):
                self.agreed = own
                self._salt()
                self._hello(_UNABLE)
        return RunError(words)

    def _salt(self) -> None:
        self.about = self.about.model_copy(update={"digest": self.ledger.salted(self.about.digest)})

    def _task(self, there: Task | None) -> Task:
        """Return the federation's task, if this client has samples of some of its classes; else its own task."""
        if there is None or not self.task.labels or self.task.classes >= there.classes:
            return self.task
        return replace(self.task, classes=there.classes)

    def _join(self) -> dict[str, Any]:
        """Return where this client begins; raises RunError if the server refuses it."""
        while (answer := self._hello(_HELLO)) is None:
            pass
        if "refused" in answer:
            raise RunError(f"the server refuses this client: {shown(str(answer['refused']), 400)}")
        return {**answer, "digest": self.digest}

    def _hello(self, wait: int) -> dict[str, Any] | None:
        """Say what this client has; returns the answer, if one came."""
        assert self.agreed is not None
        tree = {"about": self.about.model_dump(), "agreement": self.agreed.tree()}
        # The server answers each nonce once: who was refused, and now says something else, needs another one.
        drawn = self.memory.setdefault("drawn", secrets.token_hex(4))
        nonce = blake2b(codec.encode(tree), digest_size=4, key=drawn.encode()).hexdigest()
        self.link.offer(self.server, "hello", codec.encode({"nonce": nonce, **tree}))
        try:
            for _ in range(wait):
                if (answer := self.pulled(f"welcome/{nonce}")) is not None:
                    return answer
            del self.memory["drawn"]
            return None
        finally:
            self.link.withdraw("hello", self.server)


class _Desk:
    """The client's side of one run, until the run ends or the server starts again."""

    def __init__(self, node: NetworkClient, plan: Plan, here: Mapping[str, Any]) -> None:
        self.node, self.link, self.plan, self.id = node, node.link, plan, node.client.id
        try:
            self.run, self.epoch, self.number = str(here["run"]), str(here["epoch"]), int(here["number"])
            self.digest = str(here["digest"])
            if not self.run.isalnum():
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise RunError("the server's welcome is not readable") from None
        clients = {self.id: node.client}
        executor = OneByOne(plan.net, clients, Modules(opened(node.device)))
        self.page = node.ledger.page(self.run, plan.privacy)
        told = (*node.about, ("columns", node.client.about.get("columns")))
        self.page.sent({"join": [*(name for name, value in told if value and name != "digest"), *node.ledger.beside]})
        self.site = LocalSite(plan, clients, executor, States(), Clock(), noise=secret, store=self.page)
        self.door = Door(plan)
        self.shelf = Shelf(None if node.folder is None else node.folder / self.run)
        self.place: tuple[Any, ...] | None = None
        self.taken = self.number - 1

    def serve(self) -> bool:
        """Answer orders; returns whether the run has ended, and False if the server has started again."""
        with self.site.exact():
            while True:
                if (order := self.node.pulled(f"{self.run}/{self.epoch}/{self.number}/order")) is None:
                    if not self._same_server():
                        return False
                    continue
                self._offer(codec.encode({"number": self.number, **self._answer(order), **self._spent(order)}))
                if order.get("what") == "end":
                    return True
                self.number += 1
                here = {"run": self.run, "epoch": self.epoch, "number": self.number, "digest": self.digest}
                self.node.memory["here"] = here

    def _spent(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Return what this client has released so far, for the records."""
        if not self.plan.privacy.on:
            return {}
        if order.get("what") == "scores":
            self.page.sent({"evaluate": ["scores"]})
        self.node.progress = replace(self.node.progress, epsilon={"": self.page.spent})
        return {"spent": self.page.tree(self.site.states.get(self.id, {}))}

    def _same_server(self) -> bool:
        """Look which order is the newest; returns whether they are those of the server that this client joined."""
        if (now := self.node.pulled("now")) is None:
            return True
        if now.get("epoch") != self.epoch:
            return self.node.pulled("terms") is None
        self.number = max(self.number, int(now.get("number", 0)))
        return True

    def _offer(self, data: bytes) -> None:
        if self.taken != self.number:
            self.link.withdraw(f"{self.run}/{self.epoch}/{self.taken}/", self.node.server)
        self.taken = self.number
        self.link.offer(self.node.server, f"{self.run}/{self.epoch}/{self.number}/answer", data)

    def _answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to an order, or why there is none; raises RunError if this client cannot go on."""
        what = order.get("what")
        if what == "end":
            return {"answer": {}, "failed": []}
        if what not in _ANSWERED:
            self.node.say(f"refused: the server asked for {shown(repr(what), 40)}, which no client does")
            return {"error": f"a client is not asked {shown(repr(what), 40)}"}
        if self.digest != self.node.digest:
            raise RunError(
                f"client {self.id!r} joined this run with other samples: put those back, or begin another run"
            )
        if (kept := self._turn_to(order)) is not None:  # it was answered before this client was killed
            return kept
        try:
            own = {part: {self.id: order[part][self.id]} for part in ("messages", "offers") if part in order}
            if what == "ask":
                self._check(str(order["phase"]))
            answer = answered(self.site, {**order, **own})
        except (FedkinError, KeyError, TypeError) as error:
            return {"error": why(error, self.node.say)}
        told = {"answer": answer, "failed": wire.list_of_failures(self.site.failed())}
        if what == "ask":
            told = self._looked_at(told, order)
            self._keep(order, told)
        else:
            told["answer"] = without_samples(answer, self.plan.task)
        return told

    def _check(self, phase: str) -> None:
        """Raise MethodError for a phase that the method does not declare."""
        assert not isinstance(self.plan.method, PeerMethod)
        if phase not in self.plan.method.phases():
            asked = shown(repr(phase), 60)
            self.node.say(f"refused: the server asked for phase {asked}, which the method does not have")
            raise MethodError(f"method {self.plan.method.name!r} declares no phase {asked}")
        if self.site.side.number != self.node.told_round:
            self.node.told_round = self.site.side.number
            heard = {self.node.server: self.node.told_round}
            self.node.progress = Progress(self.node.told_round, self.plan.training.rounds, heard)
            self.node.say(f"round {self.site.side.number}: {phase}")

    def _looked_at(self, told: dict[str, Any], order: Mapping[str, Any]) -> dict[str, Any]:
        """Send nothing that was not declared, and so was not shown before."""
        asked = Message(**order["messages"][self.id])
        for fields in told["answer"]["replies"].values():
            if fault := self.door.fault(self.id, str(order["phase"]), Message(**fields), asked):
                words = f"not what the method declares ({fault.words}), so it was not sent"
                self.node.say(f"phase {order['phase']!r}: {words}")
                return {"error": words}
        return told

    # -- states ---------------------------------------------------------------------------------------------------

    def _turn_to(self, order: Mapping[str, Any]) -> dict[str, Any] | None:
        """Go to the order's round with the state that belongs to it; returns the answer, if it was made before."""
        number, begun, undone = int(order["round"]), int(order["begun"]), tuple(map(int, order["undone"]))
        place, side, kept_of = (self.epoch, begun, undone), self.site.side, self.shelf.get
        if self.place == place:
            if number != side.number:
                self.site.turn_to(number)
            return None
        # States of rounds that the server has given up, before it started again or since, are given up here too.
        gone = [r for r in self.shelf.rounds() if r in undone or (r > begun and kept_of(r)["epoch"] != self.epoch)]
        if gone and gone != [r for r in gone if r in undone]:
            self.node.say(f"going back to the state before round {min(gone)}, as the server has")
        self.shelf.drop(gone)
        last = max(self.shelf.rounds(), default=0)
        if last < int(order["last"]) and int(order["last"]) not in undone:
            raise RunError(
                f"this client's state of round {order['last']} is not in {self.shelf.folder or 'memory'}: bring the "
                "folder back with which it took part"
            )
        kept = kept_of(last) if last else None
        self.site.restore(number, {})
        self.site.turn_to(number)
        self.place = place
        if kept is None:
            return None
        self.site.side.restore(self.id, kept["part"])
        if last != number:
            self.site.turn_to(number)
            return None
        same = kept["epoch"] == self.epoch and kept["number"] == self.number
        self.site.work.reset(**kept["work"])
        told: dict[str, Any] = kept["told"]
        return told if same else None

    def _keep(self, order: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Write the state and the answer, before it is offered: the server counts no answer whose state is lost."""
        tree = {
            "epoch": self.epoch, "number": self.number, "part": self.site.side.checkpoint(self.id),
            "work": work_tree(self.site.work), "told": dict(told),
        }  # fmt: skip
        self.shelf.put(int(order["round"]), tree)
