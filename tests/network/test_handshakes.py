"""What is heard of failed handshakes, beside whatever else a process writes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedkin.network.handshakes import reason_of

_LINE = "\x1b[2m2026-01-01T00:00:00Z\x1b[0m \x1b[33m WARN\x1b[0m acc-0 \x1b[2mzenoh_link_tls::unicast\x1b[0m: "

PROGRAM = """
import os
from fedkin.network import handshakes
said, noted = [], []
with handshakes.refusals(said.append, lambda *told: noted.append(told)):
    print("Python's", flush=True)
    for _ in range(12):
        os.write(1, b"2026 WARN acc zenoh_link_tls::unicast: peer sent no certificates. Hint: more files\\n")
    os.write(1, b"another library's\\n")
    os.write(1, b"without an end")
print("after", said, len(noted), noted[0])
"""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("invalid peer certificate: UnknownIssuer. Hint: increase", "the certificate of who dials is from another CA"),
        ("invalid peer certificate: BadEncoding", "the certificate of who dials is not valid"),
        ("received fatal alert: DecryptError", "who dials does not take our certificate"),
        ("tls handshake eof. Hint: increase the system open file limit.", ""),
    ],
)
def test_a_reason_is_told_in_words(words: str, reason: str) -> None:
    assert reason_of(f"{_LINE}{words}\n".encode()) == reason


def test_another_line_is_none_of_them() -> None:
    assert reason_of(b"zenoh_link_tls: a line of somebody else\n") is None


def test_a_process_tells_each_reason_at_powers_of_ten_and_passes_on_what_else_is_written() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    said = "['refused: who dials has no certificate', 'refused: who dials has no certificate (10 times)']"
    assert sorted(done.stdout.splitlines()) == sorted([
        "Python's", "another library's",
        f"without an endafter {said} 12 ('', 'handshake', 'who dials has no certificate')",
    ])  # fmt: skip


def test_it_can_be_imported_without_zenoh_so_that_who_needs_it_says_so_in_one_line() -> None:
    code = "import sys; sys.modules['zenoh'] = None; import fedkin.network.handshakes"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr == ""
