"""Registration of clients: the server compares what each of them has with its own, and lets it in or says why not."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from hashlib import blake2b
from threading import Condition, Thread
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictStr

from fedkin import codec
from fedkin.engines.client_list import Entry, Roster
from fedkin.engines.setup import Setup
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.federation import Client, Federation
from fedkin.network.agreement import Agreement, PlanOf, agreed, unlike
from fedkin.network.link import Link, LinkError, Missed, Refused
from fedkin.network.messages import Pointer, Sent, Welcome, encode, read
from fedkin.network.settings import NetworkSettings, task_from, tree_of_task
from fedkin.network.table_profiles import ENCODING, Shared
from fedkin.settings import Settings, parse
from fedkin.tasks import Task
from fedkin.untrusted import said, shown

__all__ = ["About", "Hello", "Registration", "about_of"]

_SAMPLES = 10**12
_LARGEST_HELLO = 1 << 22  # bytes
_SLICE = 5.0  # seconds of one look for a hello
_AGAIN = 0.05  # seconds until somebody who was just answered is looked at again
_LONGEST_PAUSE = 60.0  # seconds until one is looked at again whose hellos are not readable


class About(Settings):
    """What a client says of itself: numbers of samples, a hash of them, and what it wants to tell besides."""

    n_train: int = Field(ge=1, le=_SAMPLES)
    n_test: int = Field(ge=0, le=_SAMPLES)
    digest: str = Field(pattern="^[0-9a-f]{32}$")
    group: str | None = Field(None, max_length=100)
    labels: dict[str, int] = Field({}, max_length=100_000)


def about_of(client: Client, task: Task, labels: bool = False) -> About:
    """Return what a client says of itself. labels: whether it tells its number of training samples of each class."""
    alone = Federation([client], task)
    counts: dict[str, int] = {}
    if labels and task.labels:
        each = client.train.labels().tolist()
        counts = {str(label): each.count(label) for label in sorted(set(each))}
    return About(
        n_train=client.size, n_test=len(client.test), digest=alone.fingerprint(), group=client.group, labels=counts
    )


class Hello(Sent):
    """What a client says when it comes. nonce: names this hello; the server answers each one once."""

    nonce: Annotated[StrictStr, Field(pattern="^[0-9a-f]{8}$")]
    about: Annotated[About, BeforeValidator(lambda tree: parse(About, dict(tree), "about"))]
    agreement: Agreement


class Registration:
    """The clients of a federation as they come and come back.

    settings: what all must have in common, as TOML. kept: federation.json of a run that is gone on with. shared: the
    encoding of their tables on which they agreed.
    """

    def __init__(
        self, link: Link, settings: str, plan_of: PlanOf, network: NetworkSettings, *, name: str = "federation",
        kept: Mapping[str, Any] | None = None, say: Callable[[str], None] = lambda line: None,
        shared: Shared | None = None,
    ) -> None:  # fmt: skip
        self.shared = shared
        self.link, self.network, self.plan_of, self.name, self.say = link, network, plan_of, name, say
        self.run, self.epoch = secrets.token_hex(4), secrets.token_hex(4)
        self.changed = Condition()
        self.members: dict[str, About] = {}
        self.welcomed: set[str] = set()
        self.next_order: dict[str, int] = {}
        self.closed = self.complete = False
        self.plan: Setup | None = None
        self.agreement = Agreement(settings=settings, task=None)
        self.threads: dict[str, Thread] = {}
        if kept is not None:
            self._recall(kept)
        elif (task := network.task if shared is None else shared.task) is not None:
            self._adopt(task)
        Thread(target=self._watch, name="registration", daemon=True).start()

    def _recall(self, kept: Mapping[str, Any]) -> None:
        try:
            tables = {id: {k: facts[k] for k in About.model_fields} for id, facts in kept["clients"].items()}
            self.members = {id: parse(About, table, id) for id, table in tables.items()}
            self.run = str(kept["run"])
            self._adopt(task_from(kept["task"]))
        except (KeyError, TypeError, AttributeError, ConfigError):
            raise RunError("federation.json: not that of a federation over a network; name another folder") from None
        self.complete = True

    def _adopt(self, task: Task) -> None:
        """Take this task as the federation's; raises ConfigError if the experiment does not fit it."""
        plan, agreement = agreed(self.agreement.settings, task, self.plan_of)
        if plan is None:
            raise ConfigError(agreement.cannot)
        self.plan, self.agreement = plan, agreement

    # -- the roster -----------------------------------------------------------------------------------------------

    def wait(self, stopping: Callable[[], bool] = lambda: False) -> Roster:
        """Return the roster once all clients are there; raises RunError if it is to stop before.

        A run that is gone on with has all its clients: it waits until each was there, at most for `network.grace`, and
        for one of them as long as it takes.
        """
        announced, left = -1, self.network.grace
        with self.changed:
            while not self._ready(left):
                if stopping():
                    raise RunError("stopped while clients were awaited; nothing is lost, start it again")
                if len(self.welcomed) != announced:
                    announced = len(self.welcomed)
                    names = ", ".join(sorted(self.welcomed)) or "nobody"
                    self.say(f"{announced} of {self._wanted()} clients are here: {names}")
                if not self.changed.wait(0.2) and self.welcomed:
                    left -= 0.2
            self.complete = True
            return self.roster()

    def _wanted(self) -> int:
        if self.complete:
            return len(self.members)
        clients = self.network.clients
        return clients if isinstance(clients, int) else len(clients)

    def _ready(self, left: float) -> bool:
        if self.complete:
            return bool(self.welcomed) and (len(self.welcomed) == len(self.members) or left <= 0)
        return len(self.members) >= self._wanted()

    def roster(self) -> Roster:
        """Return the clients as they described themselves."""
        assert self.plan is not None
        entries = {id: Entry(True, 1, about.n_train, about.group) for id, about in sorted(self.members.items())}
        return Roster(entries, self.plan.task, self.name)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the clients for records and reports, as far as they told them."""
        assert self.plan is not None
        task, digest = self.plan.task, blake2b(digest_size=16)
        more: dict[str, Any] = {}
        if task.kind != "classification":
            more = {"outputs": task.outputs, "metric": task.metric.name}
        for id, about in sorted(self.members.items()):
            digest.update(repr((id, about.group, about.digest)).encode())
        return {
            "name": self.name,
            "fingerprint": digest.hexdigest(),
            "run": self.run,
            "task": {**tree_of_task(task), **more},
            "clients": {id: {**about.model_dump(), "about": {}} for id, about in sorted(self.members.items())},
        }

    # -- arrivals -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Attend to everybody who is there, each in a thread of its own."""
        with self.changed:
            while not self.closed:
                try:
                    present = self.link.present()
                except LinkError:
                    return
                for name in sorted(present - set(self.threads)):
                    self.threads[name] = Thread(target=self._attend, args=(name,), name=f"hello {name}", daemon=True)
                    self.threads[name].start()
                self.changed.wait(_AGAIN)

    def _attend(self, name: str) -> None:
        """Answer the hellos of this participant, each of them once, until it is gone."""
        before, pause = b"", _AGAIN
        try:
            self._offer_terms(name)
            # A client that waits for an order of a server that has ended sees that this is another one.
            self.point(name)
            while not self.closed:
                try:
                    data = self.link.pull(name, "hello", _SLICE, _LARGEST_HELLO)
                    if data != before:
                        before = data
                        self._answer(name, read(Hello, data))
                    pause = _AGAIN
                except Missed:
                    if name not in self.link.present():
                        return
                except (MethodError, Refused) as error:
                    self._refuse(name, said(error), once=not isinstance(error, Refused))
                    pause = min(2 * pause, _LONGEST_PAUSE)
                with self.changed:
                    self.changed.wait_for(lambda: self.closed, pause)
        except LinkError:
            return
        finally:
            with self.changed:
                del self.threads[name]

    def point(self, name: str) -> None:
        """Tell a client which order is the newest."""
        with self.changed:
            number = self.next_order.get(name, 0)
            self.link.offer(name, "now", encode(Pointer(epoch=self.epoch, number=number)))

    def _offer_terms(self, name: str) -> None:
        if self.shared is not None:
            self.link.offer(name, ENCODING, encode(self.shared.answer(name)))
        self.link.offer(name, "terms", codec.encode({"agreement": self.agreement.tree(), "name": self.name}))

    def _answer(self, name: str, hello: Hello) -> None:
        """Say where this client begins, or why it is refused."""
        with self.changed:
            if words := self._refusal(name, hello):
                self._refuse(name, words)
                welcome = Welcome(refused=shown(words, 1000))
            else:
                self.say(f"{name} is here" + (" again" if name in self.welcomed else ""))
                self.welcomed.add(name)
                welcome = Welcome(run=self.run, epoch=self.epoch, number=self.next_order.setdefault(name, 0))
            self.link.offer(name, f"welcome/{hello.nonce}", encode(welcome))
            self.changed.notify_all()

    def _refuse(self, name: str, words: str, once: bool = True) -> None:
        self.say(f"{name} is refused: {shown(words, 400)}")
        if once:  # a link notes what it refuses itself
            self.link.refused.add(name, "hello", words)

    def _refusal(self, name: str, hello: Hello) -> str:
        """Return why this client cannot take part, and note it if it can."""
        there, about = hello.agreement, hello.about
        if name == "server":
            return "no client can have the server's name"
        if self.plan is None and not unlike(self.agreement, there) and there.task is not None:
            try:
                self._adopt(there.task)
            except Exception as error:  # torch may lack the memory for a net of this task
                return f"the experiment cannot be run with these samples: {said(error)}"
            for other in list(self.threads):
                self._offer_terms(other)
        if words := unlike(self.agreement, there):
            return words
        if not self.agreement.columns:
            self.agreement = self.agreement.model_copy(update={"columns": there.columns})
        before = self.members.get(name)
        if before is not None:
            same = before.digest == about.digest and before.n_train == about.n_train
            return "" if same else "its samples are not those with which it was here before"
        named = self.network.clients
        if self.complete or len(self.members) >= self._wanted():
            return f"the federation is complete without it ({', '.join(sorted(self.members)[:8])})"
        if not isinstance(named, int) and name not in named:
            return f"network.clients does not name it ({', '.join(named[:8])})"
        self.members[name] = about
        return ""

    def close(self) -> None:
        """Let nobody in any more."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
