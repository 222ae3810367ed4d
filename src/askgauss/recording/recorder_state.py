"""What a checkpoint of a recorder holds, and how it is read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError
from askgauss.sampling import Scheme

__all__ = ["Progress", "part_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The plain values of a checkpoint."""

    fingerprint: str
    sampling_rate: float | None
    clip_norm: float
    own_coin: bool | None
    background: Literal["known", "unknown"] | None
    watched: int | None
    coin: dict[str, Any]
    stored: bool = False
    run: str | None = None
    stored_check: str | None = None
    monitor: dict[str, Any] | None = None
    scheme: Scheme | None = None
    resumed: tuple[int, ...] = ()


def part_of(
    state: dict[str, Any], name: str, like: NDArray[Any], length: int | None = None
) -> NDArray[Any]:
    """A copy of one array of a checkpoint, of the type and width of another."""
    given = state.get(name)
    if not (
        isinstance(given, np.ndarray)
        and given.dtype == like.dtype
        and given.ndim == like.ndim
        and given.shape[1:] == like.shape[1:]
        and len(given) == (len(given) if length is None else length)
    ):
        found = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else repr(given)
        wanted = (len(like) if length is None else length, *like.shape[1:])
        raise FileFormatError(
            f"Expected {name} of the checkpoint to be {like.dtype} {wanted}, got {found[:80]}. "
            "Load an older checkpoint."
        )
    return given.copy()
