"""Small federations of every kind of task, the last client unseen."""

from __future__ import annotations

import numpy as np
import torch

from fedkin.federation import Client, Federation, Samples, Task

KINDS = ("risk", "regression", "segmentation")
TASKS = {
    "risk": Task(2, (5,), "risk"),
    "regression": Task.regression(3, (5,)),
    "segmentation": Task(2, (1, 8, 8), "segmentation"),
}


def samples_of(kind: str, count: int, rng: np.random.Generator) -> Samples:
    """Samples whose targets can be learned."""
    if kind == "segmentation":
        # A bright square on a noisy ground; the mask is the square.
        masks = np.zeros((count, 8, 8), np.int64)
        for mask, (top, left) in zip(masks, rng.integers(0, 5, (count, 2)), strict=True):
            mask[top : top + 3, left : left + 3] = 1
        images = (2 * masks + rng.normal(0, 0.3, masks.shape)).astype(np.float32)[:, None]
        return Samples(torch.from_numpy(images), torch.from_numpy(masks))
    x = rng.normal(size=(count, 5)).astype(np.float32)
    if kind == "risk":
        return Samples(torch.from_numpy(x), torch.from_numpy((x[:, 0] + rng.normal(size=count) > 0.7).astype(np.int64)))
    y = x[:, :3] * 2 - x[:, 2:] + 0.1 * rng.normal(size=(count, 3))
    return Samples(torch.from_numpy(x), torch.from_numpy(y.astype(np.float32)))


def federation_of(kind: str, clients: int = 5, seed: int = 0, unseen: int = 1) -> Federation:
    """Clients of unlike sizes in two groups."""
    rng = np.random.default_rng(seed)
    made = [
        Client(
            f"s{k}", samples_of(kind, 20 + 3 * k, rng), samples_of(kind, 14, rng), "ab"[k % 2],
            seen=k < clients - unseen,
        )
        for k in range(clients)
    ]  # fmt: skip
    return Federation(made, TASKS[kind], kind)


def model_of(kind: str) -> str:
    """A net for the kind."""
    return "unet" if kind == "segmentation" else "mlp"
