"""Every kind of figure by its name."""

from __future__ import annotations

from askgauss.figures.leak_figures import EpsilonAxis
from askgauss.figures.run_figures import BoundByStep, EvidenceByStep
from askgauss.report.html import SECTIONS

KINDS = {
    kind.__name__: kind
    for kind in (
        EpsilonAxis,
        BoundByStep,
        EvidenceByStep,
        *(kind for section in SECTIONS for kind in section.figures),
    )
}
