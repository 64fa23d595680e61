"""The runs behind an advice: all candidates on all folds, many of them side by side in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedkin import codec
from fedkin.advice.folds import Folds
from fedkin.advice.gains import outcomes_of
from fedkin.advice.shapes import Shape
from fedkin.engines import Setup
from fedkin.errors import MethodError, RunError
from fedkin.federation import Client, Federation
from fedkin.folders import made
from fedkin.learning.models import Model
from fedkin.learning.net import Net
from fedkin.learning.sgd import infer
from fedkin.learning.training import Training
from fedkin.methods.given import Given
from fedkin.records.files import write_bytes
from fedkin.running.experiment import RunSettings, nets_for
from fedkin.running.loop import Result, execute
from fedkin.settings import parse

__all__ = ["Bench", "Work", "method_of", "trained"]

Values = npt.NDArray[np.float64]

# So many clients train side by side in one run: more use the processor better, fewer are lost by a stop.
_TOGETHER = 400


@dataclass(frozen=True)
class Bench:
    """With what models are trained: the net, local training, how runs are carried out, and the seed."""

    model: Model
    training: Training
    run: RunSettings
    seed: int


@dataclass(frozen=True, eq=False)
class Work:
    """All runs of an advice. shapes: of each split, the different shapes to train. rates: of local training."""

    federation: Federation
    folds: Mapping[str, Folds]
    shapes: Sequence[Sequence[Shape]]
    rates: Sequence[float]
    bench: Bench

    def jobs(self) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
        """(number of the rate, its parts (split, number of the shape)) of each run."""
        parts = [(split, place) for split, each in enumerate(self.shapes) for place in range(len(each))]
        size = max(1, _TOGETHER // len(self.federation))
        chunks = [tuple(parts[start : start + size]) for start in range(0, len(parts), size)]
        return [(rate, chunk) for rate in range(len(self.rates)) for chunk in chunks]

    def done(
        self, folder: Path | None, told: Callable[[int, int], None], goes_on: Callable[[int], bool] = lambda rate: True
    ) -> dict[tuple[int, int, int], dict[str, Values]]:
        """{(rate, split, shape): {id: what the model did on each validated sample}}; what is in `folder` is read.

        told(runs done, runs in all) is called before each run, and at the end; goes_on(rate) before the first rate and
        each that is not in `folder`: if it says no, this rate and those after it are left out.
        """
        found: dict[tuple[int, int, int], dict[str, Values]] = {}
        jobs = self.jobs()
        paths = [None if folder is None else folder / f"run-{number}.safetensors" for number in range(len(jobs))]
        for number, (rate, parts) in enumerate(jobs):
            told(number, len(jobs))
            path = paths[number]
            # What was done is read, however little time there is.
            missing = [at for at, (other, _) in zip(paths, jobs, strict=True) if other == rate and not _there(at)]
            if (number == 0 or (rate != jobs[number - 1][0] and missing)) and not goes_on(rate):
                break
            kept = _read(path) if path is not None and _there(path) else None
            if kept is None:
                kept = self._run(rate, parts)
                if path is not None:
                    _write(path, kept)
            for place, (split, shape) in enumerate(parts):
                found[rate, split, shape] = {id: kept[f"{place}/{id}"] for id in self.federation}
        told(len(jobs), len(jobs))
        return found

    def _run(self, rate: int, parts: Sequence[tuple[int, int]]) -> dict[str, Values]:
        """Train these parts in one run; what their models did, by "number of the part/id"."""
        clients: list[Client] = []
        # One after another in memory: batches are drawn from them many times.
        trains = {
            (id, split): client.train.take(self.folds[id].trained(split)).own()
            for split in dict.fromkeys(split for split, _ in parts)
            for id, client in self.federation.items()
        }
        groups: dict[str, tuple[str, ...]] = {}
        verdicts: dict[str, str] = {}
        near: dict[str, tuple[str, ...]] = {}
        for place, (split, number) in enumerate(parts):
            names = {id: f"{id}/{split}.{number}" for id in self.federation}
            shape = self.shapes[split][number].renamed(names)
            for count, (members, verdict) in enumerate(shape.groups):
                groups[f"{place}.{count}"] = members
                verdicts[f"{place}.{count}"] = verdict
            near |= dict(shape.near)
            for id, client in self.federation.items():
                # Nothing is scored in the run itself: what its models do is needed sample by sample.
                clients.append(Client(names[id], trains[id, split], client.train.take([])))
        method = parse(Given, {"groups": groups, "verdicts": verdicts, "near": near}, "method")
        together = Federation(clients, self.federation.task, self.federation.name)
        net, result = trained(method, together, self.bench, self.rates[rate])
        found = {}
        module = net.scratch()
        for place, (split, number) in enumerate(parts):
            for id in self.federation:
                name = f"{id}/{split}.{number}"
                test = self.federation[id].train.take(self.folds[id].validated(split))
                outputs = infer(net, module, result.models[name], "logits", test) if len(test) else None
                found[f"{place}/{id}"] = (
                    np.empty(0) if outputs is None else outcomes_of(together.task, outputs, test.labels()).values
                )
        return found


def method_of(shape: Shape, keep_own: Sequence[str] = (), own_lr: float | None = None) -> Given:
    """The method that trains a shape. keep_own: who shares, and uses a model of its own beside it."""
    groups = {f"g{place}": members for place, (members, _) in enumerate(shape.groups)}
    verdicts = {f"g{place}": verdict for place, (_, verdict) in enumerate(shape.groups) if verdict != "same"}
    table: dict[str, Any] = {"groups": groups, "verdicts": verdicts, "near": dict(shape.near)}
    return parse(Given, {**table, "keep_own": tuple(sorted(keep_own)), "own_lr": own_lr}, "method")


def trained(method: Given, federation: Federation, bench: Bench, rate: float) -> tuple[Net, Result]:
    """Run this method with this rate, evaluated at the end; the net, and the result with its models."""
    training = bench.training.model_copy(update={"lr": rate, "per_round": "all"})
    rounds = max(1, training.rounds)
    quiet = {"evaluate_every": rounds, "trackers": (), "engine": "local", "adversaries": "none", "min_replies": 0}
    run = bench.run.model_copy(update=quiet)
    net, nets = nets_for(bench.model, federation, bench.seed, run.torch_dtype, run.computing)
    setup = Setup(method, federation, net, training, bench.seed, run, nets)
    return net, execute(setup, run, name="advice", scenario=federation.name)


def _write(path: Path, found: Mapping[str, Values]) -> None:
    made(path.parent)
    write_bytes(path, codec.encode({name: torch.from_numpy(np.array(values)) for name, values in found.items()}))


def _there(path: Path | None) -> bool:
    return path is not None and path.exists()


def _read(path: Path) -> dict[str, Values]:
    try:
        return {name: tensor.numpy() for name, tensor in codec.decode(path.read_bytes()).items()}
    except MethodError as error:
        raise RunError(f"{path}: is damaged ({error}); remove it, and the same command makes it again") from None
