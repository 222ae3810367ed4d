from __future__ import annotations

import builtins

import numpy as np
import pytest

import askgauss as ag
from askgauss.blackbox import calibrate
from askgauss.exceptions import InvalidArgumentError, MissingExtraError
from askgauss.scores import CanaryScores, ScoreMetadata

METADATA = ScoreMetadata(fair_coins=True, steps=10, sampling_rate=0.5, clip_norm=1.0)


def black_box(canaries, holdout, leak, seed):
    """Losses that depend on how hard an example is far more than on whether it was trained on."""
    generator = np.random.default_rng(seed)

    def examples(count):
        features = generator.uniform(-1, 1, (count, 3))
        difficulty = 4.0 * features[:, 0] + 2.0 * features[:, 1] ** 2
        spread = np.exp(features[:, 2])
        return features, difficulty, spread

    features, difficulty, spread = examples(canaries)
    member = generator.random(canaries) < 0.5
    score = difficulty + spread * generator.standard_normal(canaries) + leak * member
    scores = CanaryScores(score=score, member=member, metadata=METADATA)
    others, difficulty, spread = examples(holdout)
    raw = difficulty + spread * generator.standard_normal(holdout)
    return scores, {"features": features, "holdout_features": others, "holdout_scores": raw}


class TestCalibrate:
    scores, arguments = black_box(3000, 3000, leak=1.5, seed=0)
    calibrated = calibrate(scores, **arguments)

    def test_difficulty_is_taken_out(self):
        absent = self.calibrated.absent
        assert absent.mean() == pytest.approx(0.0, abs=0.15)
        assert absent.std() == pytest.approx(1.0, abs=0.3)
        features = self.arguments["features"][~self.scores.member]
        before = np.corrcoef(features[:, 0], self.scores.absent)[0, 1]
        after = np.corrcoef(features[:, 0], absent)[0, 1]
        assert before > 0.7
        assert abs(after) < 0.1

    def test_the_audit_sees_more(self):
        for auditor in (ag.OneRun(), ag.ClopperPearson()):
            raw = ag.audit(self.scores, delta=1e-5, auditor=auditor, diagnostics=False)
            better = ag.audit(self.calibrated, delta=1e-5, auditor=auditor, diagnostics=False)
            assert better.epsilon_lower > raw.epsilon_lower + 0.5

    def test_who_was_present_is_not_looked_at(self):
        turned = CanaryScores(
            score=self.scores.score, member=~self.scores.member, metadata=METADATA
        )
        again = calibrate(turned, **self.arguments)
        assert (again.score == self.calibrated.score).all()

    def test_facts_about_raw_sums_are_dropped(self):
        assert self.calibrated.metadata == ScoreMetadata(fair_coins=True)
        assert (self.calibrated.member == self.scores.member).all()


class TestArguments:
    scores, arguments = black_box(20, 60, leak=1.0, seed=1)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"features": np.zeros((19, 3))}, r"features to be numbers of shape \(20, columns\)"),
            ({"features": np.zeros((20, 2))}, "of one width, got 2 and 3"),
            ({"features": np.full((20, 3), np.nan)}, "features to be finite"),
            ({"holdout_features": np.zeros((59, 3))}, "holdout_features "),
            ({"seed": -1}, "seed"),
        ],
    )
    def test_shapes(self, change, message):
        with pytest.raises(InvalidArgumentError, match=message):
            calibrate(self.scores, **{**self.arguments, **change})

    def test_too_few_held_out(self):
        with pytest.raises(InvalidArgumentError, match=">= 50, got 10"):
            calibrate(
                self.scores,
                features=self.arguments["features"],
                holdout_features=self.arguments["holdout_features"][:10],
                holdout_scores=self.arguments["holdout_scores"][:10],
            )

    def test_a_score_among_the_features(self):
        flat = {**self.arguments, "holdout_scores": np.ones(60)}
        with pytest.raises(InvalidArgumentError, match="fit"):
            calibrate(self.scores, **flat)

    def test_without_scikit_learn(self, monkeypatch):
        real = builtins.__import__

        def missing(name, *rest, **options):
            if name.startswith("sklearn"):
                raise ImportError(name)
            return real(name, *rest, **options)

        monkeypatch.setattr(builtins, "__import__", missing)
        with pytest.raises(MissingExtraError, match=r"askgauss\[sklearn\]"):
            calibrate(self.scores, **self.arguments)
