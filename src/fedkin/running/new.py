"""`fedkin new`: a first file for a method, a scenario or a metric of one's own, with its test."""

from __future__ import annotations

import ast
import keyword
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template

from fedkin.errors import ConfigError, nearest
from fedkin.untrusted import shown

__all__ = ["KINDS", "known", "spelled", "write_new"]

_METHOD = '''"""$title: a method for fedkin. See "Writing a method" in fedkin's documentation."""

from typing import ClassVar

from fedkin import Ask, Fit, Message, ServerMethod, phase
from fedkin.forms import COUNT, NET
from fedkin.learning import weighted_mean


class $part(ServerMethod):
    """One model for all: the mean of the clients' models, of which `step` is taken. Change it into your own."""

    name: ClassVar[str] = "$name"
    title: ClassVar[str] = "$title"
    paper: ClassVar[str] = "none yet"
    kind: ClassVar[str] = "global"  # or "personalised", "clustered"
    travels: ClassVar[str] = "the whole model, down and up"

    step: float = 1.0  # a setting: `fedkin tune ... --grid method.step=0.5,1`

    def start(self, server):
        server.state["params"] = server.initial

    @phase(params=NET, n=COUNT)  # runs at a client; the fields of its reply
    def train(self, client, message):
        fitted = yield from Fit(message.params)
        return Message(params=fitted.params, n=client.size)

    def round(self, server, sampled):  # runs at the server; any answer may be missing
        before = server.state["params"]
        replies = yield from Ask("train", {id: Message(params=before) for id in sampled})
        if replies:
            sizes = {id: reply["n"] for id, reply in replies.items()}
            mean = weighted_mean({id: reply.params for id, reply in replies.items()}, sizes)
            server.state["params"] = {name: old + self.step * (mean[name] - old) for name, old in before.items()}

    def offer(self, server, id):  # what a client needs for its current model
        return Message(params=server.state["params"])

    def use(self, client, message):
        return message.params
'''
_METHOD_TEST = '''"""$part keeps what fedkin's methods promise, and learns."""

from $module import $part

import fedkin
from fedkin.testing import check_method, small_federation


def test_it_keeps_what_methods_promise():
    check_method($part)


def test_it_learns():
    federation = small_federation()
    result = fedkin.run($part(), federation, rounds=10, training={"lr": 0.1})
    assert result.accuracy > fedkin.run($part(), federation, rounds=0).accuracy
'''
_SCENARIO = '''"""$title: a way to deal samples to clients, for fedkin."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedkin.data.scenarios import Scenario
from fedkin.data.scenarios.base import shuffled_ids
from fedkin.federation import Client, Federation
from fedkin.keys import rng


class $part(Scenario):
    """Each client has samples of some classes only. Change it into your own.

    classes: the number of classes of a client. clients: how many there are.
    """

    name: Literal["$name"] = "$name"
    clients: int = Field(6, ge=1)
    classes: int = Field(3, ge=1)

    planted: ClassVar[str] = "none"

    def build(self, dataset, seed):
        draw, every = rng(seed, "$name"), dataset.task.classes
        wanted = [sorted(draw.permutation(every)[: self.classes]) for _ in range(self.clients)]
        by_class = {split: dataset.part(split).by_class(every) for split in ("train", "test")}
        rows = {split: self._rows(found, wanted, draw) for split, found in by_class.items()}
        clients = [
            Client(id, dataset.samples("train", rows["train"][at]), dataset.samples("test", rows["test"][at]))
            for at, id in enumerate(shuffled_ids(self.clients, seed))
        ]
        return Federation(clients, dataset.task, f"{dataset.name}-{self.name}")

    def _rows(self, by_class, wanted, draw):
        """The rows of each client: no sample goes to two of them."""
        found = [[] for _ in wanted]
        for each, rows in enumerate(by_class):
            owners = [at for at, mine in enumerate(wanted) if each in mine]
            for owner, part in zip(owners, np.array_split(draw.permutation(rows), max(1, len(owners)))):
                found[owner].append(part)
        return [np.sort(np.concatenate(parts)) for parts in found]
'''
_SCENARIO_TEST = '''"""$part deals samples as it says, and the same ones for the same seed."""

import torch

import fedkin
from $module import $part


def test_every_client_has_its_classes_only():
    federation = fedkin.federate("digits", $part(clients=5, classes=2), seed=0)
    assert len(federation) == 5
    assert all(len(client.train.labels().unique()) <= 2 for client in federation.values())


def test_no_sample_goes_to_two_clients_and_a_seed_is_a_federation():
    one, same, other = (fedkin.federate("digits", $part(), seed=seed) for seed in (0, 0, 1))
    rows = torch.cat([client.train.rows for client in one.values()])
    assert len(rows) == len(rows.unique())
    assert all(torch.equal(one[id].train.rows, same[id].train.rows) for id in one)
    assert any(not torch.equal(one[id].train.rows, other[id].train.rows) for id in one)
'''
_METRIC = '''"""$title: a metric of each client's model, for fedkin."""

import fedkin


@fedkin.metric(higher=False, name="$name", title="$title", share=True)
def $part(outputs, targets):
    """The share of samples whose class is not the one with the largest output. Change it into your own.

    outputs: [n, classes] before any softmax. targets: [n]. None leaves the client out of the mean.
    """
    return (outputs.argmax(1) != targets).mean()
'''
_METRIC_TEST = '''"""$part on outputs that are written down, and in a run."""

import numpy as np
import pytest

import fedkin
from fedkin.testing import small_federation
from $module import $part


def test_on_outputs_that_are_written_down():
    outputs = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    assert $part.function(outputs, np.array([0, 1, 1])) == pytest.approx(1 / 3)


def test_in_a_run():
    result = fedkin.run("fedavg", small_federation(), rounds=1, metrics=[$part])
    assert result.summary["metrics"]["$name"]["mean"] == pytest.approx(1 - result.accuracy)
'''
KINDS = {
    "method": (_METHOD, _METHOD_TEST, "compare", "--methods", "local,{path}:{part}"),
    "scenario": (_SCENARIO, _SCENARIO_TEST, "run", "--set", "scenario.name={path}:{part}"),
    "metric": (_METRIC, _METRIC_TEST, "run", "--set", "run.metrics={path}:{part}"),
}
_IMPORT = (ast.Import, ast.ImportFrom)


