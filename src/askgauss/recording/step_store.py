"""Every step of a run in a file: written as the run goes by, read back through a memory map."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import Canaries
from askgauss.exceptions import FileFormatError, InvalidArgumentError, RecordingError
from askgauss.files import atomic, codec
from askgauss.files.atomic import Holds
from askgauss.recording.facts import RunFacts
from askgauss.scores import CanaryScores, ScoreMetadata

__all__ = ["StepStore", "StepWriter"]

_KIND = "askgauss-steps"
_SCHEMA = 3
# Bytes of the SHA-256 that ends the header, every row, and a whole store.
_CHECK_BYTES = 32
# The header of a step store is one line of JSON; a longer line is some other file.
_LINE = 1 << 22
# Values read at once when a step store is checked, or a score is summed over it.
_CHUNK = 1 << 20
# Bytes of steps held back before they go to the store's file.
_PENDING = 1 << 20


def _row_type(canaries: int, check: int = _CHECK_BYTES) -> np.dtype[np.void]:
    """One step in a step store: values, a bit for each inserted canary, and a check of both."""
    parts: list[Any] = [("values", "<f4", (canaries,)), ("planted", "u1", (_packed(canaries),))]
    return np.dtype([*parts, ("check", "u1", (check,))])


def _check(content: bytes, previous: bytes = b"") -> bytes:
    """The check that ends the header or a row; it covers everything before it."""
    return hashlib.sha256(previous + content).digest()


def _seal(last: bytes) -> bytes:
    """What ends a store that is whole; without it steps may be missing at its end."""
    return hashlib.sha256(b"end" + last).digest()


def _packed(canaries: int) -> int:
    """Bytes of one bit a canary, rounded up so that every row of values starts aligned."""
    return 4 * (-(-canaries // 32))


def _pack(flags: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """One bit a canary, padded with zeros."""
    bits = np.packbits(flags, bitorder="little")
    return np.pad(bits, (0, _packed(flags.size) - bits.size))


def _header_bytes(member: NDArray[np.bool_], fingerprint: str, facts: RunFacts) -> bytes:
    """The start of a step store, up to its first row."""
    content = {
        "canaries": member.size,
        "fingerprint": fingerprint,
        "facts": codec.to_plain(facts),
        "private": True,
    }
    line = codec.dumps(_KIND, _SCHEMA, content, None).encode("utf-8")
    line += b" " * (-(len(line) + 1) % 64) + b"\n"
    start = line + _pack(member).tobytes()
    return start + _check(start)


class StepStore:
    """Every step of a run as the recorder stored it, read through a memory map.

    The file is a line of JSON, the membership bits, then one row a step: a little-endian float32 a
    canary, and a bit a canary for whether it was planted. The header ends with its SHA-256, every
    row with the SHA-256 of the check before it and itself, and a whole store with that of ``end``
    and the last check. All of them are checked when the file is opened, so that no step can change,
    move or go missing. Like a transcript, it is as private as the training data.

    Args:
        path: What was given to ``Recorder(store=)``.
        steps: Read only so many steps, as the transcript or checkpoint counts them. A run that was
            killed leaves more behind, the last of them perhaps torn.

    Attributes:
        member: True where the canary was present.
        facts: What is known about the run.
        fingerprint: The fingerprint of its canaries.
        values: What was released about each canary, in clip norms of the step, one row a step; a
            read-only memory map.

    Raises:
        FileFormatError: The file is corrupt, foreign, of a newer schema, ends within a row, or
            holds fewer steps than asked for; or one of those it is to read is damaged.

    Examples:
        >>> import pathlib, tempfile, numpy as np, askgauss as ag
        >>> canaries = ag.DiracCanaries(present=5, absent=5, dimension=50, seed=0)
        >>> noise = np.random.default_rng(0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "steps")
        ...     recorder = ag.Recorder(canaries, sampling_rate=0.5, store=path)
        ...     for _ in range(3):
        ...         released = noise.normal(0, 0.1, 10)
        ...         released[recorder.sample()] += 1.0
        ...         recorder.observe(released)
        ...     transcript = recorder.transcript()
        ...     store = StepStore(path)
        ...     scores = store.likelihood_ratio_scores(noise_multiplier=0.1)
        ...     del store
        >>> scores
        CanaryScores(present=5, absent=5)
    """

    member: NDArray[np.bool_]
    facts: RunFacts
    fingerprint: str
    values: NDArray[np.float32]

    def __init__(self, path: str | os.PathLike[str], *, steps: int | None = None) -> None:
        if steps is not None:
            _validate.integer(1, steps=steps)
        self._path = Path(path)
        header = _read_header(self._path)
        self.member, self.facts, self.fingerprint = header.member, header.facts, header.fingerprint
        row = _row_type(self.member.size)
        whole, torn = divmod(self._path.stat().st_size - header.end, row.itemsize)
        if steps is None and (torn != _CHECK_BYTES or not whole):
            raise FileFormatError(
                f"Expected {str(path)!r} to end with a whole step and its seal, got {torn} bytes "
                f"more than {whole} steps: the run that wrote it was killed, or the end of it was "
                "lost. Pass steps= to read the ones its checkpoint counted."
            )
        if steps is not None and whole < steps:
            raise FileFormatError(
                f"Expected at least {steps} steps in {str(path)!r}, got {whole}: the end of it was "
                "lost. Read fewer steps, or restore the file."
            )
        rows = np.memmap(
            self._path, dtype=row, mode="r", offset=header.end, shape=(steps or whole,)
        )
        last = self._check(rows, header)
        if steps is None and self._ending() != _seal(last):
            raise FileFormatError(
                f"The seal of {str(path)!r} is damaged. Restore the file, or pass steps= to read "
                "the ones its checkpoint counted."
            )
        self.values, self._planted = rows["values"], rows["planted"]

    def _check(self, rows: NDArray[np.void], header: _Header) -> bytes:
        """Refuse rows that are not as they were written; the check of the last one."""
        check = header.check
        at_once = max(_CHUNK // self.member.size, 1)
        for start in range(0, len(rows), at_once):
            # Copied in one go: a memory map hands out single rows far more slowly.
            for step, row in enumerate(np.array(rows[start : start + at_once]), start):
                content = row.tobytes()
                check = _check(content[:-_CHECK_BYTES], check)
                if content[-_CHECK_BYTES:] != check:
                    raise FileFormatError(
                        f"Step {step + 1} of {str(self._path)!r} is damaged: its checksum does not "
                        "fit. Restore the file, or read the steps before it with steps=."
                    )
        return check

    def _ending(self) -> bytes:
        with self._path.open("rb") as stream:
            stream.seek(-_CHECK_BYTES, os.SEEK_END)
            return stream.read()

    @property
    def number_of_steps(self) -> int:
        """Number of steps read."""
        return len(self.values)

    @property
    def planted(self) -> NDArray[np.bool_]:
        """True where a canary was planted, one row a step; unpacked in memory."""
        return self._unpacked(slice(None))

    def _unpacked(self, rows: slice) -> NDArray[np.bool_]:
        bits = np.unpackbits(self._planted[rows], axis=1, count=self.member.size, bitorder="little")
        return bits.view(np.bool_)

    def __repr__(self) -> str:
        return f"StepStore({str(self._path)!r}, steps={self.number_of_steps})"

    def likelihood_ratio_scores(
        self, *, noise_multiplier: float | None = None, sampling_rate: float | None = None
    ) -> CanaryScores:
        """Sums over the steps of the log-likelihood ratio of a present to an absent canary.

        With x a step's value, sigma the noise multiplier and q the rate, a step adds
        ``ln(1 - q + q exp((x - 1/2) / sigma^2))``: the most powerful score there is, well above the
        plain sum where the noise multiplier is below 2. It reads the released values only, never
        when a canary was planted, so that auditors that guess may read it.

        Its law is not that of the sum: the metadata leaves out steps and sampling rate, and it is
        close to Gaussian only over many steps.

        Args:
            noise_multiplier: Noise multiplier to score with; the claimed one if not given. Any
                choice gives a valid score, the true one the best.
            sampling_rate: Sampling rate to score with; the recorder's if not given.

        Raises:
            InvalidArgumentError: A number is out of its range, or given neither here nor by the
                run.
            ScoresError: A value is nan or infinite.
        """
        sigma = self.facts.noise_multiplier if noise_multiplier is None else noise_multiplier
        rate = self.facts.sampling_rate if sampling_rate is None else sampling_rate
        for name, value in (("noise_multiplier", sigma), ("sampling_rate", rate)):
            if value is None:
                raise InvalidArgumentError(
                    f"Expected {name} to be given: the run did not say. Pass {name}=."
                )
        _validate.magnitude(noise_multiplier=sigma)
        _validate.within(0, 1, closed="right", sampling_rate=rate)
        assert sigma is not None
        assert rate is not None
        scores = np.zeros(self.member.size)
        rows = max(_CHUNK // self.member.size, 1)
        # A rate of one has no other term: its logarithm is -inf, and that is what is wanted.
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            without, planted = np.log1p(-rate), np.log(rate)
            for start in range(0, self.number_of_steps, rows):
                ratios = self.values[start : start + rows].astype(np.float64)
                ratios -= 0.5
                ratios /= sigma
                ratios /= sigma
                ratios += planted
                np.logaddexp(ratios, without, out=ratios)
                scores += ratios.sum(axis=0)
        return CanaryScores(
            score=scores,
            member=self.member,
            metadata=ScoreMetadata(
                background=self.facts.background,
                fair_coins=self.facts.fair_coins,
                run=self.facts.run,
                membership="randomised",  # in every step
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Header:
    """What a step store says before its first row, which begins ``end`` bytes in."""

    member: NDArray[np.bool_]
    facts: RunFacts
    fingerprint: str
    end: int
    check: bytes


def _read_header(path: Path) -> _Header:
    """The header of a step store; `FileFormatError` if the file is anything else."""
    with path.open("rb") as stream:
        line = stream.readline(_LINE)
        try:
            content = codec.loads(line, _KIND, _SCHEMA)
            count = codec.from_plain(int, content.get("canaries"), "canaries")
            if count < 1:
                raise FileFormatError(f"Expected canaries >= 1, got {count}.")
            # Compared with the file first: a header may lie about how much there is to read.
            if len(line) + _packed(count) + _CHECK_BYTES > path.stat().st_size:
                raise FileFormatError(f"Expected the membership of {count} canaries, got its end.")
            bits, check = stream.read(_packed(count)), stream.read(_CHECK_BYTES)
            if check != _check(line + bits):
                raise FileFormatError("Its header is damaged: the checksum does not fit.")
            facts: RunFacts = codec.from_plain(RunFacts, content.get("facts"), "facts")
            member = np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little")
            member.setflags(write=False)
            return _Header(
                member=member.view(np.bool_),
                facts=facts,
                fingerprint=codec.from_plain(str, content.get("fingerprint"), "fingerprint"),
                end=len(line) + len(bits) + _CHECK_BYTES,
                check=check,
            )
        except FileFormatError as error:
            raise FileFormatError(f"Cannot read {str(path)!r}: {error}") from error


class StepWriter:
    """Appends steps to the file that `StepStore` reads; no handle stays open between writes.

    The file is held from the beginning, so that a second copy of a run is refused before it can
    write, and not the first one after.

    Raises:
        RecordingError: A live run writes to it.
    """

    def __init__(self, path: str | os.PathLike[str], canaries: Canaries) -> None:
        self._path = Path(path)
        self._holds = Holds()
        self._holds.take(path)
        self._canaries = canaries
        self._row = np.zeros((), dtype=_row_type(canaries.size, check=0))
        self._pending = bytearray()
        self._end: int | None = None
        self._steps = 0
        # The check of the last step, and of the last one that the file has.
        self._last = self._written = b""
        self._sealed = False
        self._torn = False

    @property
    def last_check(self) -> str | None:
        """The check of the last step in hexadecimal, which stands for all steps; None before."""
        return self._last.hex() if self._steps else None

    def hold(self) -> None:
        """Keep even other writers of this process from the file.

        Raises:
            RecordingError: One of them is at work, or a live run.
        """
        self._holds.take(self._path, alone=True)

    def release(self) -> None:
        """Let another process write to the file; this one holds it while it writes."""
        self._holds.let_go()

    def append(
        self, values: NDArray[np.float64], flags: NDArray[np.bool_], facts: Callable[[], RunFacts]
    ) -> None:
        """Add one step; ``facts`` is asked once, when the file is begun."""
        if self._end is None:
            self._begin(facts())
        self._row["values"] = values
        self._row["planted"] = _pack(flags)
        content, before = self._row.tobytes(), self._last
        self._last = _check(content, before)
        self._pending += content + self._last
        self._steps += 1
        if len(self._pending) >= _PENDING:
            try:
                self.flush()
            except BaseException:
                # The caller is told that this step was not recorded; earlier ones were.
                del self._pending[-len(content) - len(self._last) :]
                self._steps -= 1
                self._last = before
                raise

    def _begin(self, facts: RunFacts) -> None:
        # Its folder may not have been there before.
        self._holds.take(self._path)
        if self._path.exists():
            raise RecordingError(
                f"Expected store {str(self._path)!r} not to exist when a run begins. Load the "
                "run's checkpoint to go on with it, or delete it, or store elsewhere."
            )
        header = _header_bytes(self._canaries.member, self._canaries.fingerprint(), facts)
        with atomic.atomic_write(self._path, private=True) as stream:
            stream.write(header)
        self._end = len(header)
        self._last = self._written = header[-_CHECK_BYTES:]

    def flush(self, *, seal: bool = False, sync: bool = False) -> None:
        """Hand what is pending to the file, with ``seal`` its end, and with ``sync`` to the disk.

        Raises:
            RecordingError: Something else wrote to the file meanwhile, or is about to.
            OSError: It cannot be written.
        """
        if self._end is None or not (self._pending or sync or (seal and not self._sealed)):
            return
        fresh = self._holds.take(self._path)
        try:
            self._write(seal, sync)
        finally:
            if fresh:
                self._holds.let_go()

    def _write(self, seal: bool, sync: bool) -> None:
        assert self._end is not None
        # Whatever fails from here on may leave some bytes behind.
        torn, self._torn = self._torn, True
        with self._path.open("r+b") as stream:
            try:
                self._check_untouched(stream, torn)
            except RecordingError:
                self._torn = torn
                raise
            # Overwrites the seal, and what a write that failed half way left there.
            stream.seek(self._end)
            stream.write(self._pending)
            if seal:
                stream.write(_seal(self._last))
            stream.truncate()
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        self._end += len(self._pending)
        self._written, self._sealed, self._torn = self._last, seal, False
        self._pending.clear()

    def _check_untouched(self, stream: IO[bytes], torn: bool) -> None:
        """Refuse to write behind steps that are not the ones this run wrote."""
        assert self._end is not None
        size = stream.seek(0, os.SEEK_END)
        expected = self._end + (_CHECK_BYTES if self._sealed else 0)
        if size < self._end:
            raise RecordingError(
                f"Expected store {str(self._path)!r} to hold {self._end} bytes, got fewer: "
                "something else cut it. Load the last checkpoint."
            )
        stream.seek(self._end - len(self._written))
        written = stream.read(len(self._written))
        if (size != expected and not torn) or written != self._written:
            raise RecordingError(
                f"Expected store {str(self._path)!r} to end with the steps this run wrote, got "
                "others: another copy of the run writes to it. Stop one of them, and load the last "
                "checkpoint."
            )

    def resume(self, steps: int, *, run: str | None, check: str | None) -> None:
        """Cut the file back to the steps of a checkpoint: the run goes on from there.

        Args:
            steps: Steps of the checkpoint.
            run: The run's identity; None where a checkpoint does not know.
            check: The check of the last of these steps; None likewise.
        """
        self._holds.take(self._path)
        end, last = None, b""
        if self._path.exists():
            header = _read_header(self._path)
            if header.fingerprint != self._canaries.fingerprint():
                raise RecordingError(
                    f"Expected store {str(self._path)!r} to be of this run, got one of other "
                    "canaries. Give the path this run began with."
                )
            if steps and None not in (run, header.facts.run) and run != header.facts.run:
                raise RecordingError(
                    f"Expected store {str(self._path)!r} to be of run {run}, which the checkpoint "
                    f"is of, got run {header.facts.run}. Give the store and the checkpoint of one "
                    "run."
                )
            end = header.end + steps * _row_type(self._canaries.size).itemsize
        if steps and (end is None or self._path.stat().st_size < end):
            raise RecordingError(
                f"Expected store {str(self._path)!r} to hold the {steps} steps of the checkpoint, "
                "got fewer. Restore the file, or load an older checkpoint."
            )
        if steps and end is not None:
            with self._path.open("r+b") as stream:
                stream.seek(end - _CHECK_BYTES)
                last = stream.read(_CHECK_BYTES)
                if check is not None and last.hex() != check:
                    raise RecordingError(
                        f"Expected store {str(self._path)!r} to hold the steps of the checkpoint, "
                        "got others: another copy of the run wrote to it. Restore the file, or "
                        "load the checkpoint it was written with."
                    )
                stream.seek(end)
                stream.write(_seal(last))
                stream.truncate()
        else:
            self._path.unlink(missing_ok=True)
            end = None
        self._end, self._steps = end, steps
        self._last = self._written = last
        self._sealed, self._torn = bool(end), False
        self._pending.clear()
