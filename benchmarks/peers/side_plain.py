"""A plain PyTorch loop, and ("objects") a loop in PFLlib's style, in which every client has a model."""

from __future__ import annotations

import copy
import sys

import torch
from common import BATCH, LR, SAMPLED, Pace, build, load
from torch import nn
from torch.utils.data import DataLoader

pace = Pace()
x, y, _, _ = load(pace.folder)
server, lr = build(pace.row), LR[pace.row]
torch.manual_seed(7)


def plain() -> None:
    """Run rounds with one module and the clients' tensors in memory; only the average is kept."""
    global server
    made = []
    state = {name: tensor.clone() for name, tensor in server.state_dict().items()}
    for k in torch.randperm(len(x))[:SAMPLED].tolist():
        server.load_state_dict(state)
        optimiser = torch.optim.SGD(server.parameters(), lr=lr)
        for rows in torch.randperm(len(y[k])).split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(server(x[k][rows]), y[k][rows]).backward()
            optimiser.step()
        made.append({name: tensor.clone() for name, tensor in server.state_dict().items()})
    # Counters of batches are whole numbers, and equal everywhere.
    mean = {name: torch.stack([one[name] for one in made]).mean(0) for name in state if state[name].is_floating_point()}
    server.load_state_dict({**made[0], **mean})


def objects() -> None:
    """Run rounds with a model and an optimiser for each client, and a new DataLoader in each round."""
    taking = torch.randperm(len(x))[:SAMPLED].tolist()
    for k in taking:
        for new, old in zip(server.parameters(), models[k].parameters(), strict=True):
            old.data = new.data.clone()
        models[k].train()
        for inputs, labels in DataLoader(data[k], BATCH, shuffle=True):
            optimisers[k].zero_grad()
            nn.functional.cross_entropy(models[k](inputs), labels).backward()
            optimisers[k].step()
    for parameter in server.parameters():
        parameter.data.zero_()
    for k in taking:
        for total, part in zip(server.parameters(), models[k].parameters(), strict=True):
            total.data += part.data.clone() / len(taking)


work = plain
if sys.argv[4:] == ["objects"]:
    work = objects
    models = [copy.deepcopy(server) for _ in x]
    optimisers = [torch.optim.SGD(model.parameters(), lr=lr) for model in models]
    data = [list(zip(inputs, labels, strict=True)) for inputs, labels in zip(x, y, strict=True)]
for _ in range(pace.rounds):
    pace.begin()
    work()
    pace.end()
pace.done(server.state_dict())
