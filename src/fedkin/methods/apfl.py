"""APFL: each client mixes its own model with the common model, and learns the mixing weight.

Deng, Kamani, Mahdavi. Adaptive personalized federated learning. arXiv 2003.13461, 2020. Equation numbers are the
paper's; `docs/methods/apfl.md` says where paper, released code and this file differ.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedkin.flow import ClientFlow, Fit, Message, Params, phase
from fedkin.forms import COUNT, NET
from fedkin.methods.fedavg import FedAvg
from fedkin.settings import span
from fedkin.views import ClientView


class APFL(FedAvg):
    """w as in FedAvg; client k predicts with vbar_k = alpha_k v_k + (1 - alpha_k) w_k, Eq. (3).

    In each local step, with one batch: w_k <- w_k - lr grad f_k(w_k), and v_k <- v_k - lr alpha_k grad f_k(vbar_k),
    Eq. (5). Once a round alpha_k <- clip(alpha_k - lr <v_k - w_k, grad f_k(vbar_k)>, 0, 1), Eq. (10).

    alpha: the initial alpha_k; without `adaptive`, 1 is Local training of v_k and 0 is FedAvg. adaptive: alpha_k is
    learned. weights, aggregate: as in FedAvg. For prediction w_k is the common model. A client that never trained
    predicts with the common model alone.
    """

    name = "apfl"
    title = "APFL"
    paper = "Deng et al., 2020"
    kind = "personalised"

    alpha: float = Field(0.5, ge=0, le=1, json_schema_extra=span(0.1, 0.9, log=False))
    adaptive: bool = True

    @phase(params=NET, n=COUNT)
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Take R steps of w_k, which goes to the server, and of v_k, which stays here."""
        w, v = message.params, client.state.get("v", client.initial)
        alpha, step = client.state.get("alpha", self.alpha), client.training.with_steps(1, whole=True)
        for place, rows in enumerate(client.training.batches(client.size, client.rng("batches"))):
            batch = client.train.take(rows)
            vbar = mixture(v, w, alpha, client.net.trainable)
            moved = (yield from Fit(vbar, training=step, data=batch)).params
            # The step subtracted lr grad f(vbar).
            gradient = {name: vbar[name] - moved[name] for name in client.net.trainable}
            if self.adaptive and place == 0:
                slope = sum(float(((v[name] - w[name]) * g).sum()) for name, g in gradient.items())
                next_alpha = min(max(alpha - slope, 0.0), 1.0)
            else:
                next_alpha = alpha
            v = {**moved, **{name: v[name] - alpha * g for name, g in gradient.items()}}
            w = (yield from Fit(w, training=step, data=batch)).params
            alpha = next_alpha
        client.state.update({"v": v, "alpha": alpha})
        return Message(params=w, n=client.size)

    def use(self, client: ClientView, message: Message) -> Params:
        if "v" not in client.state:
            return message.params
        return mixture(client.state["v"], message.params, client.state["alpha"], client.net.trainable)


def mixture(v: Params, w: Params, alpha: float, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """alpha v + (1 - alpha) w for the trainable parameters; buffers (running statistics, counters) are those of v.

    >>> mixture({"x": torch.tensor([4.0])}, {"x": torch.tensor([0.0])}, 0.25, ("x",))
    {'x': tensor([1.])}
    """
    return {**v, **{name: torch.lerp(w[name], v[name], alpha) for name in names}}
