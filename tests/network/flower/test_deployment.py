"""Federations on a Flower deployment of processes: what a simulation computes, whatever is killed, and who is refused.

One SuperLink and three SuperNodes, with TLS and keys, serve all of them one after another. Where there is nginx, one of
the SuperNodes reaches it through the proxy of docs/flower.md.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedkin[flower]'")

from certificates import Town
from network.federations import experiment, state_in
from network.flowering import NAMES, Deployment, Trial, deployed
from support import same

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "flower.md"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, town: Town) -> Iterator[Deployment]:
    federation = experiment(clients=3).federation(Path())
    with deployed(tmp_path_factory.mktemp("deployment"), town, federation) as deployment:
        deployment.superlink()
        if NGINX is not None:
            (server,) = re.findall(r"^ {8}server \{\n.*?^ {8}\}\n", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)
            deployment.proxy(NGINX, server)
        for name in NAMES:
            deployment.register(name)
            deployment.supernode(name, door="proxy" if name == "c02" and NGINX is not None else "superlink")
        yield deployment


def differing(one: Trial, here: Path) -> list[str]:
    """What of a run on Flower is not that of a simulation."""
    there = one.folder / "run"
    alike = {
        "rounds": (there / "rounds.jsonl").read_bytes() == (here / "rounds.jsonl").read_bytes(),
        "server": same(state_in(there)["server"], state_in(here)["server"]),
        "report": (there / "report.html").exists(),
    }
    return [name for name, is_alike in alike.items() if not is_alike]


def test_it_is_the_simulation_bit_for_bit_whoever_is_killed_and_who_is_not_registered_is_refused(
    deployment: Deployment,
) -> None:
    """A client's app, a SuperNode, the server's app and the SuperLink are killed, one after another."""
    network = {"clients": list(NAMES), "classes": 10, "deadline": 600.0, "grace": 300.0}
    # The groups of round 1, which are its server's state, must outlive the server.
    table = experiment("flt-same", clients=3, rounds=3).table
    one = deployment.trial("killed", {**table, "network": network})
    deployment.supernode("mallory")
    one.begin()
    one.until("c00", "round 1:")
    one.kill("c00")
    deployment.kill("supernode-c01")
    one.nodes("c00")
    deployment.supernode_again("c01")
    # A round is said before its checkpoint is written: now that of round 1 is there.
    one.until("flwr", "fedkin: round 2 of 3")
    os.kill(deployment.app_of_the_server(), signal.SIGKILL)
    one.kill("flwr")
    one.run("again")
    one.until("again", "going on after round")
    deployment.kill("superlink")
    one.kill("again")
    deployment.superlink()
    one.run("once more")
    here = one.simulated()
    one.until("once more", "going on after round")
    one.ended("once more")
    assert "Receiving" not in deployment.log("supernode-mallory")
    assert "Receiving" in deployment.log("supernode-c00")
    deployment.kill("supernode-mallory")
    assert differing(one, here) == []


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light")
def test_a_proxy_passes_the_nodes_and_nothing_else(deployment: Deployment) -> None:
    """After the first federation, whose third node came through it."""
    passed = deployment.log("nginx-access")
    assert '"POST /v1/fleet/activate-node HTTP/1.1" 200' in passed
    registered = deployment.done("flwr", "supernode", "register", "mallory.pub", "proxied", "--name", "mallory")
    assert registered.returncode != 0
    deployment.trial("refused", experiment(clients=3).table).app()
    started = deployment.done("flwr", "run", "refused/app", "proxied")
    assert started.returncode != 0
    before = deployment.log("supernode-mallory").count("shutdown complete")
    deployment.supernode("mallory", door="proxy")
    deployment.until("supernode-mallory", "shutdown complete", times=before + 1)
    new = deployment.log("nginx-access").removeprefix(passed)
    asked = {(place.startswith("/v1/fleet/"), code) for place, code in re.findall(r'"[A-Z]+ (\S+) \S+" (\d+)', new)}
    assert {code for fleet, code in asked if not fleet} == {"403"}
    assert (True, "412") in asked
    listed = deployment.done("flwr", "supernode", "list", "here").stdout
    assert len(re.findall(r"\d{9,}", listed)) == len(NAMES), listed  # ids of nodes, which may be short
