"""`fedkin.run`: one method on one federation, from Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn

from fedkin.engines import Faults, Privacy
from fedkin.errors import ConfigError
from fedkin.federation import Federation
from fedkin.flow import AnyMethod, PeerMethod, ServerMethod
from fedkin.learning.metrics import MEASURES, Measure
from fedkin.learning.models import MODELS, Model, plain
from fedkin.learning.models.custom import Modules
from fedkin.learning.training import Training
from fedkin.methods import METHODS
from fedkin.records.metrics import missing_sentence
from fedkin.records.run import Result
from fedkin.running.experiment import Experiment, ProgramInputs, RunSettings, without_none
from fedkin.running.loop import Watcher, check_measures, run_experiment
from fedkin.running.plugins import Resolver, add_installed, files_of, own_section, resolve_names, stages_of
from fedkin.running.progress import Progress, StopFlag
from fedkin.running.trackers import Tracker, Tracking
from fedkin.settings import S, choose, expect, parse, place
from fedkin.untrusted import escaped

AnyModel = str | Model | Modules


def run(
    method: str | AnyMethod, federation: Federation, *, rounds: int | None = None, seed: int = 0,
    model: AnyModel = "mlp", head: str | None = None, training: Training | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None, faults: Faults | Mapping[str, Any] | None = None,
    privacy: Privacy | Mapping[str, Any] | None = None, metrics: Sequence[str | Measure] = (),
    out: Path | str | None = None, data_root: Path | str | None = None, watcher: Watcher | None = None,
    progress: bool = False, trackers: Sequence[str | Tracker] = (), **options: Any,
) -> Result:  # fmt: skip
    """Run `method` on `federation` and return its figures, per client and per round.

    method: a name from `fedkin list methods`, or a method object; options: the hyper-parameters of a named method.
    model: a name, also FILE.py:CLASS; a Model; a torch module, or a (body, head) pair of them (training starts from
    their values); a class of modules, or a function of the task that makes either (initialised from the seed).
    head: the name of the submodule that is the head of a single module, such as "fc"; default: its last Linear.
    rounds: the number of rounds, instead of the one in `training` (100 if neither is given). seed: of all draws.
    training: local optimisation (Training or its fields); settings: fields of RunSettings (the default mode is "fast").
    faults: what goes wrong in the run, fields of Faults: {"dropout": 0.3} loses three of ten exchanges.
    privacy: noise on what clients send, fields of Privacy: {"clip": 1.0, "noise": 5.0}; see docs/privacy.md.
    metrics: further metrics of each client in every evaluation: names from `fedkin list metrics`, FILE.py:NAME, or
    objects that `fedkin.metric` made of functions.
    data_root: folder of the data sets that the server owns, for methods that need one.
    progress: whether the rounds done, the metric and the time left are shown: a bar on a terminal and in a notebook,
    else ten plain lines on standard error.
    trackers: trackers of the figures of every round: "tensorboard", "mlflow", "wandb", or your own Tracker objects.
    out: folder for the records. An interrupted run in this folder is resumed, and a finished one is read.

    Raises ConfigError for settings that are wrong or do not fit the federation, RunError for a folder with another run.

    >>> import fedkin
    >>> fed = fedkin.federate("digits", "rotated-masked", clients=4, seed=0)
    >>> result = fedkin.run("fedavg", fed, rounds=2, seed=0, training={"lr": 0.1})
    >>> sorted(result.scores) == sorted(fed)
    True
    """
    method_object = _method(method, options)
    expect(federation, Federation, "federation", "a Federation, such as fedkin.federate(...) makes")
    experiment = program_experiment(
        federation, method_object, rounds=rounds, seed=seed, model=model, head=head, training=training,
        settings=settings, faults=faults, privacy=privacy, metrics=metrics,
    )  # fmt: skip
    folder = place(out, "out") if out is not None else None
    root = None if data_root is None else place(data_root, "data_root")
    expect(trackers, Iterable, "trackers", "a list of names and Tracker objects")
    tracker_list = [trackers] if isinstance(trackers, str) else list(trackers)
    Tracking(tracker_list, folder)  # raises for unusable trackers, before the folder is made
    stop = StopFlag()
    if progress:
        watcher = Progress(method_object.name, stop, watcher=watcher)
    with closing(stop):
        result = run_experiment(experiment, root, folder, watcher=watcher, trackers=tracker_list)
    missing = result.summary.get("missing", {})
    # A user who looks only at the result must learn that clients failed, unless a setting made them fail.
    if missing.get("kinds", {}).get("failed") and not experiment.faults.crash:
        stop_at = "settings={'errors': 'stop'} ends the run at the first, with its cause"
        warnings.warn(f"{missing_sentence(missing)}; {stop_at}", RuntimeWarning, stacklevel=2)
    return result


class RunOptions(TypedDict, total=False):
    """Arguments that `run`, `compare` and `sweep` have in common; `run` documents them."""

    rounds: int | None
    model: AnyModel | None
    head: str | None
    training: Training | Mapping[str, Any] | None
    settings: Mapping[str, Any] | None
    faults: Faults | Mapping[str, Any] | None
    privacy: Privacy | Mapping[str, Any] | None
    metrics: Sequence[str | Measure]


def program_experiment(
    clients: Federation | Callable[[int], Federation], method: AnyMethod, *, seed: int,
    **options: Unpack[RunOptions],
) -> Experiment:  # fmt: skip
    """Return the experiment of a method on clients, or on a function that makes them for a seed; raises ConfigError.

    The other arguments are those of `run`.
    """
    settings = options.get("settings") or {}
    expect(settings, Mapping, "settings", "a dict of fields of [run]")
    names, measures = metrics_in(options.get("metrics", ()))
    if (names or measures) and settings.get("metrics"):
        raise ConfigError("metrics: given in settings too: name all of them in one place")
    if "seed" in settings:
        raise ConfigError("settings.seed: give the seed as run(..., seed=...)")
    named = {"metrics": names} if names else {}
    chosen = parse(RunSettings, {**settings, **named, "seed": seed}, "settings")
    every = [*(MEASURES[name] for name in chosen.metrics), *measures]
    check_measures(every)
    head = options.get("head")
    net = _named(options.get("model") or "mlp", head)
    sections = {
        "training": _training(options.get("training"), options.get("rounds")),
        "faults": _parsed(Faults, options.get("faults") or {}, "faults"),
        "privacy": _parsed(Privacy, options.get("privacy") or {}, "privacy"), "run": chosen,
    }  # fmt: skip
    of_model = [type(net)] if isinstance(net, Model) else []
    own = files_of([type(method), *of_model, *every, *stages_of(method.model_dump())])
    table = {name: without_none(section.model_dump(mode="json")) for name, section in sections.items()}
    federation = clients if isinstance(clients, Federation) else lru_cache(1)(clients)
    what: dict[str, Any] = {"settings": net} if isinstance(net, Model) else {"modules": net, "head": head}
    inputs = ProgramInputs(federation, measures=measures, **what)
    return replace(Experiment.of(table | own_section(own), inputs), method=method)


def _method(method: str | AnyMethod, options: Mapping[str, Any]) -> AnyMethod:
    """The method object; raises ConfigError for other values, and for options given with an object."""
    if not isinstance(method, (str, ServerMethod, PeerMethod)):
        raise ConfigError(f"method: expected a name or a method object, such as FedAvg(), got {method!r}")
    if isinstance(method, str):
        add_installed()
        name = Resolver().name(method, "method", "method")
        settings = Resolver().setting("method", options)
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
    """Return (the names of metrics, after reading their files; the metric objects); raises ConfigError."""
    several = isinstance(metrics, Iterable) and not isinstance(metrics, str)
    metrics = list(metrics) if several else metrics
    if not several or not all(isinstance(metric, (str, Measure)) for metric in metrics):
        raise ConfigError(
            "metrics: expected a list of names and of what @fedkin.metric(higher=...) makes of functions, got "
            f"{escaped(repr(metrics), 80)}"
        )
    add_installed()
    names, _ = resolve_names([metric for metric in metrics if isinstance(metric, str)], "metric", "metrics")
    return names, [metric for metric in metrics if isinstance(metric, Measure)]


def _parsed(kind: type[S], value: Any, where: str) -> S:
    return value if isinstance(value, kind) else parse(kind, value, where)


def _training(training: Training | Mapping[str, Any] | None, rounds: int | None) -> Training:
    training = _parsed(Training, training or {}, "training")
    return training if rounds is None else parse(Training, {**training.model_dump(), "rounds": rounds}, "training")


def _named(model: AnyModel, head: str | None) -> Model | Modules:
    if isinstance(model, str):
        add_installed()
        name = Resolver().name(model, "model", "model")
        given = {} if head is None else {"head": head}
        return parse(choose(MODELS, name, "model"), {"name": name, **given}, "model")
    if isinstance(model, type) and issubclass(model, nn.Module):
        return parse(plain(model), {} if head is None else {"head": head}, "model")
    if isinstance(model, Model) and head is not None:
        raise ConfigError("head: it names the head of a torch module; set it on the model object that you passed")
    return model  # type: ignore[return-value]  # mypy takes any class for a torch module
