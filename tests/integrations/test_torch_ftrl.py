"""DP-FTRL in torch: against a slow training loop, resumed, misused, and audited on real data."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from scipy import stats
from sklearn.datasets import load_digits
from torch import nn

import askgauss as ag
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.integrations.torch_ftrl import DPFTRL
from askgauss.mechanisms import tree
from askgauss.mechanisms.plans import TreePlan

# torch says so of every model whose inputs need no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

FEATURES, CLASSES, BATCH = 6, 3, 5
SIZES = (FEATURES * 4, 4, 4 * CLASSES, CLASSES)
PARAMETERS = sum(SIZES)


def make_model(dtype=torch.float64):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    return GradSampleModule(layers.to(dtype))


def batch(step, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1000 + step)
    features = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
    return (3.0 * features).to(dtype), torch.arange(BATCH) % CLASSES


def train(model, optimizer, steps, **options):
    dtype = next(model.parameters()).dtype
    for step in steps:
        features, target = batch(step, dtype)
        nn.functional.cross_entropy(model(features), target).backward()
        optimizer.step(**options)


def make(model=None, **options):
    settings = {
        "learning_rate": 0.3,
        "clip_norm": 0.8,
        "noise_multiplier": 0.5,
        "steps": 8,
        "seed": 5,
    }
    model = make_model() if model is None else model
    return model, DPFTRL(model, **{**settings, **options})


def weights(model):
    return torch.cat([item.detach().reshape(-1) for item in model.parameters()])


def canaries(present=10, absent=15, seed=3):
    return ag.DiracCanaries(present=present, absent=absent, tensors=SIZES, seed=seed)


# --- the mechanism ---


def slow_training(steps, noise, *, momentum=0.0, batch_size=1.0):
    """One example at a time; the noise of every prefix is handed in, one row a step."""
    model = make_model()._module
    first = weights(model)
    total, velocity = torch.zeros_like(first), torch.zeros_like(first)
    for step in range(steps):
        features, target = batch(step)
        for feature, label in zip(features, target, strict=True):
            loss = nn.functional.cross_entropy(model(feature[None]), label[None])
            gradient = torch.cat(
                [item.reshape(-1) for item in torch.autograd.grad(loss, list(model.parameters()))]
            )
            total += gradient * min(1.0, 0.8 / float(gradient.norm()))
        velocity = momentum * velocity + total + noise[step]
        nn.utils.vector_to_parameters(first - 0.3 / batch_size * velocity, model.parameters())
    return weights(model)


def drawn_noise(steps, estimator, seed=5):
    """The draws in the order the trainer makes them, put together by the offline estimator."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, FEATURES), (4,), (CLASSES, 4), (CLASSES,)]
    nodes = [
        [np.zeros((steps >> level, *shape)) for level in range(tree.levels(steps))]
        for shape in shapes
    ]
    for step in range(steps):
        for tensor, shape in zip(nodes, shapes, strict=True):
            complete = tree.completed_nodes(step)
            for level, index in complete if estimator == "honaker" else complete[-1:]:
                draw = torch.empty(shape, dtype=torch.float64)
                tensor[level][index] = draw.normal_(0.0, 0.5 * 0.8, generator=generator).numpy()
    rows = [tree.prefixes(tensor, estimator).reshape(steps, -1) for tensor in nodes]
    return torch.from_numpy(np.concatenate(rows, axis=1))


