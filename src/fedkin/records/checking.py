"""Check a folder of runs: whether each file is unchanged, and from where each run can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fedkin.errors import RunError
from fedkin.folders import holder
from fedkin.network import status
from fedkin.records import files, reading
from fedkin.records.checkpoints import Checkpoints

_BACK = "put the file back as it was"


@dataclass(frozen=True)
class Checked:
    """The result for one folder: problems (each a line that names the file and what to do), notes, and its standing.

    standing: what the folder holds, and from where it can be resumed.
    """

    folder: Path
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    standing: str


def check(folder: Path) -> list[Checked]:
    """Check a run, a comparison or a tuning with its runs, or all of these below a folder; writes nothing.

    Raises RunError for any other folder, and for a folder that a process is using.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; name that of a run, a comparison or a tuning")
    results = list(_checked(folder))
    if not results and files.is_state(folder):
        raise RunError(files.describe_state_folder(folder))
    if not results:
        raise RunError(f"{folder}: no run, comparison or tuning is in it")
    return results


def _checked(folder: Path) -> Iterator[Checked]:
    if (busy := holder(folder)) is not None:
        raise RunError(f"{busy}, and check it then")
    if not files.has_records(folder):
        if files.is_unused(folder) and any(folder.iterdir()):
            yield Checked(folder, (), (), "nothing was begun in it: give the command again with --out")
            return
        if files.is_state(folder) and (folder / files.SEAL).exists():
            yield _state(folder)
            return
        if (folder / files.SEAL).exists():
            gone = f"{folder / 'experiment.toml'}: it is gone; {_BACK}"
            yield Checked(folder, (gone,), (), "it cannot be resumed without its experiment")
    elif (folder / "plan.json").exists():
        yield _several(folder)
    else:
        yield _one(folder)
        return
    for inside in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield from _checked(inside)


def _state(folder: Path) -> Checked:
    """Check the state folder of a client of a federation over a network: its model."""
    seal, problems = _sealed(folder)
    wrong = files.faults(folder, seal.files)
    problems += [f"{each}; {_BACK}, or the next evaluation writes it again" for each in wrong]
    return Checked(folder, tuple(problems), _versions(seal), f"the state of a client: fedkin net status {folder}")


def _one(folder: Path) -> Checked:
    """Check one run."""
    seal, problems = _sealed(folder)
    remedy = f"{_BACK}, or remove {folder} and run this again"
    if (folder / "failed.json").exists():
        standing = "failed: its reason is kept, and it is not run again"
    elif (folder / "summary.json").exists():
        problems += [f"{each}; {remedy}" for each in files.faults(folder, seal.files, files.RESULT)]
        problems += _problems_of_other_files(folder, seal)
        standing = "finished: there is nothing to continue"
    else:
        checkpoints = Checkpoints(folder)
        checkpoint, wrong = checkpoints.survey(all=True)
        problems += [f"{each}; {_BACK if checkpoint else remedy}" for each in wrong.values()]
        if checkpoint is not None:
            seal = checkpoint.seal
            problems += [f"{each}; {_BACK}, or go on without it" for each in checkpoints.lost(checkpoint)]
            standing = f"not finished; continues from round {checkpoint.round}: {_again(folder)}"
        elif wrong:
            standing = "not finished; it cannot be resumed"
        else:
            standing = f"not finished; continues from round 0, as no checkpoint was written yet: {_again(folder)}"
    return Checked(folder, tuple(problems), _versions(seal), standing)


def _problems_of_other_files(folder: Path, seal: files.Seal) -> list[str]:
    """Problems of the files of a finished run that its result is not read from, and wrong numbers of rows."""
    rest = [name for name in seal.files if name not in (*files.RESULT, "experiment.toml")]
    return [f"{each}; {reading.MEND}" for each in (*files.faults(folder, seal.files, rest), *_rows(folder, seal))]


def _several(folder: Path) -> Checked:
    """Check the files of a comparison or a tuning, other than its runs."""
    seal, problems = _sealed(folder)
    wrong = files.faults(
        folder, seal.files, (name for name in seal.files if name not in ("experiment.toml", "plan.json"))
    )
    problems += [f"{each}; {_again(folder)} writes it again" for each in wrong if not each.endswith(files.GONE)]
    # A seal lists these files before they are written, so a missing one is no problem.
    notes = (*_versions(seal), *(f"{each}: {_again(folder)} writes it" for each in wrong if each.endswith(files.GONE)))
    try:
        command = reading.plan_in(folder).command
    except RunError as error:
        return Checked(folder, (*problems, str(error)), notes, "its plan cannot be read")
    kind = {"compare": "comparison", "tune": "tuning", "sweep": "sweep"}[command]
    runs = reading.runs_below(folder)
    done = sum(any((run / name).exists() for name in ("summary.json", "failed.json")) for run in runs)
    standing = f"{kind}: {done} of {len(runs)} begun runs have ended; continue with {_again(folder)}"
    return Checked(folder, tuple(problems), notes, standing)


def _again(folder: Path) -> str:
    """Return the command that resumes the run, comparison, tuning or sweep in this folder."""
    if not (folder / "plan.json").exists():
        # A sweep has a folder of runs for each combination.
        folder = next((up for up in list(folder.parents)[:2] if (up / "plan.json").exists()), folder)
    command = "run"
    with suppress(RunError):
        if (folder / status.FILE).exists():
            role = status.read_status(folder / status.FILE).role
            return f"fedkin net serve --resume {folder}" if role == "server" else "the same fedkin net join command"
        if (folder / "plan.json").exists():
            command = {"sweep": "tune"}.get(name := reading.plan_in(folder).command, name)
        elif not reading.settings_in(folder / "experiment.toml").get("data"):
            return f"fedkin.run(..., out={str(folder)!r})"
    return f"fedkin {command} --resume {folder}"


def _sealed(folder: Path) -> tuple[files.Seal, list[str]]:
    """Return the seal of the folder, and the problems of the files that every folder has."""
    if not (folder / files.SEAL).exists():
        return files.Seal({}, {}), [
            f"{folder / files.SEAL}: it is gone, so that the files here cannot be checked; {_BACK}"
        ]
    try:
        seal = files.seal_of(folder)
    except RunError as error:
        return files.Seal({}, {}), [str(error)]
    return seal, [f"{each}; {_BACK}" for each in files.faults(folder, seal.files, ("experiment.toml", "plan.json"))]


def _rows(folder: Path, seal: files.Seal) -> Iterator[str]:
    """Compare numbers of rows with the seal; yields a problem for each difference."""
    for name, stamp in seal.files.items():
        path = folder / name
        if stamp.rows is None or not path.exists():
            continue
        try:
            count = (
                pq.read_metadata(path).num_rows if path.suffix == ".parquet" else len(path.read_bytes().splitlines())
            )
        except (OSError, ValueError, pa.ArrowException):
            continue  # the hash check reports an unreadable file
        if count != stamp.rows:
            yield f"{path}: {count} rows, written were {stamp.rows}"


def _versions(seal: files.Seal) -> tuple[str, ...]:
    """Return a note for each package whose version differs from the one that wrote the files."""
    here = files.versions()
    return tuple(
        f"written with {name} {was}, here is {here[name]}: what is computed here may differ in its last bits"
        for name, was in seal.versions.items() if name in here and here[name] != was
    )  # fmt: skip
