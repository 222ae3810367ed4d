"""docs/limits.md, sentence by sentence: each has a test that fails if it were false."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus import CanaryAudit, Observation
from askgauss.integrations.opacus.row_watch import LoaderWatch, TrainedRows
from askgauss.integrations.opacus.run_description import TrainingRun
from tests.integrations.runs import RECORDS, make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROOT = Path(__file__).parents[1]

# Definitions, headings and advice: nothing that a run could show to be false.
NO_PROMISE: tuple[str, ...] = ()

_SCOPE = "tests/test_scope.py::"
_OPACUS = "tests/integrations/test_opacus.py::"
_ROWS = "tests/integrations/test_trained_rows.py::"
_WEIGHTS = "tests/integrations/test_opacus_weights.py::"
_WITNESS = "tests/integrations/test_opacus_witness.py::"
_SHARDED = "tests/integrations/test_opacus_sharded.py::"
_LOOKED_AT = _SHARDED + "test_what_is_looked_at_where_parameters_are_shared_out"
_SETTINGS = "tests/integrations/test_opacus_settings.py::"
_SEEDS = "tests/integrations/test_opacus_seeds.py::"
_FAULTS = "tests/faults/test_opacus_faults.py::"
_CHECKS = "tests/checks/test_checks.py::"
_HERE = "tests/test_limits.py::"
_MIXED = "tests/integrations/test_mixed_records.py::"
_REUSE = "tests/checks/test_reuse.py::"
_TREE = "tests/checks/test_tree_leaks.py::"
_SHIFTED = "test_leaves_that_have_the_noise_of_the_one_before_shifted_by_one"
_OUTSIDE = (
    _SCOPE + "test_every_output_lists_what_canaries_did_not_meet_and_what_no_audit_sees",
    _SCOPE + "test_the_page_on_limits_names_every_part_and_what_is_outside",
)

# How each sentence or row of the page begins, and the tests that hold it.
PROMISES: dict[str, tuple[str, ...]] = {
    "`mixed records` looks at": (
        _MIXED + "test_records_that_meet_before_clipping_are_found",
        _MIXED + "test_correct_runs_mix_nothing",
    ),
    "The loss is differentiated twice": (
        _MIXED + "test_what_a_loss_takes_from_detached_outputs_is_found",
    ),
    "It does not detect: the mean": (_MIXED + "test_what_was_not_looked_at_is_said",),
    "Inputs that are neither rows": (
        _MIXED + "test_what_was_not_looked_at_is_said",
        _MIXED + "test_a_loss_that_cannot_be_repeated_is_not_taken_for_clean",
        _MIXED + "test_other_records_in_a_second_call_are_not_taken_for_the_same",
    ),
    "Rows that were drawn for an earlier step": (
        _ROWS + "test_rows_of_earlier_draws_in_the_place_of_drawn_ones_are_not_called_fine",
    ),
    "There, noise that is shifted by one": (
        _REUSE + "test_watched_places_show_noise_that_is_reversed_or_shifted_in_large_tensors",
    ),
    "The result prints the share": (_REUSE + "test_correct_runs_say_what_share_was_compared",),
    "Prefix sums of a tree": (_TREE + _SHIFTED,),
    "Whether the noise of one node": (_TREE + _SHIFTED,),
    "A verdict covers the parts": (_SCOPE + "test_a_part_is_fine_only_if_a_deciding_check_ran",),
    "Every result lists them": (_SCOPE + "test_every_output_carries_the_scope",),
    "| part |": NO_PROMISE,
    "| noise scale, noise freshness |": (
        _FAULTS + "test_noise",
        _FAULTS + "TestRecordsAsCanaries::test_half_the_noise",
        "tests/integrations/test_reused_noise.py::"
        "test_fresh_noise_passes_and_the_scope_says_what_was_compared",
    ),
    "| sampler: who is in a batch": (
        "tests/integrations/test_opacus_loader.py::"
        "test_a_cyclic_sampler_accounted_as_poisson_breaks_the_claim_undeclared",
        _FAULTS + "TestRecordsAsCanaries::test_a_sampler_at_twice_its_rate",
    ),
    "| per-sample gradient:": (
        _SCOPE + "test_canaries_do_not_test_the_per_sample_gradient",
        _SCOPE + "test_a_replay_tests_the_per_sample_gradient",
    ),
    "| clipping |": (
        _FAULTS + "test_clipping_is_not_met_by_canaries_in_the_sum_but_by_the_witness",
        _FAULTS + "test_clipping",
        _FAULTS + "TestRecordsAsCanaries::test_clipping_that_is_off",
    ),
    "| weighting of clients": (_SCOPE + "test_rounds_have_weights_and_records_have_gradients",),
    "| adjacency of the claim |": (
        "tests/sampling/test_replaced.py::"
        "test_an_add_remove_epsilon_claimed_of_replaced_records_is_a_violation",
        "tests/sampling/test_replaced.py::"
        "test_a_method_of_add_remove_neighbours_does_not_clear_a_replace_one_claim",
    ),
    "| privacy unit: user |": (
        "tests/sampling/test_replaced.py::test_a_user_is_not_shown_by_canaries_that_are_examples",
        "tests/integrations/test_jax_users.py::test_a_user_is_one_record_of_the_strategy_below",
    ),
    "| steps, accountant |": (
        _CHECKS + "TestSignal::test_step_count",
        _FAULTS + "test_steps_the_accountant_did_not_count",
    ),
    "| weights, trained parameters:": (
        _WEIGHTS + "test_weights_written_past_the_optimizer_are_named",
        _WEIGHTS + "test_a_layer_outside_the_optimizer_that_changes_is_named",
    ),
    "A part that the canaries went through": (
        _SCOPE + "test_green_needs_every_part_that_canaries_met",
    ),
    "So do *adjacency* and *privacy unit*": (
        "tests/sampling/test_replaced.py::"
        "test_a_method_of_add_remove_neighbours_does_not_clear_a_replace_one_claim",
        "tests/sampling/test_replaced.py::test_a_user_is_not_shown_by_canaries_that_are_examples",
    ),
    "A part that the canaries did not go through": (
        _SCOPE + "test_a_part_canaries_did_not_meet_is_not_tested_whatever_ran",
        _OPACUS + "test_real_run_reaches_most_of_its_claim_at_no_cost_in_accuracy",
    ),
    "An input-space canary meets both": (
        _SCOPE + "test_canaries_do_not_test_the_per_sample_gradient",
    ),
    "The exact step checks, the shadow optimizer and": NO_PROMISE,
    "Their own limits:": NO_PROMISE,
    "The exact step checks look at a share": (_WITNESS + "test_a_share_of_the_steps_is_looked_at",),
    "They take per-sample gradients": (
        _HERE + "test_per_sample_gradients_are_believed",
        _WITNESS + "test_a_ghost_norm_that_is_wrong_in_one_layer_is_named",
    ),
    "Over several processes each looks": (
        "tests/integrations/test_opacus_ddp.py::test_a_fault_of_any_rank_is_named_by_all_of_them",
        _HERE + "test_when_batches_are_compared_with_the_scheme",
    ),
    "Where parameters are shared out": (_LOOKED_AT,),
    "That every tensor gets noise": (
        _LOOKED_AT,
        _SHARDED + "test_a_rank_without_noise_is_named",
    ),
    "That gradients are averaged over": (
        _SHARDED + "test_gradients_that_are_summed_where_noise_is_for_an_average_are_named",
    ),
    "With noise added inside the backward": (_LOOKED_AT,),
    "With adaptive clipping the canaries": (
        _OPACUS + "test_adaptive_clipping_is_recorded_with_its_own_noise",
        "tests/integrations/test_opacus_trials.py::"
        "test_the_count_of_unclipped_records_has_its_noise",
    ),
    "In adaptive ghost clipping records": (
        "tests/integrations/test_opacus_trials.py::test_steps_that_differ_are_composed",
        "tests/checks/test_clip_count.py::"
        "test_a_count_that_the_clip_norm_never_tells_breaks_nothing",
    ),
    "Settings that move smoothly": (
        _SETTINGS + "test_a_schedule_by_hand_is_taken_on_trust",
        _SETTINGS + "test_a_metric_that_rules_the_rate_is_taken_on_trust",
    ),
    "Only values that go up and down": (
        _SETTINGS + "test_courses",
        _SETTINGS + "test_a_setting_taken_from_the_batch_is_named",
    ),
    "The shadow follows thousands": (
        _WEIGHTS + "test_the_shadow_ends_where_the_whole_optimizer_does",
        _WEIGHTS + "test_weights_that_change_after_the_last_step_are_named",
    ),
    "What is done to the weights afterwards": (
        _HERE + "test_what_is_done_to_the_weights_afterwards_is_not_seen",
    ),
    "Averages of released weights": (
        _WEIGHTS + "test_weights_written_past_the_optimizer_are_named",
        _WEIGHTS + "test_weights_that_change_after_the_last_step_are_named",
    ),
    "In bfloat16 it sees differences": (_WEIGHTS + "test_other_precisions_are_followed",),
    "An optimizer class that was itself changed": (
        _HERE + "test_an_optimizer_class_changed_in_place_is_followed_as_it_is",
    ),
    "A loaded optimizer state is compared": (
        _WEIGHTS + "test_clean_gradients_in_a_loaded_state_are_no_release",
    ),
    "The loader's batches are compared with": (
        _HERE + "test_when_batches_are_compared_with_the_scheme",
    ),
    "Where a step trains on something else": (
        _ROWS + "test_every_other_fault_is_named_first",
        _ROWS + "test_a_loss_that_is_not_a_number_is_no_reason_to_leave_a_batch_out",
        _HERE + "test_when_batches_are_compared_with_the_scheme",
    ),
    "Trained rows are compared by number": (
        _ROWS + "test_correct_loops_are_clean",
        _ROWS + "test_a_model_that_is_called_past_opacus_module_is_heard_too",
    ),
    "As many transformed rows": (
        _HERE + "test_as_many_changed_rows_of_other_records_are_not_detected",
    ),
    "Where clipping happens inside": (_LOOKED_AT,),
    "Batches that no step used are found": (
        _ROWS + "test_batches_left_out_after_a_look_at_them_are_found_at_any_place",
    ),
    "Whole passes of at least four batches": (
        _ROWS + "test_whole_passes_that_a_schedule_skips_are_no_fault",
    ),
    "Single records are followed up to": (
        "tests/sampling/test_drawn_batches.py::test_some_of_many_records_are_followed",
    ),
    "All noise is compared with all other": (
        "tests/integrations/test_reused_noise.py::"
        "test_noise_that_is_used_again_is_found_and_named_first",
        "tests/integrations/test_jax.py::test_noise_of_another_tensor_is_found",
        _HERE + "test_of_larger_jax_models_a_part_of_the_noise_is_compared",
        "tests/checks/test_reuse.py::test_correct_runs_say_what_share_was_compared",
    ),
    "Reuse of fewer values than": (
        "tests/integrations/test_reused_noise.py::"
        "test_values_in_another_order_are_found_in_larger_models",
        "tests/test_noise_sample.py::"
        "test_short_formats_zeros_and_constant_noise_are_no_noise_used_again",
    ),
    "Reports are drawn with matplotlib": (
        "tests/report/test_html.py::test_pages_of_threads_are_those_of_one",
    ),
    "Another thread that draws meanwhile": NO_PROMISE,
    "No canary shows these": _OUTSIDE,
    "**Settings and metadata": _OUTSIDE,
    "A normaliser that depends on": (
        "tests/integrations/test_opacus_replay.py::"
        "test_the_divisor_of_opacus_follows_the_number_of_records",
        _WITNESS + "test_a_divisor_that_follows_the_batch_is_named",
    ),
    "**Logged losses and metrics**": _OUTSIDE,
    "**Tuning and early stopping**": _OUTSIDE,
    "**Buffers such as": _OUTSIDE,
    "Validate the model.": NO_PROMISE,
    "**Random seeds that can be guessed.**": (
        _SEEDS + "test_a_generator_of_a_likely_seed_is_found",
        _SEEDS + "test_a_seed_set_right_before_the_loop_is_found",
        "tests/integrations/test_jax.py::test_keys_of_loops_are_tried",
    ),
    "It does not detect a seed outside": (
        _SEEDS + "test_unguessable_noise_passes_and_says_what_was_tried",
        _SEEDS + "test_a_seed_at_the_top_of_the_script_is_not_followed_and_the_result_says_so",
        _HERE + "test_the_generator_of_torch_keeps_32_bits_of_its_seed",
    ),
    "**Floating-point attacks**": _OUTSIDE,
    "Use a secure generator": NO_PROMISE,
    "**Hyper-parameter search**": _OUTSIDE,
    "The pitfalls that JAX Privacy": NO_PROMISE,
    "| pitfall |": NO_PROMISE,
    "| division by the batch size |": (
        _WITNESS + "test_a_divisor_that_follows_the_batch_is_named",
        "tests/integrations/test_jax.py::"
        "test_a_division_by_the_size_of_the_batch_inside_the_transformation_is_named",
        "tests/integrations/test_jax.py::"
        "test_a_division_behind_the_transformation_is_not_tested_and_said_not_to_be",
        "tests/checks/test_values.py::test_noise_that_follows_the_size_of_the_batch",
    ),
    "| sensitivity alignment |": (
        _CHECKS + "TestSignal::test_contribution_is_measured",
        _WITNESS + "test_what_is_wrong_with_the_sum_is_named",
        _FAULTS + "test_noise_that_forgets_the_clip_norm",
    ),
    "| accounting and batch selection |": (
        _CHECKS + "TestSignal::test_sampling_scheme_is_named",
        _CHECKS + "TestSignal::test_sampling_rate",
        "tests/integrations/test_opacus_facts.py::test_the_claim_is_held_against_the_accountant",
    ),
    "| public and private metadata |": _OUTSIDE,
    "| neighbouring relation |": (
        "tests/integrations/test_opacus_named.py::"
        "test_an_add_remove_epsilon_claimed_of_replaced_records_is_a_violation",
        "tests/sampling/test_replaced.py::test_a_user_is_not_shown_by_canaries_that_are_examples",
    ),
    "| empty batches, non-finite values |": (
        _OPACUS + "test_steps_without_noise_are_counted",
        _OPACUS + "test_nan_gradients_are_recorded_and_training_goes_on",
        _ROWS + "test_empty_batches_that_are_skipped_are_counted",
    ),
    "| gradient accumulation |": (
        _FAULTS + "test_noise_split_over_physical_batches",
        _FAULTS + "TestRecordsAsCanaries::test_gradients_that_are_not_cleared",
        _ROWS + "test_a_record_that_comes_twice_is_seen_wherever_it_is_doubled",
    ),
    "| operations across examples |": (
        "tests/integrations/test_opacus_replay.py::test_a_leak_is_named_and_its_clean_twin_is_not",
        _SCOPE + "test_canaries_do_not_test_the_per_sample_gradient",
    ),
    "| auxiliary information |": (
        _WEIGHTS + "test_weights_written_past_the_optimizer_are_named",
        *_OUTSIDE,
    ),
    "| randomness |": (
        _SEEDS + "test_a_generator_of_a_likely_seed_is_found",
        _CHECKS + "test_repeated_noise_names_the_steps",
        _CHECKS + "test_shared_noise_names_the_tensors",
    ),
    "| floating point |": (_CHECKS + "test_precision_is_seen_before_and_after_scaling",),
    "| finite precision |": (_CHECKS + "TestNoiseScale::test_measures_the_multiplier",),
    "And a bound is a lower bound": (
        "tests/simulation/test_faults.py::"
        "test_clipping_and_sampling_are_not_met_by_canaries_with_a_coin_of_their_own",
    ),
}


def blocks(page: str) -> Iterator[str]:
    """Paragraphs, points of lists and rows of tables."""
    lines: list[str] = []
    for line in [*page.splitlines(), ""]:
        text = line.strip()
        if lines and (not text or text[0] in "#|" or text.startswith("- ")):
            yield " ".join(lines)
            lines = []
        if text.startswith("|"):
            if set(text) - set("|-: "):
                yield text
        elif text and not text.startswith("#"):
            lines.append(text.removeprefix("- "))


def sentences() -> list[str]:
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    found: list[str] = []
    for block in blocks(page):
        found += [block] if block[0] == "|" else re.split(r"(?<=\.)\s+(?=[A-Z`*\[])", block)
    return found


@functools.cache
def named_in(path: str) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inside = (item.name for item in node.body if isinstance(item, ast.FunctionDef))
            names.update(f"{node.name}::{name}" for name in inside)
    return frozenset(names)


def test_every_sentence_of_the_page_has_tests_that_exist():
    found = sentences()
    for sentence in found:
        assert sum(sentence.startswith(begin) for begin in PROMISES) == 1, sentence
    for begin, tests in PROMISES.items():
        assert sum(sentence.startswith(begin) for sentence in found) == 1, begin
        for test in tests:
            path, name = test.split("::", 1)
            assert name in named_in(path), test


# --- promises that no other test holds ---------------------------------------------------------


def failed(result):
    return {item.check for item in result.findings if item.status.value == "fail"}


def step(run, features, target):
    run.optimizer.zero_grad()
    run.criterion(run.model(features), target).backward()
    run.optimizer.step()


def audited(loop, **options):
    run = make_run()
    with CanaryAudit(
        run.optimizer,
        data_loader=run.loader,
        model=run.model,
        seed=0,
        present=20,
        absent=40,
        **options,
    ) as audit:
        loop(run)
    return run, audit


def test_per_sample_gradients_are_believed():
    def loop(run):
        for features, target in run.loader:
            run.optimizer.zero_grad()
            run.criterion(run.model(features), target).backward()
            for item in run.model.parameters():
                item.grad_sample = torch.randn_like(item.grad_sample)
            run.optimizer.step()

    facts = audited(loop, observation=Observation(exact_share=1.0))[1].transcript().facts.witness
    assert facts is not None
    assert facts.steps == RECORDS // 16
    assert not failed(audited(loop, observation=Observation(exact_share=1.0))[1].result(delta=1e-5))


def test_what_is_done_to_the_weights_afterwards_is_not_seen():
    run, audit = audited(lambda run: run.train(1))
    with torch.no_grad():
        next(run.model.parameters()).add_(1.0)
    assert not failed(audit.result(delta=1e-5))


def test_an_optimizer_class_changed_in_place_is_followed_as_it_is(monkeypatch):
    plain = torch.optim.SGD.step

    def doubled(self, closure=None):
        plain(self)
        return plain(self)

    monkeypatch.setattr(torch.optim.SGD, "step", doubled)
    audit = audited(lambda run: run.train(1))[1]
    assert audit.transcript().facts.weights.otherwise == 0


def test_as_many_changed_rows_of_other_records_are_not_detected():
    def loop(run):
        others = iter(DataLoader(run.loader.dataset, batch_size=RECORDS, shuffle=True))
        shuffled, labels = next(others)
        for features, _ in run.loader:
            count = len(features)
            step(run, shuffled[:count] + 0.1, labels[:count])

    rows = audited(loop)[1].transcript().facts.rows
    assert rows.clean
    assert rows.identified == 0


@pytest.mark.parametrize(
    ("processes", "batches", "compared"), [(1, 1, True), (2, 1, False), (1, 2, False)]
)
def test_when_batches_are_compared_with_the_scheme(processes, batches, compared):
    run = make_run()
    described = TrainingRun.of(
        run.optimizer,
        data_loader=run.loader,
        model=run.model,
        accountant=None,
        sampling_rate=None,
        sampling=None,
    )
    described = replace(described, world=processes)
    rows = TrainedRows(described)
    watch = LoaderWatch(described, rows)
    with Attachment() as attachment:
        rows.attach(attachment)
        for features, target in run.loader:
            run.optimizer.zero_grad()
            run.criterion(run.model(features), target).backward()
            rows.sum_ready()
            rows.before_noise(None)
            for item in (rows, watch):
                item.released(SimpleNamespace(batches=batches), None)
    assert (watch.facts(None)["batches"] is not None) is compared


@pytest.mark.parametrize(("rows", "whole"), [(1 << 11, True), (1 << 12, False)])
def test_of_larger_jax_models_a_part_of_the_noise_is_compared(rows, whole):
    pytest.importorskip("jax")
    from askgauss.integrations.jax.step_noise import SampledLeaves

    (leaf,) = SampledLeaves([(rows, 512)], ["float32"], steps=10, deviation=1.0)._leaves
    assert (leaf.looked_at == rows * 512) is whole


def test_the_generator_of_torch_keeps_32_bits_of_its_seed():
    drawn = [torch.randn(4, generator=torch.Generator().manual_seed(s)) for s in (7, 7 + 2**32)]
    assert torch.equal(*drawn)
