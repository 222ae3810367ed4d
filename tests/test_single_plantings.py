"""What subtracting leaves: published sums of which a handful of canaries or plantings remains.

The attacker knows the seed, and so who was planted when and how each canary weighs. They subtract
what a result, a comparison or a followed run tells, and want the noise of a single planting.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import askgauss as ag
from askgauss.auditors import AdaptiveOneRun
from askgauss.cli.app import app
from askgauss.evidence.attestation import evidence_pack
from askgauss.figures.summary import summarise
from askgauss.loggers import log_result
from askgauss.publish.disclosure import publishable, reveals_individuals
from askgauss.scores import ScoreMetadata

CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
NOISE = 2.0


def recorded(*, rate, steps=50, present=60, absent=60, seed=7, noise=None, monitor=None):
    """A transcript, and by step who was planted and the noise at every canary."""
    canaries = ag.DiracCanaries(present=present, absent=absent, dimension=2000, seed=seed)
    recorder = ag.Recorder(canaries, sampling_rate=rate, clip_norm=1.0, monitor=monitor)
    generator = np.random.default_rng(seed)
    planted, hidden = [], []
    for step in range(steps):
        multiplier = NOISE if noise is None else noise[step]
        values = generator.normal(0.0, multiplier, canaries.size)
        there = np.asarray(recorder.sample())
        planted.append(there)
        hidden.append(values.copy())
        values[there] += 1.0
        recorder.observe(values, background=np.zeros(canaries.size), noise_multiplier=multiplier)
    return recorder, planted, np.array(hidden)


def total(moments):
    return moments["count"] * moments["mean"]


def refused(result, tmp_path):
    """Whether a result stays with the training data, wherever it goes."""
    result.to_json(tmp_path / "result.json")
    assert result.private == json.loads((tmp_path / "result.json").read_text())["private"]
    assert result.private == ag.AuditResult.load(tmp_path / "result.json").private
    if not result.private:
        return False
    with pytest.raises(ag.exceptions.InvalidArgumentError, match="30 plantings"):
        evidence_pack(result, subjects={"model.safetensors": "0" * 64})
    return (tmp_path / "result.json").stat().st_mode & 0o777 == 0o600


def test_the_one_step_that_a_canary_was_not_in(tmp_path):
    """Sums of all other steps less those of absent canaries is its noise, to the last digits."""
    recorder, planted, hidden = recorded(rate=0.9995)
    result = ag.audit(recorder.transcript(), claim=CLAIM)
    content = json.loads(result.to_json())
    (stratum,) = content["evidence"]["strata"]
    absent = total(content["metadata"]["figures"]["scores"]["absent"]) * np.sqrt(50)
    member = recorder.transcript().member
    out = np.array([np.setdiff1d(np.flatnonzero(member), there) for there in planted], object)
    left = np.concatenate(
        [noise[rows.astype(int)] for noise, rows in zip(hidden, out, strict=True)]
    )
    assert 0 < left.size < 30
    np.testing.assert_allclose(total(stratum["other"]) - absent, left.sum(), atol=1e-6)
    assert refused(result, tmp_path)


def test_a_handful_of_plantings(tmp_path):
    recorder, planted, _ = recorded(rate=0.003)
    assert 2 <= sum(map(len, planted)) < 30
    assert refused(ag.audit(recorder.transcript(), claim=CLAIM), tmp_path)


def test_one_step_of_another_noise(tmp_path):
    """Plantings weighed by their step's noise, less plantings that are not: that step alone."""
    noise = [NOISE] * 30 + [3.0] + [NOISE] * 19
    recorder, planted, _ = recorded(rate=0.05, noise=noise)
    assert 0 < len(planted[30]) < 10
    assert refused(ag.audit(recorder.transcript(), claim=CLAIM), tmp_path)
    gradual = list(NOISE * (1.0 + 0.01 * np.arange(50)))
    recorder, _, _ = recorded(rate=0.2, noise=gradual)
    assert not refused(ag.audit(recorder.transcript(), claim=CLAIM), tmp_path)


