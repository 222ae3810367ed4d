"""Examples as canaries go through the whole of an Opacus run, and leave the training alone."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.canaries import ExampleCanaries, ExampleDataset
from askgauss.exceptions import (
    AskGaussWarning,
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.integrations.opacus import CanaryAudit, Observation
from askgauss.recording.transcript import check_transcript_arrays
from askgauss.results import Status
from tests.integrations.runs import CLASSES, FEATURES, RECORDS, make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MODES = ["hooks", "functorch", "ew", "ghost"]
EXERCISED = {"sampler", "per-sample gradient", "clipping", "noise"}


def records(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(RECORDS, FEATURES, generator=generator), torch.arange(RECORDS) % CLASSES
    )


def examples(present=12, absent=20, seed=5):
    generator = np.random.default_rng(seed)
    return ExampleCanaries(
        2.0 * generator.normal(size=(present + absent, FEATURES)).astype(np.float32),
        generator.integers(CLASSES, size=present + absent),
        present=present,
        absent=absent,
        seed=seed,
    )


def audited(canaries, run, every=1, **options):
    return CanaryAudit(
        run.optimizer,
        canaries=canaries,
        model=run.model,
        observation=Observation(criterion=run.criterion, every=every),
        data_loader=run.loader,
        **options,
    )


class Witness:
    """Sees every step from outside: the sampler's indices, the weights, what is released."""

    def __init__(self, run, monkeypatch):
        self.batches, self.weights, self.released = [], [], []
        sample = UniformWithReplacementSampler.__iter__

        def spying(sampler):
            for batch in sample(sampler):
                self.batches.append(list(batch))
                yield batch

        monkeypatch.setattr(UniformWithReplacementSampler, "__iter__", spying)
        self.parameters = list(run.optimizer.params)
        run.optimizer.original_optimizer.register_step_pre_hook(self._look)

    def _look(self, *_):
        self.weights.append([item.detach().clone() for item in self.parameters])
        self.released.append([item.grad.clone() for item in self.parameters])

    def planted(self, canaries):
        """Who was in which step, one row a step."""
        present = np.flatnonzero(canaries.member)
        flags = np.zeros((len(self.batches), canaries.size), dtype=bool)
        for row, batch in zip(flags, self.batches, strict=True):
            row[[present[index - RECORDS] for index in batch if index >= RECORDS]] = True
        return flags

    def along(self, canaries, model, scale, reduction="mean"):
        """The definition, one canary and one backward pass at a time; and the gradients' norms."""
        values = np.zeros((len(self.released), canaries.size))
        norms = np.zeros_like(values)
        loss = nn.CrossEntropyLoss(reduction=reduction)
        for step, (weights, released) in enumerate(zip(self.weights, self.released, strict=True)):
            for parameter, value in zip(model.parameters(), weights, strict=True):
                parameter.data.copy_(value)
            for index in range(canaries.size):
                model.zero_grad()
                inputs = torch.tensor(canaries.inputs[index : index + 1])
                loss(model(inputs), torch.tensor(canaries.labels[index : index + 1])).backward()
                gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
                noisy = torch.cat([item.flatten() for item in released]).double()
                norms[step, index] = gradient.norm()
                values[step, index] = scale * (noisy @ gradient) / gradient.norm()
        return values, norms


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))


@pytest.mark.parametrize(
    ("mode", "physical", "reduction"),
    [("hooks", None, "mean"), ("hooks", 5, "sum"), ("functorch", 5, "mean"), ("ew", None, "mean"),
     ("ghost", 5, "mean"), ("ghost", None, "sum")],
)  # fmt: skip
def test_records_the_definition_and_who_was_in_the_batch(mode, physical, reduction, monkeypatch):
    canaries, norm = examples(), 0.7
    run = make_run(
        model=small_model(),
        data=canaries.dataset(records()),
        mode=mode,
        max_grad_norm=norm,
        loss_reduction=reduction,
    )
    witness = Witness(run, monkeypatch)
    with audited(canaries, run) as audit:
        run.train(epochs=2, physical=physical)
    transcript = audit.transcript()
    steps = transcript.number_of_steps
    planted = witness.planted(canaries)
    assert steps == len(witness.batches) == 18
    scale = run.optimizer.expected_batch_size if reduction == "mean" else 1
    values, norms = witness.along(canaries, small_model(), scale, reduction)
    values /= norm
    sums = transcript.canaries
    np.testing.assert_array_equal(sums.planted, planted.sum(axis=0))
    np.testing.assert_array_equal(transcript.kept_planted, planted[:, transcript.kept])
    np.testing.assert_allclose(transcript.kept_values, values[:, transcript.kept], atol=1e-4)
    np.testing.assert_allclose(sums.total, values.sum(axis=0), atol=1e-3)
    np.testing.assert_allclose(sums.planted_total, (values * planted).sum(axis=0), atol=1e-3)
    assert planted.sum() > 10
    facts = transcript.facts
    assert (facts.sampling, facts.poisson, facts.background) == ("user's sampler", True, "unknown")
    assert set(facts.exercised) == EXERCISED
    expected = np.minimum(norms / norm, 1.0)[planted].mean()
    assert facts.contribution == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("physical", [None, 5])
