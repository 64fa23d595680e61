"""Folds: each sample is validated once, a person is in one fold, and time runs forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.advice.work import folds_of
from fedkin.federation import Samples, Task

RISK = Task(2, (1,), "risk")


def samples(labels: list[int], person: Any = None) -> Samples:
    person = None if person is None else torch.as_tensor(person)
    return Samples(torch.zeros(len(labels), 1), torch.tensor(labels), person=person)


@given(labels=st.lists(st.integers(0, 1), min_size=8, max_size=60), count=st.integers(2, 6), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_each_sample_is_validated_once_and_each_class_is_dealt_evenly(labels: list[int], count: int, seed: int) -> None:
    found = folds_of(samples(labels), RISK, count, "a", seed)
    assert sorted(np.concatenate([found.validated(split) for split in range(found.splits)])) == list(range(len(labels)))
    for split in range(found.splits):
        assert not set(found.validated(split)) & set(found.trained(split))
    for label in (0, 1):
        dealt = np.bincount(found.fold[np.array(labels) == label], minlength=count)
        assert dealt.max() - dealt.min() <= 1


@given(units=st.lists(st.integers(0, 9), min_size=12, max_size=60), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_samples_of_a_person_are_in_one_fold(units: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = folds_of(samples(rng.integers(0, 2, len(units)).tolist(), units), RISK, 3, "a", seed)
    assert all(len(set(found.fold[np.array(units) == unit])) == 1 for unit in set(units))


def test_events_are_dealt_evenly_also_if_patients_are_kept_together() -> None:
    labels = [1, 0, 0, 0] * 15
    found = folds_of(samples(labels, np.arange(60) // 4), RISK, 3, "a", 0)
    assert [int((found.fold[::4] == fold).sum()) for fold in range(3)] == [5, 5, 5]


def test_with_times_the_latest_are_validated_in_stretches() -> None:
    when = np.random.default_rng(0).permutation(40).astype(float)
    dated = replace(samples([0, 1] * 20), time=torch.from_numpy(when))
    found = folds_of(dated, RISK, 5, "a", 0)
    assert found.splits == 1
    assert when[found.validated(0)].min() > when[found.trained(0)].max()
    assert len(found.validated(0)) == 10
    order = np.argsort(when[found.fold >= 0])
    assert (np.diff(found.fold[found.fold >= 0][order]) >= 0).all()


def test_with_times_nothing_of_a_validated_patient_is_trained_on() -> None:
    when, patient = np.arange(40.0), np.arange(40) % 10
    dated = replace(samples([0, 1] * 20, patient), time=torch.from_numpy(when))
    found = folds_of(dated, RISK, 5, "a", 0)
    assert not set(patient[found.validated(0)]) & set(patient[found.trained(0)])


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_draw_is_keyed_by_seed_and_name(name: str) -> None:
    one = folds_of(samples([0, 1] * 20), RISK, 5, name, 3)
    assert (one.fold == folds_of(samples([0, 1] * 20), RISK, 5, name, 3).fold).all()
    assert (one.fold != folds_of(samples([0, 1] * 20), RISK, 5, "c", 3).fold).any()
