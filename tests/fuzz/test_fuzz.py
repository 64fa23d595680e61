"""Small numbers of hostile inputs for everything that reads; benchmarks/hostile.py tries as many as one wants."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.mutate import mutated
from fuzz.targets import TARGETS, accepts

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each target."""
    found = {name: tmp_path_factory.mktemp("fuzz") for name in TARGETS}
    for name, target in TARGETS.items():
        (found[name] / target.name).parent.mkdir(exist_ok=True)
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_accepted(name: str, places: dict[str, Path]) -> None:
    assert all(accepts(TARGETS[name], seed, places[name]) for seed in TARGETS[name].seeds())


def test_inputs_that_were_not_refused_once_are_now(places: dict[str, Path]) -> None:
    files = sorted(CORPUS.glob("*/*"))
    assert len(files) >= 20
    named = {name.replace("/", "-"): name for name in TARGETS}
    for path in files:
        name = named[path.parent.name]
        assert not accepts(TARGETS[name], path.read_bytes(), places[name]), path


def _try(name: str, places: dict[str, Path], draw: int) -> None:
    target, seeds = TARGETS[name], TARGETS[name].seeds()
    with warnings.catch_warnings():
        # Odd numbers make numpy warn, and a run goes on.
        warnings.simplefilter("ignore")
        accepts(target, mutated(seeds[draw % len(seeds)], seeds, np.random.default_rng(draw)), places[name])


@pytest.mark.parametrize("name", TARGETS)
@given(draw=st.integers(0, 2**32 - 1))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_but_a_refusal_comes_of_hostile_input(name: str, places: dict[str, Path], draw: int) -> None:
    _try(name, places, draw)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@given(draw=st.integers(0, 2**32 - 1))
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_but_a_refusal_comes_of_more_hostile_input(name: str, places: dict[str, Path], draw: int) -> None:
    _try(name, places, draw)
