from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from askgauss import CanaryScores, PrivacyClaim, audit
from askgauss.exceptions import FileFormatError, InvalidArgumentError, ScoresError
from askgauss.files import archive
from askgauss.scores import ScoreMetadata

finite = st.floats(-1e6, 1e6, allow_nan=False).filter(lambda x: x == 0.0 or abs(x) > 1e-140)


def groups(minimum=2, maximum=40):
    return hnp.arrays(np.float64, st.integers(minimum, maximum), elements=finite)


@given(present=groups(), absent=groups())
def test_groups_come_back_as_given(present, absent):
    scores = CanaryScores.from_groups(present=present, absent=absent)
    np.testing.assert_array_equal(scores.present, present)
    np.testing.assert_array_equal(scores.absent, absent)
    assert len(scores) == present.size + absent.size


@given(present=groups(), absent=groups())
def test_moments_are_numpys(present, absent):
    ours = CanaryScores.from_groups(present=present, absent=absent).moments()
    for moments, values in zip(ours, (present, absent), strict=True):
        assert moments.count == values.size
        assert moments.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-9)
        assert moments.variance == pytest.approx(values.var(ddof=1), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("unit", [1e-200, 1e-310, 1e141, 1e300])
def test_scores_whose_squares_are_no_numbers_are_refused(unit):
    """They would read as scores without noise, an unbounded leak, or as nan."""
    with pytest.raises(ScoresError, match="Rescale"):
        audit(CanaryScores.from_groups(present=[unit, 2 * unit], absent=[0.0, unit]), delta=1e-5)


@pytest.mark.parametrize("unit", [1e-130, 1e130])
def test_the_unit_of_scores_does_not_matter(unit):
    generator = np.random.default_rng(0)
    present, absent = generator.normal(1, 1, 50), generator.normal(0, 1, 50)
    plain = CanaryScores.from_groups(present=present, absent=absent)
    other = CanaryScores.from_groups(present=unit * present, absent=unit * absent)
    bounds = [audit(run, delta=1e-5, diagnostics=False).epsilon_lower for run in (plain, other)]
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-9)


def test_moments_keep_their_digits_far_from_zero():
    values = 1e9 + np.arange(5, dtype=np.float64)
    present, _ = CanaryScores.from_groups(present=values, absent=values).moments()
    assert present.sum_of_squares == 10.0


def test_moments_in_pieces(monkeypatch):
    generator = np.random.default_rng(0)
    present, absent = generator.normal(3, 1, 1000), generator.normal(0, 2, 1500)
    scores = CanaryScores.from_groups(present=present, absent=absent)
    whole = scores.moments()
    monkeypatch.setattr("askgauss.scores._CHUNK", 64)
    for one, other in zip(whole, scores._compute_moments(), strict=True):
        assert one.count == other.count
        assert one.mean == pytest.approx(other.mean, rel=1e-14)
        assert one.sum_of_squares == pytest.approx(other.sum_of_squares, rel=1e-13)


def test_arrays_are_read_only_copies():
    score, member = np.arange(4.0), np.array([True, True, False, False])
    scores = CanaryScores(score=score, member=member, ids=np.array(["a", "b", "c", "d"]))
    score[0] = 99.0
    assert scores.score[0] == 0.0
    for array in (scores.score, scores.member, scores.ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float16, np.float32])
