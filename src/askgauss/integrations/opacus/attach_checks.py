"""What can be known of a run before its first step, and is said there."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from askgauss.exceptions import AskGaussWarning, InvalidArgumentError
from askgauss.integrations.canary_choice import present_needed
from askgauss.integrations.opacus.run_description import Sampling

__all__ = ["check_folder", "check_model", "warn_of_few_canaries", "warn_of_loader"]


def check_model(model: nn.Module | None, parameters: Sequence[nn.Parameter]) -> None:
    """Refuse a model that has none of the parameters that the optimizer trains.

    Raises:
        InvalidArgumentError: It has none.
    """
    if model is None:
        return
    own = {id(item) for item in model.parameters()}
    if any(id(item) in own for item in parameters):
        return
    raise InvalidArgumentError(
        f"Expected model= to be the model that the optimizer trains, got a {type(model).__name__} "
        f"with none of its {len(parameters):,} parameters. Pass the model that make_private "
        "returned with this optimizer."
    )


def check_folder(name: str, path: str | os.PathLike[str] | None) -> None:
    """Refuse a file that cannot be written, before the training instead of after it.

    Raises:
        InvalidArgumentError: Its folder does not exist, or cannot be written to.
    """
    if path is None or (Path(path).exists() and not Path(path).is_file()):
        return
    folder = Path(os.path.realpath(path)).parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise InvalidArgumentError(
            f"Expected {name}= to be a file in a folder that can be written to, got "
            f"{str(path)!r} ({error.strerror}). Create the folder, or choose another."
        ) from error


def warn_of_loader(sampling: Sampling) -> None:
    """Warn of a loader that does not draw as the accountant assumes."""
    if sampling.poisson is not False or sampling.rate == 1.0:
        return
    warnings.warn(
        "The loader given as data_loader= does not use Poisson sampling, which the accountant "
        "assumes: it may be the one that was passed to make_private. Train on, and pass here, the "
        "loader that make_private returned (poisson_sampling=True); for another sampling scheme "
        "give sampling=.",
        AskGaussWarning,
        stacklevel=3,
    )


def warn_of_few_canaries(
    present: int, *, sampling_rate: float, noise_multiplier: float, planned_steps: int | None
) -> None:
    """Warn of a number of canaries that the planned steps are too few for."""
    if planned_steps is None or noise_multiplier <= 0.0:
        return
    needed = present_needed(sampling_rate, noise_multiplier, planned_steps)
    # A third of what is advised has a power of about one half.
    if present >= math.ceil(needed / 3):
        return
    warnings.warn(
        f"{present:,} inserted canaries are too few for a verdict after {planned_steps:,} steps: "
        f"about {needed:,} are needed. Pass present={needed}, or leave the number to the audit.",
        AskGaussWarning,
        stacklevel=3,
    )
