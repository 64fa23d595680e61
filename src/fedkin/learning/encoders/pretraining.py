"""Pretraining an autoencoder on a data set that the server owns, with a cache keyed by content."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedkin import codec
from fedkin.codec import Params
from fedkin.errors import ConfigError, MethodError, RunError
from fedkin.federation import Samples, Scale
from fedkin.keys import rng
from fedkin.learning.encoders.inputs import Reconstruction, View, pixels
from fedkin.learning.net import Net
from fedkin.learning.sgd import fit
from fedkin.learning.training import Training

if TYPE_CHECKING:
    from fedkin.data.dataset import Dataset

__all__ = ["adapted", "cache_folder", "chosen", "moments", "pretrained"]

_FORMAT = 1


def cache_folder() -> Path:
    """Where trained encoders are kept: `encoders` below FEDKIN_CACHE, or below ~/.cache/fedkin."""
    named = os.environ.get("FEDKIN_CACHE")
    return (Path(named).expanduser() if named else Path.home() / ".cache" / "fedkin") / "encoders"


def chosen(dataset: Dataset, classes: Sequence[int] | None, limit: int | None, seed: int) -> Samples:
    """Training samples of these classes (None: all), at most `limit` of them, drawn with a key of `seed`.

    Raises ConfigError for a class that the data set does not have.
    """
    labels = dataset.train.y.numpy()
    rows = np.arange(len(labels))
    if classes is not None:
        missing = sorted(set(classes) - set(np.unique(labels).tolist()))
        if missing:
            raise ConfigError(f"method.encoder.classes: {dataset.name} has no training samples of classes {missing}")
        rows = rows[np.isin(labels, list(classes))]
    if limit is not None and limit < len(rows):
        rows = np.sort(rng(seed, "encoder", "samples").permutation(rows)[:limit])
    return dataset.samples("train", rows)


def adapted(samples: Samples, shape: tuple[int, ...], name: str, adapt: bool) -> Samples:
    """Samples whose inputs have this shape; raises ConfigError when they have another and `adapt` is off.

    adapt: images get a grey channel repeated, or colours averaged; sides are padded with black around the middle,
    or the middle is cut out. A new array is made.
    """
    assert isinstance(samples.x, Tensor)  # of a data set
    own = tuple(samples.x.shape[1:])
    if own == shape:
        return samples
    images = len(own) == len(shape) == 3
    if not (adapt and images and (own[0] == shape[0] or 1 in (own[0], shape[0]))):
        hint = "set method.encoder.adapt = true to repeat channels and pad sides, or " if images and not adapt else ""
        raise ConfigError(
            f"method.encoder.pretrain: the inputs of {name} have shape {own}, the clients' have {shape}; {hint}"
            "choose a data set of that shape"
        )
    x = samples.own().x
    assert isinstance(x, Tensor)
    scale = samples.scale or Scale((0.0,), (1.0,), 255.0 if x.dtype == torch.uint8 else 1.0)
    x = _resized(_channels(x, shape[0]), shape[1:]).contiguous()
    # Only brightness matters to an encoder: its view takes the scale back.
    return Samples(x, samples.labels(), None, Scale((0.0,), (1.0,), scale.divide))


def _channels(x: Tensor, wanted: int) -> Tensor:
    if x.shape[1] == wanted:
        return x
    grey = x if x.shape[1] == 1 else x.double().mean(1, keepdim=True)
    grey = (grey if x.is_floating_point() else grey.round()).to(x.dtype)
    return grey.expand(-1, wanted, -1, -1)


def _resized(x: Tensor, wanted: tuple[int, ...]) -> Tensor:
    spare = [wanted[k] - x.shape[2 + k] for k in range(2)]
    before = [s // 2 for s in spare]
    # Negative padding cuts.
    return F.pad(x, (before[1], spare[1] - before[1], before[0], spare[0] - before[0]))


def moments(samples: Samples) -> tuple[float, Tensor, Tensor]:
    """(how many, sum, sum of squares) of the inputs per feature (per entry of a sample's first axis), in float64."""
    x = samples.inputs(slice(None), torch.float64)
    x = x.flatten(2).transpose(1, 2).flatten(0, 1) if x.ndim > 2 else x
    return float(len(x)), x.sum(0), x.square().sum(0)


def pretrained(
    net: Net, samples: Samples, training: Training, seed: int, view: View | None = None, title: str = ""
) -> Params:
    """`net` trained to reconstruct `samples`, from the cache when the very same was trained before.

    view: what the net sees of the inputs; None: their brightness in [0, 1]. The cache is keyed by samples, view,
    architecture, initial values, training settings, seed and torch's version; a file there that cannot be read is
    written anew. Raises RunError, naming the folder, when the cache cannot be written.
    """
    view = pixels(samples.scale) if view is None else view
    path = cache_folder() / f"{_digest(net, samples, training, seed, view)}.safetensors"
    found = _read(path, net)
    if found is not None:
        return found
    steps = training.steps(len(samples))
    with _progress(title or "pretraining the encoder", steps) as advance:
        loss = _Counted(Reconstruction(view), advance)
        draw = rng(seed, "encoder", "pretraining")
        fitted = fit(net, net.scratch(), net.initial, loss, samples, training, {}, {}, draw)
    _write(path, fitted.params)
    return fitted.params


class _Counted:
    """A loss that moves the progress bar at every step."""

    def __init__(self, loss: Reconstruction, advance: Any) -> None:
        self.loss, self.advance = loss, advance

    def __call__(self, *given: Any) -> Tensor:
        self.advance()
        return self.loss(*given)


@contextmanager
def _progress(title: str, steps: int) -> Iterator[Any]:
    """A bar on the terminal's standard error; nothing where there is none."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=steps)
        yield lambda: bar.advance(task)


def _digest(net: Net, samples: Samples, training: Training, seed: int, view: View) -> str:
    digest = blake2b(digest_size=20)
    told = (_FORMAT, torch.__version__, net.fingerprint(), training.model_dump_json(), seed, view, samples.scale)
    digest.update(repr(told).encode())
    x = samples.own().x
    assert isinstance(x, Tensor)
    digest.update(repr((x.dtype, tuple(x.shape))).encode())
    digest.update(x.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path, net: Net) -> Params | None:
    """The parameters in this file, or None when there are none that fit."""
    try:
        params = codec.decode(path.read_bytes())["params"]
    except (OSError, MethodError, KeyError, TypeError):
        return None
    fits = params.keys() == net.initial.keys() and all(params[n].shape == t.shape for n, t in net.initial.items())
    return params if fits else None


def _write(path: Path, params: Params) -> None:
    """Aside, then renamed: who reads at the same time sees the whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            file.write(codec.encode({"params": dict(params)}))
        os.replace(file.name, path)
    except OSError as error:
        raise RunError(
            f"{path.parent}: the trained encoder cannot be kept there ({error}); name another folder in FEDKIN_CACHE"
        ) from None
