"""A short, honest part of the calibration of the other auditors; the rest is `make calibration`.

Seeds are fixed, so these tests do not flake. Over the choice of the seed, exactly nominal bounds
fail some cell with probability at most 1e-4 in each test.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import askgauss as ag
from askgauss.auditors import EpsilonDeltaFamily
from askgauss.auditors.guessing import tried
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats import error_rates, gaussian
from askgauss.stats.guess_counts import epsilon_from_counts
from tests.calibration import peers
from tests.calibration.peers import FREE, GAUSSIAN, LAWS, Law, PeerCell, allowed, count

AUDITS = 35
CELLS = peers.cells([300])


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_bounds_are_above_the_truth_at_most_nominally(law):
    limit = allowed(AUDITS, len(CELLS))
    for cell in CELLS:
        if cell.law == law:
            result = count(cell, AUDITS, seed=1, bounds=4)
            assert result.above <= limit, result


@pytest.mark.parametrize(
    "auditor",
    [
        ag.OneRun(),
        ag.OneRun(selection=ag.Fixed(fraction=1.0)),
        ag.OneRunFDP(family=EpsilonDeltaFamily()),
        ag.OrderStatistics(family=EpsilonDeltaFamily(), selection=ag.Fixed(fraction=1.0)),
    ],
    ids=str,
)
def test_groups_of_fixed_sizes_are_thinned_to_fair_coins(auditor):
    """Half the canaries present, exactly: guessing is easier, and must not look like a leak."""
    for law in (Law("randomised response", 3.0), Law("randomised response", 0.0), LAWS[0]):
        result = count(PeerCell(auditor, law, 200, coins="fixed"), 70, seed=3, bounds=1)
        assert result.above <= allowed(70, 12), result


def test_bounds_come_close_to_the_truth_where_they_can():
    """Not only valid: randomised response is what counting guesses is made for."""
    law = Law("randomised response", 1.0)
    fixed = ag.OneRun(selection=ag.Fixed(fraction=1.0))
    assert count(PeerCell(fixed, law, 20_000), 4, seed=4, bounds=4).mean_bound > 0.9
    tight = ag.OrderStatistics(selection=ag.Fixed(fraction=0.7))
    gaussian_law = Law("gaussian", 1.5)
    result = count(PeerCell(tight, gaussian_law, 20_000), 4, seed=4, bounds=4)
    assert result.mean_bound > 0.93 * gaussian_law.epsilon


class TestTheCountWouldNotice:
    """The tests above can fail: each of these careless auditors is found out."""

    def test_a_bound_at_less_confidence(self):
        class Careless(ag.OneRun):
            def rejects(self, evidence, *, epsilon, delta, error):
                return ag.OneRun.rejects(self, evidence, epsilon=epsilon, delta=delta, error=0.4)

        cell = PeerCell(
            Careless(selection=ag.Fixed(fraction=1.0)), Law("randomised response", 1.0), 300
        )
        assert count(cell, 100, seed=5, bounds=0).above > allowed(100, len(CELLS))

    def test_a_number_of_guesses_chosen_on_the_canaries_it_is_tested_with(self):
        class Careless(ag.OneRun):
            def _guessed(self, score, member, error):
                ordered = member[np.argsort(score)]
                trials = [self._trial(ordered, count) for count in tried(ordered.size)]
                return max(trials, key=lambda trial: limit(trial, error))

        def limit(trial, error):
            return epsilon_from_counts(trial, delta=0.0, confidence=1.0 - error)

        cell = PeerCell(Careless(), LAWS[0], 300)
        assert count(cell, 300, seed=6, bounds=0).above > allowed(300, len(CELLS))

    def test_a_credible_bound_as_published(self):
        """The larger of two equal log ratios is above either of them too often."""

        class Careless(ag.Bayesian):
            def rejects(self, evidence, *, epsilon, delta, error):
                (trial,) = evidence.trials
                credence = error_rates.bayesian_probability(trial, epsilon=epsilon, delta=delta)
                return credence < error

        answer = Law("randomised response", 3.0)
        cell = PeerCell(Careless(selection=ag.Fixed(threshold=0.5)), answer, 1000)
        assert count(cell, 200, seed=10, bounds=0).above > allowed(200, len(CELLS))

    def test_ties_broken_by_the_order_of_input(self, monkeypatch):
        from askgauss.auditors import guessing

        def careless(scores, selection):
            return np.argsort(-scores, kind="stable")[::-1]  # of equal scores the first are highest

        monkeypatch.setattr(guessing, "random_order", careless)
        silent = Law("randomised response", 0.0)
        cell = PeerCell(ag.OneRun(selection=ag.Fixed(fraction=0.3)), silent, 300)
        assert count(cell, 100, seed=7, bounds=0).above > allowed(100, len(CELLS))

    def test_fixed_groups_taken_for_fair_coins(self):
        """Nearly all bits are known, and with them, from the group sizes, the others."""
        law = Law("randomised response", 3.0)
        generator = np.random.default_rng(8)
        wrong = np.zeros(2, dtype=int)
        for _ in range(1500):
            scores = law.scores(4, generator, "fixed")
            # Given who is half of the four, the two likelier ones are guessed present.
            order = np.argsort(scores.score + 1e-9 * generator.random(4))
            guessed = np.zeros(4, dtype=bool)
            guessed[order[2:]] = True
            wrong += np.array([(guessed == scores.member).all(), 1])
        perfect = wrong[0] / wrong[1]
        independent = (1.0 / (1.0 + math.exp(-3.0))) ** 4
        assert perfect > independent + 4 * math.sqrt(independent * (1.0 - independent) / 1500)

    def test_the_gaussian_family_on_randomised_response(self):
        """One accurate guess rate pins a Gaussian curve that this mechanism does not have."""
        every_guess = ag.OneRunFDP(selection=ag.Fixed(fraction=1.0))
        for auditor in (ag.GaussianDP(), every_guess, ag.OrderStatistics()):
            cell = PeerCell(auditor, Law("randomised response", 1.0), 2000)
            assert count(cell, 20, seed=9, bounds=0).above >= 15
            assert auditor.assumption.gaussian_curve


class TestDependentCanaries:
    """A mechanism of a Gaussian trade-off curve that couples its canaries (1 standard deviation).

    With probability .06 it answers for all canaries at once by randomised response, else it says
    nothing. Bounds that take canaries for independent fail in those .06 at any confidence.
    """

    CHANCE, RESPONSE = 0.06, 2.46

    def scores(self, generator, canaries=1000):
        member = generator.random(canaries) < 0.5
        honest = generator.random(canaries) < 1.0 / (1.0 + math.exp(-self.RESPONSE))
        score = (member == honest) + 0.01 * generator.random(canaries)
        return CanaryScores(score=score, member=member, metadata=ScoreMetadata(fair_coins=True))

    def epsilon(self, delta):
        """Exact epsilon of the mechanism."""
        top = math.exp(self.RESPONSE)
        return math.log(max(1.0, top - delta / self.CHANCE * (1.0 + top)))

    def test_it_is_private(self):
        levels = np.linspace(0.0, 3.0, 301)
        top = math.exp(self.RESPONSE)
        leak = self.CHANCE * np.maximum(top - np.exp(levels), 0.0) / (1.0 + top)
        assert (leak <= gaussian.gdp_delta(levels, 1.0)).all()

    @pytest.mark.parametrize(
        ("auditor", "delta"),
        [
            (ag.OrderStatistics(), 1e-5),
            (ag.OrderStatistics(selection=ag.Fixed(fraction=1.0)), 1e-5),
            (ag.GaussianDP(), 1e-5),
            (ag.OrderStatistics(family=EpsilonDeltaFamily()), 0.04),
            (ag.ClopperPearson(), 0.04),
            (ag.Bayesian(), 0.04),
        ],
        ids=str,
    )
    def test_those_that_need_independence_fail(self, auditor, delta):
        """And say that they need it."""
        assert auditor.assumption.rests_on(ag.Assumption.INDEPENDENT_CANARIES)
        truth = self.truth(auditor, delta)
        generator = np.random.default_rng(0)
        for _ in range(5):
            result = ag.audit(
                self.scores(generator),
                delta=delta,
                auditor=auditor,
                confidence=0.999,
                diagnostics=False,
            )
            assert result.epsilon_lower > truth

    @pytest.mark.parametrize(
        ("auditor", "delta"),
        [
            (ag.OneRun(), 1e-5),
            (ag.OneRun(), 0.04),
            (ag.OneRunFDP(), 1e-5),
            (ag.OneRunFDP(selection=ag.Fixed(fraction=1.0)), 1e-5),
            (ag.OneRunFDP(family=EpsilonDeltaFamily()), 0.04),
            (ag.AdaptiveOneRun(), 0.04),
        ],
        ids=str,
    )
    def test_those_that_do_not_hold(self, auditor, delta):
        truth = self.truth(auditor, delta)
        generator = np.random.default_rng(0)
        for _ in range(5):
            result = ag.audit(
                self.scores(generator),
                delta=delta,
                auditor=auditor,
                confidence=0.999,
                diagnostics=False,
            )
            assert result.epsilon_lower <= truth

    def truth(self, auditor, delta):
        """The most that may be reported: the curve's epsilon, or that of the family's member."""
        if auditor.assumption.gaussian_curve:
            return gaussian.gdp_epsilon(delta, 1.0)
        return self.epsilon(delta)


def test_every_auditor_of_scores_is_on_the_grid():
    """Or is an estimate, or has a grid of its own."""
    on_grid = {type(auditor) for auditor in FREE + GAUSSIAN}
    own = {ag.GaussianShift, ag.GaussianRectangle, ag.GaussianEllipsoid, ag.MaxCosine}
    kinds = {kind for kind in ag.auditors.auditor_types().values() if kind.reads == "scores"}
    assert kinds == on_grid | own


def test_the_section_lists_every_cell():
    few = [count(cell, 2, seed=1, bounds=1) for cell in peers.cells([40])[:3]]
    text = "\n".join(peers.section(few))
    assert "### 40 canaries" in text
    assert f"`{FREE[0]}`" in text
    assert dataclasses.is_dataclass(few[0])
