"""Checks of what a bound rests on, and direct probes of the mechanism; `diagnose` runs them all."""

from askgauss.diagnostics.run import diagnose
from askgauss.diagnostics.text import describe

__all__ = ["describe", "diagnose"]
