"""An audit for people and machines: one HTML file, a notebook card, Markdown, JUnit XML."""

from askgauss.report.html import card, render
from askgauss.report.junit import junit
from askgauss.report.markdown import markdown

__all__ = ["card", "junit", "markdown", "render"]
