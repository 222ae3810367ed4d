"""Numbers at the ends of their ranges, given to public functions: right answers, or typed errors.

What commands do with such numbers is in tests/cli/test_extremes.py.
"""

from __future__ import annotations

import math
import warnings

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

import askgauss as ag
from askgauss import accounting, power, sampling
from askgauss.exceptions import InvalidArgumentError
from askgauss.federated import simulate_federated
from askgauss.monitor.simulate_run import RunFault, most_noticed, runs_on_paper, steps_to_alarm
from askgauss.simulation import simulate_scores
from askgauss.stats import composition, limits, score_law

HUGE = 10**400
RUN = {"sampling_rate": 0.1, "steps": 50}
LAW = {"steps": 100, "sampling_rate": 0.1, "noise_multiplier": 2.0}


@pytest.fixture(autouse=True)
def no_warnings():
    """What overflows on the way is a mistake even where the answer is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


REFUSED = {
    "a claim of steps": lambda: ag.PrivacyClaim(epsilon=8.0, delta=1e-5, steps=HUGE),
    "steps of a law": lambda: ag.ScoreLaw(**{**LAW, "steps": HUGE}),
    "a noise whose square is none": lambda: ag.ScoreLaw(
        **{**LAW, "noise_multiplier": 1e100}, clip_norm=1e100
    ),
    "the exact distance of a long run": lambda: ag.ScoreLaw(
        **{**LAW, "steps": 10**9}
    ).kolmogorov_distance(),
    "a point beyond floats": lambda: ag.ScoreLaw(**LAW).cdf(HUGE),
    "no point": lambda: ag.ScoreLaw(**LAW).log_cdf(None),
    "a tail of too many counts": lambda: ag.ScoreLaw(**{**LAW, "steps": 10**9}).log_cdf(-1e9),
    "a cumulant beyond floats": lambda: ag.ScoreLaw(**LAW, clip_norm=1e135).cumulant(3),
    "a cumulant of any order": lambda: ag.ScoreLaw(**LAW).cumulant(10**9),
    "a run the accountant cannot compose": lambda: accounting.dpsgd_epsilon(
        noise_multiplier=2.0, sampling_rate=0.1, steps=10**9, delta=1e-5
    ),
    "steps beyond floats": lambda: accounting.dpsgd_noise_multiplier(
        epsilon=8.0, delta=1e-5, sampling_rate=0.1, steps=HUGE
    ),
    "an epsilon whose square is none": lambda: accounting.dpsgd_signal_to_noise(
        epsilon=1e300, delta=1e-5, **RUN
    ),
    "noise for a delta that rounds to 1": lambda: accounting.dpsgd_noise_multiplier(
        epsilon=8.0, delta=1.0 - 1e-16, sampling_rate=0.1, steps=2500
    ),
    "signals beyond floats": lambda: accounting.schedule_epsilon_lower(
        signal_to_noise=[HUGE, 1], sampling_rate=0.1, delta=1e-5
    ),
    "batches of no size": lambda: accounting.fixed_size_epsilon(
        noise_multiplier=2.0, batch=0, records=10, steps=5, delta=1e-5
    ),
    "a delta that is none": lambda: accounting.truncated_epsilon(
        noise_multiplier=2.0, sampling_rate=0.1, cap=20, records=100, steps=5, delta=math.nan
    ),
    "records of no number": lambda: accounting.truncated_epsilon(
        noise_multiplier=2.0, sampling_rate=0.1, cap=20, records=None, steps=5, delta=1e-5
    ),
    "hardly any noise and a cap": lambda: accounting.truncated_epsilon(
        noise_multiplier=1e-20, sampling_rate=0.1, cap=20, records=100, steps=5, delta=1e-5
    ),
    "records of a scheme": lambda: sampling.FixedSize(batch=2, records=HUGE),
    "canaries": lambda: ag.DiracCanaries(present=HUGE, absent=2, dimension=HUGE),
    "parameters": lambda: ag.DiracCanaries(present=2, absent=2, dimension=10**20),
    "steps of a simulation": lambda: ag.simulate_dpsgd(
        steps=10**9, sampling_rate=0.1, noise_multiplier=2.0, present=5, absent=5, seed=0
    ),
    "canaries of a simulation": lambda: simulate_scores(
        **RUN, noise_multiplier=2.0, present=10**9, absent=5, seed=0
    ),
    "numbers of a simulation": lambda: ag.simulate_dpftrl(
        steps=10**4, noise_multiplier=2.0, present=10**6, absent=5, seed=0
    ),
    "a seed that is none": lambda: simulate_scores(
        **RUN, noise_multiplier=2.0, present=5, absent=5, seed=1.5
    ),
    "updates that fit nowhere": lambda: simulate_federated(
        rounds=1, clients=10**6, noise_multiplier=2.0, dimension=10**6, present=2, absent=2
    ),
    "an endless replay": lambda: ag.replay(print, [1, 2], leave_out=0, steps=10**20),
    "resamples without end": lambda: ag.GaussianEllipsoid(resamples=10**9),
    "outputs without end": lambda: ag.audit_mechanism(
        abs, 0.0, 1.0, delta=1e-5, max_samples=10**12
    ),
    "a fault beyond all": lambda: RunFault(noise=1e300),
    "a period beyond memory": lambda: RunFault.parse("period=1e300"),
    "a rehearsal without end": lambda: steps_to_alarm(
        RunFault(),
        claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=2.0, sampling_rate=0.1),
        present=10,
        absent=10,
        steps=10**9,
    ),
    "an alternative beyond all": lambda: power.solve(
        epsilon=8.0,
        delta=1e-5,
        present=10,
        absent=10,
        steps=10,
        sampling_rate=0.1,
        alternative=1e300,
        power=None,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_name(what):
    with pytest.raises(InvalidArgumentError, match=r"^Expected ") as refused:
        REFUSED[what]()
    assert len(str(refused.value)) < 500


def test_numbers_too_long_to_write_out_are_told_by_their_length():
    with pytest.raises(InvalidArgumentError, match="5001 digits"):
        ag.PrivacyClaim(epsilon=8.0, delta=1e-5, steps=10**5000)


# Hardly any noise, and far too much.


def convex_delta(epsilon, noise, rate, steps):
    """Delta at most, given how often the record is drawn: by mpmath, term by term."""
    total = mpmath.mpf(0)
    with mpmath.workdps(400):
        for k in range(1, steps + 1):
            mu = mpmath.sqrt(k) / mpmath.mpf(noise)
            level = mpmath.mpf(epsilon)
            beyond = mpmath.ncdf(mu / 2 - level / mu)
            other = level - (mu / 2 + level / mu) ** 2 / 2
            # The second term, e^epsilon Phi(-mu / 2 - epsilon / mu), is below its Mills bound.
            spared = mpmath.exp(other) / (mu / 2 + level / mu) / mpmath.sqrt(2 * mpmath.pi)
            weight = mpmath.binomial(steps, k) * mpmath.mpf(rate) ** k
            total += weight * (1 - mpmath.mpf(rate)) ** (steps - k) * max(beyond - spared, 0)
    return float(total)


@pytest.mark.parametrize("noise", [1e-4, 1e-6, 1e-20, 1e-100])
def test_a_claim_with_hardly_any_noise_is_above_the_truth_and_near_it(noise):
    delta = 1e-5
    claimed = accounting.dpsgd_epsilon(noise_multiplier=noise, **RUN, delta=delta)
    shown = accounting.dpsgd_epsilon_lower(signal_to_noise=1.0 / noise, **RUN, delta=delta)
    assert math.isfinite(claimed)
    assert shown <= claimed <= 2.0 * shown
    assert convex_delta(claimed, noise, 0.1, 50) <= delta
    assert delta <= 20.0 * accounting.dpsgd_delta(noise_multiplier=noise, **RUN, epsilon=claimed)
    assert accounting.dpsgd_delta(noise_multiplier=noise, **RUN, epsilon=0.5 * claimed) > delta


def test_with_hardly_any_noise_whoever_is_drawn_shows():
    drawn = 1.0 - 0.9**50
    found = accounting.dpsgd_delta(noise_multiplier=1e-30, **RUN, epsilon=100.0)
    assert drawn <= found <= drawn + 1e-9
    curve = accounting.dpsgd_tradeoff(noise_multiplier=1e-30, **RUN)
    assert curve.inverse_blow_up(0.5) < 1e-6


def test_the_claim_goes_on_where_the_grid_ends():
    run = {"sampling_rate": 0.1, "steps": 5, "delta": 1e-5}
    on_grid, beyond = (
        accounting.dpsgd_epsilon(noise_multiplier=noise, **run) * noise * noise
        for noise in (2.0e-4, 1.3e-4)
    )
    assert beyond == pytest.approx(on_grid, rel=0.01)


@pytest.mark.parametrize("noise", [1e9, 1e20, 1e140])
def test_noise_that_hides_everything(noise):
    assert accounting.dpsgd_epsilon(noise_multiplier=noise, **RUN, delta=1e-5) == 0.0
    found = accounting.dpsgd_delta(noise_multiplier=noise, **RUN, epsilon=1e-12)
    assert 0.0 <= found <= 1e-9


def test_a_noise_multiplier_for_a_claim_of_nearly_everything():
    for epsilon in (1e9, 1e20, 1e100):
        noise = accounting.dpsgd_noise_multiplier(epsilon=epsilon, delta=1e-5, **RUN)
        assert 0.0 < noise < 1.0
        claimed = accounting.dpsgd_epsilon(noise_multiplier=noise, **RUN, delta=1e-5)
        assert claimed <= epsilon


@pytest.mark.parametrize("signal", [1e-300, 1e150, 1e300])
def test_signals_without_squares(signal):
    found = accounting.dpsgd_epsilon_lower(signal_to_noise=signal, **RUN, delta=1e-5)
    quick = accounting.dpsgd_epsilon_lower(
        signal_to_noise=signal, **RUN, delta=1e-5, grid=accounting.COARSE
    )
    assert found == quick if signal < 1.0 else min(found, quick) > 1e270
    scheduled = accounting.schedule_epsilon_lower(
        signal_to_noise=np.array([signal, 0.0]), sampling_rate=0.1, delta=1e-5
    )
    assert scheduled == 0.0 if signal < 1.0 else scheduled > 1e270


def test_rates_beside_zero_and_one():
    for function, signal in (
        (accounting.dpsgd_epsilon_lower, {"signal_to_noise": 0.5}),
        (accounting.schedule_epsilon_lower, {"signal_to_noise": np.array([0.5, 0.4])}),
    ):
        more = {} if "schedule" in function.__name__ else {"steps": 2}
        assert function(**signal, sampling_rate=5e-324, delta=1e-5, **more) == 0.0
        nearly = function(**signal, sampling_rate=1.0 - 1e-16, delta=1e-5, **more)
        assert nearly == pytest.approx(
            function(**signal, sampling_rate=1.0, delta=1e-5, **more), rel=0.01
        )


def test_a_delta_that_rounds_to_one_contradicts_nothing():
    run = {"epsilon": 8.0, "delta": 1.0 - 1e-16, "sampling_rate": 0.1, "steps": 2500}
    assert accounting.dpsgd_signal_to_noise(**run) == math.inf
    assert accounting.quick_signal_to_noise(**run) == math.inf


def test_of_many_steps_a_window_of_counts_is_tried():
    whole = composition.threshold_epsilon(8.0, 0.1, 100_000, 1e-5)
    part = composition.threshold_epsilon(8.0, 0.1, 100_001, 1e-5)
    assert part == pytest.approx(whole, rel=1e-4)
    assert 0.0 < composition.threshold_epsilon(8.0, 0.1, 10**9, 1e-5) < math.inf


def test_a_level_that_is_never_left_is_no_endless_search():
    low, high = limits.level_bracket(lambda x: 0.0, 1.0, 1.0)
    assert low > 1e100
    assert high == math.inf


# The law of a score.


@pytest.mark.parametrize("clip_norm", [1e-130, 1.0, 1e130])
def test_shape_does_not_depend_on_the_unit(clip_norm):
    law, plain = ag.ScoreLaw(**LAW, clip_norm=clip_norm), ag.ScoreLaw(**LAW)
    assert law.skewness == pytest.approx(plain.skewness, rel=1e-12)
    assert law.excess_kurtosis == pytest.approx(plain.excess_kurtosis, rel=1e-12)
    assert plain.skewness == pytest.approx(plain.cumulant(3) / plain.variance**1.5, rel=1e-12)


def test_shape_without_noise_is_that_of_the_coins():
    law = ag.ScoreLaw(steps=100, sampling_rate=0.1, noise_multiplier=1e-140)
    assert law.skewness == pytest.approx(0.8 / math.sqrt(100 * 0.1 * 0.9), rel=1e-12)
    bare = ag.ScoreLaw(steps=100, sampling_rate=1.0, noise_multiplier=1e-140)
    assert bare.skewness == bare.excess_kurtosis == 0.0


def test_tails_where_nothing_is():
    law = ag.ScoreLaw(**LAW)
    for far in (1e3, 1e160, 1e300):
        assert law.tail_deviation(far) == 0.0
        assert law.pdf(far) == 0.0
        assert law.cdf(far) == 1.0
    assert np.isnan(law.cdf(math.nan))


def test_epsilon_beyond_all_means():
    for shift in (1e-3, 1.0, 1e3):
        reach = shift / 0.1
        for epsilon in (1e150, 1e300, 1.01 * reach * (0.5 * reach + 50.0)):
            leak = score_law.subsampled_shift_delta(epsilon, shift, **RUN)
            assert leak == 0.0
        near = 0.9 * reach * (0.5 * reach + 30.0)
        assert score_law.subsampled_shift_delta(near, shift, **RUN) >= 0.0
    assert score_law.subsampled_shift(1e300, 1e-5, **RUN) == math.inf


def test_weights_of_a_rate_that_underflows():
    counts, logs = limits.binomial_weights(100, 5e-324, 92.0)
    assert counts[0] == 0.0
    assert logs[0] == 0.0
    assert np.exp(logs[1:]).sum() < 1e-300


# A monitor on paper.


def test_faults_too_slight_and_plain():
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=2.0, sampling_rate=0.1)
    size = {"claim": claim, "present": 100, "absent": 100, "steps": 100, "error": 0.001}
    assert most_noticed(RunFault(), **size) == 0.001
    assert most_noticed(RunFault(noise=0.9999999999), **size) < 0.002
    assert most_noticed(RunFault(contribution=1.0 + 1e-9), **size) < 0.002
    assert most_noticed(RunFault(rate=1.0 + 1e-9), **size) < 0.002
    for plain in (
        RunFault(noise=0.5),
        RunFault(contribution=3.0),
        RunFault(rate=3.0),
        RunFault(period=1),
    ):
        assert most_noticed(plain, **size) == 1.0
    # A fault of which at most this share is noticed is noticed in no more.
    slight = RunFault(noise=0.998)
    found = steps_to_alarm(
        slight, claim=claim, present=20, absent=20, steps=50, runs=40, error=0.001
    )
    bound = most_noticed(slight, **{**size, "present": 20, "absent": 20, "steps": 50})
    assert np.mean(np.isfinite(found)) <= bound + 0.1


def test_the_divergence_of_a_fault_is_that_of_its_densities():
    """Noise and contribution together, by quadrature: two of four canaries planted."""
    noise, fault = 2.0, RunFault(noise=1.5, contribution=1.2)

    def apart(moved, mean):
        """Of one value with this fault from one without."""
        wrong, right = stats.norm(moved, noise * fault.noise), stats.norm(mean, noise)
        return integrate.quad(
            lambda x: wrong.pdf(x) * (wrong.logpdf(x) - right.logpdf(x)), -40.0, 40.0
        )[0]

    divergence = 2 * apart(fault.contribution, 1.0) + 2 * apart(0.0, 0.0)
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=noise, sampling_rate=1.0)
    found = most_noticed(fault, claim=claim, present=2, absent=2, steps=1, error=0.001)
    assert found == pytest.approx(0.001 + np.sqrt(0.5 * divergence), rel=1e-6)


def test_long_runs_are_rehearsed_less_often():
    assert runs_on_paper(1) == runs_on_paper(2500) == 100
    assert runs_on_paper(5000) == 50
    assert runs_on_paper(10**9) == 10
