"""FLT's client side: which encoder, how it is pretrained and fine-tuned, and the k centres that a client sends."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Federation, Samples
from fedkin.federation.inputs import parts
from fedkin.flow import ClientFlow, Fit, Infer, Message, Params
from fedkin.learning.encoders import (
    Encode,
    Kind,
    Reconstruction,
    View,
    adapted,
    chosen,
    encoder_net,
    kind_for,
    moments,
    pixels,
    pretrained,
    standardised,
)  # fmt: skip
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.settings import Settings
from fedkin.views import ClientView

if TYPE_CHECKING:
    from fedkin.data.dataset import Dataset

__all__ = ["EncoderSettings", "centres_of", "codes", "content", "view_of"]

Shape = tuple[int, ...]


class EncoderSettings(Settings):
    """The encoder: what it is, on what the server trains it, and how clients fine-tune it.

    kind: "grey" and "colour" convolutional autoencoders, "mlp", "linear", or "none" (the inputs themselves); "auto"
    takes the one that suits the inputs. dims: length of a code (None: 128, or the inputs' size if that is less).
    pretrain: a data source that the server owns, by name (None: the encoder keeps its random initial values);
    classes: only these classes of it; limit: at most so many of its training samples; adapt: repeat grey channels,
    average colours, pad or cut sides where its images differ in shape from the clients'.
    epochs, batch_size, lr: of pretraining with Adam; batch_size and lr also of fine-tuning.
    fine_tune: J, epochs of every client on its own samples before it encodes them.
    keep: clients keep their encoder, so that it need not be sent again, and go on from where they were.
    seed: of initial values, samples and batches; the same encoder serves runs of all seeds.
    """

    kind: Literal["auto", "grey", "colour", "mlp", "linear", "none"] = "auto"
    dims: int | None = Field(None, ge=1)
    pretrain: str | None = None
    classes: tuple[int, ...] | None = None
    limit: int | None = Field(None, ge=1)
    adapt: bool = False
    epochs: int = Field(5, ge=1)
    batch_size: int = Field(64, ge=1)
    lr: float = Field(1e-3, gt=0)
    fine_tune: int = Field(0, ge=0)
    keep: bool = False
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> EncoderSettings:
        for name, wanted in (("pretrain", self.pretrain is not None), ("fine_tune", self.fine_tune > 0)):
            if self.kind == "none" and wanted:
                raise ValueError(f"{name}: kind 'none' has nothing to train; choose another kind")
        if self.pretrain is None and (self.classes is not None or self.limit is not None):
            raise ValueError("classes and limit say what of a data set to pretrain on: name it in pretrain")
        return self

    def net(self, shape: Shape) -> Net | None:
        """The autoencoder for inputs of this shape; None for kind "none". Raises ConfigError when it cannot be."""
        if self.kind == "none":
            return None
        kind: Kind = kind_for(shape) if self.kind == "auto" else self.kind
        return encoder_net(kind, shape, min(128, math.prod(shape)) if self.dims is None else self.dims, self.seed)

    def measures(self, shape: Shape) -> bool:
        """Whether clients are asked for the moments of their inputs: tables and vectors, unless pretrained."""
        return len(shape) != 3 and self.pretrain is None

    def training(self, epochs: int) -> Training:
        """How an autoencoder is trained."""
        return Training(optimiser="adam", lr=self.lr, batch_size=self.batch_size, local_epochs=epochs)

    def trained(self, shape: Shape, public: Callable[[str], Dataset]) -> tuple[Params, dict[str, Any]]:
        """At the server: (what the encoder starts from, moments of the inputs it was trained on, {} for images)."""
        net = self.net(shape)
        if net is None or self.pretrain is None:
            return ({} if net is None else net.initial), {}
        dataset = public(self.pretrain)
        samples = chosen(dataset, self.classes, self.limit, self.seed)
        samples = adapted(samples, shape, dataset.name, self.adapt)
        count, total, squares = moments(samples)
        sums = {} if len(shape) == 3 else {"count": count, "total": total, "squares": squares}
        view = view_of(samples, shape, sums)
        title = f"pretraining the encoder on {dataset.name}"
        return pretrained(net, samples, self.training(self.epochs), self.seed, view, title), sums

    def sent(self, params: Params) -> dict[str, Tensor]:
        """What of the autoencoder clients need: the decoder only to fine-tune."""
        return {name: tensor for name, tensor in params.items() if self.fine_tune or name.startswith("body.")}

    def check(self, federation: Federation) -> None:
        """Raise ConfigError for inputs that the encoder cannot take."""
        shape = federation.task.numbers(
            "method.encoder", "choose a method that groups clients without an encoder: method.name = 'ifca' or 'cfl'"
        )
        net = self.net(shape)
        if net is None or not any(isinstance(layer, nn.Sigmoid) for layer in net.module.head.modules()):
            return
        known: set[tuple[int, int]] = set()
        held = ((id, now.train) for id, client in federation.items() for now in client.phases)
        for id, samples in held:
            x, scale = samples.x, samples.scale
            assert isinstance(x, Tensor)
            if (x.data_ptr(), x.numel()) in known:
                continue
            known.add((x.data_ptr(), x.numel()))
            divide = 1.0 if scale is None else scale.divide
            low, high = float(x.min()) / divide, float(x.max()) / divide
            if low < 0 or high > 1:
                raise ConfigError(
                    f"method.encoder.kind: an autoencoder of images reads brightness from 0 to 1, those of client "
                    f"{id!r} run from {low:g} to {high:g}: give its samples a scale that divides by the brightest "
                    "value, or take kind 'linear' or 'none'"
                )


def view_of(samples: Samples, shape: Shape, sums: Mapping[str, Any]) -> View:
    """What the encoder sees of these samples: brightness of images, else standardised features."""
    return pixels(samples.scale) if len(shape) == 3 else standardised(**sums)


def codes(client: ClientView, message: Message, settings: EncoderSettings) -> ClientFlow[Tensor]:
    """At a client: the codes [n, dims] of its samples, after J epochs of fine-tuning on them."""
    shape = client.task.numbers("method.encoder")
    view = view_of(client.train, shape, message.get("moments", {}))
    net = settings.net(shape)
    if net is None:
        return view(client.train.inputs(slice(None))).flatten(1)
    own = message.get("encoder") or client.state["encoder"]
    params: Params = {**net.initial, **own}
    if settings.fine_tune:
        training = settings.training(settings.fine_tune)
        fitted = yield from Fit(params, Reconstruction(view), training=training, net=net)
        params = fitted.params
    if settings.keep:
        client.state["encoder"] = settings.sent(params)
    return (yield from Infer(params, Encode(view), net=net))


def centres_of(points: Tensor, k: int, seed: int) -> Tensor:
    """k-means centres [k, d] of points [n, d] (k-means++, the best of 5 starts), in the order of their coordinates.

    With at most k distinct points, these are the centres.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    x = points.double().numpy()
    distinct = np.unique(x, axis=0)
    if len(distinct) > k:
        # Sums over several threads differ in the last bits from run to run.
        with _threads().limit(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # points that differ, but by rounding only
            distinct = KMeans(k, n_init=5, random_state=seed).fit(x).cluster_centers_
        distinct = distinct[np.lexsort(distinct.T[::-1])]
    return torch.from_numpy(distinct).to(points.dtype)


@cache
def _threads() -> Any:
    """Looking for the libraries that have threads takes longer than a small k-means: once is enough."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def content(samples: Samples) -> str:
    """A hash of what the samples hold, by which a client sees that its data have changed."""
    rows = slice(None) if samples.rows is None else samples.rows
    digest = blake2b(repr(samples.scale).encode(), digest_size=16)
    for values in (*parts(samples.x).values(), samples.y):
        digest.update(values[rows].contiguous().numpy().tobytes())
    return digest.hexdigest()
