"""Scores of the clients' models on their test samples; equal models are scored once on equal samples."""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace

from fedkin.engines.executors.jobs import Executor, ScoreJob
from fedkin.engines.failures import Failures
from fedkin.engines.setup import Setup
from fedkin.errors import FedkinError
from fedkin.federation import Samples
from fedkin.flow import Params
from fedkin.learning.metrics import Score, values

_TOGETHER = 4  # least number of clients in one job of a model that many clients share


class Scorer:
    """Scores models, and keeps the scores for the next time. failures: gets the errors of clients without a score."""

    def __init__(self, setup: Setup, executor: Executor, failures: Failures) -> None:
        self.setup, self.executor, self.failures = setup, executor, failures
        # By the ids of model and test samples; both are stored, so that no other objects get these ids.
        self.scored: dict[tuple[Hashable, int], tuple[Params, Samples, Score]] = {}
        self.keys: dict[str, tuple[Hashable, int]] = {}  # each client's key in `scored`

    def scores(self, models: Mapping[str, Params], tests: Mapping[str, Samples], round: int) -> dict[str, Score]:
        """Return the scores of these clients' models on their test samples; clients that fail have none."""
        names = _model_names(models)
        self.keys = {id: (names[id], builtins.id(tests[id])) for id in models}
        self.scored = {at: self.scored[at] for at in self.keys.values() if at in self.scored}
        errors: dict[Hashable, FedkinError] = {}
        jobs = list(self._jobs(models, round))
        while jobs:
            again: list[ScoreJob] = []
            for job, results in self.executor.run(jobs):
                assert isinstance(job, ScoreJob)
                if not isinstance(results, FedkinError):
                    for id, result in zip(job.ids, results, strict=True):
                        self.scored[self.keys[id]] = models[id], tests[id], result
                elif len(job.ids) > 1:
                    # One of these clients failed: score each alone, so that the others get their scores.
                    again += [replace(job, ids=(id,)) for id in job.ids]
                else:
                    errors[self.keys[job.ids[0]]] = results
            jobs = again
        scores: dict[str, Score] = {}
        for id, at in self.keys.items():
            if at in errors:
                self.failures.note(errors[at], id, "evaluate")
            else:
                scores[id] = self._with_measures(id, at)
        return scores

    def _jobs(self, models: Mapping[str, Params], round: int) -> Iterator[ScoreJob]:
        """Yield jobs for the pairs of model and test samples that have no score yet, each pair once."""
        firsts: dict[Hashable, dict[Hashable, str]] = {}  # by model and by key, a client with it
        for id, at in self.keys.items():
            if at not in self.scored:
                firsts.setdefault(at[0], {}).setdefault(at, id)
        for ids in (tuple(of_model.values()) for of_model in firsts.values()):
            size = max(_TOGETHER, -(-len(ids) // self.executor.parts))
            for part in (ids[start : start + size] for start in range(0, len(ids), size)):
                yield ScoreJob(part, models[part[0]], self.setup.task, self.setup.net_of(part[0]), round)

    def _with_measures(self, id: str, at: tuple[Hashable, int]) -> Score:
        """Return a client's score with the further metrics, which are computed once."""
        params, test, score = self.scored[at]
        if self.setup.measures and not score.further:
            score = score._replace(further=values(self.setup.measures, self.setup.net_of(id), params, test, id))
            self.scored[at] = params, test, score
        return score

    def model(self, id: str) -> Params:
        """Return this client's model in the last scoring."""
        return self.scored[self.keys[id]][0]


def _model_names(models: Mapping[str, Params]) -> dict[str, Hashable]:
    """Return a key of each client's model, equal for the same tensors; a mapping that clients share is read once."""
    names: dict[int, Hashable] = {}
    for params in models.values():
        if id(params) not in names:
            names[id(params)] = frozenset((name, id(tensor)) for name, tensor in params.items())
    return {client: names[id(params)] for client, params in models.items()}
