"""What rounds released, recorded: with fresh noise in each, or with noise that hangs together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import DiracCanaries
from askgauss.checks.scope import THROUGH_AGGREGATOR
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.federated.updates import Form
from askgauss.mechanisms.decorrelate.strategy_rows import moved_by
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategy import Strategy
from askgauss.monitor import Monitor
from askgauss.recording.facts import ClipCountFacts, ParticipationFacts, RoundFacts
from askgauss.recording.facts.clip_count import noise_of_both
from askgauss.recording.linear_recorder import LinearRecorder
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.recorder import Recorder
from askgauss.recording.step_rows import saved_numbers
from askgauss.recording.transcript import Transcript
from askgauss.sampling import Scheme

__all__ = ["LinearRecording", "Participants", "StepRecording"]

# Ways to take part beyond the limits of which the worst is looked for.
_MOST_WAYS = 64

Array = NDArray[np.float64]


class StepRecording:
    """Rounds whose noise is fresh."""

    def __init__(
        self,
        canaries: DiracCanaries,
        scheme: Scheme,
        *,
        noise_multiplier: float | None,
        monitor: Monitor | None,
        count_deviation: float | None = None,
    ) -> None:
        self._noise, self._count = noise_multiplier, count_deviation
        self.recorder = Recorder(
            canaries, sampling=scheme, noise_multiplier=noise_multiplier, monitor=monitor
        )
        self.known_background = scheme.known_background
        self.plan: TreePlan | Strategy | None = None

    @property
    def monitor(self) -> Monitor | None:
        """What watches the rounds."""
        return self.recorder.monitor

    def observe(
        self,
        form: Form,
        values: Array,
        clean: Array | None,
        signs: Array,
        *,
        clip_norm: float,
        clients: int,
    ) -> None:
        """Record a round.

        Args:
            form: The form of its updates.
            values: The sum that was released, at all coordinates that are read.
            clean: What honest clients added to it there, where that is known.
            signs: Which way each canary points.
            clip_norm: The norm that updates were clipped to.
            clients: Number of clients, canaries among them.
        """
        self.recorder.observe(
            signs * form.along(values),
            background=None if clean is None else signs * form.along(clean),
            clip_norm=clip_norm,
            watch=form.watched(values if clean is None else values - clean),
            batch_size=clients,
        )

    def carried(self) -> dict[str, Array]:
        """What the next round needs of those before it, beside the recorder."""
        return {}

    def checked(self, state: dict[str, Any]) -> tuple[Array, ...]:
        """What `carried` gave, for `carry`: nothing."""
        return ()

    def carry(self, sums: tuple[Array, ...]) -> None:
        """Go on with nothing."""

    def transcript(self, rounds: RoundFacts) -> Transcript:
        """What the rounds so far released."""
        recorded = self.recorder.transcript()
        facts = recorded.facts
        return recorded.with_facts(
            replace(
                facts,
                exercised=(*facts.exercised, *THROUGH_AGGREGATOR),
                rounds=rounds,
                clip_count=self._clip_count(),
            )
        )

    def _clip_count(self) -> ClipCountFacts | None:
        """What is stated of the count that moves the clip norm; its noise is not read."""
        if self._count is None:
            return None
        return ClipCountFacts(
            releases=self.recorder.steps,
            shown=self.recorder.steps,
            deviation=self._count,
            noise_multiplier=noise_of_both(self._noise or 0.0, self._count),
        )


class LinearRecording:
    """Rounds of DP-FTRL at the server: a tree, or a strategy such as BandMF.

    An aggregator hands out one round after the other; a tree's noise is that of their prefixes, so
    rounds are added up again.
    """

    def __init__(
        self,
        canaries: DiracCanaries,
        plan: TreePlan | Strategy,
        *,
        clip_norm: float,
        noise_multiplier: float | None,
    ) -> None:
        if isinstance(plan, TreePlan) and plan.release != "prefixes":
            raise UnsupportedError(
                "Expected a tree of which prefixes are released, got one of nodes: an aggregator "
                'hands out rounds. Plan TreePlan(..., release="prefixes").'
            )
        self.recorder = LinearRecorder(
            canaries, plan, clip_norm=clip_norm, noise_multiplier=noise_multiplier
        )
        # A canary is in the rounds of its leaves for sure: nobody else's presence tells.
        self.known_background = True
        self.monitor: Monitor | None = None
        self.plan: TreePlan | Strategy | None = plan
        self._size = (canaries.size,)
        self._released: Array | float = 0.0
        self._clean: Array | float = 0.0

    def observe(
        self,
        form: Form,
        values: Array,
        clean: Array | None,
        signs: Array,
        *,
        clip_norm: float,
        clients: int,
    ) -> None:
        """Record a round.

        Args:
            form: The form of its updates.
            values: The sum that was released, at all coordinates that are read.
            clean: What honest clients added to it there, where that is known.
            signs: Which way each canary points.
            clip_norm: The norm that updates were clipped to.
            clients: Number of clients, canaries among them.
        """
        released = signs * form.along(values)
        background = None if clean is None else signs * form.along(clean)
        if isinstance(self.plan, TreePlan):
            released = released + self._released
            if background is not None:
                background = background + self._clean
        self.recorder.observe(released, background=background)
        self._released, self._clean = released, 0.0 if background is None else background

    def carried(self) -> dict[str, Array]:
        """What the next round needs of those before it, beside the recorder."""
        shape = self._size
        return {
            "released": np.broadcast_to(self._released, shape).astype(np.float64),
            "clean": np.broadcast_to(self._clean, shape).astype(np.float64),
        }

    def checked(self, state: dict[str, Any]) -> tuple[Array, ...]:
        """What `carried` gave, for `carry`.

        Raises:
            FileFormatError: A part is missing, or of another size.
        """
        return tuple(saved_numbers(state, name, self._size) for name in ("released", "clean"))

    def carry(self, sums: tuple[Array, ...]) -> None:
        """Go on with these sums."""
        self._released, self._clean = sums

    def transcript(self, rounds: RoundFacts) -> LinearTranscript:
        """What the rounds so far released."""
        recorded = self.recorder.transcript()
        return recorded.with_facts(
            replace(recorded.facts, exercised=THROUGH_AGGREGATOR, rounds=rounds)
        )


class Participants:
    """Who took part in which rounds, by the names that the caller gives clients."""

    def __init__(self) -> None:
        self._rounds: dict[Hashable, list[int]] = {}
        self._named: bool | None = None

    def check(self, names: Sequence[Hashable] | None, clients: int) -> None:
        """Refuse names that are not those of the clients of a round.

        Raises:
            InvalidArgumentError: They are too many or too few, or one is there twice.
        """
        if self._named is not None and (names is not None) != self._named:
            raise InvalidArgumentError("Expected participants in every round or in none.")
        if names is None:
            return
        if len(names) != clients:
            raise InvalidArgumentError(
                f"Expected participants to name each of {clients:,} clients, got {len(names):,}."
            )
        try:
            distinct = len(set(names))
        except TypeError as error:
            raise _validate.fail("participants", "names", "to be hashable", str(error)) from error
        if distinct != clients:
            raise InvalidArgumentError(
                f"Expected every participant once in a round, got {clients - distinct:,} again: "
                "add up what one client sends before it is clipped."
            )

    def add(self, number: int, names: Sequence[Hashable] | None) -> None:
        """Note who took part in a round that was released."""
        self._named = names is not None
        for name in names or ():
            self._rounds.setdefault(name, []).append(number)

    def saved(self) -> tuple[bool | None, tuple[tuple[str | int, tuple[int, ...]], ...]]:
        """Whether clients are named, and the rounds of each.

        Raises:
            UnsupportedError: A name is neither text nor a whole number.
        """
        rounds: list[tuple[str | int, tuple[int, ...]]] = []
        for name, entered in self._rounds.items():
            if not isinstance(name, (str, int, np.integer)) or isinstance(name, bool):
                raise UnsupportedError(
                    f"Expected participants named by text or whole numbers, got {name!r}: other "
                    "names cannot be saved."
                )
            rounds.append((name if isinstance(name, str) else int(name), tuple(entered)))
        return self._named, tuple(rounds)

    def restore(
        self, named: bool | None, rounds: tuple[tuple[str | int, tuple[int, ...]], ...]
    ) -> None:
        """Go on with what was `saved`."""
        self._named = named
        self._rounds = {name: list(entered) for name, entered in rounds}

    def facts(self, plan: TreePlan | Strategy | None) -> ParticipationFacts | None:
        """What is to be kept of them; None where nobody was named."""
        if not self._named:
            return None
        closest = min(
            (int(np.diff(rounds).min()) for rounds in self._rounds.values() if len(rounds) > 1),
            default=0,
        )
        most = max((len(rounds) for rounds in self._rounds.values()), default=0)
        found = ParticipationFacts(clients=len(self._rounds), most=most, closest=closest)
        if plan is None:
            return found
        limit, separation = int(plan.participations), int(plan.min_separation)
        beyond = {
            tuple(rounds)
            for rounds in self._rounds.values()
            if len(rounds) > limit or (len(rounds) > 1 and np.diff(rounds).min() < separation)
        }
        worst = sorted(beyond, key=lambda rounds: (-len(rounds), rounds))[:_MOST_WAYS]
        moved = max((moved_by(plan, rounds) for rounds in worst), default=0.0)
        return replace(found, limit=limit, separation=separation, moved=moved)
