"""Results where people look: real TensorBoard files, MLflow and wandb where they are installed."""

from __future__ import annotations

import json

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import AskGaussWarning
from askgauss.loggers import (
    Logger,
    MLflow,
    TensorBoard,
    WeightsAndBiases,
    log_numbers,
    log_result,
)


@pytest.fixture(scope="module")
def result():
    chance = np.random.default_rng(0)
    present, absent = chance.normal(4.0, 1.0, 200), chance.normal(0.0, 1.0, 200)
    scores = ag.CanaryScores.from_groups(present=present, absent=absent, membership="randomised")
    return ag.audit(scores, claim=ag.PrivacyClaim(epsilon=1.0, delta=1e-5))


class Kept:
    """A logger of one's own: anything with the three methods."""

    def __init__(self):
        self.seen = []

    def numbers(self, values, *, step):
        self.seen.append((dict(values), step))

    def text(self, name, content, *, step):
        self.seen.append((name, content))

    def document(self, path):
        self.seen.append(path.name)


class Broken(Kept):
    def numbers(self, values, *, step):
        raise ConnectionError("no server")


def test_bound_findings_and_report_reach_a_logger_even_beside_a_broken_one(result):
    kept = Kept()
    assert isinstance(kept, Logger)
    with pytest.warns(AskGaussWarning, match=r"Broken .*ConnectionError"):
        log_result(result, [Broken(), kept], step=7, documents=["audit/report.html"])
    numbers, text, document = kept.seen
    assert numbers[1] == 7
    assert numbers[0]["askgauss/audit_epsilon_lower"] == result.epsilon_lower
    assert numbers[0]["askgauss/audit_violation"] == 1.0
    assert numbers[0]["askgauss/audit_epsilon_claimed"] == 1.0
    assert text[0] == "askgauss/audit"
    assert "Violation" in text[1]
    assert document == "report.html"
    with pytest.warns(AskGaussWarning, match="without"):
        log_numbers({"one": 1.0}, [Broken()], step=1)


def test_without_a_claim_there_is_no_verdict_to_log(result):
    kept = Kept()
    scores = ag.CanaryScores.from_groups(present=[1.0, 2.0, 3.0], absent=[0.0, 0.5, 1.0])
    log_result(ag.audit(scores, delta=1e-5), [kept])
    assert not {"askgauss/audit_violation", "askgauss/audit_epsilon_claimed"} & set(kept.seen[0][0])


def test_tensorboard(result, tmp_path):
    pytest.importorskip("torch")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log_result(result, [TensorBoard(tmp_path)], step=7, documents=[tmp_path / "report.html"])
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    (bound,) = events.Scalars("askgauss/audit_epsilon_lower")
    assert (bound.step, bound.value) == (7, pytest.approx(result.epsilon_lower, rel=1e-6))
    texts = set(events.Tags()["tensors"])
    assert texts == {"askgauss/audit/text_summary", "askgauss/report.html/text_summary"}


def test_mlflow(result, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    document = tmp_path / "report.html"
    document.write_text("<p>report</p>")
    with mlflow.start_run() as run:
        log_result(result, [MLflow()], step=7, documents=[document])
    client = mlflow.MlflowClient()
    (bound,) = client.get_metric_history(run.info.run_id, "askgauss/audit_epsilon_lower")
    assert (bound.step, bound.value) == (7, result.epsilon_lower)
    kept = {item.path for item in client.list_artifacts(run.info.run_id, "askgauss")}
    assert kept == {"askgauss/audit.md", "askgauss/report.html"}


def test_weights_and_biases_offline(result, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    if not hasattr(wandb, "init"):
        pytest.skip("a folder of that name, not the package")
    monkeypatch.setenv("WANDB_SILENT", "true")
    document = tmp_path / "report.html"
    document.write_text("<p>report</p>")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="audits")
    log_result(result, [WeightsAndBiases()], step=7, documents=[document])
    summary = dict(run.summary)
    run.finish()
    assert summary["askgauss/audit_epsilon_lower"] == result.epsilon_lower
    assert summary["askgauss/step"] == 7
    assert "Violation" in summary["askgauss/audit"]
    assert list(tmp_path.rglob("files/report.html"))


def test_nothing_to_log_to_is_said_and_no_more(result):
    if _installed("mlflow"):
        pytest.skip("MLflow is installed, and would log")
    with pytest.warns(AskGaussWarning, match="MLflow"):
        log_result(result, [MLflow()])


def _installed(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


def test_numbers_are_plain(result):
    """A tracking server may store them as JSON."""
    kept = Kept()
    log_result(result, [kept])
    assert json.loads(json.dumps(kept.seen[0][0])) == kept.seen[0][0]
