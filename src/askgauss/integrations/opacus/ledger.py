"""What an Opacus run states while it trains: its accountant, its settings, its clip count."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.optim import lr_scheduler

from askgauss.claims import PrivacyClaim
from askgauss.integrations.attachment import Attachment, PatchedMethod, SharedPatch
from askgauss.integrations.opacus import run_description as described
from askgauss.integrations.opacus.opacus_versions import (
    AdaClipDPOptimizer,
    AdaptiveGhostTensor,
    adaclip_gradient_noise,
    history_of,
)
from askgauss.integrations.opacus.private_step import AddedNoise, Observer, PrivateStep
from askgauss.integrations.opacus.run_description import TrainingRun, counted_steps, not_of_one_step
from askgauss.recording.facts import ClipCountFacts, SettingFacts, noise_of_both
from askgauss.recording.transcript import Transcript
from askgauss.recording.witness import SettingCourse
from askgauss.sampling import Poisson

__all__ = ["ClipCountWatch", "Ledger", "LedgerState", "SettingsWatch"]

_MOST_READS = 16
# Different settings in a history that its accountant is asked about.
_MOST_SEGMENTS = 32
# The error of a rough answer, and how far above the claim it is enough, in claimed epsilons.
_ROUGHLY = 0.05
_FAR_ABOVE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """What a ledger has counted: noise multiplier, sampling rate, steps.

    Attributes:
        entries: The kinds of steps counted while the audit was attached.
        broken: Whether the history was replaced meanwhile.
        total: Steps in the whole history; None without an accountant.
        reads: Delta, epsilon and number of steps whenever epsilon was read.
    """

    entries: tuple[tuple[float, float, int], ...]
    broken: bool
    total: int | None
    reads: tuple[tuple[float, float, int], ...] = ()


class Ledger(Observer):
    """What an accountant added to its history while the audit was attached, and its whole history.

    Args:
        run: The training.
    """

    key = "ledger"
    state_type = LedgerState

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._accountant = run, run.accountant
        self._start: list[tuple[float, float, int]] | None = None
        self._closed: dict[tuple[float, float], int] = {}
        self._broken = False
        # What the whole history must come to when a run that was loaded continues.
        self._expected: int | None = None
        self._reads: list[tuple[float, float, int]] = []

    def _history(self) -> tuple[tuple[float, float, int], ...]:
        return () if self._accountant is None else tuple(history_of(self._accountant))

    # --- moments ----------------------------------------------------------------------------------

    def attach(self, attachment: Attachment) -> None:
        """Begin to note when epsilon is read: it does not cover what is trained afterwards."""
        attachment.undo(self._close)
        if self._accountant is not None:
            attachment.patch(PatchedMethod(self._accountant, "get_epsilon", self._read))

    def _read(self, read: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        epsilon = read(*arguments, **options)
        delta = options.get("delta", arguments[0] if arguments else math.nan)
        self._note(float(delta), float(epsilon))
        return epsilon

    def _note(self, delta: float, epsilon: float) -> None:
        total = counted_steps(self._accountant) or 0
        # One a delta and number of steps, and no more than anybody wants to read.
        self._reads = [item for item in self._reads if item[::2] != (delta, total)][-_MOST_READS:]
        self._reads.append((delta, epsilon, total))

    def _close(self) -> None:
        # At once: what is kept and still counted would be counted twice.
        self._closed, self._start = self._counted(), None

    def resuming(self, *, started: bool) -> None:
        """Refuse to continue where the accountant and the audit are not at the same step."""
        expected, total = self._expected, counted_steps(self._accountant)
        # An empty accountant may still be restored before the first step.
        if expected is None or total is None or (total == 0 and not started):
            return
        if total != expected:
            raise not_of_one_step(
                self._run,
                f"an accountant with the {expected:,} steps that it had at the audit's checkpoint",
                f"one with {total:,}",
            )

    def sum_ready(self) -> None:
        """Count from here, unless counting already."""
        # Only now, at the first step: a resumed run may restore its accountant after attaching.
        if self._start is None and self._accountant is not None:
            self._start = history_of(self._accountant)
        self._expected = None

    # --- what was counted -------------------------------------------------------------------------

    def _entries(self) -> dict[tuple[float, float], int] | None:
        """Steps by noise multiplier and sampling rate; None without a trustworthy accountant."""
        counted = self._counted()
        return None if self._accountant is None or self._broken else counted

    def _counted(self) -> dict[tuple[float, float], int]:
        counted = dict(self._closed)
        if self._start is None:
            return counted
        before = dict(enumerate(self._start))
        for index, (noise, rate, steps) in enumerate(self._history()):
            old_noise, old_rate, old_steps = before.pop(index, (noise, rate, 0))
            if (old_noise, old_rate) != (noise, rate) or steps < old_steps:
                self._broken = True
            if steps > old_steps:
                key = (float(noise), float(rate))
                counted[key] = counted.get(key, 0) + int(steps - old_steps)
        self._broken = self._broken or bool(before)
        return counted

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """What the accountant counted, next to what the steps used."""
        rates = {rate for _, rate in self._entries() or ()}
        counted, used = self._noise_multipliers(recorded)
        # The claim is what was accounted for, even where the optimizer says otherwise.
        claimed = counted if self._differs(recorded) else used
        rate = rates.pop() if len(rates) == 1 else None
        # Opacus' accountants assume Poisson sampling, whatever the user declared.
        declared = self._run.sampling.scheme is not None
        return {
            "noise_multiplier": claimed.pop() if len(claimed) == 1 else None,
            # What was counted in all is known even where the history was replaced meanwhile.
            "accounted_steps": counted_steps(self._accountant),
            "accounted": self._history(),
            "epsilon_reads": tuple(self._reads),
            "accounted_sampling_rate": rate,
            "accounted_scheme": Poisson(rate=rate) if rate and declared else None,
        }

    def _noise_multipliers(self, recorded: Transcript) -> tuple[set[float], set[float]]:
        """Those that the accountant was told, and those that the steps used."""
        used = {float(noise) for noise in np.unique(recorded.steps.noise_multiplier)}
        return {noise for noise, _ in self._entries() or ()}, used

    def _differs(self, recorded: Transcript) -> bool:
        counted, used = self._noise_multipliers(recorded)
        # With adaptive clipping, the accountant may be told another multiplier than the steps use.
        adaptive = described.adapts_clipping(self._run.optimizer)
        return bool(counted) and counted != used and not adaptive

    def notes(self, recorded: Transcript) -> list[str]:
        """What a reader should know about how the run was accounted for."""
        notes = []
        entries = self._entries()
        if self._differs(recorded):
            notes.append("the accountant was told another noise multiplier than the optimizer.")
        if self._broken:
            notes.append(
                "the accountant's history was replaced during the run, as by going back to a "
                "checkpoint: what was released before that stays released."
            )
        if entries and len(entries) > 1:
            noises, rates = zip(*entries, strict=True)
            notes.append(
                f"the accountant counted {len(entries)} kinds of steps: noise multipliers "
                f"{min(noises):.6g} to {max(noises):.6g}, rates {min(rates):.6g} to "
                f"{max(rates):.6g}."
            )
        return notes

    def facts_for(self, claim: PrivacyClaim) -> dict[str, Any]:
        """The epsilon that the accountant itself reports."""
        return {"accounted_epsilon": self.epsilon(float(claim.delta), float(claim.epsilon))}

    def epsilon(self, delta: float, claimed: float) -> float | None:
        """The epsilon that the accountant itself reports; None where it cannot.

        One that computes to a given error is first asked for a rough answer: far above the claim it
        is enough, and an exact one takes a minute where epsilon is in the hundreds.
        """
        history = self._history()
        if not history:
            return None
        for known, epsilon, steps in self._reads:
            if steps == counted_steps(self._accountant) and math.isclose(
                known, delta, rel_tol=1e-9
            ):
                return epsilon
        # Each segment costs it up to a second: the audit's own composition has to do.
        if len({segment[:2] for segment in history}) > _MOST_SEGMENTS:
            return None
        asked = inspect.signature(type(self._accountant).get_epsilon).parameters
        if "eps_error" in asked:
            error = max(_ROUGHLY * claimed, 0.01)
            rough = self._ask(delta=delta, eps_error=error)
            if rough is None or rough - 2.0 * error > _FAR_ABOVE * claimed:
                return rough
        return self._ask(delta=delta)

    def _ask(self, **options: float) -> float | None:
        try:
            with np.errstate(all="ignore"):
                return float(type(self._accountant).get_epsilon(self._accountant, **options))
        except (ValueError, RuntimeError, OverflowError):
            return None

    def state(self) -> LedgerState:
        """What has been counted."""
        entries = tuple((*key, steps) for key, steps in self._counted().items())
        return LedgerState(
            entries=entries,
            broken=self._broken,
            total=counted_steps(self._accountant),
            reads=tuple(self._reads),
        )

    def load(self, state: LedgerState, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        self._closed = {(noise, rate): count for noise, rate, count in state.entries}
        self._broken = state.broken
        self._start = None
        self._expected = state.total
        self._reads = list(state.reads)


_RATE, _CLIP, _NOISE, _BATCH = (
    "learning rate",
    "clip norm",
    "noise multiplier",
    "expected batch size",
)
# Schedulers of torch whose value is not a function of the step number alone, or need not be.
_BY_CHOICE = (lr_scheduler.ReduceLROnPlateau, lr_scheduler.LambdaLR, lr_scheduler.MultiplicativeLR)


def _opacus_schedulers() -> dict[str, tuple[type, ...]]:
    """The base classes of Opacus' own schedulers, by what they set; early releases have none."""
    found: dict[str, tuple[type, ...]] = {}
    for setting, module, name in (
        (_NOISE, "opacus.schedulers.noise_scheduler", "_NoiseScheduler"),
        (_CLIP, "opacus.schedulers.grad_clip_scheduler", "_GradClipScheduler"),
    ):
        with contextlib.suppress(ImportError, AttributeError):
            found[setting] = (getattr(import_module(module), name),)
    return found


