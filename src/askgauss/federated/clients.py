"""Canary clients: what they send, and what a round released about them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import DiracCanaries, Stream, random_stream
from askgauss.checks.scope import THROUGH_AGGREGATOR
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    PrivacyAlarm,
    RecordingError,
    UnsupportedError,
)
from askgauss.federated.probes import PROBED_SIZES
from askgauss.federated.readings import HonestRound, HonestWeights, PeerRecord
from askgauss.federated.updates import Form, checked_weights
from askgauss.files import codec
from askgauss.mechanisms.decorrelate import moved_by
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategy import Strategy
from askgauss.monitor import Monitor
from askgauss.recording.facts import (
    ClipCountFacts,
    ParticipationFacts,
    ProbeFacts,
    RoundFacts,
    noise_of_both,
)
from askgauss.recording.linear_recorder import LinearRecorder
from askgauss.recording.recorder import Recorder
from askgauss.recording.run_recorder import saved_numbers
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.sampling import EveryStep, Scheme

__all__ = [
    "CanaryClients",
    "Joined",
    "LinearRecording",
    "Participants",
    "ReleasedRound",
    "StepRecording",
]

# Ways to take part beyond the limits of which the worst is looked for.
_MOST_WAYS = 64

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedRound:
    """What a round released along the canaries.

    Attributes:
        form: The form of its updates.
        values: The sum that was released, at all coordinates that are read.
        clean: What honest clients added to it there, where that is known.
        signs: Which way each canary points.
        clip_norm: The norm that updates were clipped to.
        clients: Number of clients, canaries among them.
    """

    form: Form
    values: Array
    clean: Array | None
    signs: Array
    clip_norm: float
    clients: int

    @property
    def released(self) -> Array:
        """The sum along each canary."""
        return self.signs * self.form.along(self.values)

    @property
    def background(self) -> Array | None:
        """What honest clients added along each canary, where that is known."""
        return None if self.clean is None else self.signs * self.form.along(self.clean)


class StepRecording:
    """Rounds whose noise is independent."""

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

    def observe(self, now: ReleasedRound) -> None:
        """Record a round."""
        values = now.values if now.clean is None else now.values - now.clean
        self.recorder.observe(
            now.released,
            background=now.background,
            clip_norm=now.clip_norm,
            watch=now.form.watched(values),
            batch_size=now.clients,
        )

    def carried(self) -> dict[str, Array]:
        """What the next round needs of those before it, beside the recorder."""
        return {}

    def checked(self, state: dict[str, Any]) -> tuple[Array, ...]:
        """What `carried` gave, for `carry`: nothing."""
        return ()

    def carry(self, sums: tuple[Array, ...]) -> None:
        """Resume with nothing."""

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
        # A canary is in the rounds of its leaves for sure: other clients do not reveal it.
        self.known_background = True
        self.monitor: Monitor | None = None
        self.plan: TreePlan | Strategy | None = plan
        self._size = (canaries.size,)
        self._released: Array | float = 0.0
        self._clean: Array | float = 0.0

    def observe(self, now: ReleasedRound) -> None:
        """Record a round."""
        released, background = now.released, now.background
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
        """Resume with these sums."""
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
        """Resume with what was `saved`."""
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


# Backgrounds that differ by less than this share of the clip norm are the same.
_ALIKE = 1e-3
# Before the names of the recorder's arrays in a checkpoint.
_RECORDER = "recorder."

Divisor = float | Callable[[NDArray[np.float64]], float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The clients that join a round.

    Attributes:
        updates: Their updates, of the form that the others have.
        weights: What they report; None where the others report nothing.
        clients: Number of clients of the round, these among them.
    """

    updates: list[Any]
    weights: list[float] | None
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """A round under way."""

    clip_norm: float
    clients: int
    divisor: float
    planted: NDArray[np.int64]
    # What honest clients add by each way to weigh them, at all coordinates that are read; and
    # what each of them is multiplied by in it.
    backgrounds: tuple[NDArray[np.float64], ...]
    factors: tuple[NDArray[np.float64], ...]
    updates: list[list[NDArray[Any]]]
    norms: list[float]
    reported: float
    participants: tuple[Hashable, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The plain values of a checkpoint."""

    recorder: dict[str, Any]
    facts: RoundFacts
    weighing: int | None
    ratios: tuple[float, ...]
    plantings: int
    named: bool | None
    participants: tuple[tuple[str | int, tuple[int, ...]], ...]
    honest: tuple[int, tuple[float, ...], tuple[tuple[int, str, str, tuple[float, ...]], ...]]


class CanaryClients:
    """Canaries that are clients: `join` a round before it is aggregated, then `read` its mean.

    Args:
        dimension: Entries of an update; or the sizes of its arrays, in order.
        present: Number of canary clients that take part.
        absent: Number of those that might have.
        noise_multiplier: Noise on the sum of clipped updates, in clip norms, as claimed.
        sampling: How clients are drawn.
        divisor: What turns the mean into the sum that the noise assumes: noise on the mean is
            ``noise_multiplier * clip_norm / divisor``. A number, a function of the reported
            weights, or None for the number of clients of the round.
        weight: What canary clients report; None for the largest weight of their round.
        background: Whether the honest updates, clipped, are taken off, where the scheme allows it.
        seed: Root of the canaries' random choices.
        monitor: Watches every round.
        plan: Noise that is correlated between rounds: a tree, or a strategy. In place of a
            scheme it says how often a client takes part.
        clip_norm: The norm updates are clipped to, where there is a plan.
        peers: Whether to read what other methods read, too.
    """

    def __init__(
        self,
        *,
        dimension: int | Sequence[int],
        present: int,
        absent: int,
        noise_multiplier: float | None,
        sampling: Scheme | None,
        divisor: Divisor = None,
        weight: float | None = None,
        background: bool = True,
        seed: int | None = None,
        monitor: Monitor | None = None,
        plan: TreePlan | Strategy | None = None,
        clip_norm: float = 1.0,
        peers: bool = False,
        count_deviation: float | None = None,
    ) -> None:
        if count_deviation is not None:
            _validate.non_negative(count_deviation=count_deviation)
        if isinstance(dimension, Sequence):
            canaries = DiracCanaries(present=present, absent=absent, tensors=dimension, seed=seed)
        else:
            canaries = DiracCanaries(present=present, absent=absent, dimension=dimension, seed=seed)
        if divisor is not None and not callable(divisor):
            _validate.positive(divisor=divisor)
        if weight is not None:
            _validate.non_negative(canary_weight=weight)
        self.canaries = canaries
        # Updates of either sign: what a client moves that turns into its opposite is then measured.
        stream = random_stream(canaries.root_seed, Stream.SIGNS)
        self._signs = stream.choice((-1.0, 1.0), size=canaries.size)
        # And of many norms: clipping has something to do, near the clip norm and far above it.
        self._sizes = stream.choice(PROBED_SIZES, size=canaries.size)
        self.recording: StepRecording | LinearRecording
        if plan is None:
            self.recording = StepRecording(
                canaries,
                EveryStep() if sampling is None else sampling,
                noise_multiplier=noise_multiplier,
                monitor=monitor,
                count_deviation=None if count_deviation is None else float(count_deviation),
            )
        elif sampling is not None or monitor is not None:
            raise InvalidArgumentError(
                "Expected a plan without sampling and without a monitor, got both: the plan says "
                "how often a client takes part, and rounds whose noise hangs together say nothing "
                "one by one."
            )
        else:
            self.recording = LinearRecording(
                canaries, plan, clip_norm=clip_norm, noise_multiplier=noise_multiplier
            )
        self._taken_off = background
        self._known = background and self.recording.known_background
        self._honest = HonestWeights()
        self._participants = Participants()
        self.peers = PeerRecord(canaries.member) if peers else None
        self._divisor, self._weight = divisor, weight
        self._form: Form | None = None
        self._drawn: NDArray[np.int64] | None = None
        self._round: _Round | None = None
        self._weighing: int | None = None
        self._facts = RoundFacts()
        self._ratios: list[float] = []
        self._plantings = 0

    @property
    def recorder(self) -> Recorder | LinearRecorder:
        """What the rounds are recorded with."""
        return self.recording.recorder

    @property
    def monitor(self) -> Monitor | None:
        """What watches the rounds, if anything does."""
        return self.recording.monitor

    @property
    def form(self) -> Form | None:
        """The form of the updates, once one was seen."""
        return self._form

    def check_step(self, step: int | None) -> None:
        """Refuse a round that the caller counts otherwise, before anything of it is done.

        Raises:
            InvalidArgumentError: It is no count.
            RecordingError: The audit is at another round.
        """
        self.recorder.check_step(step, self.recorder.steps)

    def divisor(self, weights: NDArray[np.float64] | None, clients: int) -> float:
        """What turns the mean of these clients into the sum that the noise assumes."""
        if self._divisor is None:
            return float(clients)
        if not callable(self._divisor):
            return float(self._divisor)
        divisor = float(self._divisor(np.ones(clients) if weights is None else weights))
        _validate.positive(divisor=divisor)
        return divisor

    def join(
        self,
        updates: Sequence[Any],
        weights: ArrayLike | None,
        *,
        clip_norm: float,
        participants: Sequence[Hashable] | None = None,
    ) -> Joined:
        """The canary clients of a round.

        Args:
            updates: Updates of the honest clients; read, and neither copied nor changed.
            weights: What these report.
            clip_norm: The norm that this round's updates are clipped to.
            participants: Names of the honest clients, to count how often each takes part.

        Raises:
            InvalidArgumentError: An update or a weight is not like the others.
        """
        _validate.magnitude(clip_norm=clip_norm)
        honest = checked_weights(weights, len(updates))
        self._participants.check(participants, len(updates))
        parts = []
        for index, update in enumerate(updates):
            if self._form is None:
                self._form = Form(update, self.canaries)
            parts.append(self._form.parts(update, f"update {index:,}"))
        if self._form is None:
            raise InvalidArgumentError(
                "Expected updates of at least one client in the first round, got none: canaries "
                "send what looks like theirs."
            )
        # A round that was not released is drawn once: its failure does not depend on the draw.
        planted = self.recorder.sample() if self._drawn is None else self._drawn
        self._drawn = planted
        clients = len(updates) + planted.size
        if clients == 0:
            raise InvalidArgumentError(
                "Expected a round to have clients, got none, honest or canary. Skip the round, and "
                "account for it as a release of nothing."
            )
        everyone, own = None, 1.0
        if honest is not None:
            own = float(honest.max(initial=0.0) or 1.0) if self._weight is None else self._weight
            everyone = np.concatenate([honest, np.full(planted.size, own)])
            if not everyone.sum() > 0.0:
                raise InvalidArgumentError(
                    "Expected weights of which one is above 0, got zeros: their mean is nothing."
                )
        divisor = self.divisor(everyone, clients)
        share = 1.0 if everyone is None else own * divisor / float(everyone.sum())
        heaviest = 1.0
        if honest is not None and honest.sum() > 0.0:
            heaviest = float(honest.max() / honest.mean())
        norms = [self._form.norm(update) for update in parts] if self._taken_off else []
        factors: tuple[NDArray[np.float64], ...] = ()
        if self._taken_off:
            factors = _factors(norms, honest, everyone, clip_norm, clients, divisor)
        self._round = _Round(
            clip_norm=float(clip_norm),
            clients=clients,
            divisor=divisor,
            planted=planted,
            backgrounds=tuple(self._background_of(parts, each) for each in factors),
            factors=factors,
            updates=parts,
            norms=norms,
            reported=share,
            participants=None if participants is None else tuple(participants),
        )
        self._facts = replace(
            self._facts,
            fewest=min(self._facts.fewest, len(updates)) if self._facts.most else len(updates),
            most=max(self._facts.most, len(updates)),
            heaviest=max(self._facts.heaviest, heaviest),
        )
        places = self.canaries.coordinates[planted]
        heights = self._sizes[planted] * float(clip_norm) * self._signs[planted]
        return Joined(
            updates=[
                self._form.filled(float(height), at=int(place))
                for height, place in zip(heights, places, strict=True)
            ],
            weights=None if honest is None else [own] * planted.size,
            clients=clients,
        )

    def _background_of(
        self, updates: list[list[NDArray[Any]]], factors: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """What honest clients add, each multiplied by its factor."""
        assert self._form is not None
        total = np.zeros(self.canaries.size + self.canaries.watch.size)
        for parts, factor in zip(updates, factors, strict=True):
            if factor > 0.0:
                total += factor * self._form.read(parts)
        return total

    def read(self, mean: Any, *, next_norm: float | None = None) -> None:
        """Record what a round released.

        Args:
            mean: The mean of all clients, noise and all; None where nothing was released.
            next_norm: The clip norm after the round, where it may change.

        Raises:
            RecordingError: No canary joined before.
            InvalidArgumentError: The mean is not like the updates.
            PrivacyAlarm: The monitor alarms; the round has been recorded.
        """
        now, form = self._round, self._form
        if now is None or form is None:
            raise RecordingError("read() came before join(): let canaries join the round first.")
        if mean is None:
            self._round = None
            self._facts = replace(self._facts, unreleased=self._facts.unreleased + 1)
            return
        parts = form.parts(mean, "the mean")
        values = form.read(parts) * now.divisor
        clean = None
        if now.backgrounds:
            chosen = self._weighed(values, now)
            clean = now.backgrounds[chosen] if self._known else None
            self._read_honest(form, parts, now)
        try:
            self.recording.observe(
                ReleasedRound(
                    form=form,
                    values=values,
                    clean=clean,
                    signs=self._signs,
                    clip_norm=now.clip_norm,
                    clients=now.clients,
                )
            )
        except PrivacyAlarm:
            self._close(now, next_norm)
            raise
        if self.peers is not None:
            self.peers.read(parts, self._signs * form.along(values) / now.divisor, now.planted)
        self._close(now, next_norm)

    def _close(self, now: _Round, next_norm: float | None) -> None:
        """Keep what is to be kept of a round that was recorded."""
        count, facts = now.planted.size, self._facts
        self._plantings += count
        mean_share = facts.reported
        if self._plantings:
            mean_share += (now.reported - facts.reported) * count / self._plantings
        if next_norm is not None:
            self._ratios.append(float(next_norm) / now.clip_norm)
        self._facts = replace(facts, reported=mean_share)
        self._participants.add(self.recorder.steps - 1, now.participants)
        self._drawn = self._round = None

    def _weighed(self, values: NDArray[np.float64], now: _Round) -> int:
        """Which way to weigh honest clients fits what nobody is planted at.

        It is settled in the first round in which the ways differ, and kept.
        """
        assert self._form is not None
        if self._weighing is None or self._weighing >= len(now.backgrounds):
            apart = max(
                float(np.abs(other - now.backgrounds[0]).max()) for other in now.backgrounds
            )
            if apart <= _ALIKE * now.clip_norm:
                return 0
            free = np.ones(self.canaries.size, dtype=np.bool_)
            free[now.planted] = False
            left = [
                float((self._form.along(values - other)[free] ** 2).sum())
                for other in now.backgrounds
            ]
            self._weighing = int(np.argmin(left)) if np.isfinite(left).all() else 0
            if self._known and self.monitor is not None:
                # Of several, the one that leaves least was taken: too little is no evidence here.
                self.monitor.pass_over()
        return self._weighing

    def _read_honest(self, form: Form, mean: list[NDArray[Any]], now: _Round) -> None:
        """Look along the honest updates; the noise of plans is not fresh in every round."""
        if self.recording.plan is not None:
            return
        self._honest.read(
            form,
            HonestRound(
                updates=now.updates, norms=now.norms, factors=now.factors, names=now.participants
            ),
            mean,
            divisor=now.divisor,
            clip_norm=now.clip_norm,
            canaries=self.canaries.coordinates,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: arrays, and plain values under ``"state"``.

        Raises:
            RecordingError: A round is open: it joined canaries, and was not read.
            UnsupportedError: Peers are compared, or a client has a name that cannot be saved.
        """
        if self._round is not None:
            raise RecordingError("Expected state_dict() between two rounds, got it within one.")
        if self.peers is not None:
            raise UnsupportedError(
                "Expected compare_peers=False of a run that is saved, got True: what other methods "
                "read is not kept."
            )
        recorded = self.recorder.state_dict()
        named, participants = self._participants.saved()
        progress = _Progress(
            recorder=recorded.pop("state"),
            facts=self._facts,
            weighing=self._weighing,
            ratios=tuple(self._ratios),
            plantings=self._plantings,
            named=named,
            participants=participants,
            honest=self._honest.saved(),
        )
        state: dict[str, Any] = {f"{_RECORDER}{name}": item for name, item in recorded.items()}
        state |= self.recording.carried()
        if self._drawn is not None:
            state["joined"] = self._drawn.copy()
        return {**state, "state": codec.to_plain(progress)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken.

        Raises:
            FileFormatError: The state is not one of canary clients, or parts of it are missing.
            RecordingError: It belongs to other canaries or other settings.
        """
        progress: _Progress = codec.from_plain(_Progress, state.get("state"), "state")
        progress.facts.check()
        if progress.weighing not in (None, 0, 1, 2) or progress.plantings < 0:
            raise FileFormatError("Expected state to count plantings and name a way to weigh.")
        drawn = state.get("joined")
        if drawn is not None and not (
            isinstance(drawn, np.ndarray)
            and drawn.dtype == np.int64
            and np.isin(drawn, np.flatnonzero(self.canaries.member)).all()
        ):
            raise FileFormatError("Expected joined to name present canaries. Load an older one.")
        recorded = {
            name.removeprefix(_RECORDER): item
            for name, item in state.items()
            if name.startswith(_RECORDER)
        }
        # All that may be refused comes before anything is taken over.
        sums = self.recording.checked(state)
        self.recorder.load_state_dict({**recorded, "state": progress.recorder})
        self.recording.carry(sums)
        self._drawn, self._round = None if drawn is None else drawn.copy(), None
        self._facts, self._weighing = progress.facts, progress.weighing
        self._ratios, self._plantings = list(progress.ratios), progress.plantings
        self._participants.restore(progress.named, progress.participants)
        self._honest.restore(*progress.honest)

    def transcript(self, probes: ProbeFacts) -> Transcript | LinearTranscript:
        """What the rounds so far released about the canaries."""
        return self.recording.transcript(
            replace(
                self._facts,
                probes=probes,
                adaptive=bool(self._ratios),
                next_norms=tuple(self._ratios),
                participation=self._participants.facts(self.recording.plan),
                signed=True,
                honest=self._honest.facts(),
            )
        )


def _factors(
    norms: list[float],
    honest: NDArray[np.float64] | None,
    everyone: NDArray[np.float64] | None,
    clip_norm: float,
    clients: int,
    divisor: float,
) -> tuple[NDArray[np.float64], ...]:
    """What each honest update is multiplied by: in the sum, the plain mean, the reported mean."""
    lengths = np.asarray(norms, dtype=np.float64)
    # What is not finite is left out, as a correct aggregator leaves it out.
    usable = np.isfinite(lengths) & (lengths > 0.0)
    total = np.zeros(lengths.size)
    total[usable] = np.minimum(1.0, clip_norm / lengths[usable])
    plain = total * (divisor / clients)
    if honest is None or everyone is None:
        return total, plain
    return total, plain, total * honest * (divisor / float(everyone.sum()))
