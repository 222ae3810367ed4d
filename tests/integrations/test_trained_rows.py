"""The rows that a step trains on are compared with the records that the loader drew for it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from opacus.grad_sample.gsm_base import AbstractGradSampleModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

import askgauss as ag
from askgauss.exceptions import AskGaussWarning, InvalidArgumentError
from askgauss.integrations.opacus import CanaryAudit, Observation
from askgauss.recording.facts import RowFacts
from askgauss.recording.facts.rows import rows_over_ranks
from askgauss.results import Status, Verdict
from tests.integrations.runs import CLASSES, FEATURES, RECORDS, make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DATA = TensorDataset(
    torch.randn(RECORDS, FEATURES, generator=torch.Generator().manual_seed(3)),
    torch.arange(RECORDS) % CLASSES,
)


def step(run, features, target):
    run.optimizer.zero_grad()
    run.criterion(run.model(features), target).backward()
    run.optimizer.step()


def losses(run, features, target):
    with torch.no_grad():
        return nn.functional.cross_entropy(run.model(features), target, reduction="none")


def audited(loop, epochs=4, change=None, **options):
    """The audit of a run whose loop gets every pass over the private loader."""
    run = make_run(data=DATA, **options)
    if change is not None:
        change(run)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, present=20, absent=40) as audit:
        for _ in range(epochs):
            loop(run)
    return run, audit


def rows_of(loop, **options):
    return audited(loop, **options)[1].transcript().facts.rows


def judged(loop, **options):
    run, audit = audited(loop, **options)
    claim = ag.PrivacyClaim(epsilon=1.001 * run.engine.get_epsilon(1e-5), delta=1e-5)
    return audit.result(claim=claim)


def failed(result):
    return [item.check for item in result.findings if item.status is Status.FAIL]


def views(count):
    def loop(run):
        for features, target in run.loader:
            noisy = [features + 0.1 * torch.randn_like(features) for _ in range(count)]
            step(run, torch.cat(noisy), target.repeat(count))

    return loop


def anchors(count):
    def loop(run):
        first, labels = DATA.tensors[0][:count], DATA.tensors[1][:count]
        for features, target in run.loader:
            step(run, torch.cat([features, first]), torch.cat([target, labels]))

    return loop


def half(run):
    for features, target in run.loader:
        hard = losses(run, features, target).argsort()[len(target) // 2 :]
        step(run, features[hard], target[hard])


def doubled(run):
    """As many rows as records: the harder half of them twice."""
    for features, target in run.loader:
        hard = losses(run, features, target).argsort()[len(target) // 2 :]
        hard = torch.cat([hard, hard])[: len(target)]
        step(run, features[hard], target[hard])


def sent_twice(run):
    for features, target in run.loader:
        for last in (False, True):
            run.optimizer.signal_skip_step(not last)
            step(run, features, target)


def again(run):
    for features, target in run.loader:
        step(run, features, target)
        if len(target) > 15:
            step(run, features, target)


def dropped(run):
    for features, target in run.loader:
        if len(target) >= 14:
            step(run, features, target)


def chosen(wanted, how):
    """A loop that takes a step only for the wanted batches, after a look at each of them."""

    def loop(run):
        for number, (features, target) in enumerate(run.loader):
            if how == "backward":
                run.optimizer.zero_grad()
                run.criterion(run.model(features), target).backward()
                if wanted(run, number):
                    run.optimizer.step()
                continue
            if how == "eval":
                run.model.eval()
            losses(run, features, target)
            run.model.train()
            if wanted(run, number):
                step(run, features, target)

    return loop


def another_loader(run):
    for features, target in DataLoader(DATA, batch_size=16, shuffle=True):
        step(run, features, target)


def zipped(run):
    for _, (features, target) in zip(
        run.loader, DataLoader(DATA, batch_size=16, shuffle=True), strict=False
    ):
        step(run, features, target)


def plain(run):
    for features, target in run.loader:
        step(run, features, target)


class Doubling:
    """A collate function that has every record twice."""

    def __call__(self, records):
        return [torch.cat([item, item]) for item in default_collate(records)]


def doubles_records(run):
    run.loader.collate_fn.wrapped_collator_fn = Doubling()


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_several_rows_of_a_record_are_a_violation_with_their_epsilon(count, mode):
    result = judged(views(count), mode=mode)
    assert failed(result) == ["rows per record"]
    assert result.verdict is Verdict.VIOLATION
    found = next(item for item in result.findings if item.check == "rows per record")
    assert found.measured == count
    assert "implies epsilon" in found.summary
    parts = {part.name: part.status for part in result.scope}
    assert parts["trained rows"] == "broken"
    assert parts["sampler"] == "not tested"


@pytest.mark.parametrize("options", [{"change": doubles_records}, {}])
def test_a_record_that_comes_twice_is_seen_wherever_it_is_doubled(options):
    facts = rows_of(plain if options else sent_twice, **options)
    assert facts.multiple == 2
    assert facts.more == facts.steps == 32


@pytest.mark.parametrize(
    ("loop", "check", "says"),
    [
        (anchors(1), "rows per record", "1 rows more"),
        (anchors(100), "rows per record", "100 rows more"),
        (half, "rows per record", "only part of the batch"),
        (doubled, "rows per record", "two rows or more and others none"),
        (again, "repeated batches", "no batch was drawn for"),
        (dropped, "unused batches", "drawn and not trained on"),
        (another_loader, "training loader", "not drawn from in any of 32 steps"),
        (zipped, "training loader", "a batch of another loader (RandomSampler)"),
    ],
)
def test_every_other_fault_is_named_first(loop, check, says):
    result = judged(loop)
    assert result.verdict is Verdict.INVALID
    assert failed(result)[0] == check
    assert says in next(item for item in result.findings if item.check == check).summary


def test_empty_batches_that_are_skipped_are_counted():
    def loop(run):
        for features, target in run.loader:
            if len(target):
                step(run, features, target)

    facts = rows_of(loop, epochs=1, batch_size=1)
    assert facts.unused == facts.unused_empty > 20
    clean = rows_of(plain, epochs=1, batch_size=1)
    assert clean.clean
    assert clean.steps == clean.compared == 128


@pytest.mark.parametrize("how", ["backward", "look", "eval"])
@pytest.mark.parametrize(
    ("wanted", "left_out"),
    [
        (lambda run, number: number > 0, 4),
        (lambda run, number: number < 7, 3),  # the very last may have been interrupted
        # Whole passes too, where other passes are used in part.
        (lambda run, number: len(run.passes) == 1 and number < 7, 24),
        (lambda run, number: len(run.passes) == 4 and number > 0, 25),
    ],
)
def test_batches_left_out_after_a_look_at_them_are_found_at_any_place(how, wanted, left_out):
    inner = chosen(wanted, how)

    def loop(run):
        run.passes = [*getattr(run, "passes", []), 0]
        inner(run)

    facts = rows_of(loop)
    assert facts.unused == facts.dropped == left_out


@pytest.mark.parametrize("how", ["backward", "look", "eval"])
@pytest.mark.parametrize("trained", [(1,), (4,), (1, 3)])
def test_whole_passes_that_a_schedule_skips_are_no_fault(how, trained):
    inner = chosen(lambda run, _: len(run.passes) in trained, how)

    def loop(run):
        run.passes = [*getattr(run, "passes", []), 0]
        inner(run)

    facts = rows_of(loop)
    assert (facts.dropped, facts.clean) == (0, True)
    # The very last step may have been interrupted.
    assert facts.skipped in (8 * (4 - len(trained)), 8 * (4 - len(trained)) - 1)


def test_a_loss_that_is_not_a_number_is_no_reason_to_leave_a_batch_out():
    def loop(run):
        for features, target in run.loader:
            run.optimizer.zero_grad()
            loss = run.criterion(run.model(features), target)
            loss.backward()
            if not torch.isnan(loss) and loss < 1.37:
                run.optimizer.step()

    result = judged(loop)
    assert result.verdict is Verdict.INVALID
    assert failed(result) == ["unused batches"]
    assert {part.name: part.status for part in result.scope}["sampler"] == "not tested"


def replayed(run):
    """The first four rows of each batch are replaced by four of the batch before."""
    last = []
    for features, target in run.loader:
        kept = features[:4].clone(), target[:4].clone()
        if last and len(target) >= 4:
            features, target = features.clone(), target.clone()
            features[:4], target[:4] = last[-1]
        last = [kept] if len(kept[0]) == 4 else []
        step(run, features, target)


def test_rows_of_earlier_draws_in_the_place_of_drawn_ones_are_not_called_fine():
    facts = rows_of(replayed)
    assert facts.strays > 5
    assert facts.strays_first > 1
    result = judged(replayed)
    parts = {part.name: part.status for part in result.scope}
    assert parts["trained rows"] == parts["sampler"] == "not tested"
    found = next(item for item in result.findings if item.check == "rows per record")
    assert "drawn for earlier steps" in found.summary


def split_by_hand(run):
    for features, target in run.loader:
        parts = list(zip(features.split(5), target.split(5), strict=True))
        for number, part in enumerate(parts, 1):
            run.optimizer.signal_skip_step(number < len(parts))
            step(run, *part)


def averaged(run):
    for features, target in run.loader:
        run.optimizer.zero_grad()
        seen = features.repeat_interleave(4, 0)
        seen = seen + 0.1 * torch.randn_like(seen)
        run.criterion(run.model(seen), target.repeat_interleave(4)).backward()
        for item in run.model.parameters():
            item.grad_sample = item.grad_sample.reshape(-1, 4, *item.shape).mean(1)
        run.optimizer.step()


def transformed(run):
    for features, target in run.loader:
        flipped = torch.where(torch.rand(len(features), 1) < 0.5, -features, features)
        step(run, flipped, target)


def evaluated(run):
    plain(run)
    run.model.eval()
    for data in (run.loader, DataLoader(DATA, batch_size=16)):
        for features, _ in data:
            run.model(features * 2.0)
    run.model.train()
    for features, target in run.loader:
        step(run, features * 2.0, target)


def fetched_ahead(run):
    batches = iter(run.loader)
    waiting = next(batches)
    while waiting is not None:
        current, waiting = waiting, next(batches, None)
        step(run, *current)


def stopped_early(run):
    for number, (features, target) in enumerate(run.loader):
        if number == 5:
            break
        if number >= 2:
            step(run, features, target)


def anew(run):
    for _ in range(8):
        step(run, *next(iter(run.loader)))


def looked_at(run):
    """Losses are logged before each step, and again over a pass, by lines of their own."""
    for features, target in run.loader:
        losses(run, features, target)
        step(run, features, target)
    for features, target in run.loader:
        losses(run, features, target)


def one_loop_for_both(run):
    for training in (True, False):
        run.model.train(training)
        for features, target in run.loader:
            with torch.set_grad_enabled(training):
                loss = run.criterion(run.model(features), target)
            if training:
                run.optimizer.zero_grad()
                loss.backward()
                run.optimizer.step()
    run.model.train()


def stopped_after_a_call(run):
    for number, (features, target) in enumerate(run.loader):
        run.optimizer.zero_grad()
        run.criterion(run.model(features), target).backward()
        if number == 5:
            break
        run.optimizer.step()


def with_workers(run):
    run.loader = DataLoader(
        DATA,
        batch_sampler=run.loader.batch_sampler,
        collate_fn=run.loader.collate_fn,
        num_workers=2,
        persistent_workers=True,
    )


def in_parts(run):
    run.train(1, 5)


@pytest.mark.parametrize(
    ("loop", "options"),
    [
        (plain, {}),
        (plain, {"mode": "functorch"}),
        (plain, {"change": with_workers, "epochs": 2}),
        (stopped_early, {"change": with_workers, "epochs": 2}),
        (in_parts, {}),
        (in_parts, {"mode": "ghost"}),
        (split_by_hand, {}),
        (averaged, {}),
        (transformed, {}),
        (evaluated, {}),
        (fetched_ahead, {}),
        (stopped_early, {}),
        (anew, {}),
        (looked_at, {}),
        (one_loop_for_both, {}),
        (stopped_after_a_call, {}),
    ],
)
def test_correct_loops_are_clean(loop, options):
    audit = audited(loop, **options)[1]
    facts = audit.transcript().facts
    assert facts.rows.clean
    assert facts.rows.compared == facts.rows.steps == audit.steps
    assert facts.batches.steps == audit.steps
    # What was changed on the way to the model is not taken for another batch.
    assert (facts.rows.identified == 0) == (loop is averaged)


def test_an_untouched_batch_is_recognised_in_another_number_format_and_shape():
    def loop(run):
        for features, target in run.loader:
            step(run, features.double().reshape(len(features), 2, -1).flatten(1).float(), target)

    facts = rows_of(loop)
    assert facts.identified == facts.steps == 32


@pytest.mark.parametrize("fault", ["", "again", "foreign"])
def test_a_model_that_is_called_past_opacus_module_is_heard_too(fault):
    """As Hugging Face's trainer calls one: batches are recognised, copies of them too."""
    run = make_run(data=DATA)
    inner = run.model._module
    with CanaryAudit(
        run.optimizer, data_loader=run.loader, model=inner, seed=0, present=20, absent=40
    ) as audit:
        last = next(iter(DataLoader(DATA, batch_size=16, shuffle=True)))
        for number, rows in enumerate(run.loader):
            features, target = last if fault == "foreign" or (fault and number % 2) else rows
            run.optimizer.zero_grad()
            run.criterion(inner(features), target).backward()
            run.optimizer.step()
            if fault == "again":
                last = [item.clone() for item in rows]
    facts = audit.transcript().facts.rows
    assert facts.steps == 8
    assert (facts.identified, facts.again, facts.foreign) == {
        "": (8, 0, 0),
        "again": (4, 4, 0),
        "foreign": (0, 0, 8),
    }[fault]
    assert "__call__" not in vars(nn.Sequential)


