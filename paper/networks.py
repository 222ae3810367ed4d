"""The networks of the experiments. None mixes records: no batch normalisation anywhere."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from askgauss import _validate

__all__ = ["MODELS", "ScatterLinear", "SmallCNN", "StandardisedConv2d", "WideResNet"]


class ScatterLinear(nn.Module):
    """Group normalisation of scattering channels, then a linear classifier.

    Args:
        channels: Scattering channels.
        places: Positions of each channel.
        classes: Number of classes.
        groups: Groups normalised together.
    """

    def __init__(self, channels: int, places: int, classes: int, *, groups: int = 27) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, affine=False)
        self.head = nn.Linear(channels * places, classes)

    def forward(self, scattered: Tensor) -> Tensor:
        """Logits of scattering coefficients (n, channels, height, width)."""
        logits: Tensor = self.head(self.norm(scattered).flatten(1))
        return logits


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose filters have mean zero and variance one over the fan-in."""

    def forward(self, images: Tensor) -> Tensor:
        """Images to images."""
        weight = self.weight
        fan_in = weight[0].numel()
        spread, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, unbiased=False)
        weight = (weight - mean) / torch.sqrt(spread * fan_in + 1e-4)
        return functional.conv2d(
            images, weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class _Block(nn.Module):
    """Two convolutions, each behind normalisation and ReLU, beside a skip connection."""

    def __init__(self, width: int, wider: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(min(groups, width), width)
        self.first = StandardisedConv2d(width, wider, 3, stride, 1)
        self.second_norm = nn.GroupNorm(groups, wider)
        self.second = StandardisedConv2d(wider, wider, 3, 1, 1)
        same = width == wider and stride == 1
        self.skip = None if same else StandardisedConv2d(width, wider, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Images to images."""
        active = functional.relu(self.first_norm(images))
        around = images if self.skip is None else self.skip(active)
        inner = self.second(functional.relu(self.second_norm(self.first(active))))
        total: Tensor = inner + around
        return total


class WideResNet(nn.Module):
    """Wide residual network with group normalisation and weight standardisation.

    The recipe of De et al. 2022 (arXiv 2204.13650): depth 16, width 4, 16 groups.

    Args:
        colours: Channels of the images.
        classes: Number of classes.
        depth: Layers; 6 n + 4.
        width: How many times wider than 16, 32, 64.
        groups: Groups of every normalisation.
    """

    def __init__(
        self,
        colours: int = 3,
        classes: int = 10,
        *,
        depth: int = 16,
        width: int = 4,
        groups: int = 16,
    ) -> None:
        super().__init__()
        _validate.integer(10, depth=depth)
        if (depth - 4) % 6:
            raise _validate.fail("depth", depth, "to be 6 n + 4")
        self.stem = StandardisedConv2d(colours, 16, 3, 1, 1)
        blocks, last = [], 16
        for stage, wider in enumerate((16 * width, 32 * width, 64 * width)):
            for index in range((depth - 4) // 6):
                stride = 2 if stage and index == 0 else 1
                blocks.append(_Block(last, wider, stride, groups))
                last = wider
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(groups, last)
        self.head = nn.Linear(last, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images (n, colours, height, width)."""
        features = functional.relu(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class SmallCNN(nn.Module):
    """Two convolutions and a linear classifier, for rehearsals and small images."""

    def __init__(self, colours: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(colours, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.norm = nn.GroupNorm(4, 32)
        self.head = nn.Linear(32 * 16, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images (n, colours, height, width)."""
        inner = functional.max_pool2d(functional.relu(self.first(images)), 2)
        inner = functional.relu(self.norm(self.second(inner)))
        logits: Tensor = self.head(functional.adaptive_avg_pool2d(inner, 4).flatten(1))
        return logits


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "wrn16-4": WideResNet,
    "small-cnn": SmallCNN,
}
"""Deep models by name: from colours and classes to a network."""
