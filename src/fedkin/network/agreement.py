"""What a server and a client must have in common before they begin, and what differs, in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Any

from fedkin import codec
from fedkin._version import __version__
from fedkin.data.own import CLASS
from fedkin.engines.setup import Plan
from fedkin.errors import ConfigError, FedkinError
from fedkin.learning.devices import opened
from fedkin.learning.measures import code_of
from fedkin.learning.precision import check_precision
from fedkin.network.settings import task_from, tree_of_task
from fedkin.tasks import Task
from fedkin.untrusted import said, shown, toml_of

__all__ = ["Agreement", "PlanOf", "agreed", "unlike"]

# Makes the plan of an agreed experiment's text for a task.
PlanOf = Callable[[str, Task], Plan]
# Initial parameters are drawn from torch's generator, of which a process has one.
_DRAWING = Lock()


@dataclass(frozen=True)
class Agreement:
    """What all participants have in common: version, settings, task, and the net with its first values.

    settings: the settings that all must have, as TOML. net: [name, shape, type] of each tensor that is trained. first:
    a hash of the net and its initial values. Where bodies differ, both are of all but the bodies. cannot: why a
    participant cannot make a plan of these settings. columns: names of the inputs' columns, where they have names, or
    of the classes of images. metrics: of each further metric its name, whether higher is better, and `code_of`.
    """

    settings: str
    task: Task | None
    net: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    first: str = ""
    version: str = __version__
    cannot: str = ""
    columns: tuple[str, ...] = ()
    metrics: tuple[tuple[str, bool, str], ...] = ()

    def tree(self) -> dict[str, Any]:
        """Return the agreement as small values."""
        return {
            "version": self.version, "settings": self.settings, "first": self.first, "cannot": self.cannot,
            "task": None if self.task is None else tree_of_task(self.task),
            "columns": list(self.columns), "metrics": [list(each) for each in self.metrics],
            "net": [[name, list(shape), dtype] for name, shape, dtype in self.net],
        }  # fmt: skip

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Agreement:
        """Return the agreement of such values; raises ConfigError for others, which another version may have sent."""
        version = str(tree.get("version", "of an unknown version"))
        try:
            texts = {name: str(tree[name]) for name in ("version", "settings", "first", "cannot")}
            task = None if tree["task"] is None else task_from(tree["task"])
            net = tuple((str(name), tuple(map(int, shape)), str(dtype)) for name, shape, dtype in tree["net"])
            columns = tuple(map(str, tree["columns"]))
            metrics = tuple(_metric(row) for row in _listed(tree.get("metrics", ())))
        except (KeyError, TypeError, ValueError):
            other = "" if version == __version__ else f"; {_versions(__version__, version)}"
            raise ConfigError(f"what was said about the experiment is not readable{other}") from None
        return cls(task=task, net=net, columns=columns, metrics=metrics, **texts)


def agreed(
    settings: str, task: Task, plan_of: PlanOf, device: str | None = None
) -> tuple[Plan | None, Agreement]:  # fmt: skip
    """Return the plan of these settings, and what this participant has; no plan if it can make none.

    device: where it trains, which must have the precision (None: it does not train).
    """
    try:
        with _DRAWING:
            plan = plan_of(settings, task).equipped()
        if device is not None:
            check_precision(plan.net.precision, opened(device))
        metrics = tuple((each.name, each.higher, code_of(each)) for each in plan.measures)
    except FedkinError as error:
        return None, Agreement(settings, task, cannot=said(error))
    common = {name: t for name, t in plan.net.initial.items() if plan.nets is None or not name.startswith("body.")}
    net = tuple((name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in common.items())
    first = plan.net.fingerprint() if plan.nets is None else blake2b(codec.encode(common), digest_size=16).hexdigest()
    return plan, Agreement(settings, task, net, first, metrics=metrics)


def unlike(here: Agreement, there: Agreement) -> str:
    r"""Return what differs between this participant and another, in one line; empty if nothing does.

    >>> from fedkin.tasks import Task
    >>> here = Agreement("[training]\nlr = 0.1", Task(2, (4,)))
    >>> unlike(here, Agreement("[training]\nlr = 0.2", Task(2, (4,))))
    'training.lr is 0.1 here and 0.2 there'
    >>> unlike(here, Agreement(here.settings, Task(2, (5,))))
    'inputs have shape (4,) here and (5,) there'
    """
    if here.version != there.version:
        return _versions(here.version, there.version)
    if here.settings != there.settings:
        return _settings(here.settings, there.settings)
    for one, who in ((here, "here"), (there, "there")):
        if one.cannot:
            return f"the experiment cannot be run {who}: {_said(one.cannot, 200)}"
    if here.task is None or there.task is None:  # the server does not know its task before the first client comes
        return ""
    if here.columns and there.columns and here.columns != there.columns:
        odd = min(set(here.columns) ^ set(there.columns), default="")
        where = "here and not there" if odd in here.columns else "there and not here"
        what = f"class {_said(repr(odd[len(CLASS) + 1 :]))}" if odd.startswith(CLASS) else f"column {_said(repr(odd))}"
        return f"the {what} is {where}"
    if here.task != there.task:
        return _tasks(here.task, there.task)
    if here.net != there.net:
        return _nets(here, there)
    if here.first != there.first:
        return (
            "the first values of the net differ, though its tensors do not: use the same version of torch, and the "
            "same files of the model"
        )
    return _metrics(here, there)


def _versions(here: str, there: str) -> str:
    return f"fedkin is {_said(here)} here and {_said(there)} there: install the same version"


def _listed(rows: Any) -> Sequence[Any]:
    if not isinstance(rows, (list, tuple)):
        raise TypeError
    return rows


def _metric(row: Any) -> tuple[str, bool, str]:
    name, higher, code = _listed(row)
    if not (isinstance(name, str) and isinstance(higher, bool) and isinstance(code, str)):
        raise TypeError
    return name, higher, code


def _metrics(here: Agreement, there: Agreement) -> str:
    # Equal settings name the same metrics in the same order, so that only what they compute can differ.
    for one, other in zip(here.metrics, there.metrics, strict=False):
        if one != other:
            return f"metric {_said(repr(one[0]))} is other code here than there: use the same file, or version of it"
    return "" if len(here.metrics) == len(there.metrics) else "the metrics differ"


def _settings(here: str, there: str) -> str:
    try:
        one, other = _flat(toml_of(here)), _flat(toml_of(there))
    except ValueError:
        return "the settings of the other side are not readable"
    names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    told = [f"{_said(n)} is {_value(one.get(n))} here and {_value(other.get(n))} there" for n in names[:3]]
    return "; ".join(told) + (f"; and {len(names) - 3} more differ" if len(names) > 3 else "")


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return found


def _tasks(here: Task, there: Task) -> str:
    for what, words in (("kind", "the task is"), ("shape", "inputs have shape"),
                        ("classes", "the number of classes is"),
                        ("targets", "the number of targets is"), ("codes", "the inputs with codes are")):  # fmt: skip
        one, other = getattr(here, what), getattr(there, what)
        if one != other:
            return f"{words} {_said(str(one))} here and {_said(str(other))} there"
    return "the tasks differ"


def _nets(here: Agreement, there: Agreement) -> str:
    one, other = ({name: (shape, dtype) for name, shape, dtype in side.net} for side in (here, there))
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            words = [f"{dtype} {list(shape)}" if shape is not None else "not there" for shape, dtype in (
                one.get(name, (None, "")), other.get(name, (None, "")))]  # fmt: skip
            return f"the net's {_said(name)} is {words[0]} here and {_said(words[1])} there"
    return "the net's tensors are in another order"


def _value(value: Any) -> str:
    return "not set" if value is None else _said(str(value))


def _said(text: str, most: int = 60) -> str:
    return shown(text, most)
