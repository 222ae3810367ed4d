"""jax_privacy's Keras models, audited by one callback."""

from __future__ import annotations

import pytest

from tests.integrations import keras_process

pytest.importorskip("jax_privacy")
pytest.importorskip("optree", reason="Keras is not installed")


@pytest.fixture(scope="module")
def outcomes():
    return keras_process.printed()


@pytest.mark.parametrize("run", ["correct", "microbatches"])
def test_a_correct_model_is_consistent(outcomes, run):
    # Seeds of canaries and run are fixed; another pair would fail once in a thousand.
    assert outcomes[run]["verdict"] == "CONSISTENT", outcomes[run]["text"]
    assert outcomes[run]["epsilon"] > 0.9 * 7.6


def test_half_the_noise_is_a_violation(outcomes):
    assert outcomes["half noise"]["verdict"] == "VIOLATION"
    assert "noise scale" in outcomes["half noise"]["failed"]


def test_shuffled_epochs_are_not_called_poisson(outcomes):
    text = " ".join(outcomes["shuffled"]["text"].split())
    assert "shuffled epochs of 5 batches, and Poisson sampling at rate 0.2 was accounted" in text


def test_steps_of_a_fit_without_the_callback_are_counted(outcomes):
    # A quarter of the run was not seen: its bound is no longer that of the whole.
    assert outcomes["unseen"]["epsilon"] < 0.95 * outcomes["correct"]["epsilon"]
    assert "25 of 100 steps were taken without" in " ".join(outcomes["unseen"]["text"].split())


def test_steps_that_the_model_forgot_are_counted(outcomes):
    """Its counter went back with its weights: what was released in between stays released."""
    text = " ".join(outcomes["put back"]["text"].split())
    assert "125 steps were released, 25 of them not observed, and 100 accounted for" in text
    assert "125 steps were released where the model's own counter says 100" in text
    assert "step count" in outcomes["put back"]["failed"]


def test_steps_whose_readings_were_put_back_too_are_counted(outcomes):
    run = outcomes["put back within fit"]
    text = " ".join(run["text"].split())
    assert "125 steps were released, 25 of them not observed, and 100 accounted for" in text
    assert run["verdict"] == "VIOLATION"


def test_weights_that_changed_while_no_step_was_counted_are_not_passed(outcomes):
    run = outcomes["put back and unseen"]
    assert "weights between steps" in run["failed"]
    assert run["verdict"] == "INVALID"


def test_weights_written_between_steps_are_not_passed(outcomes):
    """Here the mean of the training data is added to the weights after every batch."""
    run = outcomes["written"]
    assert run["verdict"] == "INVALID"
    assert "weights between steps" in run["failed"]
    assert "with callback.audit.postprocessing():" in " ".join(run["text"].split())


def test_declared_postprocessing_and_the_steps_of_correct_runs_change_nothing(outcomes):
    assert outcomes["clamped"]["verdict"] == "CONSISTENT", outcomes["clamped"]["text"]
    assert "100 changes were declared postprocessing" in " ".join(
        outcomes["clamped"]["all"].split()
    )
    for run in ("correct", "microbatches", "unseen", "half noise", "shuffled"):
        assert "weights between steps" not in outcomes[run]["failed"]


def test_the_average_that_an_optimizer_ends_fit_with_is_no_change(outcomes):
    assert outcomes["averaged"]["verdict"] == "CONSISTENT", outcomes["averaged"]["text"]


def test_a_model_trains_on_without_canaries_after_an_interrupt(outcomes):
    for place, left, variables in outcomes["interrupted"]:
        assert (left, variables) == ([], 0), place


@pytest.mark.parametrize("run", ["correct", "microbatches", "shuffled", "unseen", "half noise"])
def test_nothing_of_the_audit_stays_in_the_model(outcomes, run):
    assert outcomes[run]["weights"] == 0


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("before fit", "Expected fit() to have run"),
        ("not private", "make_private(model, config) before fit()"),
        ("accumulated", "Expected gradient_accumulation_steps=1, got 2"),
        ("another model", "Make an AuditCallback for each model"),
    ],
)
def test_what_cannot_be_audited_is_refused(outcomes, case, words):
    assert words in outcomes[case]
