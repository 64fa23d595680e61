"""Settings that are guessed from the data."""

from __future__ import annotations

from fedkin.data.guess import choose_columns


def test_the_target_is_never_the_tokens_too() -> None:
    assert choose_columns({"input_ids": "ids", "one": "ids", "two": "ids"}, "input_ids") == ("input_ids", None, None)
