"""Every auditing package that installs, on the same scores: ``python -m benchmarks.comparison``.

Writes docs/comparison.md. Each package runs in an environment of its own under .venvs/, which
`make comparison` sets up.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import askgauss as ag
from askgauss import accounting
from askgauss.scores import ScoreMetadata

ROOT = Path(__file__).parents[1]
PACKAGES = ("jax_privacy", "opake-auditing", "privacy-estimates")
OURS = (
    "gaussian-shift",
    "order-statistics",
    "gaussian-dp",
    "one-run-fdp",
    "one-run",
    "clopper-pearson",
)
STEPS, RATE, DELTA, ERROR = 2500, 0.08192, 1e-5, 0.05
EPSILONS = (1.0, 4.0, 8.0)
CANARIES, LEAKS = 2000, 10
NULL_CANARIES, NULLS = 400, 40
NULL = "null"
BUDGET = 20  # seconds of processor time a method
PATIENCE = 3600  # seconds a package, however busy the machine is
INTRODUCTION = """# Beside other tools

Written by `make comparison`: every auditing package of others that installs here runs in an environment of its own on the very same scores,
called as its documentation shows, at confidence .95 and delta 1e-5. The scores are those of {leaks} runs of DP-SGD on paper at each of three claims
({steps:,} steps at rate {rate}, {canaries:,} fair-coin canaries), of which a score carries at most epsilon {carried}, and {nulls} sets of
{null_canaries} scores without any leak. *Bound* is the mean, with in brackets in how many runs it was above what the scores carry; *above 0* is in
how many sets without a leak it was above 0. Confidence .95 allows either in one of twenty. A method that takes longer than {budget} s of processor time is shown by
the sets it got to.

| package | method | bound at 1 | at 4 | at 8 | above 0 without a leak | seconds a set | |
|---|---|---:|---:|---:|---:|---:|---|
"""
ABOUT = """
`privacy-estimates` reads counts, so that the caller chooses a threshold: here on one half of the canaries, counted on the other. A package that
ends in an error is shown with it. What installs as `privacy-guard` is another program than Meta's PrivacyGuard, which is not on the package index
under that name, and is left out.

## What they read, and what they say

From the projects' public sources, not measured.

| | askgauss | jax-privacy 2.0 | opake-auditing | privacy-estimates | the paper's code |
|---|---|---|---|---|---|
| reads | scores, transcripts, a live Opacus run, your own loop | scores | scores | counts | its own training loop |
| result | object with bound, verdict, findings, scope, evidence | a number | object | a number | dictionary |
| score models | Gaussian, subsampled exact law, distribution-free | distribution-free, Gaussian trade-off | distribution-free, Gaussian trade-off | distribution-free, Bayesian | Gaussian |
| choosing a threshold | typed: fixed, split, union, band, cross-fit | typed: explicit, split, union over hull | best on the same data unless fixed | the caller's | best of all |
| audits the user's own step | yes | – | – | – | no, a copy of it |
| says what is broken | yes | no | no | no | no |
| calibration published | [yes](calibration.md) | tests | no | no | no |

jax-privacy is our oracle in tests: `OneRun`, `OneRunFDP` and `ClopperPearson` agree with it to 1e-3 at explicit thresholds. Its released
2.0.0 takes the absolute value of a Gaussian parameter and so may report a positive epsilon on scores that carry none; ours clamps it at zero,
and a test holds the difference.
"""


@dataclass(frozen=True)
class Row:
    """One method: its bounds by kind of set."""

    package: str
    method: str
    bounds: dict[str, list[float]]
    seconds: float
    problem: str = ""

    def cells(self, carried: dict[str, float]) -> str:
        """The row of the table."""
        cells = [self.package, self.method]
        for kind, truth in carried.items():
            found = self.bounds.get(kind, [])
            if not found:
                cells.append("–")
                continue
            above = sum(value > truth for value in found)
            short = "" if len(found) == LEAKS else f" of {len(found)}"
            cells.append(f"{np.mean(found):.2f} ({above}{short})")
        none = self.bounds.get(NULL, [])
        cells.append(f"{sum(value > 0.0 for value in none)} of {len(none)}" if none else "–")
        count = sum(map(len, self.bounds.values()))
        cells.append(f"{self.seconds / count:.2f}" if count else "–")
        cells.append(self.problem.replace("|", "\\|").replace("<", "&lt;"))
        return f"| {' | '.join(cells)} |"


def scores(seed: int, noise: float | None, canaries: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of fair-coin canaries in a run, or of none at all."""
    draw = np.random.default_rng(seed)
    member = draw.random(canaries) < 0.5
    score = draw.standard_normal(canaries)
    if noise is not None:
        planted = draw.binomial(STEPS, RATE, canaries)
        score += np.where(member, planted / (noise * np.sqrt(STEPS)), 0.0)
    return score, member


