"""Tables over a network: all agree on an encoding, and the run is that of a simulation over the same files."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkin import codec
from fedkin.data.own import FileWatch, OwnSamples, OwnTable
from fedkin.data.sources.tables import TableSource
from fedkin.errors import RunError
from fedkin.federation.summaries import ColumnTypes
from fedkin.network.agreement import Agreement, difference
from fedkin.network.gathering import Shared
from fedkin.network.registration import Registration
from fedkin.running.experiment import Experiment
from fedkin.running.model_loader import load
from fedkin.running.networked import exchange, read_shared, settings_of, setup_of
from network.federations import NOWHERE, Clients, Owner, simulated, state_in
from network.memory import MemoryLink
from stays import HOSPITALS, table, written
from support import present, same

NORTH, EAST, SOUTH = HOSPITALS


def plan_for(folder: Path, method: str = "fedavg", **sections: Any) -> Experiment:
    return Experiment.of({
        "name": "stays", "data": {"source": "csv", "path": str(folder), "target": "died", **sections.get("data", {})},
        "scenario": {"name": "natural"}, "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 2, "local_steps": 3, "batch_size": 16, "lr": 0.1}, "method": {"name": method},
        "run": {"checkpoint_every": 1}, "network": {"clients": list(HOSPITALS), "deadline": 60.0, "grace": 0.2},
    })  # fmt: skip


class Hospitals(Clients):
    """Hospitals in threads, each with its own file, and their server."""

    def __init__(self, plan: Experiment, folder: Path) -> None:
        super().__init__(plan, folder, options={"settings": settings_of(plan)})
        assert isinstance(plan.data, TableSource)
        self.data, self.stays = plan.data, plan.data.path

    def table(self, name: str, file: str = "") -> OwnTable:
        return OwnTable(name, str(self.folder / file if file else self.stays / f"{name}.csv"), self.data)

    def samples_of(self, name: str, options: dict[str, Any]) -> OwnSamples:
        if self.plan.network.reread:
            options["watch"] = FileWatch(self.stays / f"{name}.csv", partial(self.table, name))
        return self.table(name, options.pop("file", ""))


@pytest.fixture
def plan(tmp_path: Path) -> Experiment:
    # A risk has a pooled figure in a simulation, for which a network would need scores of single samples.
    return plan_for(written(tmp_path / "stays"), data={"kind": "classification"})


@pytest.fixture
def there(plan: Experiment, tmp_path: Path) -> Hospitals:
    return Hospitals(plan, tmp_path)


def equal(there: Hospitals) -> None:
    """Whether the run is the simulation over the files of the hospitals."""
    simulated(there.plan, there.folder / "here")
    federation, kept = there.plan.federation(NOWHERE), present(read_shared(there.folder / "there"))
    assert (kept.agreed.encoding, kept.agreed.target) == (federation.encoding, federation.target)
    assert kept.clients == HOSPITALS
    here, far = ((there.folder / name / "rounds.jsonl").read_bytes() for name in ("here", "there"))
    assert here == far
    assert same(*(state_in(there.folder / name)["server"] for name in ("here", "there")))


def at_home(there: Hospitals) -> None:
    """Whether each hospital predicts for rows of its file, from its own folder, what the simulation would."""
    here = load(there.folder / "here")
    for name in HOSPITALS:
        own, rows = load(there.root / name), inputs(name)
        assert own.clients == (name,)
        assert list(own.predict(rows)) == list(here.predict(rows, client=name))
        assert np.array_equal(own.probabilities(rows), here.probabilities(rows, client=name))


def inputs(name: str) -> pd.DataFrame:
    """What a hospital knows of its stays before they end."""
    rows = table(name).drop(columns="died")
    rows["admitted"] = pd.to_datetime(rows["admitted"])
    return rows


def test_a_run_over_tables_is_that_of_a_simulation(
    there: Hospitals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if one has a column that most do not have, which stays there; each is asked once what may leave."""
    table(SOUTH).assign(name="X").to_csv(tmp_path / "more.csv", index=False)
    sent, owner = list[bytes](), Owner("yes")
    made = MemoryLink.offer

    def offer(link: MemoryLink, to: str, subject: str, data: bytes) -> None:
        sent.append(data)
        made(link, to, subject, data)

    monkeypatch.setattr(MemoryLink, "offer", offer)
    there.start(NORTH, EAST, consent=owner)
    there.start(SOUTH, file="more.csv", consent=owner)
    there.serve()
    there.ended()
    assert len(owner.asked) == len(HOSPITALS)
    assert "columns that most do not have stay here: name" in there.said[SOUTH]
    assert sent
    assert not any(b'"name": {"X"' in data for data in sent)
    equal(there)
    at_home(there)
    (tmp_path / "there" / "encoding.json").unlink()
    kept = json.loads((tmp_path / "there" / "federation.json").read_text())
    with there.network.link("server") as link, pytest.raises(RunError, match="put the file back"):
        Registration(link, "", setup_of, there.plan.network, reading=there.data, kept=kept)


class Wards(Hospitals):
    """Hospitals that are peers."""

    def join_with(self, link: Any, name: str, options: dict[str, Any]) -> None:
        exchange(self.plan, link, self.table(name), HOSPITALS, self.root / name, stop=self.stops[name])


