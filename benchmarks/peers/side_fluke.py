"""fluke's FedAvg, without evaluations."""

from __future__ import annotations

import torch

# The torchvision that fluke imports is built for CUDA. With a CPU build of torch, its operators have to be declared.
_lib = torch.library.Library("torchvision", "DEF")
for _signature in ("nms(Tensor d, Tensor s, float i) -> Tensor", "qnms(Tensor d, Tensor s, float i) -> Tensor"):
    _lib.define(_signature)

from common import BATCH, CLASSES, CLIENTS, LR, SAMPLED, Pace, build, load  # noqa: E402
from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402

pace = Pace()
x, y, test_x, test_y = load(pace.folder)
classes = CLASSES[pace.row]


class Rounds(FederationObserver):
    """An observer that begins and ends rounds on request."""

    def start_round(self, round, global_model):
        pace.begin()

    def end_round(self, round):
        pace.end()


env = FlukeENV()
env.set_seed(7)
env.set_device("cpu")
env.set_inmemory(True)
env.set_evaluator(ClassificationEval(eval_every=10**6, n_classes=classes))
env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
train = [
    FastDataLoader(x[k], y[k], num_labels=classes, batch_size=BATCH, shuffle=True, skip_singleton=False)
    for k in range(CLIENTS)
]
central = FastDataLoader(test_x, test_y, num_labels=classes, batch_size=128)
splitter = DataSplitter(DummyDataContainer(train, [None] * CLIENTS, central, classes))
settings = DDict(
    client={
        "batch_size": BATCH, "local_epochs": 1, "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": LR[pace.row]}, "scheduler": {"gamma": 1, "step_size": 1},
    },
    server={"weighted": True}, model=build(pace.row),
)  # fmt: skip
algorithm = FedAVG(CLIENTS, splitter, settings)
algorithm.set_callbacks(Rounds())
algorithm.run(pace.rounds, SAMPLED / CLIENTS, finalize=False)
pace.done(algorithm.server.model.state_dict())
