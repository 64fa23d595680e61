"""The section `[network]` of an experiment file: what a federation over a network needs beyond a simulation."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field, TypeAdapter, field_validator

from fedkin.errors import ConfigError
from fedkin.settings import Settings
from fedkin.tasks import Kind, Task
from fedkin.untrusted import error_text, escaped, plain_word

_LARGEST = 10**8  # most values of one sample
_TASK = TypeAdapter(Task)
_MOST_OUTPUTS = 10**5  # most classes or targets of a task that another participant sends


class NetworkSettings(Settings):
    """The section `[network]`; a simulation does not read it.

    clients: the clients that must have joined before the first round: their names, or their number.
    deadline: seconds within which a client answers a request; a later answer counts as missing.
    begin_after: seconds after which the run begins with the clients that have joined, at least two; None: it waits for
    all.
    newcomers: whether clients in the join file may join later, from the next round on, or come back after they have
    left; otherwise they are refused.
    reread: whether each participant reads its file again after a change; new samples count from the next round on.
    gone_after: seconds without a connection after which a client counts as having left; None: the server waits for it
    without limit.
    grace: seconds to wait for a client that has lost its connection; after that it is asked again only when it is back.
    A peer waits as long for a neighbour, also for a connected neighbour that does not answer.
    kind, classes: those of the task. A client without samples of some class needs `classes`. The first client that
    joins sets the rest of the task, and the others must have the same.
    """

    clients: int | tuple[str, ...] = 2
    deadline: float = Field(300.0, gt=0, le=7 * 86400)
    begin_after: float | None = Field(None, gt=0, le=30 * 86400)
    newcomers: bool = False
    reread: bool = False
    gone_after: float | None = Field(None, gt=0, le=365 * 86400)
    grace: float = Field(10.0, ge=0, le=86400)
    kind: Kind = "classification"
    classes: int | None = Field(None, ge=2)

    @field_validator("clients")
    @classmethod
    def _someone(cls, clients: int | tuple[str, ...]) -> int | tuple[str, ...]:
        if not clients or (isinstance(clients, int) and clients < 1):
            raise ValueError("expected the number of clients that begin, or their names")
        if isinstance(clients, tuple):
            if wrong := [name for name in clients if not plain_word(name) or name == "server"]:
                raise ValueError(f"{wrong[0]!r} is no name of a client")
            if len(set(clients)) < len(clients):
                raise ValueError("a name is there twice")
        return clients


def task_from(tree: Any) -> Task:
    """Return the task from the fields that another participant sent; raises ConfigError for an invalid task.

    >>> task_from({"classes": 10, "shape": [1, 8, 8]}) == Task(10, (1, 8, 8))
    True
    """
    try:
        task = _TASK.validate_python(tree)
        sizes = [task.classes, task.targets, *(size for shape in task.shapes.values() for size in shape)]
        if min(sizes) < 0 or sum(map(math.prod, task.shapes.values())) > _LARGEST or task.outputs > _MOST_OUTPUTS:
            raise ValueError("sizes that cannot be")
    except Exception as error:  # another participant has sent it
        raise ConfigError(f"the task of the federation is not readable ({escaped(error_text(error), 100)})") from None
    return task
