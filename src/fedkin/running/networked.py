"""A federation over a network, from an experiment file: common settings, a server's run, a peer's, and Flower's app."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import tomli_w

from fedkin._version import __version__
from fedkin.data.csv_cells import CsvFormat
from fedkin.data.own import OwnTable
from fedkin.data.sources.folder import Folder
from fedkin.data.sources.tables import TableSource
from fedkin.engines.ledger import Ledger
from fedkin.engines.setup import Setup
from fedkin.errors import ConfigError, DataError, RunError
from fedkin.federation import Client, Entry, Federation, Roster
from fedkin.federation.summaries import ColumnTypes, SharedEncoding
from fedkin.flow import Params, PeerMethod
from fedkin.folders import write_new
from fedkin.learning.metrics import MEASURES
from fedkin.methods.given import Given
from fedkin.network.agreement import Agreement, difference, setup_and_agreement
from fedkin.network.calls import CallingLink
from fedkin.network.consent import consent_to_profile, disclosure, largest_message
from fedkin.network.flower.server_calls import GridCalls
from fedkin.network.gathering import Shared
from fedkin.network.join_file import Join
from fedkin.network.link import Left, Link
from fedkin.network.peer import PeerEngine
from fedkin.network.peer_exchange import PeerExchange, PeerOutbox
from fedkin.network.peer_tables import agree_with_peers
from fedkin.network.registration import Registration
from fedkin.network.server import NetworkEngine
from fedkin.network.settings import NetworkSettings
from fedkin.network.status import StatusFile
from fedkin.records.checkpoints import Checkpoints
from fedkin.records.files import SEAL, read_json, write_json, write_seal
from fedkin.records.models import ModelContext, digest_of, keep_models
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment, load, nets_for, part_of, public_from, read_table, without_none
from fedkin.running.loop import Watcher, execute, finished
from fedkin.running.plugins import add_installed, files_of, stages_of, without_hash
from fedkin.settings import parse
from fedkin.tasks import Task
from fedkin.untrusted import error_text, toml_of

# The settings of [data] that say how to read a table; the others say where it is.
_TABLE_SETTINGS = (
    "target", "client", "time", "group", "person", "kind", "positive", "split", "test_fraction", "leave_out",
    "categories", "least", "seed",
)  # fmt: skip
# The settings of [data] that say how images become inputs.
_IMAGE_SETTINGS = ("size", "grey", "classes", "mean", "std", "test_fraction", "seed")
_ENCODING = "encoding.json"
_SECTIONS = ("model", "training", "method", "faults", "privacy")
# The settings of [run] that all participants must have in common; the others are the server's own.
_COMMON_RUN_SETTINGS = ("seed", "dtype", "precision", "network", "errors", "largest_n", "message_limit_mb", "metrics")


def experiment_of(join: Join) -> Experiment:
    """Return the experiment in a join file; its clients are the file's members unless it sets `network.clients`."""
    return _with_members(Experiment.of(toml_of(join.experiment)), join)


def _with_members(experiment: Experiment, join: Join) -> Experiment:
    if "clients" in experiment.table.get("network", {}):
        return experiment
    names = tuple(sorted(set(join.participants) - {join.server}))
    return replace(
        experiment, network=parse(NetworkSettings, {**experiment.network.model_dump(), "clients": names}, "network")
    )


def with_join_file(experiment: Experiment, join: Join) -> Experiment:
    """Return the experiment with a join file's clients; raises ConfigError if the file is of another experiment."""
    other = experiment_of(join)
    if words := difference(Agreement(settings=settings_of(experiment)), Agreement(settings=settings_of(other))):
        raise ConfigError(f"the join file is of another experiment: {words} (there: in the join file)")
    if "network" not in experiment.table:
        return replace(experiment, network=other.network)
    return _with_members(experiment, join)


