"""Guessing auditors beside jax-privacy on the same scores, and how they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import askgauss as ag
from askgauss.scores import CanaryScores

DELTA, CONFIDENCE = 1e-5, 0.95
SHIFT = 1.6
# The threshold that is best for a shift of 1.6, or near enough; both sides get the same one.
THRESHOLD = 2.8
METHODS = (
    ("OneRun", ag.OneRun, "epsilon_one_run"),
    ("OneRunFDP", ag.OneRunFDP, "epsilon_one_run_fdp"),
)


def rows() -> Iterator[tuple[str, str]]:
    yield from _beside_jax()
    yield from _growth()
    yield from _each()


def _beside_jax() -> Iterator[tuple[str, str]]:
    try:
        from jax_privacy import auditing
    except ImportError:
        yield "jax-privacy", "not installed: pip install 'askgauss[jax]'"
        return
    for canaries in (5_000, 50_000):
        scores = _scores(canaries)
        for name, kind, method in METHODS:
            for what, selection, strategy in (
                ("one threshold", ag.Fixed(threshold=THRESHOLD), auditing.Explicit(THRESHOLD)),
                ("each one's default choice", ag.Split(), auditing.Bonferroni()),
            ):
                ratio, answers = _race(
                    auditing, scores, kind(selection=selection), method, strategy
                )
                yield (
                    f"{name}, {canaries:,} scores, {what}: times as fast as jax-privacy",
                    f"{ratio:.0f} x, epsilon {answers[0]:.4f} and {answers[1]:.4f}",
                )


def _race(
    auditing: Any, scores: CanaryScores, auditor: Any, method: str, strategy: Any
) -> tuple[float, tuple[float, float]]:
    present, absent = scores.present, scores.absent

    def theirs() -> float:
        peer = auditing.CanaryScoreAuditor(present, absent)
        return getattr(peer, method)(1 - CONFIDENCE, DELTA, threshold_strategy=strategy)

    answers = _bound(auditor, scores), theirs()
    ours = _seconds(lambda: _bound(auditor, scores), 7)
    return _seconds(theirs, 2) / ours, answers


def _bound(auditor: Any, scores: CanaryScores) -> float:
    evidence = auditor.gather(scores, delta=DELTA, confidence=CONFIDENCE)
    return auditor.epsilon_lower(evidence, delta=DELTA, confidence=CONFIDENCE)


def _growth() -> Iterator[tuple[str, str]]:
    sizes = (10_000, 100_000, 1_000_000)
    every = {size: _scores(size) for size in sizes}
    sorting = [_seconds(partial(np.argsort, every[size].score), 5) for size in sizes]
    for name, kind, _ in METHODS:
        for choice in (ag.Fixed(fraction=0.05), ag.Split()):
            auditor = kind(selection=choice)

            spent = [_seconds(partial(_bound, auditor, every[size]), 5) for size in sizes]
            # How much more slowly or quickly it grows than sorting does, which is m log m and meets
            # the same caches: at most about 1.
            pace = spent[2] / spent[1] / (sorting[2] / sorting[1])
            times = ", ".join(f"{1e3 * value:.0f}" for value in spent)
            yield (
                f"{name}, {type(choice).__name__}, 10^4 to 10^6 scores: growth over that of a sort",
                f"{pace:.2f}, {times} ms",
            )


def _each() -> Iterator[tuple[str, str]]:
    scores = _scores(5_000)
    claim = ag.PrivacyClaim(epsilon=8.0, delta=DELTA)
    for kind in ag.auditors.auditor_types().values():
        if kind.reads != "scores":
            continue
        auditor = kind()
        result = ag.audit(scores, claim=claim, auditor=auditor, diagnostics=False)

        work = partial(ag.audit, scores, claim=claim, auditor=auditor, diagnostics=False)
        yield (
            f"{kind.__name__}, 5,000 scores of epsilon {_truth():.2f}: bound, time with a verdict",
            f"{result.epsilon_lower:.3f}, {1e3 * _seconds(work, 3):.0f} ms",
        )


def _truth() -> float:
    return ag.gaussian.gdp_epsilon(DELTA, SHIFT)


def _scores(canaries: int) -> CanaryScores:
    generator = np.random.default_rng(0)
    member = generator.random(canaries) < 0.5
    return CanaryScores(score=generator.standard_normal(canaries) + SHIFT * member, member=member)


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """Processor time of the fastest run, which a busy machine disturbs least."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return max(min(spent), 1e-6)


if __name__ == "__main__":
    for what, measured in rows():
        print(f"{what}: {measured}")
