"""`fedkin.load`: the models of a finished run, to predict with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from fedkin.errors import IN_PYTHON, ConfigError, DataError, RunError, first_few, nearest
from fedkin.federation.arrays import is_finite
from fedkin.federation.inputs import CODES, map_arrays, parts
from fedkin.federation.samples import prepared
from fedkin.federation.table_encoding import Encoding, Target
from fedkin.federation.table_values import as_table, kinds_of, need_known_texts
from fedkin.keys import key
from fedkin.learning.models import MODELS
from fedkin.learning.models.custom import Modules, pair_of
from fedkin.learning.net import BodyHead, Net
from fedkin.methods import METHODS
from fedkin.records import reading
from fedkin.records.files import is_state, seal_of
from fedkin.records.models import INDEX, StoredModels
from fedkin.running.exported import no_embedding
from fedkin.running.plugins import add_installed, read_own, without_hash
from fedkin.settings import choose, parse, place
from fedkin.untrusted import error_text

Values = npt.NDArray[Any]
_BATCH = 1024


def load(run: Path | str, model: Modules | None = None, head: str | None = None, own: bool = False) -> Loaded:
    """Load the models of the finished run in this folder, or a participant's own model from its federation folder.

    model: the torch module, the (body, head) pair, or the function of the task that makes either, with which the run
    was started; it is needed if the run's net has no name in `fedkin list models`. head: as in `fedkin.run`. own:
    whether to read the user's files that the run names (FILE.py:CLASS), which runs their code; they must be unchanged.
    Raises RunError for a folder without models.

    >>> import fedkin, tempfile
    >>> fed = fedkin.federate("digits", "rotated-masked", clients=4, seed=0)
    >>> folder = tempfile.mkdtemp()
    >>> result = fedkin.run("fedavg", fed, rounds=1, seed=0, out=folder)
    >>> models = fedkin.load(folder)
    >>> models.predict(fed["c00"].test.x[:3], client="c00").shape
    (3,)
    """
    folder = place(run, "run")
    if own:
        reading.check_unchanged(folder, "experiment.toml")
        read_own(reading.settings_in(folder / "experiment.toml"), folder)
    return Loaded(folder, model, head)


class Loaded(Mapping[str, nn.Module]):
    """The models of a run by client id, in evaluation mode, in the precision of the run. See `fedkin.load`.

    encoding, target: how columns become inputs, and what the targets mean; None if the run had arrays.
    """

    encoding: Encoding | None
    target: Target | None

    def __init__(self, folder: Path, modules: Modules | None = None, head: str | None = None) -> None:
        # A participant of a federation has its own model, but no finished run.
        if not (folder / "summary.json").exists() and INDEX not in seal_of(folder).files:
            if is_state(folder):
                raise RunError(
                    f"{folder}: no model yet: a participant of a federation keeps its own after each evaluation; "
                    f"fedkin net status {folder} says how it goes"
                )
            if runs := sorted(path.parent.name for path in folder.glob("*/summary.json")):
                raise RunError(f"{folder} holds several runs; name one of them, such as {folder / runs[0]}")
            raise RunError(
                f"{folder}: no summary.json, so this run is not finished; --resume {folder}{IN_PYTHON} continues it"
            )
        self.folder, self.stored = folder, StoredModels(folder)
        self.index = self.stored.index
        self.task, self.encoding, self.target = self.index.task, self.index.encoding, self.index.target
        self._modules, self._head, self._nets = modules, head, dict[int, Net]()

    @property
    def clients(self) -> tuple[str, ...]:
        """The sorted ids of the clients that have a model."""
        return tuple(sorted(self.stored))

    def __getitem__(self, id: str) -> nn.Module:
        return self.model(id)

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.stored)

    def __repr__(self) -> str:
        models = "one model" if self.index.alike else "models"
        return f"Loaded({str(self.folder)!r}, {models} of {len(self)} clients, {self.task.kind})"

    def model(self, client: str | None = None) -> BodyHead:
        """The model of a client, in evaluation mode: inputs [n, ...] to outputs [n, classes] (logits) or [n, targets].

        client: may be left out if all clients have the same model. Raises ConfigError for an unknown client.
        """
        id = self.client_id(client)
        number = self.index.clients[id].net
        if number not in self._nets:
            self._nets[number] = self._net(number)
        module = self._nets[number].scratch().eval()
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, tensor in self.stored[id].items():
                named[name].copy_(tensor)
        return module

    def predict(self, x: Any, client: str | None = None) -> Values:
        """Predict with a client's model for these rows.

        x: for a run on a table, a frame with the columns of its inputs (pandas, polars, Arrow, or a dict of columns),
        or encoded inputs [n, d]; else an array [n, ...] of stored values, in the form of the client's samples.

        classification   [n] class names of the table, else labels from 0
        risk             [n] the probability of the event, from 0 to 1
        regression       [n] numbers in the units of the table's target, else [n, targets] as the run had them
        segmentation     [n, height, width] labels of pixels

        Missing values and unknown categories are treated as in training. Raises DataError for inputs that do not fit,
        ConfigError for an unknown client.
        """
        outputs = self._outputs(x, client)
        if self.task.kind == "risk":
            return np.asarray(torch.softmax(outputs, 1)[:, 1].numpy())
        if self.task.kind == "regression":
            if self.target is not None:
                outputs = outputs[:, 0] * self.target.deviation + self.target.mean
            return np.asarray(outputs.numpy())
        labels = outputs.argmax(1).numpy()
        if self.task.kind == "classification" and self.target is not None:
            labels = np.array(self.target.classes)[labels]
        return np.asarray(labels)

    def probabilities(self, x: Any, client: str | None = None) -> Values:
        """Return the probability of each class, [n, classes], in the order of `target.classes` or of the labels."""
        self.task.need_labels("probabilities", "a probability of each class")
        return np.asarray(torch.softmax(self._outputs(x, client), 1).numpy())

    def inputs(self, x: Any, client: str | None = None) -> Any:
        """Return the net's inputs for these rows: a tensor, or a dict of tensors."""
        id = self.client_id(client)
        if self.encoding is not None and not isinstance(x, (np.ndarray, Tensor)):
            return torch.from_numpy(self._encoded(x)).to(self.index.torch_dtype)
        wanted = self.task.shapes
        if isinstance(self.task.shape, Mapping):
            if not isinstance(x, Mapping) or set(x) != set(wanted):
                raise DataError(f"x: expected a dict of the arrays {', '.join(wanted)}, got {type(x).__name__}")
            inputs: Any = {name: _tensor(x[name], f"x[{name!r}]", wanted[name]) for name in wanted}
        else:
            inputs = _tensor(x, "x", wanted["x"])
        for name in self.task.codes:
            part = inputs[name] if isinstance(inputs, dict) else inputs
            if part.dtype not in CODES:
                raise DataError(
                    f"x: {name!r} holds token ids or category codes: expected int32 or int64, got {part.dtype}"
                )
        return prepared(inputs, self.index.scale(id), self.index.torch_dtype)

    # -- nets ------------------------------------------------------------------------------------------------------

    def client_id(self, client: str | None) -> str:
        """The id of this client, or any id if all have the same model; raises ConfigError for an unknown client."""
        if client is None:
            if self.index.alike:
                return next(iter(self.stored))
            raise ConfigError(f"client: each client has its own model, so name one; known: {first_few(self.clients)}")
        if client not in self.stored:
            shared = "; all clients have the same model: leave client out to use it" if self.index.alike else ""
            raise ConfigError(f"client: no {client!r} in this run; {nearest(client, self.clients)}{shared}")
        return client

    def _net(self, number: int) -> Net:
        """The net with this number, including its frozen tensors."""
        facts = self.index.nets[number]
        was = " ".join(facts.modules.split())
        if facts.model is None and self._modules is None:
            raise ConfigError(
                f"{self.folder}: its net was made from modules of your own, which only you can make again: "
                f"fedkin.load({str(self.folder)!r}, model=(body, head)) with the same ones; it was {was}"
            )
        made = Net.build(lambda: self._made(facts.model), 0, self.index.torch_dtype, self.index.precision)
        net = self._equipped(made)
        frozen = self.stored.frozen(number)
        shapes, wanted = _shapes({**net.initial, **net.frozen}), {**facts.shapes, **_shapes(frozen)}
        if odd := sorted(name for name in {*shapes, *wanted} if shapes.get(name) != wanted.get(name)):
            one = f"{odd[0]} is {shapes.get(odd[0], 'not there')} here, {wanted.get(odd[0], 'not there')} in the run"
            raise ConfigError(f"model: not the net of {self.folder}: {one}; it was {was}")
        with torch.no_grad():
            for name, tensor in net.frozen.items():
                tensor.copy_(frozen[name])
        return net

    def _made(self, settings: Mapping[str, Any] | None) -> tuple[nn.Module, nn.Module]:
        if self._modules is not None:
            return pair_of(self._modules, self.task, self._head)
        assert settings is not None
        if settings.get("name") not in MODELS:
            self._need_own(f"its model {settings.get('name')!r}")
        return parse(choose(MODELS, settings.get("name"), "model.name"), settings, "model").build(self.task)

    def _need_own(self, what: str) -> None:
        """Raise ConfigError if the run read the user's own files: they are code, and run only on request."""
        path = self.folder / "experiment.toml"
        if not path.exists():
            return
        reading.check_unchanged(self.folder, path.name)
        if own_files := reading.settings_in(path).get("own"):
            files = ", ".join(without_hash(str(each))[0] for each in own_files)
            raise ConfigError(
                f"{self.folder}: {what} is from {files}, which is code and is not run unasked: if you trust it, "
                f"fedkin.load({str(self.folder)!r}, own=True)"
            )

    def _equipped(self, net: Net) -> Net:
        """The net with the modules that the run's method added."""
        table = dict(self.index.method)
        name = table.pop("name", None)
        add_installed()
        if name not in METHODS:
            self._need_own(f"its method {name!r}")
            return net
        return parse(METHODS[name], table, "method").equip(net, self.task, key(0, "equip"))

    # -- inputs and outputs ----------------------------------------------------------------------------------------

    def _outputs(self, x: Any, client: str | None) -> Tensor:
        inputs, model = self.inputs(x, client), self.model(client)
        rows = len(next(iter(parts(inputs).values())))
        batches = [itemgetter(slice(start, start + _BATCH)) for start in range(0, max(rows, 1), _BATCH)]
        with torch.no_grad():
            try:
                return torch.cat([model(map_arrays(batch, inputs)) for batch in batches]).double()
            except IndexError:
                if words := no_embedding({name: part.numpy() for name, part in parts(inputs).items()}):
                    raise DataError(f"x: {words}") from None
                raise

    def _encoded(self, frame: Any) -> npt.NDArray[np.float32]:
        assert self.encoding is not None
        table = as_table(frame)
        lacking = [name for name in self.encoding.kinds if name not in table.column_names]
        if lacking:
            raise DataError(f"frame: no column {lacking[0]!r}; known: {first_few(table.column_names)}")
        try:
            kinds = kinds_of(table.select(list(self.encoding.kinds)))
            for name, kind in self.encoding.kinds.items():
                if kind == "number" and kinds[name] != "number":
                    raise DataError(
                        f"column {name!r}: expected numbers, as in training, got {table.schema.field(name).type}"
                    )
                if kind == "category":
                    need_known_texts(table, name, self.encoding.values[name])
            return self.encoding(table)
        except DataError as error:
            raise DataError(f"frame: {error}") from None
        except (ValueError, pa.ArrowException) as error:
            raise DataError(f"frame: its columns cannot be encoded ({error_text(error)})") from None


def _tensor(x: Any, where: str, shape: tuple[int, ...]) -> Tensor:
    try:
        tensor = x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where}: expected an array of numbers, got {type(x).__name__} ({error_text(error)})"
        ) from None
    if tuple(tensor.shape[1:]) != tuple(shape) or not tensor.ndim:
        rows = ", ".join(map(str, ("n", *shape)))
        raise DataError(f"{where}: expected an array [{rows}], got {list(tensor.shape)}")
    if tensor.is_floating_point() and not is_finite(tensor):
        raise DataError(f"{where}: holds NaN or infinite values (with 32 bits); expected finite numbers")
    return tensor


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}