class Around(nn.Module):
    """Calls Opacus' module, as a module of Lightning may."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features):
        return self.model(features)


def test_a_module_around_opacus_module_is_not_counted_twice():
    run = make_run(data=DATA, poisson_sampling=False)
    run.model.allow_grad_accumulation()
    outer = Around(run.model)
    with CanaryAudit(
        run.optimizer, data_loader=run.loader, model=outer, seed=0, present=20, absent=40
    ) as audit:
        for number, (features, target) in enumerate(run.loader):
            (0.5 * run.criterion(outer(features), target)).backward()
            if number % 2:
                run.optimizer.step()
                run.optimizer.zero_grad()
    facts = audit.transcript().facts.rows
    assert facts.clean
    assert facts.identified == facts.steps == 4


def test_batches_that_workers_fetched_before_the_audit_came_are_not_mixed_up():
    run = make_run(data=DATA)
    with_workers(run)
    batches = iter(run.loader)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, present=20, absent=40) as audit:
        for features, target in batches:
            step(run, features, target)
    facts = audit.transcript().facts.rows
    assert facts.clean
    # Two workers fetch two batches each ahead.
    assert (facts.missed, facts.compared) == (4, 4)


def test_an_audit_that_comes_late_says_which_steps_it_missed():
    run = make_run(data=DATA)
    batches = iter(run.loader)
    for _ in range(2):
        step(run, *next(batches))
    waiting = next(batches)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        step(run, *waiting)
        for features, target in batches:
            step(run, features, target)
        plain(run)
    facts = audit.transcript().facts
    assert facts.rows.clean
    assert facts.batches.steps == 13
    assert facts.rows.undrawn == 1
    assert any("batches of 1 steps are not judged" in note for note in facts.notes)


def test_nothing_is_left_behind_and_models_can_be_copied_meanwhile():
    run = make_run(data=DATA)
    before = _BaseDataLoaderIter.__next__, _BaseDataLoaderIter._next_index
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0):
        assert _BaseDataLoaderIter.__next__ is not before[0]
        plain(run)
        copy.deepcopy(run.model._module)
        assert b"askgauss" not in pickle.dumps(run.model._module)
    assert (_BaseDataLoaderIter.__next__, _BaseDataLoaderIter._next_index) == before
    assert AbstractGradSampleModule.__call__ is nn.Module.__call__
    assert "clip_and_accumulate" not in vars(run.optimizer)


def test_a_checkpoint_keeps_what_was_found(tmp_path):
    run = make_run(data=DATA)
    path = tmp_path / "audit.npz"
    for _ in range(2):
        with CanaryAudit(run.optimizer, data_loader=run.loader, checkpoint=path) as audit:
            half(run)
    assert audit.transcript().facts.rows.fewer == 16


def test_what_is_wrong_before_the_first_step_is_said_there(tmp_path):
    run = make_run(data=DATA)
    with pytest.raises(InvalidArgumentError, match="that the optimizer trains"):
        CanaryAudit(run.optimizer, data_loader=run.loader, model=nn.Linear(2, 2))
    missing = tmp_path / "none" / "a.npz"
    with pytest.raises(InvalidArgumentError, match="checkpoint="):
        CanaryAudit(run.optimizer, run.loader, checkpoint=missing)
    with pytest.raises(InvalidArgumentError, match="store="):
        CanaryAudit(run.optimizer, run.loader, observation=Observation(store=missing))
    with pytest.warns(AskGaussWarning, match="Poisson"):
        CanaryAudit(run.optimizer, data_loader=DataLoader(DATA, batch_size=16, shuffle=True))
    with pytest.warns(AskGaussWarning, match="20 steps"):
        CanaryAudit(run.optimizer, data_loader=run.loader, present=4, planned_steps=20)


def test_ranks_share_the_faults_of_any():
    clean = RowFacts(steps=9, compared=9)
    faulty = RowFacts(steps=9, compared=9, more=4, more_first=2, multiple=3, more_rows=9)
    merged = rows_over_ranks([clean, faulty])
    assert (merged.more, merged.more_first, merged.multiple) == (4, 2, 3)
    assert not merged.clean
