"""FedProto: clients share the mean feature of each class, and no model parameters.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: federated prototype learning across heterogeneous clients.
AAAI 2022. `docs/methods/fedproto.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedkin.codec import Tree
from fedkin.errors import MethodError
from fedkin.flow import Ask, ClassVectors, ClientFlow, Fit, Infer, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.forms import Integers, Shaped
from fedkin.learning.losses import Batch, class_means, masked_mean
from fedkin.learning.net import BodyHead, head_of
from fedkin.settings import span
from fedkin.views import ClientView, ServerView, View

# The logit of a class that must not be predicted: far below any distance between features, yet finite.
_NEVER = -1e9


@dataclass(frozen=True)
class PrototypeRegularised:
    """Cross-entropy + weight * mean over dimensions of (feature - its class's prototype)^2.

    extras: prototypes [C, d] and known [C]; a class without a prototype adds no pull.
    """

    weighted = True
    stackable = True

    weight: float

    def __call__(self, model: BodyHead, batch: Batch, extras: Tree, carry: Tree, /) -> Tensor:
        z = model.features(batch.x)
        loss = F.cross_entropy(model.head(z), batch.y, reduction="none")
        away = (z - extras["prototypes"][batch.y]).square().mean(1) * extras["known"][batch.y]
        return masked_mean(loss + self.weight * away, batch)


class FedProto(ServerMethod):
    """Local training, pulled to class prototypes that the server averages over the owners of each class.

    lam: weight of the pull. weights: owners count by their samples of the class ("samples"), or equally.
    predict: by the nearest prototype, or by the client's own head. among: the classes whose prototypes are compared:
    those "owned" by the client, or "all" with a prototype.
    """

    name = "fedproto"
    title = "FedProto"
    paper = "Tan et al., AAAI 2022"
    kind = "personalised"
    travels = "prototypes of owned classes and their counts; down: all prototypes"
    unlike_models = True
    needs_classes = True

    lam: float = Field(0.1, ge=0, json_schema_extra=span(0.01, 10))
    weights: Literal["samples", "equal"] = "samples"
    predict: Literal["prototypes", "head"] = "prototypes"
    among: Literal["owned", "all"] = "owned"

    # -- at a client ------------------------------------------------------------------------------------------

    def join(self, client: ClientView) -> None:
        client.state["params"] = client.initial

    @phase(
        prototypes=Shaped("owned", "width"),
        classes=Integers("owned", below="classes", rising=True),
        counts=Integers("owned", low=1),
    )
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train, then send the mean feature of each owned class."""
        prototypes, known = class_table(message, client.task.classes)
        extras = {"prototypes": prototypes, "known": known.to(client.net.dtype)}
        fitted = yield from Fit(client.state["params"], PrototypeRegularised(self.lam), extras=extras)
        client.state["params"] = fitted.params
        z = yield from Infer(fitted.params, "features")
        means, counts = class_means(z, client.train.labels(), None, client.task.classes)
        owned = counts.nonzero()[:, 0]
        return Message(prototypes=means[owned], classes=owned.tolist(), counts=[int(n) for n in counts[owned]])

    # -- at the server ------------------------------------------------------------------------------------------

    def start(self, server: ServerView) -> None:
        classes, width = server.task.classes, server.net.width(server.task)
        prototypes = torch.zeros(classes, width, dtype=server.net.dtype)
        server.state.update({"prototypes": prototypes, "known": torch.zeros(classes, dtype=torch.bool)})

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        """Average the prototypes of the sampled clients; a class that none of them owns keeps its prototype."""
        replies = yield from Ask("train", dict.fromkeys(sampled, self.offer_all(server)))
        prototypes, known = mean_prototypes(replies, server.task.classes, self.weights == "samples")
        if replies:
            kept = torch.where(known[:, None], prototypes.to(server.net.dtype), server.state["prototypes"])
            server.state.update({"prototypes": kept, "known": server.state["known"] | known})

    def offer_all(self, server: ServerView) -> Message:
        """All prototypes that exist, and their classes."""
        classes = server.state["known"].nonzero()[:, 0]
        return Message(prototypes=server.state["prototypes"][classes], classes=classes.tolist())

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        return self.offer_all(server) if self.predict == "prototypes" else Message()

    def class_vectors(self, view: View[Any]) -> ClassVectors | None:
        if not isinstance(view, ServerView):
            return None
        return ClassVectors(view.state["prototypes"], view.state["known"])

    def use(self, client: ClientView, message: Message) -> Params:
        params: Params = client.state["params"]
        if self.predict == "head":
            return params
        prototypes, known = class_table(message, client.task.classes)
        if self.among == "owned":
            owned = torch.bincount(client.train.labels(), minlength=client.task.classes) > 0
            known = known & owned
        # Without any prototype the head predicts.
        return {**params, **nearest_prototype_head(params, prototypes, known)} if known.any() else params


def class_table(message: Message, classes: int) -> tuple[Tensor, Tensor]:
    """(prototypes [C, d], with rows of zeros for classes without one; known, bool [C]) of a message."""
    prototypes = message["prototypes"].new_zeros(classes, message["prototypes"].shape[1])
    known = torch.zeros(classes, dtype=torch.bool)
    prototypes[message["classes"]] = message["prototypes"]
    known[message["classes"]] = True
    return prototypes, known


def mean_prototypes(replies: Mapping[str, Message], classes: int, by_samples: bool) -> tuple[Tensor, Tensor]:
    """(mean prototype of each class over its owners [C, d], known [C]); clients are summed in the order of their ids.

    by_samples: owner k has the weight n_kc, its samples of class c; otherwise all owners have the same weight.
    """
    width = next(iter(replies.values()))["prototypes"].shape[1] if replies else 0
    total = torch.zeros(classes, width, dtype=torch.float64)
    weight = torch.zeros(classes, 1, dtype=torch.float64)
    for _, reply in sorted(replies.items()):
        n = torch.tensor(reply["counts"] if by_samples else [1] * len(reply["counts"]), dtype=torch.float64)[:, None]
        total[reply["classes"]] += n * reply["prototypes"].double()
        weight[reply["classes"]] += n
    return total / weight.clamp(min=1), weight[:, 0] > 0


def nearest_prototype_head(params: Params, prototypes: Tensor, known: Tensor) -> dict[str, Tensor]:
    """The linear head whose largest output is the nearest known prototype: 2 z.p_c - |p_c|^2 = |z|^2 - |z - p_c|^2.

    Raises MethodError unless the head is one Linear with a bias and an output per class.
    """
    head = head_of(params)
    shapes = {name: tuple(tensor.shape) for name, tensor in head.items()}
    classes, width = prototypes.shape
    if shapes != {"head.weight": (classes, width), "head.bias": (classes,)}:
        raise MethodError(
            f"fedproto: predict = 'prototypes' needs a head that is one Linear({width}, {classes}) with a bias, this "
            f"one holds {shapes}; set method.predict = 'head'"
        )
    weight = torch.where(known[:, None], 2 * prototypes, 0.0)
    bias = torch.where(known, -prototypes.square().sum(1), _NEVER)
    return {"head.weight": weight.to(head["head.weight"].dtype), "head.bias": bias.to(head["head.bias"].dtype)}