@pytest.mark.parametrize("estimator", ["plain", "honaker"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_are_those_of_a_slow_loop(estimator, momentum):
    model, optimizer = make(
        steps=7, estimator=estimator, momentum=momentum, expected_batch_size=5.0
    )
    train(model, optimizer, range(7))
    expected = slow_training(7, drawn_noise(7, estimator), momentum=momentum, batch_size=5.0)
    torch.testing.assert_close(weights(model), expected, rtol=1e-9, atol=1e-9)


def test_the_plan_gives_the_claim():
    sigma = TreePlan(
        steps=12, participations=3, min_separation=4, restart_every=4
    ).noise_multiplier(epsilon=3.0, delta=1e-5)
    _, optimizer = make(
        steps=12, noise_multiplier=sigma, participations=3, min_separation=4, restart_every=4
    )
    assert optimizer.epsilon(delta=1e-5) == pytest.approx(3.0)


def test_gradients_added_up_over_several_passes_are_one_batch():
    one, first = make()
    two, second = make()
    features, target = batch(0)
    nn.functional.cross_entropy(one(features), target, reduction="mean").backward()
    first.step()
    for part in (slice(0, 2), slice(2, 5)):
        nn.functional.cross_entropy(two(features[part]), target[part]).backward()
    second.step()
    torch.testing.assert_close(weights(one), weights(two), rtol=1e-12, atol=1e-12)


def test_gradients_are_used_once():
    model, optimizer = make()
    train(model, optimizer, range(1))
    assert all(item.grad is None for item in model.parameters())
    assert all(item.grad_sample is None for item in model.parameters())
    with pytest.raises(RecordingError, match=r"backward\(\)"):
        optimizer.step()


def test_no_gradient_counts_more_than_the_clip_norm():
    """Gradients a million times the clip norm, noise a millionth of it."""
    model, optimizer = make(clip_norm=1e-3, noise_multiplier=1e-6, learning_rate=1.0)
    before = weights(model)
    features, target = batch(0)
    (1e3 * nn.functional.cross_entropy(model(features), target)).backward()
    optimizer.step()
    moved = float((weights(model) - before).norm())
    assert 1e-4 < moved <= BATCH * 1e-3 * (1 + 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_and_noise_are_never_in_half_precision(dtype):
    model, optimizer = make(make_model(dtype), canaries=canaries())
    train(model, optimizer, range(8))
    state = optimizer.state_dict()
    assert {item.dtype for item in (*state["sums"], *state["first"])} == {torch.float32}
    assert {item.dtype for item in model.parameters()} == {dtype}
    assert optimizer.transcript().facts.precision == (str(dtype).removeprefix("torch."),)


# --- the audit ---


@pytest.mark.parametrize("release", ["prefixes", "nodes"])
def test_canaries_that_are_all_absent_change_nothing(release):
    plain, optimizer = make()
    train(plain, optimizer, range(8))
    audited, watched = make(canaries=canaries(present=0), release=release)
    train(audited, watched, range(8))
    torch.testing.assert_close(weights(audited), weights(plain), rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"release": "prefixes", "estimator": "plain"},
        {"release": "prefixes", "estimator": "honaker"},
        {"release": "nodes", "estimator": "honaker"},
        {"release": "nodes", "estimator": "honaker", "restart_every": 3, "completion": True},
        {"release": "prefixes", "estimator": "plain", "restart_every": 3, "completion": True},
        {"release": "nodes", "estimator": "honaker", "participations": 3, "min_separation": 2},
    ],
    ids=str,
)
def test_scores_are_canaries_and_noise_alone(options):
    """Without noise to speak of, a known background leaves exactly the canary's information."""
    model, optimizer = make(noise_multiplier=1e-7, canaries=canaries(), **options)
    train(model, optimizer, range(8))
    transcript = optimizer.transcript()
    expected = transcript.information * transcript.member
    np.testing.assert_allclose(transcript.score, expected, atol=1e-5)
    assert transcript.facts.background == "known"
    assert transcript.clip_norm == 0.8
    assert transcript.facts.tensors == ("0.weight", "0.bias", "2.weight", "2.bias")


def test_unknown_background_stays_in():
    model, optimizer = make(noise_multiplier=1e-7, canaries=canaries(), background="unknown")
    train(model, optimizer, range(8))
    transcript = optimizer.transcript()
    assert transcript.facts.background == "unknown"
    assert np.abs(transcript.score - transcript.information * transcript.member).max() > 0.1


def wide(seed, **options):
    """A model of many parameters, so that the noise can be measured."""
    torch.manual_seed(0)
    model = GradSampleModule(nn.Linear(500, 10))
    optimizer = DPFTRL(
        model,
        learning_rate=0.01,
        clip_norm=2.0,
        noise_multiplier=1.5,
        steps=12,
        seed=seed,
        canaries=ag.DiracCanaries(present=1000, absent=4000, dimension=5010, seed=seed),
        **options,
    )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(12):
        features = torch.randn(4, 500, generator=generator)
        nn.functional.cross_entropy(model(features), torch.arange(4)).backward()
        optimizer.step()
    return optimizer.transcript()


@pytest.mark.parametrize("release", ["prefixes", "nodes"])
def test_noise_and_scores_have_their_law(release):
    """Chi-square of all pieces and KS of all scores; fails for one seed in 2,500."""
    transcript = wide(4, release=release)
    measured, count = transcript.measured_noise()
    assert 1e-4 < stats.chi2.cdf(count * (measured / 1.5) ** 2, count) < 1 - 1e-4
    standard = (transcript.score - transcript.information * transcript.member) / 1.5
    assert stats.kstest(standard, "norm").pvalue > 1e-4


def test_restarted_trees_draw_new_noise():
    correlation, pairs = wide(4, release="nodes", restart_every=4).restart_correlation()
    assert abs(correlation) < 4.5 / math.sqrt(pairs)


def test_cosines_are_with_the_whole_vector():
    model, optimizer = make(canaries=canaries(), learning_rate=1.0)
    first, chosen = weights(model), optimizer.canaries.coordinates
    largest = np.full((2, 25), -1.0)
    before = torch.zeros_like(first)
    for step in range(8):
        train(model, optimizer, [step])
        prefix = first - weights(model)
        for row, vector in zip(largest, (prefix, prefix - before), strict=True):
            np.maximum(row, (vector / vector.norm()).numpy()[chosen], out=row)
        before = prefix
    transcript = optimizer.transcript()
    np.testing.assert_allclose(transcript.cosine, largest[0], atol=1e-9)
    np.testing.assert_allclose(transcript.round_cosine, largest[1], atol=1e-9)


def test_a_number_of_canaries():
    model, optimizer = make(canaries=30)
    assert optimizer.canaries.fair_coins
    assert optimizer.canaries.size == 30
    train(model, optimizer, range(8))
    assert optimizer.transcript().scores().metadata.fair_coins
    assert "30 canaries" in repr(optimizer)
    assert "no audit" in repr(make()[1])


def test_digits():
    """A real run: one pass in 64 steps at epsilon 8; at least 85 % of the claim is found."""
    features, target = load_digits(return_X_y=True)
    features = torch.tensor(features / 16.0, dtype=torch.float32)
    target = torch.tensor(target)
    torch.manual_seed(0)
    model = GradSampleModule(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)))
    order = torch.randperm(len(features)).numpy()
    training, held_out = order[:1437], order[1437:]
    sigma = TreePlan(steps=64).noise_multiplier(epsilon=8.0, delta=1e-5)
    optimizer = DPFTRL(
        model,
        learning_rate=0.2,
        momentum=0.9,
        clip_norm=1.0,
        noise_multiplier=sigma,
        steps=64,
        expected_batch_size=1437 / 64,
        seed=0,
        canaries=ag.DiracCanaries(present=1000, absent=3000, dimension=4810, seed=1),
        release="nodes",
    )
    for records in np.array_split(training, 64):
        loss = nn.functional.cross_entropy(model(features[records]), target[records])
        loss.backward()
        optimizer.step(records=records)
    accuracy = (model(features[held_out]).argmax(dim=1) == target[held_out]).double().mean()
    assert accuracy > 0.8
    result = optimizer.result(claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    assert result.verdict is ag.Verdict.CONSISTENT
    assert result.epsilon_lower > 0.85 * 8.0


# --- checkpoints ---

RUNS = [
    {"canaries": True, "release": "prefixes", "estimator": "plain", "momentum": 0.9},
    {"canaries": True, "release": "nodes", "restart_every": 3, "completion": True},
    {"canaries": True, "release": "prefixes", "participations": 2, "min_separation": 3},
    {},
]


def make_run(options):
    options = dict(options)
    if options.pop("canaries", False):
        options["canaries"] = canaries()
    return make(**options)


def through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("options", RUNS, ids=str)
def test_a_resumed_run_ends_in_the_same_bits(options):
    whole, optimizer = make_run(options)
    train(whole, optimizer, range(8))
    for cut in range(9):
        begun, early = make_run(options)
        train(begun, early, range(cut))
        state = through_a_file(early.state_dict())
        resumed, late = make_run({**options, "seed": 77})
        late.load_state_dict(state)
        assert late.steps_taken == cut
        assert torch.equal(weights(resumed), weights(begun))
        train(resumed, late, range(cut, 8))
        assert torch.equal(weights(resumed), weights(whole))
        if "canaries" in options:
            one, other = optimizer.transcript().arrays(), late.transcript().arrays()
            assert one.keys() == other.keys()
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 16}, RecordingError, "plan"),
        ({"noise_multiplier": 0.4}, RecordingError, "noise_multiplier"),
        ({"clip_norm": 1.0}, RecordingError, "clip_norm"),
        ({"momentum": 0.5}, RecordingError, "momentum"),
        ({"canaries": None}, RecordingError, "audited"),
        ({"background": "unknown"}, RecordingError, "background"),
        ({"canaries": 25}, RecordingError, "fingerprint"),
    ],
)
def test_a_checkpoint_of_another_run(options, error, message):
    model, optimizer = make(canaries=canaries())
    train(model, optimizer, range(3))
    _, other = make(**{"canaries": canaries(), **options})
    with pytest.raises(error, match=message):
        other.load_state_dict(optimizer.state_dict())