def test_canaries_that_move_otherwise(tmp_path):
    """In a tree of 33 leaves the last one is in fewer nodes, and its canaries are two of sixty."""
    transcript = ag.simulate_dpftrl(
        steps=33, noise_multiplier=3.0, present=60, absent=60, seed=2, release="nodes"
    )
    scores = transcript.scores()
    odd = scores.member & (scores.relative_shift < 0.9)
    assert 0 < odd.sum() < 10
    result = ag.audit(transcript, claim=CLAIM)
    told = json.loads(result.to_json())["evidence"]
    moved = scores.relative_shift * scores.member
    every = total(told["present"]) + total(told["absent"])
    weighed = told["slope"]["slope"] * told["slope"]["spread"] + moved.mean() * every
    found = (weighed - total(told["present"])) / (scores.relative_shift[odd][0] - 1.0)
    np.testing.assert_allclose(found, scores.score[odd].sum(), atol=1e-6)
    assert refused(result, tmp_path)


def published_sums(transcript):
    """Every exact number of a result that is linear in the noise."""
    evidence = ag.SubsampledGaussian().gather(transcript, delta=1e-5, confidence=0.95)
    scores = publishable(summarise(transcript)).scores
    groups = [scores.present, scores.absent]
    groups += [part for stratum in evidence.strata for part in (stratum.planted, stratum.other)]
    fits = [fit for fit in (evidence.counts, evidence.within) if fit is not None]
    sums = [group.count * group.mean for group in groups]
    return np.array(sums + [fit.slope * fit.spread for fit in fits])


def least_left(transcript):
    """What is left of the best known noise of a canary, its plantings and the rest apart.

    The attacker regresses it on all published sums. How each sum weighs it is measured: it is moved
    by one deviation, and the evidence gathered again.
    """
    sums, steps = transcript.canaries, transcript.number_of_steps
    base, moved = published_sums(transcript), []
    for canary, planted in enumerate(sums.planted):
        for there in (True, False):
            step = np.zeros(sums.total.size)
            step[canary] = np.sqrt(planted if there else steps - planted)
            changed = replace(
                sums,
                total=sums.total + step,
                planted_total=sums.planted_total + (step if there else 0.0),
            )
            moved.append(published_sums(replace(transcript, canaries=changed)) - base)
    weights = np.array(moved)
    inverse = np.linalg.pinv(weights.T @ weights, rcond=1e-10)
    blocks = weights.reshape(-1, 2, base.size)
    known = np.linalg.eigvalsh(blocks @ inverse @ blocks.transpose(0, 2, 1))[:, -1]
    return np.sqrt(1.0 - known.max())


@pytest.mark.parametrize(("rate", "steps"), [(0.2, 20), (0.05, 40), (0.9, 15)])
def test_the_smallest_published_results_tell_of_no_canary(rate, steps):
    """30 and 30 canaries: the one that was planted most keeps .95 of its noise, or none is told."""
    left = {True: [], False: []}
    for seed in range(4):
        recorder, _, _ = recorded(rate=rate, steps=steps, present=30, absent=30, seed=seed)
        transcript = recorder.transcript()
        left[reveals_individuals(transcript)].append(least_left(transcript))
    assert left[False]
    assert min(left[False]) >= 0.95, left


def test_sums_that_weigh_the_most_planted_canary_are_private():
    """A fit by how often each was planted leaves it .76 to .92 of its noise, and is not kept."""
    recorder, _, _ = recorded(rate=0.2, steps=20, present=30, absent=30, noise=[NOISE] * 20)
    transcript = recorder.transcript()
    usual = ag.audit(transcript, claim=CLAIM)
    assert usual.evidence.counts is usual.evidence.within is None
    assert not usual.private
    asked = ag.audit(transcript, claim=CLAIM, auditor=ag.SubsampledGaussian(counts_only=True))
    assert asked.evidence.counts is not None
    assert asked.private


