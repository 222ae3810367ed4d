"""Where a mechanism, the search for events and the bets on them meet and become a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from askgauss import __version__, _validate, policy
from askgauss._text import number
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import InvalidArgumentError
from askgauss.mechanism_audit.events import (
    Candidates,
    Classifier,
    Criterion,
    OutputEvent,
    Score,
    classifier_named,
    leak,
    suspicion,
)
from askgauss.mechanism_audit.mechanism_result import Bet, BetEvidence, MechanismResult
from askgauss.mechanism_audit.outputs import (
    Mechanism,
    OutputTable,
    Sampler,
    check_pair,
    dependent_draws,
)
from askgauss.results import Verdict
from askgauss.stats import betting

__all__ = ["audit_mechanism"]

# What an event leaks is taken for as much as it may be, this many standard errors up.
_LIKELY = 1.645
# The first batch only teaches; every later one is this share of all before it.
_FIRST = 120
_MOST_SAMPLES = 10**7
_GROWTH = 0.4
# Within a batch what is bet follows the outputs so far, in so many blocks.
_BLOCKS = 8
# The check of the sampler takes this share of the gate error.
_CHECK_SHARE = 0.1


def audit_mechanism(
    mechanism: Mechanism,
    data: Any,
    neighbour: Any,
    *,
    claim: PrivacyClaim | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    gate_error: float = 0.001,
    max_samples: int = 10_000,
    classifier: Classifier | str | None = None,
    adjacent: Callable[[Any, Any], bool] | None = None,
    last_bits: bool = False,
    seed: int = 0,
) -> MechanismResult:
    """Audit any mechanism on one pair of neighbouring inputs, by running it on both.

    Outputs are drawn in batches that grow. Before each, events are searched in all outputs so far
    (single outputs, histograms and thresholds of simple features, logistic regression, nearest
    neighbours, the mechanism's own likelihood ratio, a classifier); the most suspicious one is bet
    on against the claim, with the batch as the draw. The audit ends as soon as the wealth of these
    bets reaches 1/gate_error, or at ``max_samples``.

    Args:
        mechanism: What is audited: an object with ``sample(data, n)``; see `Mechanism`.
        data: One input of it.
        neighbour: Another, that the claim's adjacency makes a neighbour of the first.
        claim: What the mechanism claims; delta may be 0. Without one, a bound and no verdict.
        delta: Where to state the bound when there is no claim, in [0, 1).
        confidence: The bound is above the truth in at most 1 - confidence of audits.
        gate_error: A mechanism that keeps its claim ends in VIOLATION at most this often.
        max_samples: Most outputs of each side.
        classifier: One more way to look for events: "boosting" or "logistic" (scikit-learn), or
            an object with ``fit`` and ``predict_proba``.
        adjacent: Says whether two inputs are neighbours; refused where it says no.
        last_bits: Also look at the last bits of floating-point numbers, by which noise that was
            drawn as such tells the inputs apart (Mironov 2012): a Laplace mechanism that releases a
            sum of two floats keeps no pure claim, and is called a VIOLATION then.
        seed: Where the seeds of a mechanism that takes them come from.

    Returns:
        The bound, the verdict and the bets behind them.

    Raises:
        MechanismError: The mechanism raised, or did not give as many outputs as asked.
        InvalidArgumentError: An argument is outside its range, or the inputs are no pair.

    Assumes:
        Every output is an independent draw, from any distribution.

    Guarantee:
        Whatever the mechanism and whenever the audit ends, ``epsilon_lower`` exceeds the epsilon
        of this pair in at most 1 - confidence of audits.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> class Laplace:
        ...     def sample(self, data, n, seed):
        ...         return data + np.random.default_rng(seed).laplace(0.0, 1.0, n)
        >>> claim = ag.PrivacyClaim(epsilon=0.5, delta=0.0)
        >>> ag.audit_mechanism(Laplace(), 0.0, 1.0, claim=claim).verdict
        <Verdict.VIOLATION: 'VIOLATION'>
    """
    if (claim is None) == (delta is None):
        raise InvalidArgumentError(
            "Expected exactly one of claim and delta, got "
            f"{'both' if claim is not None else 'neither'}. A claim brings its own delta; without "
            "one, say at which delta the bound is wanted."
        )
    if claim is not None and not isinstance(claim, PrivacyClaim):
        raise _validate.fail("claim", claim, "to be a PrivacyClaim")
    level = claim.delta if claim is not None else delta
    assert level is not None
    _validate.within(0.0, 1.0, closed="left", delta=level)
    _validate.within(0.5, 1, confidence=confidence)
    _validate.within(0, 0.5, gate_error=gate_error)
    hint = "Fewer outputs show nothing, and more do not fit into memory."
    _validate.count(30, maximum=_MOST_SAMPLES, max_samples=max_samples, hint=hint)
    check_pair(data, neighbour, adjacent)
    learner = classifier_named(classifier) if isinstance(classifier, str) else classifier
    share = (1.0 - _CHECK_SHARE) * gate_error
    sampler = Sampler(mechanism, np.random.default_rng(seed))
    given = _likelihood_ratio(mechanism, data, neighbour)
    criteria: list[Criterion] = [leak(level)]
    if claim is not None:
        criteria.insert(0, suspicion(claim.epsilon, claim.delta))
    players: list[list[Bet]] = [[] for _ in criteria]
    seen: list[list[OutputTable]] = [[], []]
    dependent = ""
    for size in _batches(max_samples):
        events = _choose(seen, criteria, given, learner, last_bits)
        fresh = [sampler.draw(item, side, size) for side, item in enumerate((data, neighbour))]
        dependent = dependent_draws(seen, fresh, _CHECK_SHARE * gate_error / 20.0)
        if dependent:
            break
        if events is not None:
            for bets, event in zip(players, events, strict=True):
                bets.append(_bet(event, fresh))
        for side in (0, 1):
            seen[side] = [OutputTable.together([*seen[side], fresh[side]])]
        if claim is not None and _evidence(players).rejects(claim.epsilon, claim.delta, share):
            break
    evidence = _evidence(players)
    bound = 0.0 if dependent else evidence.epsilon_lower(level, confidence)
    verdict, reason, power = _decide(evidence, claim, bound, share, dependent)
    last = evidence.players[-1][-1] if evidence.players else None
    trials = max(evidence.trials, 1)
    return MechanismResult(
        evidence=evidence,
        samples=min(sampler.drawn),
        delta=level,
        confidence=confidence,
        epsilon_lower=bound,
        epsilon_point=None if last is None else max(0.0, _shown_by(last, level)),
        event="" if last is None else last.event,
        ceiling=max(0.0, betting.ceiling(trials, delta=level, error=1.0 - confidence)),
        claim=claim,
        gate_error=gate_error,
        verdict=verdict,
        reason=reason,
        power=power,
        version=__version__,
    )


def _batches(most: int) -> Iterator[int]:
    """Sizes of batches: a first one, then a fixed share of all before, until there are enough."""
    size, drawn = min(_FIRST, most // 2), 0
    while drawn < most:
        # A rest too small to be a batch joins the last one.
        size = most - drawn if most - drawn < 1.5 * size else size
        yield size
        drawn += size
        size = max(int(_GROWTH * drawn), 1)


def _likelihood_ratio(mechanism: Mechanism, data: Any, neighbour: Any) -> Score | None:
    ratio = getattr(mechanism, "log_likelihood_ratio", None)
    if ratio is None:
        return None

    def score(outputs: OutputTable) -> Any:
        values = outputs.values[:, 0] if outputs.values.shape[1] == 1 else outputs.values
        found = np.asarray(ratio(values, data, neighbour), np.float64)
        if found.shape != (len(outputs),):
            raise InvalidArgumentError(
                f"Expected log_likelihood_ratio to give one number an output, {len(outputs)} in "
                f"all, got shape {found.shape}."
            )
        return np.where(np.isnan(found), -np.inf, found)

    return score


def _choose(
    seen: list[list[OutputTable]],
    criteria: list[Criterion],
    given: Score | None,
    classifier: Classifier | None,
    last_bits: bool,
) -> list[OutputEvent] | None:
    """One event for each player; None before the first batch, and while all outputs are alike."""
    if not seen[0]:
        return None
    width = max(side[0].values.shape[1] for side in seen)
    data, neighbour = (OutputTable(side[0].widened(width), side[0].lengths) for side in seen)
    candidates = Candidates(
        data, neighbour, given=given, classifier=classifier, last_bits=last_bits
    )
    events = [candidates.best(criterion) for criterion in criteria]
    return [event for event in events if event is not None] or None


def _bet(event: OutputEvent, fresh: list[OutputTable]) -> Bet:
    """The event's hits among fresh outputs, block by block."""
    hits = [event.contains(outputs) for outputs in fresh]
    favoured, other = hits[event.favoured], hits[1 - event.favoured]
    parts = np.array_split(np.arange(favoured.size), min(_BLOCKS, favoured.size))
    return Bet(
        event=str(event),
        known_trials=event.trials,
        known_favoured=event.hits[0],
        known_other=event.hits[1],
        trials=tuple(part.size for part in parts),
        favoured=tuple(int(favoured[part].sum()) for part in parts),
        other=tuple(int(other[part].sum()) for part in parts),
    )


def _evidence(players: list[list[Bet]]) -> BetEvidence:
    return BetEvidence(players=tuple(tuple(bets) for bets in players if bets))


def _shown_by(bet: Bet, delta: float) -> float:
    """The epsilon that a bet's fresh outputs show, without a guarantee."""
    trials = sum(bet.trials) + 1.0
    favoured, other = (sum(bet.favoured) + 0.5) / trials, (sum(bet.other) + 0.5) / trials
    return math.log((favoured - delta) / other) if favoured > delta else 0.0


def _decide(
    evidence: BetEvidence,
    claim: PrivacyClaim | None,
    bound: float,
    share: float,
    dependent: str,
) -> tuple[Verdict | None, str, float | None]:
    """The verdict, why, and the power behind it."""
    if claim is None:
        return None, dependent, None
    contradicted = evidence.rejects(claim.epsilon, claim.delta, share)
    verdict = policy.verdict_on(invalid=bool(dependent), contradicted=contradicted)
    if verdict is Verdict.INVALID:
        return verdict, dependent, None
    if verdict is Verdict.VIOLATION:
        gate = evidence.epsilon_lower(claim.delta, 1.0 - share)
        reason = (
            f"on this pair the mechanism leaks at least epsilon {number(gate)} at confidence "
            f"{1.0 - share:g}, more than the {claim.epsilon:g} it claims."
        )
        return verdict, reason, None
    nothing = "no evidence against the claim on this pair"
    if bound > claim.epsilon:
        nothing = (
            f"the bound of {number(bound)} is above the claimed {claim.epsilon:g} on this pair, "
            f"but not at confidence {1.0 - share:g}, where the gate decides"
        )
    if not evidence.players:
        reason = f"{nothing}, but every output of both sides was the same: nothing was tested."
        return Verdict.INCONCLUSIVE, reason, 0.0
    most = betting.ceiling(evidence.trials, delta=claim.delta, error=share)
    if most <= claim.epsilon:
        reason = (
            f"{nothing}, but {evidence.trials:,} outputs of each side could never show more than "
            f"{number(max(0.0, most))}; raise max_samples."
        )
        return Verdict.INCONCLUSIVE, reason, 0.0
    power = max(_power(evidence, bets[-1], claim, share) for bets in evidence.players)
    verdict = policy.verdict_on(strong=power >= policy.ENOUGH_POWER)
    if verdict is Verdict.CONSISTENT:
        return verdict, f"{nothing}.", power
    shown = max(0.0, _shown_by(evidence.players[-1][-1], claim.delta))
    reason = (
        f"{nothing}, but this audit detects a leak of {policy.ALTERNATIVE:g} times the claim with "
        f"probability {power:.2f} only; raise max_samples."
    )
    if policy.ALTERNATIVE * shown <= claim.epsilon:
        reason = (
            f"{nothing}, but its most telling event shows about {number(shown)} of the claimed "
            f"{claim.epsilon:g}: the mechanism leaks less than it may, or this is not the worst "
            "pair, or the events that matter are too rare; try search_neighbours, or raise "
            "max_samples."
        )
    return verdict, reason, power


def _power(evidence: BetEvidence, bet: Bet, claim: PrivacyClaim, share: float) -> float:
    """Probability of a VIOLATION had the event leaked 1.25 times as much.

    There is no distribution of the outputs to scale up, so the event bet on last stands for it. If
    what it shows may be all of the claim, it leaks 1.25 claims in the alternative; if it shows
    less, then less, for another mechanism that violates the claim may show as little there. Its
    frequency on the favoured side stays. One player may have to do it alone.
    """
    trials = bet.known_trials + sum(bet.trials)
    favoured = bet.known_favoured + sum(bet.favoured)
    other = bet.known_other + sum(bet.other)
    _, most = betting.wilson_limits(favoured, trials, _LIKELY)
    least, _ = betting.wilson_limits(other, trials, _LIKELY)
    rate = (favoured + 0.5) / (trials + 1.0)
    if rate <= claim.delta:
        return 0.0
    shown = claim.epsilon
    if least > 0.0:
        shown = min(shown, max(0.0, math.log((most - claim.delta) / least)))
    true_epsilon = policy.ALTERNATIVE * shown
    if true_epsilon <= claim.epsilon:
        return 0.0
    return betting.chance_to_win(
        rate,
        (rate - claim.delta) * math.exp(-true_epsilon),
        known=evidence.players[-1][0].known_trials,
        blocks=evidence.blocks,
        epsilon=claim.epsilon,
        delta=claim.delta,
        error=share / len(evidence.players),
    )
