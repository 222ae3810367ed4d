"""The replay itself: one training function, run in every world with the same coins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from askgauss import __version__, _validate
from askgauss._text import one_line
from askgauss.exceptions import (
    AskGaussError,
    InvalidArgumentError,
    NotDeterministicError,
    ReplayError,
)
from askgauss.replay import coupled_randomness
from askgauss.replay.comparing import PairComparison, compare, first_difference, together
from askgauss.replay.neighbouring_data import LEFT_OUT, REPLACED, World, worlds_of
from askgauss.replay.replay_recording import Enough, Recording, Replay
from askgauss.replay.replay_report import ADJACENCIES, Adjacency, ReplayReport, after, decide

__all__ = ["replay"]

# Every one is recorded three times over, in memory.
_MOST_STEPS = 10**5


def replay(
    train: Callable[[Any, Replay], object],
    data: Any,
    *,
    leave_out: int | None = None,
    replace: int | None = None,
    replacement: Any = None,
    steps: int = 5,
    adjacency: Adjacency | None = None,
    plant: bool = True,
    seed: int = 0,
) -> ReplayReport:
    """Run a few steps of a training on neighbouring data with the same coins, and compare.

    The training runs twice on the data as given: it must do the same both times. Then it runs
    without the record, and with another one in its place. Batches are the same but for the record,
    the noise is the same, and after each release all worlds go on from that of the first. So a
    noisy sum may differ by a clip norm in the steps whose batches have the record, and nothing
    else may differ at all.

    Args:
        train: The training function. It takes the data of a world and a `Replay`, from which it
            takes batches and noise, and which it tells what it lets out.
        data: Records: an array, a tuple or mapping of arrays of equal length, a list, a table, or a
            dataset with a length and indexing.
        leave_out: The record to leave out, by its index.
        replace: The record to replace instead, where the number of records is public.
        replacement: What stands in its place; another record of the data if not given.
        steps: How many steps to take.
        adjacency: The one the run claims, which the verdict is about: ``"add-remove"`` with
            ``leave_out`` and ``"replace-one"`` with ``replace`` if not given, or ``"zero-out"``.
        plant: Whether to put the record into the batch of every other step, in place of the batch's
            last one. If not, it is where the sampler puts it.
        seed: Where batches and noise come from.

    Returns:
        What differed, and the verdict.

    Raises:
        NotDeterministicError: Two runs on the same data differ.
        ReplayError: The training fails in all worlds.
        InvalidArgumentError: An argument is outside its range, or the data have no records.

    Guarantee:
        A VIOLATION is one: with the same coins and the same releases so far, something that went
        public was another thing because of one record.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> def train(data, replay):
        ...     weights = np.zeros(3)
        ...     for batch in replay.batches(rate=0.2):
        ...         rows = data[batch] - weights
        ...         rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
        ...         noise = replay.generator().normal(size=3)
        ...         noisy = replay.release(rows.sum(axis=0), noise=noise, clip_norm=1.0)
        ...         weights += 0.1 * noisy / replay.public("divisor", len(batch))
        >>> report = ag.replay(train, np.random.default_rng(0).normal(size=(50, 3)), leave_out=17)
        >>> report.verdict, report.differences[0].leak_under
        (<Verdict.VIOLATION: 'VIOLATION'>, ('add-remove',))
    """
    if not callable(train):
        raise _validate.fail("train", train, "to be a function of data and replay")
    hint = "What a record moves shows in a few steps: replay those."
    _validate.count(maximum=_MOST_STEPS, hint=hint, steps=steps)
    _validate.integer(0, seed=seed)
    claimed = _claimed(adjacency, leave_out)
    given, *neighbours = worlds_of(
        data, leave_out=leave_out, replace=replace, replacement=replacement
    )
    with coupled_randomness.preserved():
        first = _run(train, given, None, steps=steps, seed=seed, plant=plant)
        again = _run(train, given, first, steps=steps, seed=seed, plant=plant)
        parted = first_difference(first, again)
        if parted:
            raise NotDeterministicError(
                f"Two runs of the training on the same data differ: {parted}. Replay can tell "
                "nothing apart then. Take noise from replay.generator() or hand its generator to "
                "replay.couple(), and leave times and addresses out of what is recorded."
            )
        comparisons, failures = [], []
        for world in neighbours:
            recording = _run(train, world, first, steps=steps, seed=seed, plant=plant)
            failures.append(recording.failure)
            comparisons.append(compare(first, again, recording, world.name))
    _check_failures(first, failures)
    return _report(claimed, given, neighbours, first, comparisons, steps, seed)


def _claimed(adjacency: str | None, leave_out: int | None) -> Adjacency:
    if adjacency is None:
        return "add-remove" if leave_out is not None else "replace-one"
    _validate.one_of(ADJACENCIES, adjacency=adjacency)
    if leave_out is None and adjacency != "replace-one":
        raise InvalidArgumentError(
            f"Expected leave_out= with adjacency={adjacency!r}, got replace=. Where a record is "
            "replaced a sum may move by two clip norms, which says little about leaving one out."
        )
    return next(item for item in ADJACENCIES if item == adjacency)


def _run(
    train: Callable[[Any, Replay], object],
    world: World,
    reference: Recording | None,
    *,
    steps: int,
    seed: int,
    plant: bool,
) -> Recording:
    """One world's training, and what it let out."""
    handle = Replay(world, steps=steps, seed=seed, plant=plant, reference=reference)
    try:
        train(world.make(), handle)
    except Enough:
        pass
    except AskGaussError:
        raise
    except Exception as error:  # noqa: BLE001  (what the training raises is a part of what it lets out)
        handle.recording.failure = error
    handle.finish()
    return handle.recording


