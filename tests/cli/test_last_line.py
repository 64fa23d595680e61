"""Whatever happens to a command, it ends in at most one line, with a status that says what kind of end it was."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.invoked import Terminal
from fedkin.cli import listing
from fedkin.running import plugins
from tiny import written

FEDKIN = "import sys; sys.argv[0] = 'fedkin'; from fedkin.cli import main; main()"

# A process that gets Ctrl-C when it begins to import something after {module} has been imported.
INTERRUPTED = """
import os, signal, sys

def look(event, given):
    global module
    if event == "import" and module in sys.modules and not sys.modules[module].__spec__._initializing:
        module = None
        os.kill(os.getpid(), signal.SIGINT)

module = {module!r}
sys.addaudithook(look)
"""


def fails(error: BaseException) -> Callable[..., None]:
    def work(*args: Any, **options: Any) -> None:
        raise error

    return work


def ends(monkeypatch: pytest.MonkeyPatch, terminal: Terminal, error: BaseException) -> tuple[int, str]:
    """Status and standard error of a command in which this happens."""
    monkeypatch.setattr(listing, "_settings", fails(error))
    code, out, err = terminal("list", "models", "mlp")
    assert out == ""
    return code, err


def test_a_fault_is_one_line_with_the_file_of_its_traceback(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    status, err = ends(monkeypatch, terminal, RuntimeError("odd \x1b[31m\n\udcff [/x]"))
    (file,) = tmp_path.iterdir()
    assert status == 70
    assert err == (
        r"error: fedkin itself failed (RuntimeError: odd \x1b[31m \udcff [/x]): please attach "
        f"{file} to a report\n"
    )  # fmt: skip
    text = file.read_text()
    assert "Traceback" in text
    assert "'fedkin' 'list' 'models' 'mlp'" in text
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_fault_on_a_machine_without_a_place_for_files(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.setattr(tempfile, "mkstemp", fails(OSError(28, "No space left on device")))
    status, err = ends(monkeypatch, terminal, AssertionError("odd"))
    assert (status, err.count("\n")) == (70, 1)
    assert "No space left on device" in err
    assert "raise error" in err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 GB")])
def test_too_little_memory_is_said_to_be_that(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal, error: BaseException, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    status, err = ends(monkeypatch, terminal, error)
    assert (status, err.count("\n")) == (70, 1)
    assert err.startswith("error: memory ran out")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (PermissionError(13, "Permission denied", "a/b"), 2, "error: a/b: Permission denied\n"),
        (OSError(36, "File name too long", b"x\xff"), 2, "error: x\\udcff: File name too long\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(), 0, ""),
    ],
)
def test_what_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal, error: BaseException, status: int, line: str
) -> None:
    assert ends(monkeypatch, terminal, error) == (status, line)


@pytest.mark.parametrize("code", [3, 0, None])
def test_a_file_of_the_user_that_ends_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal, code: int | None
) -> None:
    monkeypatch.setitem(plugins._FILES, __file__, plugins._UserFile(__file__, "", {}))
    status, err = ends(monkeypatch, terminal, SystemExit(code))
    assert status == 2
    assert err.startswith(f"error: {__file__}, line ")
    assert err.endswith(f": SystemExit({code}) ends the command; raise another error\n")


# -- standard output and error that take nothing ----------------------------------------------------------------


def command(*words: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", FEDKIN, *words], text=True, **options)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output() -> None:
    with Path("/dev/full").open("w") as full:
        ended = command("list", "scenarios", stdout=full, stderr=subprocess.PIPE)
    assert ended.communicate()[1] == "error: standard output: No space left on device\n"
    assert ended.returncode == 2


@pytest.mark.slow
def test_a_reader_that_has_gone() -> None:
    there, here = os.pipe()
    os.close(there)
    ended = command("list", "methods", stdout=here, stderr=subprocess.PIPE)
    os.close(here)
    assert ended.communicate()[1] == ""
    assert ended.returncode == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_run_goes_on_though_its_progress_cannot_be_shown(tmp_path: Path) -> None:
    written(tmp_path / "a.toml")
    with Path("/dev/full").open("w") as full:
        ended = command("run", "a.toml", "--rounds", "2", cwd=tmp_path, stdout=subprocess.PIPE, stderr=full)
        out = ended.communicate()[0]
    assert ended.returncode == 0
    assert "records: runs/small" in out


# -- Ctrl-C -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["fedkin.cli.exit_status", "fedkin.cli.commands", "numpy", "fedkin.federation", "torch._C",
               "fedkin.data.scenarios", "fedkin.views"],
)  # fmt: skip
def test_ctrl_c_while_modules_are_imported_is_quiet(module: str) -> None:
    code = INTERRUPTED.format(module=module) + FEDKIN
    ended = subprocess.run([sys.executable, "-c", code, "list", "methods"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")
