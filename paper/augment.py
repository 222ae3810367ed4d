"""Random views of images: shifts with reflection, flips and colours, drawn image by image."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askgauss import _validate

__all__ = ["random_views"]


def random_views(
    images: Tensor,
    views: int,
    generator: np.random.Generator,
    *,
    shift: int = 4,
    flip: bool = True,
    jitter: float = 0.1,
) -> Tensor:
    """Several random views of each image.

    Args:
        images: (n, colours, height, width), values around [0, 1].
        views: Views of each; the first of one view is random too.
        generator: Where the randomness comes from.
        shift: Most pixels a view is moved by; what comes in is the image reflected.
        flip: Mirror half of the views.
        jitter: Most that brightness is added to, and contrast multiplied by more than one.

    Returns:
        (n, views, colours, height, width).
    """
    _validate.integer(1, views=views)
    _validate.integer(0, shift=shift)
    count, _, height, width = images.shape
    moves = generator.integers(-shift, shift + 1, size=(count, views, 2))
    mirrored = generator.random((count, views)) < (0.5 if flip else 0.0)
    rows = _reflected(np.arange(height) + moves[:, :, :1], height)
    columns = _reflected(np.arange(width) + moves[:, :, 1:], width)
    columns = np.where(mirrored[:, :, None], columns[:, :, ::-1], columns)
    index = torch.arange(count)[:, None, None, None]
    # Colours are moved last, so that one gather takes pixels whole.
    pixels = images.permute(0, 2, 3, 1)
    moved = pixels[
        index, torch.from_numpy(rows)[:, :, :, None], torch.from_numpy(columns)[:, :, None, :]
    ].permute(0, 1, 4, 2, 3)
    if jitter == 0.0:
        return moved.contiguous()
    drawn = generator.uniform(-jitter, jitter, (2, count, views, 1, 1, 1)).astype(np.float32)
    brightness, contrast = torch.from_numpy(drawn).to(images.device)
    mean = moved.mean(dim=(2, 3, 4), keepdim=True)
    coloured: Tensor = (moved - mean) * (1.0 + contrast) + mean + brightness
    return coloured.contiguous()


def _reflected(positions: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Positions outside an image, reflected into it without repeating its edge."""
    period = max(2 * (size - 1), 1)
    folded = np.abs(positions) % period
    return np.asarray(np.minimum(folded, period - folded), np.int64)
