"""FedProx: FedAvg with a proximal term that holds local models near the global one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys 2020.
"""

from __future__ import annotations

from pydantic import Field

from fedkin.flow import Fit, Params
from fedkin.methods.blocks.near import fit_near
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import span
from fedkin.views import ClientView


class FedProx(FedAvg):
    """Clients descend f_k(w) + mu / 2 |w - w_t|^2; w_{t+1} is the mean of the models that came back, as in FedAvg.

    mu: 0 is FedAvg. weights: "samples" weighs a client by n_k, "equal" weighs all the same. aggregate: as in FedAvg.
    """

    name = "fedprox"
    title = "FedProx"
    paper = "Li et al., MLSys 2020"

    mu: float = Field(0.01, ge=0, json_schema_extra=span(1e-3, 1))

    def fit(self, client: ClientView, params: Params) -> Fit:
        """Local training near the global model."""
        return fit_near(client, params, params, self.mu)
