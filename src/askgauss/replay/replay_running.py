"""A replay: a training function run on neighbouring datasets with the same randomness."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import __version__, _validate
from askgauss._text import one_line
from askgauss.exceptions import (
    AskGaussError,
    InvalidArgumentError,
    NotDeterministicError,
    ReplayError,
)
from askgauss.replay.neighbouring_data import LEFT_OUT, REPLACED, World, worlds_of
from askgauss.replay.replay_recording import (
    Enough,
    RecordedEvent,
    Recording,
    Release,
    Replay,
    preserved,
)
from askgauss.replay.replay_report import (
    ADJACENCIES,
    Adjacency,
    Difference,
    ReplayReport,
    after,
    decide,
)

__all__ = ["PairComparison", "compare", "first_difference", "replay", "together"]

# Sums over batches of other sizes are rounded otherwise: less than this much of a clip norm is
# nothing, nor are so many roundings of the sum itself.
_NEGLIGIBLE = 1e-3
_ROUNDINGS = 64.0
# How the last bits of weights may fall is up to where they lie in memory.
_LAST_BITS = 4.0
_UNKNOWN_NOISE = (
    "its noise is from a generator that replay does not know, or that was drawn from more often in "
    "one dataset: take it from replay.generator(), or pass the generator to replay.couple()"
)
# Differences that may bring others after them.
_LASTING = ("state", "control flow", "noise")


def first_difference(reference: Recording, other: Recording) -> str:
    """Where two recordings of the same dataset differ, in words; empty where they do not."""
    if reference.steps != other.steps:
        return f"{reference.steps} steps in the first run and {other.steps} in the second"
    if _failure(reference) != _failure(other):
        return f"the first run ended in {_failure(reference)}, the second in {_failure(other)}"
    for one, two in zip(reference.events, other.events, strict=False):
        if (one.step, one.kind, one.name) != (two.step, two.kind, two.name):
            return f"{one.name!r} came in step {one.step} where {two.name!r} came at first"
        if one.kind == "seed":
            continue
        same = (
            _same_release(one.value, two.value)
            if one.kind == "release"
            else _size(one.value, two.value, exact=one.kind != "state") == 0.0
        )
        if not same:
            return f"{one.name!r} in step {one.step}"
    if len(reference.events) != len(other.events):
        return f"{len(reference.events)} things were recorded, then {len(other.events)}"
    return ""


def _same_release(one: Release, two: Release) -> bool:
    pairs = [(one.given, two.given), (one.total, two.total)]
    return all(len(a) == len(b) and _norm(a, b) <= _slack(one, two) for a, b in pairs)


def compare(reference: Recording, again: Recording, other: Recording, world: str) -> PairComparison:
    """The data as given against one of its neighbours.

    Args:
        reference: The data as given.
        again: The same a second time: seeds that differ there are drawn afresh, as they should be.
        other: The neighbour.
        world: What kind of neighbour it is.
    """
    repeated = again.by_place()
    fresh = {
        (event.kind, event.name)
        for place, event in reference.by_place().items()
        if event.kind == "seed" and place in repeated and repeated[place].value != event.value
    }
    return PairComparison(reference, other, world, fresh)


class PairComparison:
    """The recordings of two neighbouring datasets, compared in one pass.

    Attributes:
        world: How the second one differs.
        differences: What may not differ and did, in the order it came.
        moved: The most a release moved in steps with the record, in clip norms; None if there
            were none.
        elsewhere: The same in steps without it.
        compared: How often each thing was compared, by name.
        doubts: What could not be compared, and why.
    """

    def __init__(
        self, reference: Recording, other: Recording, world: str, fresh: set[tuple[str, str]]
    ) -> None:
        self.reference, self.other, self.world = reference, other, world
        self.differences: list[Difference] = []
        self.moved: float | None = None
        self.elsewhere: float | None = None
        self.compared: dict[str, int] = {}
        self.doubts: list[str] = list(dict.fromkeys([*reference.notes, *other.notes]))
        self._places: dict[tuple[str, str], int] = {}
        self._walk(fresh)

    def _walk(self, fresh: set[tuple[str, str]]) -> None:
        ours, theirs = self.reference.by_place(), self.other.by_place()
        common = min(self.reference.steps, self.other.steps)
        ended = _failure(self.reference) != _failure(self.other)
        for place, event in ours.items():
            twin = theirs.get(place)
            if (event.kind, event.name) in fresh:
                continue
            if twin is not None:
                self.compared[event.name] = self.compared.get(event.name, 0) + 1
                self._pair(event, twin)
            elif event.step <= common and not ended:
                self._lonely(event, with_record=True)
        for place, event in theirs.items():
            if place not in ours and event.step <= common and not ended:
                self._lonely(event, with_record=False)
        if self.reference.steps != self.other.steps:
            values = (str(self.reference.steps), str(self.other.steps))
            gap = abs(self.reference.steps - self.other.steps)
            self._note("number of steps", "control flow", common + 1, values, float(gap))
        if ended:
            step = common if self.reference.steps == self.other.steps else common + 1
            values = (_failure(self.reference), _failure(self.other))
            self._note("how the training ended", "exception", step, values)
        self.compared["number of steps"] = 1
        self.compared["how the training ended"] = 1

    def _pair(self, event: RecordedEvent, twin: RecordedEvent) -> None:
        if event.kind == "release":
            self._releases(event, twin)
            return
        size = _size(event.value, twin.value, exact=event.kind != "state")
        if size == 0.0:
            return
        values = (_shown(event.value), _shown(twin.value))
        if values[0] == values[1]:
            values = (one_line(repr(event.value), 60), one_line(repr(twin.value), 60))
        finite = size if math.isfinite(size) and event.kind != "seed" else None
        self._note(event.name, event.kind, event.step, values, finite)

    def _lonely(self, event: RecordedEvent, *, with_record: bool) -> None:
        values = ("recorded", "nothing") if with_record else ("nothing", "recorded")
        self._note(event.name, "control flow", event.step, values)

    def _releases(self, event: RecordedEvent, twin: RecordedEvent) -> None:
        one, two = event.value, twin.value
        if [item.shape for item in one.given] != [item.shape for item in two.given]:
            values = tuple(str([item.shape for item in side.given]) for side in (one, two))
            self._note(event.name, "release", event.step, values)
            return
        if one.clip_norm != two.clip_norm:
            values = (f"{one.clip_norm:.8g}", f"{two.clip_norm:.8g}")
            gap = abs(one.clip_norm - two.clip_norm)
            self._note(f"clip norm of {event.name}", "public", event.step, values, gap)
        certain = self._same_noise(event, one, two)
        clip_norm = max(one.clip_norm, two.clip_norm)
        size = _norm(one.total, two.total) / clip_norm
        slack = _slack(one, two) / clip_norm
        known = bool(self.reference.present)
        here = event.step in self.reference.present
        allowed = (2.0 if self.world == REPLACED else 1.0) if here or not known else 0.0
        if size > allowed + slack and not certain:
            doubt = one.doubt or two.doubt or _UNKNOWN_NOISE
            self._doubt(
                event.name, f"moved by {size:.3g} clip norms in step {event.step}, and {doubt}"
            )
            return
        if here or not known:
            self.moved = max(self.moved or 0.0, size)
        else:
            self.elsewhere = max(self.elsewhere or 0.0, size)
        if size > allowed + slack or math.isnan(size):
            where = "its batch has the record" if here else "no batch of the step has the record"
            if not known:
                where = "which steps have the record is not known"
            values = (f"{size:.4g} clip norms apart", f"{allowed:g} allowed, as {where}")
            self._note(event.name, "release", event.step, values, size)

    def _same_noise(self, event: RecordedEvent, one: Release, two: Release) -> bool:
        """Whether the sums can be compared: their noise is known, or known to be the same."""
        if one.doubt or two.doubt:
            return False
        if one.noise is None or two.noise is None:
            return one.coupled is not None and one.coupled == two.coupled
        if _norm(one.noise, two.noise) > _slack(one, two) + _noise_slack(one):
            # From generators that started alike, and were drawn from alike, comes the same noise.
            if one.coupled is not None and one.coupled == two.coupled:
                values = ("drawn alike for both datasets", "not the same")
                self._note(f"noise of {event.name}", "noise", event.step, values)
            else:
                self._doubt(
                    f"noise of {event.name}", f"differs in step {event.step}, and {_UNKNOWN_NOISE}"
                )
        return True

    def _doubt(self, name: str, text: str) -> None:
        """Say once of each thing why it cannot be compared."""
        if not any(item.startswith(f"{name} ") for item in self.doubts):
            self.doubts.append(f"{name} {text}")

    def _note(
        self,
        name: str,
        kind: str,
        step: int,
        values: tuple[str, ...],
        size: float | None = None,
    ) -> None:
        """One more difference; later ones of the same thing only raise its numbers."""
        place = (kind, name)
        if place in self._places:
            index = self._places[place]
            old = self.differences[index]
            largest = size if old.size is None else max(old.size, size or 0.0)
            self.differences[index] = old.again(step, largest)
            return
        self._places[place] = len(self.differences)
        # Releases are the same for both datasets from where they were passed on, so little follows
        # from anything: all from the state, and the state from whatever moves it.
        earlier = [item for item in self.differences if kind == "state" or item.kind in _LASTING]
        self.differences.append(
            Difference(
                name=name,
                kind=kind,
                step=step,
                steps=(step,),
                size=size,
                values=(values[0], values[1]),
                worlds=(self.world,),
                leak_under=(),
                follows=earlier[0].name if earlier else "",
            )
        )


def together(comparisons: list[PairComparison]) -> list[Difference]:
    """The differences of all pairs of datasets, each with the adjacencies it is a leak under.

    What shows where the record was replaced is a leak under all three: from a record to another
    one leads a way over its absence, and on one half of it the thing must differ. What shows only
    where the record was left out follows from the number of records or of slots, which the other
    two adjacencies take for public; a sum beyond its bound does not.
    """
    merged: dict[tuple[str, str], Difference] = {}
    for comparison in comparisons:
        for index, item in enumerate(comparison.differences):
            place = (item.kind, item.name)
            if place in merged:
                merged[place] = merged[place].also(item)
                continue
            if comparison.world == REPLACED:
                under = ADJACENCIES
            elif item.kind == "release" and index == 0 and item.size is not None:
                under = ("add-remove", "zero-out") if item.size > 1.0 else ("add-remove",)
            else:
                under = ("add-remove",)
            merged[place] = item.leaking(under)
    replaced = {
        (item.kind, item.name)
        for comparison in comparisons
        if comparison.world == REPLACED
        for item in comparison.differences
    }
    return [
        item.leaking(ADJACENCIES) if place in replaced else item for place, item in merged.items()
    ]


# --- sizes ---------------------------------------------------------------------------------------


def _norm(one: list[NDArray[Any]], two: list[NDArray[Any]]) -> float:
    """Euclidean distance over all arrays."""
    total = 0.0
    for a, b in zip(one, two, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.subtract(a, b, dtype=np.float64)
        # What is equal is equal, infinity and nan included.
        total += float(np.square(np.where(_equal(a, b), 0.0, gap)).sum())
    return math.inf if math.isnan(total) else math.sqrt(total)


def _slack(one: Release, two: Release) -> float:
    """What rounding may do to the distance of two sums."""
    zeros = [np.zeros_like(item) for item in one.total]
    largest = max(_norm(one.total, zeros), _norm(two.total, zeros))
    rounding = max(one.rounding, two.rounding)
    largest = largest if math.isfinite(largest) else 0.0
    return _NEGLIGIBLE * min(one.clip_norm, two.clip_norm) + _ROUNDINGS * rounding * largest


def _noise_slack(release: Release) -> float:
    """What rounding may do to noise that was read off a noisy sum."""
    assert release.noise is not None
    size = _norm(release.noise, [np.zeros_like(item) for item in release.noise])
    return _ROUNDINGS * release.rounding * size if math.isfinite(size) else 0.0


def _equal(one: Any, two: Any) -> Any:
    both_nan = np.isnan(one) & np.isnan(two) if np.asarray(one).dtype.kind == "f" else False
    return (one == two) | both_nan


def _size(one: Any, two: Any, *, exact: bool) -> float:
    """The largest distance between two values; infinity where they are not of one kind."""
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        if one.shape != two.shape or one.dtype != two.dtype:
            return math.inf
        return _array_size(one, two, exact)
    if isinstance(one, dict) and isinstance(two, dict):
        if one.keys() != two.keys():
            return math.inf
        return max((_size(one[key], two[key], exact=exact) for key in one), default=0.0)
    if isinstance(one, list) and isinstance(two, list):
        if len(one) != len(two):
            return math.inf
        pairs = zip(one, two, strict=True)
        return max((_size(a, b, exact=exact) for a, b in pairs), default=0.0)
    if type(one) is not type(two):
        return math.inf
    if isinstance(one, float) and math.isnan(one) and math.isnan(two):
        return 0.0
    if one == two:
        return 0.0
    if isinstance(one, (int, float)) and not isinstance(one, bool):
        gap = abs(one - two)
        return float(gap) if gap == gap else math.inf
    return math.inf


def _array_size(one: NDArray[Any], two: NDArray[Any], exact: bool) -> float:
    same = _equal(one, two)
    if np.all(same):
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(np.subtract(one, two, dtype=np.float64))
    largest = float(np.where(same, 0.0, gap).max())
    if math.isnan(largest):
        return math.inf
    if not exact and one.dtype.kind == "f":
        top = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
        if largest <= _LAST_BITS * float(np.finfo(one.dtype).eps) * top:
            return 0.0
    return largest


def _shown(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, np.ndarray):
        finite = value.astype(np.float64)
        return f"{value.shape} of norm {float(np.linalg.norm(finite)):.6g}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return one_line(repr(value) if isinstance(value, str) else value, 60)


def _failure(recording: Recording) -> str:
    failure = recording.failure
    if failure is None:
        return "no error"
    return one_line(f"{type(failure).__name__}: {failure}", 120)


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
    """Run a few steps of a training on neighbouring datasets with the same randomness, and compare.

    The training runs twice on the data as given: it must do the same both times. Then it runs
    without the record, and with another one in its place. Batches are the same but for the record,
    the noise is the same, and after each release all runs continue from that of the first. So a
    noisy sum may differ by a clip norm in the steps whose batches have the record, and nothing
    else may differ at all.

    Args:
        train: The training function. It takes a dataset and a `Replay`, from which it gets batches
            and noise, and to which it reports what it releases.
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
        ReplayError: The training fails on all datasets.
        InvalidArgumentError: An argument is outside its range, or the data have no records.

    Guarantee:
        A VIOLATION is certain: with the same randomness and releases so far, something that became
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
    with preserved():
        first = _run(train, given, None, steps=steps, seed=seed, plant=plant)
        again = _run(train, given, first, steps=steps, seed=seed, plant=plant)
        parted = first_difference(first, again)
        if parted:
            raise NotDeterministicError(
                f"Two runs of the training on the same data differ: {parted}. A replay "
                "needs a deterministic training. Take noise from replay.generator() or pass its "
                "generator to replay.couple(), and record neither times nor addresses."
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
    """The training on one dataset, and what it released."""
    handle = Replay(world, steps=steps, seed=seed, plant=plant, reference=reference)
    try:
        train(world.make(), handle)
    except Enough:
        pass
    except AskGaussError:
        raise
    except Exception as error:  # noqa: BLE001  (what the training raises is public too)
        handle.recording.failure = error
    handle.finish()
    return handle.recording


def _check_failures(first: Recording, others: list[Exception | None]) -> None:
    if first.failure is not None and all(
        item is not None and _named(item) == _named(first.failure) for item in others
    ):
        raise ReplayError(
            "Expected a training that runs, got one that fails on all datasets after "
            f"{first.steps} steps: {one_line(_named(first.failure), 300)}. Fix it first."
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