def known(kind: str) -> None:
    """Raise ConfigError if no part of this kind can be written."""
    if kind not in KINDS:
        raise ConfigError(f"new: no kind {shown(kind, 40)!r}; {nearest(kind, KINDS)}")


def spelled(name: str) -> list[str]:
    """The words of a name in settings; raises ConfigError if it cannot be that of a module.

    >>> spelled("my-method")
    ['my', 'method']
    """
    words = re.split("[-_]", name)
    module = "_".join(words)
    usual = all(word.isascii() and word.isalnum() for word in words) and name == name.lower()
    if not usual or not module.isidentifier() or keyword.iskeyword(module):
        raise ConfigError(f"new: {shown(name, 80)!r}: expected a name in small letters such as my-part")
    return words


def write_new(kind: str, name: str, folder: Path) -> tuple[Path, Path, str]:
    """Write the file of a new part and its test; returns their paths and a command that uses the part.

    name: its name in settings, such as "my-method"; the file is my_method.py. Raises ConfigError for a name that cannot
    be that of a module, or is another part's or module's, and for files that exist.
    """
    known(kind)
    words = spelled(name)
    module = "_".join(words)
    part = module if kind == "metric" else "".join(word.capitalize() for word in words)
    told = {"name": name, "module": module, "part": part, "title": " ".join(words).capitalize()}
    file, test = folder / f"{module}.py", folder / f"test_{module}.py"
    if there := [str(path) for path in (file, test) if path.exists()]:
        raise ConfigError(f"new: {there[0]} exists, and is not written over; choose another name or folder")
    texts = [Template(text).substitute(told) for text in KINDS[kind][:2]]
    if taken := _taken(kind, name, module, part, texts):
        raise ConfigError(f"new: {taken}; choose another name, such as my-{name}")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in zip((file, test), texts, strict=True):
        path.write_text(text, encoding="utf-8")
    command, option, value = KINDS[kind][2:]
    used = shlex.quote(value.format(path=file, part=part))
    return file, test, f"fedkin {command} EXPERIMENT.toml {option} {used}"


def _taken(kind: str, name: str, module: str, part: str, texts: list[str]) -> str:
    """Who has this name already, so that the file could not be used; empty if nobody has."""
    if module in sys.stdlib_module_names or find_spec(module) is not None:
        return f"there is a Python module {module!r} already"
    imports = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, _IMPORT)]
    others = [one for node in imports if getattr(node, "module", "") != module for one in node.names]
    if part in {one.asname or one.name for one in others}:
        return f"the file imports {part!r} from elsewhere"
    from fedkin.learning.metrics import metric  # these import torch, for which a typo does not wait
    from fedkin.running.plugins import KINDS as PARTS
    from fedkin.running.plugins import add_installed

    add_installed()
    if name in PARTS[kind].known:
        return f"there is a {kind} {name!r} already"
    if kind == "metric":
        metric(higher=True, name=name)(lambda outputs, targets: None)  # raises for the name of a column
    return ""
