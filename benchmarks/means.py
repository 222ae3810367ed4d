"""Mean lower bounds of the rank methods on fixed draws, to be compared between two versions.

PYTHONPATH=src python -m benchmarks.means > new.json
PYTHONPATH=/path/to/another/checkout/src python benchmarks/means.py > old.json
python -m benchmarks.means --compare old.json new.json
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import askgauss as ag

DELTA, CONFIDENCE = 1e-5, 0.95
METHODS = (
    "OneRun",
    "OneRunFDP",
    "AdaptiveOneRun",
    "GaussianDP",
    "ClopperPearson",
    "OrderStatistics",
)
CELLS = (
    ("Gaussian", 1.0, 200),
    ("Gaussian", 1.0, 2000),
    ("Gaussian", 2.0, 200),
    ("Gaussian", 2.0, 2000),
    ("randomised response", 1.0, 200),
    ("randomised response", 1.0, 2000),
    ("randomised response", 3.0, 200),
    ("randomised response", 3.0, 2000),
)


def scores(kind: str, size: float, canaries: int, seed: int) -> Any:
    """Scores whose membership was randomised: shifted noise, or bits that are told with noise."""
    chance = np.random.default_rng([seed, canaries, round(10 * size)])
    member = chance.random(canaries) < 0.5
    noise = chance.standard_normal(canaries)
    if kind == "Gaussian":
        return ag.CanaryScores(score=noise + size * member, member=member)
    told = chance.random(canaries) < 1.0 / (1.0 + np.exp(-size))
    # A little noise orders equal bits at random.
    return ag.CanaryScores(score=np.where(told, member, ~member) + 1e-6 * noise, member=member)


def means(audits: int) -> dict[str, list[float]]:
    """Mean and standard error of every method in every cell."""
    found = {}
    for kind, size, canaries in CELLS:
        drawn = [scores(kind, size, canaries, seed) for seed in range(audits)]
        for name in METHODS:
            auditor = getattr(ag, name)()
            bounds = []
            for item in drawn:
                evidence = auditor.gather(item, delta=DELTA, confidence=CONFIDENCE)
                bounds.append(auditor.epsilon_lower(evidence, delta=DELTA, confidence=CONFIDENCE))
            cell = f"{kind} {size:g}, {canaries:,} canaries"
            found[f"{name} | {cell}"] = bounds
            print(f"{name} {cell}: {np.mean(bounds):.4f}", file=sys.stderr, flush=True)
    return found


def table(old: dict[str, list[float]], new: dict[str, list[float]]) -> str:
    """Both means of every method in every cell, and the change with its standard error."""
    lines = [f"| cell | {' | '.join(METHODS)} |", "|---|" + len(METHODS) * "---|"]
    for cell in dict.fromkeys(key.partition(" | ")[2] for key in old):
        row = []
        for name in METHODS:
            before, now = (np.array(found[f"{name} | {cell}"]) for found in (old, new))
            unit = 100.0 / max(float(before.mean()), 1e-300)
            error = float(np.std(now - before)) / len(now) ** 0.5
            row.append(
                f"{before.mean():.2f}, {now.mean():.2f} "
                f"({unit * (now - before).mean():+.1f} ± {unit * error:.1f} %)"
            )
        lines.append(f"| {cell} | {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=400)
    parser.add_argument("--compare", type=Path, nargs=2)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.compare:
        print(table(*(json.loads(path.read_text(encoding="utf-8")) for path in given.compare)))
    else:
        print(json.dumps(means(given.audits)))


if __name__ == "__main__":
    main()
