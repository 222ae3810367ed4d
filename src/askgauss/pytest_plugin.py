"""A pytest plugin that fails a test when an audited run breaks its privacy claim.

::

    @pytest.mark.privacy(epsilon=8.0, delta=1e-5)
    def test_training_is_private(privacy_audit):
        privacy_audit(train_with_canaries())

    def test_nothing_else_leaks(privacy_replay):
        privacy_replay(train, data, leave_out=17)

Nothing of askgauss is imported before the first audit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from askgauss.auditors.auditor import Auditor
    from askgauss.claims import PrivacyClaim
    from askgauss.recording.inputs import AuditInput
    from askgauss.replay import Replay, ReplayReport
    from askgauss.replay.replay_report import Adjacency
    from askgauss.results import AuditResult

__all__ = ["PrivacyAudit", "PrivacyReplay", "privacy_audit", "privacy_replay"]

_KIND = "askgauss-test-audits"
_SCHEMA = 1
_MARKER = (
    "privacy(epsilon, delta, confidence=0.95, gate_error=0.001, **claim): what the audits of this "
    "test hold the run to; further arguments are those of PrivacyClaim."
)
_RESULTS = pytest.StashKey[list[dict[str, Any]]]()
# Where a report carries its audits; plain values, so that it may cross from worker to controller.
_ATTRIBUTE = "privacy_audits"


class PrivacyAudit:
    """The ``privacy_audit`` fixture: call it with what a run left behind."""

    def __init__(self, node: pytest.Item, lenient: bool) -> None:
        self._node, self._lenient = node, lenient

    def __call__(
        self,
        data: AuditInput | str | os.PathLike[str],
        *,
        claim: PrivacyClaim | None = None,
        auditor: Auditor[Any] | None = None,
    ) -> AuditResult:
        """Audit, and fail the test unless the run is consistent with its claim.

        Args:
            data: Scores, a transcript, or the path of either or of a run folder.
            claim: What the run claims, where the test has no ``privacy`` marker.
            auditor: The method; the one that suits the data if not given.

        Returns:
            The result, for further assertions.
        """
        from askgauss.auditing import audit
        from askgauss.policy import gate
        from askgauss.recording.inputs import load_audit_input

        held_to, confidence, gate_error = self._terms(claim)
        if isinstance(data, (str, os.PathLike)):
            data = load_audit_input(data)
        result = audit(
            data, claim=held_to, auditor=auditor, confidence=confidence, gate_error=gate_error
        )
        self._node.stash.setdefault(_RESULTS, []).append(result.to_dict())
        verdict = "none" if result.verdict is None else result.verdict.value
        self._node.user_properties += [
            ("privacy_verdict", verdict),
            ("privacy_epsilon_lower", f"{result.epsilon_lower:g}"),
        ]
        opened = gate(result, lenient=self._lenient)
        if not opened.passes:
            pytest.fail(_explanation(result, opened.why), pytrace=False)
        return result

    def _terms(self, claim: PrivacyClaim | None) -> tuple[PrivacyClaim, float, float]:
        """The claim, the confidence and the gate error, from the marker or from the call."""
        from askgauss.claims import PrivacyClaim

        marker = self._node.get_closest_marker("privacy")
        if (marker is None) == (claim is None):
            pytest.fail(
                "privacy_audit expects exactly one claim: mark the test with "
                "@pytest.mark.privacy(epsilon=..., delta=...), or call privacy_audit(data, "
                "claim=PrivacyClaim(...)).",
                pytrace=False,
            )
        if claim is not None:
            return claim, 0.95, 0.001
        assert marker is not None
        if marker.args or not {"epsilon", "delta"} <= marker.kwargs.keys():
            pytest.fail(
                "The privacy marker expects epsilon= and delta= by name, got "
                f"{marker.args or ''}{sorted(marker.kwargs)}.",
                pytrace=False,
            )
        terms = dict(marker.kwargs)
        confidence, gate_error = terms.pop("confidence", 0.95), terms.pop("gate_error", 0.001)
        known = {item.name for item in fields(PrivacyClaim)}
        if not terms.keys() <= known:
            pytest.fail(
                f"The privacy marker does not know {', '.join(sorted(terms.keys() - known))}; it "
                f"takes confidence, gate_error and those of a claim: {', '.join(sorted(known))}.",
                pytrace=False,
            )
        return PrivacyClaim(**terms), confidence, gate_error


class PrivacyReplay:
    """The ``privacy_replay`` fixture: call it with a training function and its data."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def __call__(
        self,
        train: Callable[[Any, Replay], object],
        data: Any,
        *,
        leave_out: int | None = None,
        replace: int | None = None,
        replacement: Any = None,
        steps: int = 5,
        adjacency: Adjacency | None = None,
        plant: bool = True,
        seed: int = 0,
    ) -> ReplayReport:
        """Replay, and fail the test unless nothing differed but what may; see `askgauss.replay`.

        A replay that could not look at everything fails too: there is no chance in it, so that a
        test can be written that looks.

        Returns:
            The report, for further assertions.
        """
        from askgauss.replay import replay

        report = replay(
            train,
            data,
            leave_out=leave_out,
            replace=replace,
            replacement=replacement,
            steps=steps,
            adjacency=adjacency,
            plant=plant,
            seed=seed,
        )
        self._node.user_properties.append(("privacy_replay", report.verdict.value))
        if report.verdict.value != "CONSISTENT":
            pytest.fail(_explanation(report), pytrace=False)
        return report


