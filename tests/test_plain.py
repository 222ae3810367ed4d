from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from askgauss import PrivacyClaim
from askgauss.exceptions import FileFormatError
from askgauss.files import codec
from askgauss.recording.facts import RunFacts
from askgauss.scores import ScoreMetadata


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    number: float
    whole: int = 0


@dataclass(frozen=True)
class Outer:
    inner: Inner
    colour: Colour
    maybe: float | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    named: Mapping[str, float] = field(default_factory=dict)
    table: dict[str, Inner] = field(default_factory=dict)
    mode: Literal["fast", "slow"] = "fast"
    flag: bool = False
    anything: Any = None
    text: str = ""
    hidden: int = field(init=False, default=3)


floats = st.floats(allow_nan=False)
inners = st.builds(Inner, number=floats, whole=st.integers())
outers = st.builds(
    Outer,
    inner=inners,
    colour=st.sampled_from(Colour),
    maybe=st.none() | floats,
    many=st.lists(inners, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), st.text()),
    named=st.dictionaries(st.text(), floats, max_size=3),
    table=st.dictionaries(st.text(), inners, max_size=3),
    mode=st.sampled_from(["fast", "slow"]),
    flag=st.booleans(),
    anything=st.none() | st.booleans() | st.lists(st.integers(), max_size=2),
    text=st.text(),
)


def through_json(value):
    return json.loads(json.dumps(codec.to_plain(value), allow_nan=False))


@given(outers)
def test_values_come_back(value):
    assert codec.from_plain(Outer, through_json(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        RunFacts(),
        RunFacts(sampling_rate=0.1, accounted_epsilon=math.inf, tensors=("a", "b"), seed=2**80),
        ScoreMetadata(steps=3, background="known", fair_coins=False),
        PrivacyClaim(epsilon=8.0, delta=1e-5),
    ],
)
def test_our_own_values_come_back(value):
    assert codec.from_plain(type(value), through_json(value)) == value


def test_nan_and_infinity_are_words():
    assert codec.to_plain([math.inf, -math.inf, math.nan]) == ["inf", "-inf", "nan"]
    assert codec.from_plain(float, "-inf") == -math.inf
    assert math.isnan(codec.from_plain(float, "nan"))
    assert math.isnan(codec.from_plain(Outer, through_json(OUTER) | {"maybe": "nan"}).maybe)


def test_numpy_becomes_plain():
    plain = codec.to_plain(
        {1: np.float32(0.5), "whole": np.int64(3), "flag": np.True_, "row": np.array([1.0, np.inf])}
    )
    assert plain == {"1": 0.5, "whole": 3, "flag": True, "row": [1.0, "inf"]}
    assert [type(plain[key]) for key in ("1", "whole", "flag")] == [float, int, bool]


OUTER = Outer(inner=Inner(1.0), colour=Colour.RED)


def test_a_whole_number_is_a_float_and_not_the_other_way_round():
    assert isinstance(codec.from_plain(float, 3), float)
    with pytest.raises(FileFormatError, match=r"int, got 3\.0"):
        codec.from_plain(int, 3.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inner": 5}, r"file\.inner .*got 5"),
        ({"inner": {}}, r"file\.inner as Inner: .*number"),
        ({"inner": {"number": "much"}}, r"file\.inner\.number .*got 'much'"),
        ({"inner": {"number": True}}, r"file\.inner\.number .*got True"),
        ({"inner": {"number": 1.0, "whole": True}}, r"file\.inner\.whole .*got True"),
        ({"inner": {"number": 1.0, "whole": "1"}}, r"file\.inner\.whole .*got '1'"),
        ({"colour": "green"}, r"file\.colour .*got 'green'"),
        ({"maybe": "much"}, r"file\.maybe"),
        ({"many": 5}, r"file\.many .*got 5"),
        ({"many": [{"number": 1.0}, 2]}, r"file\.many\[1\] .*got 2"),
        ({"pair": [1]}, r"file\.pair "),
        ({"pair": ["a", 1]}, r"file\.pair\[0\] "),
        ({"named": [1]}, r"file\.named "),
        ({"named": {"a": None}}, r"file\.named\.a .*got None"),
        ({"table": {"a": 1}}, r"file\.table\.a "),
        ({"mode": "medium"}, r"file\.mode to be one of \('fast', 'slow'\), got 'medium'"),
        ({"flag": 1}, r"file\.flag .*got 1"),
        ({"text": None}, r"file\.text .*got None"),
        ({"text": ["x" * 500]}, r"file\.text .*got \['x+\.\."),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    with pytest.raises(FileFormatError, match=message):
        codec.from_plain(Outer, through_json(OUTER) | changes, "file")


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default():
    plain = {"inner": {"number": 1.0, "later": 2}, "colour": "red", "later": {}, "hidden": 9}
    assert codec.from_plain(Outer, plain) == OUTER


def test_a_value_out_of_its_range_is_an_error_of_the_file():
    with pytest.raises(FileFormatError, match=r"ScoreMetadata.*steps"):
        codec.from_plain(ScoreMetadata, {"steps": 0})


# --- text that says what it is -----------------------------------------------------------------


def test_text_says_what_it_is():
    text = codec.dumps("things", 2, {"a": [1, 2]}, None)
    assert text.startswith('{"kind": "things", "schema": 2, "a": [1, 2], "digest": "')
    assert codec.loads(text, "things", 2) == {"kind": "things", "schema": 2, "a": [1, 2]}
    assert codec.loads(text.encode(), "things", 2)["a"] == [1, 2]
    with pytest.raises(FileFormatError, match="Expected schema 5, got 2: an earlier askgauss"):
        codec.loads(text, "things", 5)
    with pytest.raises(ValueError, match="JSON compliant"):
        codec.dumps("things", 2, {"a": math.inf})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Not JSON.*kind 'things'"),
        ("{", "Not JSON"),
        (b"\xff\xfe\x00", "Not JSON"),
        ("[" * 200_000, "Not JSON"),
        ("[]", "kind 'things', got 'list'"),
        ("null", "kind 'things', got 'NoneType'"),
        ("{}", "kind 'things', got 'None'"),
        ('{"kind": "stuff", "schema": 1}', "kind 'things', got 'stuff'"),
        ('{"kind": "things"}', r"schema .*got None"),
        ('{"kind": "things", "schema": "1"}', r"schema .*got '1'"),
        ('{"kind": "things", "schema": true}', r"schema .*got True"),
        ('{"kind": "things", "schema": 0}', r"schema .*got 0"),
        ('{"kind": "things", "schema": 3}', r"schema <= 2, got 3: a newer askgauss.*Update"),
    ],
)
def test_text_that_is_something_else_is_refused(text, message):
    with pytest.raises(FileFormatError, match=message):
        codec.loads(text, "things", 2)