def ours(sets: dict[str, np.ndarray], kinds: list[str]) -> list[Row]:
    """Our own methods on the same sets."""
    rows = []
    for name in OURS:
        started = time.process_time()
        found: dict[str, list[float]] = {}
        for kind in kinds:
            told = {} if kind == NULL else {"steps": STEPS, "sampling_rate": RATE}
            metadata = ScoreMetadata(fair_coins=True, noise="gaussian", **told)
            found[kind] = [
                ag.audit(
                    ag.CanaryScores(score=score, member=member, metadata=metadata),
                    delta=DELTA,
                    auditor=name,
                    diagnostics=False,
                ).epsilon_lower
                for score, member in zip(sets[f"{kind}_score"], sets[f"{kind}_member"], strict=True)
            ]
        seconds = time.process_time() - started
        rows.append(Row(f"askgauss {ag.__version__}", f"`{name}`", found, seconds))
    return rows


def rival(package: str, path: Path) -> list[Row]:
    """A rival's methods, in its own environment."""
    python = ROOT / ".venvs" / f"rival-{package}" / "bin" / "python"
    if not python.exists():
        return [Row(package, "–", {}, 0.0, "does not install here")]
    script = ROOT / "benchmarks" / "rivals" / "calls.py"
    command = [python, script, package, path, str(BUDGET)]
    late = ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        printed = done.stdout
        if done.returncode:
            late = (done.stderr.strip().splitlines() or ["it was killed"])[-1][:200]
    except subprocess.TimeoutExpired as stopped:
        printed = (stopped.stdout or b"").decode()
        late = f"the next method took longer than {PATIENCE} s, and was stopped"
    rows = [
        Row(
            f"{package} {row['version']}",
            f"`{row['method']}`",
            row["bounds"],
            row["seconds"],
            row["problem"],
        )
        for row in map(json.loads, printed.splitlines())
    ]
    return rows + ([Row(package, "–", {}, 0.0, late)] if late else [])


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "comparison.md")
    output = parser.parse_args().output
    drawn = {NULL: [scores(100_000 + seed, None, NULL_CANARIES) for seed in range(NULLS)]}
    carried = {}
    for epsilon in EPSILONS:
        noise = accounting.dpsgd_noise_multiplier(
            epsilon=epsilon, delta=DELTA, sampling_rate=RATE, steps=STEPS
        )
        kind = f"{epsilon:g}"
        law = ag.ScoreLaw(steps=STEPS, sampling_rate=RATE, noise_multiplier=noise)
        carried[kind] = law.epsilon_at(DELTA)
        seeds = range(int(1000 * epsilon), int(1000 * epsilon) + LEAKS)
        drawn[kind] = [scores(seed, noise, CANARIES) for seed in seeds]
    kinds = [*carried, NULL]
    sets = {
        f"{kind}_{part}": np.stack([item[index] for item in drawn[kind]])
        for kind in kinds
        for index, part in enumerate(("score", "member"))
    }
    rows = ours(sets, kinds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.npz"
        np.savez(path, delta=DELTA, error=ERROR, kinds=kinds, **sets)
        for package in PACKAGES:
            rows += rival(package, path)
    told = [f"{value:.2f}" for value in carried.values()]
    page = INTRODUCTION.format(
        leaks=LEAKS, canaries=CANARIES, steps=STEPS, rate=RATE, budget=BUDGET, nulls=NULLS,
        carried=f"{', '.join(told[:-1])} and {told[-1]}", null_canaries=NULL_CANARIES,
    )  # fmt: skip
    page += "\n".join(row.cells(carried) for row in rows) + "\n" + ABOUT
    page += f"\nMeasured {datetime.date.today().isoformat()}.\n"
    output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
