"""askgauss: audit differentially private training from one run.

Canaries planted in a run leave scores that are sums of bounded signals and Gaussian noise. To ask
Gauss, rather than threshold the scores into guesses, gives a far tighter lower bound on epsilon::

    import askgauss as ag

    scores = ag.CanaryScores.from_groups(present=a, absent=b)
    result = ag.audit(scores, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    print(result)
"""

from askgauss._version import __version__
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
from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.claims import PrivacyClaim
from askgauss.comparison import compare
from askgauss.linear_recorder import LinearRecorder
from askgauss.linear_transcript import LinearTranscript
from askgauss.recorder import Recorder
from askgauss.results import Assumption, AuditResult, Finding, Verdict
from askgauss.scores import CanaryScores
from askgauss.selection import DKW, CrossFit, Fixed, MultiSplit, Split, UnionBound
from askgauss.simulation import simulate_dpftrl, simulate_dpsgd
from askgauss.stats import gaussian
from askgauss.stats.score_law import ScoreLaw
from askgauss.transcript import Transcript

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
    "Finding",
    "Fixed",
    "GaussianDP",
    "GaussianEllipsoid",
    "GaussianRectangle",
    "GaussianShift",
    "LinearRecorder",
    "LinearTranscript",
    "MaxCosine",
    "MultiSplit",
    "OneRun",
    "OneRunFDP",
    "OrderStatistics",
    "PrivacyClaim",
    "Recorder",
    "ScoreLaw",
    "Split",
    "SubsampledGaussian",
    "Transcript",
    "UnionBound",
    "Verdict",
    "__version__",
    "audit",
    "compare",
    "gaussian",
    "simulate_dpftrl",
    "simulate_dpsgd",
]
