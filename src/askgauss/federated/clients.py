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
from askgauss.federated.probes import PROBED_SIZES, Probe
from askgauss.federated.readings import HonestWeights, OpenRound, PeerRecord
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
from askgauss.recording.run_recorder import saved_array, saved_canaries
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.sampling import EveryStep, Scheme

__all__ = [
    "CanaryClients",
    "Joined",
]

# Ways to take part beyond the limits of which the worst is looked for.
_MOST_WAYS = 64

Array = NDArray[np.float64]


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
    probing: bool


class CanaryClients:
    """Canaries that are clients: `join` a round before it is aggregated, then `read` its mean.

    The arguments are those of `AuditedAggregator`, but for these.

    Args:
        weight: Its ``canary_weight``.
        clip_norm: The norm updates are clipped to, where there is a plan.
        peers: Its ``compare_peers``.
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
        probes: bool = True,
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
        scheme = EveryStep() if sampling is None else sampling
        self.recorder: Recorder | LinearRecorder
        if plan is None:
            self.recorder = Recorder(
                canaries, sampling=scheme, noise_multiplier=noise_multiplier, monitor=monitor
            )
        elif sampling is not None or monitor is not None:
            raise InvalidArgumentError(
                "Expected a plan without sampling and without a monitor, got both: the plan says "
                "how often a client takes part, and single rounds of correlated noise say nothing."
            )
        elif isinstance(plan, TreePlan) and plan.release != "prefixes":
            raise UnsupportedError(
                "Expected a tree of which prefixes are released, got one of nodes: an aggregator "
                'hands out rounds. Plan TreePlan(..., release="prefixes").'
            )
        else:
            self.recorder = LinearRecorder(
                canaries, plan, clip_norm=clip_norm, noise_multiplier=noise_multiplier
            )
        self.plan = plan
        self.monitor = monitor
        self._noise, self._count = noise_multiplier, count_deviation
        # What all rounds released so far, and their background: a tree has noise of prefixes.
        self._prefix = np.zeros((2, canaries.size))
        self._taken_off = background
        # With a plan a canary is in its rounds for sure: other clients do not reveal it.
        self._known = background and (plan is not None or scheme.known_background)
        self._honest = HonestWeights()
        self._participants = Participants()
        self.peers = PeerRecord(canaries.member) if peers else None
        self._divisor, self._weight = divisor, weight
        self._form: Form | None = None
        self._drawn: NDArray[np.int64] | None = None
        self._round: OpenRound | None = None
        self._weighing: int | None = None
        self._facts = RoundFacts(probes=ProbeFacts(unchecked="" if probes else "probes=True"))
        self._probing = probes
        self._ratios: list[float] = []
        self._plantings = 0

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

    def probe(
        self,
        aggregate: Any,
        *,
        call: Callable[[Any, list[Any], list[float] | None], Any],
        clip_norm: Callable[[Any], float],
        weighted: bool,
        adaptive: bool,
    ) -> None:
        """Probe copies of the aggregator, once a run; the arguments are those of `Probe`."""
        if not self._probing:
            return
        self._probing = False
        assert self._form is not None
        constant = None if self._divisor is None or callable(self._divisor) else self._divisor
        probes = Probe(
            aggregate=aggregate,
            form=self._form,
            call=call,
            clip_norm=clip_norm,
            divisor=self.divisor,
            constant=constant,
            weighted=weighted,
            adaptive=adaptive,
            seed=self.canaries.root_seed,
        )
        self._facts = replace(self._facts, probes=probes.facts())

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
        self._round = OpenRound(
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
            self._observe(form, values, clean, now)
        except PrivacyAlarm:
            self._close(now, next_norm)
            raise
        if self.peers is not None:
            self.peers.read(parts, self._signs * form.along(values) / now.divisor, now.planted)
        self._close(now, next_norm)

    def _observe(self, form: Form, values: Array, clean: Array | None, now: OpenRound) -> None:
        """Record the sum of a round, and what honest clients added to it where that is known."""
        released = self._signs * form.along(values)
        background = None if clean is None else self._signs * form.along(clean)
        if isinstance(self.recorder, Recorder):
            self.recorder.observe(
                released,
                background=background,
                clip_norm=now.clip_norm,
                watch=form.watched(values if clean is None else values - clean),
                batch_size=now.clients,
            )
            return
        if isinstance(self.plan, TreePlan):
            released = released + self._prefix[0]
            background = None if background is None else background + self._prefix[1]
        self.recorder.observe(released, background=background)
        if isinstance(self.plan, TreePlan):
            clean_sum = self._prefix[1] if background is None else background
            self._prefix = np.stack([released, clean_sum])

    def _close(self, now: OpenRound, next_norm: float | None) -> None:
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

    def _weighed(self, values: NDArray[np.float64], now: OpenRound) -> int:
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

    def _read_honest(self, form: Form, mean: list[NDArray[Any]], now: OpenRound) -> None:
        """Look along the honest updates; the noise of plans is not fresh in every round."""
        if self.plan is not None:
            return
        self._honest.read(form, now, mean, canaries=self.canaries.coordinates)

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
            probing=self._probing,
        )
        state: dict[str, Any] = {f"{_RECORDER}{name}": item for name, item in recorded.items()}
        state["prefix"] = self._prefix.copy()
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
        if progress.weighing not in (None, 0, 1, 2) or progress.plantings < 0:
            raise FileFormatError("Expected state to count plantings and name a way to weigh.")
        drawn = saved_canaries(state, "joined", self.canaries) if "joined" in state else None
        recorded = {
            name.removeprefix(_RECORDER): item
            for name, item in state.items()
            if name.startswith(_RECORDER)
        }
        # All that may be refused comes before anything is taken over.
        prefix = saved_array(state, "prefix", np.float64, self._prefix.shape)
        self.recorder.load_state_dict({**recorded, "state": progress.recorder})
        self._prefix, self._drawn, self._round = prefix, drawn, None
        self._probing = progress.probing
        self._facts, self._weighing = progress.facts, progress.weighing
        self._ratios, self._plantings = list(progress.ratios), progress.plantings
        self._participants.restore(progress.named, progress.participants)
        self._honest.restore(*progress.honest)

    def transcript(self) -> Transcript | LinearTranscript:
        """What the rounds so far released about the canaries."""
        recorded = self.recorder.transcript()
        rounds = replace(
            self._facts,
            adaptive=bool(self._ratios),
            next_norms=tuple(self._ratios),
            participation=self._participants.facts(self.plan),
            signed=True,
            honest=self._honest.facts(),
        )
        facts = replace(
            recorded.facts,
            exercised=(*recorded.facts.exercised, *THROUGH_AGGREGATOR),
            rounds=rounds,
            clip_count=self._clip_count(),
        )
        return recorded.with_facts(facts)

    def _clip_count(self) -> ClipCountFacts | None:
        """What is stated of the count that moves the clip norm; its noise is not read."""
        if self._count is None:
            return None
        return ClipCountFacts(
            releases=self.recorder.steps,
            shown=self.recorder.steps,
            deviation=float(self._count),
            noise_multiplier=noise_of_both(self._noise or 0.0, self._count),
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
