"""Tables of scores that others wrote, with the obvious columns; others are refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import FileFormatError
from askgauss.recording.inputs import choose_in_folder, load_audit_input

PRESENT, ABSENT = [2.5, 3.25, -1.0], [0.0, 0.5]


def written(path, form):
    """The same canaries in every form."""
    lines = [(value, 1) for value in PRESENT] + [(value, 0) for value in ABSENT]
    if form == "two columns.csv":
        path.write_text("present,absent\n2.5,0.0\n3.25,0.5\n-1.0,\n")
    elif form.endswith("csv"):
        sign = ";" if "semicolons" in form else ","
        path.write_text("\ufeffScore" + sign + "Member\n" * 1 + "".join(
            f"{value}{sign}{member}\n" for value, member in lines))  # fmt: skip
    elif form == "words.tsv":
        path.write_text("id\tvalue\tis_member\n" + "".join(
            f"c{index}\t{value}\t{'true' if member else 'False'}\n"
            for index, (value, member) in enumerate(lines)))  # fmt: skip
    elif form == "records.json":
        path.write_text(json.dumps([{"score": v, "member": bool(m)} for v, m in lines]))
    elif form == "groups.json":
        path.write_text(json.dumps({"present": PRESENT, "absent": ABSENT}))
    elif form == "groups.npz":
        np.savez(path, in_scores=np.array(PRESENT), out_scores=np.array(ABSENT, np.float32))
    elif form == "packed.npz":
        np.savez_compressed(
            path, score=np.array(PRESENT + ABSENT), present=np.array([1, 1, 1, 0, 0])
        )
    elif form == "table.parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        table = {"score": PRESENT + ABSENT, "member": [True] * 3 + [False] * 2}
        parquet.write_table(pyarrow.table(table), path)
    return path


FORMS = (
    "commas.csv",
    "semicolons.csv",
    "two columns.csv",
    "words.tsv",
    "records.json",
    "groups.json",
    "groups.npz",
    "packed.npz",
    "table.parquet",
)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_scores(tmp_path, form):
    found = load_audit_input(written(tmp_path / form, form))
    assert isinstance(found, ag.CanaryScores)
    np.testing.assert_array_equal(found.present, PRESENT)
    np.testing.assert_array_equal(found.absent, ABSENT)


def test_settings_of_the_run_come_with_it(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(
        {"present": PRESENT, "absent": ABSENT, "steps": 100, "sampling_rate": 0.1}))  # fmt: skip
    assert load_audit_input(path).metadata.steps == 100
    path.write_text(json.dumps({"present": PRESENT, "absent": ABSENT, "noise": "gaussian"}))
    assert load_audit_input(path).metadata.gaussian


WRONG = {
    "names.csv": ("loss,label\n1.0,1\n", "found 'loss', 'label'"),
    "empty.csv": ("score,member\n", "present"),
    "short.csv": ("score,member\n1.0,1\n2.0\n", "line 3 has 1 cells"),
    "word.csv": ("score,member\nhigh,1\n", "'high', which is no number"),
    "coin.csv": ("score,member\n1.0,maybe\n", "'maybe'; expected 1 or true"),
    "hole.csv": ("score,member\n1.0,1\n,0\n2.0,0\n", "'', which is no number"),
    "nan.csv": ("score,member\nnan,1\n1.0,0\n", "nan or infinite"),
    "twice.csv": ("score,score\n1.0,1\n", "a name for each column"),
    "bytes.csv": (b"score,member\n\xff\xfe,1\n", "no text in UTF-8"),
    "list.json": ("[1, 2, 3]", "list of objects"),
    "object.json": ('{"a": [1]}', "found 'a'"),
    "broken.json": ('{"present": [1', "no JSON"),
    "huge.json": ('{"present": [1e999], "absent": [1]}', "nan or infinite"),
    "digits.json": ('{"present": [' + "9" * 5000 + '], "absent": [1]}', "no JSON|no number"),
    "ragged.json": ('[{"score": 1, "member": 1}, {"score": 2}]', "same keys"),
    "text.json": ('{"score": "123", "member": [1]}', "no list of numbers"),
    "noise.json": ('{"present": [1,2], "absent": [1,3], "noise": "laplace"}', "noise"),
    "steps.json": ('{"present": [1,2], "absent": [1,3], "steps": 2.5}', "no number of steps"),
    "not.parquet": (b"PAR1 and then nothing", "Parquet"),
    "what.bin": (b"\x00\x01\x02", "nor CSV, JSON or Parquet"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_table_of_scores_is_refused_by_name(tmp_path, name):
    content, words = WRONG[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(FileFormatError, match=words) as caught:
        load_audit_input(path)
    assert name in str(caught.value)


def test_an_npz_of_objects_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", score=np.array([object()]), member=np.array([1]))
    with pytest.raises(FileFormatError):
        load_audit_input(tmp_path / "a.npz")


def test_a_folder_says_what_is_taken_and_what_is_not(tmp_path):
    written(tmp_path / "scores.csv", "commas.csv")
    assert choose_in_folder(tmp_path).path.name == "scores.csv"
    written(tmp_path / "more.json", "groups.json")
    with pytest.raises(FileFormatError, match=r"more\.json, scores\.csv"):
        load_audit_input(tmp_path)
    load_audit_input(tmp_path / "scores.csv").save(tmp_path / "scores.npz")
    chosen = choose_in_folder(tmp_path)
    assert chosen.path.name == "scores.npz"
    assert chosen.others == ("more.json", "scores.csv")


def test_rows_of_parquet_are_counted_before_they_are_read(tmp_path):
    """Equal values take no room in a file: 200 kilobytes were 15 million rows."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = 20_000_000
    member = pyarrow.repeat(pyarrow.scalar(True), rows)
    table = pyarrow.table({"score": pyarrow.repeat(1.5, rows), "member": member})
    parquet.write_table(table, tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 1_000_000
    with pytest.raises(FileFormatError, match="320000000"):
        load_audit_input(tmp_path / "bomb.parquet")


def test_parquet_is_read_by_its_needed_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"Present": [2.5, 3.25, -1.0], "absent": [0.0, 0.5, None], "note": ["a", "b", "c"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    scores = load_audit_input(tmp_path / "a.parquet")
    assert (scores.present.tolist(), scores.absent.tolist()) == (PRESENT, ABSENT)
    columns["absent"] = [0.0, None, 0.5]
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(FileFormatError, match="'absent'"):
        load_audit_input(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"x": [1.0], "y": [2.0]}), tmp_path / "a.parquet")
    with pytest.raises(FileFormatError, match="'x', 'y'"):
        load_audit_input(tmp_path / "a.parquet")
