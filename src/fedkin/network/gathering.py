"""The clients with which a federation begins: they agree on a common encoding of their tables, and on the task.

The server answers a stage once all clients have reached it. Then it knows what most clients have, and refuses only the
clients that differ; these may come back.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from fedkin.engines.setup import Setup
from fedkin.errors import ConfigError, DataError, first_few
from fedkin.federation.summaries import ColumnTypes, SharedEncoding, TableSummary, agree, common_columns, unlike_targets
from fedkin.federation.table_columns import Reading
from fedkin.federation.table_encoding import lone_classes
from fedkin.network.agreement import Agreement, SetupOf, difference, setup_and_agreement
from fedkin.network.hello import Hello, Stage, Welcome
from fedkin.network.settings import NetworkSettings
from fedkin.tasks import Task
from fedkin.untrusted import error_text


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


class Gathering:
    """The clients with which a federation begins, stage by stage until all are there and agree.

    Used under `Registration.changed`. settings, setup_of, network, reading, shared, keep, say: as in `Registration`.
    setup: made once the task is known.
    """

    def __init__(
        self, settings: str, setup_of: SetupOf, network: NetworkSettings, reading: Reading | None,
        shared: Shared | None, keep: Callable[[Shared], None], say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.setup_of, self.network, self.reading, self.shared = setup_of, network, reading, shared
        self.keep, self.say = keep, say
        self.columns = None if shared is None else shared.columns
        self.setup: Setup | None = None
        self.agreement = Agreement(settings=settings, task=None)
        self.hellos: dict[Stage, dict[str, Hello]] = {"columns": {}, "profile": {}, "about": {}}
        self.await_clients(network.clients if isinstance(network.clients, int) else len(network.clients))

    def set_task(self, task: Task) -> None:
        """Set the federation's task; raises ConfigError if the experiment does not fit it."""
        setup, agreement = setup_and_agreement(self.agreement.settings, task, self.setup_of)
        if setup is None:
            raise ConfigError(agreement.cannot)
        self.setup, self.agreement = setup, agreement

    def await_clients(self, count: int) -> None:
        """Wait for so many clients in a stage; whoever is missing after `network.begin_after` seconds is left out."""
        after = self.network.begin_after
        self.expected, self.deadline = count, math.inf if after is None else time.monotonic() + after

    @property
    def stage(self) -> Stage:
        """The current stage."""
        if self.reading is None or self.shared is not None:
            return "about"
        return "columns" if self.columns is None else "profile"

    @property
    def needed(self) -> int:
        """How many clients must reach the current stage before it is decided."""
        if time.monotonic() < self.deadline:
            return self.expected
        return max(2, min(self.expected, len(self.hellos[self.stage])))

    def why_not(self, name: str, stage: Stage) -> str:
        """Return why a client cannot be one of those that begin; empty if it can."""
        clients: Collection[str] = () if self.shared is None else self.shared.clients
        if self.shared is None and len(self.hellos[stage]) >= self.needed:
            clients = self.hellos[stage]
        if clients and name not in clients:
            return f"the federation is complete without it ({first_few(sorted(clients))})"
        named = self.network.clients
        if not isinstance(named, int) and name not in named:
            return f"network.clients does not name it ({first_few(named)})"
        return ""

    def unlike_columns(self, hello: Hello) -> str:
        """Return why a table cannot take part; empty if it can, as far as that is known, or if there is none."""
        if hello.about is not None:
            return ""
        try:
            told = TableSummary.from_json(hello.profile) if hello.profile else ColumnTypes.from_json(hello.columns)
        except DataError as error:
            return f"what it tells of its table is not readable ({error_text(error)})"
        if self.columns is None or self.reading is None:
            return ""
        table = told.columns(self.reading) if isinstance(told, TableSummary) else told
        return table.unlike(self.columns)

    def answer(self, stage: Stage) -> Welcome | None:
        """Return the columns or the encoding on which all have agreed; None before that, and for descriptions."""
        if stage == "columns" and self.columns is not None:
            return Welcome(columns=self.columns.to_json())
        if stage == "profile" and self.shared is not None:
            return Welcome(encoding=self.shared.agreed.to_json())
        return None

    def decide(self) -> dict[str, str]:
        """Decide the current stage, or return the clients that differ from most, and why they are refused."""
        decide = {"columns": self._decide_columns, "profile": self._decide_encoding, "about": self._decide_task}
        return decide[self.stage](self.hellos[self.stage])

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
            if lone := lone_classes({id: dict.fromkeys(each.values or (), 0) for id, each in summaries.items()}):
                self.say(lone)
            self.keep(self.shared)
            self.set_task(self.shared.task)
        return wrong

    def _decide_task(self, hellos: Mapping[str, Hello]) -> dict[str, str]:
        """Adopt the task and columns that most clients have, or return those that differ, and why.

        The first clients break ties. Those with the task of most are returned if the experiment cannot be run with it.
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
                self.set_task(first.task)
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
