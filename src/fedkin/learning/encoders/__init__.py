"""Autoencoders, which compress samples without labels: nets, objectives, and pretraining with a cache."""

from fedkin.learning.encoders.inputs import Encode, Reconstruction, View, pixels, standardised
from fedkin.learning.encoders.nets import Kind, encoder_net, kind_for
from fedkin.learning.encoders.pretraining import adapted, cache_folder, chosen, moments, pretrained

__all__ = [
    "Encode", "Kind", "Reconstruction", "View", "adapted", "cache_folder", "chosen", "encoder_net", "kind_for",
    "moments", "pixels", "pretrained", "standardised",
]  # fmt: skip
