"""Tables over a network: all agree on an encoding, and the run is that of a simulation over the same files."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin import codec
from fedkin.data.own import OwnTable
from fedkin.data.sources.tables import TableSource
from fedkin.errors import FedkinError, RunError
from fedkin.network import table_profiles as encoding
from fedkin.network.client import NetworkClient
from fedkin.network.table_profiles import among, gathered, received
from fedkin.running.experiment import Experiment
from fedkin.running.networked import exchange, plan_of, serve, settings_of, shared_in
from network.federations import NOWHERE, same, simulated, state_in
from network.memory import MemoryNetwork
from stays import HOSPITALS, table, written


def plan_for(folder: Path, method: str = "fedavg", **sections: Any) -> Experiment:
    return Experiment.of({
        "name": "stays", "data": {"source": "csv", "path": str(folder), "target": "died", **sections.get("data", {})},
        "scenario": {"name": "natural"}, "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 2, "local_steps": 3, "batch_size": 16, "lr": 0.1}, "method": {"name": method},
        "run": {"checkpoint_every": 1}, "network": {"clients": list(HOSPITALS), "deadline": 60.0, "grace": 0.2},
    })  # fmt: skip


class Hospitals:
    """Hospitals in threads, each with its own file."""

    def __init__(self, plan: Experiment, folder: Path) -> None:
        self.plan, self.network, self.stop = plan, MemoryNetwork(), threading.Event()
        assert isinstance(plan.data, TableSource)
        self.tables = {name: OwnTable(name, str(folder / f"{name}.csv"), plan.data) for name in HOSPITALS}
        self.errors: dict[str, str] = {}
        self.threads: list[threading.Thread] = []

    def start(self, act: Any, *names: str) -> None:
        """Have these do this, each in a thread."""
        for name in names or HOSPITALS:
            self.threads.append(threading.Thread(target=self._run, args=(act, name), daemon=True))
            self.threads[-1].start()

    def _run(self, act: Any, name: str) -> None:
        torch.set_num_threads(1)
        try:
            with self.network.link(name) as link:
                act(link, name)
        except FedkinError as error:
            self.errors[name] = str(error)

    def join(self) -> None:
        """Wait until all have ended."""
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


def test_a_run_over_tables_is_that_of_a_simulation(tmp_path: Path) -> None:
    folder = written(tmp_path / "stays")
    # A risk has a pooled figure in a simulation, for which a network would need scores of single samples.
    plan = plan_for(folder, data={"kind": "classification"})
    there = Hospitals(plan, folder)

    def part(link: Any, name: str) -> None:
        own = there.tables[name]
        agreed = received(link, "server", own.told, settings_of(plan), stop=there.stop, patience=0.05)
        client, task = own.client(agreed)
        NetworkClient(link, client, task, plan_of, tmp_path / name, settings=settings_of(plan), patience=0.05).run()

    there.start(part)
    with there.network.link("server") as link:
        assert serve(plan, link, tmp_path / "there", data_root=NOWHERE)
    there.join()
    assert there.errors == {}
    simulated(plan, tmp_path / "here")
    federation = plan.federation(NOWHERE)
    kept = shared_in(tmp_path / "there")
    assert kept is not None
    assert (kept.agreed.encoding, kept.agreed.target) == (federation.encoding, federation.target)
    assert kept.clients == HOSPITALS
    here, far = ((tmp_path / name / "rounds.jsonl").read_bytes() for name in ("here", "there"))
    assert here == far
    assert same(*(state_in(tmp_path / name)["server"] for name in ("here", "there")))


def test_peers_agree_without_a_server(tmp_path: Path) -> None:
    folder = written(tmp_path / "stays")
    plan = plan_for(folder, "dfedavgm")
    there = Hospitals(plan, folder)

    def part(link: Any, name: str) -> None:
        own = there.tables[name]
        settings = settings_of(plan, HOSPITALS)
        shared = among(link, HOSPITALS, HOSPITALS, own.told, settings, own.reading, stop=there.stop)
        client, task = own.client(shared.agreed)
        exchange(plan, link, client, task, HOSPITALS, tmp_path / name, shared=shared, stop=there.stop)

    there.start(part)
    there.join()
    assert there.errors == {}
    simulated(plan, tmp_path / "here")
    states = state_in(tmp_path / "here")["clients"]
    for name in HOSPITALS:
        kept = shared_in(tmp_path / name)
        assert kept is not None
        assert kept.agreed.encoding == plan.federation(NOWHERE).encoding
        assert same(state_in(tmp_path / name)["clients"][name], states[name])


def test_a_table_of_other_columns_is_refused_and_the_others_are_served(tmp_path: Path) -> None:
    folder = written(tmp_path / "stays")
    plan = plan_for(folder)
    there, said = Hospitals(plan, folder), list[str]()
    odd = folder / "odd.csv"
    table("south").rename(columns={"dose": "amount"}).to_csv(odd, index=False)
    assert isinstance(plan.data, TableSource)
    other, heard = OwnTable("south", str(odd), plan.data), threading.Event()

    def part(link: Any, name: str) -> None:
        own = there.tables[name]
        received(link, "server", own.told, settings_of(plan), stop=there.stop, patience=0.05)

    def wrong(link: Any, name: str) -> None:
        try:
            received(link, "server", other.told, settings_of(plan), stop=there.stop, patience=0.05)
        finally:
            heard.set()

    def say(line: str) -> None:
        said.append(line)
        if "2 of 3" in line:
            there.start(wrong, "south")

    there.start(part, *HOSPITALS[:2])

    with there.network.link("server") as link:
        result: list[Any] = []
        gathering = threading.Thread(target=lambda: result.append(gathered(
            link, HOSPITALS, settings_of(plan), other.reading, say=say)), daemon=True)  # fmt: skip
        gathering.start()
        assert heard.wait(60)
        there.threads[-1].join(60)
        assert "has no column" in there.errors.pop("south")
        there.start(part, "south")
        gathering.join(60)
        there.join()
        assert result[0].clients == HOSPITALS
        assert link.refused.counts == {"south": 1}
    assert there.errors == {}
    (line,) = [line for line in said if "refused" in line]
    assert "south is refused: north has no column 'amount', which south has" in line


def test_other_settings_of_the_table_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "stays")
    plan = plan_for(folder)
    there, words = Hospitals(plan, folder), list[str]()
    settings = settings_of(plan_for(folder, data={"least": 3}))

    def part(link: Any, name: str) -> None:
        received(link, "server", there.tables[name].told, settings, stop=there.stop, patience=0.05)

    there.start(part, "north")
    with there.network.link("server") as link, pytest.raises(RunError, match="stopped while clients were awaited"):
        gathered(
            link, HOSPITALS, settings_of(plan), there.tables["north"].reading,
            stopping=lambda: bool(there.errors), say=words.append,
        )  # fmt: skip
    there.join()
    assert there.errors["north"] == "the server refuses this client: table.least is 10 here and 3 there"


def test_whoever_comes_after_all_are_there_is_refused() -> None:
    shared = encoding.Shared(None, ("ann", "bob"))  # type: ignore[arg-type]
    assert shared.answer("eve").refused == "the federation is complete without it (ann, bob)"


@pytest.mark.parametrize("data", [b"", b"garbage", codec.encode({"told": 3}), codec.encode({"version": "1"})])
def test_garbage_in_place_of_a_profile_is_refused(data: bytes) -> None:
    network = MemoryNetwork()
    link = network.link("server")
    with link, network.link("ann") as ann:
        ann.offer("server", "profile", data)
        said: list[str] = []
        with pytest.raises(RunError, match="stopped"):
            gathered(link, ["ann"], "", None, stopping=lambda: len(said) > 1, say=said.append)  # type: ignore[arg-type]
        assert "ann is refused: what it tells of its table is not readable" in said[1]
        (subject,) = [subject for to, subject in link.offers if to == "ann"]
        tree = codec.decode(ann.pull("server", subject, 5))
        assert list(tree) == ["refused"]


def test_no_count_of_the_targets_values_leaves(tmp_path: Path) -> None:
    folder = written(tmp_path / "stays")
    own = Hospitals(plan_for(folder), folder).tables["north"]
    told = json.loads(own.told.to_json())
    assert told["values"] == ["no", "yes"]
    assert "died" not in {*told["profile"]["categories"], *told["profile"]["numbers"]}
