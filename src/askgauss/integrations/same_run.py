"""Whether a run that goes on is the run that stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torch import Tensor

from askgauss.exceptions import RecordingError
from askgauss.integrations.opacus.coordinate_access import CanaryCoordinates

__all__ = ["check_weights", "digest"]


def digest(places: CanaryCoordinates | None, weights: Sequence[Tensor]) -> str:
    """A short digest of the weights at some places; empty where there are none."""
    if places is None:
        return ""
    values = places.read(weights).cpu().double().numpy()
    return hashlib.sha256(values.tobytes()).hexdigest()[:32]


def check_weights(
    expected: str, places: CanaryCoordinates | None, weights: Sequence[Tensor], steps: int
) -> None:
    """Refuse weights other than those an audit's checkpoint was written with.

    Raises:
        RecordingError: Model and audit are not of the same step.
    """
    if expected and expected != digest(places, weights):
        raise RecordingError(
            f"Expected the weights that the audit's checkpoint was written with, after {steps:,} "
            "observed steps, got others. Model and audit are not of the same step: go on from a "
            "pair of checkpoints written together (put audit.state_dict() into the model's file), "
            "or start a new audit without this checkpoint."
        )
