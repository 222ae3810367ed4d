"""Simulated federated averaging: a private server, its faults, and its rounds."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import Stream, random_stream
from askgauss.canaries.canary_set import check_numbers
from askgauss.federated.aggregator import AuditedAggregator
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategy import NoiseStream, Strategy
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.sampling import Scheme

__all__ = ["FEDERATED_FAULTS", "FederatedFault", "Server", "simulate_federated"]

# Norms of honest updates, in clip norms: some are clipped and some are not.
_LEAST_NORM, _MOST_NORM = 0.3, 2.0
_MOST_EXAMPLES = 500
# Numbers in the updates of a round, which are in memory, and of all rounds, which take time.
_MOST_IN_ROUND, _MOST_IN_ALL = 3 * 10**7, 2 * 10**9
_TARGET, _RATE, _COUNT_NOISE = 0.5, 0.2, 0.05


class Server:
    """A private mean of clipped updates, each part of which a fault may replace.

    Every client weighs the same, whatever it reports. An adaptive clip norm follows the median of
    the updates' norms.

    Args:
        clip_norm: The norm updates are clipped to, or the first of them.
        noise_multiplier: Noise on the sum, in clip norms.
        adaptive: Whether the clip norm follows the updates.
        seed: Root of the noise.
        plan: DP-FTRL: noise that is correlated between rounds, by a tree or a strategy, and
            ``noise_multiplier`` is that of one node or row. Divide by as many clients in every
            round.
    """

    def __init__(
        self,
        *,
        clip_norm: float = 1.0,
        noise_multiplier: float,
        adaptive: bool = False,
        seed: int = 0,
        plan: TreePlan | Strategy | None = None,
    ) -> None:
        self.clip_norm = float(clip_norm)
        self.noise_multiplier = float(noise_multiplier)
        self.adaptive = adaptive
        self.generator = random_stream(seed, Stream.NOISE)
        self.plan = plan
        self._stream: NoiseStream | None = None
        self._before: NDArray[np.float64] | float = 0.0

    def __call__(self, updates: list[Any], weights: list[float] | None) -> NDArray[np.float64]:
        """The noised mean of the updates of a round."""
        norm, clients = self.clip_norm, len(updates)
        shares = self.shares(weights, clients)
        mean = np.zeros_like(updates[0], dtype=np.float64)
        below = 0
        for share, update in zip(shares, updates, strict=True):
            mean += share * self.clipped(update, norm)
            below += bool(np.linalg.norm(update) <= norm)
        if self.adaptive:
            noisy = below / clients + self.generator.normal(0.0, _COUNT_NOISE)
            self.clip_norm *= float(np.exp(-_RATE * self.off_target(noisy)))
        return mean + self.noise(mean.size, norm, clients)

    def clipped(self, update: NDArray[Any], norm: float) -> NDArray[np.float64]:
        """One update, of at most the clip norm whatever was sent."""
        finite = np.where(np.isfinite(update), update, 0.0)
        return np.asarray(finite * (norm / max(norm, float(np.linalg.norm(finite)))))

    def shares(self, weights: list[float] | None, clients: int) -> NDArray[np.float64]:
        """What each update is multiplied by."""
        return np.full(clients, 1.0 / clients)

    def off_target(self, below: float) -> float:
        """By how much more updates than wanted are below the clip norm."""
        return below - _TARGET

    def noise(self, size: int, norm: float, clients: int) -> NDArray[np.float64]:
        """Noise on the mean."""
        scale = self.noise_multiplier * norm / clients
        if self.plan is None:
            return self.generator.normal(0.0, scale, size)
        if self._stream is None:
            self._stream = self.plan.stream(_Draw(self.generator, size))
        drawn = np.asarray(self._stream.next())
        if isinstance(self.plan, Strategy):
            return scale * drawn
        # A tree has the noise of prefixes: a round adds what is new.
        fresh, self._before = drawn - self._before, drawn
        return scale * fresh


class _Draw:
    """Draws that go their own way in a copy of the server."""

    def __init__(self, generator: np.random.Generator, size: int) -> None:
        self.generator, self.size = generator, size

    def __call__(self, out: Any) -> Any:
        return self.generator.standard_normal(self.size)


FEDERATED_FAULTS: dict[str, FederatedFault] = {}
"""Every fault of a server by its name."""


@dataclass(frozen=True, slots=True)
class FederatedFault:
    """A server with one part replaced; as a decorator it registers the server it decorates.

    Attributes:
        name: Its name, in kebab-case.
        description: What goes wrong.
        finding: The check that names it.
        adaptive: Whether it needs a clip norm that moves.
        eager: Whether clients are asked again sooner than the plan of DP-FTRL lets them.
        server: The server that has it.
    """

    name: str
    description: str
    _: KW_ONLY
    finding: str
    adaptive: bool = False
    eager: bool = False
    server: type[Server] = Server

    def __call__(self, server: type[Server]) -> type[Server]:
        """Register the fault that this server has."""
        FEDERATED_FAULTS[self.name] = replace(self, server=server)
        return server


@FederatedFault(
    "weighted-mean",
    "Clients weigh what they report, and the noise is that of a plain mean.",
    finding="client weight",
)
class _WeightedMean(Server):
    def shares(self, weights: list[float] | None, clients: int) -> NDArray[np.float64]:
        given = np.ones(clients) if weights is None else np.asarray(weights, dtype=np.float64)
        return np.asarray(given / given.sum())


@FederatedFault("nan-passes", "A nan in one update passes clipping.", finding="nan update")
class _NanPasses(Server):
    def clipped(self, update: NDArray[Any], norm: float) -> NDArray[np.float64]:
        return np.asarray(update * (norm / max(norm, float(np.linalg.norm(update)))))


@FederatedFault("zero-divides", "An update of zeros is divided by its norm.", finding="zero update")
class _ZeroDivides(Server):
    def clipped(self, update: NDArray[Any], norm: float) -> NDArray[np.float64]:
        finite = np.where(np.isfinite(update), update, 0.0)
        length = np.linalg.norm(finite)
        return np.asarray(finite / length * min(float(length), norm))


@FederatedFault("no-clipping", "Updates are added up as they come.", finding="contribution")
class _NoClipping(Server):
    def clipped(self, update: NDArray[Any], norm: float) -> NDArray[np.float64]:
        return np.where(np.isfinite(update), update, 0.0)


@FederatedFault(
    "near-unclipped", "Updates below three clip norms are left as they are.", finding="update norms"
)
class _NearUnclipped(Server):
    def clipped(self, update: NDArray[Any], norm: float) -> NDArray[np.float64]:
        near = float(np.linalg.norm(update)) < 3.0 * norm
        return np.asarray(update) if near else super().clipped(update, norm)


@FederatedFault(
    "half-precision-norm",
    "Norms are in half precision, and those that overflow clip nothing.",
    finding="update norms",
)
class _HalfPrecisionNorm(Server):
    def clipped(self, update: NDArray[Any], norm: float) -> NDArray[np.float64]:
        finite = np.where(np.isfinite(update), update, 0.0)
        half = finite.astype(np.float16)
        length = float(np.sqrt(np.dot(half, half)))
        return np.asarray(finite * (norm / length if norm < length < np.inf else 1.0))


@FederatedFault(
    "clipped-by-layer",
    "Both halves of an update are clipped to the whole clip norm.",
    finding="update norms",
)
class _HalvesClipped(Server):
    def clipped(self, update: NDArray[Any], norm: float) -> NDArray[np.float64]:
        halves = np.array_split(update, 2)
        return np.concatenate([super(_HalvesClipped, self).clipped(part, norm) for part in halves])


@FederatedFault(
    "client-twice", "The first client of a round is added twice.", finding="single clients"
)
class _ClientTwice(Server):
    def shares(self, weights: list[float] | None, clients: int) -> NDArray[np.float64]:
        shares = super().shares(weights, clients)
        shares[0] *= 2.0
        return shares


@FederatedFault(
    "norm-bit-turned",
    "The clip norm shrinks where updates are above it.",
    finding="clip norm direction",
    adaptive=True,
)
class _NormBitTurned(Server):
    def off_target(self, below: float) -> float:
        return (1.0 - below) - _TARGET


@FederatedFault(
    "noise-of-next-norm",
    "Noise is scaled by the clip norm of the next round.",
    finding="noise norm",
    adaptive=True,
)
class _NoiseOfNextNorm(Server):
    def noise(self, size: int, norm: float, clients: int) -> NDArray[np.float64]:
        return super().noise(size, self.clip_norm, clients)


@FederatedFault("half-server-noise", "The server adds half of the noise.", finding="noise scale")
class _HalfNoise(Server):
    def noise(self, size: int, norm: float, clients: int) -> NDArray[np.float64]:
        return 0.5 * super().noise(size, norm, clients)


@FederatedFault("no-server-noise", "The server adds none.", finding="noise")
class _NoNoise(Server):
    def noise(self, size: int, norm: float, clients: int) -> NDArray[np.float64]:
        return np.zeros(size)


@FederatedFault(
    "noise-per-client",
    "Every client adds the noise that the sum should have.",
    finding="noise at the server",
)
class _NoisePerClient(Server):
    def noise(self, size: int, norm: float, clients: int) -> NDArray[np.float64]:
        return np.asarray(np.sqrt(clients) * super().noise(size, norm, clients))


@FederatedFault(
    "noise-for-invited",
    "Noise is scaled for all clients invited, and half of them answer.",
    finding="noise scale",
)
class _NoiseForInvited(Server):
    def noise(self, size: int, norm: float, clients: int) -> NDArray[np.float64]:
        return super().noise(size, norm, 2 * clients)


FederatedFault(
    "eager-clients",
    "DP-FTRL, and clients are asked again twice as soon as accounted for.",
    finding="participation",
    eager=True,
)(Server)


def simulate_federated(
    *,
    rounds: int = 100,
    clients: int = 100,
    noise_multiplier: float,
    present: int = 50,
    absent: int = 950,
    dimension: int = 2000,
    clip_norm: float = 1.0,
    adaptive: bool = False,
    sampling: Scheme | None = None,
    fault: FederatedFault | str | None = None,
    seed: int = 0,
    plan: TreePlan | Strategy | None = None,
) -> Transcript | LinearTranscript:
    """Simulate federated averaging with canary clients.

    Args:
        rounds: Number of rounds.
        clients: Honest clients of a round.
        noise_multiplier: Noise on the sum of clipped updates, in clip norms.
        present: Number of canary clients that take part.
        absent: Number of those that might have.
        dimension: Entries of an update.
        clip_norm: The norm updates are clipped to, or the first of them.
        adaptive: Whether the clip norm follows the updates.
        sampling: How clients are drawn; all in every round if not given.
        fault: What is broken: a fault, or its name in `FEDERATED_FAULTS`.
        seed: Root of every random choice.
        plan: DP-FTRL at the server: a tree of which prefixes are released, or a strategy. Rounds
            are those of the plan, and cohorts take turns so that clients take part as it allows.

    Returns:
        What the rounds released about the canaries.

    Raises:
        InvalidArgumentError: An argument is out of its range.

    Examples:
        >>> simulate_federated(rounds=3, clients=10, noise_multiplier=2.0, dimension=200,
        ...                    present=10, absent=90)
        Transcript(steps=3, present=10, absent=90, background='known')
    """
    _validate.integer(0, seed=seed)
    _validate.count(rounds=rounds)
    _validate.count(clients=clients, dimension=dimension)
    check_numbers(None, present, absent)
    everybody = (clients + present + absent) * dimension
    hint = "Simulate a smaller one."
    _validate.count(maximum=_MOST_IN_ROUND, hint=hint, **{"clients * dimension": everybody})
    in_all = {"rounds * clients * dimension": rounds * everybody}
    _validate.count(maximum=_MOST_IN_ALL, hint=hint, **in_all)
    _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
    _validate.magnitude(clip_norm=clip_norm)
    if isinstance(fault, str):
        _validate.one_of(tuple(FEDERATED_FAULTS), fault=fault)
        fault = FEDERATED_FAULTS[fault]
    adaptive = adaptive or (fault is not None and fault.adaptive)
    eager = fault is not None and fault.eager
    if eager and plan is None:
        # Without correlated noise nothing limits how often a client takes part.
        plan = TreePlan(
            steps=rounds,
            release="prefixes",
            restart_every=max(1, rounds // 4),
            participations=4,
            min_separation=max(1, rounds // 4),
        )
    if plan is not None:
        _validate.within(1, plan.steps, closed="both", rounds=rounds)
    server = (Server if fault is None else fault.server)(
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        adaptive=adaptive,
        seed=seed,
        plan=plan,
    )
    audited = AuditedAggregator(
        server,
        dimension=dimension,
        present=present,
        absent=absent,
        clip_norm=(lambda current: float(current.clip_norm)) if adaptive else clip_norm,
        noise_multiplier=noise_multiplier,
        sampling=sampling,
        seed=seed,
        plan=plan,
    )
    honest = random_stream(seed, Stream.SAMPLER)
    common = honest.normal(size=dimension) / np.sqrt(dimension)
    with np.errstate(all="ignore"):
        for number in range(rounds):
            updates = 0.5 * common + honest.normal(size=(clients, dimension)) / np.sqrt(dimension)
            sizes = honest.uniform(_LEAST_NORM, _MOST_NORM, clients) * clip_norm
            updates *= (sizes / np.linalg.norm(updates, axis=1))[:, None]
            examples = honest.integers(1, _MOST_EXAMPLES, clients)
            names = None if plan is None else _cohort(plan, number, clients, eager=eager)
            audited(list(updates), examples.tolist(), participants=names)
    return audited.transcript()


def _cohort(
    plan: TreePlan | Strategy, number: int, clients: int, *, eager: bool
) -> list[tuple[int, int, int]]:
    """Names of the clients of a round: cohorts take turns, and leave when they may not return."""
    separation = min(int(plan.min_separation), int(plan.steps))
    if eager:
        separation = max(1, separation // 2)
    turn, place = divmod(number, separation)
    generation = 0 if eager else turn // int(plan.participations)
    return [(generation, place, index) for index in range(clients)]