@pytest.mark.parametrize("mode", MODES)
def test_with_nothing_present_the_weights_are_the_same_bits(mode, physical):
    canaries = examples(present=0)
    plain = make_run(mode=mode, data=records(), model=small_model())
    watched = make_run(mode=mode, data=canaries.dataset(records()), model=small_model())
    torch.manual_seed(7)
    plain.train(epochs=2, physical=physical)
    torch.manual_seed(7)
    with audited(canaries, watched) as audit:
        watched.train(epochs=2, physical=physical)
    assert audit.steps == 16
    assert torch.equal(plain.weights(), watched.weights())
    assert plain.engine.accountant.history == watched.engine.accountant.history
    # Present canaries are records, and do change the training.
    present = examples()
    planted = make_run(mode=mode, data=present.dataset(records()), model=small_model())
    torch.manual_seed(7)
    with audited(present, planted):
        planted.train(epochs=2, physical=physical)
    assert not torch.equal(plain.weights(), planted.weights())


def test_dropout_and_hooks_of_others_do_not_notice():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES))

    canaries, calls = examples(present=0), []
    plain = make_run(data=records(), model=model())
    watched = make_run(data=canaries.dataset(records()), model=model())
    torch.manual_seed(7)
    plain.train()
    torch.manual_seed(7)
    watched.model._module[0].register_forward_hook(lambda *_: calls.append(1))
    with audited(canaries, watched) as audit:
        watched.train()
    assert torch.equal(plain.weights(), watched.weights())
    assert len(calls) == audit.steps == 8
    assert all(module.training for module in watched.model.modules())


def test_a_clipped_canary_without_noise_is_worth_one():
    """Alone in its batch, an example adds exactly its own clipped gradient."""
    canaries = examples(present=4, absent=4)
    far = TensorDataset(torch.zeros(4, FEATURES), torch.zeros(4, dtype=torch.int64))
    run = make_run(
        model=nn.Linear(FEATURES, CLASSES, bias=False),
        data=canaries.dataset(far),
        batch_size=1,
        noise_multiplier=0.0,
        max_grad_norm=0.1,
    )
    with audited(canaries, run) as audit:
        run.train(epochs=12)
    transcript = audit.transcript()
    planted = transcript.kept_planted
    alone = planted.sum(axis=1) == 1
    assert alone.sum() > 10
    np.testing.assert_allclose(
        transcript.kept_values[alone][planted[alone]], 1.0, atol=1e-4
    )  # zero inputs have no gradient in a layer without bias
    assert transcript.facts.contribution == pytest.approx(1.0)


def test_short_gradients_are_recorded_as_such():
    canaries = examples()
    run = make_run(model=small_model(), data=canaries.dataset(records()), max_grad_norm=100.0)
    with audited(canaries, run) as audit:
        run.train()
    facts = audit.transcript().facts
    assert facts.contribution is not None
    assert 0.0 < facts.contribution < 0.1
    assert any("lower than it could be" in note for note in facts.notes)


