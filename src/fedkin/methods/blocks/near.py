"""Local training that is pulled towards other parameters, as in FedProx."""

from __future__ import annotations

from typing import Any

from fedkin.flow import Fit, Params
from fedkin.learning.losses import Proximal, default_loss
from fedkin.views import ClientView


def fit_near(client: ClientView, start: Params, centre: Params, weight: float, **more: Any) -> Fit:
    """Train from `start` on f_k(w) + weight / 2 |w - centre|^2, over the trainable parameters. more: as for Fit."""
    near = {name: centre[name] for name in client.net.trainable}
    return Fit(start, Proximal(default_loss(client.task), weight), {"start": near}, **more)
