"""FLT's encoder G: its kind, how the server pretrains it, and how a client sees its samples through it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from fedkin.errors import ConfigError
from fedkin.federation import Federation, Samples
from fedkin.flow import Params
from fedkin.learning.encoders import (
    Kind,
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

if TYPE_CHECKING:
    from fedkin.data.dataset import Dataset

__all__ = ["EncoderSettings", "view_of"]

Shape = tuple[int, ...]


class EncoderSettings(Settings):
    """The encoder: its kind, the data on which the server trains it, and how clients fine-tune it.

    kind: "grey" and "colour" convolutional autoencoders, "mlp", "linear", or "none" (the inputs themselves); "auto"
    takes the one that suits the inputs. dims: length of a code (None: 128, or the inputs' size if that is less).
    pretrain: name of a data source that the server owns (None: the encoder keeps its random initial values).
    classes: only these classes of it. limit: at most this number of its training samples. adapt: repeat grey channels,
    average colours, pad or cut sides if its images differ in shape from the clients'.
    epochs, batch_size, lr: of pretraining with Adam; batch_size and lr also of fine-tuning.
    fine_tune: J, epochs of every client on its own samples before it encodes them.
    keep: clients keep their encoder; it is sent only once, and fine-tuning continues from it.
    seed: of initial values, samples and batches; not the run's, so that one encoder serves runs of all seeds.
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
        """The autoencoder for inputs of this shape; None for kind "none". Raises ConfigError for others."""
        if self.kind == "none":
            return None
        kind: Kind = kind_for(shape) if self.kind == "auto" else self.kind
        return encoder_net(kind, shape, self.length(shape), self.seed)

    def length(self, shape: Shape) -> int:
        """The length of a code of inputs of this shape."""
        if self.kind == "none":
            return math.prod(shape)
        return min(128, math.prod(shape)) if self.dims is None else self.dims

    def measures(self, shape: Shape) -> bool:
        """Whether clients are asked for the moments of their inputs: for tables and vectors without pretraining."""
        return len(shape) != 3 and self.pretrain is None

    def training(self, epochs: int) -> Training:
        """How an autoencoder is trained."""
        return Training(optimiser="adam", lr=self.lr, batch_size=self.batch_size, local_epochs=epochs)

    def trained(self, shape: Shape, public: Callable[[str], Dataset]) -> tuple[Params, dict[str, Any]]:
        """At the server: (initial parameters, moments of the inputs it was pretrained on).

        The moments are empty for images, and without pretraining.
        """
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
        """The parameters that clients need: the decoder's only to fine-tune."""
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
