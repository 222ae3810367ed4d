"""An audit for people and machines: one HTML file, a notebook card, Markdown, JUnit XML."""

from askgauss.report.ci_documents import junit, markdown
from askgauss.report.html import card, render

__all__ = ["card", "junit", "markdown", "render"]
