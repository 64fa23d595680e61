"""The runs behind an advice: all candidates on all folds, many of them together in one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedkin import codec
from fedkin.advice.candidates import Shape
from fedkin.advice.choice import Marks, Option, losses_of, marks_of, outcomes_of, units_of
from fedkin.analysis.paired import Outcomes
from fedkin.codec import Params
from fedkin.engines import Setup
from fedkin.errors import MethodError, RunError
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.federation.arrays import Floats, Ints
from fedkin.folders import make_durable
from fedkin.keys import rng
from fedkin.learning.models import Model
from fedkin.learning.net import BodyHead, Net, body_of
from fedkin.learning.sgd import infer
from fedkin.learning.training import Training
from fedkin.methods.blocks.pulled_head import SHARED, Strength, can_pull, pulled_heads, strengths
from fedkin.methods.given import Given
from fedkin.records.files import write_bytes
from fedkin.records.run import Result
from fedkin.running.experiment import RunSettings, nets_for
from fedkin.running.loop import execute
from fedkin.settings import parse

# If times are known, this share of a client's samples, the latest ones, is held out.
LATEST = 0.25


@dataclass(frozen=True, eq=False)
class Folds:
    """One client's folds. fold: the fold of each training sample, [n] from 0; -1 for samples always trained on."""

    fold: Ints
    count: int
    by_time: bool = False

    @property
    def splits(self) -> int:
        """The number of models to train for this client: one for all folds if split by time, else one per fold."""
        return 1 if self.by_time else self.count

    @property
    def share(self) -> float:
        """The share of the samples that a model is trained on."""
        return float((self.fold < 0).mean()) if self.by_time else 1 - 1 / self.count

    def trained(self, split: int) -> Ints:
        """Rows that train the model of this split."""
        return np.flatnonzero(self.fold < 0) if self.by_time else np.flatnonzero(self.fold != split)

    def validated(self, split: int) -> Ints:
        """Rows that validate the model of this split."""
        return np.flatnonzero(self.fold >= 0) if self.by_time else np.flatnonzero(self.fold == split)


def folds_of(samples: Samples, task: Task, count: int, name: str, seed: int) -> Folds:
    """The folds of one client's training samples; for tasks with classes, each class is distributed evenly.

    A person's samples are one unit, never split. name: keys the draw; samples with the same name, seed and values have
    the same folds. If times are known, the latest samples, a share LATEST, are held out, and folds are periods of time.
    """
    unit, times = samples.units(), samples.times()
    if times is not None:
        return Folds(_latest(times, unit, count), count, by_time=True)
    draw = rng(seed, name, "folds")
    labels = samples.labels().numpy() if task.labels else np.zeros(len(samples), np.int64)
    units = int(unit.max()) + 1
    # A unit counts as its rarest class: among a patient's samples, the event must be distributed evenly.
    rare = np.bincount(labels, minlength=int(labels.max()) + 1)[labels]
    order = np.lexsort([rare, unit])
    first = order[np.searchsorted(unit[order], np.arange(units))]
    sizes = np.bincount(unit, minlength=units)
    shuffled = draw.permutation(units)
    ranked = shuffled[np.lexsort([-sizes[shuffled], labels[first[shuffled]]])]
    if samples.person is None:
        dealt = np.empty(units, np.int64)
        dealt[ranked] = (np.arange(units) + int(draw.integers(count))) % count
    else:
        dealt = _even(ranked, sizes, labels[first], count)
    return Folds(dealt[unit], count)


def _even(ranked: Ints, sizes: Ints, kind: Ints, count: int) -> Ints:
    """Assign units of different sizes in turn to the fold with fewest samples of their class, then of all classes."""
    dealt = np.empty(len(sizes), np.int64)
    of_class: Mapping[int, Ints] = {int(value): np.zeros(count, np.int64) for value in np.unique(kind)}
    totals = np.zeros(count, np.int64)
    for unit in ranked:
        counts = of_class[int(kind[unit])]
        fold = int(np.lexsort([totals, counts])[0])
        dealt[unit], counts[fold], totals[fold] = fold, counts[fold] + sizes[unit], totals[fold] + sizes[unit]
    return dealt


def _latest(times: Floats, unit: Ints, count: int) -> Ints:
    """Hold out the share LATEST of the samples in `count` periods; all samples of a unit have one time."""
    n = len(times)
    order = np.argsort(times, kind="stable")
    fold = np.full(n, -1, np.int64)
    held = order[n - min(n - 1, max(round(LATEST * n), min(count, n - 1))) :]
    if len(held):
        fold[held] = np.arange(len(held)) * count // len(held)
    # If a part of a unit is held out, train on none of it.
    top = np.full(n, -1, np.int64)
    np.maximum.at(top, unit, fold)
    return top[unit]