def test_a_canary_without_gradient_is_seen_along_a_fixed_direction():
    canaries = ExampleCanaries(
        np.zeros((6, FEATURES), np.float32), np.zeros(6, int), present=2, seed=0
    )
    run = make_run(model=nn.Linear(FEATURES, CLASSES, bias=False), data=canaries.dataset(records()))
    first = []
    run.optimizer.original_optimizer.register_step_pre_hook(
        lambda *_: first.append(float(run.optimizer.params[0].grad[0, 0]))
    )
    with audited(canaries, run) as audit:
        run.train()
    scale = run.optimizer.expected_batch_size
    values = audit.transcript().kept_values
    np.testing.assert_allclose(values, scale * np.array(first)[:, None].repeat(6, 1), rtol=1e-5)
    assert audit.transcript().finite


def test_every_other_step_may_be_observed(monkeypatch):
    canaries = examples()
    run = make_run(model=small_model(), data=canaries.dataset(records()))
    witness = Witness(run, monkeypatch)
    with audited(canaries, run, every=3) as audit:
        run.train(epochs=2)
    transcript = audit.transcript()
    planted = witness.planted(canaries)[::3]
    assert transcript.number_of_steps == 6
    np.testing.assert_array_equal(transcript.canaries.planted, planted.sum(axis=0))
    values, _ = witness.along(canaries, small_model(), run.optimizer.expected_batch_size)
    np.testing.assert_allclose(transcript.canaries.total, values[::3].sum(axis=0), atol=1e-3)
    assert any("one in 3 of 18 steps" in note for note in transcript.facts.notes)
    assert transcript.facts.skipped_steps == 12
    finding = step_count(audit)
    assert finding.status is Status.PASS
    assert "18 steps were released, 12 of them not observed, and 18 accounted" in finding.summary


def step_count(audit):
    findings = audit.result(delta=1e-5).findings
    return next(item for item in findings if item.check == "step count")


def test_steps_nobody_accounted_for_are_noticed_behind_those_not_observed():
    canaries = examples()
    run = make_run(model=small_model(), data=canaries.dataset(records()))
    with audited(canaries, run, every=4) as audit:
        run.train()
        run.optimizer.step_hook = None
        run.train()
    finding = step_count(audit)
    assert finding.status is Status.FAIL
    assert (finding.measured, finding.claimed) == (18.0, 9.0)


def test_the_gram_matrix_is_that_of_the_gradients(tmp_path):
    canaries = examples()
    run = make_run(model=small_model(), data=canaries.dataset(records()))
    model = copy.deepcopy(small_model())
    with audited(canaries, run) as audit:
        for features, target in run.loader:
            run.criterion(run.model(features), target).backward()
            run.optimizer.step()
            break
    transcript = audit.transcript()
    gradients = []
    for value, label in zip(canaries.inputs, canaries.labels, strict=True):
        model.zero_grad()
        output = model(torch.tensor(value)[None])
        nn.functional.cross_entropy(output, torch.tensor([label])).backward()
        gradients.append(np.concatenate([p.grad.numpy().ravel() for p in model.parameters()]))
    unit = np.array(gradients, dtype=float)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    expected = np.abs(unit @ unit.T)[np.ix_(transcript.kept, transcript.kept)]
    np.testing.assert_allclose(transcript.gram, expected, atol=1e-5)
    transcript.save(tmp_path / "run.npz")
    loaded = ag.Transcript.load(tmp_path / "run.npz")
    np.testing.assert_array_equal(loaded.gram, transcript.gram)
    assert loaded.facts == transcript.facts
    arrays = transcript.arrays()
    arrays["gram"] = arrays["gram"][:, :-1]
    with pytest.raises(FileFormatError, match="gram"):
        check_transcript_arrays(arrays, tensors=len(transcript.facts.tensors))
    # Runs without one have an empty matrix.
    replace(transcript, gram=np.zeros((0, 0))).save(tmp_path / "run.npz")
    assert ag.Transcript.load(tmp_path / "run.npz").gram.shape == (0, 0)


def test_batches_that_lead_to_no_step_are_not_counted(monkeypatch):
    canaries = examples()
    run = make_run(model=small_model(), data=canaries.dataset(records()))
    with audited(canaries, run) as audit:
        next(iter(run.loader))
        for _ in run.loader:
            pass
        witness = Witness(run, monkeypatch)
        for physical in (None, 5):
            run.train(physical=physical)
            for _ in run.loader:
                pass
    used = np.r_[0:9, 18:27]
    planted = witness.planted(canaries)[used]
    np.testing.assert_array_equal(audit.transcript().canaries.planted, planted.sum(axis=0))