def _explanation(result: AuditResult | ReplayReport, why: str = "") -> str:
    """The result and its worst findings, with nothing in it that could command a terminal."""
    from askgauss._text import printable

    return printable(f"{result}\n{why}".rstrip())


@pytest.fixture
def privacy_audit(request: pytest.FixtureRequest) -> PrivacyAudit:
    """Audits a run against the test's ``privacy`` marker; the test fails if the run does."""
    return PrivacyAudit(request.node, not request.config.getoption("privacy_strict"))


@pytest.fixture
def privacy_replay(request: pytest.FixtureRequest) -> PrivacyReplay:
    """Replays a training on neighbouring data; the test fails if anything else leaks."""
    return PrivacyReplay(request.node)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("privacy", "privacy audits (askgauss)")
    group.addoption(
        "--privacy-json",
        metavar="PATH",
        default=None,
        help="write the results of all privacy audits as JSON",
    )
    group.addoption(
        "--privacy-strict",
        action="store_true",
        default=True,
        help="fail tests whose privacy audit is inconclusive (the default)",
    )
    group.addoption(
        "--privacy-lenient",
        action="store_false",
        dest="privacy_strict",
        help="let tests pass whose privacy audit is inconclusive",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and gather results where they are summed up."""
    config.addinivalue_line("markers", _MARKER)
    path = config.getoption("privacy_json")
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise pytest.UsageError(
            f"--privacy-json: there is no folder {str(Path(path).absolute().parent)!r}. Make it "
            "first."
        )
    # A worker of pytest-xdist only runs tests; its controller sums up.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Summary(path), "askgauss-summary")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let each report carry the audits of its phase; a gate that audited nothing has failed."""
    report = yield
    audits = item.stash.get(_RESULTS, [])
    if report.when == "call" and report.passed and not audits and _promises_an_audit(item):
        report.outcome = "failed"
        report.longrepr = (
            "This test passed without an audit. Call privacy_audit with what the run left behind, "
            "or take the privacy marker and the fixture away."
        )
    if audits:
        setattr(report, _ATTRIBUTE, audits[:])
        audits.clear()
    return report


def _promises_an_audit(item: pytest.Item) -> bool:
    """Whether a test is marked itself, or asks for the fixture: a gate that is never closed.

    A marker on a class or a module may be meant for some of its tests only.
    """
    marked = any(marker.name == "privacy" for marker in item.own_markers)
    return marked or "privacy_audit" in getattr(item, "fixturenames", ())


def _scope(result: dict[str, Any]) -> str:
    """What was tested and what was not, by the names of the parts."""
    named: dict[str, list[str]] = {"broken": [], "not tested": [], "fine": []}
    for part in result["scope"]:
        named[part["status"]].append(part["name"])
    words = {"fine": "tested"}
    shown = [f"{words.get(key, key)}: {', '.join(names)}" for key, names in named.items() if names]
    return "; ".join(shown) or "which parts of the training were tested is not known"


class _Summary:
    """Gathers the audits of all tests, in whatever process they ran."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._audits: list[tuple[str, dict[str, Any]]] = []
        self._failure = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather the audits of one report."""
        self._audits += [(report.nodeid, result) for result in getattr(report, _ATTRIBUTE, [])]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what was asked for; a session that cannot is not a success."""
        if self._path is None:
            return
        from askgauss.files import atomic, codec

        tests = [{"test": name, "result": result} for name, result in self._audits]
        # One result that tells of single canaries makes the file as private as it is.
        private = any(result["private"] for _, result in self._audits)
        text = codec.dumps(_KIND, _SCHEMA, {"tests": tests, "private": private}) + "\n"
        try:
            atomic.write_text(self._path, text, private=private)
        except OSError as error:
            self._failure = f"cannot write {self._path!r}: {error.strerror}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """One line for each audit."""
        if not self._audits and not self._failure:
            return
        from askgauss._text import one_line

        terminalreporter.section("privacy audits")
        for name, result in self._audits:
            claim, lower = result["claim"], result["epsilon_lower"]
            bound = f"epsilon >= {lower if isinstance(lower, str) else f'{lower:.4g}'}"
            if not result["carries_bound"]:
                bound = "no bound"
            terminalreporter.write_line(
                one_line(
                    f"{result['verdict'] or 'none'} {name}: {bound}, claimed "
                    f"{claim['epsilon']:g} at delta {claim['delta']:g}; {_scope(result)}"
                )
            )
        if self._failure:
            terminalreporter.write_line(one_line(f"--privacy-json: {self._failure}"))
