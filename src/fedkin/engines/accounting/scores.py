"""Scores of clients' models, found anew only where a model or its test samples are others than before."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from torch import Tensor

from fedkin.engines.base import Score
from fedkin.engines.executors.jobs import ScoreJob
from fedkin.federation import Samples
from fedkin.flow import Params
from fedkin.learning.net import Net
from fedkin.learning.scoring import Marks
from fedkin.tasks import Task

__all__ = ["Scores"]

# A model that many clients share is scored in so many jobs or more: work for every worker, and few copies of the model.
_PARTS = 16
_TOGETHER = 4  # and with at least so many clients in a job


class Scores:
    """What is known of every client's model. A model is its tensors: two mappings of the same ones are one model."""

    def __init__(self) -> None:
        # Scores are kept with the very tensors and samples that they belong to.
        self.known: dict[str, tuple[Params, Samples, Score]] = {}
        self.same: dict[str, list[str]] = {}

    def jobs(
        self, models: Mapping[str, Params], tests: Mapping[str, Samples], task: Task, net_of: Callable[[str], Net],
        round: int,
    ) -> Iterator[ScoreJob]:  # fmt: skip
        """What has to be scored: each model once on each test set, however many clients share both."""
        found = _Models()
        stale: dict[tuple[int, int], list[str]] = {}
        for id, params in models.items():
            test, known = tests[id], self.known.get(id)
            if known is None or known[1] is not test or not _equal(known[0], params):
                stale.setdefault((found.number(params), builtins.id(test)), []).append(id)
        alike: dict[int, list[str]] = {}
        for (model, _), ids in stale.items():
            alike.setdefault(model, []).append(ids[0])
        self.same = {ids[0]: ids for ids in stale.values()}
        for ids in alike.values():
            size = max(_TOGETHER, -(-len(ids) // _PARTS))
            for start in range(0, len(ids), size):
                part = tuple(ids[start : start + size])
                yield ScoreJob(part, models[part[0]], task, net_of(part[0]), round)

    def take(
        self, job: ScoreJob, results: Sequence[Marks], models: Mapping[str, Params], tests: Mapping[str, Samples]
    ) -> None:
        """Take in what a job gave, for everyone whom it stands for."""
        for first, marks in zip(job.ids, results, strict=True):
            for id in self.same[first]:
                self.known[id] = models[id], tests[id], Score(len(tests[id]), *marks)


class _Models:
    """Numbers for models: equal for mappings of the same tensors."""

    def __init__(self) -> None:
        self.objects: dict[int, int] = {}
        self.tensors: dict[Hashable, int] = {}

    def number(self, params: Params) -> int:
        """This model's number. The mapping must stay alive for as long as others are numbered."""
        known = self.objects.get(id(params))
        if known is None:
            told = frozenset((name, id(tensor)) for name, tensor in params.items())
            known = self.objects[id(params)] = self.tensors.setdefault(told, len(self.tensors))
        return known


def _equal(one: Params, other: Params) -> bool:
    """Whether these are the same tensors."""
    absent: Tensor | None = None
    return one is other or (len(one) == len(other) and all(other.get(name, absent) is t for name, t in one.items()))