def check_members(experiment: Experiment, join: Join) -> None:
    """Raise ConfigError, before anybody joins, if the experiment's clients do not fit the members of a join file."""
    names, peers = sorted(set(join.participants) - {join.server}), isinstance(experiment.method, PeerMethod)
    if peers and join.server:
        name = experiment.method.name
        raise ConfigError(f"--server: method {name!r} has none, all members are peers: leave --server out")
    if not peers and not join.server:
        raise ConfigError(f"method.name: {experiment.method.name!r} has a server: give --server NAME=tls/HOST:PORT")
    if not names:
        raise ConfigError("nobody takes part but the server: give --member NAME for each client")
    clients = _with_members(experiment, join).network.clients
    if isinstance(clients, int):
        if clients > len(names):
            raise ConfigError(f"network.clients: {clients}, and {len(names)} are invited ({', '.join(names)})")
        return
    if lacking := sorted(set(clients) - set(names)):
        raise ConfigError(
            f"network.clients: {lacking[0]!r} is not invited: give --member {lacking[0]}, or leave it out"
        )
    if join.server and not experiment.network.newcomers and (more := sorted(set(names) - set(clients))):
        raise ConfigError(
            f"--member {more[0]}: network.clients does not name it, so that it would not be let in; network.newcomers "
            "= true lets it join later"
        )
    if isinstance(experiment.method, Given):
        roster = Roster(dict.fromkeys(names, Entry(True, 1, 0, None)), Task(2, (1,)))
        experiment.method.check(roster)


def check_no_files(experiment: Experiment) -> None:
    """Raise ConfigError for parts from files: over a network, no file may be named."""
    parts: list[Any] = [type(experiment.data), type(experiment.model), type(experiment.method)]
    parts += stages_of(experiment.method.model_dump())
    parts += [MEASURES[name] for name in experiment.run.metrics]
    if own := {*files_of(parts), *experiment.table.get("own", ())}:
        raise ConfigError(
            f"own: {without_hash(sorted(own)[0])[0]}: over a network files stay where they are: install it at every "
            "participant as a package with entry points (docs/writing-a-method.md), and name the part without its file"
        )


def settings_of(experiment: Experiment, names: Sequence[str] | None = None) -> str:
    """Return the settings common to all participants, as TOML; raises ConfigError for settings of a simulation.

    names: all peers or clients (None: `network.clients`); if bodies differ, the names decide who has which body.
    """
    clients = experiment.network.clients if names is None else tuple(names)
    _check_for_network(experiment, clients)
    whole = experiment.resolved()
    table: dict[str, Any] = {name: whole[name] for name in _SECTIONS if name in whole}
    table["run"] = _chosen(whole["run"], _COMMON_RUN_SETTINGS)
    if isinstance(experiment.data, TableSource):
        table["table"] = _chosen(whole["data"], _TABLE_SETTINGS)
    if isinstance(experiment.data, Folder):
        table["images"] = _chosen(whole["data"], _IMAGE_SETTINGS)
    if experiment.network.reread:
        table["network"] = {"reread": True}
    if hasattr(experiment.model, "deal_bodies") and not isinstance(clients, int):
        table["names"] = sorted(clients)
    return tomli_w.dumps(without_none(table))


def _check_for_network(experiment: Experiment, clients: int | tuple[str, ...]) -> None:
    """Raise ConfigError for settings that cannot be common to participants, or are only for a simulation."""
    check_no_files(experiment)
    if experiment.run.adversaries != "none":
        raise ConfigError("run.adversaries: these are simulated; a network has its own, so leave it out")
    if hasattr(experiment.model, "deal_bodies") and isinstance(clients, int):
        raise ConfigError(
            "network.clients: 'mixed' deals bodies out by name: expected the names of all clients, or none, which "
            "takes the members of the join file"
        )
    if isinstance(experiment.data, TableSource) and experiment.data.tokens is not None:
        raise ConfigError(
            "data.tokens: over a network, token ids come from each participant's .npz file (docs/data.md)"
        )
    if experiment.network.reread:
        _check_reread(experiment)


def _chosen(section: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name in names}


def _check_reread(experiment: Experiment) -> None:
    """Raise ConfigError if samples may not change during a run of this experiment."""
    data, why = experiment.data, ""
    if isinstance(experiment.method, PeerMethod):
        why = f"method {experiment.method.name!r} has no server that counts the new rows"
    elif experiment.privacy.on:
        why = "[privacy] counts for samples that stay"
    elif isinstance(data, Folder) or (isinstance(data, TableSource) and data.split is None and data.time is None):
        why = (
            "it needs a table with data.time or data.split, or a .npz file with split: if test samples are drawn "
            "again, models may have trained on some of them"
        )
    if why:
        raise ConfigError(f"network.reread: {why}")


