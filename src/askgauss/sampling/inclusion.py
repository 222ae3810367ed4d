"""Which canaries are included in a step, and tests of the draws that others made."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import Canaries, Stream, random_stream
from askgauss.exceptions import FileFormatError, RecordingError
from askgauss.sampling.batch_testing import DrawnBatches, SchemeSums
from askgauss.sampling.registry import Recogniser, assumed_poisson
from askgauss.sampling.scheme import Scheme

__all__ = ["NEVER", "Inclusion", "broken_counts", "broken_rule"]

# Draws of smaller probability do not happen, in however many files.
NEVER = 1e-12

# Draws are made as they are asked for, so their number is no matter.
_ENDLESS = 1 << 62


class Inclusion:
    """The recorder's draws of canaries, and the tests of draws by the training's sampler.

    Args:
        canaries: The canaries.
        scheme: How records are drawn; None where not declared.
        records: Records the training draws its batches from, if known.
    """

    def __init__(self, canaries: Canaries, scheme: Scheme | None, records: int | None) -> None:
        self.scheme = scheme
        self._present = np.flatnonzero(canaries.member)
        self._generator = random_stream(canaries.root_seed, Stream.PLANTING)
        self._draws = None
        if scheme is not None and self._present.size:
            # Canaries are drawn without the other records, each as the scheme draws one record.
            alone = scheme.record_by_record()
            self._draws = alone.draw(self._generator, self._present.size, _ENDLESS)
        own = getattr(scheme, "records", None)
        if own is not None and records not in (None, own):
            hint = "Say in both how many records there are in all."
            raise _validate.fail("records", records, f"= {own}, as in {scheme!r}", hint)
        self.records: int | None = records if own is None else own
        self._batches: SchemeSums | None = None
        self._plantings: SchemeSums | None = None
        self._recogniser: Recogniser | None = None

    # ------------------------------------------------------------------------------ own draws

    def draw(self) -> NDArray[np.int64]:
        """Canaries to include in the next step."""
        return self._present[next(self._draws)] if self._draws else self._present[:0]

    @property
    def generator_state(self) -> dict[str, Any]:
        """State of the generator, its 128-bit integers as text: any JSON reader keeps those."""
        return dict(_integers_as_text(self._generator.bit_generator.state))

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
        self, planted: NDArray[np.bool_], batch: NDArray[np.int64] | None, *, own: bool
    ) -> None:
        """The next step: canaries in it, and the records of its batch where they are known.

        ``own`` says that the recorder drew the canaries.
        """
        if batch is not None:
            assert self.scheme is not None
            if self._batches is None:
                self._batches = SchemeSums(self.scheme, records=self.records)
                if assumed_poisson(self.scheme) and self.records is not None:
                    self._recogniser = Recogniser(self.records)
            self._batches.add(batch)
            if self._recogniser is not None:
                self._recogniser.add(batch)
        # Under Poisson sampling the sums of the transcript hold the same information.
        if own or self.scheme is None or assumed_poisson(self.scheme):
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
        """The tests of the training's batches."""
        return None if self._batches is None else DrawnBatches.of(self._batches)

    @property
    def found(self) -> Scheme | None:
        """The scheme that the training's batches show, where it is another than the declared."""
        return None if self._recogniser is None else self._recogniser.found

    @property
    def plantings(self) -> DrawnBatches | None:
        """The tests of the canaries' draws, where the user's sampler made them."""
        return None if self._plantings is None else DrawnBatches.of(self._plantings)

    # ---------------------------------------------------------------------------- checkpoints

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The sums of others' draws, by a flat name."""
        return {
            f"{name}.{part}": array
            for name, sums in (("batches", self._batches), ("plantings", self._plantings))
            if sums is not None
            for part, array in sums.arrays().items()
        }

    def resume(
        self, draws: int, generator_state: dict[str, Any], state: dict[str, Any], steps: int
    ) -> None:
        """Continue a run, as a fresh object, from its checkpoint.

        Args:
            draws: Draws made so far.
            generator_state: State of the generator after them.
            state: The checkpoint, with what `arrays` gave.
            steps: Steps observed so far.

        Raises:
            FileFormatError: No generator was ever in that state, or not after these draws; or the
                sums of others' draws are not those of so many steps of this run.
        """
        known = _text_as_integers(generator_state)
        try:
            if assumed_poisson(self.scheme) or draws == 0:
                # Draws are independent of those before: the generator is the whole state.
                self._generator.bit_generator.state = known
            else:
                for _ in range(draws):
                    self.draw()
                if self._generator.bit_generator.state != known:
                    raise ValueError(f"it is not the one after {draws} draws by {self.scheme}")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FileFormatError(f"Expected the state of a generator: {error}.") from error
        # What was kept to recognise a scheme is in no checkpoint.
        self._batches = self._read_sums("batches", state, steps, self.records)
        self._plantings = self._read_sums("plantings", state, steps, None)

    def _read_sums(
        self, name: str, state: dict[str, Any], steps: int, records: int | None
    ) -> SchemeSums | None:
        content = {
            key.removeprefix(f"{name}."): value
            for key, value in state.items()
            if key.startswith(f"{name}.") and isinstance(value, np.ndarray)
        }
        if not content or self.scheme is None:
            return None
        sums = SchemeSums.from_arrays(self.scheme, content, records=records)
        if sums.step != steps or (name == "plantings" and sums.seen != self._present.size):
            raise FileFormatError(
                f"Expected {name} of the checkpoint to be those of {steps} steps of this run, "
                f"got {sums.step} of {sums.records or sums.seen} records."
            )
        return sums