def test_of_few_scores_the_figures_do_not_show_the_highest():
    """It is mostly that of the canary that was planted most, where there is little noise."""
    shown = set()
    for shift in (0.0, 0.2, 0.4):
        recorder, _, _ = recorded(rate=0.2, steps=20, noise=[0.5] * 20)
        transcript = recorder.transcript()
        scores = transcript.scores()
        values = scores.score.copy()
        values[np.argmax(np.where(scores.member, values, -np.inf))] += shift
        told = publishable(summarise(replace(scores, score=values))).scores
        filled = np.flatnonzero(told.present_counts)
        shown.add((filled[0], filled[-1]))
        assert told.density.size == 0
    assert len(shown) == 1


@pytest.mark.parametrize("rate", [0.02, 0.2, 0.9])
def test_usual_runs_may_be_published(rate, tmp_path):
    for seed in range(3):
        recorder, _, _ = recorded(rate=rate, seed=seed)
        assert not refused(ag.audit(recorder.transcript(), claim=CLAIM), tmp_path)
    alike = ag.simulate_dpftrl(steps=32, noise_multiplier=3.0, present=60, absent=60, seed=0)
    assert not reveals_individuals(alike)


def test_an_unknown_background_hides_single_ones_itself():
    generator = np.random.default_rng(0)
    for background, private in (("known", True), ("unknown", False)):
        scores = ag.CanaryScores.from_groups(
            present=generator.normal(size=5),
            absent=generator.normal(size=50),
            background=background,
        )
        assert reveals_individuals(scores) is private


def test_a_comparison_of_a_handful_stays_with_the_data():
    few, _, _ = recorded(rate=0.3, present=5, absent=5)
    table = ag.compare(few.transcript(), claim=CLAIM, auditors=["gaussian-shift"])
    assert table.private
    assert json.loads(table.to_json())["private"] is True
    for text in (str(table), table.to_markdown(), table.to_latex()):
        assert "Keep this result with the training data" in text
    many, _, _ = recorded(rate=0.3)
    table = ag.compare(many.transcript(), claim=CLAIM, auditors=["gaussian-shift"])
    assert not table.private
    assert "training data" not in str(table)


def test_the_command_line_keeps_what_is_of_a_handful(tmp_path):
    few, _, _ = recorded(rate=0.3, present=5, absent=5)
    few.transcript().save(tmp_path / "few.npz")
    runner = CliRunner()
    for command, *options in (("compare", "--epsilon", "8", "--delta", "1e-5"), ("diagnose",)):
        path = tmp_path / f"{command}.json"
        given = [command, str(tmp_path / "few.npz"), *options]
        shown = runner.invoke(app, [*given, "--json", str(path)])
        assert "with the training data" in shown.stdout
        assert path.stat().st_mode & 0o777 == 0o600
        refusal = runner.invoke(app, ["check-results", "--refuse-private", str(path)])
        assert refusal.exit_code == 2


class Kept:
    """A logger that keeps what it is given."""

    def __init__(self):
        self.given = []

    def numbers(self, values, *, step):
        self.given += [f"{name} {value}" for name, value in values.items()]

    def text(self, name, text, *, step):
        self.given.append(text)

    def document(self, path):
        self.given.append(path.read_text())


def test_loggers_get_no_number_of_a_handful(tmp_path):
    for present, private in ((5, True), (60, False)):
        recorder, _, _ = recorded(rate=0.3, present=present)
        result = ag.audit(recorder.transcript(), claim=CLAIM)
        result.to_json(tmp_path / "result.json")
        logger = Kept()
        log_result(result, [logger], documents=[tmp_path / "result.json"])
        given = "\n".join(logger.given)
        assert result.private is private
        assert result.verdict.value in given
        assert ("epsilon_lower" not in given) is private
        assert ("sum_of_squares" not in given) is private


def test_groups_do_not_name_coordinates():
    generator = np.random.default_rng(0)
    coordinate = np.repeat(generator.choice(10**6, 100, replace=False), 8)
    member = generator.random(800) < 0.5
    place = np.repeat(np.arange(100), 8)
    seen = (np.bincount(place, member) + generator.normal(size=100))[place]
    scores = ag.CanaryScores(score=seen, member=member, metadata=ScoreMetadata(fair_coins=True))
    ranks = np.unique(coordinate, return_inverse=True)[1]
    by_coordinate, by_rank = (
        ag.audit(scores, claim=CLAIM, auditor=AdaptiveOneRun(groups=labels))
        for labels in (coordinate, ranks)
    )
    assert by_coordinate.epsilon_lower == pytest.approx(by_rank.epsilon_lower)
    listed = json.loads(by_coordinate.to_json())["auditor"]["options"]["groups"]
    assert max(listed) < 100