def test_other_number_types_become_float64(dtype):
    scores = CanaryScores.from_groups(present=np.array([1, 2, 3], dtype), absent=[0, 1])
    assert scores.score.dtype == np.float64
    np.testing.assert_array_equal(scores.present, [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("present", "absent", "message"),
    [
        ([], [1.0, 2.0], "at least 2 present canaries, got 0"),
        ([1.0], [1.0, 2.0], "at least 2 present canaries, got 1"),
        ([1.0, 2.0], [], "at least 2 absent canaries, got 0"),
        ([1.0, np.nan], [1.0, 2.0], "present to be finite, got 1 nan or infinite of 2"),
        ([1.0, 2.0], [np.inf, 2.0], "absent to be finite.*index 0"),
        ([[1.0, 2.0]], [1.0, 2.0], "one-dimensional"),
        (["a", "b"], [1.0, 2.0], "real numbers"),
        ([1j, 2j], [1.0, 2.0], "real numbers"),
    ],
)
def test_bad_scores(present, absent, message):
    with pytest.raises(ScoresError, match=message):
        CanaryScores.from_groups(present=present, absent=absent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"member": [True, False]}, "one member flag a score, got 4 scores"),
        ({"member": [0.0, 1.0, 0.0, 1.0]}, "booleans"),
        ({"member": [0, 1, 2, 1]}, "booleans"),
        ({"ids": [1, 2, 2, 3]}, "unique, got 2 more than once"),
        ({"ids": [1, 2, 3]}, "one id a score"),
        ({"ids": [1.5, 2, 3, 4]}, "whole numbers or strings"),
    ],
)
def test_bad_members_and_ids(arguments, message):
    good = {"score": np.arange(4.0), "member": [True, True, False, False]}
    with pytest.raises(ScoresError, match=message):
        CanaryScores(**{**good, **arguments})


def test_members_may_be_zeros_and_ones():
    scores = CanaryScores(score=np.arange(4.0), member=np.array([1, 0, 1, 0]))
    np.testing.assert_array_equal(scores.present, [0.0, 2.0])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("steps", 2.5),
        ("sampling_rate", 0.0),
        ("sampling_rate", 1.5),
        ("clip_norm", -1.0),
        ("noise_multiplier", -0.1),
        ("background", "maybe"),
    ],
)
def test_bad_metadata_names_the_field_and_the_value(field, value):
    with pytest.raises(InvalidArgumentError, match=f"{field} .*got {value!r}"):
        CanaryScores.from_groups(present=[1, 2], absent=[0, 1], **{field: value})


@given(present=groups(), absent=groups(), steps=st.none() | st.integers(1, 10**6))
def test_files_round_trip(tmp_path_factory, present, absent, steps):
    path = tmp_path_factory.mktemp("scores") / "scores.npz"
    scores = CanaryScores.from_groups(
        present=present, absent=absent, steps=steps, sampling_rate=0.25, background="known"
    )
    scores.save(path)
    loaded = CanaryScores.load(path)
    np.testing.assert_array_equal(loaded.score, scores.score)
    np.testing.assert_array_equal(loaded.member, scores.member)
    assert loaded.metadata == scores.metadata
    assert [item.name for item in path.parent.iterdir()] == ["scores.npz"]


def test_streams_and_ids_round_trip():
    scores = CanaryScores(
        score=np.arange(4.0), member=[True, False, True, False], ids=["a", "b", "c", "dd"]
    )
    stream = io.BytesIO()
    scores.save(stream)
    stream.seek(0)
    assert CanaryScores.load(stream).ids.tolist() == ["a", "b", "c", "dd"]


def _saved(tmp_path, header=None, arrays=None):
    path = tmp_path / "scores.npz"
    content = {"kind": "askgauss-scores", "schema": 2} | (header or {})
    arrays = {"score": np.arange(4.0), "member": np.arange(4) < 2} if arrays is None else arrays
    archive.write_arrays(path, content.pop("kind"), content.pop("schema"), arrays, content)
    return path


@pytest.mark.parametrize(
    ("header", "arrays", "message"),
    [
        ({"schema": 99}, None, "newer askgauss wrote this file"),
        ({"schema": 1}, None, "earlier askgauss wrote this file"),
        ({"schema": "1"}, None, "schema to be a whole number"),
        ({"kind": "askgauss-result"}, None, "kind 'askgauss-scores', got"),
        ({"metadata": {"steps": "x"}}, None, "steps"),
        ({"metadata": {"steps": -1}}, None, "steps"),
        (None, {"score": np.arange(4.0)}, "missing"),
    ],
)
def test_foreign_and_newer_files(tmp_path, header, arrays, message):
    with pytest.raises(FileFormatError, match=message):
        CanaryScores.load(_saved(tmp_path, header, arrays))


def test_unknown_metadata_of_the_same_schema_is_ignored(tmp_path):
    header = {"metadata": {"steps": 7, "later": True}}
    assert CanaryScores.load(_saved(tmp_path, header)).metadata == ScoreMetadata(steps=7)


