"""Audits of mechanisms: the exam, and what happens on bad input."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    MechanismError,
    MissingExtraError,
)
from askgauss.files import codec
from askgauss.mechanism_audit import MechanismResult, from_function
from askgauss.mechanism_audit.events import classifier_named
from tests.calibration.mechanism_cells import count
from tests.mechanism_audit.exam import BROKEN, CORRECT, Mechanism, laplace

CLAIM = ag.PrivacyClaim(epsilon=1.0, delta=0.0)
BY_NAME = {case.name: case for case in (*CORRECT, *BROKEN)}


def audit(case, **options):
    return _audited(case.name) if not options else _audit(case, **options)


def _audit(case, **options):
    return ag.audit_mechanism(
        case.mechanism, case.data, case.neighbour, claim=case.claim, **options
    )


@functools.cache
def _audited(name):
    return _audit(BY_NAME[name])


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_broken_mechanisms_are_violations_within_ten_thousand_outputs(case):
    result = audit(case)
    assert result.verdict is ag.Verdict.VIOLATION, result
    assert result.samples <= 10_000
    assert result.epsilon_lower >= case.epsilon
    assert result.p_value(epsilon=case.epsilon) < 0.001


@pytest.mark.calibration
@pytest.mark.parametrize("case", CORRECT, ids=lambda case: case.name)
def test_correct_mechanisms_raise_no_alarm(case):
    found = count(case, 6, 400, gate_error=0.1, seed=50)
    assert found.alarms <= found.allowed(0.1), found
    assert found.above <= found.allowed(0.05), found


@pytest.mark.calibration
@pytest.mark.parametrize("name", ["Laplace", "discrete Gaussian", "randomised response"])
@pytest.mark.parametrize("samples", [30, 31, 47, 100])
def test_correct_mechanisms_raise_no_alarm_at_any_size(name, samples):
    found = count(BY_NAME[name], 15, samples, gate_error=0.1, seed=90)
    assert found.alarms <= found.allowed(0.1), found
    assert found.samples == (samples,) * 15


def test_what_was_tested_and_seen_makes_it_consistent():
    result = audit(BY_NAME["randomised response"])
    assert result.verdict is ag.Verdict.CONSISTENT, result
    assert result.power >= 0.8
    assert 0.8 < result.epsilon_lower < 1.0
    assert "this pair of inputs only" in str(result)


def test_a_pair_that_shows_little_is_inconclusive_however_many_outputs():
    result = ag.audit_mechanism(laplace(1.0), 0.0, 0.3, claim=CLAIM, max_samples=4000)
    assert result.verdict is ag.Verdict.INCONCLUSIVE
    assert "not the worst pair" in result.reason


def test_a_claim_beyond_what_so_few_outputs_could_show_is_inconclusive():
    claim = ag.PrivacyClaim(epsilon=6.0, delta=0.0)
    result = ag.audit_mechanism(laplace(1 / 6), 0.0, 1.0, claim=claim, max_samples=300)
    assert result.verdict is ag.Verdict.INCONCLUSIVE
    assert "could never show more than" in result.reason
    assert result.power == 0.0


def test_without_a_claim_there_is_a_bound_and_no_verdict():
    result = ag.audit_mechanism(laplace(1.0), 0.0, 1.0, delta=0.0, max_samples=2000)
    assert result.verdict is None
    assert 0.5 < result.epsilon_lower < 1.0
    assert result.epsilon_at(delta=0.1) < result.epsilon_lower


def test_a_result_survives_json(tmp_path):
    result = audit(BY_NAME["Laplace, noise two thirds"])
    text = result.to_json(tmp_path / "result.json")
    assert (tmp_path / "result.json").read_text() == text
    again = MechanismResult.from_json(text)
    assert again == result
    assert again.p_value(epsilon=1.2) == result.p_value(epsilon=1.2)
    assert str(again) == str(result)
    with pytest.raises(FileFormatError, match="digest"):
        MechanismResult.from_json(text.replace("VIOLATION", "CONSISTENT", 1))


def forged(result, **changes):
    """The text of a result with other fields, and a digest that fits them."""
    content = {**json.loads(result.to_json()), **changes}
    del content["digest"]
    return json.dumps({**content, "digest": codec.digest(content)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"confidence": 7.0}, "confidence"),
        ({"gate_error": -1.0}, "gate_error"),
        ({"delta": 1.0}, "delta"),
        ({"evidence": {"players": [[]]}}, "bets are none"),
        ({"evidence": None}, "evidence"),
        ({"samples": "many"}, "samples"),
    ],
)
def test_a_file_that_is_no_result_is_refused(change, words):
    result = audit(BY_NAME["Laplace, noise two thirds"])
    assert MechanismResult.from_json(forged(result)) == result
    with pytest.raises(FileFormatError, match=words):
        MechanismResult.from_json(forged(result, **change))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, -1) for name in ("favoured", "other", "trials", "known_favoured", "known_trials")),
        *((name, 10**16) for name in ("favoured", "other", "trials", "known_favoured")),
    ],
)
def test_bets_that_cannot_be_are_refused(name, value):
    result = audit(BY_NAME["Laplace, noise two thirds"])
    evidence = json.loads(result.to_json())["evidence"]
    bet = evidence["players"][0][0]
    bet[name] = value if name.startswith("known") else [value, *bet[name][1:]]
    with pytest.raises(FileFormatError, match="bets"):
        MechanismResult.from_json(forged(result, evidence=evidence))


def test_the_bound_and_the_p_value_tell_one_story():
    result = audit(BY_NAME["Laplace, noise two thirds"])
    bound = result.epsilon_lower
    assert result.p_value(epsilon=bound - 1e-9) <= 0.05
    assert result.p_value(epsilon=bound + 0.02) > 0.05
    values = [result.p_value(epsilon=level) for level in np.linspace(0, 3, 31)]
    assert values == sorted(values)
    assert result.p_value(epsilon=1e6) == 1.0


def test_the_same_seed_gives_the_same_audit():
    case = BY_NAME["Laplace, noise two thirds"]
    assert audit(case, seed=5) == audit(case, seed=5)
    assert audit(case, seed=5) != audit(case, seed=6)


def test_a_function_of_one_release_is_enough():
    noisy = from_function(lambda data, rng: float(sum(data)) + rng.laplace(0, 0.4))
    result = ag.audit_mechanism(noisy, [1, 2], [1, 2, 1], claim=CLAIM, max_samples=1500)
    assert result.verdict is ag.Verdict.VIOLATION


def test_a_wrong_likelihood_ratio_hides_and_invents_nothing():
    class Wrong:
        sample = staticmethod(laplace(1.0).sample)

        def log_likelihood_ratio(self, outputs, data, neighbour):
            return np.where(np.arange(len(outputs)) % 2, np.nan, 100.0 * outputs)

    result = ag.audit_mechanism(Wrong(), 0.0, 1.0, claim=CLAIM, max_samples=1000)
    assert result.verdict is not ag.Verdict.VIOLATION
    assert result.epsilon_lower < 1.0


def test_words_sequences_and_nan_are_outputs():
    """Each of these leaks without bound, by a word, by a length, by nan."""

    def word(data, rng):
        return "yes" if rng.random() < 0.5 * data else "no"

    def length(data, rng):
        return [0.0] * (2 if rng.random() < 0.5 * data else 1)

    def nan(data, rng):
        return math.nan if rng.random() < 0.5 * data else 0.0

    for release in (word, length, nan):
        result = ag.audit_mechanism(from_function(release), 0.0, 1.0, claim=CLAIM, max_samples=1000)
        assert result.verdict is ag.Verdict.VIOLATION, release


class TestClassifiers:
    def test_one_of_scikit_learn_joins_the_search(self):
        pytest.importorskip("sklearn")
        case = BY_NAME["histogram, two cells change"]
        for name in ("boosting", "logistic"):
            result = audit(case, classifier=name, max_samples=3000)
            assert result.verdict is ag.Verdict.VIOLATION

    def test_any_object_with_the_two_methods_does(self):
        class Middle:
            def fit(self, features, labels):
                self.columns = features.shape[1]

            def predict_proba(self, features):
                assert features.shape[1] == self.columns
                return np.column_stack((0 * features[:, 0], features[:, 0]))

        result = ag.audit_mechanism(
            laplace(0.3), 0.0, 1.0, claim=CLAIM, classifier=Middle(), max_samples=500
        )
        assert result.verdict is ag.Verdict.VIOLATION

    def test_a_missing_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
        with pytest.raises(MissingExtraError, match="askgauss\\[sklearn\\]"):
            classifier_named("boosting")

    def test_an_unknown_name_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="classifier"):
            ag.audit_mechanism(laplace(1.0), 0.0, 1.0, claim=CLAIM, classifier="oracle")


class TestBadInput:
    def run(self, sample, **options):
        mechanism = type("Given", (), {"sample": staticmethod(sample)})()
        return ag.audit_mechanism(mechanism, 0.0, 1.0, claim=CLAIM, max_samples=500, **options)

    def test_a_mechanism_that_raises_names_side_and_samples(self):
        def sample(data, n, seed):
            if data == 1.0 and n < 100:
                raise RuntimeError("no more")
            return np.random.default_rng(seed).laplace(size=n)

        with pytest.raises(MechanismError, match=r"RuntimeError.*on neighbour, samples 1"):
            self.run(sample)

    def test_one_release_that_raises_is_named(self):
        def release(data, rng):
            return 1 / (rng.random() > 0.02)

        with pytest.raises(MechanismError, match=r"release \d+ raised ZeroDivisionError"):
            ag.audit_mechanism(from_function(release), 0.0, 1.0, claim=CLAIM)

    @pytest.mark.parametrize("extra", [-1, 1])
    def test_another_number_of_outputs_than_asked(self, extra):
        with pytest.raises(MechanismError, match=f"120 .*got {120 + extra}"):
            self.run(lambda data, n: np.zeros(n + extra))

    def test_a_number_instead_of_outputs(self):
        with pytest.raises(MechanismError, match=r"first axis.*3\.0"):
            self.run(lambda data, n: 3.0)

    def test_shapes_that_vary_in_dimension(self):
        with pytest.raises(MechanismError, match="dimensions"):
            self.run(lambda data, n: [np.zeros(2) if k % 2 else np.zeros((2, 2)) for k in range(n)])
        with pytest.raises(MechanismError, match="dimensions"):
            self.run(lambda data, n: np.zeros((n, 2)) if data else np.zeros((n, 2, 2)))

    def test_complex_outputs(self):
        with pytest.raises(MechanismError, match="imaginary"):
            self.run(lambda data, n: np.zeros(n, complex))

    def test_one_constant_tests_nothing(self):
        result = self.run(lambda data, n: np.ones(n))
        assert result.verdict is ag.Verdict.INCONCLUSIVE
        assert "nothing was tested" in result.reason
        assert result.epsilon_lower == 0.0
        assert MechanismResult.from_json(result.to_json()) == result

    def test_two_constants_are_a_violation(self):
        result = self.run(lambda data, n: np.full(n, data))
        assert result.verdict is ag.Verdict.VIOLATION

    def test_a_sampler_that_repeats_itself_is_invalid(self):
        def sample(data, n):
            return data + np.random.default_rng(int(data)).laplace(size=n)

        result = self.run(sample)
        assert result.verdict is ag.Verdict.INVALID
        assert "not independent" in result.reason

    def test_sides_drawn_with_the_same_coins_are_invalid(self):
        calls = []

        def sample(data, n):
            calls.append(data)
            return data + np.random.default_rng(len(calls) // 2 if data else len(calls) // 2 + 1) \
                .laplace(size=n)  # fmt: skip

        result = self.run(sample)
        assert result.verdict is ag.Verdict.INVALID
        assert "same randomness" in result.reason

    def test_rare_outputs_of_independent_draws_are_not_taken_for_coupled(self):
        """Nearly constant columns: three outputs that coincide are no evidence of shared coins."""

        def selected(data, n, seed):
            counts = np.asarray(data) + np.random.default_rng(seed).geometric(0.6, (n, 30))
            return (counts > 7).astype(float)

        class Selection:
            sample = staticmethod(selected)

        claim = ag.PrivacyClaim(epsilon=3.0, delta=0.05)
        data, neighbour = [1] * 30, [0] + [1] * 29
        verdicts = [
            ag.audit_mechanism(
                Selection(), data, neighbour, claim=claim, max_samples=600, seed=seed
            ).verdict
            for seed in range(1000, 1015)
        ]
        assert ag.Verdict.INVALID not in verdicts

    def test_equal_inputs_and_inputs_that_are_no_neighbours(self):
        for same in (1.0, [1, 2], np.arange(3)):
            with pytest.raises(InvalidArgumentError, match="neighbour"):
                ag.audit_mechanism(laplace(1.0), same, np.copy(same), claim=CLAIM)
        with pytest.raises(InvalidArgumentError, match="they are not"):
            ag.audit_mechanism(
                laplace(1.0), 0.0, 5.0, claim=CLAIM, adjacent=lambda one, two: abs(one - two) <= 1
            )

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "exactly one of claim and delta, got neither"),
            ({"claim": CLAIM, "delta": 0.0}, "got both"),
            ({"claim": (1.0, 0.0)}, "claim "),
            ({"delta": 1.0}, r"delta in \[0, 1\)"),
            ({"claim": CLAIM, "max_samples": 29}, "max_samples "),
            ({"claim": CLAIM, "gate_error": 0.0}, "gate_error"),
            ({"claim": CLAIM, "confidence": 1.0}, "confidence"),
        ],
    )
    def test_arguments_outside_their_range(self, options, message):
        with pytest.raises(InvalidArgumentError, match=message):
            ag.audit_mechanism(laplace(1.0), 0.0, 1.0, **options)

    def test_something_that_cannot_be_sampled(self):
        with pytest.raises(InvalidArgumentError, match="from_function"):
            ag.audit_mechanism(len, 0.0, 1.0, claim=CLAIM)


def test_huge_and_infinite_outputs_are_outputs():
    def draw(rng, x, n):
        return np.where(rng.random(n) < 0.5, np.inf, 1e307 * rng.standard_normal(n)) * (1 - 2 * x)

    result = ag.audit_mechanism(Mechanism(draw), 0.0, 1.0, claim=CLAIM, max_samples=1000)
    assert result.verdict is ag.Verdict.VIOLATION
