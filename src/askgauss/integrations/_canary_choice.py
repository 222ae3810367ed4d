"""Which canaries an audit plants when its user leaves the choice, or part of it, open."""

from __future__ import annotations

from collections.abc import Callable

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.exceptions import InvalidArgumentError, UnsupportedError

__all__ = ["choose_canaries", "default_numbers"]

_CANARIES = 5000
_PRESENT = 1000
_PRESENT_ROWS = 32
_BLOCK = 16
# Fewer present canaries than these cannot be compared with absent ones.
_FEWEST = 2


def choose_canaries(
    given: int | DiracCanaries | BlockCanaries | None,
    *,
    sizes: tuple[int, ...],
    records: float,
    rows: bool,
    spread: bool,
    seed: int | None,
    draw_seed: Callable[[], int | None],
    most: int = _CANARIES,
) -> DiracCanaries | BlockCanaries:
    """The canaries given, checked against the model, or canaries that suit it.

    Args:
        given: Canaries, their number, or None.
        sizes: Sizes of the model's tensors.
        records: About how many records the run trains on.
        rows: Whether each planted canary is a whole row of per-example gradients.
        spread: Whether canaries have to reach into several tensors.
        seed: The seed the user gave.
        draw_seed: Where a seed comes from otherwise.
        most: How many canaries there are at most when their number is left open.
    """
    if isinstance(given, (DiracCanaries, BlockCanaries)):
        if seed is not None:
            raise _validate.fail("seed", seed, "to be None", "The canaries bring their own.")
        if given.tensor_sizes != sizes:
            raise InvalidArgumentError(
                f"Expected canaries with tensors={list(sizes)}, the sizes of the parameters, got "
                f"{list(given.tensor_sizes)}."
            )
        if spread and not isinstance(given, BlockCanaries):
            raise UnsupportedError(
                "Clipping layer by layer lets through more of a gradient spread over the layers "
                "than of a single coordinate: use BlockCanaries, which are spread, or a number."
            )
        return given
    if given is not None:
        _validate.integer(4, canaries=given)
    present, absent = None, None
    if given is None:
        places = sum(sizes) // (_BLOCK if spread else 1)
        present, absent = default_numbers(places, records, rows=rows, most=most)
        if present < _FEWEST:
            raise InvalidArgumentError(
                f"Expected a model with at least {_FEWEST * 4} places for canaries, got {places} "
                f"in {sum(sizes)} trainable parameters: {present} canaries would be present, and "
                f"an audit needs {_FEWEST}. Say how many with canaries=DiracCanaries(present=..., "
                "absent=..., tensors=...), use ExampleCanaries, or audit a larger model."
            )
    root = draw_seed() if seed is None else seed
    if spread:
        return BlockCanaries(
            count=given, present=present, absent=absent, tensors=sizes, seed=root, block=_BLOCK
        )
    return DiracCanaries(count=given, present=present, absent=absent, tensors=sizes, seed=root)


def default_numbers(
    places: int, records: float, *, rows: bool = False, most: int = _CANARIES
) -> tuple[int, int]:
    """How many present and how many absent canaries.

    A present canary is one more record whose clipped gradient is a single direction: no more than
    a twentieth of the records are. Over a run of epsilon 8, planting moves a coordinate about one
    and a half standard deviations of what the noise does to it; planted in a sixteenth of the
    places, canaries move the weights as 8 % more noise would. Beyond a thousand the bound hardly
    gains. Absent canaries change nothing; they fill up to ``most``, in half of the places at most,
    which leaves some to watch.

    Args:
        places: How many canaries there is room for.
        records: About how many records the run trains on.
        rows: Whether each planted canary costs a whole row of per-example gradients.
        most: How many canaries there are at most.

    Examples:
        >>> default_numbers(2_750_000, 50_000), default_numbers(4_810, 1_437)
        ((1000, 4000), (71, 2405))
    """
    limit = _PRESENT_ROWS if rows else min(_PRESENT, max(8, int(min(records, 1e9)) // 20))
    present = min(limit, max(8, places // 16), places // 4)
    return present, max(min(most - present, places // 2), 2)
