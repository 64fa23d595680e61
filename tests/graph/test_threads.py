from __future__ import annotations

from threading import Barrier

import pytest
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from fedkin.graph._threads import spread


def blas() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_as_many_parts_at_a_time_as_blas_has_threads_and_each_product_on_one() -> None:
    both, seen = Barrier(2), []

    def work(part: int) -> None:
        both.wait(60)  # which ends only if the other part is worked on meanwhile
        seen.append((part, blas()))

    with threadpool_limits(2, user_api="blas"):
        spread(work, range(6))
        assert blas() == {2}
    assert sorted(part for part, _ in seen) == list(range(6))
    assert all(threads == {1} for _, threads in seen)


def test_one_thread_takes_the_parts_in_turn() -> None:
    seen: list[int] = []
    with threadpool_limits(1, user_api="blas"):
        spread(seen.append, range(5))
    assert seen == list(range(5))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_is_raised_and_the_threads_of_blas_are_as_before(threads: int) -> None:
    def work(part: int) -> None:
        raise ValueError(f"part {part}")

    with threadpool_limits(threads, user_api="blas"):
        with pytest.raises(ValueError, match="part 0"):
            spread(work, range(3))
        assert blas() == {threads}


def test_no_parts_are_no_work_and_leave_the_threads_of_blas() -> None:
    seen: list[int] = []
    with threadpool_limits(2, user_api="blas"):
        spread(seen.append, range(0))
        assert blas() == {2}
    assert seen == []
