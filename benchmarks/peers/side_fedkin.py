"""fedkin's FedAvg in the given mode."""

from __future__ import annotations

import sys

from common import BATCH, CLASSES, LR, SAMPLED, SHAPES, Pace, build, load

from fedkin.engines import EngineSettings, LocalEngine, Setup
from fedkin.federation import Client, Federation, Samples, Task
from fedkin.learning import Net, Training
from fedkin.methods import FedAvg

pace = Pace()
x, y, test_x, test_y = load(pace.folder)
test = Samples(test_x, test_y)
clients = [Client(f"c{k:03d}", Samples(*own), test) for k, own in enumerate(zip(x, y, strict=True))]
module = build(pace.row)
training = Training(clients_per_round=SAMPLED, batch_size=BATCH, local_epochs=1, lr=LR[pace.row])
federation = Federation(clients, Task(CLASSES[pace.row], SHAPES[pace.row]))
setup = Setup(
    FedAvg(), federation, Net(module.body, module.head), training, engine=EngineSettings(mode=sys.argv[4], workers=1)
)
engine = LocalEngine(setup)
for number in range(1, pace.rounds + 1):
    pace.begin()
    engine.round(number)
    pace.end()
pace.done(dict(engine.model("c000")))
engine.close()
