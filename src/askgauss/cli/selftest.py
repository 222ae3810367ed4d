"""The self-test: does this installation audit as it promises, at the user's own sizes?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from askgauss.cli.options import (
    Absent,
    Confidence,
    GateError,
    Present,
    RunNoise,
    RunRate,
    RunSteps,
    Seed,
    auditor_named,
    auditor_option,
)
from askgauss.cli.program import ExitCode
from askgauss.cli.terminal import ProgressBar, as_table, say

if TYPE_CHECKING:
    from askgauss.results import AuditResult

__all__ = ["selftest"]

# A correct installation fails one of the comparisons this rarely.
_ERROR = 1e-6
_TRANSCRIPTS = 3
_MOST_AUDITS = 10**4


def selftest(
    present: Present = 500,
    absent: Absent = 500,
    steps: RunSteps = 500,
    sampling_rate: RunRate = 0.1,
    noise_multiplier: RunNoise = 2.0,
    delta: Annotated[float, typer.Option(help="Delta of the bounds.")] = 1e-5,
    confidence: Confidence = 0.95,
    gate_error: GateError = 0.001,
    audits: Annotated[int, typer.Option(help="Number of simulated audits of each kind.")] = 100,
    auditor: Annotated[
        str | None,
        auditor_option("Method of the audits of scores, such as one of your own."),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Check the installation: no false alarms on clean runs, and a planted leak is caught.

    Simulates runs of the sizes given: without any leak, correct ones, and ones with half the noise
    they claim. Exits with 0 if all is well, 1 if a promise is broken, 3 if the promises hold but
    audits of this size would miss the planted leak.
    """
    import numpy as np

    from askgauss import _validate, accounting
    from askgauss.auditing import audit
    from askgauss.claims import PrivacyClaim
    from askgauss.policy import ENOUGH_POWER
    from askgauss.scores import CanaryScores
    from askgauss.simulation import simulate_dpsgd, simulate_scores
    from askgauss.simulation.dpsgd_runs import check_canaries
    from askgauss.stats import gaussian
    from askgauss.stats.score_law import ScoreLaw

    _validate.count(maximum=_MOST_AUDITS, audits=audits)
    check_canaries(present, absent)
    method = auditor_named(auditor)
    law = ScoreLaw(steps=steps, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    truth = law.epsilon_at(delta)
    claim = PrivacyClaim(
        epsilon=accounting.dpsgd_epsilon(
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            steps=steps,
            delta=delta,
        ),
        delta=delta,
    )
    streams = np.random.default_rng(seed).spawn(3 * audits)

    def check(data: CanaryScores) -> AuditResult:
        return audit(
            data, claim=claim, auditor=method, confidence=confidence, gate_error=gate_error
        )

    def without_leak(index: int) -> AuditResult:
        return check(
            CanaryScores.from_groups(
                present=streams[index].standard_normal(present),
                absent=streams[index].standard_normal(absent),
                noise="gaussian",
            )
        )

    def simulated(index: int, noise: float) -> AuditResult:
        return check(
            simulate_scores(
                steps=steps,
                sampling_rate=sampling_rate,
                noise_multiplier=noise,
                present=present,
                absent=absent,
                seed=streams[index],
            )
        )

    def transcript(index: int, noise: float) -> AuditResult:
        run = simulate_dpsgd(
            steps=steps,
            sampling_rate=sampling_rate,
            noise_multiplier=noise,
            present=present,
            absent=absent,
            seed=seed + index,
        )
        return audit(run, claim=claim, confidence=confidence, gate_error=gate_error)

    total = 3 * audits + 2 * _TRANSCRIPTS
    with ProgressBar("self-test", total, unit="audits") as progress:

        def repeated(count: int, one: Callable[[int], AuditResult]) -> list[AuditResult]:
            results = []
            for index in range(count):
                results.append(one(index))
                progress.advance()
            return results

        nulls = repeated(audits, without_leak)
        correct = repeated(audits, lambda index: simulated(audits + index, noise_multiplier))
        leaks = repeated(
            audits, lambda index: simulated(2 * audits + index, 0.5 * noise_multiplier)
        )
        clean_runs = repeated(_TRANSCRIPTS, lambda index: transcript(index, noise_multiplier))
        leaky_runs = repeated(_TRANSCRIPTS, lambda index: transcript(index, 0.5 * noise_multiplier))

    exact = abs(float(gaussian.epsilon(1e-5, 0.0, 1.0, 1.0, 1.0)) - 4.377178) < 1e-5
    caught = sum(_alarm(result) for result in leaks)
    rows = [
        ("check", "observed", "promised", ""),
        ("epsilon of two Gaussians", "exact" if exact else "off", "exact", _word(exact)),
        _promise("bound above 0 without a leak", nulls, lambda r: r.epsilon_lower > 0, confidence),
        _promise(
            "bound above the truth, correct runs",
            correct,
            lambda result: result.epsilon_lower > truth,
            confidence,
        ),
        _promise("alarm without a leak", nulls, _alarm, 1.0 - gate_error),
        _promise("alarm on correct runs", correct + clean_runs, _alarm, 1.0 - gate_error),
    ]
    kept = all(row[-1] == "ok" for row in rows[1:])
    strong = caught >= ENOUGH_POWER * audits and all(_alarm(result) for result in leaky_runs)
    for name, found, tried in (
        ("half the noise caught, scores", caught, audits),
        ("half the noise caught, transcripts", sum(map(_alarm, leaky_runs)), _TRANSCRIPTS),
    ):
        enough = found >= ENOUGH_POWER * tried
        rows.append((name, f"{found}/{tried}", "most", "ok" if enough else "too weak"))
    say(as_table(rows))
    if not kept:
        say("BROKEN: this installation does not audit as it promises. Do not trust its verdicts.")
        raise typer.Exit(ExitCode.VIOLATION)
    if not strong:
        say("WEAK: promises are kept, but audits of this size miss half the noise. More canaries.")
        raise typer.Exit(ExitCode.UNDECIDED)
    say("OK: promises are kept, and half the noise is caught.")


def _alarm(result: AuditResult) -> bool:
    return result.verdict is not None and result.verdict.value in ("VIOLATION", "INVALID")


def _word(kept: bool) -> str:
    return "ok" if kept else "BROKEN"


def _promise(
    name: str, results: list[AuditResult], bad: Callable[[AuditResult], bool], confidence: float
) -> tuple[str, str, str, str]:
    """Compare how often something happened with how often it may."""
    from askgauss.stats.limits import clopper_pearson_lower

    count, allowed = sum(map(bad, results)), 1.0 - confidence
    kept = clopper_pearson_lower(count, len(results), _ERROR) <= allowed
    # The most that chance gives a sound installation, so that the row agrees with its word.
    most = count
    while most < len(results) and clopper_pearson_lower(most + 1, len(results), _ERROR) <= allowed:
        most += 1
    while most and clopper_pearson_lower(most, len(results), _ERROR) > allowed:
        most -= 1
    promised = f"{allowed:.3g} of them, by chance up to {most}"
    return name, f"{count}/{len(results)}", promised, _word(kept)
