"""Clip norm, noise multiplier, learning rate and divisor of an Opacus run, step by step."""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.optim import lr_scheduler

from askgauss.integrations.opacus import run_description as described
from askgauss.integrations.opacus.moments import Observer, PrivateStep
from askgauss.integrations.opacus.opacus_versions import AdaClipDPOptimizer
from askgauss.recording.facts import SettingFacts
from askgauss.recording.transcript import Transcript
from askgauss.recording.witness import SettingCourse

__all__ = ["SettingsWatch"]

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


_KINDS: dict[str, tuple[type, ...]] = {
    _RATE: (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau),
    **_opacus_schedulers(),
}


class SettingsWatch(Observer):
    """Follows every setting of a run that may change from step to step.

    Args:
        optimizer: The private optimizer.
    """

    key = "settings"
    state_type = tuple[SettingFacts, ...]

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._courses: dict[tuple[str, int], SettingCourse] = {}
        self._loaded: dict[str, SettingFacts] = {}
        self._schedulers: dict[str, weakref.ref[Any] | None] = {}
        self._declared: set[tuple[str, int]] = set()
        # What the last step had, and how many since then had the same.
        self._last: list[float] = []
        self._alike = 0

    def state(self) -> tuple[SettingFacts, ...]:
        """What was seen so far; of a setting with several values, the one that changed most."""
        self._note_alike()
        found: dict[str, SettingFacts] = {}
        for (name, _), course in self._courses.items():
            facts = course.facts
            if name not in found or _worse(facts, found[name]):
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
        self._last, self._alike = [], 0

    def released(self, step: PrivateStep, gradient: NDArray[np.float64] | None) -> None:
        """A step was taken with these settings; the learning rates are read here."""
        clip_norm, noise, batch_size = step.clip_norm, step.noise_multiplier, step.batch_size
        # Numbers, not the tensors that may hold them: those are written to.
        rates = [float(group.get("lr", math.nan)) for group in self._optimizer.param_groups]
        norms = [float(norm) for norm in getattr(self._optimizer, "max_grad_norms", ())]
        now = [clip_norm, noise, batch_size, *norms, *rates]
        if now == self._last and not self._declared:
            # In nearly every step of nearly every run nothing moves.
            self._alike += 1
            return
        self._note_alike()
        self._last = now
        for (name, place), value in self._values(clip_norm, noise, batch_size).items():
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


def _worse(one: SettingFacts, other: SettingFacts) -> bool:
    return (one.erratic, one.turns, one.changes, one.declared) > (
        other.erratic,
        other.turns,
        other.changes,
        other.declared,
    )
