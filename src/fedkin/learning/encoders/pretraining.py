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
    """Return the folder of trained encoders: `encoders` below FEDKIN_CACHE, or below ~/.cache/fedkin."""
    named = os.environ.get("FEDKIN_CACHE")
    return (Path(named).expanduser() if named else Path.home() / ".cache" / "fedkin") / "encoders"


def chosen(dataset: Dataset, classes: Sequence[int] | None, limit: int | None, seed: int) -> Samples:
    """Return training samples of these classes (None: all), at most `limit` of them, drawn with a key of `seed`.

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
    """Return samples whose inputs have this shape; raises ConfigError if they have another and `adapt` is off.

    adapt: the grey channel of images is repeated, or their colours are averaged; images are padded with black on all
    sides, or their middle is cut out. The result is a new array.
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
    # An encoder sees brightness only, since its view undoes the scale.
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
    # Negative padding crops.
    return F.pad(x, (before[1], spare[1] - before[1], before[0], spare[0] - before[0]))


def moments(samples: Samples) -> tuple[float, Tensor, Tensor]:
    """Return (count, sum, sum of squares) of the inputs per feature (entry of a sample's first axis), in float64."""
    x = samples.inputs(slice(None), torch.float64)
    x = x.flatten(2).transpose(1, 2).flatten(0, 1) if x.ndim > 2 else x
    return float(len(x)), x.sum(0), x.square().sum(0)


def pretrained(
    net: Net, samples: Samples, training: Training, seed: int, view: View | None = None, title: str = ""
) -> Params:
    """Train `net` to reconstruct `samples`, or read the result of the same training from the cache.

    view: the view of the inputs that the net sees; None: their brightness in [0, 1]. The cache is keyed by samples,
    view, architecture, initial values, training settings, seed and torch's version. A file in the cache that cannot be
    read is replaced. Raises RunError, naming the folder, if the cache cannot be written.
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
    """Show a progress bar on standard error, if that is a terminal."""
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
    """Return the parameters in this file, or None if there are none that fit the net."""
    try:
        params = codec.decode(path.read_bytes())["params"]
    except (OSError, MethodError, KeyError, TypeError):
        return None
    fits = params.keys() == net.initial.keys() and all(params[n].shape == t.shape for n, t in net.initial.items())
    return params if fits else None


def _write(path: Path, params: Params) -> None:
    """Write another file, then rename it, so that a reader at the same time sees the whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            file.write(codec.encode({"params": dict(params)}))
        os.replace(file.name, path)
    except OSError as error:
        raise RunError(
            f"{path.parent}: the trained encoder cannot be kept there ({error}); name another folder in FEDKIN_CACHE"
        ) from None
