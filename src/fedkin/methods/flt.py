"""FLT: clients send k centres of their encoded data once; the server finds related clients and averages their models.

H. Jamali-Rad, M. Abdizadeh, A. Singh. Federated learning with taskonomy for non-IID data. IEEE Transactions on Neural
Networks and Learning Systems 34(11), 2022. Line numbers are the paper's. `docs/methods/flt.md` says where paper,
released code and this file differ.

    Algorithm 2, FCR (form client relatedness)
      client   3-7     fine-tune the encoder G for J epochs; E_m = G(D_m)
               8-10    M_m = kMEANS(E_m), its k centres
      server   13, 14  Z = UMAP(M)
               15, 16  A_ij = min |u_ir - u_js| over the centres of i and j
               17      i and j are neighbours where A_ij < gamma
               18, 19  C = hierarchical clusters of the thresholded A

The rounds, Algorithm 3, are in `methods/blocks/taskonomy.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from scipy.spatial.distance import pdist, squareform
from torch import Tensor, nn

from fedkin import graph
from fedkin.errors import ConfigError, imported
from fedkin.federation import AnyRoster, Samples
from fedkin.federation.samples import hash_of
from fedkin.flow import Ask, ClientFlow, Fit, Infer, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, Number, Shaped, Sums, Upto
from fedkin.learning import encoders
from fedkin.learning.encoders import moments
from fedkin.learning.net import Net
from fedkin.learning.training import Training
from fedkin.methods.blocks.taskonomy import (
    Gamma,
    GraphSettings,
    Related,
    Sets,
    Taskonomy,
    at_least,
    linked_below,
    seed_of,
)
from fedkin.methods.blocks.vectors import Array, Labels, centres_of
from fedkin.settings import Settings
from fedkin.views import ClientView, ServerView

if TYPE_CHECKING:
    from fedkin.data.dataset import Dataset

Shape = tuple[int, ...]


# -- settings ---------------------------------------------------------------------------------------------------------


class EncoderSettings(Settings):
    """The encoder: its kind, the data on which the server trains it, and how clients fine-tune it.

    kind: "grey" and "colour" convolutional autoencoders, "mlp", "linear", or "none" (the inputs themselves); "auto" is
    "none" if no encoder is pretrained, else the kind that suits the inputs.
    dims: length of a code (None: 128, or the inputs' size if that is less).
    pretrain: name of a data source that the server owns (None: the encoder keeps its random initial values).
    classes: use only these classes of it. limit: use at most this number of its training samples.
    epochs, batch_size, lr: of pretraining with Adam; batch_size and lr also of fine-tuning.
    fine_tune: J, epochs of every client on its own samples before it encodes them.
    seed: of initial values, samples and batches; not the run's seed, so that runs of all seeds have one encoder.
    """

    kind: Literal["auto", "grey", "colour", "mlp", "linear", "none"] = "auto"
    dims: int | None = Field(None, ge=1)
    pretrain: str | None = None
    classes: tuple[int, ...] | None = None
    limit: int | None = Field(None, ge=1)
    epochs: int = Field(5, ge=1)
    batch_size: int = Field(64, ge=1)
    lr: float = Field(1e-3, gt=0)
    fine_tune: int = Field(5, ge=0)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> EncoderSettings:
        if self.kind == "none" and self.pretrain is not None:
            raise ValueError("pretrain: kind 'none' has nothing to train; choose another kind")
        if self.pretrain is None and (self.classes is not None or self.limit is not None):
            raise ValueError("classes and limit say what of a data set to pretrain on: name it in pretrain")
        return self

    @property
    def raw(self) -> bool:
        """Whether codes are the inputs themselves."""
        return self.kind == "none" or (self.kind == "auto" and self.pretrain is None)

    def net(self, shape: Shape) -> Net | None:
        """The autoencoder for inputs of this shape; None for raw inputs. Raises ConfigError for other inputs."""
        if self.raw:
            return None
        kind: encoders.Kind = encoders.kind_for(shape) if self.kind == "auto" else self.kind  # type: ignore[assignment]
        return encoders.encoder_net(kind, shape, self.length(shape), self.seed)

    def length(self, shape: Shape) -> int:
        """The length of the code for inputs of this shape."""
        if self.raw:
            return math.prod(shape)
        return min(128, math.prod(shape)) if self.dims is None else self.dims

    def training(self, epochs: int) -> Training:
        """How an autoencoder is trained."""
        return Training(optimiser="adam", lr=self.lr, batch_size=self.batch_size, local_epochs=epochs)

    def pretrained(self, shape: Shape, public: Callable[[str], Dataset]) -> tuple[Params, dict[str, Any]]:
        """At the server: (initial parameters, moments of the inputs it was pretrained on).

        The moments are empty for images, and without pretraining.
        """
        net = self.net(shape)
        if net is None or self.pretrain is None:
            return ({} if net is None else net.initial), {}
        dataset = public(self.pretrain)
        samples = encoders.chosen(dataset, self.classes, self.limit, self.seed)
        if dataset.task.shape != shape:
            shapes = f"the inputs of {dataset.name} have shape {dataset.task.shape}, the clients' have {shape}"
            raise ConfigError(f"method.encoder.pretrain: {shapes}; choose a data set of that shape")
        count, total, squares = moments(samples)
        sums = {} if len(shape) == 3 else {"count": count, "total": total, "squares": squares}
        view = view_of(samples, shape, sums)
        title = f"pretraining the encoder on {dataset.name}"
        return encoders.pretrained(net, samples, self.training(self.epochs), self.seed, view, title), sums

    def check(self, federation: AnyRoster) -> None:
        """Raise ConfigError for inputs that the encoder cannot take."""
        how = "choose a method that groups clients without an encoder: method.name = 'ifca' or 'cfl'"
        shape = federation.task.numbers("method.encoder", how)
        net = self.net(shape)
        if net is None or not any(isinstance(layer, nn.Sigmoid) for layer in net.module.head.modules()):
            return
        for id, client in federation.items():
            for now in client.phases:
                _check_brightness(id, now.train)


def _check_brightness(id: str, samples: Samples) -> None:
    if not len(samples):
        return
    divide = 1.0 if samples.scale is None else samples.scale.divide
    low, high = (float(value) / divide for value in samples.own().x.aminmax())  # type: ignore[union-attr]
    if low < 0 or high > 1:
        raise ConfigError(
            f"method.encoder.kind: an autoencoder of images reads brightness from 0 to 1, those of client {id!r} run "
            f"from {low:g} to {high:g}: give its samples a scale that divides by the brightest value, or take kind "
            "'linear' or 'none'"
        )


class RelatednessSettings(GraphSettings):
    """How centres become a graph of clients and groups, Algorithm 2, lines 13 to 19.

    embedding: "umap" (the paper's), "pca" or "none" (distances between the centres themselves), to `dims` dimensions,
    fitted on the centres of all clients. neighbours, min_dist: UMAP's.
    distance: between two clients' sets of centres, "min" (the paper's) or "matching" (the released code's).
    gamma: as in GraphSettings; the paper's 1 is a distance in UMAP's embedding. adjacency, control: as there.
    groups: the number of groups, or the rule that finds it in the hierarchy, "gap", "ratio" or "silhouette", at most
    `most` (None: half the number of clients, and at most 30). linkage: of the hierarchy.
    cluster: the hierarchy is made from distances between the "rows" of the adjacency (the paper's), or from the
    "distances" themselves.
    """

    embedding: Literal["umap", "pca", "none"] = "umap"
    dims: int = Field(2, ge=1)
    neighbours: int = Field(15, ge=2)
    min_dist: float = Field(0.1, ge=0, le=1)
    distance: Literal["min", "matching"] = "min"
    gamma: Gamma = 1.0
    groups: Annotated[int | Literal["gap", "ratio", "silhouette"], at_least(1)] = "gap"
    most: int | None = Field(None, ge=2)
    linkage: Literal["ward", "average", "complete", "single"] = "ward"
    cluster: Literal["rows", "distances"] = "rows"


# -- FLT: Algorithm 2 -------------------------------------------------------------------------------------------------

# Sums over the clients' inputs, per feature; k centres of codes.
_SUMS = Sums(lambda at: at.task.numbers("method.encoder")[0], dtype=torch.float64)
_CENTRES = Shaped(
    Upto(lambda at: at.method.k),
    lambda at: at.method.encoder.length(at.task.numbers("method.encoder")),
    dtype=torch.float32,
)
_DISTANCES = {"matching": graph.matching, "min": graph.minimum}


class Flt(Taskonomy):
    """Clients send centres of encoded samples once; the server makes a graph and groups, and averages along these.

    k: number of centres that a client sends, at most its number of distinct samples. encoder: makes the codes. graph:
    how centres become graph and groups.

    average: inside "groups" (Case II) or over "neighbours" (Case I). stale: clients that did not take part enter the
    averages with their last model. aggregate: as in FedAvg. regroup_changed: after this number of flags of changed
    data, these clients send centres again, and groups are made again (None: never). regroup_every: after this number of
    rounds all clients do so (None: never).
    """

    name = "flt"
    title = "FLT"
    paper = "Jamali-Rad et al., TNNLS 2022"
    travels = "once: an encoder down, k centres up; then the whole model of the client's group"

    k: int = Field(5, ge=1)
    encoder: EncoderSettings = EncoderSettings()
    graph: RelatednessSettings = RelatednessSettings()

    def check(self, federation: AnyRoster) -> None:
        super().check(federation)
        groups, clients = self.graph.groups, len(federation.seen)
        if isinstance(groups, int) and groups > clients:
            raise ConfigError(f"method.graph.groups: {groups} groups, but the federation has {clients} clients")
        if self.graph.embedding == "umap":
            imported("umap", "method.graph.embedding = 'umap' (or 'none', with method.graph.gamma = 'groups')", "umap")
        self.encoder.check(federation)

    # -- at a client, lines 2 to 11 ---------------------------------------------------------------------------

    @phase(count=Number(low=1), total=_SUMS, squares=_SUMS)
    def measure(self, client: ClientView, message: Message) -> Message:
        """Only for tables, not in the paper: count, sum and sum of squares of the inputs, to standardise them."""
        count, total, squares = moments(client.train)
        return Message(count=count, total=total, squares=squares)

    @phase(centres=_CENTRES, n=COUNT.when(lambda at: at.method.stale))
    def sign(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Lines 2 to 11: the client's signature."""
        codes = yield from self.codes(client, message)  # 3 to 7
        centres = centres_of(codes, self.k, int(client.rng("k-means").integers(2**31)))  # 8, 9: M_m = kMEANS(E_m)
        client.state["signed"] = hash_of(client.train).hex()
        return Message(centres=centres, n=client.size) if self.stale else Message(centres=centres)  # 10

    def codes(self, client: ClientView, message: Message) -> ClientFlow[Tensor]:
        """Lines 3 to 7: J epochs of fine-tuning on the client's samples, then their codes E_m = G(D_m), [n, dims]."""
        shape = client.task.numbers("method.encoder")
        view = view_of(client.train, shape, message.get("moments", {}))
        net = self.encoder.net(shape)
        if net is None:
            return view(client.train.inputs(slice(None))).flatten(1)
        params: Params = {**net.initial, **message["encoder"]}
        if self.encoder.fine_tune:
            training = self.encoder.training(self.encoder.fine_tune)
            fitted = yield from Fit(params, encoders.Reconstruction(view), training=training, net=net)
            params = fitted.params
        return (yield from Infer(params, encoders.Encode(view), net=net))

    # -- at the server ----------------------------------------------------------------------------------------

    def signatures(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[dict[str, Message]]:
        if not ids or not (yield from self.prepare_encoder(server, ids)):
            return {}
        fields = {"encoder": server.state["encoder"], "moments": server.state["moments"]}
        # Empty fields are not sent.
        message = Message(**{name: value for name, value in fields.items() if value})
        replies = yield from Ask("sign", dict.fromkeys(ids, message))
        n = {id: {"n": reply["n"]} if self.stale else {} for id, reply in replies.items()}
        return {id: Message(signature=reply["centres"], **n[id]) for id, reply in replies.items()}

    def prepare_encoder(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[bool]:
        """Make the encoder once; return False if the moments that it needs did not arrive.

        The server's state then also has encoder: its parameters that clients need; moments: count, total and squares
        of the inputs that it was trained on, or of the clients' inputs; empty for images.
        """
        state, shape = server.state, server.task.numbers("method.encoder")
        if "encoder" in state:
            return True
        sums: dict[str, Any] = {}
        if len(shape) != 3 and self.encoder.pretrain is None:
            sums = yield from self.moments(ids)
            if not sums:
                return False
        params, pretrained_on = self.encoder.pretrained(shape, server.public)
        # Only fine-tuning needs the decoder.
        sent = {name: t for name, t in params.items() if self.encoder.fine_tune or name.startswith("body.")}
        state["encoder"], state["moments"] = sent, pretrained_on or sums
        return True

    def moments(self, ids: Sequence[str]) -> ServerFlow[dict[str, Any]]:
        """Ask these clients for the moments of their inputs; return the sums, empty if none arrived."""
        replies = yield from Ask("measure", {id: Message() for id in ids})
        in_order = [reply for _, reply in sorted(replies.items())]
        return {name: sum(reply[name] for reply in in_order) for name in ("count", "total", "squares") if in_order}

    def related(self, server: ServerView, ids: Sequence[str], sets: Sets) -> Related:
        return relate(sets, self.graph, seed_of(server))

    def placed(self, fitted: Sets, new: Sets, seed: int) -> tuple[Sets, Sets]:
        return embedded(fitted, self.graph, seed), embedded(fitted, self.graph, seed, new)

    def distances(self, sets: Sets, others: Sets) -> Array:
        return np.asarray(_DISTANCES[self.graph.distance](sets, others))


def view_of(samples: Samples, shape: Shape, sums: Mapping[str, Any]) -> encoders.View:
    """How the encoder reads these samples: brightness of images, else standardised features."""
    return encoders.pixels(samples.scale) if len(shape) == 3 else encoders.standardised(**sums)


def relate(sets: Sets, settings: RelatednessSettings, seed: int) -> Related:
    """Lines 13 to 19: from n clients' centres [k, d] to graph and groups."""
    places = embedded(sets, settings, seed)  # 13, 14: Z = UMAP(M)
    between = np.asarray(_DISTANCES[settings.distance](places))  # 15, 16: A_ij = min |u_ir - u_js|
    needed = settings.cluster == "distances" or settings.gamma == "groups"
    groups = clusters(between, settings) if needed else np.zeros(len(sets), dtype=np.int64)
    linked, gamma = linked_below(between, groups, settings.gamma, settings.adjacency)  # 17: the thresholded A
    if settings.cluster == "rows":
        # 18, 19: C = HC(thresholded A), by distances between its rows with self-loops, as the released code has it
        groups = clusters(np.asarray(squareform(pdist(linked + np.eye(len(linked))))), settings)
    return Related(linked, groups, gamma, between)


def embedded(fitted: Sets, settings: RelatednessSettings, seed: int, new: Sets | None = None) -> Sets:
    """Lines 13 and 14: the sets of centres in an embedding that is fitted on `fitted`.

    new: other sets to place in this embedding; None: place `fitted`.
    """
    sets = fitted if new is None else new
    if settings.embedding == "none" or not sets:
        return list(sets)
    points, new_points = np.concatenate(fitted), None if new is None else np.concatenate(new)
    if settings.embedding == "pca":
        placed = graph.pca(points, new_points, dims=settings.dims)
    else:
        placed = graph.umap(
            points, new_points, dims=settings.dims, neighbours=settings.neighbours, min_dist=settings.min_dist,
            seed=seed,
        )  # fmt: skip
    return np.split(placed, np.cumsum([len(centres) for centres in sets])[:-1])


def clusters(between: Array, settings: RelatednessSettings) -> Labels:
    """Lines 18 and 19: hierarchical clustering of these distances; the number of groups is given or found."""
    n = len(between)
    if isinstance(settings.groups, int):
        return graph.hierarchical(between, min(settings.groups, n), linkage=settings.linkage)
    most = max(min(n // 2, 30), 2) if settings.most is None else settings.most
    return graph.hierarchical(between, linkage=settings.linkage, choose=settings.groups, most=most)
