"""Checks of what a bound rests on, and of the mechanism itself; `diagnose` runs them all."""

from askgauss.checks.gate import diagnose

__all__ = ["diagnose"]
