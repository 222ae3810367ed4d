"""The transcript of tree mechanisms, and the recorder that makes it."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import askgauss as ag
from askgauss.evidence.consistency import check_consistency
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    NotDefinedError,
    RecordingError,
    ScoresError,
    UnsupportedError,
)
from askgauss.files import archive
from askgauss.mechanisms import tree
from askgauss.mechanisms.decorrelate import NodeSums, drawn_nodes, released_nodes
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategies import BandedStrategy
from askgauss.mechanisms.strategy import numpy_draw
from askgauss.recording.linear_recorder import LinearRecorder
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.simulation import simulate_dpftrl

SIZE = 17
CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)


def small(**options):
    settings = {"steps": 12, "noise_multiplier": 2.0, "present": 30, "absent": 40, "seed": 3}
    return simulate_dpftrl(**{**settings, **options})


def canaries():
    return ag.DiracCanaries(present=8, absent=SIZE - 8, dimension=SIZE, seed=1)


def feed(recorder, steps, *, seed=0, background=True):
    """Releases that depend on the step alone, so that a resumed recorder can be fed the same."""
    for step in steps:
        generator = np.random.default_rng([seed, step])
        rows = len(released_nodes(recorder.plan, step))
        shape = (rows, SIZE) if recorder.plan.release == "nodes" else (SIZE,)
        recorder.sample()
        recorder.observe(
            generator.normal(size=shape),
            background=generator.normal(size=shape) if background else None,
            cosines=generator.uniform(-1, 1, (2, SIZE)),
        )


def recorder_of(plan, **options):
    return LinearRecorder(canaries(), plan, **options)


def same(one, other):
    mine, theirs = one.arrays(), other.arrays()
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert one.plan == other.plan
    assert one.facts == other.facts
    assert one.largest_information == other.largest_information


# --- nodes ---


@given(
    steps=st.integers(1, 40),
    period=st.none() | st.integers(1, 12),
    completion=st.booleans(),
    estimator=st.sampled_from(["plain", "honaker"]),
)
def test_drawn_nodes_are_those_tree_noise_draws(steps, period, completion, estimator):
    """Give every draw the number of its node: the prefixes must then hold the right ones."""
    plan = TreePlan(
        steps=steps,
        estimator=estimator,
        restart_every=period,
        completion=completion and period is not None,
    )
    nodes = list(drawn_nodes(plan))
    assert len(set(nodes)) == len(nodes)
    numbers = itertools.count()

    def draw(out):
        row = np.zeros(len(nodes)) if out is None else out
        row[:] = 0.0
        row[next(numbers)] = 1.0
        return row

    noise = tree.TreeNoise(
        draw, steps=steps, estimator=estimator, restart_every=period, completion=plan.completion
    )
    decoder = np.array([noise.next() for _ in range(steps)])
    assert next(numbers) == len(nodes)
    covered = np.zeros((len(nodes), steps))
    for row, (number, level, index) in enumerate(nodes):
        first = number * plan.period + (index << level)
        stop = min(first + (1 << level), (number + 1) * plan.period)
        covered[row, first:stop] = 1.0
    # Were a draw taken for another node, its prefix would not add up to the leaves before it.
    np.testing.assert_allclose(decoder @ covered, np.tri(steps), atol=1e-12)


@given(steps=st.integers(1, 40), period=st.none() | st.integers(1, 12), completion=st.booleans())
def test_node_sums_are_the_sums_of_their_leaves(steps, period, completion):
    plan = TreePlan(steps=steps, restart_every=period, completion=completion and period is not None)
    leaves = np.random.default_rng(steps).integers(0, 100, size=(steps, 3)).astype(float)
    sums = NodeSums(plan)
    for step in range(steps):
        nodes = released_nodes(plan, step)
        for (number, level, index), total in zip(nodes, sums.push(leaves[step]), strict=True):
            first = number * plan.period + (index << level)
            stop = min(first + (1 << level), (number + 1) * plan.period, steps)
            np.testing.assert_array_equal(total, leaves[first:stop].sum(axis=0))
        assert len(sums.open) <= tree.levels(plan.period)


def test_every_complete_node_is_released_once():
    plan = TreePlan(steps=11)
    found = [node for step in range(11) for node in released_nodes(plan, step)]
    assert len(set(found)) == len(found)
    expected = {(0, level, index) for level in range(4) for index in range(11 >> level)}
    assert set(found) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 4, "estimator": "best"}, "estimator to be one of plain, honaker, full"),
        ({"steps": 4, "release": "everything"}, "release to be one of nodes, prefixes"),
        ({"steps": 4, "restart_every": 0}, "restart_every"),
        ({"steps": 4, "completion": True}, "completion to come with restart_every"),
        (
            {"steps": 4, "restart_every": 3, "completion": True, "estimator": "full"},
            "completion to come with the plain",
        ),
        ({"steps": 4, "participations": 0}, "participations"),
        ({"steps": 4, "min_separation": 0}, "min_separation"),
    ],
)
def test_plans_out_of_range(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        TreePlan(**options)


# --- the recorder ---


def test_leaves_are_uniform():
    """Chi-square over 16 leaves and 20,000 canaries; fails for one seed in 10,000."""
    from scipy import stats

    leaves = small(steps=16, present=10_000, absent=10_000).leaves[:, 0]
    assert stats.chisquare(np.bincount(leaves, minlength=16)).pvalue > 1e-4


@pytest.mark.parametrize(("steps", "count", "gap"), [(12, 3, 4), (13, 3, 4), (10, 4, 1), (9, 9, 2)])
def test_canaries_participate_as_declared(steps, count, gap):
    transcript = small(steps=steps, participations=count, min_separation=gap, absent=300)
    for leaves in transcript.leaves:
        tree.check_participation(leaves, steps=steps, participations=count, min_separation=gap)
        assert leaves.size == min(count, -(-steps // gap))
    assert np.unique(transcript.leaves[:, 0]).size == 1 + steps - 1 - gap * (leaves.size - 1)


@pytest.mark.parametrize("seen", [{}, {"release": "prefixes", "estimator": "full"}], ids=str)
def test_several_participations_carry_the_accounted_information(seen):
    """Nodes, and least squares over them: the worst canary of many reaches the sensitivity."""
    options = {"participations": 3, "min_separation": 2, **seen}
    transcript = small(steps=12, present=500, absent=500, **options)
    sensitivity = tree.sensitivity(12, participations=3, min_separation=2)
    assert transcript.largest_information == sensitivity
    assert transcript.information.max() == pytest.approx(sensitivity)
    assert transcript.scores().relative_shift.max() == pytest.approx(1.0)


PLANS = [
    TreePlan(steps=9),
    TreePlan(steps=9, estimator="honaker", release="prefixes"),
    TreePlan(steps=9, estimator="full", release="prefixes"),
    TreePlan(steps=9, estimator="plain", release="prefixes", restart_every=3, completion=True),
    TreePlan(steps=9, estimator="honaker", restart_every=3, completion=True, participations=2),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_resumed_recorder_ends_the_same(plan):
    whole = recorder_of(plan, noise_multiplier=2.0)
    feed(whole, range(9))
    for cut in range(10):
        first = recorder_of(plan, noise_multiplier=2.0)
        feed(first, range(cut))
        second = recorder_of(plan, noise_multiplier=2.0)
        second.load_state_dict(first.state_dict())
        assert second.steps == cut
        feed(second, range(cut, 9))
        same(whole.transcript(), second.transcript())


def test_a_checkpoint_file(tmp_path):
    plan, file = PLANS[1], tmp_path / "audit.npz"
    whole, first, second = (recorder_of(plan) for _ in range(3))
    feed(whole, range(9))
    feed(first, range(5))
    first.save(file)
    second.load(file)
    feed(second, range(5, 9))
    same(whole.transcript(), second.transcript())
    with pytest.raises(RecordingError, match="plan"):
        recorder_of(PLANS[2]).load(file)
    whole.transcript().save(file)
    with pytest.raises(FileFormatError, match="askgauss-linear-recorder"):
        second.load(file)


def test_a_step_that_the_caller_counts_otherwise_is_refused():
    first, second = recorder_of(PLANS[0]), recorder_of(PLANS[0])
    first.sample(step=0)
    feed(first, range(3))
    second.load_state_dict(first.state_dict())
    for other in (2, 4):
        with pytest.raises(RecordingError, match=f"step=3.* got {other}"):
            second.sample(step=other)
    with pytest.raises(RecordingError, match="before sample"):
        second.observe(np.zeros((3, 17)), background=np.zeros((3, 17)))
    second.sample(step=3)
    with pytest.raises(RecordingError, match="step=3"):
        second.observe(np.zeros((3, 17)), background=np.zeros((3, 17)), step=2)


def test_checkpoints_of_two_steps_are_asked_about(tmp_path):
    """The model, its noise and the generator are saved one step after the audit."""
    plan, scale = TreePlan(steps=64, estimator="honaker", release="prefixes"), 5.0

    def made():
        canaries = ag.DiracCanaries(present=200, absent=200, dimension=400, seed=0)
        generator = np.random.default_rng(1)
        draw = numpy_draw(generator, 400, scale=scale)
        noise = tree.TreeNoise(draw, steps=64, estimator="honaker")
        recorder = ag.LinearRecorder(canaries, plan, noise_multiplier=scale)
        return canaries, recorder, generator, noise, np.zeros(400)

    def advance(step, run):
        canaries, recorder, _, noise, clean = run
        canaries.plant(clean, recorder.sample(), clip_norm=1.0)
        released = canaries.project(clean + noise.next(step))
        recorder.observe(released, background=np.zeros(canaries.size))

    for late in (0, 1):
        run, again = made(), made()
        for step in range(50):
            advance(step, run)
        run[1].save(tmp_path / "audit.npz")
        for step in range(50, 50 + late):
            advance(step, run)
        again[1].load(tmp_path / "audit.npz")
        again[2].bit_generator.state = run[2].bit_generator.state
        again[3].load_state_dict(run[3].state_dict())
        again[4][:] = run[4]
        for step in range(50 + late, 64):
            advance(step, again)
        transcript = again[1].transcript()
        transcript.save(tmp_path / "run.npz")
        transcript = LinearTranscript.load(tmp_path / "run.npz")
        assert transcript.facts.resumed == (50,)
        question = "The run was resumed after step 50: were model and audit checkpoints"
        result = ag.audit(transcript, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
        asked = {item.check for item in result.findings if question in item.remedy}
        assert asked >= ({"repeated noise", "step count"} if late else set())
        assert bool(asked) == bool(late)
        assert any(question in note for note in result.notes)


def test_a_checkpoint_between_sample_and_observe():
    first = recorder_of(PLANS[0])
    feed(first, range(3))
    first.sample()
    second = recorder_of(PLANS[0])
    second.load_state_dict(first.state_dict())
    second.observe(np.zeros((3, 17)), background=np.zeros((3, 17)), cosines=np.zeros((2, 17)))
    assert second.steps == 4


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda s: s.pop("state"), FileFormatError, "state"),
        (lambda s: s["state"]["settings"].update(fingerprint="x"), RecordingError, "fingerprint"),
        (lambda s: s["state"]["settings"]["plan"].update(steps=10), RecordingError, "plan"),
        (lambda s: s["state"]["settings"].update(clip_norm=3.0), RecordingError, "clip_norm"),
        (lambda s: s["state"].update(step=99), FileFormatError, "step up to 9"),
        (lambda s: s.pop("sums.score"), FileFormatError, "sums.score"),
        (lambda s: s.update(pieces=np.zeros((2, 4))), FileFormatError, "pieces"),
        (lambda s: s.update(cosines=np.zeros(3)), FileFormatError, "cosines"),
        (lambda s: s.pop("open.1"), FileFormatError, "open.1"),
        (lambda s: s["state"].update(background=None), FileFormatError, "background was known"),
        (lambda s: s["sums.gain"].fill(-1.0), FileFormatError, "sums.gain in"),
        (lambda s: s["sums.leaf_gain"].fill(np.nan), FileFormatError, "sums.leaf_gain"),
        (lambda s: s["sums.square"].fill(-1.0), FileFormatError, "noise_square in"),
        (lambda s: s["pieces"][:, 1].fill(-1.0), FileFormatError, "pieces.square in"),
        (lambda s: s["places"][:, 1].fill(99), FileFormatError, "pieces.level in"),
        (lambda s: s["places"][:, 3].fill(99), FileFormatError, "places in"),
    ],
)
def test_foreign_checkpoints(edit, error, message):
    first = recorder_of(PLANS[1])
    feed(first, range(4))
    state = first.state_dict()
    edit(state)
    second = recorder_of(PLANS[1])
    with pytest.raises(error, match=message):
        second.load_state_dict(state)
    feed(second, range(9))
    whole = recorder_of(PLANS[1])
    feed(whole, range(9))
    same(whole.transcript(), second.transcript())


class TestMisuse:
    def test_observe_before_sample(self):
        with pytest.raises(RecordingError, match="before sample"):
            recorder_of(PLANS[0]).observe(np.zeros((1, 17)))

    def test_more_steps_than_planned(self):
        recorder = recorder_of(PLANS[0])
        feed(recorder, range(9))
        with pytest.raises(RecordingError, match="accounted for 9 steps"):
            recorder.sample()

    @pytest.mark.parametrize(
        ("released", "options", "message"),
        [
            (np.zeros(17), {}, r"released to be numbers of shape \(1, 17\)"),
            (np.zeros((2, 17)), {}, "released"),
            (np.zeros((1, 17), dtype=complex), {}, "released"),
            (np.zeros((1, 17)), {"background": np.zeros(17)}, "background"),
            (np.zeros((1, 17)), {"cosines": np.zeros(17)}, "cosines"),
        ],
    )
    def test_shapes(self, released, options, message):
        recorder = recorder_of(PLANS[0])
        recorder.sample()
        with pytest.raises(InvalidArgumentError, match=message):
            recorder.observe(released, **options)
        recorder.observe(np.zeros((1, 17)))
        assert recorder.steps == 1

    def test_background_or_cosines_now_and_then(self):
        recorder = recorder_of(PLANS[1])
        feed(recorder, range(1))
        recorder.sample()
        with pytest.raises(RecordingError, match="background"):
            recorder.observe(np.zeros(17), cosines=np.zeros((2, 17)))
        with pytest.raises(RecordingError, match="cosines"):
            recorder.observe(np.zeros(17), background=np.zeros(17))

    def test_nothing_observed(self):
        with pytest.raises(RecordingError, match="got none"):
            recorder_of(PLANS[0]).transcript()

    def test_least_squares_needs_every_prefix(self):
        recorder = recorder_of(PLANS[2])
        feed(recorder, range(8))
        with pytest.raises(RecordingError, match="9 steps, got 8"):
            recorder.transcript()

    def test_completed_prefixes_have_a_limit(self):
        plan = replace(PLANS[3], steps=5000)
        with pytest.raises(UnsupportedError, match="Release nodes"):
            LinearRecorder(canaries(), plan)

    def test_an_interrupted_step(self, monkeypatch):
        recorder = recorder_of(PLANS[0])
        monkeypatch.setattr(recorder, "_add", lambda piece: 1 / 0)
        recorder.sample()
        with pytest.raises(ZeroDivisionError):
            recorder.observe(np.zeros((1, 17)))
        for call in (recorder.sample, recorder.transcript, recorder.state_dict):
            with pytest.raises(RecordingError, match="was interrupted"):
                call()

    def test_arguments(self):
        with pytest.raises(InvalidArgumentError, match="canaries"):
            LinearRecorder([1, 2], PLANS[0])
        with pytest.raises(InvalidArgumentError, match="TreePlan"):
            LinearRecorder(canaries(), {"steps": 9})
        with pytest.raises(InvalidArgumentError, match="clip_norm"):
            LinearRecorder(canaries(), PLANS[0], clip_norm=0.0)
        with pytest.raises(InvalidArgumentError, match="noise_multiplier"):
            LinearRecorder(canaries(), PLANS[0], noise_multiplier=-1.0)


def test_values_are_in_clip_norms():
    one, five = recorder_of(PLANS[1]), recorder_of(PLANS[1], clip_norm=5.0)
    feed(one, range(9))
    feed(five, range(9))
    np.testing.assert_allclose(five.transcript().score, one.transcript().score / 5.0)


def test_a_run_that_stops_early_is_the_tree_so_far():
    """The first 7 of 12 planned steps give the very transcript of a run of 7 for its canaries."""
    for options in (
        {},
        {"release": "prefixes", "estimator": "honaker"},
        {"release": "prefixes", "restart_every": 3},
        {"restart_every": 5, "completion": True},
    ):
        plan = TreePlan(steps=12, **options)
        stopped = recorder_of(plan)
        feed(stopped, range(7))
        transcript = stopped.transcript()
        entered = transcript.leaves[:, 0] < 7
        assert 0 < entered.sum() < 17
        np.testing.assert_array_equal(transcript.information > 0, entered)
        scores = transcript.scores()
        np.testing.assert_array_equal(scores.ids, np.flatnonzero(entered))
        short = recorder_of(replace(plan, steps=7))
        feed(short, range(7))
        assert transcript.largest_information == short.transcript().largest_information
        assert transcript.number_of_steps == scores.metadata.steps == 7
        assert len(transcript.cosines()) == entered.sum()


def test_of_several_participations_only_those_before_the_stop_count():
    """Information is that of the leaves that came, against the sensitivity of the tree so far."""
    plan = TreePlan(steps=12, participations=3, min_separation=2)
    stopped = recorder_of(plan)
    feed(stopped, range(7))
    transcript = stopped.transcript()
    nodes = np.concatenate(tree.node_sums(np.eye(7)))
    for leaves, information in zip(transcript.leaves, transcript.information, strict=True):
        came = leaves[leaves < 7]
        assert information == pytest.approx(np.linalg.norm(nodes[:, came].sum(axis=1)))
    sensitivity = tree.sensitivity(7, participations=3, min_separation=2)
    assert transcript.largest_information == sensitivity


# --- the transcript ---


def test_scores_say_what_the_auditor_needs():
    transcript = small(release="prefixes", estimator="honaker")
    scores = transcript.scores()
    assert scores.metadata.sampling_rate == 1.0
    assert scores.metadata.steps == 12
    assert scores.metadata.noise_multiplier == 2.0
    assert scores.metadata.clip_norm == 1.0
    assert scores.metadata.background == "known"
    assert scores.metadata.fair_coins is False
    expected = transcript.information / transcript.largest_information
    np.testing.assert_allclose(scores.relative_shift, expected)
    assert small(steps=8).scores().relative_shift is None
    assert small(steps=12).scores().relative_shift is not None


@pytest.mark.parametrize("options", [{}, {"release": "prefixes"}])
def test_audit_takes_the_transcript(options):
    transcript = small(**options)
    result = ag.audit(transcript, claim=CLAIM)
    assert result.auditor == ag.GaussianShift()
    by_scores = ag.audit(transcript.scores(), claim=CLAIM)
    assert result.epsilon_lower == by_scores.epsilon_lower
    assert ag.AuditResult.from_json(result.to_json()) == result
    with pytest.raises(UnsupportedError, match="GaussianShift"):
        ag.audit(transcript, claim=CLAIM, auditor=ag.SubsampledGaussian())


@pytest.mark.parametrize(
    "options",
    [{}, {"release": "prefixes", "estimator": "honaker"}, {"participations": 2}],
)
def test_files_come_back_as_written(tmp_path, options):
    transcript = small(**options)
    path = tmp_path / "run.npz"
    transcript.save(path)
    same(LinearTranscript.load(path), transcript)
    buffer = io.BytesIO()
    transcript.save(buffer)
    same(LinearTranscript.load(io.BytesIO(buffer.getvalue())), transcript)


def test_without_cosines(tmp_path):
    transcript = replace(small(), cosine=None, round_cosine=None)
    transcript.save(tmp_path / "run.npz")
    again = LinearTranscript.load(tmp_path / "run.npz")
    assert again.cosine is None
    with pytest.raises(NotDefinedError, match="no cosines"):
        again.cosines()
    with pytest.raises(InvalidArgumentError, match="kind"):
        small().cosines("best")


def test_neither_kind_of_transcript_passes_for_the_other(tmp_path):
    other = ag.simulate_dpsgd(
        steps=3, sampling_rate=0.5, noise_multiplier=1.0, present=5, absent=5, seed=0
    )
    other.save(tmp_path / "dpsgd.npz")
    small().save(tmp_path / "dpftrl.npz")
    with pytest.raises(FileFormatError, match="got 'askgauss-linear-transcript'"):
        Transcript.load(tmp_path / "dpftrl.npz")
    with pytest.raises(FileFormatError, match="got 'askgauss-transcript'"):
        LinearTranscript.load(tmp_path / "dpsgd.npz")


def rewrite(source, target, *, arrays=None, header=None):
    """A file like another with some of it changed, and with checks that fit."""
    everything, text = archive.read_arrays(source, "askgauss-linear-transcript", 3)
    if header is not None:
        header(text)
    for name, array in (arrays or {}).items():
        if array is None:
            everything.pop(name)
        else:
            everything[name] = array
    archive.write_arrays(target, text.pop("kind"), text.pop("schema"), everything, text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"header": lambda t: t.update(schema=4)}, "newer askgauss"),
        ({"header": lambda t: t.update(kind="other")}, "kind"),
        ({"header": lambda t: t.pop("plan")}, "plan"),
        ({"header": lambda t: t["plan"].update(steps=-1)}, "plan"),
        ({"header": lambda t: t["plan"].update(steps=3)}, "number_of_steps up to 3"),
        ({"arrays": {"leaves": np.full((70, 1), 12)}}, r"leaves in \[0, 12\)"),
        ({"header": lambda t: t.pop("facts")}, "facts"),
        ({"header": lambda t: t.update(largest_information="nan")}, "information"),
        ({"arrays": {"score": None}}, "arrays score, which are missing"),
        ({"arrays": {"pieces.total": None}}, "arrays pieces.total, which are missing"),
        ({"arrays": {"novel": np.ones(2)}}, "'novel'.*newer askgauss"),
        ({"arrays": {"score": np.zeros(3)}}, "score to have shape"),
        ({"arrays": {"member": np.zeros(70)}}, "member"),
        ({"arrays": {"kept": np.arange(40) + 60}}, r"kept in \[0, 70\)"),
        ({"arrays": {"information": np.zeros(70)}}, "whole transcript"),
        ({"arrays": {"information": -np.ones(70)}}, "information"),
        ({"header": lambda t: t.update(clip_norm=5e-324)}, r"clip_norm in \[1e-140"),
        ({"header": lambda t: t["facts"].update(noise_multiplier=1e160)}, "noise_multiplier 0 or"),
        ({"header": lambda t: t.update(carried_shift=5e-324)}, "carried_shift in"),
        ({"header": lambda t: t.update(largest_information=1e160)}, "largest_information in"),
    ],
)
def test_broken_files(tmp_path, change, message):
    small().save(tmp_path / "good.npz")
    rewrite(tmp_path / "good.npz", tmp_path / "bad.npz", **change)
    with pytest.raises(FileFormatError, match=message):
        LinearTranscript.load(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("pieces.square", lambda a: a.__setitem__(0, 5e-324), r"pieces.square "),
        ("pieces.square", lambda a: a.__imul__(2.0), "squares of absent canaries"),
        ("pieces.total", lambda a: a.__setitem__(0, 1e9), r"pieces.square "),
        ("pieces.signal", lambda a: a.__setitem__(0, 1e160), "pieces.signal in"),
        ("pieces.signal", lambda a: a.__setitem__(0, 1e9), "pieces.signal to be no more"),
        ("pieces.gain", lambda a: a.fill(1e-310), "pieces.signal to be no more"),
        ("pieces.planted", lambda a: a.__setitem__(0, 31), r"pieces.planted in \[0, 30\]"),
        ("pieces.planted", lambda a: a.fill(0), "pieces.planted_square to be no more"),
        ("pieces.planted_square", lambda a: a.__imul__(9.0), "planted_square to be no more"),
        ("noise_square", lambda a: a.__setitem__(-1, 1e160), "squares of absent canaries"),
        ("noise_square", lambda a: a.fill(5e-324), "noise_square allows"),
        ("kept_values", lambda a: a.__setitem__((0, 0), 1e9), "kept_values to be no more"),
        ("score", lambda a: a.__setitem__(0, 1e9), "score to be no more than noise_square"),
        ("information", lambda a: a.__imul__(1e-160), "whole transcript"),
    ],
)
def test_sums_that_no_run_has_are_not_verified(name, change, message, tmp_path):
    small().save(tmp_path / "good.npz")
    everything, _ = archive.read_arrays(tmp_path / "good.npz", "askgauss-linear-transcript", 3)
    array = everything[name].copy()
    change(array)
    rewrite(tmp_path / "good.npz", tmp_path / "bad.npz", arrays={name: array})
    # Ranges are refused as soon as they are read.
    with pytest.raises(FileFormatError, match=message):
        check_consistency(LinearTranscript.load(tmp_path / "bad.npz"))


def test_no_canary_shows_more_than_the_record_protected_least():
    check_consistency(small())
    with pytest.raises(FileFormatError, match=r"information in \[0, 0.5\]"):
        check_consistency(replace(small(), largest_information=0.5))


@pytest.mark.parametrize("noise", [1e-170, 1e-155, 1e-15, 1e60])
@pytest.mark.parametrize("plan", [TreePlan(steps=8), BandedStrategy.toeplitz([1.0, 0.5], 8)])
def test_noise_of_any_size_ends_in_a_verdict(noise, plan, tmp_path):
    """Squares that are no numbers any more brought the audit down, or kept it busy for ever."""
    canaries = ag.DiracCanaries(present=12, absent=40, dimension=52, seed=3)
    recorder, generator = LinearRecorder(canaries, plan), np.random.default_rng(1)
    for step in range(8):
        nodes = len(released_nodes(plan, step)) if isinstance(plan, TreePlan) else None
        shape = (52,) if nodes is None else (nodes, 52)
        released = generator.normal(0.0, noise, shape)
        released[..., recorder.sample()] += 1.0
        recorder.observe(released, background=np.zeros(shape))
    transcript = recorder.transcript()
    transcript.save(tmp_path / "run.npz")
    recorder.save(tmp_path / "recorder.npz")
    again = LinearRecorder(canaries, plan)
    again.load(tmp_path / "recorder.npz", hold=False)
    claim = ag.PrivacyClaim(epsilon=1.0, delta=1e-5, noise_multiplier=1.0)
    for found in (transcript, LinearTranscript.load(tmp_path / "run.npz"), again.transcript()):
        verdict = ag.audit(found, claim=claim).verdict
        assert verdict is not ag.Verdict.CONSISTENT
        assert noise > 1.0 or verdict is ag.Verdict.VIOLATION


def test_what_only_one_present_canary_saw_is_no_finite_run():
    """A number that entered no score made a sum of squares infinite, and the run went on."""
    canaries = ag.DiracCanaries(present=12, absent=40, dimension=52, seed=3)
    recorder = LinearRecorder(canaries, BandedStrategy.toeplitz([1.0], 8))
    for step in range(8):
        released = np.random.default_rng(step).normal(size=52)
        entering = recorder.sample()
        outside = np.setdiff1d(np.flatnonzero(canaries.member), entering)
        released[outside[:1]] = 1e200 if step == 2 else 0.0
        recorder.observe(released, background=np.zeros(52))
    transcript = recorder.transcript()
    assert np.abs(transcript.score).max() < 1e100
    assert not transcript.finite


def test_a_later_version_may_add_fields(tmp_path):
    small().save(tmp_path / "good.npz")
    rewrite(
        tmp_path / "good.npz",
        tmp_path / "more.npz",
        header=lambda text: text["facts"].update(novel=1),
    )
    same(LinearTranscript.load(tmp_path / "more.npz"), small())


def test_arrays_are_read_only():
    transcript = small()
    with pytest.raises(ValueError, match="read-only"):
        transcript.score[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        transcript.pieces.total[0] = 1.0


def test_nan_is_refused_not_averaged():
    recorder = recorder_of(PLANS[1])
    feed(recorder, range(8))
    recorder.sample()
    released = np.zeros(17)
    released[3] = np.nan
    recorder.observe(released, background=np.zeros(17), cosines=np.zeros((2, 17)))
    transcript = recorder.transcript()
    assert not transcript.finite
    with pytest.raises(ScoresError, match="nan"):
        ag.audit(transcript, claim=CLAIM)


def test_what_it_says_of_itself():
    transcript = small()
    assert repr(transcript) == (
        "LinearTranscript(steps=12, release='nodes', present=30, absent=40, background='known')"
    )
    assert transcript.finite
    assert transcript.auditable
    assert not small(present=1).auditable
    noted = transcript.with_facts(replace(transcript.facts, notes=("a note",)))
    assert noted.facts.notes == ("a note",)


def test_measured_noise_counts_absent_canaries():
    transcript = small(steps=8, absent=50)
    whole, count = transcript.measured_noise()
    assert count == 15 * 50
    assert count * whole**2 == pytest.approx(transcript.pieces.square.sum())
    with pytest.raises(NotDefinedError, match="single tree"):
        transcript.restart_correlation()


def test_scores_say_how_much_of_the_tree_they_carry():
    """A record moves the nodes of 16 leaves by sqrt(5); prefixes show less, with less power."""
    claim = ag.PrivacyClaim(epsilon=4.0, delta=1e-5)
    noise = TreePlan(steps=16).noise_multiplier(epsilon=4.0, delta=1e-5)
    found = {}
    for release in ("nodes", "prefixes"):
        run = ag.simulate_dpftrl(
            steps=16,
            noise_multiplier=noise,
            present=300,
            absent=300,
            release=release,
            estimator="honaker",
            seed=1,
        )
        carried = run.scores().metadata.carried_shift
        assert carried == pytest.approx(run.largest_information / 5.0**0.5)
        found[release] = (carried, ag.audit(run, claim=claim).power)
    assert found["nodes"][0] == pytest.approx(1.0)
    assert found["prefixes"][0] < 0.99
    assert found["prefixes"][1] < found["nodes"][1]