@pytest.mark.slow
def test_peers_agree_without_a_server(tmp_path: Path) -> None:
    there = Wards(plan_for(written(tmp_path / "stays"), "dfedavgm"), tmp_path)
    there.start()
    there.ended()
    simulated(there.plan, tmp_path / "here")
    states = state_in(tmp_path / "here")["clients"]
    for name in HOSPITALS:
        kept = present(read_shared(there.root / name))
        assert kept.agreed.encoding == there.plan.federation(NOWHERE).encoding
        assert same(state_in(there.root / name)["clients"][name], states[name])
    at_home(there)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows.rename(columns={"dose": "amount"}),
         "it has no column 'dose', which most have, and it has 'amount', which most do not have"),
        (lambda rows: rows.assign(age="old"), "its column 'age' holds texts, and at most others numbers"),
        (lambda rows: rows.assign(died=rows.died.str.upper()),
         "its target has 'NO' and 'YES', which most write 'no' and 'yes'"),
    ],
)  # fmt: skip
def test_a_wrong_table_that_comes_first_is_refused_alone_and_comes_back_corrected(
    change: Any, words: str, there: Hospitals, tmp_path: Path
) -> None:
    change(table(SOUTH)).to_csv(tmp_path / "wrong.csv", index=False)
    server = threading.Thread(target=there.serve, daemon=True)
    server.start()
    there.start(SOUTH, file="wrong.csv")
    there.heard("server", f"1 of 3 clients have told their columns: {SOUTH}; missing: {NORTH}, {EAST}")
    there.start(NORTH, EAST)
    there.join(SOUTH)
    assert there.errors.pop(SOUTH) == f"the server refuses this client: {words}"
    there.heard("server", f"{SOUTH} is refused: {words}")
    there.heard("server", f"missing: {SOUTH}")
    assert f"waiting for {NORTH}, {EAST}" in there.said[SOUTH]
    there.start(SOUTH)
    there.ended()
    server.join(60)
    equal(there)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [("data.least", 3, "table.least is 10 here and 3 there"),
     ("data.person", "days", "table.person is not set here and days there")],
)  # fmt: skip
def test_other_settings_of_the_table_are_refused(setting: str, value: Any, words: str, there: Hospitals) -> None:
    one, other = (
        Agreement(settings=settings_of(plan)) for plan in (there.plan, there.plan.with_changes(**{setting: value}))
    )
    assert difference(one, other) == words


def refused(there: Hospitals, name: str, fields: dict[str, str], shared: Any = None) -> Any:
    """Why a server does not let in who says this in its hello; shared: what all have agreed on, once they are there."""
    hello = {"nonce": "0" * 8, "life": "a", "agreement": {"settings": ""}, **fields}
    with there.network.link("server") as link, there.network.link(name) as own:
        registration = Registration(link, "", setup_of, there.plan.network)
        registration.gathering.shared = shared
        own.offer("server", "hello", codec.encode(hello))
        told = codec.decode(own.pull("server", f"welcome/{'0' * 8}", 30))["refused"]
        registration.close()
    return told


def test_whoever_comes_after_all_are_there_is_refused(there: Hospitals) -> None:
    columns = ColumnTypes({"age": "number"}, "text")
    told = refused(there, "eve", {"columns": columns.to_json()}, Shared(None, columns, ("ann", "bob")))  # type: ignore[arg-type]
    assert told == "the federation is complete without it (ann, bob)"


@pytest.mark.parametrize("fields", [{"columns": "garbage"}, {"profile": '{"types": {}}'}, {"columns": '{"types": 3}'}])
def test_garbage_in_place_of_a_table_is_refused(fields: dict[str, str], there: Hospitals) -> None:
    assert refused(there, NORTH, fields).startswith("what it tells of its table is not readable (")


def test_no_count_of_the_targets_values_leaves(there: Hospitals) -> None:
    told = json.loads(there.table(NORTH).summary.to_json())
    assert told["values"] == ["no", "yes"]
    assert "died" not in {*told["profile"]["categories"], *told["profile"]["numbers"]}


def test_a_class_that_one_alone_has_is_said_at_the_agreement(there: Hospitals, tmp_path: Path) -> None:
    wrong = table(NORTH)
    wrong.replace({"died": {"yes": "yess"}}).to_csv(tmp_path / "wrong.csv", index=False)
    there.start(EAST, SOUTH)
    there.start(NORTH, file="wrong.csv")
    there.serve()
    there.ended()
    assert f"only {NORTH} has class 'yess', and it has no 'yes': a typo?" in there.said["server"]


def test_who_takes_no_part_changes_no_encoding(plan: Experiment, tmp_path: Path) -> None:
    plan = plan.with_changes(**{"network.clients": [NORTH, EAST], "network.newcomers": True})
    there = Hospitals(plan, tmp_path)
    there.start(SOUTH, unseen=True)
    there.start(NORTH, EAST)
    result = there.serve(then={1: lambda: there.heard("server", f"{SOUTH} is evaluated")})
    there.ended()
    kept = present(read_shared(tmp_path / "there"))
    assert kept.clients == (NORTH, EAST)
    assert "burns" not in kept.agreed.encoding.values["ward"]  # a ward of the south alone
    assert result.unseen == (SOUTH,)
    assert {row[1] for row in result.messages} | {row[2] for row in result.messages} == {NORTH, EAST, "server"}
    assert len(load(there.root / SOUTH).predict(inputs(SOUTH))) == 60


def test_a_newcomer_that_network_clients_does_not_name_comes_back_with_its_table(
    plan: Experiment, tmp_path: Path
) -> None:
    named = {"network.clients": [NORTH, EAST], "network.newcomers": True, "training.rounds": 4}
    there = Hospitals(plan.with_changes(**named), tmp_path)

    def come() -> None:
        there.start(SOUTH)
        there.heard("server", "takes part from the next")

    def back() -> None:
        there.stop(SOUTH)
        there.start(SOUTH)
        there.heard("server", f"{SOUTH} is here again")

    there.start(NORTH, EAST)
    result = there.serve(then={1: come, 2: back})
    there.ended()
    assert {row[1] for row in result.clients if row[0] == 4} == set(HOSPITALS)