def setup_of(text: str, task: Task) -> Setup:
    """Return the setup from a text of `settings_of`; raises ConfigError for other texts."""
    add_installed()
    try:
        table = toml_of(text)
        parts = {section: part_of(table, section) for section in (*_SECTIONS, "run")}
        names = [str(name) for name in table.get("names", ())]
    except (TypeError, ValueError):
        raise ConfigError("the settings of the federation are not readable") from None
    run = parts["run"]
    roster = Roster(dict.fromkeys(names, Entry(True, 1, 0, None)), task)
    net, nets = nets_for(parts["model"], roster, run.seed, run.torch_dtype, run.precision)
    measures = tuple(MEASURES[name] for name in run.metrics)
    return Setup(
        parts["method"], task, net, parts["training"], run.seed, run, nets, faults=parts["faults"],
        privacy=parts["privacy"], measures=measures,
    )  # fmt: skip


def take_home(
    folder: Path, settings: str, setup: Setup, shared: SharedEncoding | None, client: Client, params: Params,
    round: int, csv: CsvFormat | None = None,
) -> str:  # fmt: skip
    """Store a client's model of a round in its own folder, as a run stores models; returns its hash. Raises RunError.

    `fedkin.load` and `fedkin export` accept the folder. settings: those of the federation. shared: the common encoding
    of all clients' tables, if they have tables. csv: how the client read its table, if the settings of CSV files hold.
    """
    (folder / SEAL).unlink(missing_ok=True)  # a model is valid only once its seal is written
    context = replace(_context_of(settings, setup, client, shared), csv=csv)
    files = keep_models(folder, {client.id: params}, context, math.inf)
    write_seal(folder / SEAL, files, round)
    return digest_of(params)


def taking_home(experiment: Experiment) -> Callable[..., str]:
    """Return `take_home` for the participants of this experiment."""
    return partial(take_home, csv=experiment.data if isinstance(experiment.data, CsvFormat) else None)


def _context_of(settings: str, setup: Setup, client: Client, shared: SharedEncoding | None) -> ModelContext:
    """Return the information that is needed to use one participant's model again."""
    table, alone = toml_of(settings), Federation([client], setup.task)
    if shared is not None:
        alone.encoding, alone.target = shared.encoding, shared.target
    return ModelContext.of(setup, alone, part_of(table, "model"), map(str, table.get("names", ())))


def serve(
    experiment: Experiment, link: Link, folder: Path, *, data_root: Path | None = None,
    watcher: Watcher | None = None, say: Callable[[str], None] = lambda line: None,
) -> Result:  # fmt: skip
    """Run an experiment as its server, with the clients on this link; a finished run in `folder` is read instead.

    The records are those of a simulation. A checkpoint is written after every round, because clients keep only their
    last three states. data_root: the folder of data sets that the server owns.
    """
    if isinstance(experiment.method, PeerMethod):
        raise ConfigError(f"method.name: {experiment.method.name!r} has no server; each peer runs fedkin net join")
    settings = settings_of(experiment)
    if (done := finished(experiment, folder)) is not None:
        return done
    root = data_root or Path("data")
    with experiment.claimed(folder, root):
        reading = experiment.data if isinstance(experiment.data, TableSource) else None
        kept, (checkpoint, _) = folder / "federation.json", Checkpoints(folder).survey()
        registration = Registration(
            link, settings, setup_of, experiment.network, name=experiment.name, reading=reading,
            kept=read_json(kept) if kept.exists() else None,
            moved={} if checkpoint is None else checkpoint.state["engine"].get("moved", {}),
            shared=read_shared(folder), keep=partial(write_shared, folder), say=say,
        )  # fmt: skip
        stopping = watcher.stopping if watcher is not None else lambda: False
        run = experiment.run.model_copy(update={"checkpoint_every": 1, "engine": "network", "mode": "one-by-one"})
        try:
            with StatusFile(link, folder, "server", lambda: list(registration.members), experiment.name) as status:
                roster = registration.wait(stopping)
                assert registration.gathering.setup is not None
                setup = replace(registration.gathering.setup, engine=run, public=public_from(root))
                setup.method.check(roster)
                setup.training.count(len(roster.seen))
                engine = NetworkEngine(setup, roster, registration, status, stopping=stopping)
                result = execute(
                    setup, run, name=experiment.name, scenario="network", folder=folder, watcher=watcher,
                    make=lambda _: engine, settings=experiment.resolved,
                )  # fmt: skip
                engine.end()
                return result
        finally:
            registration.close()