def test_a_checkpoint_that_is_none():
    _, optimizer = make()
    state = optimizer.state_dict()
    with pytest.raises(FileFormatError, match="lacks generator"):
        make()[1].load_state_dict({k: v for k, v in state.items() if k != "generator"})
    with pytest.raises(FileFormatError, match="schema 3"):
        make()[1].load_state_dict({**state, "schema": 3})


def test_who_took_part_is_remembered_in_a_checkpoint():
    model, optimizer = make()
    train(model, optimizer, range(1), records=range(5))
    resumed, late = make()
    late.load_state_dict(through_a_file(optimizer.state_dict()))
    with pytest.raises(RecordingError, match="2 leaves where 1"):
        train(resumed, late, range(1, 2), records=[4])


# --- misuse: a typed error, and never less noise ---


def refused(error, message, optimizer, model, **options):
    """The step is refused with nothing changed, and a correct one may follow."""
    before, taken = weights(model), optimizer.steps_taken
    with pytest.raises(error, match=message):
        train(model, optimizer, [taken], **options)
    assert torch.equal(weights(model), before)
    assert optimizer.steps_taken == taken


def test_more_steps_than_planned():
    model, optimizer = make(steps=2)
    train(model, optimizer, range(2))
    refused(RecordingError, "accounted for 2 steps", optimizer, model)


