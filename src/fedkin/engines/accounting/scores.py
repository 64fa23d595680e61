"""Scores of clients' models, computed again only if a model or its test samples have changed."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from fedkin.engines.base import Score
from fedkin.engines.executors.jobs import ScoreJob
from fedkin.engines.setup import Plan
from fedkin.federation import Samples
from fedkin.flow import Params
from fedkin.learning.metrics import Marks, values
from fedkin.learning.net import Net
from fedkin.tasks import Task

__all__ = ["Scores"]

_TOGETHER = 4  # least number of clients in one of the jobs of a model that many clients share


class Scores:
    """The known scores of all clients; two mappings of the same tensors are the same model."""

    def __init__(self) -> None:
        # Scores are stored with the tensors and samples to which they belong.
        self.known: dict[str, tuple[Params, Samples, Score]] = {}
        self.same: dict[str, list[str]] = {}

    def jobs(
        self, models: Mapping[str, Params], tests: Mapping[str, Samples], task: Task, net_of: Callable[[str], Net],
        round: int, parts: int = 1,
    ) -> Iterator[ScoreJob]:  # fmt: skip
        """Yield the scoring jobs: each model once on each test set, also if many clients share both.

        parts: about how many jobs there are of a model that many clients share.
        """
        found, equal = _Models(), _Equal()
        stale: dict[tuple[int, int], list[str]] = {}
        for id, params in models.items():
            test, known = tests[id], self.known.get(id)
            if known is None or known[1] is not test or not equal(known[0], params):
                stale.setdefault((found.number(params), builtins.id(test)), []).append(id)
        alike: dict[int, list[str]] = {}
        for (model, _), ids in stale.items():
            alike.setdefault(model, []).append(ids[0])
        self.same = {ids[0]: ids for ids in stale.values()}
        for ids in alike.values():
            size = max(_TOGETHER, -(-len(ids) // parts))
            for start in range(0, len(ids), size):
                part = tuple(ids[start : start + size])
                yield ScoreJob(part, models[part[0]], task, net_of(part[0]), round)

    def take(
        self, job: ScoreJob, results: Sequence[Marks], models: Mapping[str, Params], tests: Mapping[str, Samples]
    ) -> None:
        """Store the results of a job for all clients with its models and test samples."""
        for first, marks in zip(job.ids, results, strict=True):
            for id in self.same[first]:
                self.known[id] = models[id], tests[id], Score(len(tests[id]), *marks)

    def measure(self, ids: Iterable[str], plan: Plan) -> None:
        """Add the further metrics to the scores of these clients that lack them: each model once on each test set."""
        found, models = _Models(), dict[int, list[str]]()
        known: dict[tuple[int, int], tuple[float | None, ...]] = {}
        for id in ids:
            params, test, score = self.known[id]
            models.setdefault(model := found.number(params), []).append(id)
            if score.further:
                known[model, builtins.id(test)] = score.further
        for model, mine in models.items():
            lacking = [id for id in mine if not self.known[id][2].further]
            for id in lacking:
                params, test, score = self.known[id]
                if (at := (model, builtins.id(test))) not in known:
                    known[at] = values(plan.measures, plan.net_of(id), params, test, id)
                self.known[id] = params, test, score._replace(further=known[at])


class _Models:
    """Numbers of models, which are equal for mappings of the same tensors."""

    def __init__(self) -> None:
        self.objects: dict[int, int] = {}
        self.tensors: dict[Hashable, int] = {}

    def number(self, params: Params) -> int:
        """Return the number of this model; the mapping must stay alive while other models get numbers."""
        known = self.objects.get(id(params))
        if known is None:
            told = frozenset((name, id(tensor)) for name, tensor in params.items())
            known = self.objects[id(params)] = self.tensors.setdefault(told, len(self.tensors))
        return known


class _Equal:
    """Whether two mappings have the same tensors; both must stay alive. Many clients share a pair, looked at once."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[int, int], bool] = {}

    def __call__(self, one: Params, other: Params) -> bool:
        known = self.pairs.get(pair := (id(one), id(other)))
        if known is None:
            absent: Tensor | None = None
            same = len(one) == len(other) and all(other.get(name, absent) is t for name, t in one.items())
            known = self.pairs[pair] = one is other or same
        return known
