"""The experiments on small data: what they record is what they did, and goes on after a stop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import askgauss as ag
from askgauss.canaries import Stream
from askgauss.files.run_folder import RunFolder
from askgauss.mechanisms.plans import TreePlan
from paper import heads_plan, train_dpftrl, train_dpsgd
from paper.linear_heads import Heads, HeadsShape
from paper.scatter import ScatterFeatures

STEPS, RATE, SIGMA = 30, 0.2, 1.5


@pytest.fixture(scope="module")
def features():
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(3, 60))
    labels = generator.integers(0, 3, 500)
    rows = (centres[labels] + generator.normal(size=(500, 60))).astype(np.float16)
    return ScatterFeatures(
        name="blobs",
        train=rows[:400],
        train_labels=labels[:400],
        test=rows[400:],
        test_labels=labels[400:],
    )


def _plan(**more):
    heads = tuple(
        heads_plan.DpsgdHead(
            name=name,
            epsilon=8.0,
            noise_multiplier=SIGMA,
            sampling_rate=rate,
            canaries=canaries,
            learning_rate=0.5,
            label=label,
        )
        for name, rate, canaries, label in (
            ("sound", RATE, 80, 0),
            ("clean", RATE, 0, 0),
            ("published", 0.25, 60, 1),
        )
    )
    return heads_plan.DpsgdPlan(
        heads=heads, steps=STEPS, snapshots=(10,), clip_norm=0.7, seed=5, **more
    )


def test_dpsgd_is_the_loop_one_would_write(tmp_path, features):
    """One head, replayed step by step with nothing shared and nothing in closed form."""
    plan = _plan()
    with RunFolder(tmp_path / "run", {}) as folder:
        accuracy = train_dpsgd.train(features, plan, folder)
    head = plan.heads[2]
    shape = HeadsShape(heads=1, features=60, classes=3)
    canaries = ag.DiracCanaries(
        count=60, tensors=shape.tensors, seed=heads_plan.canary_seed(plan.seed, head.label)
    )
    recorder = ag.Recorder(canaries, sampling_rate=head.sampling_rate, clip_norm=0.7)
    weights, velocity = torch.zeros(shape.parameters), torch.zeros(shape.parameters)
    background = np.zeros(60)
    for step in range(STEPS):
        coins = heads_plan.generator(5, Stream.SAMPLER, step).random(400)
        total = torch.zeros(shape.parameters)
        for index in np.flatnonzero(coins < 0.25):
            own = weights.clone().requires_grad_()
            logits = (
                own[:180].view(3, 60) @ torch.from_numpy(features.train[index].astype(np.float32))
                + own[180:]
            )
            label = torch.tensor([features.train_labels[index]])
            torch.nn.functional.cross_entropy(logits[None], label).backward()
            total += own.grad * min(1.0, 0.7 / float(own.grad.norm()))
        clean = canaries.project(total.numpy()).copy()
        released = total.numpy().copy()
        canaries.plant(released, recorder.sample(), 0.7)
        noise = heads_plan.generator(5, Stream.NOISE, head.label, step)
        released += noise.standard_normal(shape.parameters, dtype=np.float32) * SIGMA * 0.7
        recorder.observe(canaries.project(released), background=clean)
        background += clean / 0.7
        velocity = 0.9 * velocity + torch.from_numpy(released).float() / (0.25 * 400 * 0.7)
        weights = weights - 0.5 * velocity
    snapshot = train_dpsgd.load_snapshot(tmp_path / "run", "published", STEPS)
    wanted = recorder.transcript()
    np.testing.assert_allclose(snapshot.transcript.canaries.total, wanted.canaries.total, atol=1e-3)
    np.testing.assert_array_equal(snapshot.transcript.canaries.planted, wanted.canaries.planted)
    np.testing.assert_allclose(snapshot.background, background, atol=1e-3)
    np.testing.assert_allclose(
        snapshot.unknown_background_scores().score,
        (wanted.canaries.total + background) / np.sqrt(STEPS),
        atol=1e-3,
    )
    stack = Heads(shape)
    stack.flat[0] = weights
    assert accuracy["published"][str(STEPS)] == pytest.approx(
        stack.accuracy(features.test, features.test_labels)[0]
    )


def test_an_interrupted_run_ends_like_one_that_was_not(tmp_path, features):
    plan = _plan(checkpoint_every=7)

    class Stop(Exception):
        pass

    def stop(done, of):
        if done == 18:
            raise Stop

    with RunFolder(tmp_path / "a", {}) as folder:
        whole = train_dpsgd.train(features, plan, folder)
        assert train_dpsgd.train(features, plan, folder) == whole  # nothing left to do
    with pytest.raises(Stop), RunFolder(tmp_path / "b", {}) as folder:
        train_dpsgd.train(features, plan, folder, progress=stop)
    seen = []
    with RunFolder(tmp_path / "b", {}) as folder:
        resumed = train_dpsgd.train(
            features, plan, folder, progress=lambda done, of: seen.append(done)
        )
    assert seen[0] == 15
    assert resumed == whole
    for step in (10, STEPS):
        first, second = (
            train_dpsgd.load_snapshot(tmp_path / name, "sound", step).transcript.arrays()
            for name in ("a", "b")
        )
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_heads_with_one_label_differ_in_the_canaries_alone(tmp_path, features):
    with RunFolder(tmp_path / "run", {}) as folder:
        train_dpsgd.train(features, _plan(), folder)
    transcript = train_dpsgd.load_snapshot(tmp_path / "run", "sound", STEPS).transcript
    assert transcript.facts.background == "known"
    # Noise of every step, from the absent canaries: 40 x 30 draws, so 5 deviations are 10 %.
    absent = ~transcript.member
    values = transcript.canaries.square[absent].sum() / (absent.sum() * STEPS)
    assert np.sqrt(values) == pytest.approx(SIGMA, rel=0.1)


def _tree_plan(published: bool, canaries: int = 600):
    noise = TreePlan(steps=16).noise_multiplier(epsilon=8.0, delta=1e-5)
    head = heads_plan.Head(
        name="head",
        epsilon=8.0,
        noise_multiplier=noise,
        canaries=canaries,
        learning_rate=0.1,
        published=published,
    )
    return heads_plan.TreeRunPlan(heads=(head,), steps=16, batch_size=20, clip_norm=0.5, seed=2)


@pytest.fixture(scope="module")
def wide(features):
    """The same rows with room for more canaries."""
    rows = np.tile(features.train, (1, 5))
    test = np.tile(features.test, (1, 5))
    return ScatterFeatures(
        name="wide",
        train=rows,
        train_labels=features.train_labels,
        test=test,
        test_labels=features.test_labels,
    )


def test_dpftrl_scores_have_their_law(tmp_path, wide):
    plan = _tree_plan(published=False)
    with RunFolder(tmp_path / "run", {}) as folder:
        accuracy = train_dpftrl.train(wide, plan, folder)
    assert accuracy["head"] > 0.6
    sigma = plan.heads[0].noise_multiplier
    nodes = train_dpftrl.load_transcript(tmp_path / "run", "head", "nodes")
    prefixes = train_dpftrl.load_transcript(tmp_path / "run", "head", "prefixes")
    np.testing.assert_array_equal(nodes.leaves, prefixes.leaves)
    # Released nodes: every canary has 5 of them, so N(sqrt(5) b, sigma^2) exactly.
    scores = nodes.scores()
    assert nodes.largest_information == pytest.approx(np.sqrt(5.0))
    for group, mean in ((scores.present, np.sqrt(5.0)), (scores.absent, 0.0)):
        error = sigma / np.sqrt(group.size)
        assert abs(group.mean() - mean) < 4.5 * error
        assert group.std() == pytest.approx(sigma, rel=4.5 / np.sqrt(2 * group.size))
    for transcript in (nodes, prefixes):
        measured, count = transcript.measured_noise()
        assert measured == pytest.approx(sigma, rel=4.5 / np.sqrt(2 * count))


def test_dpftrl_as_published_is_a_mixture(tmp_path, wide):
    """Score i is N(K b, K sigma^2) over sqrt(5), K the number of its ancestors with noise."""
    plan = _tree_plan(published=True, canaries=900)
    with RunFolder(tmp_path / "run", {}) as folder:
        train_dpftrl.train(wide, plan, folder)
    scores = train_dpftrl.load_published_scores(tmp_path / "run", "head")
    leaves = heads_plan.generator(2, Stream.PLANTING, 0).integers(16, size=900)
    used = sum((leaves >> level) % 2 == 0 for level in range(5))
    assert used.min() == 1
    assert used.max() == 5
    sigma = plan.heads[0].noise_multiplier
    standard = scores.score * np.sqrt(5.0) - used * scores.member
    standard /= np.sqrt(used) * sigma
    assert abs(standard.mean()) < 4.5 / np.sqrt(900)
    assert standard.std() == pytest.approx(1.0, rel=4.5 / np.sqrt(1800))


def test_dpftrl_needs_the_records(tmp_path, features):
    plan = heads_plan.TreeRunPlan(
        heads=_tree_plan(published=False, canaries=0).heads, steps=16, batch_size=100
    )
    with pytest.raises(ag_error(), match="1600"), RunFolder(tmp_path / "r", {}) as folder:
        train_dpftrl.train(features, plan, folder)


def ag_error():
    from askgauss.exceptions import InvalidArgumentError

    return InvalidArgumentError
