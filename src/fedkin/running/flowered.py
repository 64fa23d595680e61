"""An experiment on a Flower deployment: the files of its app, and the server's rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedkin._version import __version__
from fedkin.errors import ConfigError, RunError
from fedkin.flow import PeerMethod
from fedkin.folders import write_new
from fedkin.network.calls import CallingLink
from fedkin.network.flower.server_calls import GridCalls
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment, load, read_table
from fedkin.running.loop import Watcher
from fedkin.running.networked import serve, settings_of

_PACKAGE = "fedkin_app"
_TEMPLATES = Path(__file__).parent / "templates"
# Seconds for which a client may delay its answer while it works: each additional message costs seconds.
_HOLD = 300.0


def write_app(folder: Path, experiment: Path, out: Path, data_root: Path | None) -> None:
    """Write an app for an experiment that `flwr run` accepts; raises ConfigError for experiments that cannot run there.

    out: folder of the run's records, on the machine of the SuperLink. data_root: the folder of data sets there.
    """
    loaded = load(experiment)
    _check(loaded)
    _check_models(loaded)
    if any(folder.iterdir() if folder.is_dir() else ()):
        raise ConfigError(f"{folder}: not empty; name a new folder")
    package = folder / _PACKAGE
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


def _check(experiment: Experiment) -> None:
    if isinstance(experiment.method, PeerMethod):
        raise ConfigError(
            f"method.name: {experiment.method.name!r} has no server, and Flower has one: use fedkin net join"
        )
    settings_of(experiment)


def _check_models(experiment: Experiment) -> None:
    """Raise ConfigError for a relative path: Flower starts an app in Flower's own folder."""
    model = experiment.table.get("model", {})
    nets = {f"model.nets.{name}": net for name, net in model.get("nets", {}).items()}
    for where, net in {"model": model, **nets}.items():
        if "path" in net and not Path(net["path"]).is_absolute():
            raise ConfigError(
                f"{where}.path: {net['path']} is not absolute, and Flower starts an app in a folder of its own"
            )


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
                    "serverapp": f"{_PACKAGE}.server_app:app", "clientapp": f"{_PACKAGE}.client_app:app",
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
    _check(loaded)
    out, root = Path(str(config["out"])), Path(str(config["data-root"]))
    if not out.is_absolute():
        raise RunError(f"run config: out: {out} is not an absolute path, and Flower's folder is not yours")
    say(f"records: {out}")
    with CallingLink(calls, hold=_HOLD, say=say) as link:
        result = serve(loaded, link, out, data_root=root, say=say, watcher=watcher)
    return result, out