# By how much a setting changed, in an order of how much there is to explain.
_CHANGES = operator.attrgetter("erratic", "turns", "changes", "declared")
_KINDS: dict[str, tuple[type, ...]] = {
    _RATE: (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau),
    **_opacus_schedulers(),
}


class SettingsWatch(Observer):
    """Follows every setting of a run that may change from step to step.

    Args:
        run: The training.
    """

    key = "settings"
    state_type = tuple[SettingFacts, ...]

    def __init__(self, run: TrainingRun) -> None:
        self._optimizer = run.optimizer
        self._courses: dict[tuple[str, int], SettingCourse] = {}
        self._loaded: dict[str, SettingFacts] = {}
        self._schedulers: dict[str, weakref.ref[Any] | None] = {}
        self._declared: set[tuple[str, int]] = set()
        # What the last step had, and how many since then had the same.
        self._last: dict[tuple[str, int], float] = {}
        self._alike = 0

    def state(self) -> tuple[SettingFacts, ...]:
        """What was seen so far; of a setting with several values, the one that changed most."""
        self._note_alike()
        found: dict[str, SettingFacts] = {}
        for (name, _), course in self._courses.items():
            facts = course.facts
            if name not in found or _CHANGES(facts) > _CHANGES(found[name]):
                found[name] = facts
        return tuple((self._loaded | found).values())

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """What was seen so far."""
        return {"settings": self.state()}

    def notes(self, recorded: Transcript) -> list[str]:
        """Settings that were changed by hand."""
        return [
            f"the {item.name} was changed by hand in {item.changes:,} steps: that it depends on "
            "the step number alone is taken on trust."
            for item in self.state()
            if item.changes and not (item.erratic or item.adapted or item.scheduler)
        ]

    def load(self, state: tuple[SettingFacts, ...], arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        self._courses, self._loaded = {}, {item.name: item for item in state}
        self._last, self._alike = {}, 0

    def released(self, step: PrivateStep, gradient: NDArray[np.float64] | None) -> None:
        """A step was taken with these settings; the learning rates are read here."""
        values = self._values(step.clip_norm, step.noise_multiplier, step.batch_size)
        if values == self._last and not self._declared:
            # In nearly every step of nearly every run nothing moves.
            self._alike += 1
            return
        self._note_alike()
        self._last = values
        for (name, place), value in values.items():
            course = self._courses.get((name, place))
            if course is None:
                course = self._courses[name, place] = self._begun(name)
            declared = (name, place) in self._declared
            if course.moves(value) and not declared:
                declared = self._scheduled(name, place, value, course)
            course.note(value, step.number, declared=declared)
        self._declared.clear()

    def _note_alike(self) -> None:
        """Tell the courses of the steps since the last in which anything was another."""
        for course in self._courses.values():
            course.stay(self._alike)
        self._alike = 0

    def _begun(self, name: str) -> SettingCourse:
        optimizer = self._optimizer
        counted = isinstance(optimizer, AdaClipDPOptimizer)
        adapted = described.adapts_clipping(optimizer) and (
            name == _CLIP or (name == _NOISE and not counted)
        )
        course = SettingCourse(name, adapted=adapted)
        if name in self._loaded:
            course.load(self._loaded[name])
        return course

    def _values(
        self, clip_norm: float, noise: float, batch_size: float
    ) -> dict[tuple[str, int], float]:
        values = {(_CLIP, 0): clip_norm, (_NOISE, 0): noise, (_BATCH, 0): batch_size}
        for place, norm in enumerate(getattr(self._optimizer, "max_grad_norms", ()), 1):
            values[_CLIP, place] = float(norm)
        for place, group in enumerate(self._optimizer.param_groups):
            values[_RATE, place] = float(group.get("lr", math.nan))
        return {key: value for key, value in values.items() if math.isfinite(value)}

    @contextlib.contextmanager
    def postprocessing(self) -> Iterator[None]:
        """What is set in here depends on released values or the step number alone."""
        before = self._now()
        yield
        now = self._now()
        self._declared |= {key for key, value in now.items() if before.get(key) != value}

    def _now(self) -> dict[tuple[str, int], float]:
        optimizer = self._optimizer
        return self._values(
            float(optimizer.max_grad_norm),
            described.gradient_noise_multiplier(optimizer),
            float(optimizer.expected_batch_size or 0.0),
        )

    def _scheduled(self, name: str, place: int, value: float, course: SettingCourse) -> bool:
        """Whether a change is one that a scheduler of torch makes by the step number alone."""
        if name not in self._schedulers:
            # Once a setting: all objects are looked through.
            self._schedulers[name] = self._scheduler(name)
        held = self._schedulers[name]
        scheduler = None if held is None else held()
        if scheduler is None:
            return False
        course.set_by(type(scheduler).__name__)
        parts = (scheduler, *getattr(scheduler, "_schedulers", ()))
        own = all(type(part).__module__ == lr_scheduler.__name__ for part in parts)
        if name != _RATE or not own or any(isinstance(part, _BY_CHOICE) for part in parts):
            return False
        last = getattr(scheduler, "_last_lr", ())
        return place < len(last) and float(last[place]) == value

    def _scheduler(self, name: str) -> weakref.ref[Any] | None:
        kinds, optimizer = _KINDS.get(name, ()), self._optimizer
        mine = (optimizer, optimizer.original_optimizer)
        for item in gc.get_objects():
            if issubclass(type(item), kinds):
                owner = described.unwrapped(vars(item).get("optimizer"))
                if any(owner is one for one in mine):
                    return weakref.ref(item)
        return None


# The part of a batch that is the deviation of the count's noise, in adaptive ghost clipping.
_GHOST_SHARE = 20.0


class ClipCountWatch(Observer):
    """Follows the count where there is one; of any other optimizer nothing is kept.

    Args:
        run: The training; with several ranks, the noise of the count is not read.
    """

    key = "clip_count"
    state_type = ClipCountFacts | None

    def __init__(self, run: TrainingRun) -> None:
        self._optimizer, self._world = run.optimizer, run.world
        self._counts = isinstance(run.optimizer, AdaClipDPOptimizer)
        self._before: float | None = None
        self._facts = ClipCountFacts()

    def state(self) -> ClipCountFacts | None:
        """What was seen; None where the clip norm was not adapted."""
        return self._facts if self._facts.releases else None

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """What was seen."""
        return {"clip_count": self.state()}

    def load(self, state: ClipCountFacts | None, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        self._facts = state or ClipCountFacts()

    def attach(self, attachment: Attachment) -> None:
        """Begin to follow."""
        attachment.undo(functools.partial(_UPDATES.remove, self._optimizer))
        _UPDATES.add(self._optimizer, self._ghost_update)

    def before_noise(self, tensors: Sequence[int] | None) -> None:
        """The count is exact, and about to get its noise."""
        self._before = float(self._optimizer.unclipped_num) if self._counts else None

    def after_noise(self, noise: AddedNoise) -> None:
        """The count has its noise."""
        if self._before is None:
            return
        optimizer = self._optimizer
        deviation = float(optimizer.unclipped_num_std)
        gradients = adaclip_gradient_noise(optimizer)
        self._add(
            noise=float(optimizer.unclipped_num) - self._before,
            deviation=deviation,
            together=noise_of_both(gradients, deviation),
        )

    def released(self, step: PrivateStep, gradient: NDArray[np.float64] | None) -> None:
        """The clip norm has been moved by the count."""
        if self._before is None:
            return
        self._before, optimizer = None, self._optimizer
        norm = float(optimizer.max_grad_norm)
        self._show(optimizer.min_clipbound < norm < optimizer.max_clipbound)

    def _show(self, shown: bool) -> None:
        self._facts = replace(self._facts, shown=self._facts.shown + bool(shown))

    def _add(self, *, noise: float | None, deviation: float, together: float) -> None:
        facts = self._facts
        # Infinite gradients leave no count to speak of.
        read = noise is not None and deviation > 0.0 and math.isfinite(noise)
        units = noise / deviation if noise is not None and read else 0.0
        self._facts = replace(
            facts,
            releases=facts.releases + 1,
            read=facts.read + read,
            square=facts.square + units**2,
            deviation=max(facts.deviation, deviation),
            noise_multiplier=max(facts.noise_multiplier, together),
        )

    def _ghost_update(self, update: Callable[..., Any], loss: Any, norms: Any) -> Any:
        """Replaces the choice of the next clip norm in ghost clipping, which reveals its count."""
        norm = float(loss.module.max_grad_norm)
        chosen = update(loss, norms)
        following, batch, noise = float(chosen[0]), len(norms), None
        within = loss.min_clipbound < following < loss.max_clipbound
        if within and self._world == 1 and batch:
            share = loss.target_unclipped_quantile
            share -= math.log(following / norm) / loss.clipbound_learning_rate
            noise = share * batch - float((norms.detach() <= norm).sum())
        self._add(
            noise=noise,
            deviation=batch * self._world / _GHOST_SHARE,
            together=float(loss.initial_noise_multiplier),
        )
        self._show(within)
        return chosen


def _observed_update(update: Callable[..., Any], loss: Any, norms: Any) -> Any:
    listener = _UPDATES.listeners.get(loss.optimizer)
    return update(loss, norms) if listener is None else listener(update, loss, norms)


_UPDATES = SharedPatch(AdaptiveGhostTensor, "_update_clip_and_noise", _observed_update)
