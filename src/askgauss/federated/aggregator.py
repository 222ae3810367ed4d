"""An aggregator under audit: canary clients join every round, and its mean is read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from askgauss import _validate
from askgauss.auditing import AuditedRun
from askgauss.canaries import DiracCanaries
from askgauss.exceptions import NotDefinedError
from askgauss.federated.clients import CanaryClients, Divisor
from askgauss.federated.readings import PeerEstimates
from askgauss.files.checkpoint import Kept
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategy import Strategy
from askgauss.monitor import Monitor, monitor_of
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.sampling import EveryStep, Scheme

__all__ = ["AuditedAggregator"]


class AuditedAggregator(Kept, AuditedRun[()]):
    """Calls an aggregator as before, with canary clients among its clients.

    Canaries send what clients send: an update far above the clip norm, in a direction of their own.
    They are clipped, weighted, added up and noised with the others, and the mean that comes out
    says what one client adds. It goes on to the model as it is, canaries and all: each moves one
    coordinate by a clip norm over the number of clients.

    Before the first round copies of the aggregator get updates that no client may upset it with: a
    nan, zeros, a weight a million times that of the others.

    Args:
        aggregate: Called with the updates of a round, a list of arrays or of lists of arrays, and
            the weights that clients report; returns their noised mean, or None where it releases
            nothing. An object with ``__call__``, or a method of one, can also be copied and probed.
        dimension: Entries of an update; or the sizes of its arrays, in order.
        present: Number of canary clients that take part.
        absent: Number of those that might have.
        clip_norm: The norm updates are clipped to; where it changes, a function of the aggregator
            that reads the one of the coming round.
        noise_multiplier: Noise on the sum of clipped updates, in clip norms, as claimed.
        sampling: How clients are drawn: all in every round (`EveryStep`) if not given. Cohorts of
            fixed size are ``FixedSize(batch=..., records=...)``.
        divisor: What turns the mean into the sum that the noise assumes: noise on the mean is
            ``noise_multiplier * clip_norm / divisor``. A number, a function of the reported
            weights, or None for the number of clients of the round.
        canary_weight: What canary clients report; None for the largest weight of their round.
        background: Whether the honest updates, clipped, are taken off, where the scheme allows it.
            False for an aggregator that combines them in some way of its own.
        probes: Whether to probe copies of the aggregator.
        seed: Root of the canaries' random choices.
        monitor: Watches every round, and may end the run: ``Monitor(claim=claim)``, or True to hold
            it to what is declared here. An alarm comes before the mean is handed on.
        plan: DP-FTRL at the server, whose noise is correlated between rounds: a `TreePlan`
            of which prefixes are released, or a strategy (`BandedStrategy`, `BufferedToeplitz`, a
            `MatrixMechanism`), with the participations that were accounted for. The aggregator
            returns the mean of a round, with the noise that this round adds to those before it.
        compare_peers: Whether to read what `peer_estimates` needs: every entry of every mean.
        count_deviation: Deviation of the noise on the count by which an adaptive clip norm moves,
            in clients. The count is a release of its own: what both cost is held against the noise
            multiplier of the claim.

    Raises:
        InvalidArgumentError: An argument is out of its range.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> class Server:
        ...     def __init__(self):
        ...         self.noise = np.random.default_rng(1)
        ...     def __call__(self, updates, weights):
        ...         total = sum(u / max(1.0, np.linalg.norm(u)) for u in updates)
        ...         return (total + self.noise.normal(0, 4.0, 500)) / len(updates)
        >>> aggregate = AuditedAggregator(Server(), dimension=500, present=20, absent=200,
        ...                               clip_norm=1.0, noise_multiplier=4.0, seed=0)
        >>> for _ in range(5):
        ...     mean = aggregate([np.full(500, 0.1)] * 30, [1.0] * 30)
        >>> aggregate.transcript()
        Transcript(steps=5, present=20, absent=200, background='known')
    """

    result_ends = True
    _checkpoint_kind = "askgauss-aggregator"
    _checkpoint_schema = 3

    def __init__(
        self,
        aggregate: Callable[[list[Any], Any], Any],
        *,
        dimension: int | Sequence[int],
        present: int = 40,
        absent: int = 600,
        clip_norm: float | Callable[[Any], float],
        noise_multiplier: float | None = None,
        sampling: Scheme | None = None,
        divisor: Divisor = None,
        canary_weight: float | None = None,
        background: bool = True,
        probes: bool = True,
        seed: int | None = None,
        monitor: Monitor | bool | None = None,
        plan: TreePlan | Strategy | None = None,
        compare_peers: bool = False,
        count_deviation: float | None = None,
    ) -> None:
        if not callable(aggregate):
            raise _validate.fail("aggregate", aggregate, "to be called with updates and weights")
        if not callable(clip_norm):
            _validate.magnitude(clip_norm=clip_norm)
        elif plan is not None:
            hint = "Noise of earlier rounds was scaled by the first."
            raise _validate.fail("clip_norm", clip_norm, "to be one number with a plan", hint)
        if count_deviation is not None and not callable(clip_norm):
            hint = (
                "A clip norm that moves is a function: clip_norm=lambda server: server.clip_norm."
            )
            raise _validate.fail("count_deviation", count_deviation, "to be left out here", hint)
        if noise_multiplier is not None:
            _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
        self._aggregate = aggregate
        self._clip_norm = clip_norm
        self._clients = CanaryClients(
            dimension=dimension,
            present=present,
            absent=absent,
            noise_multiplier=noise_multiplier,
            sampling=sampling,
            divisor=divisor,
            weight=canary_weight,
            background=background,
            seed=seed,
            monitor=monitor_of(monitor),
            plan=plan,
            clip_norm=1.0 if callable(clip_norm) else float(clip_norm),
            peers=compare_peers,
            count_deviation=count_deviation,
            probes=probes,
        )
        self._sampling = EveryStep() if sampling is None else sampling

    @property
    def canaries(self) -> DiracCanaries:
        """Who is planted where."""
        return self._clients.canaries

    @property
    def rounds(self) -> int:
        """Number of rounds that were released."""
        return self._clients.recorder.steps

    @property
    def monitor(self) -> Monitor | None:
        """What watches the rounds, if anything does."""
        return self._clients.monitor

    def _norm(self, aggregate: Any) -> float:
        return float(self._clip_norm(aggregate) if callable(self._clip_norm) else self._clip_norm)

    def __call__(
        self,
        updates: Sequence[Any],
        weights: ArrayLike | None = None,
        *,
        participants: Sequence[Hashable] | None = None,
        step: int | None = None,
    ) -> Any:
        """Aggregate a round, canary clients among the others.

        Args:
            updates: The honest clients' updates, one each.
            weights: What they report, such as numbers of examples; None where they report nothing.
            participants: Their names, to count how often each takes part; in every round or none.
            step: Rounds that were released before by your own count, 0 for the first; checked when
                given, so that a run is not resumed from checkpoints of two moments.

        Returns:
            What the aggregator returned.

        Raises:
            InvalidArgumentError: An update or a weight is not like the others.
            RecordingError: The audit is at another round.
            PrivacyAlarm: The monitor alarms; the round has been recorded.
        """
        self._clients.check_step(step)
        joined = self._clients.join(
            updates,
            weights,
            clip_norm=self._norm(self._aggregate),
            participants=participants,
        )
        changes = callable(self._clip_norm)
        self._clients.probe(
            self._aggregate,
            call=lambda aggregate, updates, weights: aggregate(updates, weights),
            clip_norm=self._norm,
            weighted=weights is not None,
            adaptive=changes,
        )
        everyone = None
        if joined.weights is not None:
            everyone = [*np.asarray(weights).tolist(), *joined.weights]
        mean = self._aggregate([*updates, *joined.updates], everyone)
        self._clients.read(mean, next_norm=self._norm(self._aggregate) if changes else None)
        return mean

    def state_dict(self) -> dict[str, Any]:
        """What the audit needs to resume, between two rounds; the aggregator is yours to save.

        Raises:
            UnsupportedError: Peers are compared, or a client has a name that cannot be saved.
        """
        return self._clients.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken, with an aggregator of the same round.

        Raises:
            FileFormatError: The state is not one of an audited aggregator, or parts are missing.
            RecordingError: It belongs to other canaries or other settings.
        """
        self._clients.load_state_dict(state)

    def transcript(self) -> Transcript | LinearTranscript:
        """What the rounds so far released about the canaries.

        Raises:
            RecordingError: No round has been released.
        """
        return self._clients.transcript()

    def peer_estimates(self, *, delta: float) -> PeerEstimates:
        """What other methods estimate from the same rounds; none of them is a bound.

        Args:
            delta: Where to state them.

        Raises:
            NotDefinedError: They were not asked for, or nothing was released.
        """
        _validate.probability(delta=delta)
        if self._clients.peers is None:
            raise NotDefinedError("Expected AuditedAggregator(..., compare_peers=True), got False.")
        return self._clients.peers.estimates(self._sampling, steps=self.rounds, delta=delta)
