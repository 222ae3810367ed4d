from __future__ import annotations

import numpy as np
import pytest

from askgauss.exceptions import InvalidArgumentError, ScoresError
from askgauss.selection import Fixed, Split, fingerprint, random_order, stream


class TestParts:
    @pytest.mark.parametrize("selection", [Split(), Split(fraction=0.999), Split(fraction=1e-6)])
    def test_a_split_leaves_something_on_both_sides(self, selection):
        for canaries in (2, 3, 10, 1001):
            chosen = selection.part(canaries, 0)
            expected = min(max(round(selection.fraction * canaries), 1), canaries - 1)
            assert chosen.sum() == expected

    def test_splits_repeat_with_the_seed(self):
        first, again, other = (Split(seed=seed).part(50, 7) for seed in (4, 4, 5))
        assert (first == again).all()
        assert not (first == other).all()

    def test_other_scores_are_split_at_other_ranks(self):
        """One split for every audit of a size would make all of them lucky or unlucky at once."""
        scores = np.random.default_rng(0).standard_normal((2, 50))
        member = np.arange(50) < 25
        seeds = [fingerprint(row, member) for row in scores]
        first, other = (Split().part(50, seed) for seed in seeds)
        assert not (first == other).all()

    def test_neither_unit_nor_order_decide(self):
        draw = np.random.default_rng(1)
        scores, member = draw.integers(0, 30, 60).astype(float), draw.random(60) < 0.5
        order = draw.permutation(60)
        seeds = {
            fingerprint(scores, member), fingerprint(np.exp(scores), member),
            fingerprint(scores * (1 + 1e-6), member), fingerprint(scores[order], member[order]),
        }  # fmt: skip
        assert len(seeds) == 1
        assert fingerprint(scores, ~member) not in seeds
        assert fingerprint(scores, member, "another run") not in seeds

    def test_too_few_canaries(self):
        with pytest.raises(ScoresError, match="at least 2 canaries of a kind for Split"):
            Split().part(1, 0)


class TestOrder:
    def test_sorts(self):
        scores = np.random.default_rng(0).standard_normal(100)
        order = random_order(scores)
        assert (np.diff(scores[order]) > 0).all()

    def test_ties_are_in_no_order(self):
        scores = np.repeat([0.0, 1.0], 500)
        order = random_order(scores)
        assert (order[:500] < 500).all()
        # 125 are expected of either half; seven standard errors.
        assert abs(int((order[:250] < 250).sum()) - 125) < 7 * np.sqrt(250 / 8)

    def test_different_ties_have_different_orders(self):
        """The input order and the seed are the same for many audits, and must not decide."""
        first = stream(Split(), "ties", fingerprint(np.array([1.0, 2.0, 2.0]))).permutation(20)
        again = stream(Split(), "ties", fingerprint(np.array([1.0, 7.0, 7.0]))).permutation(20)
        other = stream(Split(), "ties", fingerprint(np.array([1.0, 1.0, 2.0]))).permutation(20)
        assert (first == again).all()
        assert (first != other).any()


class TestArguments:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Fixed(), "exactly one of threshold, guesses and fraction, got none"),
            (lambda: Fixed(threshold=1.0, guesses=2), "got threshold and guesses"),
            (lambda: Fixed(threshold=float("nan")), "threshold"),
            (lambda: Fixed(guesses=0), r"guesses .*got 0"),
            (lambda: Fixed(fraction=0.0), r"fraction in \(0, 1\], got 0.0"),
            (lambda: Fixed(fraction=1.1), "fraction"),
            (lambda: Split(fraction=1.0), r"fraction in \(0, 1\), got 1.0"),
            (lambda: Split(seed=-1), "seed"),
        ],
    )
    def test_ranges(self, make, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make()
