"""The work of a client: nets, losses, local training."""

from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.losses import (
    Batch,
    CrossEntropy,
    Loss,
    PixelCrossEntropy,
    Proximal,
    SquaredError,
    class_means,
    default_loss,
    masked_mean,
    per_sample,
)  # fmt: skip
from fedkin.learning.net import BodyHead, Net, head_of
from fedkin.learning.training import Training

__all__ = [
    "Batch", "BodyHead", "CrossEntropy", "Loss", "Net", "PixelCrossEntropy", "Proximal", "SquaredError",
    "Training", "class_means", "default_loss", "head_of", "masked_mean", "per_sample", "weighted_mean",
]  # fmt: skip
