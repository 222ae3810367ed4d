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
OURS = ("gaussian-shift", "one-run-fdp", "order-statistics", "one-run", "clopper-pearson")
STEPS, RATE, EPSILON, DELTA, ERROR = 2500, 0.08192, 8.0, 1e-5, 0.05
CANARIES, LEAKS = 5000, 1
NULL_CANARIES, NULLS = 400, 20
PATIENCE = 240  # seconds a package
INTRODUCTION = """# Beside other tools

Written by `make comparison`: every auditing package of others that installs here runs in an environment of its own on the very same scores,
called as its documentation shows, at confidence .95 and delta 1e-5. *Bound* is that of {leaks} run of DP-SGD on paper with {canaries:,}
fair-coin canaries whose claim is epsilon 8 ({steps:,} steps at rate {rate}); a score carries at most epsilon {carried:.2f} of that. *Above 0* is in how
many of {nulls} sets of {null_canaries} scores without any leak the bound was above 0, which confidence .95 allows in one of twenty.

| package | method | bound | above 0 without a leak | seconds a set | |
|---|---|---:|---:|---:|---|
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
    """One method: its bounds with a leak and without one."""

    package: str
    method: str
    leak: tuple[float, ...]
    null: tuple[float, ...]
    seconds: float
    problem: str = ""

    def __str__(self) -> str:
        bound = f"{np.mean(self.leak):.2f}" if len(self.leak) == LEAKS else "–"
        above = (
            f"{sum(value > 0.0 for value in self.null)} of {NULLS}"
            if len(self.null) == NULLS
            else "–"
        )
        count = max(len(self.leak) + len(self.null), 1)
        problem = self.problem.replace("|", "\\|").replace("<", "&lt;")
        cells = (self.package, self.method, bound, above, f"{self.seconds / count:.2f}", problem)
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


def ours(sets: dict[str, np.ndarray]) -> list[Row]:
    """Our own methods on the same sets."""
    rows = []
    for name in OURS:
        started = time.perf_counter()
        found: dict[str, list[float]] = {"leak": [], "null": []}
        for kind in found:
            told = {"steps": STEPS, "sampling_rate": RATE} if kind == "leak" else {}
            metadata = ScoreMetadata(fair_coins=True, noise="gaussian", **told)
            for score, member in zip(sets[f"{kind}_score"], sets[f"{kind}_member"], strict=True):
                data = ag.CanaryScores(score=score, member=member, metadata=metadata)
                result = ag.audit(data, delta=DELTA, auditor=name, diagnostics=False)
                found[kind].append(result.epsilon_lower)
        seconds = time.perf_counter() - started
        package = f"askgauss {ag.__version__}"
        rows.append(Row(package, name, tuple(found["leak"]), tuple(found["null"]), seconds))
    return rows


def rival(package: str, path: Path) -> list[Row]:
    """A rival's methods, in its own environment."""
    python = ROOT / ".venvs" / f"rival-{package}" / "bin" / "python"
    if not python.exists():
        return [Row(package, "–", (), (), 0.0, "does not install here")]
    script = ROOT / "benchmarks" / "rivals" / "calls.py"
    command = [python, script, package, path]
    late = ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        printed = done.stdout
        if done.returncode:
            late = done.stderr.strip().splitlines()[-1][:200]
    except subprocess.TimeoutExpired as stopped:
        printed = (stopped.stdout or b"").decode()
        late = f"the next method took longer than {PATIENCE} s for all sets, and was stopped"
    rows = [
        Row(
            f"{package} {row['version']}",
            f"`{row['method']}`",
            tuple(row["leak"]),
            tuple(row["null"]),
            row["seconds"],
            row["problem"],
        )
        for row in map(json.loads, printed.splitlines())
    ]
    return rows + ([Row(package, "–", (), (), 0.0, late)] if late else [])


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "comparison.md")
    output = parser.parse_args().output
    noise = accounting.dpsgd_noise_multiplier(
        epsilon=EPSILON, delta=DELTA, sampling_rate=RATE, steps=STEPS
    )
    leaks = [scores(seed, noise, CANARIES) for seed in range(LEAKS)]
    nulls = [scores(1000 + seed, None, NULL_CANARIES) for seed in range(NULLS)]
    sets = {
        f"{kind}_{part}": np.stack([item[index] for item in drawn])
        for kind, drawn in (("leak", leaks), ("null", nulls))
        for index, part in enumerate(("score", "member"))
    }
    carried = ag.ScoreLaw(steps=STEPS, sampling_rate=RATE, noise_multiplier=noise).epsilon_at(DELTA)
    rows = ours(sets)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.npz"
        np.savez(path, delta=DELTA, error=ERROR, **sets)
        for package in PACKAGES:
            rows += rival(package, path)
    page = INTRODUCTION.format(
        leaks=LEAKS, canaries=CANARIES, steps=STEPS, rate=RATE, carried=carried, nulls=NULLS,
        null_canaries=NULL_CANARIES,
    )  # fmt: skip
    page += "\n".join(map(str, rows)) + "\n" + ABOUT
    page += f"\nMeasured {datetime.date.today().isoformat()}.\n"
    output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