# Called with a step in words, the number of its parts that are done, and of all.
Progress = Callable[[str, int, int], None]
# The outcomes of each client's models, by (number of the rate, split, shape) and id.
Outputs = dict[tuple[int, int, Shape], dict[str, Floats]]
# Clients in one run: a larger number uses the processor better; with a smaller number, a stop loses less work.
_TOGETHER = 400


@dataclass(frozen=True)
class Bench:
    """How to train models: the net, local training, the engine, and the seed."""

    model: Model
    training: Training
    run: RunSettings
    seed: int


def tried_parts(bench: Bench, federation: Federation) -> tuple[list[Strength], bool]:
    """Return (strengths to try for a head for each client, whether to try bodies of their own).

    Strengths are those of kin, or a pulled bias only; [] if there is no head.
    """
    task = federation.task
    net, _ = nets_for(bench.model, federation, bench.seed, bench.run.torch_dtype, bench.run.precision)
    if not can_pull(net.initial, task):
        return [], False
    tried = [one for one in strengths(task) if one.personal and one.weights in (one.bias, math.inf)]
    return tried, bool(body_of(net.initial))


class _Part(NamedTuple):
    """A shape that a run trains on one split. number: of the shape among those of the split; heads: as in `Work`."""

    split: int
    number: int
    shape: Shape
    heads: bool

    def id_of(self, id: str) -> str:
        """This client's id in the run, which trains other parts for it too, each with an id of its own."""
        return f"{id}/{self.split}.{self.number}"


@dataclass(frozen=True, eq=False)
class Work:
    """All runs of an advice: every shape of every split is trained with every learning rate.

    shapes: for each split {shape to train: whether clients that share a model also get own heads, of each strength}.
    folder: where the outcomes of finished runs are, if they are stored.
    own_bodies: for each split the only shape to train, whose clients then get own bodies (empty: all shapes).
    """

    federation: Federation
    folds: Mapping[str, Folds]
    shapes: Sequence[Mapping[Shape, bool]]
    rates: Sequence[float]
    bench: Bench
    progress: Progress
    folder: Path | None
    strengths: Sequence[Strength] = ()
    own_bodies: Sequence[Shape] = ()

    def _parts_by_run(self) -> list[list[_Part]]:
        """What each run with one rate trains."""
        parts = [
            _Part(split, number, shape, heads)
            for split, shapes in enumerate(self.shapes) for number, (shape, heads) in enumerate(shapes.items())
            if not self.own_bodies or shape == self.own_bodies[split]
        ]  # fmt: skip
        size = max(1, _TOGETHER // len(self.federation))
        return [parts[start : start + size] for start in range(0, len(parts), size)]

    def run_all(self, step: str, place: str, goes_on: Callable[[int], bool] = lambda rate: True) -> Outputs:
        """Do all runs; returns {(rate, split, shape): {id: outcomes of its models on held-out samples}}.

        Outcomes are [models, 2, samples], with losses: of the shared model, and with heads one more model per strength.
        Finished runs in `folder`/`place` are read. The progress of this step is told before each run, and at the end;
        goes_on(rate) is called before the first rate and before each rate not yet there: if False, this and later rates
        are left out.
        """
        outputs: Outputs = {}
        runs = self._parts_by_run()
        total = len(self.rates) * len(runs)
        for rate in range(len(self.rates)):
            numbers = range(rate * len(runs), (rate + 1) * len(runs))
            names = [f"{place}/run-{number}.safetensors" for number in numbers]
            paths = [None if self.folder is None else self.folder / name for name in names]
            # Finished runs are read even without time for further ones.
            finished = rate > 0 and all(path is not None and path.exists() for path in paths)
            if not finished and not goes_on(rate):
                break
            for number, path, parts in zip(numbers, paths, runs, strict=True):
                self.progress(step, number, total)
                outcomes = self._read_or_run(path, rate, parts)
                for at, part in enumerate(parts):
                    outputs[rate, part.split, part.shape] = {id: outcomes[f"{at}/{id}"] for id in self.federation}
        self.progress(step, total, total)
        return outputs

    def marks(self, outputs: Outputs, option: Option, shapes: Sequence[Shape], id: str, fold: int) -> Marks | None:
        """The marks of a client's model on the samples of a fold; shapes: the model's shape in each split.

        A client that shares no model has only a local one, which it uses with any option.
        """
        kind: Any = self.federation.task.kind
        dealt, (rate, model) = self.folds[id], option
        split = 0 if dealt.by_time else fold
        rows = dealt.validated(split)
        inside = dealt.fold[rows] == fold
        samples = self.federation[id].train.take(rows[inside])
        truth = samples.labels().numpy() if kind == "risk" else None
        models = outputs[rate, split, shapes[split]][id]
        values, losses = models[min(model, len(models) - 1)][:, inside]
        loss = float(losses.mean()) if len(losses) else math.nan
        return marks_of(Outcomes(kind, values, truth), loss, units_of(samples))

    def _read_or_run(self, path: Path | None, rate: int, parts: Sequence[_Part]) -> dict[str, Floats]:
        """Read the outcomes of a run from a file; if there is none, do the run and write them, if it has a path."""
        if path is not None and path.exists():
            return _read(path)
        outcomes = self._run(rate, parts)
        if path is not None:
            _write(path, outcomes)
        return outcomes

    def _run(self, rate: int, parts: Sequence[_Part]) -> dict[str, Floats]:
        """Train these parts in one run; returns the outcomes of their models, by "place of the part/id"."""
        clients: list[Client] = []
        # They are contiguous in memory, because batches are drawn from them many times.
        trains = {
            (id, split): client.train.take(self.folds[id].trained(split)).own()
            for split in dict.fromkeys(part.split for part in parts) for id, client in self.federation.items()
        }  # fmt: skip
        groups, near = dict[str, tuple[str, ...]](), dict[str, tuple[str, ...]]()
        for index, part in enumerate(parts):
            shape = part.shape.renamed({id: part.id_of(id) for id in self.federation})
            groups |= {f"{index}.{count}": members for count, members in enumerate(shape.groups)}
            near |= dict(shape.near)
            for id, client in self.federation.items():
                # No test samples: outcomes are needed sample by sample, so they are computed after the run.
                clients.append(Client(part.id_of(id), trains[id, part.split], client.train.take([])))
        method = parse(Given, {"groups": groups, "near": near, "own_body": bool(self.own_bodies)}, "method")
        together = Federation(clients, self.federation.task, self.federation.name)
        net, result = trained(method, together, self.bench, self.rates[rate])
        outcomes, module = {}, net.scratch()
        for index, part in enumerate(parts):
            for id, client in self.federation.items():
                params = result.models[part.id_of(id)]
                train = trains[id, part.split] if part.heads and part.shape.partners(id) else None
                test = client.train.take(self.folds[id].validated(part.split))
                outcomes[f"{index}/{id}"] = self._outcomes(net, module, params, train, test)
        return outcomes

    def _outcomes(self, net: Net, module: BodyHead, params: Params, train: Samples | None, test: Samples) -> Floats:
        """[models, 2, samples]: outcomes and losses; train: samples to fit a client's own heads to (None: no heads)."""
        if not len(test):
            return np.empty((1, 2, 0))
        task, y, outputs = self.federation.task, test.labels(), [infer(net, module, params, "logits", test)]
        if train is not None:
            features, x = (infer(net, module, params, "features", each) for each in (train, test))
            x = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)
            outputs += [x @ head for head in pulled_heads(params, features, train.labels(), self.strengths, task)]
        return np.stack([[outcomes_of(task, each, y).values, losses_of(task, each, y)] for each in outputs])


