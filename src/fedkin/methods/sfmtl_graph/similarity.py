"""SFMTL-Graph's graph: its settings, and how alike two clients' heads and anchors are, Eq. (7-10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from fedkin import graph
from fedkin.flow import Message
from fedkin.keys import rng
from fedkin.learning.sgd import load
from fedkin.methods.blocks.stages import ControlStage, GroupsStage, SparsifyStage, known_stage
from fedkin.settings import Settings
from fedkin.views import ServerView

__all__ = ["GraphSettings", "alpha_of", "similarity", "stacked_anchors"]

Array = npt.NDArray[np.float64]
_OWN = ("both", "heads", "anchors")  # similarities of this method, beside those of fedkin.graph


class GraphSettings(Settings):
    """The server's graph, stage by stage; each can be replaced.

    similarity: "both" (alpha * heads + (1 - alpha) * anchors, the paper's), "heads", "anchors", or a similarity
    of the heads' weights as vectors ("cosine", "dot", "l1", "l2", "rbf").
    match: which classes two clients are compared on: "union", "shared", or "rows" (the released code's).
    sparsify, groups: a stage of `fedkin.graph`, for example "knn:5", "leiden", "hierarchical:4"; groups "same[:alpha]"
    are found once, from signatures of the clients' samples.
    control: replace the learned graph: "random", "uniform", "oracle", "shuffled", "self"; "none" keeps it.
    """

    similarity: Annotated[str, known_stage(graph.similarity_stage, *_OWN)] = "both"
    match: Literal["union", "shared", "rows"] = "union"
    sparsify: SparsifyStage = "none"
    groups: GroupsStage = "louvain"
    resolution: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, lt=2**32)
    control: ControlStage = "none"

    @property
    def from_test(self) -> bool:
        """Whether clients send signatures from which groups are found."""
        return self.groups.split(":")[0] == "same"


def similarity(server: ServerView[Any], replies: Sequence[Message], how: GraphSettings, alpha: float) -> Array:
    """Similarity [n, n] of the clients that sent these replies: alpha * heads (8) + (1 - alpha) * anchors (10)."""
    if how.similarity not in _OWN:
        flat = [torch.cat([t.flatten() for _, t in sorted(reply["head"].items())]) for reply in replies]
        return graph.similarity_stage(how.similarity)(torch.stack(flat).double().numpy())
    anchors, owned = stacked_anchors(server, replies, how.match)
    alpha = alpha_of(how, alpha)
    heads = graph.response_similarity(head_responses(server, replies, anchors), owned, match=how.match)
    features = graph.anchor_similarity(anchors.numpy(), owned, match=how.match)
    return np.asarray(alpha * heads + (1 - alpha) * features)


def alpha_of(how: GraphSettings, alpha: float) -> float:
    """The weight of heads against anchors."""
    return {"both": alpha, "heads": 1.0, "anchors": 0.0}[how.similarity]


def stacked_anchors(
    server: ServerView[Any], replies: Sequence[Message], match: str
) -> tuple[Tensor, npt.NDArray[np.bool_]]:
    """(anchors [n, C, d], owned [n, C]); rows of classes that a client does not own are zero.

    For the released code's `match="rows"`, which compares these rows too, they hold what they hold there: the
    common random start, rows of unit length.
    """
    classes, width = server.task.classes, replies[0]["anchors"].shape[1]
    anchors = torch.zeros(len(replies), classes, width, dtype=torch.float64)
    if match == "rows":
        start = rng(server.seed, "", 0, "anchors").normal(size=(classes, width))
        anchors[:] = torch.from_numpy(start / np.linalg.norm(start, axis=1, keepdims=True))
    owned = np.zeros((len(replies), classes), dtype=bool)
    for k, reply in enumerate(replies):
        anchors[k, reply["classes"]] = reply["anchors"].double()
        owned[k, reply["classes"]] = True
    return anchors, owned


def head_responses(server: ServerView[Any], replies: Sequence[Message], anchors: Tensor) -> Array:
    """Outputs [n, n, C, outputs]: entry (k, l, c) is the output of head k for client l's anchor of class c."""
    module = server.net.scratch().eval()
    flat = anchors.flatten(0, 1).to(server.net.dtype)
    said = []
    with torch.no_grad():
        for reply in replies:
            load(module, {**server.initial, **reply["head"]})
            said.append(module.head(flat).reshape(*anchors.shape[:2], -1).double())
    return np.asarray(torch.stack(said).numpy())