def write_shared(folder: Path, shared: Shared) -> None:
    """Store the agreed common encoding in the folder of a run or of a participant's states."""
    tree = {"agreed": shared.agreed.to_json(), "columns": shared.columns.to_json()}
    write_json(folder / _ENCODING, {"clients": list(shared.clients), **tree})


def read_shared(folder: Path) -> Shared | None:
    """Return the encoding that is stored in a folder; None if there is none. Raises RunError."""
    path = folder / _ENCODING
    if not path.exists():
        return None
    try:
        tree = read_json(path)
        columns = ColumnTypes.from_json(tree["columns"])
        return Shared(SharedEncoding.from_json(tree["agreed"]), columns, tuple(map(str, tree["clients"])))
    except (DataError, KeyError, TypeError) as error:
        raise RunError(f"{path}: not an agreed encoding ({error_text(error)}); put the file back as it was") from None


def _check_for_peers(experiment: Experiment) -> None:
    """Raise ConfigError for an experiment that peers cannot run."""
    if not isinstance(experiment.method, PeerMethod):
        raise ConfigError(f"method.name: {experiment.method.name!r} has a server; use fedkin net serve")
    if experiment.run.network.startswith("planted"):
        raise ConfigError("run.network: 'planted' needs the groups of all, which no peer knows; choose another")


def exchange(
    experiment: Experiment, link: Link, samples: tuple[Client, Task] | OwnTable, names: Sequence[str], folder: Path, *,
    device: str = "cpu", watcher: Watcher | None = None,
    consent: Callable[[list[str]], bool] = lambda lines: True, say: Callable[[str], None] = lambda line: None,
    stop: Event | None = None, ledger: Ledger | None = None,
) -> Result:  # fmt: skip
    """Run one peer's part of an experiment among `names`; its records cover itself and its messages.

    samples: ready samples, or a table to encode with the common encoding. ledger: all that the peer has released under
    `[privacy]` (None: in memory). Raises Left if the peer leaves before all others are there.
    """
    _check_for_peers(experiment)
    settings, stop, ledger = settings_of(experiment, names), stop or Event(), ledger or Ledger()
    shared, agreed, consented = None, None, False
    if isinstance(samples, OwnTable):
        consented = consent_to_profile(samples, settings, setup_of, ledger, consent)
        kept, begin = read_shared(folder), experiment.network.clients
        shared = agree_with_peers(link, names, begin, samples, settings, kept=kept, stop=stop, say=say)
        agreed = shared.agreed
        samples = samples.client(agreed)
    client, task = samples
    setup, mine = setup_and_agreement(settings, task, setup_of, device)
    if setup is None:
        raise ConfigError(mine.cannot)
    if (result := finished(experiment, folder)) is not None:
        return result
    run = experiment.run.model_copy(update={"checkpoint_every": 1, "engine": "peer", "mode": "one-by-one"})
    setup = replace(setup, engine=run)
    if not consented and not consent(disclosure(setup, client, ledger.page("", setup.privacy))):
        raise Left
    limit = max(largest_message(setup, name) for name in names)
    with experiment.claimed(folder, Path("data")):
        if shared is not None:
            write_shared(folder, shared)
        mine = mine.model_copy(update={"columns": tuple(map(str, client.about.get("columns", ())))})
        outbox, (checkpoint, _) = PeerOutbox(folder / "sent"), Checkpoints(folder).survey()
        done = 0 if checkpoint is None else checkpoint.round
        del checkpoint  # it holds a state
        page = ledger.page(outbox.life(), setup.privacy)
        near = PeerExchange(link, names, mine, experiment.network, limit, outbox, say=say, stop=stop, done=done)
        try:
            with StatusFile(link, folder, "peer", lambda: near.others, experiment.name) as status:
                near.gather()
                engine = PeerEngine(setup, client, near, page, status, device)
                result = execute(
                    setup, run, name=experiment.name, scenario="network", folder=folder, watcher=watcher,
                    make=lambda _: engine, settings=experiment.resolved,
                    model_context=_context_of(settings, setup, client, agreed),
                )  # fmt: skip
                if run.models == "last":
                    status.tell(model={"": digest_of(result.models[client.id])})
                near.end(setup.training.rounds + 1)
            return result
        finally:
            near.close()


