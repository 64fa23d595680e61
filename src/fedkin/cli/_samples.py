"""The samples of who joins: read from its own files, after all have agreed on the encoding if they are tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from fedkin.cli.output import make_console
from fedkin.errors import ConfigError

if TYPE_CHECKING:
    from fedkin.data.own import OwnTable
    from fedkin.federation import Client, Task
    from fedkin.network.encoding import Shared
    from fedkin.network.ledger import Ledger
    from fedkin.network.link import Link
    from fedkin.running.experiment import Experiment

__all__ = ["Read", "joined", "met", "reader"]

Consent = Callable[[list[str]], bool]


class Read:
    """The samples of one participant: ready, or a table that is not encoded yet."""

    def __init__(
        self, ready: tuple[Client, Task] | None = None, table: OwnTable | None = None, group: str | None = None
    ) -> None:  # fmt: skip
        self.ready, self.table, self.group = ready, table, group


def reader(
    plan: Experiment, name: str, data: str, target: str | None, fraction: float | None, group: str | None = None
) -> Read:  # fmt: skip
    """Read a participant's data, as the experiment says if its source is a table or a folder of images.

    Raises DataError and ConfigError.
    """
    from fedkin.data.own import OwnTable, own_client, own_images
    from fedkin.data.sources._table import TableSource
    from fedkin.data.sources.folder import Folder

    source = plan.data
    if isinstance(source, Folder) and (Path(data).is_dir() or not (Path(data).suffix or ":" in data)):
        if target is not None:
            raise ConfigError(f"--target {target}: this is for a table (.csv, .parquet), and the data are {data}")
        _check_fraction(fraction, source.test_fraction)
        return Read(own_images(name, data, source, classes=plan.network.classes, group=group))
    if not isinstance(source, TableSource):
        return Read(own_client(
            name, data, target=target, kind=plan.network.kind, classes=plan.network.classes, group=group,
            test_fraction=0.2 if fraction is None else fraction, seed=plan.run.seed,
        ))  # fmt: skip
    if target not in (None, source.target):
        raise ConfigError(f"--target {target}: the experiment learns {source.target!r}; leave the option out")
    _check_fraction(fraction, source.test_fraction)
    return Read(table=OwnTable(name, data, source), group=group)


def _check_fraction(asked: float | None, held: float) -> None:
    if asked not in (None, held):
        raise ConfigError(f"--test-fraction {asked:g}: the experiment holds out {held:g}; leave the option out")


def joined(
    read: Read, plan: Experiment, link: Link, folder: Path, server: str, consent: Consent, ledger: Ledger, stop: Event
) -> tuple[Client, Task]:  # fmt: skip
    """Return the samples of a client, for whose table the server sends the encoding on which all agree."""
    from fedkin.network.encoding import Shared, received
    from fedkin.running.networked import keep, settings_of
    from fedkin.running.shared_metrics import check_metrics

    if read.table is None:
        assert read.ready is not None
        return read.ready
    check_metrics(plan.run.metrics)  # before anything of the table is told
    _ask(read.table, consent, ledger)
    say = make_console(stderr=True, soft_wrap=True).print
    agreed = received(link, server, read.table.told, settings_of(plan), stop=stop, say=say)
    keep(Shared(agreed, ()), folder)
    return read.table.client(agreed, read.group)


def met(
    read: Read, plan: Experiment, link: Link, folder: Path, names: Sequence[str], consent: Consent, ledger: Ledger,
    stop: Event,
) -> tuple[Client, Task, Shared | None]:  # fmt: skip
    """Return the samples of a peer, and the encoding on which the peers agree, if they have tables."""
    from fedkin.network.encoding import among
    from fedkin.running.networked import settings_of, shared_in
    from fedkin.running.shared_metrics import check_metrics

    if read.table is None:
        assert read.ready is not None
        return *read.ready, None
    check_metrics(plan.run.metrics)  # before anything of the table is told
    _ask(read.table, consent, ledger)
    shared = among(
        link, names, plan.network.clients, read.table.told, settings_of(plan, names), read.table.reading,
        kept=shared_in(folder), stop=stop, say=make_console(stderr=True, soft_wrap=True).print,
    )  # fmt: skip
    return *read.table.client(shared.agreed, read.group), shared


def _ask(table: OwnTable, consent: Consent, ledger: Ledger) -> None:
    from fedkin.network.link import Left

    ledger.beside.append("profile")
    if not consent([f"of the table, once, so that all encode theirs alike: {line}" for line in table.told.words()]):
        raise Left
