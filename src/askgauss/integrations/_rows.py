"""Canaries sent through the optimizer's own clipping, a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss.integrations._attachment import Attachment
from askgauss.integrations._coordinates import CanaryCoordinates

__all__ = ["send_through_clipping"]

# Numbers, and rows, that go through the clipper together: each row is as large as the model.
_NUMBERS = 1 << 24
_ROWS = 64
# A canary's row before clipping, in clip norms at each of its coordinates.
_FAR_ABOVE = 100.0


def send_through_clipping(
    optimizer: Any,
    audited: Sequence[torch.nn.Parameter],
    coordinates: CanaryCoordinates,
    planted: NDArray[np.int64],
    clip_norm: float,
) -> None:
    """Let the optimizer clip and add the planted canaries as it does any gradient."""
    parameters = list(optimizer.params)
    place = {id(parameter): index for index, parameter in enumerate(audited)}
    saved = [parameter.grad_sample for parameter in parameters]

    def restore() -> None:
        for parameter, sample in zip(parameters, saved, strict=True):
            parameter.grad_sample = sample

    with Attachment() as attachment:
        attachment.undo(restore)
        together = min(max(_NUMBERS // sum(item.numel() for item in parameters), 1), _ROWS)
        for start in range(0, planted.size, together):
            chunk = planted[start : start + together]
            rows: dict[int, torch.Tensor] = {}
            for parameter, sample in zip(parameters, saved, strict=True):
                like = sample[0] if isinstance(sample, list) else sample
                parameter.grad_sample = like.new_zeros((chunk.size, *parameter.shape))
                rows[place.get(id(parameter), -1)] = parameter.grad_sample
            ours = [rows[index] for index in range(len(audited))]
            coordinates.fill_rows(ours, chunk, _FAR_ABOVE * clip_norm)
            optimizer.clip_and_accumulate()
