"""Replace-one neighbours: their law against quadrature, and the run that is held to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom, norm

import askgauss as ag
from askgauss import accounting
from askgauss.auditors import GaussianShift, SubsampledGaussian
from askgauss.exceptions import UnsupportedError
from askgauss.federated import simulate_federated
from askgauss.results import Status, Verdict
from askgauss.sampling import EveryStep, FixedSize, Poisson, ReplaceOne, Shuffled
from askgauss.sampling.scheme import replaced_sum_epsilon

DELTA = 1e-5


def delta_of_sum(epsilon, *, signal, rate, steps):
    """Hockey-stick divergence of the two sums, on a fine grid and without a word on monotony."""
    x = np.linspace(-60.0, 60.0, 400_001)
    counts = np.arange(steps + 1)
    weights = binom.pmf(counts, steps, rate)
    here, opposite = np.zeros_like(x), np.zeros_like(x)
    for count, weight in zip(counts, weights, strict=True):
        mean = count * signal / np.sqrt(steps)
        here += weight * norm.pdf(x - mean)
        opposite += weight * norm.pdf(x + mean)
    return float(np.maximum(here - np.exp(epsilon) * opposite, 0.0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(
    ("signal", "rate", "steps"), [(0.5, 0.3, 20), (2.0, 0.2, 1), (1.0, 0.05, 40), (3.0, 0.5, 6)]
)
def test_the_sum_of_sampled_records_has_the_epsilon_of_quadrature(signal, rate, steps):
    summed = replaced_sum_epsilon(signal, rate, steps, DELTA)
    if summed > 0.0:
        shown = delta_of_sum(summed, signal=signal, rate=rate, steps=steps)
        assert shown >= (1.0 - 1e-3) * DELTA  # a lower bound
    law = ReplaceOne(of=Poisson(rate=rate))
    epsilon = law.epsilon_lower(noise_multiplier=1.0 / signal, steps=steps, delta=DELTA)
    left_out = Poisson(rate=rate).epsilon_lower(
        noise_multiplier=1.0 / signal, steps=steps, delta=DELTA
    )
    assert epsilon >= max(left_out, (1.0 - 1e-3) * summed)
    # Never above what an accountant says of replacing: cohorts of this share of very many.
    above = accounting.fixed_size_epsilon(
        noise_multiplier=1.0 / signal, batch=round(1e6 * rate), records=10**6, steps=steps,
        delta=DELTA,
    )  # fmt: skip
    assert epsilon <= above


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [(1.0, 0.1, 100), (1.5, 0.08, 230), (2.0, 0.5, 40), (0.8, 0.01, 300)],
)
def test_steps_of_replaced_records_compose_to_what_an_accountant_says(noise, rate, steps):
    """From below, and within a part in a thousand of dp-accounting's privacy loss distribution."""
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    above = accountant.compose(step, steps).get_epsilon(DELTA)
    law = ReplaceOne(of=Poisson(rate=rate))
    epsilon = law.epsilon_lower(noise_multiplier=noise, steps=steps, delta=DELTA)
    assert 0.999 * above < epsilon <= above
    quick = law.quick_signal_to_noise(epsilon=epsilon, delta=DELTA, steps=steps)
    assert quick == pytest.approx(1.0 / noise, rel=0.01)


def test_scores_of_a_record_in_every_step_are_twice_as_far_apart():
    """The bound is that of Gaussians on either side of zero, and the p-value agrees with it."""
    generator = np.random.default_rng(0)
    scores = ag.CanaryScores.from_groups(
        present=generator.normal(1.0, 1.0, 400), absent=generator.standard_normal(400),
        steps=9, sampling_rate=1.0, noise="gaussian",
    )  # fmt: skip
    auditor = GaussianShift(replaced=True)
    evidence = auditor.gather(scores, delta=DELTA, confidence=0.95)
    shift = evidence.test().lower(0.05)
    bound = auditor.epsilon_lower(evidence, delta=DELTA, confidence=0.95)
    assert bound == pytest.approx(ag.gaussian.epsilon(DELTA, -shift, 1.0, shift, 1.0), rel=1e-9)
    assert auditor.p_value(evidence, epsilon=bound, delta=DELTA) == pytest.approx(0.05, rel=1e-6)


