"""Tables over a network: all agree on an encoding, and the run is that of a simulation over the same files."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedkin import codec
from fedkin.data.own import FileWatch, OwnTable
from fedkin.data.sources.tables import TableSource
from fedkin.errors import FedkinError, RunError
from fedkin.federation.summaries import ColumnTypes
from fedkin.network.client import NetworkClient
from fedkin.network.link import Left
from fedkin.network.registration import Registration, Shared
from fedkin.running.experiment import Experiment
from fedkin.running.model_loader import load
from fedkin.running.networked import exchange, plan_of, serve, settings_of, shared_in, take_home
from network.federations import NOWHERE, Ending, simulated, state_in
from network.memory import MemoryNetwork
from stays import HOSPITALS, table, written
from support import same

NORTH, EAST, SOUTH = HOSPITALS


def plan_for(folder: Path, method: str = "fedavg", **sections: Any) -> Experiment:
    return Experiment.of({
        "name": "stays", "data": {"source": "csv", "path": str(folder), "target": "died", **sections.get("data", {})},
        "scenario": {"name": "natural"}, "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 2, "local_steps": 3, "batch_size": 16, "lr": 0.1}, "method": {"name": method},
        "run": {"checkpoint_every": 1}, "network": {"clients": list(HOSPITALS), "deadline": 60.0, "grace": 0.2},
    })  # fmt: skip


class Hospitals:
    """Hospitals in threads, each with its own file, and their server."""

    def __init__(self, plan: Experiment, folder: Path, root: Path) -> None:
        self.plan, self.folder, self.root = plan, folder, root
        self.network, self.stop, self.changed = MemoryNetwork(), threading.Event(), threading.Condition()
        self.errors: dict[str, str] = {}
        self.said: list[str] = []
        self.told: dict[str, list[str]] = {name: [] for name in HOSPITALS}
        self.threads: dict[str, threading.Thread] = {}

    def table(self, name: str, file: str = "") -> OwnTable:
        assert isinstance(self.plan.data, TableSource)
        return OwnTable(name, str(self.root / file if file else self.folder / f"{name}.csv"), self.plan.data)

    def start(self, *names: str, act: Callable[[Any, str], object] | None = None, **options: Any) -> None:
        """Have these take part, each in a thread."""
        for name in names or HOSPITALS:
            part = act or (lambda link, name: self.join(link, name, **options))
            self.threads[name] = threading.Thread(target=self._run, args=(part, name), daemon=True)
            self.threads[name].start()

    def join(self, link: Any, name: str, file: str = "", settings: str = "", **options: Any) -> None:
        if self.plan.network.reread:
            options["watch"] = FileWatch(self.folder / f"{name}.csv", partial(self.table, name))
        NetworkClient(
            link, self.table(name, file), plan_of, self.root / name, settings=settings or settings_of(self.plan),
            patience=0.05, stop=options.pop("stop", self.stop), say=lambda line: self.told[name].append(line),
            take_home=partial(take_home, self.root / name), **options,
        ).run()  # fmt: skip

    def _run(self, act: Callable[[Any, str], object], name: str) -> None:
        torch.set_num_threads(1)
        try:
            with self.network.link(name) as link:
                act(link, name)
        except Left:
            pass
        except FedkinError as error:
            self.errors[name] = str(error)

    def serve(self, folder: Path, watcher: Any = None) -> Any:
        """Run the server until the run has ended, or it is stopped."""
        with self.network.link("server") as link:
            return serve(self.plan, link, folder, data_root=NOWHERE, say=self.say, watcher=watcher)

    def say(self, line: str) -> None:
        with self.changed:
            self.said.append(line)
            self.changed.notify_all()

    def heard(self, words: str) -> None:
        """Wait until the server has said this."""
        with self.changed:
            assert self.changed.wait_for(lambda: any(words in line for line in self.said), 60), self.said

    def ended(self, *names: str) -> None:
        """Wait until these (none named: all) have ended."""
        for name in names or list(self.threads):
            self.threads[name].join(60)
            assert not self.threads[name].is_alive(), name


class Until(Ending):
    """Stops a server that waits when something is so."""

    def __init__(self, so: Callable[[], bool]) -> None:
        super().__init__()
        self.stopping = so  # type: ignore[method-assign]


@pytest.fixture
def there(tmp_path: Path) -> Hospitals:
    folder = written(tmp_path / "stays")
    # A risk has a pooled figure in a simulation, for which a network would need scores of single samples.
    return Hospitals(plan_for(folder, data={"kind": "classification"}), folder, tmp_path)


def equal(there: Hospitals, root: Path) -> None:
    """Whether the run is the simulation over the files of the hospitals."""
    simulated(there.plan, root / "here")
    federation = there.plan.federation(NOWHERE)
    kept = shared_in(root / "there")
    assert kept is not None
    assert (kept.agreed.encoding, kept.agreed.target) == (federation.encoding, federation.target)
    assert kept.clients == HOSPITALS
    here, far = ((root / name / "rounds.jsonl").read_bytes() for name in ("here", "there"))
    assert here == far
    assert same(*(state_in(root / name)["server"] for name in ("here", "there")))


def at_home(root: Path) -> None:
    """Whether each hospital predicts for rows of its file, from its own folder, what the simulation would."""
    here = load(root / "here")
    for name in HOSPITALS:
        own, rows = load(root / name), table(name).drop(columns="died")
        rows["admitted"] = pd.to_datetime(rows["admitted"])
        assert own.clients == (name,)
        assert list(own.predict(rows)) == list(here.predict(rows, client=name))
        assert np.array_equal(own.probabilities(rows), here.probabilities(rows, client=name))


def test_a_run_over_tables_is_that_of_a_simulation(there: Hospitals, tmp_path: Path) -> None:
    there.start()
    assert there.serve(tmp_path / "there")
    there.ended()
    assert there.errors == {}
    equal(there, tmp_path)
    at_home(tmp_path)
    (tmp_path / "there" / "encoding.json").unlink()
    kept = json.loads((tmp_path / "there" / "federation.json").read_text())
    assert isinstance(there.plan.data, TableSource)
    with there.network.link("server") as link, pytest.raises(RunError, match="put the file back"):
        Registration(link, "", plan_of, there.plan.network, reading=there.plan.data.reading(""), kept=kept)


def test_what_leaves_is_asked_once(there: Hospitals, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def no(lines: list[str]) -> bool:
        asked.append(lines)
        return False

    there.start(NORTH, consent=no)
    there.ended()
    (lines,) = asked
    assert any("rare ones may identify people" in line for line in lines)
    assert any(line.startswith("train: params (of the net: body.1.weight [4, ") for line in lines)
    assert lines[-1].startswith("evaluation: ")
    with there.network.link("server") as link:
        assert not link.bytes_in

    def yes(lines: list[str]) -> bool:
        asked.append(lines)
        return True

    there.start(consent=yes)
    assert there.serve(tmp_path / "there")
    there.ended()
    assert len(asked) == 1 + len(HOSPITALS)


def test_peers_agree_without_a_server(tmp_path: Path) -> None:
    folder = written(tmp_path / "stays")
    there = Hospitals(plan_for(folder, "dfedavgm"), folder, tmp_path)
    there.start(
        act=lambda link, name: exchange(
            there.plan, link, there.table(name), HOSPITALS, tmp_path / name, stop=there.stop
        )
    )
    there.ended()
    assert there.errors == {}
    simulated(there.plan, tmp_path / "here")
    states = state_in(tmp_path / "here")["clients"]
    for name in HOSPITALS:
        kept = shared_in(tmp_path / name)
        assert kept is not None
        assert kept.agreed.encoding == there.plan.federation(NOWHERE).encoding
        assert same(state_in(tmp_path / name)["clients"][name], states[name])
    at_home(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows.rename(columns={"dose": "amount"}),
         "it has no column 'dose', which most have, and it has 'amount', which most have not"),
        (lambda rows: rows.assign(age="old"), "its column 'age' holds text, and that of most holds number"),
    ],
)  # fmt: skip
def test_a_wrong_table_that_comes_first_is_refused_alone_and_comes_back_corrected(
    change: Any, words: str, there: Hospitals, tmp_path: Path
) -> None:
    change(table(SOUTH)).to_csv(tmp_path / "wrong.csv", index=False)
    server = threading.Thread(target=there.serve, args=(tmp_path / "there",), daemon=True)
    server.start()
    there.start(SOUTH, file="wrong.csv")
    there.heard(f"1 of 3 clients have told their columns: {SOUTH}; missing: {NORTH}, {EAST}")
    there.start(NORTH, EAST)
    there.ended(SOUTH)
    assert there.errors.pop(SOUTH) == f"the server refuses this client: {words}"
    there.heard(f"{SOUTH} is refused: {words}")
    there.heard(f"missing: {SOUTH}")
    assert f"waiting for {NORTH}, {EAST}" in there.told[SOUTH]
    there.start(SOUTH)
    there.ended()
    server.join(60)
    assert there.errors == {}
    equal(there, tmp_path)


def test_a_column_that_most_have_not_stays_at_home(there: Hospitals, tmp_path: Path) -> None:
    table(SOUTH).assign(name="X").to_csv(tmp_path / "more.csv", index=False)
    sent = list[bytes]()

    def act(link: Any, name: str) -> None:
        offer = link.offer

        def noted(to: str, subject: str, data: bytes) -> None:
            sent.append(data)
            offer(to, subject, data)

        link.offer = noted
        there.join(link, name, "more.csv")

    there.start(NORTH, EAST)
    there.start(SOUTH, act=act)
    assert there.serve(tmp_path / "there")
    there.ended()
    assert there.errors == {}
    assert "columns that most have not stay here: name" in there.told[SOUTH]
    assert not any(b'"name": {"X"' in data for data in sent)
    equal(there, tmp_path)


def test_other_settings_of_the_table_are_refused(there: Hospitals, tmp_path: Path) -> None:
    there.start(NORTH, settings=settings_of(plan_for(there.folder, data={"least": 3, "kind": "classification"})))
    with pytest.raises(RunError, match="stopped while clients were awaited"):
        there.serve(tmp_path / "there", Until(lambda: bool(there.errors)))
    there.ended()
    assert there.errors[NORTH] == "the server refuses this client: table.least is 10 here and 3 there"


def test_whoever_comes_after_all_are_there_is_refused(there: Hospitals) -> None:
    columns = ColumnTypes({"age": "number"}, "text")
    with there.network.link("server") as link, there.network.link("eve") as eve:
        registration = Registration(link, "", plan_of, there.plan.network, reading=None)
        registration.shared = Shared(None, columns, ("ann", "bob"))  # type: ignore[arg-type]
        hello = {"nonce": "0" * 8, "life": "a", "agreement": {"settings": ""}, "columns": columns.to_json()}
        eve.offer("server", "hello", codec.encode(hello))
        refused = codec.decode(eve.pull("server", f"welcome/{'0' * 8}", 30))["refused"]
        registration.close()
    assert refused == "the federation is complete without it (ann, bob)"


@pytest.mark.parametrize("fields", [{"columns": "garbage"}, {"profile": '{"types": {}}'}, {"columns": '{"types": 3}'}])
def test_garbage_in_place_of_a_table_is_refused(fields: dict[str, str], there: Hospitals) -> None:
    with there.network.link("server") as link, there.network.link(NORTH) as north:
        registration = Registration(link, "", plan_of, there.plan.network)
        hello = {"nonce": "0" * 8, "life": "a", "agreement": {"settings": ""}, **fields}
        north.offer("server", "hello", codec.encode(hello))
        welcome = codec.decode(north.pull("server", f"welcome/{'0' * 8}", 30))
        registration.close()
    assert welcome["refused"].startswith("what it tells of its table is not readable (")


def test_no_count_of_the_targets_values_leaves(there: Hospitals) -> None:
    told = json.loads(there.table(NORTH).told.to_json())
    assert told["values"] == ["no", "yes"]
    assert "died" not in {*told["profile"]["categories"], *told["profile"]["numbers"]}


def test_who_takes_no_part_changes_no_encoding(tmp_path: Path) -> None:
    folder = written(tmp_path / "stays")
    plan = plan_for(folder, data={"kind": "classification"})
    plan = plan.with_changes(**{"network.clients": [NORTH, EAST], "network.newcomers": True})
    there = Hospitals(plan, folder, tmp_path)
    there.start(SOUTH, unseen=True)
    there.start(NORTH, EAST)
    wait = Ending(then=lambda round: there.heard(f"{SOUTH} is evaluated"))
    result = there.serve(tmp_path / "there", wait)
    there.ended()
    assert there.errors == {}
    kept = shared_in(tmp_path / "there")
    assert kept is not None
    assert kept.clients == (NORTH, EAST)
    assert "burns" not in kept.agreed.encoding.values["ward"]  # a ward of the south alone
    assert result.unseen == (SOUTH,)
    assert {row[1] for row in result.messages} | {row[2] for row in result.messages} == {NORTH, EAST, "server"}
    rows = table(SOUTH).drop(columns="died")
    rows["admitted"] = pd.to_datetime(rows["admitted"])
    assert len(load(tmp_path / SOUTH).predict(rows)) == 60