def test_accumulated_batches_belong_to_one_step():
    """Opacus lets batches accumulate without Poisson sampling only: two rounds over all records."""
    canaries = examples()
    run = make_run(
        model=small_model(),
        data=canaries.dataset(records()),
        batch_size=70,
        poisson_sampling=False,
    )
    with audited(canaries, run) as audit:
        for rounds in (1, 2, 1):
            run.optimizer.zero_grad()
            for features, target in (batch for _ in range(rounds) for batch in run.loader):
                run.criterion(run.model(features), target).backward()
            run.optimizer.step()
    transcript = audit.transcript()
    np.testing.assert_array_equal(transcript.canaries.planted, np.where(canaries.member, 3, 0))
    assert any("in one step, 12 times" in note for note in transcript.facts.notes)


def test_a_step_without_a_batch_of_ours_ends_the_recording():
    canaries = examples()
    run = make_run(model=small_model(), data=canaries.dataset(records()))
    batch = next(iter(run.loader))
    with audited(canaries, run) as audit:
        run.criterion(run.model(batch[0]), batch[1]).backward()
        with pytest.warns(AskGaussWarning, match=r"canaries\.dataset"):
            run.optimizer.step()
    with pytest.raises(RecordingError, match=r"canaries\.dataset"):
        audit.transcript()


def test_workers_are_refused_by_name():
    canaries = examples()
    data = canaries.dataset(records())
    run = make_run(model=small_model(), data=data)
    run.loader.num_workers = 2
    with pytest.raises(UnsupportedError, match="num_workers=0"):
        audited(canaries, run)
    run.loader.num_workers = 0
    elsewhere = DataLoader(data, batch_size=16, num_workers=1)
    # While nobody listens, workers may fetch what they like.
    assert sum(len(features) for features, _ in elsewhere) == RECORDS + 12
    with audited(canaries, run), pytest.raises(UnsupportedError, match="num_workers=0"):
        next(iter(elsewhere))


def test_bad_arguments_name_the_way_out():
    canaries = examples()
    run = make_run(model=small_model(), data=canaries.dataset(records()))
    plain = make_run(model=small_model(), data=records())
    layers = make_run(
        model=small_model(),
        data=canaries.dataset(records()),
        clipping="per_layer",
        max_grad_norm=[1.0] * 4,
    )
    good = {
        "canaries": canaries,
        "model": run.model,
        "observation": Observation(criterion=run.criterion),
        "data_loader": run.loader,
    }
    for optimizer, change, error, message in (
        (run, {"data_loader": None}, InvalidArgumentError, "data_loader"),
        (run, {"data_loader": plain.loader}, InvalidArgumentError, "dataset"),
        (run, {"model": None}, InvalidArgumentError, "model"),
        (run, {"model": plain.model}, InvalidArgumentError, "parameters"),
        (run, {"observation": None}, InvalidArgumentError, "criterion"),
        (
            run,
            {"observation": Observation(criterion=lambda output, label: output @ torch.ones(99))},
            UnsupportedError,
            "gradients cannot be taken",
        ),
        (run, {"canaries": examples(seed=6)}, InvalidArgumentError, "others"),
        (run, {"observation": Observation(background="known")}, UnsupportedError, "DiracCanaries"),
        (run, {"inject": "sample"}, InvalidArgumentError, "inject"),
        (run, {"seed": 1}, InvalidArgumentError, "seed"),
        (
            run,
            {"observation": replace(good["observation"], every=0)},
            InvalidArgumentError,
            "every",
        ),
        (
            plain,
            {"canaries": 20, "observation": Observation(every=2), "model": plain.model},
            InvalidArgumentError,
            "every",
        ),
        (layers, {"model": layers.model}, UnsupportedError, "BlockCanaries"),
    ):
        with pytest.raises(error, match=message):
            CanaryAudit(optimizer.optimizer, **(good | change))


def test_shuffled_batches_are_told_as_such():
    canaries = examples()
    run = make_run(model=small_model(), data=canaries.dataset(records()), poisson_sampling=False)
    with audited(canaries, run) as audit:
        run.train(epochs=2)
    transcript = audit.transcript()
    assert not transcript.facts.poisson
    assert (transcript.canaries.planted[canaries.member] == 2).all()


