"""`fedkin.run`: one method on one federation, from Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from fedkin.engines import Faults, Privacy, Setup
from fedkin.engines.client_list import facts_of
from fedkin.engines.setup import check_calls
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.flow import PeerMethod, ServerMethod
from fedkin.keys import key
from fedkin.learning.devices import check_precision, opened
from fedkin.learning.metrics import MEASURES, Measure
from fedkin.learning.models import MODELS, Model, plain
from fedkin.learning.models.custom import Modules, pair_of
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.methods import METHODS
from fedkin.records.files import claimed
from fedkin.records.metrics import missing_sentence
from fedkin.records.recorder import Records
from fedkin.records.run import Result
from fedkin.running.experiment import RunSettings, nets_for, public_from, without_none
from fedkin.running.loop import Watcher, check_measures, execute, read_finished
from fedkin.running.plugins import add_installed, files_of, named_in, stages_of, taken_value
from fedkin.running.progress import RoundsDone
from fedkin.running.trackers import Tracker, Tracking, settings_table
from fedkin.settings import choose, expect, parse, place
from fedkin.untrusted import shown

AnyModel = str | Model | Modules


def run(
    method: str | ServerMethod | PeerMethod,
    federation: Federation,
    *,
    rounds: int | None = None,
    seed: int = 0,
    model: AnyModel = "mlp",
    head: str | None = None,
    training: Training | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    faults: Faults | Mapping[str, Any] | None = None,
    privacy: Privacy | Mapping[str, Any] | None = None,
    metrics: Sequence[str | Measure] = (),
    out: Path | str | None = None,
    restart: bool = False,
    data_root: Path | str | None = None,
    watcher: Watcher | None = None,
    progress: bool = False,
    trackers: Sequence[str | Tracker] = (),
    **options: Any,
) -> Result:
    """Run `method` on `federation` and return its figures, per client and per round.

    method: a name of `fedkin list methods`, or a method object; options: the hyper-parameters of a named method.
    model: a name, also FILE.py:CLASS; a Model; a torch module, or a (body, head) pair of them (training starts from
    their values); a class of modules, or a function of the task that makes either (initialised from the seed).
    head: the name of the submodule that is the head of a whole module, such as "fc"; else its last Linear is.
    rounds: the number of rounds, instead of the one in `training` (100 if neither is given).
    training: local optimisation (Training or its fields); settings: fields of RunSettings (the default mode is "fast").
    faults: what goes wrong in the run, fields of Faults: {"dropout": 0.3} loses three of ten exchanges.
    privacy: noise on what clients send, fields of Privacy: {"clip": 1.0, "noise": 5.0}; see docs/privacy.md.
    metrics: further metrics of each client in every evaluation: names of `fedkin list metrics`, FILE.py:NAME, or what
    `fedkin.metric` made of a function.
    data_root: folder of the data sets that the server owns, for methods that need one.
    progress: whether the rounds done, the metric and the time left are shown: by tqdm if it is installed (a bar, in a
    notebook too), else as plain lines on standard error.
    trackers: trackers of the figures of every round: "tensorboard", "mlflow", "wandb", or your own Tracker objects.
    out: folder for the records. An interrupted run in this folder is resumed, and a finished one is read.
    restart: whether a run in this folder that is damaged begins anew at round 0; else it is refused (RunError).

    >>> import fedkin
    >>> fed = fedkin.federate("digits", "rotated-masked", clients=4, seed=0)
    >>> result = fedkin.run("fedavg", fed, rounds=2, seed=0, training={"lr": 0.1})
    >>> sorted(result.scores) == sorted(fed)
    True
    """
    method_object = _method(method, options)
    setup, chosen, named, measures = prepared(
        method_object, federation, rounds=rounds, seed=seed, model=model, head=head, training=training,
        settings=settings, faults=faults, privacy=privacy, metrics=metrics, data_root=data_root,
    )  # fmt: skip
    folder = place(out, "out") if out is not None else None
    parts = [*(MEASURES[each] for each in chosen.metrics), *measures, *stages_of(method_object.model_dump())]
    files = files_of([type(method_object), *([type(named)] if named is not None else []), *parts])
    expect(trackers, Iterable, "trackers", "a list of names and Tracker objects")
    tracker_list = [trackers] if isinstance(trackers, str) else list(trackers)
    Tracking([*chosen.trackers, *tracker_list], folder)  # raises for unusable trackers, before the folder is made
    with nullcontext() if folder is None else _claimed(folder, setup, chosen, measures, files):
        if folder is not None and (done := _finished(folder, federation, restart)) is not None:
            return done
        shown = RoundsDone(method_object.name, watcher) if progress else None
        with nullcontext() if shown is None else closing(shown):
            result = execute(
                setup, chosen, name=federation.name, folder=folder, watcher=shown or watcher, trackers=tracker_list,
                restart=restart, model=named, measures=measures,
            )  # fmt: skip
    _warn(result.summary.get("missing", {}), setup.faults)
    return result


def prepared(
    method: ServerMethod | PeerMethod, federation: Federation, *, rounds: int | None = None, seed: int = 0,
    model: AnyModel = "mlp", head: str | None = None, training: Training | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None, faults: Faults | Mapping[str, Any] | None = None,
    privacy: Privacy | Mapping[str, Any] | None = None, metrics: Sequence[str | Measure] = (),
    data_root: Path | str | None = None,
) -> tuple[Setup, RunSettings, Model | None, list[Measure]]:  # fmt: skip
    """Return what `run` would run with, checked: the settings of the net too if it has a name, metrics without one.

    Raises ConfigError.
    """
    expect(federation, Federation, "federation", "a Federation, such as fedkin.federate(...) makes")
    expect(settings or {}, Mapping, "settings", "a dict of fields of [run]")
    local = _training(training, rounds)
    names, measures = metrics_in(metrics)
    if (names or measures) and (settings or {}).get("metrics"):
        raise ConfigError("metrics: given in settings too: name all of them in one place")
    chosen = _settings({**(settings or {}), "metrics": names} if names else settings, seed)
    check_measures([*(MEASURES[each] for each in chosen.metrics), *measures])
    check_precision(chosen.precision, opened(chosen.device))
    named = _named(model, head)
    net, nets = _nets(named, head, federation, seed, chosen)
    check_calls(type(method))
    method.check(federation)
    local.count(len(federation.at(1).seen))
    wrong = faults if isinstance(faults, Faults) else parse(Faults, faults or {}, "faults")
    private = privacy if isinstance(privacy, Privacy) else parse(Privacy, privacy or {}, "privacy")
    setup = Setup(method, federation, net, local, seed, chosen, nets, faults=wrong, privacy=private)
    if data_root is not None:
        setup = replace(setup, public=public_from(place(data_root, "data_root")))
    return setup, chosen, named if isinstance(named, Model) and type(named) in MODELS.values() else None, measures


def _method(method: str | ServerMethod | PeerMethod, options: Mapping[str, Any]) -> ServerMethod | PeerMethod:
    """The method object; raises ConfigError for what is none, and for options beside an object."""
    if not isinstance(method, (str, ServerMethod, PeerMethod)):
        raise ConfigError(f"method: expected a name or a method object, such as FedAvg(), got {method!r}")
    if isinstance(method, str):
        add_installed()
        (name,), _ = named_in([method], "method", Path(), "method")
        settings = taken_value("method", options, Path(), [])
        kind = choose(METHODS, name, "method")
        for option in set(options) - set(kind.model_fields):
            if close := get_close_matches(option, signature(run).parameters, 1, 0.8):
                raise ConfigError(
                    f"{option}: no such argument of run, nor setting of {name}; did you mean {close[0]!r}?"
                )
        return parse(kind, settings, "method")
    if options:
        raise ConfigError(f"{', '.join(options)}: set these on the method object that you passed")
    return method


def metrics_in(metrics: Sequence[str | Measure]) -> tuple[list[str], list[Measure]]:
    """Return (the names of metrics, of which those in files are read; those that are objects); raises ConfigError."""
    several = isinstance(metrics, Iterable) and not isinstance(metrics, str)
    metrics = list(metrics) if several else metrics
    if not several or not all(isinstance(each, (str, Measure)) for each in metrics):
        raise ConfigError(
            "metrics: expected a list of names and of what @fedkin.metric(higher=...) makes of functions, got "
            f"{shown(repr(metrics), 80)}"
        )
    add_installed()
    names, _ = named_in([each for each in metrics if isinstance(each, str)], "metric", Path(), "metrics")
    return names, [each for each in metrics if isinstance(each, Measure)]


def _training(training: Training | Mapping[str, Any] | None, rounds: int | None) -> Training:
    if not isinstance(training, Training):
        training = parse(Training, training or {}, "training")
    return training if rounds is None else parse(Training, {**training.model_dump(), "rounds": rounds}, "training")


def _settings(settings: Mapping[str, Any] | None, seed: int) -> RunSettings:
    if "seed" in (settings or {}):
        raise ConfigError("settings.seed: give the seed as run(..., seed=...)")
    return parse(RunSettings, {**(settings or {}), "seed": seed}, "settings")


def _claimed(
    folder: Path, setup: Setup, chosen: RunSettings, measures: Sequence[Measure], own: Sequence[str]
) -> AbstractContextManager[None]:
    """Hold the folder for this run; raises RunError for a folder of another run."""
    nets = [setup.net, *(setup.nets or {}).values()]
    described = {
        **({"own": list(own)} if own else {}),
        "federation": setup.federation.name,
        "net": [each.fingerprint() for each in dict.fromkeys(nets)],
        **settings_table(setup, chosen),
        **({"metrics": [each.name for each in measures]} if measures else {}),
    }
    return claimed(folder, tomli_w.dumps(without_none(described)), True)


def _finished(folder: Path, federation: Federation, restart: bool) -> Result | None:
    """Read the run in this folder if it has ended; None if it has not."""
    if not (folder / "summary.json").exists():
        return None
    Records(folder, restart).describe(federation.task, partial(facts_of, federation))
    return read_finished(folder, restart)


def _warn(missing: Mapping[str, Any], faults: Faults) -> None:
    """Warn of clients that failed, unless a setting had them fail: who only looks at the result must not miss it."""
    if missing.get("kinds", {}).get("failed") and not faults.crash:
        warnings.warn(
            f"{missing_sentence(missing)}; settings={{'errors': 'stop'}} ends the run at the first, with its cause",
            RuntimeWarning, stacklevel=3,
        )  # fmt: skip


def _named(model: AnyModel, head: str | None) -> Model | Modules:
    if isinstance(model, str):
        add_installed()
        (name,), _ = named_in([model], "model", Path(), "model")
        given = {} if head is None else {"head": head}
        return parse(choose(MODELS, name, "model"), {"name": name, **given}, "model")
    if isinstance(model, type) and issubclass(model, nn.Module):
        return parse(plain(model), {} if head is None else {"head": head}, "model")
    if isinstance(model, Model) and head is not None:
        raise ConfigError("head: it names the head of a torch module; set it on the model object that you passed")
    return model  # type: ignore[return-value]  # mypy takes any class for a torch module


def _nets(
    model: Model | Modules, head: str | None, federation: Federation, seed: int, run: RunSettings
) -> tuple[Net, dict[str, Net] | None]:
    if isinstance(model, Model):
        return nets_for(model, federation, seed, run.torch_dtype, run.precision)
    modules = model
    return Net.build(
        lambda: pair_of(modules, federation.task, head), key(seed, "net"), run.torch_dtype, run.precision
    ), None
