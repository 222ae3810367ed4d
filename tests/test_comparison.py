from __future__ import annotations

import builtins
import json
import math

import numpy as np
import pytest

import askgauss as ag
from askgauss.auditors import auditor_types
from askgauss.comparison import Comparison, compare
from askgauss.exceptions import InvalidArgumentError, MissingExtraError, ScoreDirectionError
from askgauss.simulation import simulate_scores

CLAIM = ag.PrivacyClaim(epsilon=4.0, delta=1e-5)
RUN = {"steps": 500, "sampling_rate": 0.1, "noise_multiplier": 1.6}
SCORES = simulate_scores(**RUN, present=300, absent=300, seed=0)
TABLE = compare(SCORES, claim=CLAIM)


class TestRows:
    def test_every_method_is_listed(self):
        assert [row.name for row in TABLE.rows] == list(auditor_types())

    def test_bounds_are_those_of_the_audits(self):
        for row in TABLE.rows:
            if row.bound is None:
                continue
            auditor = auditor_types()[row.name]()
            result = ag.audit(SCORES, claim=CLAIM, auditor=auditor, diagnostics=False)
            assert row.bound == result.epsilon_lower
            assert row.share == result.epsilon_lower / 4.0
            assert row.ceiling == result.ceiling
            assert row.assumption is result.assumption
            assert row.seconds > 0

    def test_a_method_that_does_not_apply_says_why(self):
        (row,) = [row for row in TABLE.rows if row.name == "subsampled-gaussian"]
        assert row.bound is row.share is row.ceiling is None
        assert "reads a transcript, got scores" in row.reason
        assert row.reason in str(TABLE)

    def test_an_estimate_is_no_bound(self):
        (row,) = [row for row in TABLE.rows if row.name == "max-cosine"]
        assert row.bound is None
        assert row.estimate > 0
        assert "an estimate of" in row.reason

    def test_a_transcript_is_read_by_all(self):
        transcript = ag.simulate_dpsgd(
            steps=20, sampling_rate=0.5, noise_multiplier=2.0, present=60, absent=60, seed=0
        )
        table = compare(transcript, delta=1e-5)
        assert {row.name for row in table.rows if row.bound is None} == {"max-cosine"}
        assert (table.present, table.absent) == (60, 60)
        assert all(row.share is None for row in table.rows)

    def test_a_failed_assumption_is_named_where_the_bound_rests_on_it(self):
        generator = np.random.default_rng(0)
        heavy = ag.CanaryScores.from_groups(
            present=generator.laplace(1, 1, 2000),
            absent=generator.laplace(0, 1, 2000),
            membership="randomised",
        )
        table = compare(
            heavy,
            delta=1e-5,
            auditors=[ag.GaussianShift(), ag.OrderStatistics(), ag.GaussianDP(), ag.OneRun()],
        )
        reasons = {row.name: row.reason for row in table.rows}
        assert reasons["gaussian-shift"].startswith("INVALID: normality")
        for name in ("order-statistics", "gaussian-dp", "one-run"):
            assert reasons[name] == ""

    def test_options_tell_two_of_a_kind_apart(self):
        table = compare(
            SCORES,
            delta=1e-5,
            auditors=[ag.OneRun(), ag.OneRun(two_sided=False, selection=ag.Split())],
        )
        assert [row.label for row in table.rows] == [
            "one-run",
            "one-run (selection=Split(fraction=0.2, seed=0), two_sided=False)",
        ]

    def test_the_area_under_the_curve_stands_beside_the_bounds(self):
        table = compare(SCORES, delta=1e-5, auditors=[ag.OneRun()])
        middle, low, high = table.area
        pairs = SCORES.present[:, None] - SCORES.absent[None, :]
        assert middle == pytest.approx((pairs > 0).mean() + 0.5 * (pairs == 0).mean())
        assert low < middle < high
        assert f"area under the curve {middle:.3f} ({low:.3f} to {high:.3f})" in str(table)

    def test_there_is_no_best(self):
        """Which of many bounds to believe is settled before looking, not here."""
        public = {name for name in dir(Comparison) if not name.startswith("_")}
        assert public == {
            "rows",
            "present",
            "absent",
            "delta",
            "confidence",
            "claim",
            "area",
            "private",
            "to_dict",
            "to_json",
            "to_markdown",
            "to_dataframe",
            "to_latex",
            "plot",
        }


class TestRendering:
    def test_text(self):
        lines = str(TABLE).splitlines()
        assert lines[0].startswith("300 inserted and 300 held-out canaries, delta 1e-05")
        assert "claimed epsilon 4" in lines[0]
        starts = [line.index("assuming") for line in lines[1:2]]
        for row, line in zip(TABLE.rows, lines[2:], strict=False):
            assert line.split()[0] == row.name
            assert line[starts[0] :] == row.assumption.value

    def test_markdown(self):
        lines = TABLE.to_markdown().splitlines()
        assert lines[2].startswith("| method | epsilon >= |")
        body = [line for line in lines[4:] if line.startswith("|")]
        assert len(body) == len(TABLE.rows)
        assert {line.count("|") for line in body} == {8}

    def test_json_is_strict(self):
        content = json.loads(TABLE.to_json(), parse_constant=pytest.fail)
        assert content["kind"] == "askgauss-comparison"
        assert content["schema"] == 2
        assert [row["name"] for row in content["rows"]] == [row.name for row in TABLE.rows]
        assert content["rows"][0]["ceiling"] == "inf"
        assert content["rows"][0]["assumption"] == "Gaussian scores"

    def test_data_frame(self):
        pandas = pytest.importorskip("pandas")
        frame = TABLE.to_dataframe()
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame["name"]) == [row.name for row in TABLE.rows]
        assert frame["bound"].isna().sum() == 2
        assert math.isinf(frame["ceiling"].iloc[0])

    def test_without_pandas(self, monkeypatch):
        real = builtins.__import__

        def missing(name, *rest, **options):
            if name == "pandas":
                raise ImportError(name)
            return real(name, *rest, **options)

        monkeypatch.setattr(builtins, "__import__", missing)
        with pytest.raises(MissingExtraError, match="pandas"):
            TABLE.to_dataframe()


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "exactly one of claim and delta, got neither"),
            ({"claim": CLAIM, "delta": 1e-5}, "got both"),
            ({"delta": -0.1}, "delta"),
            ({"delta": 1.0}, "delta"),
            ({"delta": 1e-5, "confidence": 0.3}, "confidence"),
            ({"delta": 1e-5, "auditors": []}, "at least one of auditors"),
            ({"delta": 1e-5, "auditors": [ag.OneRun]}, "an auditor such as OneRun"),
        ],
    )
    def test_ranges(self, arguments, message):
        with pytest.raises(InvalidArgumentError, match=message):
            compare(SCORES, **arguments)

    def test_scores_in_the_wrong_direction(self):
        turned = ag.CanaryScores.from_groups(present=SCORES.absent, absent=SCORES.present)
        with pytest.raises(ScoreDirectionError):
            compare(turned, delta=1e-5, auditors=[ag.OneRun()])

    def test_an_option_that_asks_too_much_is_a_row_with_a_reason(self):
        table = compare(
            SCORES,
            delta=1e-5,
            auditors=[ag.OneRun(selection=ag.Fixed(guesses=10_000)), ag.OneRun()],
        )
        assert "guesses <= 459" in table.rows[0].reason
        assert table.rows[1].bound is not None
