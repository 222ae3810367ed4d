"""What every rival is asked, in an environment of its own: ``calls.py PACKAGE scores.npz SECONDS``.

Prints a line of JSON a method: its bounds on the sets of scores, or the error it ended in. Needs
numpy and the package, nothing of askgauss.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

Method = Callable[[np.ndarray, np.ndarray, float, float], float]


def jax_privacy() -> Iterator[tuple[str, Method]]:
    """jax-privacy's auditors of scores, with the thresholds they choose by default."""
    from jax_privacy import auditing

    def method(name: str) -> Method:
        def call(score: np.ndarray, member: np.ndarray, delta: float, error: float) -> float:
            auditor = auditing.CanaryScoreAuditor(score[member], score[~member])
            return float(getattr(auditor, name)(error, delta))

        return call

    for name in (
        "epsilon_clopper_pearson",
        "epsilon_one_run",
        "epsilon_one_run_fdp",
        "epsilon_from_gdp",
    ):
        yield name, method(name)


def opake_auditing() -> Iterator[tuple[str, Method]]:
    """Opake's one-run estimate, by order statistics."""
    from opake import auditing
    from opake.auditing.types import CoinFlip

    def estimate(score: np.ndarray, member: np.ndarray) -> object:
        index = np.arange(score.size)
        flip = CoinFlip(
            num_canaries=score.size,
            canary_indices=index,
            _in_mask=member,
            in_indices=index[member],
            out_indices=index[~member],
            dataset_size=score.size,
        )
        return auditing.one_run(auditing.canary_scores(score, canary_indices=index), coin_flip=flip)

    def eps_delta(score: np.ndarray, member: np.ndarray, delta: float, error: float) -> float:
        found = estimate(score, member).eps_delta()
        return float(found.epsilon_at(delta=delta, significance=error))

    def gdp(score: np.ndarray, member: np.ndarray, delta: float, error: float) -> float:
        return float(estimate(score, member).gdp().epsilon_at(delta=delta, significance=error))

    yield "one_run().eps_delta()", eps_delta
    yield "one_run().gdp()", gdp


def privacy_estimates() -> Iterator[tuple[str, Method]]:
    """It reads counts: a threshold is chosen on one half, and counted on the other."""
    from privacy_estimates import AttackResults, compute_eps_lo

    def method(name: str) -> Method:
        def call(score: np.ndarray, member: np.ndarray, delta: float, error: float) -> float:
            def counts(threshold: float, part: slice) -> AttackResults:
                guess, truth = score[part] > threshold, member[part]
                return AttackResults(
                    FN=int((~guess & truth).sum()),
                    FP=int((guess & ~truth).sum()),
                    TN=int((~guess & ~truth).sum()),
                    TP=int((guess & truth).sum()),
                )

            choose, test = slice(0, None, 2), slice(1, None, 2)
            grid = np.quantile(score[choose], np.linspace(0.02, 0.98, 49))

            def answer(threshold: float, part: slice) -> float:
                found = counts(threshold, part)
                return float(compute_eps_lo(count=found, delta=delta, alpha=error, method=name))

            best = max(grid, key=lambda threshold: answer(threshold, choose))
            return answer(best, test)

        return call

    yield "beta (Clopper-Pearson)", method("beta")
    yield "jeffreys", method("jeffreys")


PACKAGES = {
    "jax_privacy": jax_privacy,
    "opake-auditing": opake_auditing,
    "privacy-estimates": privacy_estimates,
}


def _too_long(*_: object) -> None:
    raise TimeoutError("a single set took longer than twice the time for all of them")


def main(package: str, path: str, budget: str) -> None:
    """Answer for the sets of scores in the file, a set of each kind in turn.

    A method is asked for no more sets once it has taken so many seconds of processor time.
    """
    from importlib import metadata

    signal.signal(signal.SIGVTALRM, _too_long)
    sets = np.load(path)
    delta, error = float(sets["delta"]), float(sets["error"])
    kinds = [str(kind) for kind in sets["kinds"]]
    version = metadata.version(package)
    for name, method in PACKAGES[package]():
        bounds: dict[str, list[float]] = {kind: [] for kind in kinds}
        problem, started = "", time.process_time()
        most = max(len(sets[f"{kind}_score"]) for kind in kinds)
        turns = [(i, kind) for i in range(most) for kind in kinds if i < len(sets[f"{kind}_score"])]
        for index, kind in turns:
            if time.process_time() - started > float(budget):
                break
            score, member = sets[f"{kind}_score"][index], sets[f"{kind}_member"][index]
            signal.setitimer(signal.ITIMER_VIRTUAL, 2.0 * float(budget))
            try:
                bounds[kind].append(method(score, member.astype(bool), delta, error))
            except Exception as raised:  # noqa: BLE001  whatever a package does is its answer
                problem = f"{type(raised).__name__}: {raised}"[:200]
                break
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        row = {"method": name, "bounds": bounds, "problem": problem, "version": version}
        # At once, so that what is done is known if the next takes too long.
        print(json.dumps(row | {"seconds": time.process_time() - started}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
