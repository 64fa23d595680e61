"""FLT's Algorithm 2, FCR (form client relatedness): from clients' samples to signatures, a graph and groups.

    client   3-7    fine-tune the encoder G; E_m = G(D_m)
             8-10   M_m = kMEANS(E_m), its k centres
    server   13, 14 Z = UMAP(M), if an embedding is asked for
             15, 16 A_ij = distance of the centres of i and j
             17     i and j are neighbours where A_ij < gamma
             18, 19 C = hierarchical clusters of A

The server's steps are pure functions; `method.py` keeps in the state what they find. With more than 5,000 clients,
gamma and groups are those of 5,000 of them, drawn by the run's seed; the others join the group whose drawn members are
nearest on average, and each client is linked with its nearest only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from fedkin import graph
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Samples
from fedkin.federation.inputs import parts
from fedkin.flow import ClientFlow, Fit, Infer, Message, Params
from fedkin.keys import rng
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
from fedkin.methods.blocks.signatures import LEAST, SameStage, find_groups
from fedkin.methods.blocks.stages import ControlStage
from fedkin.settings import Settings
from fedkin.views import ClientView

if TYPE_CHECKING:
    from fedkin.data.dataset import Dataset

__all__ = [
    "Array", "EncoderSettings", "Labels", "Related", "RelatednessSettings", "Sets", "centres_of", "codes", "content",
    "embedded", "joining", "newcomers_of_many", "newcomers_relatedness", "relate", "threshold",
]  # fmt: skip

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Shape = tuple[int, ...]
Sets = Sequence[Any]  # of each client its centres [k, d], or its signature of moments
_DISTANCES = {"matching": graph.matching, "min": graph.minimum}

LARGEST = 5000  # clients up to which all distances are computed, and how many are drawn of more
NEAR = 16  # neighbours of a client where there are more
_CANDIDATES = 12  # times so many are compared by their true distance
_DIRECTIONS = 32  # on which centres are projected to find candidates
_MEMBERS = 10  # of each group with which a client is compared
_ROWS = 2000  # clients that are compared with these at a time


# -- settings ---------------------------------------------------------------------------------------------------------


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


class RelatednessSettings(Settings):
    """From centres to a graph of clients and to groups.

    embedding: "none" (distances between the original centres), "umap" (the paper's) or "pca", to `dims` dimensions,
    fitted on the centres of all clients. neighbours, min_dist: UMAP's.
    distance: between two clients' sets of centres, "matching" (the released code's) or "min" (the paper's text).
    gamma: clients nearer than this are neighbours. "groups" finds it halfway between the mean distance inside the
    groups and that to the nearest other group, "gap" in the widest gap between all distances.
    adjacency: "hard" (1 below gamma) or "soft" (exp(-(distance / gamma)^2)).
    groups: "same[:alpha]", clients that no test of their signatures of moments tells apart (ours, `fedkin.graph.find`);
    or a number of groups; or how it is found from the hierarchy: "ratio", "gap", "silhouette", at most `most` (None:
    half the number of clients, and at most 30). linkage: of the hierarchy.
    cluster: the hierarchy is made from the "distances", or (the paper's) from distances between the adjacency's "rows".
    control: replace the learned graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    embedding: Literal["none", "pca", "umap"] = "none"
    dims: int = Field(2, ge=1)
    neighbours: int = Field(15, ge=2)
    min_dist: float = Field(0.1, ge=0, le=1)
    distance: Literal["matching", "min"] = "matching"
    gamma: float | Literal["groups", "gap"] = "groups"
    adjacency: Literal["hard", "soft"] = "hard"
    groups: int | Literal["ratio", "gap", "silhouette"] | SameStage = "same"
    most: int | None = Field(None, ge=2)
    linkage: Literal["ward", "average", "complete", "single"] = "ward"
    cluster: Literal["distances", "rows"] = "distances"
    control: ControlStage = "none"

    @field_validator("gamma", "groups")
    @classmethod
    def _in_range(cls, value: float | str, info: Any) -> float | str:
        least = 0 if info.field_name == "gamma" else 1
        if not isinstance(value, str) and value < least:
            raise ValueError(f"expected a number of at least {least}")
        return value

    @property
    def from_test(self) -> bool:
        """Whether groups are found by the test."""
        return isinstance(self.groups, str) and self.groups.split(":")[0] == "same"


# -- at a client, lines 2 to 11 ---------------------------------------------------------------------------------------


def view_of(samples: Samples, shape: Shape, sums: Mapping[str, Any]) -> View:
    """What the encoder sees of these samples: brightness of images, else standardised features."""
    return pixels(samples.scale) if len(shape) == 3 else standardised(**sums)


def codes(client: ClientView[Any], message: Message, settings: EncoderSettings) -> ClientFlow[Tensor]:
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

    If there are at most k distinct points, they are the centres.
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
    """The libraries with threads; looking for them takes longer than a small k-means."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def content(samples: Samples) -> str:
    """A hash of the samples' values and labels, by which a client knows that its data have changed."""
    rows = slice(None) if samples.rows is None else samples.rows
    digest = blake2b(repr(samples.scale).encode(), digest_size=16)
    for values in (*parts(samples.x).values(), samples.y):
        digest.update(values[rows].contiguous().numpy().tobytes())
    return digest.hexdigest()


# -- at the server, lines 13 to 19 ------------------------------------------------------------------------------------


class Related(NamedTuple):
    """What Algorithm 2 returns: adjacency [n, n] with a zero diagonal, groups [n], and the threshold that was used.

    adjacency: a csr_array if it is of neighbours only.
    verdicts: of the tests that the groups are from, if any; its ids are places among `drawn`, as text. drawn: rows of
    the clients that made groups and threshold.
    """

    adjacency: Any
    groups: Labels
    gamma: float
    verdicts: graph.Verdicts | None
    drawn: Labels


def relate(signed: Sets, settings: RelatednessSettings, seed: int, planted: Any = None) -> Related:
    """Lines 13 to 19: from n clients' centres [k, d], or signatures of moments, to graph and groups."""
    drawn = _drawn(len(signed), seed)  # all of them, up to 5,000
    some = [signed[row] for row in drawn.tolist()]
    places = embedded(some, settings, seed)  # 13, 14: Z = UMAP(M)
    between = distances(places, settings)  # 15, 16: A_ij = min |u_ir - u_js|
    # 18, 19: C = HC(A), first: gamma may be found from the groups
    verdicts = tested(some, settings, seed) if settings.from_test else None
    groups = clusters(between, settings) if verdicts is None else verdicts.labels
    gamma = threshold(between, groups, settings.gamma)
    linked: Any = adjacency(between, gamma, settings)  # 17: the thresholded A
    np.fill_diagonal(linked, 0.0)
    if settings.cluster == "rows" and verdicts is None:
        groups = clusters(row_distances(linked), settings)  # 18, 19: C = HC(thresholded A)
    if len(some) < len(signed):
        del between
        linked, groups = _spread(signed, some, groups, drawn, gamma, settings, seed)
    linked, groups = controlled(linked, groups, settings.control, seed, planted)
    return Related(linked, groups, gamma, verdicts if settings.control == "none" else None, drawn)


def embedded(fitted: Sets, settings: RelatednessSettings, seed: int, new: Sets | None = None) -> Sets:
    """Lines 13 and 14: the sets of centres in an embedding that is fitted on `fitted`.

    new: other sets to place in this embedding; None: those that it is fitted on.
    """
    wanted = fitted if new is None else new
    if settings.embedding == "none":
        return list(wanted)
    points, asked = np.concatenate(fitted), None if new is None else np.concatenate(new)
    if settings.embedding == "pca":
        placed = graph.pca(points, asked, dims=settings.dims)
    else:
        placed = graph.umap(
            points, asked, dims=settings.dims, neighbours=settings.neighbours, min_dist=settings.min_dist, seed=seed
        )
    return np.split(placed, np.cumsum([len(one) for one in wanted])[:-1])


def distances(sets: Sets, settings: RelatednessSettings, others: Sets | None = None) -> Array:
    """Lines 15 and 16: A, the distance of every two sets [n, n]; with `others`, of each set to each of them."""
    measure: Any = graph.apart if isinstance(sets[0], graph.Signature) else _DISTANCES[settings.distance]
    return np.asarray(measure(sets) if others is None else measure(sets, others))


def threshold(between: Array, labels: Labels, gamma: float | str) -> float:
    """The gamma of line 17: the distance below which two clients are neighbours.

    "groups": halfway between the mean distance inside groups and the mean, over clients, of their group's distance to
    the nearest other group. With one group it is just above the largest distance.
    """
    if not isinstance(gamma, str):
        return float(gamma)
    if gamma == "gap":
        return graph.gap_threshold(between)
    member = np.eye(int(labels.max()) + 1)[labels]
    size = member.sum(0)
    if len(size) == 1:
        return float(np.nextafter(between.max(), np.inf))
    total = member.T @ between @ member
    mean = total / np.outer(size, size)
    np.fill_diagonal(mean, np.inf)
    outside = float((mean.min(1) * size).sum() / size.sum())
    pairs = float((size * (size - 1)).sum())
    inside = float(np.trace(total)) / pairs if pairs else 0.0
    return (inside + outside) / 2


def adjacency(between: Array, gamma: float, settings: RelatednessSettings) -> Array:
    """Line 17: the thresholded matrix, or its soft form exp(-(distance / gamma)^2); the diagonal is kept.

    With gamma 0 nothing is linked, in the soft form as in the hard one.
    """
    if settings.adjacency == "hard":
        return (between < gamma).astype(np.float64)
    if gamma == 0:
        return np.zeros_like(between)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-np.square(between / gamma)))