def method_of(
    shape: Shape, strength: Strength = SHARED, keep_own: Sequence[str] = (), own_lr: float | None = None,
    own_body: bool = False,
) -> Given:  # fmt: skip
    """The method that trains a shape. keep_own: clients in a group that also train and use their own model."""
    pulls = (None if one == math.inf else one for one in strength)
    table: dict[str, Any] = {
        "groups": {f"g{index}": members for index, members in enumerate(shape.groups)}, "near": dict(shape.near),
        **dict(zip(("pull_weights", "pull_bias"), pulls, strict=True)), "own_body": own_body,
    }  # fmt: skip
    return parse(Given, {**table, "keep_own": tuple(sorted(keep_own)), "own_lr": own_lr}, "method")


def trained(method: Given, federation: Federation, bench: Bench, rate: float) -> tuple[Net, Result]:
    """Run this method with this rate, evaluated at the end; returns the net, and the result with its models."""
    training = bench.training.model_copy(update={"lr": rate, "clients_per_round": "all"})
    rounds = max(1, training.rounds)
    quiet = {"evaluate_every": rounds, "trackers": (), "engine": "local", "adversaries": "none", "min_replies": 0}
    run = bench.run.model_copy(update=quiet)
    net, nets = nets_for(bench.model, federation, bench.seed, run.torch_dtype, run.precision)
    setup = Setup(method, federation, net, training, bench.seed, run, nets)
    return net, execute(setup, run, name="advice", scenario=federation.name)


def _write(path: Path, outcomes: Mapping[str, Floats]) -> None:
    make_durable(path.parent)
    write_bytes(path, codec.encode({name: torch.from_numpy(np.array(values)) for name, values in outcomes.items()}))


def _read(path: Path) -> dict[str, Floats]:
    try:
        return {name: tensor.numpy() for name, tensor in codec.decode(path.read_bytes()).items()}
    except MethodError as error:
        raise RunError(f"{path}: is damaged ({error}); remove it, and the same command makes it again") from None
