"""Who is planted in a step, and whether batches are drawn as it was declared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import Canaries, Stream, random_stream
from askgauss.exceptions import FileFormatError, RecordingError
from askgauss.sampling import DrawnBatches, Poisson, Scheme
from askgauss.sampling.batch_testing import SchemeSums
from askgauss.sampling.recognising import Recogniser

__all__ = ["Planting"]

# Draws are made as they are asked for, so their number is no matter.
_ENDLESS = 1 << 62


class Planting:
    """Draws of the recorder's own, and the tests of those that somebody else made.

    Args:
        canaries: Who is planted where.
        scheme: How records are drawn; None where nobody said.
        records: Records the training draws its batches from, if known.
    """

    def __init__(self, canaries: Canaries, scheme: Scheme | None, records: int | None) -> None:
        self.scheme = scheme
        self._seed = canaries.root_seed
        self._present = np.flatnonzero(canaries.member)
        self._begin()
        own = getattr(scheme, "records", None)
        if own is not None and records not in (None, own):
            hint = "Say in both how many records there are in all."
            raise _validate.fail("records", records, f"= {own}, as in {scheme!r}", hint)
        self.records: int | None = records if own is None else own
        self._batches: SchemeSums | None = None
        self._plantings: SchemeSums | None = None
        self._recogniser: Recogniser | None = None

    # ------------------------------------------------------------------------------ own draws

    def _begin(self) -> None:
        self._coin = random_stream(self._seed, Stream.PLANTING)
        self._draws = None
        if self.scheme is not None and self._present.size:
            # One canary meets the law of the scheme; other records are not there to be drawn.
            alone = self.scheme.record_by_record()
            self._draws = alone.draw(self._coin, self._present.size, _ENDLESS)

    def draw(self) -> NDArray[np.int64]:
        """Canaries to plant in the next step."""
        return self._present[next(self._draws)] if self._draws else self._present[:0]

    @property
    def coin(self) -> dict[str, Any]:
        """State of the generator, its 128-bit integers as text: any JSON reader keeps those."""
        return dict(_integers_as_text(self._coin.bit_generator.state))

    def resume(self, draws: int, coin: dict[str, Any]) -> None:
        """Go on after so many draws, where the generator had this state.

        Raises:
            FileFormatError: No generator was ever in that state, or not after these draws.
        """
        state = _text_as_integers(coin)
        self._begin()
        try:
            if isinstance(self.scheme, (Poisson, type(None))) or draws == 0:
                # Nothing but the generator remembers what was drawn.
                self._coin.bit_generator.state = state
            else:
                for _ in range(draws):
                    self.draw()
                if self._coin.bit_generator.state != state:
                    raise ValueError(f"it is not the one after {draws} draws by {self.scheme}")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FileFormatError(f"Expected the state of a generator: {error}.") from error

    # ------------------------------------------------------------------------- others' draws

    def checked_batch(self, batch: ArrayLike | None, step: int) -> NDArray[np.int64] | None:
        """The records of a batch, or what is wrong with them."""
        if batch is None:
            if self._batches is not None:
                raise RecordingError("Expected batch in every step or in none, got none.")
            return None
        if self._batches is None and step > 0:
            raise RecordingError(f"Expected batch in every step or in none, got one after {step}.")
        if self.scheme is None or self.records is None:
            missing = "records" if self.scheme is not None else "sampling"
            raise RecordingError(
                f"Expected {missing}= to be given to the Recorder, got a batch without it: its "
                "records cannot be compared with how they should be drawn."
            )
        if self._batches is not None:
            return self._batches.indices(batch)
        # Nothing has been trained on: a declaration that cannot be meant is refused.
        first = SchemeSums(self.scheme, records=self.records)
        indices = first.indices(batch)
        first.add(np.unique(indices))
        rule = first.tests()[0]
        if rule.p_value == 0.0:
            raise RecordingError(
                f"Expected the first batch to be one of {self.scheme!r}, got {indices.size} "
                f"records: {rule.summary} Declare the scheme that draws them."
            )
        return indices

    def add(
        self, planted: NDArray[np.bool_], batch: NDArray[np.int64] | None, *, own_coin: bool
    ) -> None:
        """The next step: who was planted, and the records of its batch where they are known."""
        if batch is not None:
            assert self.scheme is not None
            if self._batches is None:
                self._batches = SchemeSums(self.scheme, records=self.records)
                if isinstance(self.scheme, Poisson) and self.records is not None:
                    self._recogniser = Recogniser(self.records)
            self._batches.add(batch)
            if self._recogniser is not None:
                self._recogniser.add(batch)
        # Under Poisson sampling the sums of the transcript say as much.
        if own_coin or self.scheme is None or isinstance(self.scheme, Poisson):
            return
        if self._plantings is None and self._present.size:
            self._plantings = SchemeSums(self.scheme, records=None, seen=self._present.size)
        if self._plantings is not None:
            self._plantings.add_inclusions(planted[self._present])

    @property
    def meets_the_sampler(self) -> bool:
        """Whether the training's own sampler was seen at work."""
        return self._batches is not None or self._plantings is not None

    @property
    def batches(self) -> DrawnBatches | None:
        """What the training's batches say of the scheme."""
        return None if self._batches is None else DrawnBatches.of(self._batches)

    @property
    def found(self) -> Scheme | None:
        """The scheme that the training's batches show, where it is another than the declared."""
        return None if self._recogniser is None else self._recogniser.found

    @property
    def plantings(self) -> DrawnBatches | None:
        """What the canaries say of it, where the user's sampler drew them."""
        return None if self._plantings is None else DrawnBatches.of(self._plantings)

    # ---------------------------------------------------------------------------- checkpoints

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything kept of others' draws, by a flat name."""
        return {
            f"{name}.{part}": array
            for name, sums in (("batches", self._batches), ("plantings", self._plantings))
            if sums is not None
            for part, array in sums.arrays().items()
        }

    def read_sums(
        self, state: dict[str, Any], steps: int
    ) -> tuple[SchemeSums | None, SchemeSums | None]:
        """The sums of others' draws in a checkpoint of so many steps."""
        found: list[SchemeSums | None] = []
        for name in ("batches", "plantings"):
            prefix = f"{name}."
            content = {
                key.removeprefix(prefix): value
                for key, value in state.items()
                if key.startswith(prefix) and isinstance(value, np.ndarray)
            }
            if not content or self.scheme is None:
                found.append(None)
                continue
            records = self.records if name == "batches" else None
            sums = SchemeSums.from_arrays(self.scheme, content, records=records)
            part = None if name == "batches" else self._present.size
            if sums.step != steps or part not in (None, sums.seen):
                raise FileFormatError(
                    f"Expected {name} of the checkpoint to be those of {steps} steps of this run, "
                    f"got {sums.step} of {sums.records or sums.seen} records."
                )
            found.append(sums)
        return found[0], found[1]

    def take(self, sums: tuple[SchemeSums | None, SchemeSums | None]) -> None:
        """Go on from what `read_sums` gave."""
        self._batches, self._plantings = sums
        # What was kept to recognise a scheme is in no checkpoint.
        self._recogniser = None


def _integers_as_text(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _integers_as_text(value) for key, value in state.items()}
    return f"int:{state}" if isinstance(state, int) else state


def _text_as_integers(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _text_as_integers(value) for key, value in state.items()}
    is_integer = isinstance(state, str) and state.startswith("int:")
    return int(state[4:]) if is_integer else state
