"""Calls by a unix socket: answered, refused, and what is left when a process has ended."""

from __future__ import annotations

import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedkin.errors import MethodError
from fedkin.network.calls import AnsweringLink, Mailbox
from fedkin.network.flower.client_app import Listening, ask


def test_calls_are_answered_side_by_side_by_owner_and_group_alone(tmp_path: Path) -> None:
    path, both = tmp_path / "s", threading.Barrier(2)

    def answer(letter: bytes) -> bytes:
        both.wait(30)
        return letter * 2

    with Listening(path, answer), ThreadPoolExecutor(2) as pool:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        calls = [pool.submit(ask, str(path), letter) for letter in (b"a", b"b" * (1 << 21))]
        assert [len(call.result(30)) for call in calls] == [2, 1 << 22]
    assert not path.exists()


def test_why_there_is_no_answer_is_said(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(ConnectionError, match=r"fedkin flower node is not reached at .*No such file"):
        ask(str(path), b"x")

    def answer(letter: bytes) -> bytes:
        raise MethodError("not a letter: too short")

    with Listening(path, answer), pytest.raises(ConnectionError, match=r"^not a letter: too short$"):
        ask(str(path), b"x")


def test_the_socket_of_a_process_that_was_killed_is_taken_over_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with Listening(path, bytes.upper):
        assert ask(str(path), b"x") == b"X"
        with pytest.raises(OSError, match="another process answers"):
            Listening(path, bytes.lower)
        assert ask(str(path), b"x") == b"X"


def test_what_was_offered_last_is_fetched_before_the_link_ends(tmp_path: Path) -> None:
    link, server = AnsweringLink("ann"), Mailbox("server", "ann")
    with Listening(tmp_path / "s", link.answer), ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask, str(tmp_path / "s"), server.letter(hold=60.0))
        with link.state:
            assert link.state.wait_for(lambda: link.answering, 30)
        link.offer("server", "r/9/answer", b"last")
        link.close()
        server.read(call.result(30))
    assert server.theirs == {"r/9/answer": b"last"}
