"""What one training releases, the handle it reports through, and randomness coupled by step."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError, RecordingError
from askgauss.replay.neighbouring_data import World

__all__ = [
    "Enough",
    "RecordedEvent",
    "Recording",
    "Release",
    "Replay",
    "preserved",
    "reset_all",
    "reset_one",
    "seed_of",
    "state_of",
]


def seed_of(*parts: object) -> int:
    """A seed of 63 bits for these parts; other parts, another seed."""
    text = repr(parts).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def reset_all(*parts: object) -> None:
    """Set the generators of the process (Python's, numpy's, torch's where loaded) by a seed."""
    seed = seed_of(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (the one that everybody shares)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Leave the generators of the process as they were."""
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    main: Any = None
    devices: list[Any] = []
    if torch is not None:
        main = torch.default_generator.get_state()
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.default_generator.set_state(main)
            if devices:
                torch.cuda.set_rng_state_all(devices)


def reset_one(generator: Any, *parts: object) -> None:
    """Set one generator of numpy, Python or torch by a seed."""
    seed = seed_of(*parts)
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed % 2**32)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif hasattr(generator, "manual_seed"):
        generator.manual_seed(seed)
    else:
        raise _unknown(generator)


def state_of(generator: Any) -> str:
    """A digest of where a generator stands."""
    if isinstance(generator, np.random.Generator):
        state: Any = generator.bit_generator.state
    elif isinstance(generator, np.random.RandomState):
        state = generator.get_state(legacy=False)
    elif isinstance(generator, random.Random):
        state = generator.getstate()
    elif hasattr(generator, "get_state"):
        state = generator.get_state().numpy().tobytes()
    else:
        raise _unknown(generator)
    return hashlib.sha256(_spelled(state).encode()).hexdigest()[:16]


def _spelled(state: Any) -> str:
    """All of a state in text; numpy shortens long arrays unless asked."""
    if isinstance(state, dict):
        return repr({name: _spelled(item) for name, item in state.items()})
    return repr(state.tolist()) if isinstance(state, np.ndarray) else repr(state)


def _unknown(generator: Any) -> Exception:
    return _validate.fail(
        "generator",
        generator,
        "to be numpy's Generator or RandomState, random.Random or a torch.Generator",
    )


T = TypeVar("T")

# A loop that waits for batches that no longer come is stopped after this many looks.
_PATIENCE = 1000


class Enough(BaseException):
    """All steps of the replay are done; passes through the training's own except clauses."""


@dataclass(frozen=True, slots=True)
class Release:
    """A private sum on its way out.

    Attributes:
        total: Its arrays: without the noise where that is known, with it otherwise.
        noise: The noise, where it is known.
        clip_norm: The most that one record may move it by.
        coupled: What the generators that the noise came from looked like afterwards; None where
            none of them is known.
        given: What went on from here, noise included.
        rounding: Relative rounding error of the arrays.
        doubt: Why the sum may differ by itself, such as randomness in the model.
    """

    total: list[NDArray[Any]]
    noise: list[NDArray[Any]] | None
    clip_norm: float
    coupled: tuple[str, ...] | None
    given: list[NDArray[Any]]
    rounding: float
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """Something a training released or recorded.

    Attributes:
        step: In which step, from 1; 0 is before the first.
        kind: ``"release"``, ``"public"``, ``"state"`` or ``"seed"``.
        name: What it is called.
        value: A copy of it.
    """

    step: int
    kind: str
    name: str
    value: Any


@dataclass(slots=True)
class Recording:
    """Everything the training on one dataset released or recorded.

    Attributes:
        events: In the order they came.
        batches: The records of every batch drawn, by their indices in the data as given.
        present: The steps that had the record in one of their batches.
        steps: Steps begun.
        failure: The exception that ended it, if one did.
        cut: Whether the replay ended it, and not the training itself.
        objects: What must be created anew for every dataset, by name.
        notes: What could not be looked at, and why.
    """

    events: list[RecordedEvent] = field(default_factory=list)
    batches: list[NDArray[np.int64]] = field(default_factory=list)
    present: set[int] = field(default_factory=set)
    steps: int = 0
    failure: Exception | None = None
    cut: bool = False
    objects: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def by_place(self) -> dict[tuple[int, str, str, int], RecordedEvent]:
        """Events by step, kind, name and how often that came before in the step."""
        places: dict[tuple[int, str, str, int], RecordedEvent] = {}
        seen: dict[tuple[int, str, str], int] = {}
        for event in self.events:
            place = (event.step, event.kind, event.name)
            seen[place] = seen.get(place, -1) + 1
            places[(*place, seen[place])] = event
        return places


class Replay:
    """Where a training function under replay gets its randomness, and reports its releases.

    The same function runs on several datasets, which differ in one record. Batches and noise that
    come from here are the same for all of them, and what was released on the first dataset is
    passed on for the others: whatever else differs does not follow from the releases.

    Attributes:
        steps: How many steps to take.
    """

    def __init__(
        self,
        world: World,
        *,
        steps: int,
        seed: int,
        plant: bool,
        reference: Recording | None,
    ) -> None:
        self.steps = steps
        self.world = world
        self.seed = seed
        self.reference = reference
        self.recording = Recording()
        self._plant = plant
        self._places = {} if reference is None else reference.by_place()
        self._closed = True
        self._explicit = False
        self._looks = 0
        self._names: dict[str, Any] = {}
        self._own: list[Any] = []
        self._before: list[str] = []
        self._last: list[Callable[[], None]] = []
        self._couple_step()

    # --- steps and batches -----------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The step that is under way, from 1; 0 before the first."""
        return self.recording.steps

    def begin_step(self) -> None:
        """Say that a step begins, in a loop that takes its batches from elsewhere."""
        self._explicit = True
        self.close_step()
        self._open()

    def close_step(self) -> None:
        """Say that a step is over: the next batch belongs to the next one."""
        self._closed = True

    def _open(self) -> None:
        if self.recording.steps >= self.steps:
            self.recording.cut = True
            raise Enough
        self.recording.steps += 1
        self._closed = False
        self._couple_step()

    def batches(
        self,
        lists: Iterable[Any] | None = None,
        *,
        rate: float | None = None,
        size: int | None = None,
    ) -> Iterator[NDArray[np.int64]]:
        """The batches of the replay's steps: indices into this dataset.

        Args:
            lists: The loop's own lists of indices. Those drawn on the data as given are what every
                dataset gets, without the record where it is left out.
            rate: Draw them here instead: every record by itself with this probability.
            size: Draw them here instead: so many records, without replacement.
        """
        if sum(item is not None for item in (lists, rate, size)) != 1:
            raise InvalidArgumentError(
                f"Expected exactly one of lists, rate and size, got lists={lists!r}, rate={rate}, "
                f"size={size}."
            )
        own = self._drawn(rate, size) if lists is None else lists
        for indices in own:
            self.close_step()
            if self.finished():
                self.look()
                return
            yield self.draw(indices)

    def _drawn(self, rate: float | None, size: int | None) -> Iterator[NDArray[np.int64]]:
        if rate is not None:
            _validate.within(0, 1, closed="right", rate=rate)
        else:
            _validate.integer(1, size=size)
        while True:
            seed = seed_of(self.seed, "batch", len(self.recording.batches))
            rng = np.random.default_rng(seed)
            if rate is not None:
                yield np.flatnonzero(rng.random(self.world.size) < rate)
            else:
                assert size is not None
                yield rng.choice(self.world.size, min(size, self.world.size), replace=False)

    def finished(self) -> bool:
        """Whether all steps are done."""
        done = self._closed and self.recording.steps >= self.steps
        if done:
            self.recording.cut = True
        return done

    def look(self) -> None:
        """Somebody asked for batches where none were left; a loop must not do so for ever."""
        if self.finished():
            self._looks += 1
            if self._looks > _PATIENCE:
                raise Enough

    def draw(self, own: Any) -> NDArray[np.int64]:
        """The batch to take in place of a list drawn on this dataset."""
        self._explicit = True
        if self._closed:
            self._open()
        positions = np.atleast_1d(np.asarray(own))
        if positions.size == 0:
            positions = positions.astype(np.int64)
        if positions.ndim != 1 or positions.dtype.kind not in "iu":
            raise _validate.fail("lists", own, "to hold lists of whole numbers")
        positions = positions.astype(np.int64)
        if positions.size and not 0 <= positions.min() <= positions.max() < self.world.size:
            raise RecordingError(
                f"Expected indices in [0, {self.world.size}), got {positions.min()} to "
                f"{positions.max()}. Draw batches over the data that train was called with."
            )
        record, number = self.world.record, len(self.recording.batches)
        if self.reference is not None and number < len(self.reference.batches):
            ids = self.reference.batches[number]
        else:
            ids = self.world.ids(positions)
            if self.reference is None:
                ids = self._with_record_last(ids)
        self.recording.batches.append(ids)
        if record in ids:
            self.recording.present.add(self.step)
        return self.world.positions(ids)

    def _with_record_last(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The record planted in every other step; last, so that nobody else changes place."""
        record = self.world.record
        if record in ids:
            return np.append(ids[ids != record], record)
        if self._plant and self.step % 2 == 1 and ids.size:
            return np.append(ids[:-1], record)
        return ids

    # --- randomness ------------------------------------------------------------------------------

    def _couple_step(self) -> None:
        self._names.clear()
        reset_all(self.seed, "step", self.step)
        for number, generator in enumerate(self._own):
            reset_one(generator, self.seed, "own", number, self.step)
        self._before = [state_of(generator) for generator in self._own]

    def generator(self, name: str = "noise") -> np.random.Generator:
        """A generator reseeded in every step, alike for all datasets; call it in every step.

        Args:
            name: What it is for; each name has a stream of its own.
        """
        if name not in self._names:
            seed = seed_of(self.seed, "named", name, self.step)
            self._names[name] = np.random.default_rng(seed)
        found: np.random.Generator = self._names[name]
        return found

    def couple(self, generator: T) -> T:
        """Reseed one of the loop's generators in every step, alike for all datasets.

        Call it where the generator is created: a seed that depends on the data is detected here.
        """
        self._record("seed", f"noise generator {len(self._own) + 1}", state_of(generator))
        self._own.append(generator)
        reset_one(generator, self.seed, "own", len(self._own) - 1, self.step)
        self._before.append(state_of(generator))
        return generator

    def _coupled(self) -> tuple[str, ...] | None:
        """Where the generators that were drawn from stand; None where none was."""
        states = []
        for name, generator in sorted(self._names.items()):
            fresh = np.random.default_rng(seed_of(self.seed, "named", name, self.step))
            if state_of(generator) != state_of(fresh):
                states.append(state_of(generator))
        for generator, before in zip(self._own, self._before, strict=True):
            if state_of(generator) != before:
                states.append(state_of(generator))
        return tuple(states) or None

    # --- what goes out ---------------------------------------------------------------------------

    def release(
        self, total: T, *, clip_norm: float, noise: Any = None, name: str = "gradient"
    ) -> T:
        """Release a private sum, and continue with what is returned.

        Args:
            total: The clipped sum: an array, or arrays in lists, tuples and mappings. With the
                noise in it already where ``noise`` is not given.
            clip_norm: The most that one record may move it by, in the sum's own units.
            noise: The noise, in the shape of the sum; the two are then added here.
            name: What to call it.

        Returns:
            The noisy sum of the given dataset, for all datasets.
        """
        _validate.magnitude(clip_norm=clip_norm)
        if not self._explicit and self.recording.steps >= self.steps:
            self.recording.cut = True
            raise Enough
        if not self._explicit:
            self._open()
        arrays = _leaves(total)
        noises = None if noise is None else _leaves(noise)
        if noises is not None and [a.shape for a in noises] != [a.shape for a in arrays]:
            raise _validate.fail(
                "noise", [a.shape for a in noises], f"of shapes {[a.shape for a in arrays]}"
            )
        given = arrays if noises is None else [a + b for a, b in zip(arrays, noises, strict=True)]
        release = Release(
            [np.array(item) for item in arrays],
            None if noises is None else [np.array(item) for item in noises],
            float(clip_norm),
            self._coupled(),
            [np.array(item) for item in given],
            max((_rounding(item) for item in arrays), default=0.0),
        )
        handed_on = self.exchange(release, name)
        stream = iter(handed_on)
        result: T = _rebuilt(total, lambda leaf: _like(next(stream), leaf))
        return result

    def exchange(self, release: Release, name: str = "gradient") -> list[NDArray[Any]]:
        """Record a release; returns what was released on the given dataset."""
        occurrence = sum(
            event.step == self.step and event.kind == "release" and event.name == name
            for event in self.recording.events
        )
        self._record("release", name, release)
        known = self._places.get((self.step, "release", name, occurrence))
        if known is None:
            return release.given
        shapes = [item.shape for item in release.given]
        given: list[NDArray[Any]] = known.value.given
        return given if [item.shape for item in given] == shapes else release.given

    def public(self, name: str, value: T) -> T:
        """Say that a value goes public as it is: printed, logged, saved, or plain to see.

        Args:
            name: What to call it.
            value: A number, text, bytes, an array, or these in lists, tuples and mappings.

        Returns:
            The value.
        """
        self._record("public", name, _plain_copy(value, name))
        return value

    def state(self, name: str, value: T) -> T:
        """Say what a part of the training's state is: weights, running statistics, buffers."""
        self._record("state", name, _plain_copy(value, name))
        return value

    def seed_used(self, name: str, value: Any) -> None:
        """Say which seed a generator was given."""
        self._record("seed", name, _plain_copy(value, name))

    def made_anew(self, name: str, value: Any) -> None:
        """Refuse an object that was already used with an earlier dataset."""
        known = None if self.reference is None else self.reference.objects.get(name)
        if known is not None and known is value:
            raise RecordingError(
                f"Expected {name} to be created anew for each dataset, got the same "
                "object again. Build it inside the training function, from the data it gets."
            )
        self.recording.objects[name] = value

    def note(self, text: str) -> None:
        """Say what could not be looked at, and why; there is no clean verdict then."""
        if text not in self.recording.notes:
            self.recording.notes.append(text)

    def at_end(self, action: Callable[[], None]) -> None:
        """Do something when the training function is over, such as recording what it leaves."""
        self._last.append(action)

    def finish(self) -> None:
        """The training function is over."""
        for action in self._last:
            action()

    def _record(self, kind: str, name: str, value: Any) -> None:
        self.recording.events.append(RecordedEvent(self.step, kind, str(name), value))


# --- values --------------------------------------------------------------------------------------


def _array(value: Any) -> NDArray[Any]:
    """A leaf as a numpy array; tensors of torch are brought over."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) in ("torch.bfloat16", "torch.float16"):
            value = value.float()
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InvalidArgumentError(
            f"Expected arrays of real numbers, got dtype {array.dtype}. Pass what the training "
            "adds noise to."
        )
    return array


def _leaves(tree: Any) -> list[NDArray[Any]]:
    if isinstance(tree, Mapping):
        return [leaf for name in tree for leaf in _leaves(tree[name])]
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in _leaves(item)]
    return [_array(tree)]


def _rebuilt(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        return {name: _rebuilt(item, leaf) for name, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [_rebuilt(item, leaf) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return leaf(tree)


def _like(array: NDArray[Any], original: Any) -> Any:
    """An array as the kind of thing the original is."""
    if hasattr(original, "detach"):
        return original.new_tensor(array)
    return array[()] if array.ndim == 0 else array.copy()


def _rounding(array: NDArray[Any]) -> float:
    return float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0


def _plain_copy(value: Any, name: str) -> Any:
    """A copy that later changes cannot reach, of values that can be compared."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain_copy(item, name) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_copy(item, name) for item in value]
    if hasattr(value, "detach") or hasattr(value, "__array__"):
        if not hasattr(value, "detach") and np.asarray(value).dtype.kind in "USOMm":
            return np.asarray(value).tolist()
        array = np.array(_array(value))
        return array.item() if array.ndim == 0 else array
    raise InvalidArgumentError(
        f"Expected {name!r} to be numbers, text, bytes or arrays, or these in lists and mappings, "
        f"got {type(value).__name__}. Record the part of it that goes public."
    )
