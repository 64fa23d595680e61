"""`fedkin flower`: the app that it writes and how that ends, and one line for whatever is wrong."""

from __future__ import annotations

import ast
import os
import socket
import tomllib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from cli.invoked import Terminal
from fedkin.cli import flower as server_app
from fedkin.folders import locked
from fedkin.learning.models import MODELS, Mlp
from fedkin.network.client import LEAVES
from fedkin.network.flower import server_calls as grid
from fedkin.network.flower.server_calls import GridCalls
from fedkin.network.link import LinkError
from fedkin.running.experiment import load
from tiny import written


@pytest.fixture
def run(here: Path, terminal: Terminal) -> Terminal:
    written(here / "e.toml")
    written(here / "peers.toml", method={"name": "dfedavgm"})
    np.savez(here / "ann.npz", x=np.zeros((8, 4), np.float32), y=np.arange(8) % 2)
    return terminal


def test_an_app_is_written_whole_and_never_over_another(run: Terminal, tmp_path: Path) -> None:
    code, out, err = run("flower", "new", "app", "--experiment", "e.toml", "--out", "run")
    assert (code, err) == (0, "")
    assert "flwr run app" in out
    project = tomllib.loads(Path("app/pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert app["config"] == {"out": str(tmp_path / "run"), "data-root": str(tmp_path / "data")}
    for module, _, name in (place.partition(":") for place in app["components"].values()):
        tree = ast.parse(Path("app", *module.split(".")).with_suffix(".py").read_text())
        # Flower looks for an assignment without importing the module.
        assert any(isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name for line in tree.body)
    assert load(Path("app/fedkin_app/experiment.toml")) == load(Path("e.toml"))
    again = run.refused("flower", "new", "app", "--experiment", "e.toml", "--out", "run")
    assert again == "app: not empty; name a new folder"


class WithAFile(Mlp):
    """A net of an installed package, which reads a file."""

    name: Literal["with-a-file"] = "with-a-file"  # type: ignore[assignment]
    path: str


def test_what_flower_cannot_run_is_refused(run: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "with-a-file", WithAFile)
    nets = {"b": {"name": "with-a-file", "path": "v"}}
    for place, model in (
        ("model.path", {"name": "with-a-file", "path": "net"}),
        ("model.nets.b.path", {"name": "mixed", "bodies": ["b"], "nets": nets}),
    ):
        written(Path("nets.toml"), model=model, network={"clients": ["ann", "bob"]})
        words = run.refused("flower", "new", "app", "--experiment", "nets.toml", "--out", "run")
        assert words.startswith(f"{place}: ")
        assert words.endswith(" is not absolute, and Flower starts an app in a folder of its own")
    words = run.refused("flower", "new", "app", "--experiment", "peers.toml", "--out", "run")
    assert words == "method.name: 'dfedavgm' has no server, and Flower has one: use fedkin net join"
    assert "no such experiment file" in run.refused("flower", "new", "app", "--experiment", "no.toml", "--out", "run")
    assert not Path("app").exists()


def test_a_node_says_what_is_wrong_before_anything_else(run: Terminal) -> None:
    more = ["--data", "ann.npz", "--state", "state", "--yes"]
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("s")
        other.listen()
        for name, place, says in (
            ("a/b", "s", "--name 'a/b': not a name that a client can have: 1 to 64 of A-Z a-z 0-9 . _ -"),
            ("ann", "no/s", "--socket no/s: No such file or directory"),
            ("ann", "s" * 200, f"--socket {'s' * 200}: AF_UNIX path too long"),
            ("ann", "s", "--socket s: another process answers at s"),
        ):
            assert run.refused("flower", "node", "e.toml", "--name", name, "--socket", place, *more) == says


def test_a_node_that_runs_is_told_to_leave(run: Terminal, tmp_path: Path) -> None:
    words = run.refused("flower", "leave", "--state", "ann-state")
    assert words == "--state ann-state: no fedkin flower node runs with this folder; start it, and then leave"
    with locked(tmp_path / "ann-state"):
        code, out, _ = run("flower", "leave", "--state", "ann-state")
    assert (code, "ends when the server has recorded that it leaves" in out) == (0, True)
    assert (tmp_path / "ann-state" / LEAVES).exists()


# -- the server's app: it ends when its SuperLink is gone, and only then -------------------------------------------


class Ended(BaseException):
    """What `os._exit` does here."""


class World:
    """A clock that goes on when the app waits, and a SuperLink without nodes that answers until `gone`."""

    def __init__(self, gone: float) -> None:
        self.now, self.gone = 1000.0, 1000.0 + gone
        self.calls: GridCalls | None = None

    def monotonic(self) -> float:
        return self.now

    def get_nodes(self) -> list[Any]:
        if self.now >= self.gone:
            raise OSError("connection refused")
        return []

    def wait(self, seconds: float) -> bool:
        """Two seconds are between two looks at who can be called."""
        for _ in range(round(seconds)):
            self.now += 1
            if self.calls is not None and self.now % 2 == 0:
                try:
                    self.calls.names()
                except LinkError:
                    continue
        return self.now > 6000


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the watch in a world; returns the second at which the app was ended, None: it was not."""

    def run(gone: float, asked: bool = True) -> float | None:
        world = World(gone)
        monkeypatch.setattr(grid, "time", world)
        monkeypatch.setattr(server_app, "time", world)
        calls = GridCalls(world)
        calls.close()  # its thread
        monkeypatch.setattr(calls, "over", world)
        world.calls = calls if asked else None

        def leave(code: int) -> None:
            assert code == 1
            raise Ended

        monkeypatch.setattr(os, "_exit", leave)
        try:
            server_app._end_with(calls)
        except Ended:
            return world.now - 1000
        return None

    return run


def test_it_ends_three_minutes_after_the_last_answer_of_its_superlink(
    ending: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = ending(gone=600)
    assert ended is not None
    assert 600 + 175 <= ended <= 600 + 185
    assert "has not answered for 180 s: submit the run again when it is back" in capsys.readouterr().out
    assert ending(gone=0) <= 190


def test_it_goes_on_while_its_superlink_answers_and_while_samples_are_read(ending: Any) -> None:
    assert ending(gone=float("inf")) is None
    # The samples of a simulation are read before anything is asked.
    assert ending(gone=float("inf"), asked=False) is None
