"""What a snapshot holds: fields, numbers with a tolerance, and sentences kept in one file."""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "runs"
WORDS = Path(__file__).parent / "words.txt"

# What another machine, day or run has.
_VOLATILE = {"metadata.environment", "provenance", "run", "version", "commitment"}
_NUMERAL = re.compile(
    r"(?<![\w.#])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?(?![\w])"
)
_DIGEST = re.compile(r"\b[0-9a-f]{32,}\b")
_SENTENCE = re.compile(r"(?<=[.;:|])\s+")
# Longer lists are held by their length, sum and sum of squares.
_LONGEST = 8


@dataclass(frozen=True)
class Snapshot:
    """One run's answers.

    Args:
        fields: Every field of the result by its path; sentences are held by what they say.
        said: Sentences of each document, in order, by their digests.
        numerals: Numbers of each document, in order, as printed.
        words: The sentences, by digest, with ``#`` for every number.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)
    numerals: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


def taken(result: Any, documents: Mapping[str, str]) -> Snapshot:
    """The snapshot of a result and of what is written of it."""
    snapshot = Snapshot()
    _flatten(result, "", snapshot)
    for name, text in documents.items():
        snapshot.said[name], snapshot.numerals[name] = [], []
        for sentence in _sentences(_visible(text) if name in ("html", "junit") else text):
            _keep(sentence, snapshot.said[name], snapshot.numerals[name], snapshot.words)
    return snapshot


def verdict_only(snapshot: Snapshot) -> Snapshot:
    """What remains where rounding decides the rest, as in a run without noise."""
    fields = {key: snapshot.fields[key] for key in ("verdict", "exit_code")}
    said = {"reason": snapshot.said["reason"]}
    return Snapshot(fields=fields, said=said, words={k: snapshot.words[k] for k in said["reason"]})


def save(name: str, snapshot: Snapshot) -> None:
    """Write all but the words, which every run shares."""
    FOLDER.mkdir(exist_ok=True)
    content = {
        "fields": snapshot.fields,
        "said": {key: " ".join(value) for key, value in snapshot.said.items()},
        "numerals": {key: " ".join(value) for key, value in snapshot.numerals.items()},
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def load(name: str) -> Snapshot:
    """What was kept of a run."""
    content = json.loads((FOLDER / f"{name}.json").read_text())
    return Snapshot(
        fields=content["fields"],
        said={key: value.split() for key, value in content["said"].items()},
        numerals={key: value.split() for key, value in content["numerals"].items()},
    )


def save_words(words: Mapping[str, str]) -> None:
    """Every sentence once, sorted, so that a changed sentence is one changed line."""
    lines = sorted(f"{text}\t{key}" for key, text in words.items())
    WORDS.write_text("\n".join(lines) + "\n")


def load_words() -> dict[str, str]:
    """Every sentence by its digest."""
    lines = WORDS.read_text().splitlines() if WORDS.exists() else []
    return {key: text for text, key in (line.rsplit("\t", 1) for line in lines)}


def other_numbers(kept: Snapshot, now: Snapshot, tolerance: float) -> list[str]:
    """Fields and printed numbers that differ by more than a tolerance or a printed digit."""
    found = []
    for path in sorted(kept.fields.keys() | now.fields.keys()):
        before, after = kept.fields.get(path), now.fields.get(path)
        if not _same(before, after, tolerance):
            found.append(f"{path}: {before!r} -> {after!r}")
    for name in sorted(kept.numerals.keys() | now.numerals.keys()):
        pair = kept.numerals.get(name, []), now.numerals.get(name, [])
        if len(pair[0]) != len(pair[1]):
            found.append(f"{name}: {len(pair[0])} numbers -> {len(pair[1])}")
            continue
        found += [
            f"{name}: {before} -> {after}"
            for before, after in zip(*pair, strict=True)
            if not _same_numeral(before, after, tolerance)
        ]
    return found


def other_words(kept: Snapshot, now: Snapshot, words: Mapping[str, str]) -> list[str]:
    """Sentences of each document that went or came, or their order."""
    found = []
    known = {**words, **now.words}
    for name in sorted(kept.said.keys() | now.said.keys()):
        before, after = kept.said.get(name, []), now.said.get(name, [])
        gone = [key for key in before if key not in set(after)]
        come = [key for key in after if key not in set(before)]
        found += [f"{name} - {known.get(key, key)}" for key in gone]
        found += [f"{name} + {known.get(key, key)}" for key in come]
        if not gone and not come and before != after:
            found.append(f"{name}: the same sentences in another order or number")
    return found


def _flatten(value: Any, path: str, snapshot: Snapshot) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = f"{path}.{key}" if path else str(key)
            # What would follow if a check had not passed may hang on a sign.
            moot = key == "consequence" and value.get("status") == "pass"
            if inner not in _VOLATILE and not moot:
                _flatten(item, inner, snapshot)
    elif isinstance(value, (list, tuple)):
        if len(value) > _LONGEST and all(_number(item) for item in value):
            snapshot.fields[path] = _moments([float(item) for item in value])
            return
        for place, item in enumerate(value):
            # Findings and parts by name: another order is then one difference.
            named = item.get("check", item.get("name")) if isinstance(item, Mapping) else None
            _flatten(item, f"{path}[{place if named is None else named}]", snapshot)
        if value and isinstance(value[0], Mapping) and "check" in value[0]:
            snapshot.fields[f"{path}.order"] = [item["check"] for item in value]
    elif isinstance(value, str):
        _flatten_text(value, path, snapshot)
    else:
        snapshot.fields[path] = value


def _flatten_text(value: str, path: str, snapshot: Snapshot) -> None:
    items = value.split()
    if len(items) > _LONGEST and all(_readable(item) for item in items):
        snapshot.fields[path] = _moments([float(item) for item in items])
    elif len(items) < 4:
        snapshot.fields[path] = value
    else:
        said: list[str] = []
        numerals: list[str] = []
        for sentence in _sentences(value):
            _keep(sentence, said, numerals, snapshot.words)
        snapshot.said[path], snapshot.numerals[path] = said, numerals


def _moments(values: list[float]) -> list[float]:
    finite = [item for item in values if math.isfinite(item)]
    return [len(values), math.fsum(finite), math.fsum(item * item for item in finite)]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _readable(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _sentences(text: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(" ".join(text.split())):
        if any(letter.isalnum() for letter in sentence):
            yield sentence


def _keep(sentence: str, said: list[str], numerals: list[str], words: dict[str, str]) -> None:
    sentence = _DIGEST.sub("(digest)", sentence)
    numerals += _NUMERAL.findall(sentence)
    template = _NUMERAL.sub("#", sentence)
    key = hashlib.sha256(template.encode()).hexdigest()[:8]
    words[key] = template
    said.append(key)


def _visible(page: str) -> str:
    for tag in ("style", "script", "svg", "head"):
        page = re.sub(rf"<{tag}\b.*?</{tag}>", " ", page, flags=re.DOTALL)
    page = re.sub(r'\b(?:value|message)="([^"]*)"', r">| \1 |<", page)
    page = re.sub(r"</(?:p|li|td|th|tr|h\d|div|summary|figcaption|dt|dd|testcase)>", " | ", page)
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def _same(before: Any, after: Any, tolerance: float) -> bool:
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(
            _same(*pair, tolerance) for pair in zip(before, after, strict=True)
        )
    if _number(before) and _number(after):
        return _near(before, after, tolerance, tolerance**2)
    return before == after


def _same_numeral(before: str, after: str, tolerance: float) -> bool:
    if before == after:
        return True
    first, second = (float(item.replace(",", "")) for item in (before, after))
    digit = max(_last_digit(before), _last_digit(after), tolerance**2)
    return _near(first, second, tolerance, digit)


def _last_digit(numeral: str) -> float:
    mantissa, _, exponent = numeral.replace(",", "").partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 1.01 * 10.0 ** (int(exponent or 0) - decimals)


def _near(first: float, second: float, tolerance: float, absolute: float) -> bool:
    if math.isfinite(first) and math.isfinite(second):
        return abs(first - second) <= absolute + tolerance * max(abs(first), abs(second))
    return first == second or (math.isnan(first) and math.isnan(second))
