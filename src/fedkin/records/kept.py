"""The models in the folder of a run, read back: each file is checked and read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedkin.codec import Params
from fedkin.errors import RunError
from fedkin.federation import Scale, Task
from fedkin.federation.encoding import Encoding, Target
from fedkin.records import reading
from fedkin.records.files import Stamp, read_json
from fedkin.records.schema import Form
from fedkin.records.seals import faults, seal_of
from fedkin.untrusted import said

__all__ = ["FORMAT", "INDEX", "PLACE", "Kept", "NetFacts"]

T = TypeVar("T")
FORMAT, PLACE = 1, "models"
INDEX = f"{PLACE}/index.json"


class NetFacts(Form):
    """A net of the index: its settings (None: modules of one's own), its modules in words, and what it is made of."""

    model: dict[str, Any] | None
    modules: str
    shapes: dict[str, list[int]]
    frozen: str | None


class _Client(Form):
    file: str
    net: int
    scale: int | None


class _Index(Form):
    format: int
    why: str
    dtype: str
    task: dict[str, Any]
    nets: list[NetFacts]
    scales: list[dict[str, Any]]
    clients: dict[str, _Client]
    encoding: dict[str, Any] | None
    target: dict[str, Any] | None


class Kept(Mapping[str, Params]):
    """The models in the folder of a run, by client id: each file is checked and read when it is asked for.

    Raises RunError if none were kept, and, when they are read, for files that are not as they were written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: tuple[str, Params] = ("", {})
        if not (folder / INDEX).exists():
            raise RunError(
                f"{folder}: no models were kept with this run: run.models was 'none', an earlier version wrote it, or "
                "its clients were elsewhere and keep their own; run it again here with run.models = 'last'"
            )

    @cached_property
    def _index(self) -> _Index:
        self._check(INDEX)
        path = self.folder / INDEX
        index = _Index.model_validate(reading.checked(_Index, read_json(path), path))
        if index.format > FORMAT:
            raise RunError(f"{path}: written by a later version of fedkin: read it with that version")
        if index.why:
            raise RunError(f"{self.folder}: no models were kept: {index.why}; run it again with a larger one")
        for id, client in index.clients.items():
            known = 0 <= client.net < len(index.nets) and (
                client.scale is None or client.scale in range(len(index.scales))
            )
            if Path(client.file).name != client.file or not known:
                raise RunError(f"{path}: client {id!r}: a file, net or scale that is not there; {reading.MEND}")
        return index

    @cached_property
    def _stamps(self) -> Mapping[str, Stamp]:
        return seal_of(self.folder).files

    def _check(self, name: str) -> None:
        if wrong := faults(self.folder, self._stamps, [name]):
            raise RunError(f"{wrong[0]}; {reading.MEND}")

    def _value(self, kind: type[T], value: Any) -> T:
        try:
            return TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            where = self.folder / INDEX
            raise RunError(f"{where}: no {kind.__name__.lower()} of a run ({said(error)}); {reading.MEND}") from None

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters and of the inputs."""
        return torch.float64 if self._index.dtype == "float64" else torch.float32

    @cached_property
    def task(self) -> Task:
        """What the models predict."""
        return self._value(Task, self._index.task)

    @cached_property
    def encoding(self) -> Encoding | None:
        """How columns of a table become inputs, if the clients were made of a table."""
        return None if self._index.encoding is None else self._value(Encoding, self._index.encoding)

    @cached_property
    def target(self) -> Target | None:
        """What the targets mean, if the clients were made of a table."""
        return None if self._index.target is None else self._value(Target, self._index.target)

    @property
    def nets(self) -> Sequence[NetFacts]:
        """The different nets; one, unless clients have different ones."""
        return self._index.nets

    @property
    def alike(self) -> bool:
        """Whether all clients have the same model."""
        return len({(client.file, client.net, client.scale) for client in self._index.clients.values()}) == 1

    def number(self, id: str) -> int:
        """The number of a client's net in `nets`."""
        return self._index.clients[id].net

    def scale(self, id: str) -> Scale | None:
        """How a client's stored values become inputs; None: they are used unchanged."""
        number = self._index.clients[id].scale
        return None if number is None else self._value(Scale, self._index.scales[number])

    def frozen(self, number: int) -> Params:
        """What training does not change in the net of this number."""
        name = self.nets[number].frozen
        return {} if name is None else self._tensors(name)

    def __getitem__(self, id: str) -> Params:
        client = self._index.clients[id]
        shapes, found = self.nets[client.net].shapes, self._tensors(client.file)
        if {name: list(tensor.shape) for name, tensor in found.items()} != shapes:
            raise RunError(f"{self.folder / PLACE / client.file}: not the tensors that {INDEX} names; {reading.MEND}")
        return {name: found[name] for name in shapes}

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.clients)

    def __len__(self) -> int:
        return len(self._index.clients)

    def _tensors(self, file: str) -> Params:
        # Clients that share a model are mostly asked for one after another.
        if self._last[0] != file:
            name = f"{PLACE}/{file}"
            self._check(name)
            try:
                self._last = file, load_file(self.folder / name)
            except (OSError, ValueError, SafetensorError) as error:
                where = self.folder / name
                raise RunError(f"{where}: cannot be read as a model ({said(error)}); {reading.MEND}") from None
        return self._last[1]