def test_a_record_in_every_step_moves_twice_as_far():
    law = ReplaceOne(of=EveryStep())
    for noise in (0.7, 3.0, 20.0):
        epsilon = law.epsilon_lower(noise_multiplier=noise, steps=9, delta=DELTA)
        assert epsilon == pytest.approx(ag.gaussian.epsilon(DELTA, -3.0, noise, 3.0, noise))
        back = law.signal_to_noise(epsilon=epsilon, delta=DELTA, steps=9)
        assert back == pytest.approx(1.0 / noise, rel=1e-4)


def test_other_schemes_keep_the_bound_of_leaving_out():
    scheme = Shuffled(batches=5)
    given = {"noise_multiplier": 1.5, "steps": 10, "delta": DELTA}
    assert ReplaceOne(of=scheme).epsilon_lower(**given) == scheme.epsilon_lower(**given)


def test_without_noise_nothing_is_hidden():
    law = ReplaceOne(of=Poisson(rate=0.1))
    assert law.epsilon_lower(noise_multiplier=0.0, steps=5, delta=DELTA) == np.inf
    assert law.epsilon_lower(noise_multiplier=np.inf, steps=5, delta=DELTA) == 0.0


# ------------------------------------------------------------------------------- audited rounds

ROUNDS, NOISE = 40, 2.0


def claim_of(neighbours, noise, sampling):
    """What an accountant says of these rounds, with the sensitivity that the neighbours have."""
    if isinstance(sampling, FixedSize):
        epsilon = sampling.epsilon(noise_multiplier=noise, steps=ROUNDS, delta=DELTA)
    else:
        moved = 2.0 if neighbours == "replace" else 1.0
        epsilon = EveryStep().epsilon(noise_multiplier=noise / moved, steps=ROUNDS, delta=DELTA)
    return ag.PrivacyClaim(
        epsilon=epsilon, delta=DELTA, noise_multiplier=noise, steps=ROUNDS, sampling=sampling,
        unit="user", adjacency=neighbours,
    )  # fmt: skip


def rounds_of(sampling=None, *, present=150, seed=3, fault=None):
    return simulate_federated(
        rounds=ROUNDS, clients=10, dimension=900, present=present, absent=600,
        noise_multiplier=NOISE, sampling=sampling, fault=fault, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("neighbours", ["add-remove", "zero-out", "replace"])
def test_a_correct_server_keeps_the_claim_of_its_neighbours(neighbours):
    # Called broken in one audit of 1,000; the seed is fixed.
    result = ag.audit(rounds_of(), claim=claim_of(neighbours, NOISE, EveryStep()))
    assert result.verdict is Verdict.CONSISTENT, str(result)
    assert 0.9 * result.claim.epsilon < result.epsilon_lower <= result.claim.epsilon
    assert result.auditor.replaced == (neighbours == "replace")


def test_noise_for_one_clip_norm_does_not_cover_a_replaced_user():
    """The accountant forgot that replacing a user moves a sum by two clip norms."""
    run = rounds_of()
    epsilon = EveryStep().epsilon(noise_multiplier=NOISE, steps=ROUNDS, delta=DELTA)
    for neighbours, verdict in (("zero-out", "CONSISTENT"), ("replace", "VIOLATION")):
        claim = ag.PrivacyClaim(
            epsilon=epsilon, delta=DELTA, steps=ROUNDS, unit="user", adjacency=neighbours
        )
        assert ag.audit(run, claim=claim).verdict.value == verdict


def test_fixed_cohorts_are_held_to_the_replace_one_accountant():
    scheme = FixedSize(batch=20, records=100)
    claim = claim_of("replace", NOISE, scheme)
    result = ag.audit(rounds_of(scheme), claim=claim)
    assert result.verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE), str(result)
    left_out = ag.audit(rounds_of(scheme), claim=claim, auditor=SubsampledGaussian())
    assert left_out.epsilon_lower < result.epsilon_lower < claim.epsilon
    text = next(i.summary for i in result.findings if i.check == "adjacency")
    assert "two clip norms" in text


def test_the_law_survives_a_file():
    result = ag.audit(rounds_of(), claim=claim_of("replace", NOISE, EveryStep()))
    again = ag.AuditResult.from_json(result.to_json())
    assert again.epsilon_at(delta=1e-6) == result.epsilon_at(delta=1e-6)
    assert again.auditor == result.auditor


def test_half_noise_is_named_under_replaced_users_too():
    result = ag.audit(
        rounds_of(fault="half-server-noise"), claim=claim_of("replace", NOISE, EveryStep())
    )
    assert result.verdict is Verdict.VIOLATION
    failed = {item.check for item in result.findings if item.status is Status.FAIL}
    assert "noise scale" in failed


