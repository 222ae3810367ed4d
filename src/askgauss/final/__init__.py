"""Audits of a finished model: by its weights, by a worst-case start, by its loss on one record."""

from askgauss.final.training import FullBatchTraining, Training, trained_scores, worst_start
from askgauss.final.weights import (
    LinearFilter,
    every_so_often,
    joined_snapshots,
    least_updated,
    sgd_filter,
    weight_scores,
)
from askgauss.final.workers import ray_pool

__all__ = [
    "FullBatchTraining",
    "LinearFilter",
    "Training",
    "every_so_often",
    "joined_snapshots",
    "least_updated",
    "ray_pool",
    "sgd_filter",
    "trained_scores",
    "weight_scores",
    "worst_start",
]
