"""FedAvg: one model for all, the mean of the sampled clients' models weighted by their samples.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedkin.methods.blocks.averaging import AveragedModel


class FedAvg(AveragedModel):
    """w <- sum_k n_k w_k / sum_k n_k over the clients that answered.

    weights: "samples" weighs a client by n_k, "equal" gives all clients the same weight. aggregate: the rule that
    combines the models, by default the mean (`fedkin.learning.aggregate.aggregated`).
    """

    name = "fedavg"
    title = "FedAvg"
    paper = "McMahan et al., AISTATS 2017"
    kind: ClassVar[Literal["global", "personalised"]] = "global"
    travels = "the whole model, down and up"
