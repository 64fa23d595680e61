"""Flower's simulation with its FedAvg strategy; clients run in the processes of its Ray backend, on one core."""

from __future__ import annotations

import torch
from common import BATCH, CLIENTS, LR, SAMPLED, Pace, build, load
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

pace = Pace()
row, folder, rounds, lr = pace.row, pace.folder, pace.rounds, LR[pace.row]
held: dict[str, object] = {}
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train for one epoch on this client's samples."""
    import common

    torch.set_num_threads(1)
    if not held:
        held["data"], held["model"] = common.load(folder), common.build(row)
    (x, y, _, _), model = held["data"], held["model"]
    k = int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for rows in torch.randperm(len(y[k])).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[k][rows]), y[k][rows]).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y[k])})}
    return Message(content=RecordDict(content), reply_to=message)


class Paced(FedAvg):
    """FedAvg that begins and ends rounds on request."""

    def configure_train(self, *inputs, **named):
        pace.begin()
        return super().configure_train(*inputs, **named)

    def aggregate_train(self, *inputs, **named):
        made = super().aggregate_train(*inputs, **named)
        pace.end()
        return made


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    strategy = Paced(fraction_train=SAMPLED / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(build(row).state_dict()), num_rounds=rounds)
    pace.done(result.arrays.to_torch_state_dict())


# Delete `load`, so that the samples are not sent with the function.
del load
run_simulation(
    server, client, num_supernodes=CLIENTS,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}},
)  # fmt: skip
