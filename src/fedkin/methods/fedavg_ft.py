"""FedAvg with fine-tuning: a client trains the common model for a few passes before it uses it.

The simplest personalisation. It is studied, among others, in Cheng, Chadha, Duchi. Federated asymptotics: a model to
compare federated learning algorithms. AISTATS 2023; and Wu, Li, Charles, Motwani, Wang. Motley: benchmarking
heterogeneity and personalization in federated learning. 2022.
"""

from __future__ import annotations

from pydantic import Field

from fedkin.flow import ClientFlow, Fit, Message, Params
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import one_of
from fedkin.views import ClientView


class FedAvgFT(FedAvg):
    """w as in FedAvg; client k predicts with w after `passes` passes over its own training samples.

    passes: 0 is FedAvg. Passes use the experiment's batch size, optimiser and rate. The messages are those of FedAvg,
    and the tuned models are not kept.
    """

    name = "fedavg-ft"
    title = "FedAvg + fine-tuning"
    paper = "Cheng et al., AISTATS 2023"
    kind = "personalised"

    passes: int = Field(5, ge=0, json_schema_extra=one_of(1, 2, 3, 5, 8, 10))

    def use(self, client: ClientView, message: Message) -> ClientFlow[Params]:
        """The common model after the client's passes."""
        if not self.passes or not client.size:
            return message.params
        fitted = yield from Fit(message.params, training=client.training.with_epochs(self.passes))
        return fitted.params
