"""Keyed randomness: every random draw has a key of seed, client, round and purpose; there is no global state."""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["key", "rng"]


def key(seed: int, *parts: str | int) -> int:
    """A 63-bit integer that depends on the seed and on every part, and on nothing else.

    Unlike `hash`, it is the same in every process and on every machine; parts are kept apart, so
    ("a", "bc") and ("ab", "c") differ, and so do 1 and "1".

    >>> key(0, "client-7", 3, "batches") == key(0, "client-7", 3, "batches")
    True
    >>> key(0, "a", "bc") == key(0, "ab", "c")
    False
    """
    digest = hashlib.blake2b(repr((int(seed), *parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def rng(seed: int, *parts: str | int) -> np.random.Generator:
    """A numpy generator for `key(seed, *parts)`."""
    return np.random.default_rng(key(seed, *parts))