# --- a run that is followed step by step -------------------------------------------------------


def followed(seed, *, rate=0.02, steps=200):
    """After every step what a logger is told, who was planted, and the noise at every canary."""
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=NOISE, sampling_rate=rate)
    monitor = ag.Monitor(claim=claim, on_alarm=lambda alarm: None)
    canaries = ag.DiracCanaries(present=60, absent=60, dimension=2000, seed=seed)
    recorder = ag.Recorder(canaries, sampling_rate=rate, clip_norm=1.0, monitor=monitor)
    generator = np.random.default_rng(seed)
    told, shown = [], []
    for _ in range(steps):
        values = generator.normal(0.0, NOISE, canaries.size)
        there = np.asarray(recorder.sample())
        shown.append(values[there])
        values[there] += 1.0
        recorder.observe(values, background=np.zeros(canaries.size), noise_multiplier=NOISE)
        told.append(monitor.feed())
    return told, shown, monitor


def likeness(series, shown):
    """Correlation of what a series moves by with the noise of lone plantings; 0 if it stays."""
    moved = np.diff(np.array(series), prepend=0.0)
    lone = np.array([step for step, values in enumerate(shown) if len(values) == 1])
    noise = np.array([shown[step][0] for step in lone])
    return np.corrcoef(moved[lone], noise)[0, 1] if np.ptp(moved[lone]) else 0.0


def test_evidence_that_is_followed_shows_no_lone_planting():
    told, shown, monitor = followed(3)
    assert np.count_nonzero([len(values) == 1 for values in shown]) > 50
    for part in ("contribution", "all"):
        series = [feed.evidence.get(part, 0.0) for feed in told]
        assert len(set(series)) > 3  # it is told, now and then
        assert abs(likeness(series, shown)) < 0.35
    course = told[-1].course
    plantings = np.cumsum([len(values) for values in shown])
    between = np.diff([0, *plantings[np.array(course.step) - 1]])
    assert between.min() >= 30
    # Whoever runs it sees all of it.
    assert monitor.evidence["contribution"] != told[-1].evidence["contribution"]


def test_bounds_of_a_handful_of_plantings_are_not_told():
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=NOISE, steps=65)
    monitor = ag.Monitor(claim=claim, on_alarm=lambda alarm: None)
    _, planted, _ = recorded(rate=0.05, steps=65, monitor=monitor)
    feed = monitor.feed("finished")
    assert monitor.projection() is not None
    assert feed.projection is not None
    assert feed.projection.step == 65  # of the last look all is told
    after = np.cumsum([len(there) for there in planted])
    told = {bound for bound in feed.course.bound if not np.isnan(bound)}
    assert 0 < len(told) <= np.count_nonzero([after[look - 1] >= 30 for look in (16, 32, 65)])


def test_an_alarm_is_told_at_once():
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5, noise_multiplier=NOISE, steps=65)
    monitor = ag.Monitor(claim=claim, on_alarm=lambda alarm: None)
    recorded(rate=0.02, steps=6, monitor=monitor, noise=[0.5 * NOISE] * 6)
    feed = monitor.feed()
    assert feed.alarm is not None
    assert feed.alarm.step in feed.course.step
    assert feed.evidence["noise"] >= 3.0


def test_a_feed_of_a_handful_is_its_owners(tmp_path):
    umask = os.umask(0o022)
    os.umask(umask)
    for present, mode in ((5, 0o600), (60, 0o666 & ~umask)):
        folder = tmp_path / str(present)
        monitor = ag.Monitor(folder=folder, on_alarm=lambda alarm: None)
        recorded(rate=0.9, steps=3, present=present, monitor=monitor)
        monitor.close()
        assert (folder / "watch.json").stat().st_mode & 0o777 == mode
        assert ("askgauss/noise" not in monitor.numbers()) is (present == 5)