def test_a_record_that_takes_part_too_often():
    model, optimizer = make(participations=2, min_separation=3)
    train(model, optimizer, range(1), records=[1, 2, 3])
    refused(RecordingError, "1 apart", optimizer, model, records=[4, 2])
    refused(RecordingError, "0 apart", optimizer, model, records=[4, 4])
    refused(RecordingError, "every step or in none", optimizer, model)
    optimizer.zero_grad()
    train(model, optimizer, range(1, 3), records=[])
    train(model, optimizer, range(3, 4), records=torch.tensor([2]))
    train(model, optimizer, range(4, 6), records=[])
    refused(RecordingError, "3 leaves where 2", optimizer, model, records=[2])
    # A refused step leaves no trace: record 4 never came.
    optimizer.zero_grad()
    train(model, optimizer, range(6, 7), records=[4])


def test_gradients_that_cannot_be_clipped():
    model, optimizer = make()
    features, target = batch(0)
    nn.functional.cross_entropy(model(features * math.inf), target).backward()
    with pytest.raises(RecordingError, match="nan"):
        optimizer.step()
    assert optimizer.steps_taken == 0


def test_a_parameter_the_loss_does_not_reach():
    model, optimizer = make()
    features, _ = batch(0)
    model._module[0](features).sum().backward()
    with pytest.raises(RecordingError, match=r"2\.weight"):
        optimizer.step()


