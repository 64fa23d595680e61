"""Trackers of a run's settings and figures: TensorBoard, MLflow, Weights & Biases, or your own object."""

from __future__ import annotations

from fedkin.running.trackers.base import Tracker
from fedkin.running.trackers.figures import figures_of, totals_of
from fedkin.running.trackers.mlflow import MLflow
from fedkin.running.trackers.tensorboard import TensorBoard
from fedkin.running.trackers.tracking import TRACKERS, Tracking, check_trackers, described
from fedkin.running.trackers.wandb import WandB

__all__ = [
    "TRACKERS", "MLflow", "TensorBoard", "Tracker", "Tracking", "WandB", "check_trackers", "described", "figures_of",
    "totals_of",
]  # fmt: skip
