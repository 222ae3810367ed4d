"""A scheme, however it was said."""

from __future__ import annotations

from typing import Any

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError
from askgauss.sampling.independent import Poisson
from askgauss.sampling.scheme import Scheme

__all__ = ["scheme_of"]


def scheme_of(sampling: Scheme | None, sampling_rate: float | None) -> Scheme | None:
    """The one scheme that two ways to say it come to.

    Raises:
        InvalidArgumentError: They contradict each other, or the first is no scheme.
    """
    given: Any = sampling
    if not isinstance(given, (Scheme, type(None))):
        hint = "Make one of askgauss.sampling: Poisson(rate=0.05), Shuffled(batches=20), ..."
        raise _validate.fail("sampling", sampling, "to be a sampling scheme", hint)
    if sampling_rate is None:
        return sampling
    _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    poisson = Poisson(rate=float(sampling_rate))
    if sampling not in (None, poisson):
        raise InvalidArgumentError(
            f"Expected one of sampling and sampling_rate, got {sampling!r} and {sampling_rate!r}, "
            "which means Poisson sampling. Leave out sampling_rate."
        )
    return poisson
