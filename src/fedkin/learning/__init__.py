"""What a client does: nets, losses, local training."""

from fedkin.learning.aggregate import weighted_mean
from fedkin.learning.losses import Batch, CrossEntropy, Loss, class_means, masked_mean
from fedkin.learning.net import BodyHead, Net, head_of
from fedkin.learning.training import Training

__all__ = [
    "Batch", "BodyHead", "CrossEntropy", "Loss", "Net", "Training", "class_means", "head_of", "masked_mean",
    "weighted_mean",
]  # fmt: skip