def test_frozen_parameters_stay():
    model = make_model()
    for item in model._module[0].parameters():
        item.requires_grad_(False)
    model, optimizer = make(model)
    before = weights(model)
    train(model, optimizer, range(2))
    moved = weights(model) != before
    assert not moved[: sum(SIZES[:2])].any()
    assert moved[sum(SIZES[:2]) :].all()


def test_a_step_that_fails_half_way(monkeypatch):
    model, optimizer = make(canaries=canaries())
    train(model, optimizer, range(2))
    saved = optimizer.state_dict()
    monkeypatch.setattr(optimizer._audit.recorder, "observe", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(model, optimizer, range(2, 3))
    with pytest.raises(RecordingError, match="half way"):
        train(model, optimizer, range(2, 3))
    with pytest.raises(RecordingError, match="half way"):
        optimizer.state_dict()
    again, fresh = make(canaries=canaries())
    fresh.load_state_dict(saved)
    train(again, fresh, range(2, 8))
    whole, other = make(canaries=canaries())
    train(whole, other, range(8))
    assert torch.equal(weights(again), weights(whole))


def test_no_audit_to_ask():
    _, optimizer = make()
    for ask in (optimizer.transcript, lambda: optimizer.canaries):
        with pytest.raises(RecordingError, match="no audit"):
            ask()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"learning_rate": 0.0}, InvalidArgumentError, "learning_rate"),
        ({"clip_norm": -1.0}, InvalidArgumentError, "clip_norm"),
        ({"noise_multiplier": 0.0}, InvalidArgumentError, "noise_multiplier"),
        ({"expected_batch_size": 0}, InvalidArgumentError, "expected_batch_size"),
        ({"steps": 0}, InvalidArgumentError, "steps"),
        ({"momentum": 1.0}, InvalidArgumentError, "momentum"),
        ({"estimator": "full"}, InvalidArgumentError, "estimator to be one of plain, honaker"),
        ({"completion": True}, InvalidArgumentError, "restart_every"),
        ({"seed": -1}, InvalidArgumentError, "seed"),
        ({"background": "hidden"}, InvalidArgumentError, "background"),
        ({"release": "all"}, InvalidArgumentError, "release"),
        ({"canaries": 3}, InvalidArgumentError, "canaries"),
        (
            {"canaries": ag.DiracCanaries(count=5, dimension=7)},
            InvalidArgumentError,
            "over the 43 trainable parameters",
        ),
        (
            {"canaries": 20, "release": "nodes", "estimator": "plain"},
            UnsupportedError,
            "estimator='honaker'",
        ),
    ],
)
def test_arguments(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


def test_models_that_do_not_fit():
    with pytest.raises(InvalidArgumentError, match=r"GradSampleModule\(model\)"):
        make(nn.Linear(3, 1))
    frozen = GradSampleModule(nn.Linear(3, 1))
    for item in frozen.parameters():
        item.requires_grad_(False)
    with pytest.raises(UnsupportedError, match="none"):
        make(frozen)


def test_noise_differs_from_run_to_run_without_a_seed():
    (one, first), (two, second) = make(seed=None), make(seed=None)
    train(one, first, range(1))
    train(two, second, range(1))
    assert not torch.equal(weights(one), weights(two))