def _integers_as_text(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _integers_as_text(value) for key, value in state.items()}
    return f"int:{state}" if isinstance(state, int) else state


def _text_as_integers(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _text_as_integers(value) for key, value in state.items()}
    is_integer = isinstance(state, str) and state.startswith("int:")
    return int(state[4:]) if is_integer else state


def broken_counts(
    scheme: Scheme, counts: NDArray[np.int64], steps: int, present: NDArray[np.bool_] | None = None
) -> str:
    """What is impossible in how often each record was drawn; empty if nothing is.

    The recorder draws canaries independently, by nothing but the scheme: counts that cannot come
    from the stated scheme are those of a damaged or forged file.

    Args:
        scheme: How each is drawn.
        counts: In how many of the steps each was.
        steps: Number of steps.
        present: Which of them could be drawn; the others were not. All if not given.
    """
    records = counts.size if present is None else int(np.count_nonzero(present))
    if records == 0:
        return ""
    fewest, most = scheme.draws_within(steps)
    # Ten million canaries are picked out only where it matters.
    able = counts if present is None or fewest == 0 else counts[present]
    least, largest = int(able.min()), int(able.max())
    if least < fewest or largest > most:
        odd = largest if largest > most else least
        allowed = str(most) if fewest == most else f"{fewest} to {most}"
        return f"a canary planted in {odd:,} of {steps:,} steps, where it allows {allowed}"
    drawn = int(counts.sum())
    if scheme.count_p_value(drawn, records=records, steps=steps) < NEVER:
        return f"plantings at rate {drawn / (records * steps):.3g}, of odds below {NEVER:g}"
    return ""


def broken_rule(scheme: Scheme, included: NDArray[np.bool_]) -> str:
    """What is impossible in when records were drawn, one row a step; empty if nothing is."""
    # These have no rule: any step may draw any record or leave it out.
    if included.size == 0 or scheme.draws_within(2) == (0, 2):
        return ""
    sums = SchemeSums(scheme, records=None, seen=included.shape[1])
    for step, row in enumerate(included):
        sums.add_inclusions(row)
        if sums.broken is not None:
            return f"other canaries planted in step {step + 1} than it may plant there"
    return ""
