"""askgauss: audit differentially private training from one run.

Canaries planted in a run leave scores that are sums of bounded signals and Gaussian noise. To ask
Gauss, rather than threshold the scores into guesses, gives a far tighter lower bound on epsilon::

    import askgauss as ag

    scores = ag.CanaryScores.from_groups(present=a, absent=b, noise="gaussian")
    result = ag.audit(scores, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    print(result)
"""

import importlib
from typing import TYPE_CHECKING, Any

from askgauss._version import __version__

if TYPE_CHECKING:
    from askgauss.auditing import audit
    from askgauss.auditors import (
        AdaptiveOneRun,
        Bayesian,
        ClopperPearson,
        GaussianDP,
        GaussianEllipsoid,
        GaussianRectangle,
        GaussianShift,
        MaxCosine,
        OneRun,
        OneRunFDP,
        OrderStatistics,
        SubsampledGaussian,
    )
    from askgauss.canaries import BlockCanaries, DiracCanaries, ExampleCanaries
    from askgauss.claims import PrivacyClaim
    from askgauss.comparison import compare
    from askgauss.mechanism_audit import audit_mechanism
    from askgauss.monitor import Monitor
    from askgauss.recording.linear_recorder import LinearRecorder
    from askgauss.recording.recorder import Recorder
    from askgauss.recording.transcript import LinearTranscript, Transcript
    from askgauss.replay import replay
    from askgauss.results import Assumption, AuditResult, Finding, Verdict
    from askgauss.scores import CanaryScores
    from askgauss.selection import DKW, CrossFit, Fixed, MultiSplit, Ranks, Split, UnionBound
    from askgauss.simulation import simulate_dpftrl, simulate_dpsgd
    from askgauss.stats import gaussian
    from askgauss.stats.score_law import ScoreLaw

__all__ = [  # noqa: RUF022  (plain order; the linter would put DKW first)
    "AdaptiveOneRun",
    "Assumption",
    "AuditResult",
    "Bayesian",
    "BlockCanaries",
    "CanaryScores",
    "ClopperPearson",
    "CrossFit",
    "DKW",
    "DiracCanaries",
    "ExampleCanaries",
    "Finding",
    "Fixed",
    "GaussianDP",
    "GaussianEllipsoid",
    "GaussianRectangle",
    "GaussianShift",
    "LinearRecorder",
    "LinearTranscript",
    "MaxCosine",
    "Monitor",
    "MultiSplit",
    "OneRun",
    "OneRunFDP",
    "OrderStatistics",
    "PrivacyClaim",
    "Ranks",
    "Recorder",
    "ScoreLaw",
    "Split",
    "SubsampledGaussian",
    "Transcript",
    "UnionBound",
    "Verdict",
    "__version__",
    "audit",
    "audit_mechanism",
    "compare",
    "gaussian",
    "replay",
    "simulate_dpftrl",
    "simulate_dpsgd",
]

# Loaded when first used, so that the command line and the pytest plugin start without numpy.
_NAMES_OF = {
    "askgauss.auditing": ("audit",),
    "askgauss.auditors": (
        "AdaptiveOneRun",
        "Bayesian",
        "ClopperPearson",
        "GaussianDP",
        "GaussianEllipsoid",
        "GaussianRectangle",
        "GaussianShift",
        "MaxCosine",
        "OneRun",
        "OneRunFDP",
        "OrderStatistics",
        "SubsampledGaussian",
    ),
    "askgauss.canaries": ("BlockCanaries", "DiracCanaries", "ExampleCanaries"),
    "askgauss.claims": ("PrivacyClaim",),
    "askgauss.comparison": ("compare",),
    "askgauss.recording.linear_recorder": ("LinearRecorder",),
    "askgauss.mechanism_audit": ("audit_mechanism",),
    "askgauss.monitor": ("Monitor",),
    "askgauss.recording.recorder": ("Recorder",),
    "askgauss.replay": ("replay",),
    "askgauss.results": ("Assumption", "AuditResult", "Finding", "Verdict"),
    "askgauss.scores": ("CanaryScores",),
    "askgauss.selection": (
        "DKW",
        "CrossFit",
        "Fixed",
        "MultiSplit",
        "Ranks",
        "Split",
        "UnionBound",
    ),
    "askgauss.simulation": ("simulate_dpftrl", "simulate_dpsgd"),
    "askgauss.stats.score_law": ("ScoreLaw",),
    "askgauss.recording.transcript": ("LinearTranscript", "Transcript"),
}
_HOME_OF = {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "gaussian":
        value = importlib.import_module("askgauss.stats.gaussian")
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
