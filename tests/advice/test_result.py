"""What a client's advice says."""

from __future__ import annotations

import pytest

from fedkin.advice.result import OfClient


@pytest.mark.parametrize(
    ("partners", "words"),
    [("a", "train with a"), ("abc", "train with a, b and c"), ("abcdefghi", "train with 9 others")],
)
def test_partners_are_named_up_to_eight(partners: str, words: str) -> None:
    assert OfClient("z", 40, "40 samples", None, tuple(partners), True, None, None, None).advice == words