@pytest.mark.parametrize("through_file", [True, False])
def test_resuming_goes_on_as_if_nothing_had_happened(tmp_path, through_file):
    def start(**options):
        canaries = examples()
        run = make_run(model=small_model(), data=canaries.dataset(records()))
        return run, audited(canaries, run, **options)

    whole_run, whole = start()
    torch.manual_seed(3)
    with whole:
        whole_run.train(epochs=2)
    run, first = start()
    torch.manual_seed(3)
    with first:
        run.train()
    second = audited(first.canaries, run)
    if through_file:
        first.save(tmp_path / "audit.npz")
        second.load(tmp_path / "audit.npz")
    else:
        second.load_state_dict(first.state_dict())
    with second:
        run.train()
    one, other = whole.transcript(), second.transcript()
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, other.arrays()[name], err_msg=name)
    assert one.facts.contribution == other.facts.contribution
    _, sparse = start(every=2)
    with pytest.raises(RecordingError, match="every"):
        sparse.load_state_dict(first.state_dict())
    state = first.state_dict()
    del state["examples.gram"]
    with pytest.raises(FileFormatError, match="gram"):
        sparse.load_state_dict(state)
    assert sparse.steps == 0


def test_example_canaries_are_made_once():
    truth = np.arange(40) % CLASSES
    pool = np.random.default_rng(0).normal(size=(40, 3))
    canaries = ExampleCanaries.mislabelled(pool, truth, CLASSES, count=30, seed=1)
    again = ExampleCanaries.mislabelled(pool, truth, CLASSES, count=30, seed=1)
    assert canaries.fingerprint() == again.fingerprint()
    assert canaries.fair_coins
    rows = [int(np.flatnonzero((pool == row).all(axis=1))[0]) for row in canaries.inputs]
    assert len(set(rows)) == 30
    assert (canaries.labels != truth[rows]).all()
    assert set(canaries.labels) == set(range(CLASSES))
    other = ExampleCanaries.mislabelled(pool, truth, CLASSES, count=30, seed=2)
    assert canaries.fingerprint() != other.fingerprint()
    with pytest.raises(ValueError, match="read-only"):
        canaries.inputs[0] = 0.0
    blank = ExampleCanaries.blank((2, 5), CLASSES, present=6, absent=10, seed=0, lit=2)
    assert (blank.inputs.reshape(16, -1).sum(axis=1) == 2.0).all()
    twins = np.column_stack([blank.inputs.reshape(16, -1), blank.labels])
    assert len(np.unique(twins, axis=0)) == 16
    for make in (
        lambda: ExampleCanaries(pool, truth[:-1]),
        lambda: ExampleCanaries(pool, truth, count=39),
        lambda: ExampleCanaries(pool, truth, present=39, seed=0),
        lambda: ExampleCanaries(pool, truth, present=-1),
        lambda: ExampleCanaries(np.full((4, 2), np.nan), truth[:4]),
        lambda: ExampleCanaries.mislabelled(pool, truth, 3),
        lambda: ExampleCanaries.mislabelled(pool, truth, CLASSES, count=41),
        lambda: ExampleCanaries.blank((5,), 2, count=6),
        lambda: ExampleCanaries.blank((5,), 2, count=4, lit=6),
    ):
        with pytest.raises(InvalidArgumentError):
            make()


def test_the_dataset_keeps_the_records_and_their_kinds():
    canaries = examples(present=3, absent=5)
    train_set = records()
    data = canaries.dataset(train_set)
    assert isinstance(data, ExampleDataset)
    assert len(data) == RECORDS + 3
    present = np.flatnonzero(canaries.member)
    for index in (0, RECORDS - 1):
        assert torch.equal(data[index][0], train_set[index][0])
    for place, canary in enumerate(present):
        features, label = data[RECORDS + place]
        np.testing.assert_array_equal(features.numpy(), canaries.inputs[canary])
        assert (features.dtype, label.dtype) == (torch.float32, torch.int64)
        assert int(label) == canaries.labels[canary]
    heard = []
    data.on_batch = lambda found: heard.append(found.tolist())
    batch = data.__getitems__([RECORDS + 2, 5, RECORDS])
    assert torch.equal(batch[1][0], train_set[5][0])
    data.__getitems__([])
    assert heard == [[present[2], present[0]], []]
    with pytest.raises(IndexError):
        data[RECORDS + 3]
    listed = canaries.dataset([(np.zeros(FEATURES, np.float64), 1)] * 2)
    assert type(listed[2][1]) is int
    assert listed[2][0].dtype == np.float64
    for train, error in (
        ([(np.zeros(3), 1)], InvalidArgumentError),
        ([(np.zeros(FEATURES, np.uint8), 1)], InvalidArgumentError),
        ([np.zeros(FEATURES)], UnsupportedError),
        (iter([]), UnsupportedError),
    ):
        with pytest.raises(error):
            canaries.dataset(train)