def tested(signed: Sets, settings: RelatednessSettings, seed: int) -> graph.Verdicts:
    """Ours, in place of lines 18 and 19: clients that no test of their signatures of moments tells apart."""
    every = {str(row): one for row, one in enumerate(signed)}
    return find_groups(every, graph.same_alpha(str(settings.groups)), LEAST, seed)


def clusters(between: Array, settings: RelatednessSettings) -> Labels:
    """Lines 18 and 19: hierarchical clustering of these distances; the number of groups is given or found."""
    n = len(between)
    if isinstance(settings.groups, int):
        return graph.hierarchical(between, min(settings.groups, n), linkage=settings.linkage)
    most = max(min(n // 2, 30), 2) if settings.most is None else settings.most
    choose: Any = settings.groups
    return graph.hierarchical(between, linkage=settings.linkage, choose=choose, most=most)


def row_distances(linked: Array) -> Array:
    """Euclidean distances between rows of the adjacency with self-loops, which the released code clusters."""
    from scipy.spatial.distance import cdist

    rows = linked + np.eye(len(linked))
    between = cdist(rows, rows)
    between = (between + between.T) / 2
    np.fill_diagonal(between, 0.0)
    return np.asarray(between)


def controlled(linked: Any, labels: Labels, control: str, seed: int, planted: Any) -> tuple[Any, Labels]:
    """The control graph in place of the learned one, and its groups; random and shuffled keep the groups' sizes."""
    if control == "none":
        return linked, labels
    changed = graph.control_stage(control)(linked, seed=seed, planted=planted)
    if control == "oracle":
        return changed, graph.canonical(planted)
    if control in ("self", "uniform"):
        return changed, np.arange(len(labels)) if control == "self" else np.zeros(len(labels), dtype=np.int64)
    # The permutation that `graph.shuffled` draws from this seed.
    return changed, labels[np.random.default_rng(seed).permutation(len(labels))]


def newcomers_relatedness(
    new: Sets, founders: Sets, others: Sets, labels: Labels, gamma: float, settings: RelatednessSettings, seed: int
) -> tuple[Array, Labels, Labels]:
    """Of newcomers: (rows of the adjacency, group, nearest founder).

    founders: signatures of the clients from which the groups were made, with their groups `labels`; others: those of
    clients that joined since. A newcomer's group is the one whose founders are nearest on average. A row runs over
    founders, others and newcomers.
    """
    late = embedded(founders, settings, seed, [*others, *new])
    fresh, first = late[len(others) :], len(founders) + len(others)
    between = distances(fresh, settings, [*embedded(founders, settings, seed), *late])
    rows = adjacency(between, gamma, settings)
    rows[np.arange(len(fresh)), first + np.arange(len(fresh))] = 0.0
    to_founders = between[:, : len(founders)]
    return rows, _to_groups(to_founders, labels).argmin(1), to_founders.argmin(1)


# -- more than 5,000 clients ------------------------------------------------------------------------------------------


def newcomers_of_many(
    new: Sets, founders: Sets, others: Sets, labels: Labels, gamma: float, settings: RelatednessSettings, seed: int
) -> tuple[sp.csr_array, Labels, Labels]:
    """As `newcomers_relatedness`, with neighbours only; drawn founders say which group is nearest."""
    drawn = _drawn(len(founders), seed)
    some = [founders[row] for row in drawn.tolist()]
    every, known = _placed([*founders, *others, *new], some, drawn, settings, seed)
    first = len(founders) + len(others)
    fresh = np.arange(first, len(every))
    joins, nearest = joining(every[first:], known, labels[drawn], settings, seed)
    near = neighbours_of(every, settings, seed, fresh)
    # The nearest founder; if there is none among the neighbours, the nearest of some drawn ones.
    closest = drawn[nearest]
    of_founder = near.columns < len(founders)
    rows, place = np.unique(near.rows[of_founder], return_index=True)
    closest[rows - first] = near.columns[of_founder][place]
    linked = _linked(near, len(every), gamma, settings)[first:]
    return linked, labels[closest] if settings.control == "self" else joins, closest


class Near(NamedTuple):
    """rows, columns, distances [edges]: each row's nearest others, sorted by row, the nearest first."""

    rows: Labels
    columns: Labels
    distances: Array


def _drawn(clients: int, seed: int) -> Labels:
    """The rows of the clients that make the groups."""
    return np.sort(rng(seed, "drawn").permutation(clients)[:LARGEST])


def _spread(
    signed: Sets, some: Sets, labels: Labels, drawn: Labels, gamma: float, settings: RelatednessSettings, seed: int
) -> tuple[sp.csr_array, Labels]:
    """(weights between neighbours, groups) of all clients, from the groups of `some`, those at `drawn`."""
    places, known = _placed(signed, some, drawn, settings, seed)
    groups = np.empty(len(signed), dtype=np.int64)
    groups[drawn] = labels
    rest = np.setdiff1d(np.arange(len(signed)), drawn)
    groups[rest], _ = joining([places[row] for row in rest.tolist()], known, labels, settings, seed)
    near = neighbours_of(places, settings, seed, np.arange(len(signed)))
    return _linked(near, len(signed), gamma, settings), groups


def joining(
    places: Sets, known: Sets, labels: Labels, settings: RelatednessSettings, seed: int
) -> tuple[Labels, Labels]:
    """For each of these clients: the group of `known` that is nearest, and its nearest client of `known`.

    Both are found from at most ten members of each group; the group's distance is the mean of theirs.
    """
    draw = rng(seed, "members")
    groups = np.unique(labels)
    some = np.concatenate([draw.permutation(np.flatnonzero(labels == one))[:_MEMBERS] for one in groups])
    others = [known[row] for row in some.tolist()]
    joins, near = [], []
    for at in range(0, len(places), _ROWS):
        between = distances(places[at : at + _ROWS], settings, others)
        joins.append(groups[_to_groups(between, labels[some]).argmin(1)])
        near.append(some[between.argmin(1)])
    return np.concatenate(joins), np.concatenate(near)


def _to_groups(between: Array, labels: Labels) -> Array:
    """The mean of the distances [m, n] over the members of each group that there is, in the order of their labels."""
    groups, member = np.unique(labels, return_inverse=True)
    n = len(labels)
    belongs = sp.csr_array((np.ones(n), (np.arange(n), member)), shape=(n, len(groups)))
    total: Any = belongs.T @ between.T
    return np.asarray(total.T / np.bincount(member))


def _placed(every: Sets, some: Sets, drawn: Labels, settings: RelatednessSettings, seed: int) -> tuple[Sets, Sets]:
    """All clients, and `some`, those at `drawn`, in an embedding that is fitted on these and leaves them in place."""
    known = embedded(some, settings, seed)
    places = list(embedded(some, settings, seed, every))
    for row, one in zip(drawn.tolist(), known, strict=True):
        places[row] = one
    return places, known


def _linked(near: Near, clients: int, gamma: float, settings: RelatednessSettings) -> sp.csr_array:
    """Line 17 for neighbours only: weights [clients, clients], symmetric; a pair is linked if one is near the other."""
    weight = adjacency(near.distances, gamma, settings)
    kept = weight > 0
    one_way = sp.csr_array((weight[kept], (near.rows[kept], near.columns[kept])), shape=(clients, clients))
    return sp.csr_array(graph.symmetrise(one_way))


def neighbours_of(places: Sets, settings: RelatednessSettings, seed: int, rows: Labels) -> Near:
    """The 16 nearest clients of each of these rows by the distance of lines 15 and 16.

    Exact for moments, single centres and "min"; for "matching" the nearest among the 192 nearest by sorted projections
    of their centres, a sliced form of the best matching.
    """
    count = min(NEAR, len(places) - 1)
    if isinstance(places[0], graph.Signature):
        points, noise = graph.coordinates(places)
        near = graph.nearest_points(points, _CANDIDATES * count, rows=rows)
        squares = np.square(near.distances) - noise[rows][:, None] - noise[near.columns]
        return _nearest(rows, near.columns, np.sqrt(np.maximum(squares, 0.0)), count)
    if settings.distance == "min":
        return _by_centres(places, rows, count)
    near = graph.nearest_points(_projected(places, seed), _CANDIDATES * count, rows=rows)
    apart = graph.matching_of(places, np.repeat(rows, near.columns.shape[1]), near.columns.ravel())
    return _nearest(rows, near.columns, apart, count)


def _by_centres(places: Sets, rows: Labels, count: int) -> Near:
    """By the nearest two centres of two clients: the owners of the centres that are nearest to a client's own."""
    owner = np.repeat(np.arange(len(places)), [len(one) for one in places])
    own = np.flatnonzero(np.isin(owner, rows))
    most = max(len(one) for one in places)
    # `count` other clients have at most most * count centres, and the client itself has `most`.
    near = graph.nearest_points(np.concatenate(places), most * (count + 1), rows=own)
    return _nearest(owner[own], owner[near.columns], near.distances, count)


def _nearest(rows: Labels, columns: Labels, apart: Array, count: int) -> Near:
    """Of each row its `count` nearest other columns; of a pair that occurs several times, the smallest distance."""
    row, column, distance = np.repeat(rows, columns.shape[1]), columns.ravel(), apart.ravel()
    order = np.lexsort((distance, column, row))
    row, column, distance = row[order], column[order], distance[order]
    first = np.concatenate([[True], (np.diff(row) != 0) | (np.diff(column) != 0)]) & (row != column)
    row, column, distance = row[first], column[first], distance[first]
    order = np.lexsort((column, distance, row))
    row, column, distance = row[order], column[order], distance[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    return Near(row[rank < count], column[rank < count], distance[rank < count])


def _projected(places: Sets, seed: int) -> Array:
    """Sorted projections of each client's centres on random directions, [n, centres * directions]."""
    most = max(len(one) for one in places)
    if most == 1:
        return np.concatenate(places)
    axes = rng(seed, "directions").normal(size=(places[0].shape[1], _DIRECTIONS))
    axes /= np.linalg.norm(axes, axis=0)
    points = np.empty((len(places), most * _DIRECTIONS))
    for row, one in enumerate(places):
        # Of fewer centres, each stands for several places in the order.
        at = np.arange(most) * len(one) // most
        points[row] = np.sort(one @ axes, axis=0)[at].ravel()
    return points