def test_a_claim_that_is_met_exactly_is_broken_right_beyond_it():
    """The epsilon of the law itself, to the last bit, is where the search begins."""
    law = EveryStep()
    epsilon = law.epsilon_lower(noise_multiplier=1.0, steps=100, delta=DELTA)
    quick = law.quick_signal_to_noise(epsilon=epsilon, delta=DELTA, steps=100)
    assert quick == pytest.approx(1.0, rel=6e-3)


# ------------------------------------------------------------------------ claims outside of rounds

RATE, STEPS, SIGMA = 0.25, 100, 2.0
RUN = {"steps": STEPS, "sampling_rate": RATE, "noise_multiplier": SIGMA}


def dpsgd_claim(replace_one, **options):
    """What an accountant says of these steps, for replace-one neighbours or for add-remove."""
    relation = "REPLACE_ONE" if replace_one else "ADD_OR_REMOVE_ONE"
    accountant = PLDAccountant(NeighboringRelation[relation])
    step = dp_event.PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(SIGMA))
    epsilon = accountant.compose(step, STEPS).get_epsilon(DELTA)
    return ag.PrivacyClaim(epsilon=epsilon, delta=DELTA, adjacency="replace", **RUN, **options)


@pytest.fixture(scope="module")
def transcript():
    return ag.simulate_dpsgd(**RUN, present=200, absent=300, seed=0)


def test_an_add_remove_epsilon_claimed_of_replaced_records_is_a_violation(transcript):
    """As the replace-one bug of dp-accounting 0.6: half of the true epsilon is claimed."""
    result = ag.audit(transcript, claim=dpsgd_claim(False))
    assert result.verdict is Verdict.VIOLATION
    assert result.epsilon_lower > 1.8 * result.claim.epsilon
    assert "two clip norms" in result.next_step
    assert ag.AuditResult.from_json(result.to_json()).verdict is Verdict.VIOLATION


def test_a_correct_replace_one_claim_holds_and_says_what_it_assumes(transcript):
    result = ag.audit(transcript, claim=dpsgd_claim(True))
    assert result.verdict is Verdict.CONSISTENT, str(result)
    assert 0.9 * result.claim.epsilon < result.epsilon_lower <= result.claim.epsilon
    for shown in (str(result), result.to_markdown(), result.to_html()):
        words = " ".join(shown.split())
        assert "a gradient and its opposite are clipped and noised alike" in words
        assert "replac" in words


@pytest.mark.parametrize("auditor", ["one-run", "gaussian-shift", SubsampledGaussian()])
def test_a_method_of_add_remove_neighbours_does_not_clear_a_replace_one_claim(transcript, auditor):
    result = ag.audit(transcript, claim=dpsgd_claim(True), auditor=auditor)
    parts = {part.name: part.status for part in result.scope}
    assert parts["adjacency"] == "not tested"
    assert result.verdict is Verdict.INCONCLUSIVE


def test_scores_show_replaced_records_where_the_symmetry_is_stated(transcript):
    method = GaussianShift(replaced=True)
    broken = ag.audit(transcript.scores(), claim=dpsgd_claim(False), auditor=method)
    assert broken.verdict is Verdict.VIOLATION
    kept = ag.audit(transcript.scores(), claim=dpsgd_claim(True), auditor=method)
    assert kept.verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE)
    assert kept.epsilon_lower <= kept.claim.epsilon
    default = ag.audit(transcript.scores(), claim=dpsgd_claim(True))
    assert default.verdict is Verdict.INCONCLUSIVE
    with pytest.raises(UnsupportedError, match="steps"):
        ag.audit(
            ag.CanaryScores.from_groups(present=[1.0, 2.0, 3.0], absent=[0.0, 1.0, 0.5]),
            claim=dpsgd_claim(True), auditor=method,
        )  # fmt: skip


def test_a_user_is_not_shown_by_canaries_that_are_examples(transcript):
    claim = ag.PrivacyClaim(epsilon=6.5, delta=DELTA, unit="user", **RUN)
    result = ag.audit(transcript, claim=claim)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert {part.name: part.status for part in result.scope}["privacy unit"] == "not tested"
    assert 'unit="user"' in result.next_step
    whole = transcript.with_facts(replace(transcript.facts, unit="user"))
    assert ag.audit(whole, claim=claim).verdict is Verdict.CONSISTENT
