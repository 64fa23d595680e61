"""Where clients arrive: the server compares what each of them has with its own, and lets it in or says why not."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from threading import Condition, Thread
from typing import Any

from pydantic import Field

from fedkin import codec
from fedkin.engines.roster import Entry, Roster
from fedkin.engines.setup import Plan
from fedkin.errors import ConfigError, FedkinError, MethodError, RunError
from fedkin.federation import Client, Federation
from fedkin.network.agreement import Agreement, PlanOf, agreed, unlike
from fedkin.network.link import Link, LinkError, Missed
from fedkin.network.settings import NetworkSettings, task_from, tree_of_task
from fedkin.network.table_profiles import ENCODING, Shared
from fedkin.settings import Settings, parse
from fedkin.tasks import Task
from fedkin.untrusted import said, shown

__all__ = ["About", "Hall", "about_of"]

_SAMPLES = 10**12
_MOST = 1 << 22  # bytes of what a client says when it comes
_SLICE = 5.0  # seconds of one look for somebody
_AGAIN = 0.05  # seconds until somebody who was just answered is looked at again


class About(Settings):
    """What a client says of itself: numbers of samples, a hash of them, and what it wants to tell besides."""

    n_train: int = Field(ge=1, le=_SAMPLES)
    n_test: int = Field(ge=0, le=_SAMPLES)
    digest: str = Field(pattern="[0-9a-f]{32}")
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


class Hall:
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
        self.guests: dict[str, About] = {}
        self.here: set[str] = set()
        self.next: dict[str, int] = {}
        self.closed = self.complete = False
        self.plan: Plan | None = None
        self.mine = Agreement(settings, None)
        self.attended: dict[str, Thread] = {}
        if kept is not None:
            self._recall(kept)
        elif (task := network.task if shared is None else shared.task) is not None:
            self._adopt(task)
        self.watch = Thread(target=self._watch, name="hall", daemon=True)
        self.watch.start()

    def _recall(self, kept: Mapping[str, Any]) -> None:
        try:
            fields = {id: {k: facts[k] for k in About.model_fields} for id, facts in kept["clients"].items()}
            self.guests = {id: parse(About, about, id) for id, about in fields.items()}
            self.run = str(kept["run"])
            self._adopt(task_from(kept["task"]))
        except (KeyError, TypeError, AttributeError, ConfigError):
            raise RunError("federation.json: not that of a federation over a network; name another folder") from None
        self.complete = True

    def _adopt(self, task: Task) -> None:
        """Take this task as the federation's; raises ConfigError if the experiment does not fit it."""
        plan, mine = agreed(self.mine.settings, task, self.plan_of)
        if plan is None:
            raise ConfigError(mine.cannot)
        self.plan, self.mine = plan, mine

    # -- the roster ---------------------------------------------------------------------------------------------

    def wait(self, stopping: Callable[[], bool] = lambda: False) -> Roster:
        """Return the roster once all clients are there; raises RunError if it is to stop before.

        Of a run that is gone on with all are known: it waits until each was there, at most for `network.grace`, and for
        one of them as long as it takes.
        """
        told, left = -1, self.network.grace
        with self.changed:
            while not self._ready(left):
                if stopping():
                    raise RunError("stopped while clients were awaited; nothing is lost, start it again")
                if len(self.here) != told:
                    told = len(self.here)
                    self.say(f"{told} of {self._wanted()} clients are here: {', '.join(sorted(self.here)) or 'nobody'}")
                if not self.changed.wait(0.2) and self.here:
                    left -= 0.2
            self.complete = True
            return self.roster()

    def _wanted(self) -> int:
        if self.complete:
            return len(self.guests)
        clients = self.network.clients
        return clients if isinstance(clients, int) else len(clients)

    def _ready(self, left: float) -> bool:
        if self.complete:
            return bool(self.here) and (len(self.here) == len(self.guests) or left <= 0)
        return len(self.guests) >= self._wanted()

    def roster(self) -> Roster:
        """Return the clients as they described themselves."""
        assert self.plan is not None
        entries = {id: Entry(True, 1, about.n_train, about.group) for id, about in sorted(self.guests.items())}
        return Roster(entries, self.plan.task, self.name)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the clients for records and reports, as far as they told them."""
        assert self.plan is not None
        task, digest = self.plan.task, blake2b(digest_size=16)
        more: dict[str, Any] = {}
        if task.kind != "classification":
            more = {"outputs": task.outputs, "metric": task.metric.name}
        for id, about in sorted(self.guests.items()):
            digest.update(repr((id, about.group, about.digest)).encode())
        return {
            "name": self.name,
            "fingerprint": digest.hexdigest(),
            "run": self.run,
            "task": {**tree_of_task(task), **more},
            "clients": {id: {**about.model_dump(), "about": {}} for id, about in sorted(self.guests.items())},
        }

    # -- arrivals -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Attend to everybody who is there, each in a thread of its own."""
        with self.changed:
            while not self.closed:
                try:
                    present = self.link.present()
                except LinkError:
                    return
                for name in sorted(present - set(self.attended)):
                    self.attended[name] = Thread(target=self._attend, args=(name,), name=f"hall {name}", daemon=True)
                    self.attended[name].start()
                self.changed.wait(_AGAIN)

    def _attend(self, name: str) -> None:
        """Answer all that this participant says at the door, until it is gone."""
        before = ""
        try:
            self._offer_terms(name)
            # A client that waits for an order of a server that has ended sees that this is another one.
            self.point(name)
            while not self.closed:
                try:
                    tree = codec.decode(self.link.pull(name, "hello", _SLICE, _MOST))
                    nonce = tree["nonce"]
                except Missed:
                    if name not in self.link.present():
                        return
                    continue
                except (MethodError, KeyError):
                    return
                if isinstance(nonce, str) and nonce != before and re.fullmatch("[0-9a-f]{8}", nonce):
                    before = nonce
                    self.link.offer(name, f"welcome/{nonce}", codec.encode(self._welcome(name, tree)))
                with self.changed:
                    self.changed.wait(_AGAIN)
        except LinkError:
            return
        finally:
            with self.changed:
                del self.attended[name]

    def point(self, name: str) -> None:
        """Tell a client that waits for something else which order is the newest."""
        with self.changed:
            number = self.next.get(name, 0)
            self.link.offer(name, "now", codec.encode({"epoch": self.epoch, "number": number}))

    def _offer_terms(self, name: str) -> None:
        if self.shared is not None:
            self.link.offer(name, ENCODING, codec.encode(self.shared.tree(name)))
        self.link.offer(name, "terms", codec.encode({**self.mine.tree(), "name": self.name}))

    def _welcome(self, name: str, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return where this client begins, or why it is refused."""
        with self.changed:
            try:
                about = parse(About, tree["about"], "about")
                refused = self._refusal(name, Agreement.of(tree["agreement"]), about)
            except (FedkinError, KeyError, TypeError) as error:
                refused = f"what it says of itself is not readable ({said(error)})"
            if refused:
                self.say(f"{name} is refused: {shown(refused, 400)}")
                self.link.refused.add(name, "hello", refused)
                return {"refused": refused}
            self.say(f"{name} is here" + (" again" if name in self.here else ""))
            self.here.add(name)
            self.changed.notify_all()
            return {"run": self.run, "epoch": self.epoch, "number": self.next.setdefault(name, 0)}

    def _refusal(self, name: str, there: Agreement, about: About) -> str:
        """Return why this client cannot take part, and note it if it can."""
        if name == "server":
            return "no client can have the server's name"
        if self.plan is None and not unlike(self.mine, there) and there.task is not None:
            try:
                self._adopt(there.task)
            except FedkinError as error:
                return f"the experiment cannot be run with these samples: {said(error)}"
            for other in list(self.attended):
                self._offer_terms(other)
        if words := unlike(self.mine, there):
            return words
        if not self.mine.columns:
            self.mine = replace(self.mine, columns=there.columns)
        known = self.guests.get(name)
        if known is not None:
            same = known.digest == about.digest and known.n_train == about.n_train
            return "" if same else "its samples are not those with which it was here before"
        named = self.network.clients
        if self.complete or len(self.guests) >= self._wanted():
            return f"the federation is complete without it ({', '.join(sorted(self.guests)[:8])})"
        if not isinstance(named, int) and name not in named:
            return f"network.clients does not name it ({', '.join(named[:8])})"
        self.guests[name] = about
        return ""

    def close(self) -> None:
        """Let nobody in any more."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
