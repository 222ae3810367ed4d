"""What a canary shows under each scheme, and what accountants claim."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from scipy import stats

from askgauss import accounting
from askgauss.exceptions import FileFormatError, InvalidArgumentError, UnsupportedError
from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedSize,
    MinSeparation,
    Poisson,
    Shuffled,
    TruncatedPoisson,
    from_plain,
    mismatch,
)
from askgauss.sampling.inclusion import broken_counts, broken_rule
from askgauss.stats.gaussian import gdp_epsilon
from tests.sampling.schemes import every_scheme, shown

RUN = {"noise_multiplier": 1.0, "steps": 400, "delta": 1e-5}


@pytest.mark.parametrize(
    ("batches", "noise", "highest", "poisson"),
    [
        (100, 0.5, 5.3965, 6.476),
        (1000, 0.5, 3.1339, 3.239),
        (10_000, 0.4, 4.0145, 4.090),
        (12, 0.5, 7.5128, 11.761),
    ],
)
def test_one_shuffled_epoch(batches, noise, highest, poisson):
    """Not below the bound by the highest draw alone, and below Poisson sampling."""
    run = {"noise_multiplier": noise, "steps": batches, "delta": 1e-5}
    bound = Shuffled(batches=batches).epsilon_lower(**run)
    assert highest <= bound < 1.01 * highest
    assert Poisson(rate=1 / batches).epsilon_lower(**run) == pytest.approx(poisson, abs=2e-3)
    assert BallsInBins(bins=batches).epsilon_lower(**run) == bound


def test_fifty_shuffled_epochs():
    """800,000 simulated runs gave 6.650, with a standard error of .008."""
    bound = Shuffled(batches=12).epsilon_lower(noise_multiplier=1.3, steps=600, delta=1e-3)
    assert 0.99 * 6.650 <= bound <= 6.650 + 3 * 0.008


def test_an_epoch_that_is_not_whole():
    """Quadrature in two dimensions: two of three places are seen."""
    noise, delta = 0.7, 1e-4
    edges = np.linspace(-9, 11, 2001)
    here, nothing = (np.diff(stats.norm.cdf(edges - mean)) for mean in (1 / noise, 0.0))
    absent = np.outer(nothing, nothing)
    present = (np.outer(here, nothing) + np.outer(nothing, here) + absent) / 3
    bound = Shuffled(batches=3).epsilon_lower(noise_multiplier=noise, steps=2, delta=delta)

    def rest(first, second, epsilon):
        return np.maximum(first - math.exp(epsilon) * second, 0).sum()

    def larger(epsilon):
        return max(rest(present, absent, epsilon), rest(absent, present, epsilon))

    assert larger(bound * (1 - 1e-4)) >= delta * (1 - 1e-3)
    assert larger(1.005 * bound) < delta


def test_more_steps_tell_more():
    for scheme in (Shuffled(batches=8), Shuffled(batches=8, reshuffled=False)):
        values = [
            scheme.epsilon_lower(noise_multiplier=0.8, steps=steps, delta=1e-5)
            for steps in range(1, 41, 3)
        ]
        assert (np.diff(values) > 0).all()


def test_one_order_for_all_epochs_is_one_epoch_with_less_noise():
    kept = Shuffled(batches=20, reshuffled=False).epsilon_lower(**RUN)
    once = Shuffled(batches=20).epsilon_lower(
        noise_multiplier=1 / math.sqrt(20), steps=20, delta=1e-5
    )
    assert kept == pytest.approx(once, rel=1e-3)
    assert kept > 3 * Shuffled(batches=20).epsilon_lower(**RUN)
    assert BallsInBins(bins=20, redrawn=False).epsilon_lower(**RUN) == kept


def test_one_batch_an_epoch_is_every_step():
    for scheme in (Shuffled(batches=1), BallsInBins(bins=1), Poisson(rate=1.0)):
        bound = scheme.epsilon_lower(noise_multiplier=10, steps=30, delta=1e-5)
        exact = EveryStep().epsilon_lower(noise_multiplier=10, steps=30, delta=1e-5)
        assert 0.99 * exact <= bound <= exact
    assert exact == pytest.approx(gdp_epsilon(1e-5, math.sqrt(30) / 10), rel=1e-9)


def test_fixed_size_has_the_law_of_poisson():
    fixed = FixedSize(batch=50, records=1000)
    assert fixed.epsilon_lower(**RUN) == Poisson(rate=0.05).epsilon_lower(**RUN)


def test_batches_of_billions_are_accounted_by_their_rate():
    few, many = FixedSize(batch=3, records=10), FixedSize(batch=3 * 10**9, records=10**10)
    assert from_plain(many.to_plain()) == many
    run = {"noise_multiplier": 2.0, "steps": 20, "delta": 1e-5}
    assert many.epsilon(**run) == pytest.approx(few.epsilon(**run), rel=1e-9)
    assert many.epsilon_lower(**run) == pytest.approx(few.epsilon_lower(**run), rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e3, 1e4])
def test_nothing_contradicts_a_claim_beyond_where_a_law_is_cut_off(epsilon):
    scheme = MinSeparation(separation=3, rate=0.4)
    assert scheme.epsilon_lower(noise_multiplier=1e-6, steps=5, delta=1e-5) < epsilon
    assert scheme.signal_to_noise(epsilon=epsilon, delta=1e-5, steps=5) == math.inf
    assert scheme.quick_signal_to_noise(epsilon=epsilon, delta=1e-5, steps=5) == math.inf


def test_cyclic_groups():
    cyclic = CyclicPoisson(rate=0.2, cycle=4)
    known = cyclic.epsilon_lower(**RUN)
    assert known == Poisson(rate=0.2).epsilon_lower(noise_multiplier=1.0, steps=100, delta=1e-5)
    secret = CyclicPoisson(rate=0.2, cycle=4, groups="secret").epsilon_lower(**RUN)
    assert known - math.log(4) - 1e-9 <= secret < known
    # The first group has a step more.
    assert cyclic.epsilon_lower(noise_multiplier=1.0, steps=401, delta=1e-5) > known
    alone = CyclicPoisson(rate=0.05, cycle=1, groups="secret").epsilon_lower(**RUN)
    assert alone == pytest.approx(Poisson(rate=0.05).epsilon_lower(**RUN), rel=0.01)
    assert cyclic.known_background
    assert not CyclicPoisson(rate=0.2, cycle=4, groups="secret").known_background


def test_a_cap_lowers_the_rate_of_a_record():
    scheme = TruncatedPoisson(rate=0.05, cap=52, records=1000)
    sizes = np.minimum(np.arange(1001), 52)
    expected = stats.binom.pmf(np.arange(1001), 1000, 0.05) @ sizes / 1000
    assert scheme.share == pytest.approx(expected, rel=1e-10)
    assert scheme.share < 0.049
    far = TruncatedPoisson(rate=0.05, cap=1000, records=1000)
    assert far.share == pytest.approx(0.05, rel=1e-12)


@pytest.mark.parametrize("warm_start", [True, False])
def test_inclusions_with_a_separation(warm_start):
    scheme = MinSeparation(separation=4, rate=0.1, warm_start=warm_start)
    matrix = shown(list(scheme.draw(np.random.default_rng(1), 40_000, 30)), 40_000)
    measured = np.bincount(matrix.sum(axis=0), minlength=9)[:9] / 40_000
    expected = scheme.counts(30)
    assert expected.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(measured - expected).max() < 0.012
    assert not (matrix[:-3].astype(int) + matrix[1:-2] + matrix[2:-1] + matrix[3:] > 1).any()
    if warm_start:  # batches of one size from the start
        sizes = matrix.sum(axis=1) / 40_000
        assert np.abs(sizes - 0.1 / 1.3).max() < 0.006


def test_a_separation_of_one_step_is_poisson_read_by_its_sum():
    none = MinSeparation(separation=1, rate=0.05).epsilon_lower(
        noise_multiplier=8.0, steps=400, delta=1e-5
    )
    poisson = Poisson(rate=0.05).epsilon_lower(noise_multiplier=8.0, steps=400, delta=1e-5)
    assert 0.97 * poisson < none <= poisson


@pytest.mark.parametrize("scheme", every_scheme(), ids=str)
def test_every_law(scheme):
    noises = np.geomspace(0.05, 20, 12)
    values = [
        scheme.epsilon_lower(noise_multiplier=noise, steps=100, delta=1e-5) for noise in noises
    ]
    assert (np.diff(values) <= 1e-6).all()
    assert scheme.epsilon_lower(noise_multiplier=0, steps=100, delta=1e-5) == math.inf
    assert scheme.epsilon_lower(noise_multiplier=math.inf, steps=100, delta=1e-5) == 0.0
    critical = scheme.signal_to_noise(epsilon=3.0, delta=1e-5, steps=100)
    run = {"steps": 100, "delta": 1e-5}
    assert scheme.epsilon_lower(noise_multiplier=1 / critical, **run) >= 3.0 * (1 - 1e-12)
    assert scheme.epsilon_lower(noise_multiplier=1.001 / critical, **run) < 3.0
    with pytest.raises(InvalidArgumentError, match="steps"):
        scheme.epsilon_lower(noise_multiplier=1.0, steps=0, delta=1e-5)
    with pytest.raises(InvalidArgumentError, match="delta"):
        scheme.epsilon_lower(noise_multiplier=1.0, steps=1, delta=0)
    with pytest.raises(InvalidArgumentError, match="noise_multiplier"):
        scheme.epsilon_lower(noise_multiplier=-1.0, steps=1, delta=1e-5)


def test_nothing_contradicts_a_claim_whose_delta_covers_being_sampled():
    shuffled = Shuffled(batches=100)
    assert shuffled.signal_to_noise(epsilon=1.0, delta=0.3, steps=20) == math.inf
    assert shuffled.epsilon_lower(noise_multiplier=0, steps=20, delta=0.3) == 0.0
    assert shuffled.epsilon_lower(noise_multiplier=0, steps=40, delta=0.3) == math.inf


@pytest.mark.parametrize("scheme", every_scheme(), ids=str)
def test_a_claim_is_above_the_law(scheme):
    run = {"noise_multiplier": 2.0, "steps": 60, "delta": 1e-5}
    if isinstance(scheme, (Shuffled, BallsInBins, MinSeparation)):
        with pytest.raises(UnsupportedError, match="No accountant"):
            scheme.epsilon(**run)
        return
    assert scheme.epsilon(**run) >= scheme.epsilon_lower(**run)
    assert scheme.epsilon(noise_multiplier=0, steps=60, delta=1e-5) == math.inf


def test_accountants():
    assert CyclicPoisson(rate=0.2, cycle=4).epsilon(**RUN) == accounting.dpsgd_epsilon(
        noise_multiplier=1.0, sampling_rate=0.2, steps=100, delta=1e-5
    )
    # A cap that is never met costs nothing; one that is often met does.
    poisson = Poisson(rate=0.05).epsilon(**RUN)
    far = TruncatedPoisson(rate=0.05, cap=200, records=1000).epsilon(**RUN)
    assert far == pytest.approx(poisson, rel=2e-3)
    assert TruncatedPoisson(rate=0.05, cap=60, records=1000).epsilon(**RUN) > poisson


def test_what_a_mistaken_account_costs():
    found = mismatch(Poisson(rate=0.05), CyclicPoisson(rate=0.2, cycle=4), 1.0, 400, 1e-5)
    assert found.claimed == pytest.approx(6.70, abs=0.005)
    assert found.true_at_least > 12.0
    assert found.true_at_least > found.claimed
    assert re.search(r"cyclic .* accounted as Poisson .* claimed 6.70", str(found))
    without = mismatch(Shuffled(batches=20), Poisson(rate=0.05), 1.0, 400, 1e-5)
    assert without.claimed == Shuffled(batches=20).epsilon_lower(**RUN)
    found = mismatch(Poisson(rate=0.05), Shuffled(batches=20), 1.0, 400, 1e-5)
    assert found.true_at_least <= found.claimed


@pytest.mark.parametrize(
    "scheme", [*every_scheme(), CyclicPoisson(rate=0.2, cycle=4, groups="secret")], ids=str
)
def test_there_and_back_through_json(scheme):
    text = json.dumps(scheme.to_plain())
    assert from_plain(json.loads(text)) == scheme
    assert hash(from_plain(json.loads(text))) == hash(scheme)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"rate": 0.05},
        {"scheme": "nothing"},
        {"scheme": ["poisson"]},
        {"scheme": "poisson", "rate": "much"},
        {"scheme": "poisson", "rate": 2.0},
        {"scheme": "poisson"},
        {"scheme": "shuffled", "batches": 2.5},
    ],
)
def test_files_that_name_no_scheme(value):
    with pytest.raises(FileFormatError, match="sampling"):
        from_plain(value)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Poisson(rate=0.0), "rate"),
        (lambda: Poisson(rate=math.nan), "rate"),
        (lambda: FixedSize(batch=0, records=10), "batch"),
        (lambda: FixedSize(batch=11, records=10), "records"),
        (lambda: Shuffled(batches=0), "batches"),
        (lambda: BallsInBins(bins=1.5), "bins"),
        (lambda: CyclicPoisson(rate=0.2, cycle=0), "cycle"),
        (lambda: CyclicPoisson(rate=0.2, cycle=2, groups="maybe"), "groups"),
        (lambda: TruncatedPoisson(rate=0.2, cap=0, records=10), "cap"),
        (lambda: MinSeparation(separation=0, rate=0.1), "separation"),
        (lambda: next(FixedSize(batch=5, records=10).draw(np.random.default_rng(), 20, 1)), "10"),
    ],
)
def test_parameters_out_of_range_are_named(make, name):
    with pytest.raises(InvalidArgumentError, match=name):
        make()


@pytest.mark.parametrize(
    "scheme",
    [
        Poisson(rate=0.1),
        CyclicPoisson(rate=0.3, cycle=4),
        MinSeparation(separation=7, rate=0.2),
        MinSeparation(separation=7, rate=0.2, warm_start=False),
        BallsInBins(bins=9),
        BallsInBins(bins=9, redrawn=False),
        EveryStep(),
    ],
    ids=str,
)
def test_counts_of_draws_have_the_law_they_are_held_against(scheme):
    records, steps, p_values = 23, 50, []
    fewest, most = scheme.draws_within(steps)
    for seed in range(200):
        included = np.zeros((steps, records), dtype=bool)
        draws = scheme.draw(np.random.default_rng(seed), records, steps)
        for row, drawn in zip(included, draws, strict=True):
            row[drawn] = True
        counts = included.sum(axis=0)
        assert fewest <= counts.min() <= counts.max() <= most
        assert broken_counts(scheme, counts, steps) == broken_rule(scheme, included) == ""
        p_values.append(scheme.count_p_value(int(counts.sum()), records=records, steps=steps))
    # Never small more often than by chance.
    assert np.mean(np.array(p_values) < 0.05) < 0.1
    assert scheme.count_p_value(0 if fewest else records * steps, records=records, steps=steps) == (
        pytest.approx(0.0, abs=1e-4)
    )


@pytest.mark.parametrize("warm_start", [False, True])
def test_a_separation_beyond_the_run_takes_no_room(warm_start):
    """Whoever waits for longer than the run is drawn at most once; 10^8 took gigabytes."""
    long = MinSeparation(separation=10**8, rate=0.05, warm_start=warm_start).counts(60)
    near = MinSeparation(separation=60, rate=0.05, warm_start=False).counts(60)
    assert long.shape == (2,)
    assert long.sum() == pytest.approx(1.0)
    if not warm_start:
        assert long == pytest.approx(near)
    # As it was counted with room for every one who waits.
    some = MinSeparation(separation=100, rate=0.05, warm_start=warm_start).counts(60)
    share = 0.05 / (1.0 + 99 * 0.05)
    never = 0.95**60
    if warm_start:
        never = (1.0 - 99 * share) * 0.95**60 + share * sum(0.95 ** (60 - k) for k in range(1, 60))
        never += 40 * share
    assert some[0] == pytest.approx(never)
