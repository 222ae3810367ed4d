"""askgauss: audit differentially private training from one run.

Canaries planted in a run leave scores that are sums of bounded signals and Gaussian noise. To ask
Gauss, rather than threshold the scores into guesses, gives a far tighter lower bound on epsilon::

    import askgauss as ag

    scores = ag.CanaryScores.from_groups(present=a, absent=b, noise="gaussian")
    result = ag.audit(scores, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    print(result)
"""

# ruff: isort: skip_file
# Names are imported under themselves, which says that they are exported; the sorter splits those.

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from askgauss.auditing import audit as audit
    from askgauss.auditors import (
        AdaptiveOneRun as AdaptiveOneRun,
        Bayesian as Bayesian,
        ClopperPearson as ClopperPearson,
        GaussianDP as GaussianDP,
        GaussianEllipsoid as GaussianEllipsoid,
        GaussianRectangle as GaussianRectangle,
        GaussianShift as GaussianShift,
        MaxCosine as MaxCosine,
        OneRun as OneRun,
        OneRunFDP as OneRunFDP,
        OrderStatistics as OrderStatistics,
        SubsampledGaussian as SubsampledGaussian,
    )
    from askgauss.blackbox.membership import Membership as Membership
    from askgauss.canaries import (
        BlockCanaries as BlockCanaries,
        DiracCanaries as DiracCanaries,
        ExampleCanaries as ExampleCanaries,
    )
    from askgauss.claims import PrivacyClaim as PrivacyClaim
    from askgauss.comparison import compare as compare
    from askgauss.mechanism_audit import audit_mechanism as audit_mechanism
    from askgauss.monitor import Monitor as Monitor
    from askgauss.recording.linear_recorder import LinearRecorder as LinearRecorder
    from askgauss.recording.transcript import LinearTranscript as LinearTranscript
    from askgauss.recording.recorder import Recorder as Recorder
    from askgauss.recording.transcript import Transcript as Transcript
    from askgauss.replay import replay as replay
    from askgauss.results import (
        Assumption as Assumption,
        AuditResult as AuditResult,
        Finding as Finding,
        Verdict as Verdict,
    )
    from askgauss.scores import CanaryScores as CanaryScores
    from askgauss.selection import Fixed as Fixed, Ranks as Ranks, Split as Split
    from askgauss.simulation import (
        simulate_dpftrl as simulate_dpftrl,
        simulate_dpsgd as simulate_dpsgd,
    )
    from askgauss.stats import gaussian as gaussian
    from askgauss.stats.score_law import ScoreLaw as ScoreLaw

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
    "askgauss.blackbox.membership": ("Membership",),
    "askgauss.canaries": ("BlockCanaries", "DiracCanaries", "ExampleCanaries"),
    "askgauss.claims": ("PrivacyClaim",),
    "askgauss.comparison": ("compare",),
    "askgauss.mechanism_audit": ("audit_mechanism",),
    "askgauss.monitor": ("Monitor",),
    "askgauss.recording.linear_recorder": ("LinearRecorder",),
    "askgauss.recording.recorder": ("Recorder",),
    "askgauss.recording.transcript": ("LinearTranscript", "Transcript"),
    "askgauss.replay": ("replay",),
    "askgauss.results": ("Assumption", "AuditResult", "Finding", "Verdict"),
    "askgauss.scores": ("CanaryScores",),
    "askgauss.selection": ("Fixed", "Ranks", "Split"),
    "askgauss.simulation": ("simulate_dpftrl", "simulate_dpsgd"),
    "askgauss.stats.score_law": ("ScoreLaw",),
}
_HOME_OF = {name: module for module, names in _NAMES_OF.items() for name in names}
__all__ = sorted((*_HOME_OF, "__version__", "gaussian"))


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