@functools.cache
def digits():
    features, target = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(target))
    return (features[order] / 16.0).astype(np.float32), target[order]


def digits_audit(mode="hooks", fault=None, steps=100):
    """A network on digits with mislabelled canaries: the audit, and the accountant's epsilon."""
    features, target = digits()
    canaries = ExampleCanaries.mislabelled(
        features[1200:], target[1200:], 10, present=100, absent=150, seed=0
    )
    train_set = TensorDataset(torch.tensor(features[:1200]), torch.tensor(target[:1200]))
    torch.manual_seed(0)
    run = make_run(
        model=nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)),
        data=canaries.dataset(train_set),
        batch_size=130,
        noise_multiplier=0.9,
        mode=mode,
        learning_rate=0.3,
    )
    optimizer = run.optimizer
    if fault == "rate":
        sampler = run.loader.batch_sampler
        sampler.__class__ = type("Twice", (UniformWithReplacementSampler,), {"__iter__": twice})
    if fault == "clipping":
        clip = optimizer.clip_and_accumulate

        def unclipped():
            norm, optimizer.max_grad_norm = optimizer.max_grad_norm, 1e9
            clip()
            optimizer.max_grad_norm = norm

        optimizer.clip_and_accumulate = unclipped
    with audited(canaries, run) as audit:
        run.train(epochs=steps // len(run.loader))
    return audit, run.engine.get_epsilon(1e-5)


def twice(sampler):
    """Says one rate and samples at twice of it."""
    for _ in range(len(sampler)):
        coins = torch.rand(sampler.num_samples) < 2 * sampler.sample_rate
        yield coins.nonzero().flatten().tolist()


def finding(result, name):
    return next(item for item in result.findings if item.check == name)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_sound_run_is_bounded_below_its_claim(mode):
    audit, epsilon = digits_audit(mode)
    assert 7.0 < epsilon < 9.0
    claim = ag.PrivacyClaim(epsilon=epsilon, delta=1e-5)
    result = audit.result(claim=claim)
    assert 0.3 < result.epsilon_lower < epsilon
    # Images of digits are alike: their overlap may be held against the bound, and nothing else.
    assert result.verdict is not ag.Verdict.VIOLATION
    failed = {item.check for item in result.findings if item.status.value == "fail"}
    assert failed <= {"canary overlap"}
    rate = finding(result, "sampling rate")
    assert rate.status.value == "pass"
    assert rate.claimed == pytest.approx(0.1)
    assert rate.interval[0] < 0.1 < rate.interval[1]
    assert finding(result, "contribution").status.value == "pass"
    assert finding(result, "sampling scheme").status.value == "pass"
    transcript = audit.transcript()
    assert transcript.facts.contribution > 0.9
    assert transcript.gram.shape == (250, 250)
    assert transcript.facts.accounted_steps == transcript.number_of_steps == 100


def test_a_sampler_that_takes_twice_as_many_is_seen():
    audit, epsilon = digits_audit(fault="rate")
    rate = finding(
        audit.result(claim=ag.PrivacyClaim(epsilon=epsilon, delta=1e-5)), "sampling rate"
    )
    assert rate.status.value in ("warn", "fail")
    assert rate.measured == pytest.approx(0.2, rel=0.1)
    assert rate.claimed == pytest.approx(0.1)


def test_clipping_that_is_off_is_seen():
    audit, epsilon = digits_audit(fault="clipping")
    result = audit.result(claim=ag.PrivacyClaim(epsilon=epsilon, delta=1e-5))
    contribution = finding(result, "contribution")
    assert contribution.status.value in ("warn", "fail")
    assert contribution.measured > 2.0
