"""`fedkin flower`: the app that it writes, and one line for whatever is wrong."""

from __future__ import annotations

import ast
import socket
import tomllib
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cli.invoked import Terminal
from fedkin.folders import locked
from fedkin.learning.models import MODELS, Mlp
from fedkin.network.client import LEAVES
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
    assert (code, "it ends when the server has let it go" in out) == (0, True)
    assert (tmp_path / "ann-state" / LEAVES).exists()
