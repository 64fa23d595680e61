"""pfl-research's FedAvg on its PyTorch model; its batches are the same samples in every round."""

from __future__ import annotations

import torch
from common import BATCH, LR, SAMPLED, Pace, build, load
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

pace = Pace()
x, y, _, _ = load(pace.folder)


class Module(nn.Module):
    """The net with the loss and the metrics that pfl needs."""

    def __init__(self):
        super().__init__()
        self.net = build(pace.row)

    def loss(self, x, y, eval=False):
        self.eval() if eval else self.train()
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x, y):
        return {"loss": Weighted(nn.functional.cross_entropy(self.net(x), y, reduction="sum").item(), len(y))}


class Rounds(TrainingProcessCallback):
    """A callback that ends a round, and begins the next on request."""

    def on_train_begin(self, *, model):
        pace.begin()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        pace.end()
        if central_iteration + 1 < pace.rounds:
            pace.begin()
        return False, Metrics()


torch.manual_seed(7)
module = Module()
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
users = {k: [x[k], y[k]] for k in range(len(x))}
backend = SimulatedBackend(
    training_data=FederatedDataset.from_slices(users, get_user_sampler("random", list(users))), val_data=None
)
model, *_ = [
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=pace.rounds, evaluation_frequency=10**6, train_cohort_size=SAMPLED, val_cohort_size=0
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR[pace.row], local_batch_size=BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Rounds()],
    )
]
pace.done({name.removeprefix("net."): tensor for name, tensor in model.pytorch_model.state_dict().items()})
