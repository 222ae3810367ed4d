from __future__ import annotations

import csv
import multiprocessing
from dataclasses import replace

import numpy as np
import pytest

from askgauss.exceptions import FileFormatError, InvalidArgumentError
from askgauss.files import codec
from askgauss.files.lock import RunFolderBusyError, locked
from askgauss.files.run_folder import RunFolder
from askgauss.results import AuditResult, Verdict
from askgauss.simulation import simulate_scores
from askgauss.stats import guess_counts
from askgauss.stats.guess_counts import GuessCounts
from paper import figures_bounds, paper_figure, reproduce, scatter, uncorrected
from paper.csv_rows import csv_text
from tests.paper.test_deep import few_digits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Everything at the smallest scale, once."""
    place = tmp_path_factory.mktemp("paper")
    reproduce.run("smoke", folder=place / "run", data_folder=place / "data", progress=False)
    return place


def _rows(folder, name):
    with (folder / "run" / "figures" / f"{name}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_figure_is_there(folder):
    for name in reproduce.FIGURES:
        for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("csv", b"")):
            content = (folder / "run" / "figures" / f"{name}.{kind}").read_bytes()
            assert content.startswith(start)
            assert len(content) > 50
    page = (folder / "run" / "reproduction.md").read_text()
    assert "A rehearsal" in page
    for name in reproduce.FIGURES:
        assert f"figures/{name}.svg" in page
    assert page.count("\n| ") > 12


def test_sound_bounds_do_not_exceed_what_is_claimed(folder):
    """At confidence .95 some may, but not by much and not many of two dozen."""
    rows = [row for row in _rows(folder, "bounds") if row["kind"] == paper_figure.SOUND]
    methods = {row["method"] for row in rows}
    assert {"subsampled-gaussian", "gaussian-shift", "one-run", "one-run-fdp"} <= methods
    above = [row for row in rows if float(row["bound"]) > float(row["epsilon"])]
    assert len(above) <= 3
    steps = {r["epsilon"]: float(r["bound"]) for r in rows if r["method"] == "subsampled-gaussian"}
    assert steps["8"] > 5.0


def test_every_run_carries_its_audit(folder):
    found = sorted((folder / "run").glob("*/runs/*/result.json"))
    names = [f"{path.parts[-4]}/{path.parts[-2]}" for path in found]
    kinds = ("dpftrl/sound", "dpsgd/published", "dpsgd/sound")
    assert names == [f"{kind}-{epsilon}" for kind in kinds for epsilon in (2, 8)]
    for path in found:
        result = AuditResult.from_json(path.read_bytes())
        assert result.claim.epsilon == float(path.parts[-2].rpartition("-")[2])
        assert result.verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE)


def test_uncorrected_baselines_are_marked(folder):
    rows = _rows(folder, "bounds")
    marked = {row["method"] for row in rows if row["kind"] == paper_figure.UNCORRECTED}
    assert marked == {"f-DP, best threshold", "one run, best threshold"}
    import askgauss

    assert not any("uncorrected" in name for name in askgauss.__all__)


def test_nothing_is_done_twice(folder, monkeypatch):
    def refuse(*arguments, **more):
        raise AssertionError("trained again")

    monkeypatch.setattr("paper.train_dpsgd._ParallelRuns.advance", refuse)
    monkeypatch.setattr("paper.linear_heads.Heads.clipped_sum", refuse)
    before = (folder / "run" / "figures" / "gram.svg").read_bytes()
    reproduce.run(
        "smoke",
        folder=folder / "run",
        data_folder=folder / "data",
        figures=["gram", "convergence"],
        progress=False,
    )
    # The same numbers draw the same file.
    assert (folder / "run" / "figures" / "gram.svg").read_bytes() == before


def test_another_seed_needs_another_folder(folder):
    with pytest.raises(FileFormatError, match="another plan"):
        reproduce.run(
            "smoke", folder=folder / "run", data_folder=folder / "data", seed=1, progress=False
        )


def test_publish_copies_the_page(folder, tmp_path):
    reproduce.publish(folder / "run", tmp_path)
    assert (tmp_path / "reproduction.md").exists()
    assert (tmp_path / "figures" / "bounds.svg").exists()


def test_wrong_names_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="figures"):
        reproduce.run("smoke", folder=tmp_path, figures=["nonsense"], progress=False)
    with pytest.raises(InvalidArgumentError, match="scale"):
        reproduce.run("huge", folder=tmp_path, progress=False)


def test_the_full_scale_is_the_paper_s():
    scale = reproduce.SCALES["full"]
    assert scale.data == "cifar10"
    assert scale.sampling_rate * 50_000 == 4096
    assert (scale.steps, scale.canaries, scale.epsilons) == (2500, 5000, (1, 2, 4, 8))
    assert (*scale.snapshots, scale.steps) == (50, 100, 250, 500, 1000, 2500)
    assert (scale.tree_steps, scale.tree_batch) == (128, 380)
    assert scale.tree_steps * scale.tree_batch <= 50_000


def test_features_are_cached_and_gone_on_with(tmp_path, monkeypatch):
    images = few_digits(300, 40)
    whole = scatter.features(images, folder=tmp_path / "a", groups=9)
    assert whole.train.shape == (300, 324)
    assert whole.size == 324
    # Every group of nine channels has mean 0 and variance 1, up to half precision.
    groups = whole.train.astype(np.float64).reshape(300, 9, -1)
    np.testing.assert_allclose(groups.mean(axis=2), 0.0, atol=2e-3)

    class Stop(Exception):
        pass

    def stop(done, of):
        if done >= 250:
            raise Stop

    monkeypatch.setattr(scatter, "_CHUNK", 10)
    with pytest.raises(Stop):
        scatter.features(images, folder=tmp_path / "b", groups=9, progress=stop)
    assert not list((tmp_path / "b" / "scatter").glob("*.npy"))
    seen = []
    again = scatter.features(
        images, folder=tmp_path / "b", groups=9, progress=lambda done, of: seen.append(done)
    )
    assert seen[0] == 170
    np.testing.assert_allclose(again.train.astype(float), whole.train.astype(float), atol=2e-3)
    np.testing.assert_allclose(again.test.astype(float), whole.test.astype(float), atol=2e-3)


def test_uncorrected_is_the_best_of_all_thresholds():
    scores = simulate_scores(
        steps=100, sampling_rate=0.3, noise_multiplier=1.0, present=60, absent=60, seed=0
    )
    level = {"delta": 1e-5, "confidence": 0.95}
    order = np.argsort(-scores.score)
    correct = np.cumsum(scores.member[order])
    for ours, counts in (
        (uncorrected.uncorrected_one_run, guess_counts.epsilon_from_counts),
        (uncorrected.uncorrected_fdp, guess_counts.gaussian_from_counts),
    ):
        brute = max(
            counts(GuessCounts(canaries=120, guesses=guesses + 1, correct=int(right)), **level)
            for guesses, right in enumerate(correct)
        )
        assert ours(scores, **level) == pytest.approx(brute, rel=1e-6)


def test_a_subset_is_a_smaller_audit():
    import askgauss as ag

    run = {"steps": 40, "sampling_rate": 0.3, "noise_multiplier": 1.0}
    transcript = ag.simulate_dpsgd(**run, present=50, absent=50, seed=0)
    part = np.arange(20, 70)
    small = figures_bounds.subset(transcript, part)
    np.testing.assert_array_equal(small.scores().score, transcript.scores().score[part])
    assert ag.audit(small, delta=1e-5, diagnostics=False).epsilon_lower > 0.0


def test_csv_text():
    assert csv_text([{"a": 1 / 3, "b": "x"}]) == "a,b\n0.3333333333,x\n"


# --- run folders and sweeps ------------------------------------------------------------------


def _hold(path, ready, done):
    with locked(path):
        ready.set()
        done.wait(600)


def test_two_processes_do_not_share_a_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    (tmp_path / "run").mkdir()
    holder = context.Process(target=_hold, args=(tmp_path / "run" / ".lock", ready, done))
    holder.start()
    try:
        assert ready.wait(600)
        with (
            pytest.raises(RunFolderBusyError, match="another process"),
            RunFolder(tmp_path / "run", {}),
        ):
            pass
    finally:
        done.set()
        holder.join(600)
    with RunFolder(tmp_path / "run", {}):
        assert (tmp_path / "run" / "run.json").exists()


def test_a_checkpoint_is_whole_or_not_there(tmp_path):
    with RunFolder(tmp_path / "run", {}) as folder:
        folder.save_checkpoint(5, lambda place: (place / "x").write_text("five"))

        def fail(place):
            (place / "x").write_text("half")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            folder.save_checkpoint(10, fail)
        step, place = folder.last_checkpoint()
        assert (step, (place / "x").read_text()) == (5, "five")
        folder.save_checkpoint(10, lambda place: (place / "x").write_text("ten"))
        assert folder.last_checkpoint()[0] == 10
        assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1


def test_a_plan_is_the_same_plan_whatever_the_number_of_threads(tmp_path):
    """Calibrated noise differs in its ninth digit between numbers of threads, and may."""
    plan = codec.to_plain(reproduce.dpsgd_plan(reproduce.SCALES["smoke"], seed=0))
    plans = [plan, _scaled(plan, 1.0 + 1e-8)]
    for plan in plans:
        with RunFolder(tmp_path, {"plan": plan}) as folder:
            assert folder.config == {"plan": plans[0]}
    for other in (_scaled(plans[0], 1.0 + 1e-5), plans[0] | {"steps": 61}):
        with (
            pytest.raises(FileFormatError, match="another plan"),
            RunFolder(tmp_path, {"plan": other}),
        ):
            pass


def _scaled(plan, factor):
    heads = [
        head | {"noise_multiplier": head["noise_multiplier"] * factor} for head in plan["heads"]
    ]
    return plan | {"heads": heads}


def test_the_digits_a_run_was_started_with_are_kept(folder, monkeypatch):
    """What was trained under another number of threads is gone on with, and not done again."""
    whole = reproduce.dpsgd_plan

    def elsewhere(scale, **options):
        plan = whole(scale, **options)
        heads = [
            replace(head, noise_multiplier=head.noise_multiplier * (1.0 + 1e-8))
            for head in plan.heads
        ]
        return replace(plan, heads=tuple(heads))

    monkeypatch.setattr(reproduce, "dpsgd_plan", elsewhere)
    monkeypatch.setattr("paper.train_dpsgd._ParallelRuns.advance", pytest.fail)
    reproduce.run(
        "smoke",
        folder=folder / "run",
        data_folder=folder / "data",
        figures=["bounds"],
        progress=False,
    )


def test_shares_are_called_the_same_only_where_the_numbers_beside_them_are():
    """A range that covers theirs with its trend reversed is not the same."""
    reversed_trend = {1.0: 0.81, 8.0: 5.58}
    told = figures_bounds._why_share(reversed_trend, {1.0: 0.81, 8.0: 7.3})
    assert told.startswith("not the same: 70% against 84% at epsilon 8")
    assert "91% with it taken out" in told
    assert figures_bounds._why_share({1.0: 0.65, 8.0: 6.7}, {}) == "same, within 5 points"
    assert figures_bounds._why_share({1.0: 0.4, 8.0: 6.7}, {8.0: 6.0}).startswith("not the same")
