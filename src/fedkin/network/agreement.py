"""Agreements: what all participants must have in common before a run, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from hashlib import blake2b
from threading import Lock
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, StrictBool, StrictStr, model_validator

from fedkin import codec
from fedkin._version import __version__
from fedkin.data.own import CLASS
from fedkin.engines.setup import Setup
from fedkin.errors import FedkinError, first_few
from fedkin.learning.devices import check_precision, opened
from fedkin.learning.metrics import code_of
from fedkin.network.messages import Text, WireMessage, listed
from fedkin.network.settings import task_from
from fedkin.settings import differing
from fedkin.tasks import Task
from fedkin.untrusted import error_text, escaped, toml_of

# Makes the setup from the text of the agreed settings and a task.
SetupOf = Callable[[str, Task], Setup]
# Initial parameters are drawn from torch's generator, which all threads of a process share.
_DRAWING = Lock()


def _task(value: Any) -> Any:
    return value if value is None or isinstance(value, Task) else task_from(value)


class Agreement(WireMessage):
    """What all participants must have in common: version, settings, task, and the net with its initial values.

    settings: the common settings, as TOML. first: a hash of the net and its initial values; if bodies differ, of all
    but the bodies. cannot: why a participant cannot make a setup from these settings. columns: names of the input
    columns, if they have names, or of the classes of images. metrics: of each further metric its name, whether higher
    is better, and `code_of`.
    """

    settings: Text
    task: Annotated[Task | None, BeforeValidator(_task), PlainSerializer(lambda task: task and asdict(task))] = None
    first: Text = ""
    version: StrictStr = __version__
    cannot: Text = ""
    columns: Annotated[tuple[StrictStr, ...], listed] = ()
    metrics: Annotated[tuple[Annotated[tuple[StrictStr, StrictBool, StrictStr], listed], ...], listed] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_another_version(cls, tree: Any) -> Any:
        """Read only the version of an agreement of another version."""
        if not isinstance(tree, Mapping):
            return tree
        version = tree.get("version", __version__)
        return {**tree, "version": version} if version == __version__ else {"version": version, "settings": ""}


class Terms(WireMessage):
    """The agreement of a server, for its clients. name: name of the federation."""

    agreement: Agreement
    name: StrictStr = ""


def setup_and_agreement(
    settings: str, task: Task, setup_of: SetupOf, device: str | None = None
) -> tuple[Setup | None, Agreement]:  # fmt: skip
    """Return the setup for these settings (None if it cannot be made), and this participant's agreement.

    device: the device of training, which must support the precision (None: this participant does not train).
    """
    try:
        with _DRAWING:
            setup = setup_of(settings, task).equipped()
        if device is not None:
            check_precision(setup.net.precision, opened(device))
        metrics = tuple((each.name, each.higher, code_of(each)) for each in setup.measures)
    except FedkinError as error:
        return None, Agreement(settings=settings, task=task, cannot=error_text(error))
    if setup.nets is None:
        first = setup.net.fingerprint()
    else:
        common = {name: tensor for name, tensor in setup.net.initial.items() if not name.startswith("body.")}
        first = blake2b(codec.encode(common), digest_size=16).hexdigest()
    return setup, Agreement(settings=settings, task=task, first=first, metrics=metrics)


def difference(here: Agreement, there: Agreement) -> str:
    r"""Return what differs between this participant and another, in one line; empty if nothing does.

    >>> from fedkin.tasks import Task
    >>> here = Agreement(settings="[training]\nlr = 0.1", task=Task(2, (4,)))
    >>> difference(here, Agreement(settings="[training]\nlr = 0.2", task=Task(2, (4,))))
    'training.lr is 0.1 here and 0.2 there'
    >>> difference(here, Agreement(settings=here.settings, task=Task(2, (5,))))
    'inputs have shape (4,) here and (5,) there'
    """
    if here.version != there.version:
        versions = f"{escaped(here.version, 60)} here and {escaped(there.version, 60)} there"
        return f"fedkin is {versions}: install the same version"
    if here.settings != there.settings:
        return _settings_differ(here.settings, there.settings)
    for side, where in ((here, "here"), (there, "there")):
        if side.cannot:
            return f"the experiment cannot be run {where}: {escaped(side.cannot, 200)}"
    if here.task is None or there.task is None:  # the server does not know its task before the first client comes
        return ""
    nets = "the first values of the net differ: use the same version of torch, and the same files of the model"
    return (
        _columns_differ(here.columns, there.columns)
        or _tasks_differ(here.task, there.task)
        or (nets if here.first != there.first else "")
        or _metrics_differ(here, there)
    )


_TASK_FACTS = {
    "the task is": "kind", "inputs have shape": "shape", "the number of classes is": "classes",
    "the number of targets is": "targets", "the inputs with codes are": "codes",
}  # fmt: skip


def _tasks_differ(here: Task, there: Task) -> str:
    for words, field in _TASK_FACTS.items():
        one, other = getattr(here, field), getattr(there, field)
        if one != other:
            return f"{words} {escaped(str(one), 60)} here and {escaped(str(other), 60)} there"
    return ""


def _columns_differ(here: tuple[str, ...], there: tuple[str, ...]) -> str:
    if not here or not there or here == there:
        return ""
    odd = min(set(here) ^ set(there), default="")
    where = "here and not there" if odd in here else "there and not here"
    kind, name = ("class", odd[len(CLASS) + 1 :]) if odd.startswith(CLASS) else ("column", odd)
    return f"the {kind} {escaped(repr(name), 60)} is {where}"


def _metrics_differ(here: Agreement, there: Agreement) -> str:
    # Equal settings name the same metrics in the same order, so only what they compute can differ.
    for metric, same in zip(here.metrics, there.metrics, strict=False):
        if metric != same:
            how = "use the same file, or version of it"
            return f"metric {escaped(repr(metric[0]), 60)} is other code here than there: {how}"
    return "" if len(here.metrics) == len(there.metrics) else "the metrics differ"


def _settings_differ(here: str, there: str) -> str:
    try:
        unequal = differing(toml_of(here), toml_of(there))
    except ValueError:
        return "the settings of the other side are not readable"
    each = [(escaped(name, 60), escaped(str(one), 60), escaped(str(other), 60)) for name, one, other in unequal]
    return first_few((f"{name} is {one} here and {other} there" for name, one, other in each), 3, "; ")
