"""The models of a finished run: a file for each different model, and an index of its clients and how to use it.

    models/index.json            the task, method, nets, preprocessing, and the file of each client's model
    models/model-N.safetensors   a model, of one client or of several
    models/frozen-N.safetensors  the frozen tensors of net N, if there are any

Over a network, each participant's folder has such files for its own model.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from fedkin.codec import Params
from fedkin.data.csv_cells import CsvFormat
from fedkin.engines.setup import Setup
from fedkin.errors import DataError, RunError
from fedkin.federation import Federation, Scale, Task
from fedkin.federation.table_encoding import Encoding, Target
from fedkin.folders import fsync_folder
from fedkin.learning.devices import Precision
from fedkin.learning.models import Model
from fedkin.learning.net import Net
from fedkin.records import reading
from fedkin.records.files import Stamp, faults, json_bytes, say, seal_of, write_bytes
from fedkin.untrusted import error_text

PLACE = "models"
INDEX = f"{PLACE}/index.json"


class NetFacts(BaseModel):
    """A net of the index: its settings (None: the user's own modules), its modules as text, shapes, and frozen file."""

    model: dict[str, Any] | None
    modules: str
    shapes: dict[str, list[int]]
    frozen: str | None


class _Client(BaseModel):
    """A client's model: its file, the numbers of its net and of its scale (None: stored values are used unchanged)."""

    file: str
    net: int
    scale: int | None


class Index(BaseModel):
    """The file index.json. why: the reason why no models were stored, or empty.

    csv: how a participant of a federation read its CSV file; of other runs, experiment.toml has it.
    """

    format: int = 1
    why: str
    dtype: Literal["float32", "float64"]
    precision: Precision
    method: dict[str, Any]
    task: Task
    nets: list[NetFacts]
    scales: list[Scale]
    clients: dict[str, _Client]
    encoding: Encoding | None
    target: Target | None
    csv: CsvFormat | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch type of the parameters and of the inputs."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def alike(self) -> bool:
        """Whether all clients have the same model."""
        return len({(client.file, client.net, client.scale) for client in self.clients.values()}) == 1

    def scale(self, id: str) -> Scale | None:
        """The scale that turns a client's stored values into inputs; None: they are used unchanged."""
        number = self.clients[id].scale
        return None if number is None else self.scales[number]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for id, one in self.clients.items():
            known = one.net in range(len(self.nets)) and one.scale in (None, *range(len(self.scales)))
            if Path(one.file).name != one.file or not known:
                raise ValueError(f"client {id!r}: a file, net or scale that is not there")
        return self


class StoredModels(Mapping[str, Params]):
    """The models in the folder of a run, by client id: each file is checked and read on access.

    Raises RunError if no models were stored, and on access for files that were changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: tuple[str, Params] = ("", {})
        if not (folder / INDEX).exists():
            raise RunError(
                f"{folder}: no models were kept with this run: run.models was 'none' (run it again with run.models = "
                "'last'), or its clients were elsewhere, and each has its own: fedkin export NAME-state there"
            )

    @cached_property
    def index(self) -> Index:
        """The checked content of index.json."""
        self._check(INDEX)
        path = self.folder / INDEX
        try:
            index = reading.record_in(path, Index)
        except DataError as error:
            raise RunError(f"{path}: {error_text(error)}; {reading.MEND}") from None
        if index.why:
            raise RunError(f"{self.folder}: no models were kept: {index.why}; run it again with a larger one")
        return index

    @cached_property
    def _stamps(self) -> Mapping[str, Stamp]:
        return seal_of(self.folder).files

    def _check(self, name: str) -> None:
        if wrong := faults(self.folder, self._stamps, [name]):
            raise RunError(f"{wrong[0]}; {reading.MEND}")

    def frozen(self, number: int) -> Params:
        """The frozen tensors of the net with this number."""
        name = self.index.nets[number].frozen
        return {} if name is None else self._tensors(name)

    def __getitem__(self, id: str) -> Params:
        client = self.index.clients[id]
        shapes, tensors = self.index.nets[client.net].shapes, self._tensors(client.file)
        if {name: list(tensor.shape) for name, tensor in tensors.items()} != shapes:
            raise RunError(f"{self.folder / PLACE / client.file}: not the tensors that {INDEX} names; {reading.MEND}")
        return {name: tensors[name] for name in shapes}

    def __iter__(self) -> Iterator[str]:
        return iter(self.index.clients)

    def __len__(self) -> int:
        return len(self.index.clients)

    def _tensors(self, file: str) -> Params:
        # Callers mostly read clients that share a model one after another.
        if self._last[0] != file:
            name = f"{PLACE}/{file}"
            self._check(name)
            try:
                self._last = file, load_file(self.folder / name)
            except (OSError, ValueError, SafetensorError) as error:
                where = self.folder / name
                raise RunError(f"{where}: cannot be read as a model ({error_text(error)}); {reading.MEND}") from None
        return self._last[1]


@dataclass(frozen=True, eq=False)
class ModelContext:
    """What models need to be used again. nets, settings: by client id; settings are None for the user's own modules.

    csv: as in `Index`.
    """

    federation: Federation
    nets: Mapping[str, Net]
    settings: Mapping[str, Model | None]
    method: Mapping[str, Any]
    csv: CsvFormat | None = None

    @classmethod
    def of(
        cls, setup: Setup, federation: Federation, model: Model | None, names: Iterable[str] = ()
    ) -> ModelContext:  # fmt: skip
        """The context of these clients' models in a run.

        model: the settings from which the nets were made. names: all clients, if the federation has only some of them.
        """
        deal = getattr(model, "deal_bodies", None)
        dealt = {} if deal is None else deal(sorted(names or federation))
        settings = {id: dealt.get(id, model) for id in federation}
        method = {"name": setup.method.name, **setup.method.model_dump(mode="json")}
        return cls(federation, {id: setup.net_of(id) for id in federation}, settings, method)


def keep_models(folder: Path, models: Mapping[str, Params], context: ModelContext, limit_mb: float) -> dict[str, Stamp]:
    """Write the models of a run into its folder; returns the stamps of the files.

    Clients with equal models share a file. If all different models together are larger than `limit_mb`, only the
    index is written, with the reason.
    """
    models_folder = folder / PLACE
    groups = _groups(models)
    why = _too_large([models[ids[0]] for ids in groups], limit_mb)
    if why:
        say("%s", f"{folder}: the models are not kept: {why}")
        groups = []
    nets = list(dict.fromkeys(context.nets[id] for id in sorted(models)))
    frozen = {net: f"frozen-{number}.safetensors" for number, net in enumerate(nets, 1) if net.frozen}
    file = {id: f"model-{number}.safetensors" for number, ids in enumerate(groups, 1) for id in ids}
    index = json_bytes(_index(context, nets, frozen, file, why))
    contents = {file[ids[0]]: models[ids[0]] for ids in groups}
    if groups:
        contents |= {name: net.frozen for net, name in frozen.items()}
    kept = {Path(INDEX).name, *file.values(), *frozen.values()}
    for path in models_folder.glob("*"):
        if path.name not in kept:
            path.unlink()
    stamps = {f"{PLACE}/{name}": _write_tensors(models_folder / name, tensors) for name, tensors in contents.items()}
    stamps[INDEX] = write_bytes(folder / INDEX, index, sync=False)
    fsync_folder(models_folder)
    return stamps


def _too_large(models: Iterable[Params], limit_mb: float) -> str:
    """Why these models are not kept; empty if they are within the limit."""
    size = sum(tensor.numel() * tensor.element_size() for params in models for tensor in params.values())
    if size <= limit_mb * 2**20:
        return ""
    return f"its models take {size / 2**20:,.0f} MB, and run.models_limit_mb is {limit_mb:g}"


def _write_tensors(path: Path, tensors: Params) -> Stamp:
    # safetensors refuses tensors that share memory, such as tied weights.
    apart = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    return write_bytes(path, bytes(save(apart)), sync=False)


def _groups(models: Mapping[str, Params]) -> list[list[str]]:
    """Group sorted client ids by equal models."""
    # Equal models are mostly the same object, so each object is hashed once.
    digests: dict[tuple[int, ...], str] = {}
    groups: dict[str, list[str]] = {}
    for id in sorted(models):
        objects = tuple(builtins.id(tensor) for tensor in models[id].values())
        if objects not in digests:
            digests[objects] = digest_of(models[id])
        groups.setdefault(digests[objects], []).append(id)
    return list(groups.values())


def digest_of(params: Params) -> str:
    """A hash of parameters, 32 hexadecimal digits: equal for equal names, types, shapes and bits."""
    digest = blake2b(digest_size=16)
    for name, tensor in params.items():
        values = tensor.detach().cpu().contiguous()
        digest.update(json.dumps([name, str(values.dtype), list(values.shape)]).encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes() if values.numel() else b"")
    return digest.hexdigest()


def _index(
    context: ModelContext, nets: Sequence[Net], frozen: Mapping[Net, str], file: Mapping[str, str], why: str
) -> dict[str, Any]:
    """Return the index: the nets, and each client's file, net and scale."""
    federation = context.federation
    scale = {id: federation[id].phases[-1].train.scale for id in sorted(file)}
    scales = list(dict.fromkeys(each for each in scale.values() if each is not None))
    # The settings of each net with a stored model.
    settings = {context.nets[id]: context.settings[id] for id in sorted(file, reverse=True)}
    facts = [_net_facts(net, settings.get(net), frozen.get(net)) for net in nets]
    clients = {
        id: _Client(file=file[id], net=nets.index(context.nets[id]), scale=None if each is None else scales.index(each))
        for id, each in scale.items()
    }
    index = Index(
        why=why, dtype="float64" if nets and nets[0].dtype == torch.float64 else "float32",
        precision=nets[0].precision if nets else "float32", method=dict(context.method), task=federation.task,
        nets=facts, scales=scales, clients=clients, encoding=federation.encoding, target=federation.target,
        csv=context.csv,
    )  # fmt: skip
    return index.model_dump(mode="json")


def _net_facts(net: Net, model: Model | None, frozen: str | None) -> NetFacts:
    shapes = {name: list(tensor.shape) for name, tensor in net.initial.items()}
    table = None if model is None else model.model_dump(mode="json")
    return NetFacts(model=table, modules=str(net.module), shapes=shapes, frozen=frozen)