def _check_failures(first: Recording, others: list[Exception | None]) -> None:
    if first.failure is not None and all(
        item is not None and _named(item) == _named(first.failure) for item in others
    ):
        raise ReplayError(
            "Expected a training that runs, got one that fails in all worlds after "
            f"{first.steps} steps: {one_line(_named(first.failure), 300)}. Mend it first."
        ) from first.failure


def _named(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}"


def _report(
    adjacency: Adjacency,
    given: World,
    neighbours: list[World],
    first: Recording,
    comparisons: list[PairComparison],
    steps: int,
    seed: int,
) -> ReplayReport:
    differences = tuple(together(comparisons))
    doubts = [f"{text} ({item.world})" for item in comparisons for text in item.doubts]
    unmet = _unmet(first, comparisons)
    verdict, reason = decide(adjacency, given.record, differences, unmet + doubts)
    notes = [*doubts, *unmet]
    if first.cut:
        notes.append(after(first.steps))
    left_out = next((item for item in comparisons if item.world == LEFT_OUT), comparisons[0])
    return ReplayReport(
        verdict=verdict,
        reason=reason,
        adjacency=adjacency,
        record=given.record,
        records=given.size,
        worlds=tuple(
            name for name in (LEFT_OUT, REPLACED) if name in [world.name for world in neighbours]
        ),
        source=neighbours[-1].source,
        steps=first.steps,
        asked=steps,
        present=tuple(sorted(first.present)),
        differences=differences,
        moved=left_out.moved,
        elsewhere=left_out.elsewhere,
        compared=left_out.compared,
        not_checked=tuple(notes),
        seed=seed,
        version=__version__,
    )


def _unmet(first: Recording, comparisons: list[PairComparison]) -> list[str]:
    """What stands between an absence of differences and a verdict."""
    unmet = []
    released = any(event.kind == "release" for event in first.events)
    if first.steps == 0:
        unmet.append("the training took no step: nothing was released")
    elif not released:
        unmet.append(
            "no noisy sum was recorded: pass it through replay.release(), or follow the optimizer"
        )
    if first.batches and not first.present:
        unmet.append(
            f"none of the {len(first.batches)} batches had the record: leave plant=True, or take "
            "more steps"
        )
    moved = max((item.moved or 0.0 for item in comparisons), default=0.0)
    if released and moved == 0.0 and (first.present or not first.batches):
        unmet.append(
            "no release moved at all when the record was changed: the training may not look at "
            "the data it gets, or clips the record to nothing"
        )
    return unmet
