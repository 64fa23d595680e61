"""The part that all sides share: nets, data, and the pace of rounds; it needs only torch and numpy."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CLIENTS, SAMPLES, SAMPLED, BATCH, TEST = 100, 300, 20, 32, 2000
SHAPES: dict[str, tuple[int, ...]] = {
    "mlp-32": (784,), "mlp-200": (784,), "table": (60,), "lenet": (3, 32, 32), "cnn-cifar": (3, 32, 32),
    "leaf-cnn": (1, 28, 28),
}  # fmt: skip
CLASSES = {"mlp-32": 10, "mlp-200": 10, "table": 2, "lenet": 10, "cnn-cifar": 10, "leaf-cnn": 62}
LR = dict.fromkeys(SHAPES, 0.05)
# Amplitudes of the patterns in noise of standard deviation 1: nets learn them in a few rounds, but not without errors.
SIGNAL = {"mlp-32": 0.15, "mlp-200": 0.15, "table": 0.3, "lenet": 0.1, "cnn-cifar": 0.1, "leaf-cnn": 0.2}


class BodyHead(nn.Module):
    """A net that computes head(body(x))."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def build(row: str) -> BodyHead:
    """Return the net of the row, initialised by PyTorch from a fixed seed."""
    torch.manual_seed(1)
    if row.startswith("mlp"):
        width = int(row.removeprefix("mlp-"))
        return BodyHead(nn.Sequential(nn.Linear(784, width), nn.ReLU()), nn.Linear(width, 10))
    if row == "table":
        layers: list[nn.Module] = []
        for inside in (60, 64):
            layers += [nn.Linear(inside, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2)]
        return BodyHead(nn.Sequential(*layers), nn.Linear(64, 2))
    if row == "cnn-cifar":
        body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(128 * 16, 512), nn.ReLU(),
        )  # fmt: skip
        return BodyHead(body, nn.Linear(512, 10))
    if row == "lenet":
        body = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        )  # fmt: skip
        return BodyHead(body, nn.Linear(84, 10))
    body = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 49, 2048), nn.ReLU(),
    )  # fmt: skip
    return BodyHead(body, nn.Linear(2048, 62))


def make(row: str, folder: Path) -> None:
    """Write the samples of the row: a pattern per class plus noise, with one distribution at all clients."""
    draw, shape, classes = np.random.default_rng(0), SHAPES[row], CLASSES[row]
    count = CLIENTS * SAMPLES + TEST
    if len(shape) == 3:
        coarse = draw.standard_normal((classes, shape[0], shape[1] // 4, shape[2] // 4))
        patterns = coarse.repeat(4, 2).repeat(4, 3).astype(np.float32)
    else:
        patterns = draw.standard_normal((classes, *shape)).astype(np.float32)
    y = draw.integers(0, classes, count)
    x = SIGNAL[row] * patterns[y] + draw.standard_normal((count, *shape), dtype=np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)


def load(folder: Path) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Return each client's own array x [samples, ...] and y [samples], and x, y of the test samples."""
    x, y = (torch.from_numpy(np.load(folder / name)) for name in ("x.npy", "y.npy"))
    own = CLIENTS * SAMPLES
    each = [slice(start, start + SAMPLES) for start in range(0, own, SAMPLES)]
    return [x[k].clone() for k in each], [y[k].clone() for k in each], x[own:].clone(), y[own:].clone()


class Pace:
    """The pace of a side, which does one round on request and reports the time."""

    def __init__(self) -> None:
        self.row, self.folder, self.rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
        # Answers have a separate pipe, since frameworks print to stdout.
        self.out = os.fdopen(int(os.environ["PEERS_ANSWER"]), "w")
        torch.set_num_threads(1)

    def begin(self) -> None:
        """Wait for the request for a round."""
        self._say({"ready": True})
        if not sys.stdin.readline():
            os._exit(1)
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """Report the end of the round."""
        self._say({"cpu": time.process_time() - self.cpu, "wall": time.perf_counter() - self.wall})

    def done(self, state: dict[str, Tensor]) -> None:
        """Report the end of all rounds, with the final parameters."""
        path = self.folder / f"{os.getpid()}.pt"
        torch.save({name: tensor.detach().clone() for name, tensor in state.items()}, path)
        self._say({"model": str(path)})

    def _say(self, what: dict[str, Any]) -> None:
        self.out.write(json.dumps(what) + "\n")
        self.out.flush()
