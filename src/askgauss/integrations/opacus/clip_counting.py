"""The count of unclipped records by which Opacus adapts its clip norm, and the noise on it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus.moments import AddedNoise, Observer, PrivateStep
from askgauss.integrations.opacus.opacus_versions import (
    AdaClipDPOptimizer,
    AdaptiveGhostTensor,
    adaclip_gradient_noise,
)
from askgauss.recording.facts import ClipCountFacts, noise_of_both
from askgauss.recording.transcript import Transcript

__all__ = ["ClipCountWatch"]

# The part of a batch that is the deviation of the count's noise, in adaptive ghost clipping.
_GHOST_SHARE = 20.0

_listeners: weakref.WeakKeyDictionary[Any, Callable[..., None]] = weakref.WeakKeyDictionary()
_original: Any = getattr(AdaptiveGhostTensor, "_update_clip_and_noise", None)


class ClipCountWatch(Observer):
    """Follows the count where there is one; of any other optimizer nothing is kept.

    Args:
        optimizer: The private optimizer.
        world: Number of ranks; the noise is read in a single process.
    """

    key = "clip_count"
    state_type = ClipCountFacts | None

    def __init__(self, optimizer: Any, world: int) -> None:
        self._optimizer, self._world = optimizer, world
        self._counts = isinstance(optimizer, AdaClipDPOptimizer)
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
        attachment.undo(self._stop)
        if _original is not None:
            _listeners[self._optimizer] = self._ghost_update
            AdaptiveGhostTensor._update_clip_and_noise = _observed_update

    def _stop(self) -> None:
        _listeners.pop(self._optimizer, None)
        if _listeners or _original is None:
            return
        if AdaptiveGhostTensor._update_clip_and_noise is _observed_update:
            AdaptiveGhostTensor._update_clip_and_noise = _original

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

    def _ghost_update(self, loss: Any, norms: Any, norm: float, following: float) -> None:
        """Ghost clipping has chosen its next clip norm, which reveals its count."""
        within = loss.min_clipbound < following < loss.max_clipbound
        batch, noise = len(norms), None
        if within and self._world == 1 and batch:
            share = loss.target_unclipped_quantile
            share -= math.log(following / norm) / loss.clipbound_learning_rate
            noise = share * batch - float((norms <= norm).sum())
        self._add(
            noise=noise,
            deviation=batch * self._world / _GHOST_SHARE,
            together=float(loss.initial_noise_multiplier),
        )
        self._show(within)


def _observed_update(loss: Any, per_sample_norms: Any) -> Any:
    """Replaces the choice of the next clip norm while there is a listener."""
    norm = float(loss.module.max_grad_norm)
    chosen = _original(loss, per_sample_norms)
    listener = _listeners.get(loss.optimizer)
    if listener is not None:
        listener(loss, per_sample_norms.detach(), norm, float(chosen[0]))
    return chosen
