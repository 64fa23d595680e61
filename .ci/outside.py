"""What a user does with an installed fedkin, in a folder where there is no source; .ci/wheel runs it.

Its argument is the source tree, from which nothing may be imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import files, version
from pathlib import Path

MINE = '''
"""A method of one's own."""

from fedkin.methods import FedAvg


class Mine(FedAvg):
    """FedAvg under another name."""

    name = "mine"
'''

# What a type checker must know, and what it must refuse: types that are Any would let both through.
TYPED = """
import fedkin

federation: fedkin.Federation = fedkin.federate("digits", "rotated-masked", clients=8, seed=0)
result: fedkin.Result = fedkin.run("local", federation, rounds=1, seed=0)
right: float = result.accuracy
wrong: str = result.accuracy
fedkin.run("local", federation, rounds="many")
"""

REFUSED = ("typed.py:7: error: Incompatible types in assignment", 'typed.py:8: error: Argument "rounds" to "run"')


def main(source: Path) -> None:
    """Try everything; the first thing that fails ends it."""
    import fedkin

    place = Path(fedkin.__file__).resolve()
    assert not place.is_relative_to(source / "src"), f"{place} is the source, not what was installed"
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"{place} is not in {sys.prefix}"
    assert version("fedkin") == fedkin.__version__
    complete(source, place.parent)
    fedkin_command = Path(sys.executable).with_name("fedkin")
    assert said(fedkin_command, "--version").strip() == f"fedkin {version('fedkin')}"
    Path("mine.py").write_text(MINE)
    said(
        fedkin_command, "compare", "digits-rotated", "--methods", "local,kin,mine.py:Mine", "--out", "runs",
        "--rounds", "2", "--set", "scenario.clients=8", "--set", "training.clients_per_round=8",
    )  # fmt: skip
    runs = json.loads(Path("runs/compare.json").read_text())
    assert [run["method"] for run in runs] == ["local", "kin", "mine"]
    assert Path("runs/report.html").stat().st_size > 100_000

    from fedkin.running.papers import known_tables, table_folder
    from fedkin.testing import check_method

    assert "flt-table1" in known_tables(table_folder(None))

    sys.path.insert(0, "")
    from mine import Mine

    check_method(Mine)
    typed()
    print(f"fedkin {version('fedkin')} works from its wheel, in {place.parent}")


def complete(source: Path, package: Path) -> None:
    """Every file of the source is in the package, and nothing else is."""
    folders = {package: source / "src" / "fedkin", package / "presets": source / "presets"}
    there = {
        (at / path.relative_to(origin)).relative_to(package).as_posix()
        for at, origin in folders.items() for path in origin.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip
    installed = {
        path.as_posix().removeprefix("fedkin/") for path in files("fedkin") or ()
        if path.parts[0] == "fedkin" and "__pycache__" not in path.parts
    }  # fmt: skip
    assert installed == there, f"not in the wheel: {sorted(there - installed)}; only in it: {sorted(installed - there)}"


def said(*words: str | Path) -> str:
    """What a command prints; it must end well."""
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{words}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def typed() -> None:
    """A type checker finds fedkin's types, and refuses what does not fit them."""
    Path("typed.py").write_text(TYPED)
    # What torch and the others say of types does not matter here, and takes a minute to read.
    Path("mypy.ini").write_text(
        "[mypy]\nstrict = true\nfollow_imports = silent\n"
        "[mypy-torch.*,numpy.*,scipy.*,pydantic.*,rich.*,typer.*]\nfollow_imports = skip\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "typed.py"], capture_output=True, text=True, check=False
    )
    lines = ended.stdout.splitlines()
    fits = len(lines) == len(REFUSED) and all(map(str.startswith, lines, REFUSED))
    assert fits, f"mypy: expected just these two errors\n{REFUSED}\n{ended.stdout}{ended.stderr}"


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
