from __future__ import annotations

import numpy as np
import pytest

from askgauss.exceptions import InvalidArgumentError, ScoresError
from askgauss.selection import (
    DKW,
    Combination,
    CrossFit,
    Fixed,
    MultiSplit,
    Split,
    UnionBound,
    fingerprint,
    random_order,
    stream,
)


class TestCombination:
    def test_shares(self):
        assert Combination.BEST.share(0.05, 5) == pytest.approx(0.01)
        assert Combination.MEDIAN.share(0.05, 5) == pytest.approx(0.025)
        assert Combination.BAND.share(0.05, 5) == 0.05

    @pytest.mark.parametrize("size", range(1, 8))
    def test_the_median_is_reached_by_at_least_half(self, size):
        """By counting: the largest value that at least half of the values reach."""
        values = np.random.default_rng(size).random(size).tolist()
        reached = [v for v in values if 2 * sum(other >= v for other in values) >= size]
        assert Combination.MEDIAN.largest(values) == max(reached)
        small = [v for v in values if 2 * sum(other <= v for other in values) >= size]
        assert Combination.MEDIAN.p_value(values) == pytest.approx(min(1.0, 2 * min(small)))

    def test_best_and_band(self):
        assert Combination.BEST.largest([1.0, 3.0, 2.0]) == 3.0
        assert Combination.BEST.p_value([0.04, 0.01]) == pytest.approx(0.02)
        assert Combination.BAND.p_value([0.04, 0.01]) == pytest.approx(0.01)
        assert Combination.BEST.p_value([0.9, 0.8]) == 1.0

    @pytest.mark.parametrize("combination", [Combination.BEST, Combination.MEDIAN])
    def test_bound_and_p_value_agree(self, combination):
        """Trials whose p-value is the distance of a claim from their statistic, say."""
        generator = np.random.default_rng(0)
        for _ in range(200):
            statistics = generator.uniform(0, 1, 5)
            error, claim = generator.uniform(0.01, 0.5), generator.uniform(0, 1)

            def p_value(claim, statistics=statistics):
                return np.clip(1.0 - statistics + claim, 1e-9, 1.0)

            bounds = statistics - 1.0 + combination.share(error, 5)
            combined = combination.p_value(p_value(claim).tolist())
            assert (combination.largest(bounds.tolist()) > claim) == (combined < error)


class TestParts:
    @pytest.mark.parametrize("selection", [Split(), Split(fraction=0.999), Split(fraction=1e-6)])
    def test_a_split_leaves_something_on_both_sides(self, selection):
        for canaries in (2, 3, 10, 1001):
            (chosen,) = selection.parts(canaries, 0)
            expected = min(max(round(selection.fraction * canaries), 1), canaries - 1)
            assert chosen.sum() == expected

    def test_splits_differ_and_repeat_with_the_seed(self):
        first = list(MultiSplit(splits=3, seed=4).parts(50, 7))
        again = list(MultiSplit(splits=3, seed=4).parts(50, 7))
        other = list(MultiSplit(splits=3, seed=5).parts(50, 7))
        assert len(first) == 3
        assert not (first[0] == first[1]).all()
        assert all((a == b).all() for a, b in zip(first, again, strict=True))
        assert not (first[0] == other[0]).all()

    def test_other_scores_are_split_at_other_ranks(self):
        """One split for every audit of a size would make all of them lucky or unlucky at once."""
        scores = np.random.default_rng(0).standard_normal((2, 50))
        member = np.arange(50) < 25
        seeds = [fingerprint(row, member) for row in scores]
        (first,), (other,) = (Split().parts(50, seed) for seed in seeds)
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

    def test_folds_take_every_canary_once(self):
        parts = np.array(list(CrossFit(folds=4).parts(10, 0)))
        assert (parts.sum(axis=0) == 1).all()
        assert sorted(parts.sum(axis=1)) == [2, 2, 3, 3]

    def test_too_few_canaries(self):
        with pytest.raises(ScoresError, match="at least 5 canaries of a kind for CrossFit"):
            list(CrossFit().parts(4, 0))


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
            (lambda: MultiSplit(splits=1), "splits "),
            (lambda: UnionBound(candidates=0), "candidates"),
            (lambda: CrossFit(folds=1), "folds"),
        ],
    )
    def test_ranges(self, make, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make()

    def test_the_band_has_massarts_width(self):
        """P[sup > w] <= exp(-2 n w^2) is half the error."""
        width = DKW.width(0.05, 1000)
        assert np.exp(-2 * 1000 * width**2) == pytest.approx(0.025)