# -- an experiment on a Flower deployment: the files of its app, and the server's rounds -------------------------------


_APP = "fedkin_app"
_TEMPLATES = Path(__file__).parent / "templates"
# Seconds for which a client may delay its answer while it works: each additional message costs seconds.
_FLOWER_HOLD = 300.0


def write_app(folder: Path, experiment: Path, out: Path, data_root: Path | None) -> None:
    """Write an app for an experiment that `flwr run` accepts; raises ConfigError for experiments that cannot run there.

    out: folder of the run's records, on the machine of the SuperLink. data_root: the folder of data sets there.
    """
    loaded = load(experiment)
    _check_for_flower(loaded)
    model = loaded.table.get("model", {})
    nets = {f"model.nets.{name}": net for name, net in model.get("nets", {}).items()}
    for where, net in {"model": model, **nets}.items():
        if "path" in net and not Path(net["path"]).is_absolute():
            raise ConfigError(
                f"{where}.path: {net['path']} is not absolute, and Flower starts an app in a folder of its own"
            )
    if any(folder.iterdir() if folder.is_dir() else ()):
        raise ConfigError(f"{folder}: not empty; name a new folder")
    package = folder / _APP
    package.mkdir(parents=True, exist_ok=True)
    root = (data_root or Path("data")).absolute()
    files = {
        folder / "pyproject.toml": tomli_w.dumps(_project(loaded, out.absolute(), root)),
        package / "__init__.py": "",
        package / "server_app.py": (_TEMPLATES / "flower_server.txt").read_text(encoding="utf-8"),
        package / "client_app.py": (_TEMPLATES / "flower_client.txt").read_text(encoding="utf-8"),
        package / "experiment.toml": tomli_w.dumps(read_table(experiment)),
    }
    for path, text in files.items():
        write_new(path, text.encode(), "name a new folder")


def _check_for_flower(experiment: Experiment) -> None:
    if isinstance(experiment.method, PeerMethod):
        raise ConfigError(
            f"method.name: {experiment.method.name!r} has no server, and Flower has one: use fedkin net join"
        )
    settings_of(experiment)


def _project(experiment: Experiment, out: Path, root: Path) -> dict[str, Any]:
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "fedkin-app", "version": "1.0.0", "description": f"fedkin {__version__}: {experiment.name}",
            "license": "Apache-2.0", "dependencies": ["flwr>=1.41"],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {"app": {
                "publisher": "fedkin",
                "components": {
                    "serverapp": f"{_APP}.server_app:app", "clientapp": f"{_APP}.client_app:app",
                },
                "config": {"out": str(out), "data-root": str(root)},
            }},
        },
    }  # fmt: skip


def run_app(
    experiment: Path, calls: GridCalls, config: Mapping[str, Any], say: Callable[[str], None], watcher: Watcher
) -> tuple[Result, Path]:  # fmt: skip
    """Run or resume an app's experiment with a deployment's nodes as clients; returns (the result, its folder).

    config: `out` and `data-root`, folders on this machine.
    """
    loaded = load(experiment)
    _check_for_flower(loaded)
    out, root = Path(str(config["out"])), Path(str(config["data-root"]))
    if not out.is_absolute():
        raise RunError(f"run config: out: {out} is not an absolute path, and Flower's folder is not yours")
    say(f"records: {out}")
    with CallingLink(calls, hold=_FLOWER_HOLD, say=say) as link:
        result = serve(loaded, link, out, data_root=root, say=say, watcher=watcher)
    return result, out