def test_corrupt_files(tmp_path):
    path = _saved(tmp_path)
    content = path.read_bytes()
    for broken in (b"", b"hello", content[: len(content) // 2], content[:-30]):
        path.write_bytes(broken)
        with pytest.raises(FileFormatError, match="corrupt"):
            CanaryScores.load(path)


def test_npz_of_somebody_else(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, score=np.arange(4.0))
    with pytest.raises(FileFormatError, match="not one of askgauss"):
        CanaryScores.load(path)


def test_pickles_are_never_loaded(tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, askgauss=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FileFormatError):
        CanaryScores.load(path)
    path.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(FileFormatError):
        CanaryScores.load(path)


def test_decompression_bombs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("askgauss.files.archive._PLAIN_BYTES", 1 << 16)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("askgauss.npy", bytes(1 << 22))
    with pytest.raises(FileFormatError, match="decompression bomb"):
        CanaryScores.load(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "scores.npz"
    scores = CanaryScores.from_groups(present=[1.0, 2.0], absent=[0.0, 1.0])
    scores.save(path)
    before = path.read_bytes()

    def no_space(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("askgauss.files.archive._write", no_space)
    with pytest.raises(OSError, match="No space left"):
        scores.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


class TestAuditbench:
    """Folders as the paper's public code writes them."""

    @pytest.fixture
    def folder(self, tmp_path):
        generator = np.random.default_rng(0)
        for epoch in (20, 40):
            np.savetxt(tmp_path / f"in_scores_ndis_{epoch:06d}.csv", generator.normal(4, 2.6, 30))
            np.savetxt(tmp_path / f"out_scores_ndis_{epoch:06d}.csv", generator.normal(0, 2.6, 25))
        np.savetxt(tmp_path / "in_scores_ndis_000060.csv", generator.normal(4, 2.6, 30))
        hparams = {"max_grad_norm": 1.0, "noise_multiplier": 2.6245, "epsilon": 8.0}
        (tmp_path / "hparams.json").write_text(json.dumps(hparams))
        return tmp_path

    def test_reads_the_last_whole_epoch(self, folder):
        scores = CanaryScores.from_auditbench(folder)
        last = np.loadtxt(folder / "in_scores_ndis_000040.csv")
        np.testing.assert_array_equal(scores.present, last)
        assert scores.absent.size == 25
        assert scores.metadata.noise_multiplier == 2.6245
        assert scores.metadata.clip_norm == 1.0
        assert scores.metadata.sampling_rate is None

    def test_reads_a_named_epoch_with_the_facts_it_lacks(self, folder):
        scores = CanaryScores.from_auditbench(folder, epoch=20, steps=240, sampling_rate=1 / 12)
        np.testing.assert_array_equal(
            scores.present, np.loadtxt(folder / "in_scores_ndis_000020.csv")
        )
        assert scores.metadata.steps == 240

    def test_says_what_is_missing(self, folder, tmp_path_factory):
        with pytest.raises(InvalidArgumentError, match=r"one of \[20, 40\], got 60"):
            CanaryScores.from_auditbench(folder, epoch=60)
        with pytest.raises(FileFormatError, match="directory"):
            CanaryScores.from_auditbench(folder / "nothing")
        with pytest.raises(FileFormatError, match="epoch"):
            CanaryScores.from_auditbench(tmp_path_factory.mktemp("empty"))

    def test_refuses_broken_files(self, folder):
        (folder / "in_scores_ndis_000040.csv").write_text("1.0\nhello\n")
        with pytest.raises(FileFormatError, match="a line"):
            CanaryScores.from_auditbench(folder)
        (folder / "hparams.json").write_text("{")
        with pytest.raises(FileFormatError, match="JSON"):
            CanaryScores.from_auditbench(folder, epoch=20)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("spread", [0.0, 1e-16, 1e-15, 1e-12])
def test_nearly_equal_scores_have_a_verdict(spread):
    """They differ in their last bits alone, between which no histogram has room for bins."""
    score = 1.0 + spread * np.random.default_rng(0).normal(size=120)
    scores = CanaryScores.from_groups(present=score[:60], absent=score[60:])
    assert audit(scores, claim=PrivacyClaim(epsilon=8, delta=1e-5)).verdict
