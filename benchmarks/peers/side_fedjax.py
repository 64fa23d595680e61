"""FedJAX's FedAvg, with the net written in JAX (channels last, as usual in JAX)."""

from __future__ import annotations

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import torch
from common import BATCH, LR, SAMPLED, Pace, build, load
from fedjax.algorithms import fed_avg
from torch import nn

pace = Pace()
x, y, _, _ = load(pace.folder)
module = build(pace.row)
layers = [*module.body, module.head]
names = [*(f"body.{k}" for k in range(len(module.body))), "head"]
if any(isinstance(layer, nn.BatchNorm1d) for layer in layers):
    raise SystemExit("a model of FedJAX is a function of its parameters alone, without running statistics")


def forward(params, x):
    for name, layer in zip(names, layers):  # noqa: B905
        if isinstance(layer, nn.Conv2d):
            w, b = params[name]
            edge = layer.padding[0]
            x = jax.lax.conv_general_dilated(
                x, w, (1, 1), [(edge, edge)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
            ) + b  # fmt: skip
        elif isinstance(layer, nn.MaxPool2d):
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        elif isinstance(layer, nn.Flatten):
            x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
        elif isinstance(layer, nn.Linear):
            w, b = params[name]
            x = x @ w + b
        else:
            x = jax.nn.relu(x)
    return x


def loss(params, batch, rng):
    chosen = jax.nn.log_softmax(forward(params, batch["x"]))
    return -jnp.take_along_axis(chosen, batch["y"][:, None], 1).mean()


def turned(weight, back=False):
    """Convert a weight from torch's layout to JAX's, or (back) from JAX's to torch's."""
    order = {2: (1, 0), 4: (3, 2, 0, 1) if back else (2, 3, 1, 0)}[weight.ndim]
    return np.ascontiguousarray(np.asarray(weight).transpose(order))


params = {
    name: (jnp.asarray(turned(layer.weight.detach().numpy())), jnp.asarray(layer.bias.detach().numpy()))
    for name, layer in zip(names, layers)  # noqa: B905
    if hasattr(layer, "weight")
}
images = x[0].ndim == 4
data = [
    fedjax.ClientDataset({"x": (own.permute(0, 2, 3, 1) if images else own).contiguous().numpy(), "y": labels.numpy()})
    for own, labels in zip(x, y)  # noqa: B905
]
algorithm = fed_avg.federated_averaging(
    jax.grad(loss), fedjax.optimizers.sgd(LR[pace.row]), fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, drop_remainder=False),
)  # fmt: skip
state, draw = algorithm.init(params), np.random.default_rng(7)
for number in range(pace.rounds):
    pace.begin()
    taking = draw.permutation(len(data))[:SAMPLED]
    keys = jax.random.split(jax.random.PRNGKey(number), SAMPLED)
    clients = [(str(k).encode(), data[k], key) for k, key in zip(taking, keys)]  # noqa: B905
    state, _ = algorithm.apply(state, clients)
    jax.block_until_ready(state.params)
    pace.end()
made = {}
for name, (weight, bias) in state.params.items():
    made |= {f"{name}.weight": turned(weight, True), f"{name}.bias": np.array(bias)}
pace.done({name: torch.from_numpy(value) for name, value in made.items()})
